"""Where the brokers of the fixtures have their files: in memory, where the machine has much of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from kcore.testing.free_memory import free_memory

#: Linux's file system in memory that every user can write to.
SHARED_MEMORY = "/dev/shm"
#: What must be free: there, and of the memory that this process may take.
_MIN_ROOM, _MIN_MEMORY = 1 << 30, 4 << 30
#: Python's tempfile looks at these.
_VARIABLES = ("TMPDIR", "TEMP", "TMP")
#: What tempfile.tempdir is on Linux where neither they nor the program say anything.
_PLACES = (None, "/tmp", "/var/tmp", "/usr/tmp")
_SETTING = "kcore.temporary.dir"


def settings_of_fixture(config: Mapping[str, Any], directory: str = SHARED_MEMORY) -> Mapping[str, Any]:
    """`config` with kcore.temporary.dir, if it has none, there is room in memory, and neither the environment nor the
    program says where temporary files are to be.

    A broker of a test makes some thirty files, and removes them soon.  On ext4, which looks past each inode that was
    freed in the last seconds, that is a third of all its work.
    """
    is_set = _SETTING in config or _SETTING.replace(".", "_") in config
    is_said = any(map(os.environ.get, _VARIABLES)) or tempfile.tempdir not in _PLACES
    return config if is_set or is_said or not _has_room(directory) else {**config, _SETTING: directory}


def _has_room(directory: str) -> bool:
    try:
        disk = os.statvfs(directory)
        has_memory = free_memory() >= _MIN_MEMORY
    except (OSError, KeyError, ValueError):
        return False
    return has_memory and os.access(directory, os.W_OK | os.X_OK) and disk.f_bavail * disk.f_frsize >= _MIN_ROOM
