""".kcore_boot_id: in which boot of its machine a data directory was used last.

A process that is killed loses nothing that it has written.  A machine that fails loses what was not synced, and the
next start is in another boot.  Linux names each one in /proc/sys/kernel/random/boot_id.
"""

from __future__ import annotations

import os

from kcore.common.file import read_file, write_atomically

FILE_NAME = ".kcore_boot_id"


def read_boot_id(log_dir: str) -> str | None:
    """None for a directory that has none.  Raises OSError."""
    try:
        return read_file(os.path.join(log_dir, FILE_NAME)).decode("ascii", "replace").strip() or None
    except FileNotFoundError:
        return None


def write_boot_id(log_dir: str, boot_id: str) -> None:
    """Raises OSError."""
    write_atomically(os.path.join(log_dir, FILE_NAME), f"{boot_id}\n".encode())
