"""Which process holds a lock on a file, for messages."""

from __future__ import annotations

import os


def process_text(pid: int) -> str:
    """ "process 123 (java)"; without the name if that is not known."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return f"process {pid} ({comm.read().strip()})"
    except OSError:
        return f"process {pid}"


def writer_of(*paths: str, besides: int | None = None) -> str | None:
    """The process that has a part of one of these files locked for itself; None where the system names none.
    besides: a process that is not meant.

    It opens none of the files: closing one drops all record locks that this process has on it (fcntl(2)).
    """
    files = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        files.add(f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}")
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            # As "1: POSIX  ADVISORY  WRITE 123 08:01:4711 120 120"; a process that waits has "->" before POSIX.
            for _, kind, _, mode, pid, file, *_ in map(str.split, locks):
                if kind == "POSIX" and mode == "WRITE" and file in files and int(pid) not in (0, -1, besides):
                    return process_text(int(pid))
    except (OSError, ValueError):
        pass
    return None
