"""Whether a disk that was full has room again."""

import errno

import pytest

from kcore.common import file
from kcore.log.disk_room import ROOM_BYTES, has_room


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_takes_only_a_part_has_no_room_and_nothing_is_left_there(tmp_path, error):
    assert has_room(str(tmp_path))
    file.fail_next("pwrite", error, under=str(tmp_path), after_bytes=ROOM_BYTES - 1, times=-1)
    assert not has_room(str(tmp_path))
    file.clear_faults()
    assert has_room(str(tmp_path)) and list(tmp_path.iterdir()) == []


def test_a_file_that_a_killed_process_left_there_is_removed(tmp_path):
    (tmp_path / ".kcore-room").write_bytes(b"x" * 10)
    assert has_room(str(tmp_path)) and list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_has_no_room(tmp_path):
    assert not has_room(str(tmp_path / "x"))
