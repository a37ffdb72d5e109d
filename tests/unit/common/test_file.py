"""Small files and names, each call of which a test can let fail."""

import errno
import os
import tempfile
import time

import pytest

from kcore.common import file
from kcore.errors import CorruptFile


@pytest.mark.parametrize("call", ["open_write", "pwrite", "fsync", "rename"])
def test_a_failed_write_names_the_file_and_leaves_the_old_content(tmp_path, call):
    path = tmp_path / "x"
    file.write_atomically(str(path), b"old")
    file.fail_next(call, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left") as caught:
        file.write_atomically(str(path), b"new")
    assert caught.value.filename == f"{path}.tmp"
    assert path.read_bytes() == b"old"
    file.write_atomically(str(path), b"newer")
    assert path.read_bytes() == b"newer" and os.listdir(tmp_path) == ["x"]


def test_a_write_is_synced_with_its_name_by_default(tmp_path):
    file.count_calls()
    file.write_atomically(str(tmp_path / "x"), b"1")
    assert file.calls("fsync") == 2
    file.write_atomically(str(tmp_path / "x"), b"", sync=False)
    assert file.calls("fsync") == 2 and file.read_file(str(tmp_path / "x")) == b""


def test_what_is_no_small_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(tmp_path / "directory")
    with open(tmp_path / "huge", "wb") as huge:
        huge.truncate(1 << 40)
    for name in ("fifo", "directory"):
        with pytest.raises(CorruptFile, match="no regular file"):
            file.read_file(str(tmp_path / name))
    with pytest.raises(CorruptFile, match=f"{1 << 40} bytes, no file of its kind has so many"):
        file.read_file(str(tmp_path / "huge"))


def test_an_append_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = str(tmp_path / "x")
    file.append_to(path, b"abcd", 0)
    file.fail_next("pwrite", errno.ENOSPC, after_bytes=2)
    with pytest.raises(OSError, match="No space left"):
        file.append_to(path, b"efgh", 4)
    assert file.read_file(path) == b"abcd"


def test_names_are_listed_made_moved_and_removed(tmp_path):
    root = str(tmp_path)
    file.make_directory(f"{root}/a/b/c")
    file.make_directory(f"{root}/a/b/c")
    file.write_atomically(f"{root}/a/b/f", b"")
    assert sorted(file.list_directory(f"{root}/a/b")) == ["c", "f"]
    assert file.is_directory(f"{root}/a/b/c") and not file.is_directory(f"{root}/a/b/f")
    assert file.exists(f"{root}/a/b/f") and not file.exists(f"{root}/a/b/f/under") and not file.exists(f"{root}/z")
    file.rename(f"{root}/a/b/f", f"{root}/a/g")
    file.truncate_file(f"{root}/a/g", 3)
    assert file.modified_ms(f"{root}/a/g") == os.stat(f"{root}/a/g").st_mtime_ns // 1_000_000
    assert file.unlink_if_there(f"{root}/a/g") and not file.unlink_if_there(f"{root}/a/g")
    os.symlink(root, f"{root}/a/b/link")
    file.remove_tree(f"{root}/a")
    file.remove_tree(f"{root}/a")
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("opendir", file.list_directory),
        ("readdir", file.list_directory),
        ("stat", file.exists),
        ("rmdir", file.remove_tree),
        ("mkdir", lambda path: file.make_directory(f"{path}/new")),
        ("fsync", file.sync_path),
        ("open", file.sync_path),
        ("unlink", lambda path: file.unlink(f"{path}/there")),
        ("pread", lambda path: file.read_file(f"{path}/there")),
        ("ftruncate", lambda path: file.truncate_file(f"{path}/there", 0)),
    ],
)
def test_a_call_that_the_disk_refuses_is_an_error_with_the_path(tmp_path, call, work):
    (tmp_path / "there").write_bytes(b"x")
    file.fail_next(call, errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as caught:
        work(str(tmp_path))
    assert str(tmp_path) in caught.value.filename


def test_faults_are_chosen_by_place_and_turn(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    file.fail_next(file.CHANGES, errno.EROFS, under=str(tmp_path / "bad"), skip=2, times=-1)
    for _ in range(3):
        file.write_atomically(str(tmp_path / "good" / "x"), b"1", sync=False)
    file.append_to(str(tmp_path / "bad" / "x"), b"1", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            file.append_to(str(tmp_path / "bad" / "x"), b"1", 1)
    assert (tmp_path / "bad" / "x").read_bytes() == b"1"


def test_of_several_faults_for_a_call_the_last_one_has_it_and_then_the_one_before(tmp_path):
    def error_of_a_write():
        try:
            file.append_to(str(tmp_path / "x"), b"1", 0)
        except OSError as error:
            return error.errno
        return None

    first = file.fail_next("pwrite", errno.EIO, under=str(tmp_path), times=2)
    second = file.fail_next("pwrite", errno.ENOSPC, under=str(tmp_path), times=1)
    assert [error_of_a_write() for _ in range(4)] == [errno.ENOSPC, errno.EIO, errno.EIO, None]
    assert [file.fault_hits(first), file.fault_hits(second)] == [2, 1]
    third = file.fail_next("pwrite", errno.EROFS, under=str(tmp_path), times=-1)
    fourth = file.fail_next("pwrite", errno.EIO, times=-1)
    assert error_of_a_write() == errno.EIO
    file.end_fault(fourth)
    assert error_of_a_write() == errno.EROFS
    assert [file.end_fault(fault) for fault in (first, second, third)] == [2, 1, 1]
    assert error_of_a_write() is None


def test_a_fault_that_has_hit_all_its_calls_makes_room_for_another(tmp_path):
    lasting = file.fail_next("rename", errno.EIO, times=-1)
    for _ in range(200):
        file.fail_next("pwrite", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.append_to(str(tmp_path / "x"), b"1", 0)
    with pytest.raises(OSError, match="Input/output"):
        file.write_atomically(str(tmp_path / "y"), b"1", sync=False)
    assert file.fault_hits(lasting) == 1
    with pytest.raises(ValueError, match="too many faults at once"):
        for _ in range(200):
            file.fail_next("pwrite", errno.EIO)


def test_a_write_can_flip_a_bit_and_a_sync_can_be_lost(tmp_path):
    path = str(tmp_path / "x")
    flip = file.spoil_next("pwrite", "flip", under=path)
    file.append_to(path, b"abc", 0)
    file.append_to(path, b"d", 3)
    assert file.read_file(path) == b"abbd"
    assert file.fault_hits(flip) == 1 == file.end_fault(flip)
    assert file.fault_hits(flip) == 0 == file.end_fault(flip)
    with pytest.raises(OSError, match="Invalid argument"):
        file.sync_path("/dev/null")  # no system call can sync it
    lose = file.spoil_next("fsync", "lose", times=2)
    file.sync_path("/dev/null")
    assert file.fault_hits(lose) == 1
    with tempfile.TemporaryFile() as record:
        file.record_to(record.fileno())
        file.spoil_next("fsync", "wait", wait_ms=50)
        began = time.monotonic()
        file.sync_path(path)
        assert time.monotonic() - began >= 0.05


def test_what_changes_the_disk_can_be_written_down(tmp_path):
    with tempfile.TemporaryFile() as record:
        file.record_to(record.fileno())
        file.write_atomically(str(tmp_path / "x"), b"hello")
        file.clear_faults()
        written = os.pread(record.fileno(), 1 << 20, 0)
    assert written.count(b"hello") == 1
    assert written.index(b"x.tmp\0") < written.index(b"hello") < written.index(b"x.tmp\0" + os.fsencode(tmp_path))
