"""CRC-32C: published vectors, and every kernel against google-crc32c."""

import random

import google_crc32c
import pytest

from kcore.record.crc32c import crc32c, crc32c_with, kernels

#: RFC 3720, appendix B.4, and the check value of the CRC catalogue.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]


def sizes_around_every_block():
    """Each size up to 600, then around the kernels' block sizes: 384 and 3072 (three streams), 64 and 256 (folding)."""
    yield from range(600)
    for block in (768, 1024, 1536, 2048, 3072, 3456, 4096, 6144, 6528, 16384):
        yield from range(block - 17, block + 18)


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_every_kernel_gives_the_published_vectors(kernel, data, expected):
    assert crc32c_with(kernel, data) == expected


@pytest.mark.parametrize("kernel", kernels())
def test_every_kernel_agrees_with_google_crc32c_at_every_size(kernel):
    rng = random.Random(1)
    data = rng.randbytes(16384 + 64)
    for size in sizes_around_every_block():
        value = rng.getrandbits(32)
        assert crc32c_with(kernel, data[:size], value) == google_crc32c.extend(value, data[:size]), (size, value)


@pytest.mark.parametrize("kernel", kernels())
def test_every_kernel_agrees_with_google_crc32c_at_every_alignment(kernel):
    rng = random.Random(2)
    data = memoryview(rng.randbytes(5000))
    for start in range(65):
        for size in (1, 7, 64, 255, 256, 257, 400, 1023, 4000):
            part = data[start : start + size]
            assert crc32c_with(kernel, part) == google_crc32c.value(bytes(part)), (start, size)


@pytest.mark.parametrize("seed", range(20))
def test_a_crc_in_parts_is_the_crc_of_the_whole(seed):
    rng = random.Random(seed)
    data = rng.randbytes(rng.randint(0, 5000))
    cut = rng.randint(0, len(data))
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data) == google_crc32c.value(data), f"seed={seed}"


def test_inputs_that_release_the_gil_give_the_same():
    data = random.Random(3).randbytes(3 * 1024 * 1024 + 5)
    assert crc32c(data) == google_crc32c.value(data)
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)


def test_the_table_runs_anywhere_and_is_the_last_choice():
    assert kernels()[-1] == "table"


def test_a_kernel_that_cannot_run_is_an_error_and_no_quiet_fallback():
    with pytest.raises(ValueError, match=r"'abacus' cannot run here, .*table can"):
        crc32c_with("abacus", b"x")


@pytest.mark.parametrize("value", [-1, 2**32])
def test_an_initial_value_outside_32_bits_is_refused(value):
    with pytest.raises(OverflowError):
        crc32c(b"x", value)


def test_only_contiguous_bytes_have_a_crc():
    with pytest.raises(TypeError):
        crc32c("text")
    with pytest.raises(BufferError):
        crc32c(memoryview(b"abcd")[::2])
