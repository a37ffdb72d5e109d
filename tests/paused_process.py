"""Stops a child process for a while, as SIGSTOP does."""

from __future__ import annotations

import os
import signal
import subprocess


def pause(process: subprocess.Popen[bytes]) -> None:
    """Returns when all threads of the process have stopped: kill() returns before, and until then the threads that run
    on another core may still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def resume(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
