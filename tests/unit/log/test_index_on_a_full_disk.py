"""A store into a mapped page that has no block on a full disk is a SIGBUS.  So an index allocates the block with pwrite
first, which fails with ENOSPC.  On tmpfs a load from such a page is a SIGBUS too."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kcore.common import file
from kcore.errors import CorruptIndex, CorruptMessage
from kcore.log.log_segment import LogSegment
from kcore.log.offset_index import OffsetIndex
from kcore.log.time_index import TimeIndex
from kcore.record.memory_records import MemoryRecords
from tests.unit.log.logs import batch

PAGE = 4096
SIZE = 3 * PAGE  # whole entries of both


@pytest.fixture(params=[OffsetIndex, TimeIndex])
def sparse(request, tmp_path):
    """An index file that was preallocated and never written or cut to its entries, opened: zeros without a block."""
    path = tmp_path / "00000000000000000000.index"
    path.touch()
    os.truncate(path, SIZE)
    return request.param(str(path), 0, max_index_size=SIZE)


def add(index, n):
    if isinstance(index, OffsetIndex):
        index.append(n, n)
    else:
        index.maybe_append(n, n)


@pytest.mark.parametrize("forget", [lambda index: index.truncate(), lambda index: index.truncate_to(0)])
def test_an_entry_after_a_truncation_gets_a_block_for_its_page_first(sparse, forget):
    forget(sparse)
    assert len(sparse) == 0
    file.fail_next("pwrite", errno.ENOSPC)
    with pytest.raises(OSError, match=r"\[Errno 28\]"):
        add(sparse, 1)
    assert len(sparse) == 0
    add(sparse, 1)  # space is back
    assert len(sparse) == 1


@pytest.mark.parametrize("kept", [0, 1, 300, 511, 512, 513, 600])
def test_entries_before_and_after_a_truncation_are_those_of_a_list(tmp_path, kept):
    path = str(tmp_path / "00000000000000000000.index")
    index = OffsetIndex(path, 0, max_index_size=SIZE)
    for n in range(1, 701):
        index.append(n, n)
    index.close()
    index = OffsetIndex(path, 0, max_index_size=SIZE)
    index.truncate_to(kept + 1)
    expected = [(n, n) for n in range(1, kept + 1)]
    for n in range(kept + 1, 1200):
        index.append(n, 2 * n)
        expected.append((n, 2 * n))
    index.close()
    again = OffsetIndex(path, 0, writable=False)
    assert [again.entry(n) for n in range(len(again))] == expected


APPEND_ON_A_FULL_DISK = """
    import errno, os, sys
    from kcore.log.log_segment import LogSegment
    from tests.unit.log.logs import batch
    from kcore.record.memory_records import MemoryRecords

    directory = sys.argv[1]
    for extension in ("log", "index", "timeindex"):
        with open(f"{directory}/{0:020d}.{extension}", "wb") as file:
            file.truncate(0 if extension == "log" else 48 * 1024)
    segment = LogSegment(directory, 0, index_interval_bytes=0, max_index_size=48 * 1024)
    first = batch()
    segment.append(MemoryRecords(first))  # gives the .log a page, and no index an entry
    with open(f"{directory}/ballast", "wb", 0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
    segment.append(MemoryRecords((1).to_bytes(8, "big") + first[8:]))
    print(len(segment.offset_index), len(segment.time_index))
"""


OPEN_ON_A_FULL_DISK = """
    import errno, os, sys
    from kcore.common.topic_partition import TopicPartition
    from kcore.errors import CorruptIndex
    from kcore.log.log_config import LogConfig
    from kcore.log.log_loader import load_log
    from kcore.log.log_segment import LogSegment
    from kcore.record.memory_records import MemoryRecords
    from tests.unit.log.logs import batch

    directory, kind = sys.argv[1] + "/t-0", sys.argv[2]
    os.mkdir(directory)
    segment = LogSegment(directory, 0, index_interval_bytes=0, max_index_size=48 * 1024)
    for n in range(20):
        segment.append(MemoryRecords(n.to_bytes(8, "big") + batch()[8:]))
    segment.close(trim=False)  # as a kill leaves it
    if kind == "log":
        os.truncate(segment.log_path, segment.size + 16 * 4096)  # as log.preallocate of a Java broker leaves it
    with open(f"{sys.argv[1]}/ballast", "wb", 0) as ballast:
        for size in (4096, 1):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
    if kind == "index":
        segment = LogSegment(directory, 0, index_interval_bytes=0, max_index_size=48 * 1024)
        for index in (segment.offset_index, segment.time_index):
            try:
                index.sanity_check()
            except CorruptIndex:
                pass
            else:
                raise AssertionError(index)
        print(segment.translate_offset(2**31 + 1), len(segment.offset_index), len(segment.time_index))
    elif kind == "log":
        segment = LogSegment(directory, 0, index_interval_bytes=0, max_index_size=48 * 1024)
        result = segment.scan(None)
        print(segment.translate_offset(19).offset, result.last_offset, result.truncated_bytes)
    else:
        log = load_log(directory, TopicPartition("t", 0), LogConfig(segment_index_bytes=48 * 1024))
        print(log.log_start_offset, log.log_end_offset, len(list(log.records(0))))
"""


def on_a_small_disk(tmp_path, program, *arguments):
    """What the program prints, run on a file system of 256 KiB in memory, which a user namespace lets anybody mount."""
    command = f'mount -t tmpfs -o size=256k tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path} "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets nobody make a user namespace, so no file system can be made full")
    child = subprocess.run(
        [*namespace, "sh", "-c", command, textwrap.dedent(program), *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, (child.returncode, child.stderr)
    return child.stdout


def test_an_append_to_a_log_with_sparse_indexes_on_a_full_disk_is_no_sigbus(tmp_path):
    assert on_a_small_disk(tmp_path, APPEND_ON_A_FULL_DISK) == "1 1\n"


@pytest.mark.parametrize(
    "kind, expected",
    [("index", f"None {PAGE // 8} {PAGE // 12}\n"), ("log", f"19 19 {16 * PAGE}\n"), ("load", "0 20 20\n")],
)
def test_a_read_of_a_hole_on_a_full_disk_is_no_sigbus(tmp_path, kind, expected):
    """tmpfs needs a block also for a load from a mapped hole."""
    assert on_a_small_disk(tmp_path, OPEN_ON_A_FULL_DISK, kind) == expected


def test_an_index_ends_before_its_first_hole_and_is_not_sane(sparse):
    sparse.truncate()
    add(sparse, 1)
    sparse.close(trim=False)
    index = type(sparse)(sparse.path, 0, max_index_size=SIZE)
    with pytest.raises(CorruptIndex, match=r"a hole after \d+ entries"):
        index.sanity_check()
    assert len(index) == PAGE // type(sparse).ENTRY_SIZE
    assert index.entry(0) == (1, 1)


def test_a_log_with_a_hole_is_not_mapped_until_the_hole_is_cut_off(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    first = batch()
    segment.append(MemoryRecords(first))
    segment.close()
    os.truncate(segment.log_path, 4 * PAGE)

    def is_mapped():
        return segment.log_path in Path("/proc/self/maps").read_text(encoding="utf-8")

    segment = LogSegment(str(tmp_path), 0)
    with pytest.raises(CorruptMessage):
        segment.translate_offset(10)
    assert segment.translate_offset(0).size == len(first)
    assert segment.columns(0, 1).offset.tolist() == [0]
    assert not is_mapped()
    assert segment.recover().valid_bytes == len(first)
    assert segment.columns().offset.tolist() == [0]
    assert is_mapped()
