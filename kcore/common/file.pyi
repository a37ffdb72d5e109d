"""An open file and its mapping, shared by a segment and the slices cut from it; faults for tests."""

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

Call = Literal["pread", "pwrite", "ftruncate", "fsync", "msync"]

def fail_next(call: Call, error: int, *, after_bytes: int = ..., times: int = ...) -> None:
    """For tests: the next `times` such calls on a log's files fail with `error` once after_bytes bytes went through
    (in a call that comes back short).  error 0: only the short call.  Process-wide; one
    fault per kind of call; ends with clear_faults()."""

def count_calls() -> None: ...  # for tests: calls() counts from here, nothing fails
def calls(call: Call) -> int: ...  # made since count_calls() or the first fault
def clear_faults() -> None: ...
