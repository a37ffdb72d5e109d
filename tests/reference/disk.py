"""A disk as a list of what was done to it: the directory of any moment, as a killed process or a dead machine left it.

recorded() writes down each system call that changes something (csrc/file_faults.h); Disk applies them one by one to
files in memory, and keeps beside each what has surely reached the platter.  For a test of the order of a few calls,
calls() has them as lines and place() says where one of them is.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.common import file

_ENTRY = struct.Struct("@iiqqq")
CALLS = (
    "open", "open_write", "stat", "pread", "pwrite", "ftruncate", "fsync", "mmap", "msync", "rename", "unlink", "mkdir",
    "rmdir", "opendir", "readdir", "stores", "created",
)  # fmt: skip


class Change(NamedTuple):
    call: str
    paths: tuple[str, ...]
    inode: int
    position: int
    data: bytes
    end: int  # of the entry in the record: what was done before an operation ended is below its size then


class Record:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)

    def changes(self) -> list[Change]:
        data = os.pread(self.fd, self.size, 0)
        changes, at = [], 0
        while at < len(data):
            call, path_size, inode, position, size = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            paths = tuple(os.fsdecode(path) for path in data[at : at + path_size].split(b"\0")[:-1])
            at += path_size + size
            changes.append(Change(CALLS[call], paths, inode, position, data[at - size : at], at))
        return changes


def calls(record: Record, root, *kinds: str) -> list[str]:
    """The recorded calls of these kinds (without any: all) as lines, "fsync a.log" or "rename a.log a.log.deleted".

    Names are those below root, which itself is ".", and "" is a mapping that was made before the recording began.  What
    a mapping held ("stores") is not a call.
    """
    return [
        " ".join([change.call, *(path and os.path.relpath(path, root) for path in change.paths)])
        for change in record.changes()
        if change.call in kinds or not (kinds or change.call == "stores")
    ]


def place(lines: list[str], pattern: str) -> int:
    """Which of the calls is the first that matches ("fsync *.snapshot"); an AssertionError if none does."""
    matches = [n for n, line in enumerate(lines) if fnmatch.fnmatchcase(line, pattern)]
    assert matches, f"no {pattern!r} among {lines}"
    return matches[0]


@contextlib.contextmanager
def recorded():
    fd = os.memfd_create("kcore-disk-record")
    try:
        file.record_to(fd)
        yield Record(fd)
    finally:
        file.clear_faults()
        os.close(fd)


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)  # (turn, position, data), a cut: None

    def change(self, turn: int, position: int, data: bytes | None) -> None:
        _change(self.data, position, data)
        self.pending.append((turn, position, data))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending.clear()

    def after_power_loss(self, rng, last: int) -> bytes:
        """What was synced, and of the rest whatever reached the disk: each write whole, in part, or not at all; cuts
        in their turn."""
        data = bytearray(self.durable)
        for turn, position, written in self.pending:
            luck = rng.random()
            if written is None and turn >= last:
                continue
            if luck < 0.4 or written is None:
                _change(data, position, written)
            elif luck < 0.6 and written:
                _change(data, position, written[: rng.randrange(len(written))])
        return bytes(data)


def _change(data: bytearray, position: int, written: bytes | None) -> None:
    if written is None:
        del data[position:]
        data.extend(bytes(position - len(data)))
    elif written:
        data.extend(bytes(max(0, position - len(data))))
        data[position : position + len(written)] = written


class Disk:
    """root: what the record calls the directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[int, _File] = {}
        self.names: dict[str, int] = {}
        self.directories: set[str] = set()
        # What happened to names, each with its turn and whether its directory was synced since.
        self.history: list[tuple[int, Change, bool]] = []
        self.turn = 0

    def apply(self, change: Change) -> None:
        self.turn += 1
        if change.call in ("created", "rename", "unlink", "mkdir", "rmdir"):
            if change.call == "created":
                self.files[change.inode] = _File()
            _rename(self.names, self.directories, change)
            self.history.append((self.turn, change, False))
        elif change.call in ("fsync", "msync") and change.inode in self.files:
            self.files[change.inode].sync()
        elif change.call == "fsync":
            self.history = [
                (turn, old, durable or any(os.path.dirname(path) == change.paths[0] for path in old.paths))
                for turn, old, durable in self.history
            ]
        elif change.call == "stores":
            file = self.files.get(change.inode)
            data = change.data[: len(file.data)] if file is not None else b""
            if file is not None and not file.data.startswith(data):
                file.change(self.turn, 0, data)
        elif change.inode in self.files:
            data = None if change.call == "ftruncate" else change.data
            self.files[change.inode].change(self.turn, change.position, data)

    def write_to(self, target: str, rng=None) -> None:
        """The directory as a killed process leaves it; with rng as a machine that lost its power does."""
        names, directories, last_cut = self.names, self.directories, 0
        if rng is not None:
            names, directories = {}, set()
            # A file system's journal keeps the order of changes to names and sizes.
            pending = [turn for turn, _, durable in self.history if not durable]
            last = rng.choice([*pending, self.turn + 1])
            last_cut = max([last, *(turn + 1 for turn, _, durable in self.history if durable)])
            for turn, change, durable in self.history:
                if durable or turn < last:
                    _rename(names, directories, change)
        for path in sorted(directories):
            os.makedirs(target + path[len(self.root) :], exist_ok=True)
        for path, inode in names.items():
            if os.path.dirname(path) not in (self.root, *directories):
                continue  # synced in a directory whose own name was lost
            with open(target + path[len(self.root) :], "wb") as out:
                content = self.files[inode]
                out.write(content.data if rng is None else content.after_power_loss(rng, last_cut))


def _rename(names: dict[str, int], directories: set[str], change: Change) -> None:
    path = change.paths[0]
    if change.call == "created":
        names[path] = change.inode
    elif change.call == "unlink":
        names.pop(path, None)
    elif change.call == "mkdir":
        directories.add(path)
    elif change.call == "rmdir":
        directories.discard(path)
    elif path in directories:
        for old in [name for name in directories if name == path or name.startswith(path + "/")]:
            directories.discard(old)
            directories.add(change.paths[1] + old[len(path) :])
        for old in [name for name in names if name.startswith(path + "/")]:
            names[change.paths[1] + old[len(path) :]] = names.pop(old)
    elif path in names:
        names[change.paths[1]] = names.pop(path)
