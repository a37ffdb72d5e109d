"""Whether the disk of a data directory has room again, after an append was refused."""

from __future__ import annotations

import os
from contextlib import suppress

from kcore.common.file import append_to, unlink_if_there

#: As much as a producer's largest batch by default (max.request.size, message.max.bytes).
ROOM_BYTES = 1 << 20
#: Of the file that is written and removed again; no directory of a partition has such a name.
FILE_NAME = ".kcore-room"


def has_room(directory: str, size: int = ROOM_BYTES) -> bool:
    """Whether `size` bytes can be written into a new file there; the file is removed again.

    Free space that the system reports would say nothing about a quota (EDQUOT).  Waits for the disk; raises nothing.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        append_to(path, bytes(size), 0)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            unlink_if_there(path)
    return True
