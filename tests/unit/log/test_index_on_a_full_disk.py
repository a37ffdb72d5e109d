"""A store into a mapped page that has no block on a full disk is a SIGBUS.  So an index allocates the block with pwrite
first, which fails with ENOSPC."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from kcore.common import file
from kcore.log.offset_index import OffsetIndex
from kcore.log.time_index import TimeIndex

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


def test_an_append_to_a_log_with_sparse_indexes_on_a_full_disk_is_no_sigbus(tmp_path):
    """On a real file system: a small one in memory, which a user namespace lets anybody mount."""
    command = f'mount -t tmpfs -o size=256k tmpfs {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}'
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets nobody make a user namespace, so no file system can be made full")
    child = subprocess.run(
        [*namespace, "sh", "-c", command, "sh", textwrap.dedent(APPEND_ON_A_FULL_DISK)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (child.returncode, child.stdout) == (0, "1 1\n"), child.stderr
