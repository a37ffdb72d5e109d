"""Open files, shared by a segment and the slices cut from it; small files and names; faults for tests.

Every function releases the GIL, but for exists, is_file, is_directory and modified_ms; all raise OSError with the path.
"""

from collections.abc import Collection
from typing import Literal

class File:
    """An open file, closed when the last holder lets go of it."""

    path: str
    @property
    def writable(self) -> bool: ...
    def __init__(self, path: str, *, writable: bool = ..., create: bool = ...) -> None: ...
    def fileno(self) -> int: ...
    @property
    def size(self) -> int: ...  # bytes now, asked from the system
    def read(self, position: int, size: int) -> bytes: ...  # fewer at the end of the file

def read_file(path: str) -> bytes:
    """All bytes of a small file.  Raises CorruptFile for one that is too large to be right, or is no regular file, and
    that at once, where a FIFO would wait for a writer."""

def write_atomically(path: str, data: bytes, *, sync: bool = ...) -> None:
    """Replace a file's content; after a crash there is the old content or the new.  What is there and is no file is set
    aside.

    sync=False leaves the moment of reaching the disk to the system; the rename still hides a half-written file.
    """

def append_to(path: str, data: bytes | bytearray, position: int) -> None:
    """Write at `position`, the end of the file, which is made if need be.  On OSError the file is cut back."""

def truncate_file(path: str, size: int) -> None: ...
def sync_path(path: str) -> None:
    """Make a file durable, or the names in a directory."""

def rename(source: str, target: str) -> None:
    """Replaces a file or an empty directory called `target`."""

def unlink(path: str) -> None: ...
def unlink_if_there(path: str) -> bool: ...  # whether there was one; a directory gets another name
def set_aside(path: str) -> str:
    """Rename what cannot be used to a free name, path.damaged or path.damaged.2 ..., and return that name."""

def clear_the_way(path: str) -> None:
    """Where a file is to be made and there is none: set aside what else has its name, and say so in the log."""

def make_directory(path: str) -> bool: ...  # and those above it; whether it was missing
def list_directory(path: str) -> list[str]: ...  # in no order
def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, or a file; fine if it is gone."""

def exists(path: str) -> bool: ...
def is_file(path: str) -> bool: ...  # a regular one, or a link to one
def is_directory(path: str) -> bool: ...
def modified_ms(path: str) -> int: ...

Call = Literal[
    "open",
    "open_write",
    "stat",
    "pread",
    "pwrite",
    "ftruncate",
    "fsync",
    "mmap",
    "msync",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "opendir",
    "readdir",
]

CHANGES: tuple[Call, ...]  # what a read-only file system refuses

def fail_next(
    call: Call | Collection[Call],
    error: int,
    *,
    after_bytes: int = ...,
    times: int = ...,
    skip: int = ...,
    under: str = ...,
    ending: str = ...,
    thread: int = ...,
) -> int:
    """For tests: after `skip` of them the next `times` such calls (negative: all) on a log directory fail with `error`
    once after_bytes bytes went through (in a call that comes back short).  error 0: only the short call.

    call: one kind, or several that count together.  under, ending: only where the path begins and ends so.
    thread: only calls of the thread with this threading.Thread.ident.  Process-wide.  Of several faults for a call the
    one that was made last has it, then the one before.  Returns the fault's id.  It ends with end_fault() or
    clear_faults()."""

def spoil_next(
    call: Call | Collection[Call],
    effect: Literal["flip", "lose", "wait"],
    *,
    times: int = ...,
    wait_ms: int = ...,
    under: str = ...,
    ending: str = ...,
) -> int:
    """For tests: the next `times` such calls (negative: all) have an effect: "flip", a pwrite writes with the lowest
    bit of its last byte flipped; "lose", an fsync or msync says that it was made; "wait", one of the three takes
    wait_ms longer.  As for fail_next()."""

def fault_hits(fault_id: int) -> int: ...  # calls that had this fault so far; 0 if it has ended
def end_fault(fault_id: int) -> int: ...  # calls that had this fault; 0 if it had ended already
def count_calls() -> None: ...  # for tests: calls() counts from here, nothing fails
def calls(call: Call) -> int: ...  # made since count_calls() or the first fault
def record_to(fd: int) -> None:
    """For tests: each call that changes a log directory is appended to this file (csrc/file_faults.h says how), and
    nothing is synced to the real disk, until clear_faults().  Only what is opened from here on is recorded."""

def hold(call: Call) -> None: ...  # for tests: such calls wait until clear_faults()
def clear_faults() -> None: ...
