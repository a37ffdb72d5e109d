"""A process that ends with the one that has started it."""

from __future__ import annotations

import os
import signal

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with_parent(parent_pid: int) -> None:
    """Have this process get SIGHUP when its parent ends, however that happens; at once if that is past.

    To Linux the parent is the thread that has made this process: that must be one that lives as long as its process.
    If a parent has several threads, SIGHUP may come once for each that ends: keep it blocked after the first.  With the
    last one getppid() has changed already.  SIGHUP is to be blocked before this call and waited for with sigwait():
    so it comes also to a process that was started with SIGHUP ignored, since Linux drops only signals that are not
    blocked.
    Raises OSError.
    """
    import ctypes  # a millisecond for each `kcore serve` otherwise

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot request a signal for the end of the parent process")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGHUP)
