"""Another program that has the file of an SQLite store locked."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_PROGRAM = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(sys.argv[2])
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_by_a_process(path: str | os.PathLike[str], begin: str = "BEGIN IMMEDIATE") -> Iterator[int]:
    """Its pid.  The file is free again at the end of the block."""
    command = [sys.executable, "-c", _PROGRAM, os.fspath(path), begin]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()
