"""compress and decompress: both ways, against other writers, and against bytes meant to hurt."""

import gzip
import itertools
import random
import struct

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as aiokafka_codec

from kcore.errors import CorruptMessage
from kcore.record.compression import (
    CODECS,
    LEVELS,
    check_level,
    compress,
    decompress,
    decompress_zstd_into,
)
from kcore.record.zstd_frame import most_unpacked
from tests.reference import record_batch as model

SAMPLES = [b"", b"x", b"kafka" * 20_000, random.Random(1).randbytes(70_000)]
REAL = range(1, len(CODECS))


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
@pytest.mark.parametrize("data", SAMPLES, ids=["empty", "one byte", "regular", "random"])
def test_what_was_compressed_comes_back(codec, data):
    for kind in (bytes, bytearray, memoryview):
        packed = compress(codec, kind(data))
        assert decompress(codec, kind(packed)) == data
    assert model.decompress(CODECS[codec], packed) == data
    assert decompress(codec, model.compress(CODECS[codec], data)) == data


@pytest.mark.parametrize("codec", REAL, ids=CODECS[1:])
def test_levels_are_the_codecs_own(codec):
    data = SAMPLES[2]
    for level in (1, 9):
        assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_a_level_that_a_codec_does_not_have_is_refused_with_those_that_it_has(codec):
    check_level(codec, None)
    if codec not in LEVELS:
        with pytest.raises(ValueError, match=f"^{CODECS[codec]} has no levels$"):
            check_level(codec, 1)
        return
    least, most = LEVELS[codec]
    for level in (least, most):
        check_level(codec, level)
        assert decompress(codec, compress(codec, SAMPLES[2], level)) == SAMPLES[2]
    for level in (least - 1, most + 1):
        with pytest.raises(ValueError, match=f"has no level {level}: they go from {least} to {most}$"):
            check_level(codec, level)


def test_what_aiokafka_compresses_is_read_and_the_reverse():
    data = SAMPLES[2]
    pairs = {
        1: (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
        2: (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
        3: (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
        4: (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
    }
    for codec, (encode, decode) in pairs.items():
        assert decompress(codec, bytes(encode(data))) == data
        assert bytes(decode(compress(codec, data))) == data


def test_lz4_is_written_as_the_java_reader_wants_it():
    packed = compress(3, SAMPLES[2])
    info = lz4.frame.get_frame_info(packed)
    assert not info["block_linked"]
    assert info["content_size"] == 0  # none stored


def test_lz4_of_other_writers_is_read_linked_blocks_checksums_and_sizes_included():
    data = SAMPLES[2]
    for options in ({"block_linked": True}, {"store_size": True}, {"content_checksum": True}):
        assert decompress(3, lz4.frame.compress(data, **options)) == data


def test_snappy_is_written_in_xerial_blocks_of_32_kib():
    packed = compress(2, bytes(100_000))
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    at, blocks = 16, []
    while at < len(packed):
        (size,) = struct.unpack_from(">i", packed, at)
        blocks.append(len(bytes(cramjam.snappy.decompress_raw(packed[at + 4 : at + 4 + size]))))
        at += 4 + size
    assert blocks == [32768, 32768, 32768, 100_000 - 3 * 32768]


def test_snappy_without_a_frame_is_read_as_librdkafka_writes_it():
    assert decompress(2, bytes(cramjam.snappy.compress_raw(SAMPLES[2]))) == SAMPLES[2]


def test_concatenated_gzip_members_and_zstd_frames_are_one_stream():
    assert decompress(1, gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"
    frames = [zstandard.ZstdCompressor().compress(part) for part in (b"one", b"two" * 5000, b"three")]
    assert decompress(4, b"".join(frames)) == b"one" + b"two" * 5000 + b"three"


@pytest.mark.parametrize("codec", REAL, ids=CODECS[1:])
def test_a_stream_cut_anywhere_is_corrupt(codec):
    packed = compress(codec, random.Random(2).randbytes(300))
    first = 17 if codec == 2 else 1  # a xerial header alone is an empty stream
    for cut in range(first, len(packed)):
        with pytest.raises(CorruptMessage, match=CODECS[codec]):
            decompress(codec, packed[:cut])


@pytest.mark.parametrize("codec", REAL, ids=CODECS[1:])
@pytest.mark.parametrize("seed", range(40))
def test_random_damage_ends_in_data_or_corrupt_message(codec, seed):
    rng = random.Random(seed)
    packed = bytearray(compress(codec, rng.randbytes(200) * 50))
    for _ in range(50):
        broken = bytearray(packed)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            assert isinstance(decompress(codec, broken, max_size=100_000), bytes | bytearray)
        except CorruptMessage:
            pass
    with pytest.raises(CorruptMessage):
        decompress(codec, b"\x00" + rng.randbytes(99))


@pytest.mark.parametrize("codec", REAL, ids=CODECS[1:])
def test_contents_up_to_the_limit_are_taken_and_one_byte_more_is_not(codec):
    for data in (bytes(200_000), random.Random(4).randbytes(200_000)):
        packed = compress(codec, data)
        assert decompress(codec, packed, max_size=200_000) == data
        with pytest.raises(CorruptMessage, match=r"^seg\.log: .*exceed"):
            decompress(codec, packed, max_size=199_999, source="seg.log")


def test_a_bomb_is_stopped_at_the_limit():
    bomb = zstandard.ZstdCompressor(1).compress(bytes(1 << 28))
    assert len(bomb) < 100_000
    with pytest.raises(CorruptMessage, match="exceed"):
        decompress(4, bomb, max_size=1 << 20)
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + bytes(10)
    with pytest.raises(CorruptMessage, match="exceed"):
        decompress(2, claims_4_gib)


@pytest.mark.parametrize("codec", [-1, 5, 7, 100])
def test_an_unknown_codec_is_corrupt(codec):
    with pytest.raises(CorruptMessage, match=f"unknown compression codec {codec}"):
        decompress(codec, b"x")


def test_lz4_of_magic_0_has_the_historic_header_checksum():
    data = b"some bytes " * 100
    frame, historic = compress(3, data), compress(3, data, magic=0)
    # Of the bytes 04 22 4d 18 60 40 the historic one is 1a: as in tests/golden/old-formats/v0-lz4.log.
    assert (frame[4:6], frame[6]) == (historic[4:6], 0x82)
    assert historic[6] == 0x1A
    assert historic[:6] + historic[7:] == frame[:6] + frame[7:]
    assert decompress(3, historic, magic=0) == data
    assert decompress(3, frame, magic=0) == data  # Kafka does not look at it either
    for magic in (1, 2):
        with pytest.raises(CorruptMessage):
            decompress(3, historic, magic=magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_old_formats_have_no_zstd(magic):
    with pytest.raises(ValueError, match="no zstd"):
        compress(4, b"x", magic=magic)
    with pytest.raises(CorruptMessage, match="unknown compression codec 4 in magic"):
        decompress(4, compress(4, b"x"), magic=magic)


def test_gzip_is_read_alike_with_and_without_isal(monkeypatch):
    import sys

    from kcore.record import compression

    data = bytes(range(256)) * 400
    packed = compress(1, data) + compress(1, b"a second member")
    answers = []
    for there in (True, False):
        compression._inflate.cache_clear()
        if not there:
            monkeypatch.setitem(sys.modules, "isal", None)
        answers.append(decompress(1, packed))
        with pytest.raises(CorruptMessage):
            decompress(1, packed[:-3])
        with pytest.raises(CorruptMessage):
            decompress(1, packed, max_size=len(data))
    compression._inflate.cache_clear()
    assert answers == [data + b"a second member"] * 2


def test_an_empty_zstd_frame_is_no_end_where_another_follows():
    empty, full = zstandard.ZstdCompressor().compress(b""), compress(4, b"records")
    assert decompress(4, empty) == b""
    assert decompress(4, empty + full) == b"records"


@pytest.mark.parametrize("suffix", [b"garbage", b"\x00"], ids=["garbage", "a zero"])
def test_an_empty_zstd_frame_with_bytes_after_it_that_are_no_frame_is_corrupt(suffix):
    with pytest.raises(CorruptMessage):
        decompress(4, zstandard.ZstdCompressor().compress(b"") + suffix)


def test_an_empty_zstd_frame_that_is_cut_short_is_corrupt():
    empty = zstandard.ZstdCompressor().compress(b"")
    for size in range(len(empty)):
        with pytest.raises(CorruptMessage):
            decompress(4, empty[:size])


def test_bytes_after_a_gzip_stream_are_ignored_and_a_second_stream_is_read():
    packed = compress(1, b"records")
    assert decompress(1, packed + b"garbage") == b"records"
    assert decompress(1, packed + packed) == b"recordsrecords"
    with pytest.raises(CorruptMessage, match="ends early"):
        decompress(1, packed + packed[:-1])
    with pytest.raises(CorruptMessage):
        decompress(1, b"")


def test_concatenated_streams_of_framed_snappy_are_one():
    assert decompress(2, compress(2, b"rec") + compress(2, b"ords")) == b"records"


def zstd_frames():
    """Frames of every kind of header and block, with what they hold."""
    data = random.Random(7).randbytes(3000) + bytes(300_000) + b"some words, some words " * 9000
    for size in (1, 200, 255, 256, 70_000, len(data)):
        for checksum, has_size in itertools.product((False, True), repeat=2):
            packer = zstandard.ZstdCompressor(3, write_checksum=checksum, write_content_size=has_size)
            yield packer.compress(data[:size]), data[:size]
            stream = zstandard.ZstdCompressor(3, write_checksum=checksum).compressobj()
            parts = [stream.compress(data[:100][:size]), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
            yield b"".join([*parts, stream.compress(data[100:size]), stream.flush()]), data[:size]


def test_the_size_of_a_zstd_frame_is_computed_and_anything_but_one_whole_frame_is_none():
    for frame, data in zstd_frames():
        most = most_unpacked(frame)
        assert len(data) <= most <= len(data) + 3 * 128 * 1024
        assert decompress(4, frame) == data
        assert {most_unpacked(frame[:cut]) for cut in range(len(frame))} == {-1}
        assert most_unpacked(frame + frame) == most_unpacked(frame + b"x") == -1
        assert decompress(4, frame + frame) == data + data
    assert most_unpacked(b"") == most_unpacked(bytes(100)) == -1
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    assert most_unpacked(skippable) == -1


def test_a_zstd_frame_of_many_small_blocks_gets_no_room_of_a_hundred_times_what_it_holds():
    stream = zstandard.ZstdCompressor().compressobj()
    texts = [b"%d," % i * 30 for i in range(1500)]
    parts = [stream.compress(text) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for text in texts]
    frame, data = b"".join([*parts, stream.flush()]), b"".join(texts)
    assert most_unpacked(frame) == -1 and decompress(4, frame) == data


def test_a_zstd_frame_that_claims_more_than_its_blocks_can_hold_gets_no_room():
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(200)))
    assert frame[4] == 0x20 and frame[5] == 200  # a single segment, a content size of one byte
    claims_4_gib = bytes(frame[:4]) + b"\xa0" + b"\xff" * 4 + bytes(frame[6:])
    assert most_unpacked(claims_4_gib) == -1
    with pytest.raises(CorruptMessage):
        decompress(4, claims_4_gib)


def test_zstd_is_unpacked_into_the_middle_of_a_buffer_and_nowhere_else():
    for frame, data in zstd_frames():
        most = most_unpacked(frame)
        buffer = bytearray(b"\xaa" * (10 + most))
        with memoryview(buffer)[10:] as room:
            assert decompress_zstd_into(frame, room) == len(data)
        assert buffer[:10] == b"\xaa" * 10 and buffer[10 : 10 + len(data)] == data
        buffer.clear()  # no reference is left


def test_damage_inside_a_zstd_frame_is_found_when_it_is_unpacked_into_a_buffer():
    rng = random.Random(3)
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(rng.randbytes(500) * 40)
    detected = 0
    for _ in range(500):
        broken = bytearray(frame)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        most = most_unpacked(broken)
        if most < 0:
            continue
        room = memoryview(bytearray(most))
        try:
            size = decompress_zstd_into(broken, room)
        except CorruptMessage:
            detected += 1
        else:
            assert decompress(4, broken) == room[:size]
    assert detected > 100
