"""Free memory that the host of a virtual machine has backed with pages already.

A machine whose balloon reports free pages (its kernel's log has `Free page reporting enabled`) returns memory to its
host within seconds, and whoever needs it again waits for the host.  Writing 512 MiB of new pages of the page cache with
`os.pwrite` took 0.25 CPU-s/GB right after as much was freed, and 1.0 to 1.8 from three seconds later on.  With large
batches that is most of what three brokers spend, and it depends on what the machine did in the seconds before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

STEP_BYTES = 8 << 20
_PAUSE_S = 0.005


class BackedPages:
    """While it is entered, whoever takes memory gets pages that the host has backed.

    It holds size_bytes of the page cache in one file, and cuts off as many of them as memory is taken: the kernel hands
    out first what was freed last.  (Deleting many files instead would make it slower to create any.)  Linux only;
    elsewhere it does nothing.
    """

    def __init__(self, directory: Path, size_bytes: int, what: str = "") -> None:
        """directory: on the file system that the others write to, so that pages come in blocks of the same sizes.
        what: is done meanwhile; for the warning that it took more."""
        self._directory = directory
        self._what = what
        self._size_bytes = size_bytes
        self._file: IO[bytes] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._give_as_others_take, name="backed-pages", daemon=True)

    def __enter__(self) -> BackedPages:
        if free_bytes() is not None:
            self.hold()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._size_bytes and self._file is not None and not self.held_bytes:
            print(f"{self._what}: took more memory than the {self._size_bytes >> 20} MiB held for it", file=sys.stderr)
        self.close()

    def hold(self) -> None:
        block = bytes(STEP_BYTES)
        self._file = tempfile.TemporaryFile(buffering=0, dir=self._directory)  # noqa: SIM115 - open until close()
        for _ in range(self._size_bytes // STEP_BYTES):
            self._file.write(block)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def held_bytes(self) -> int:
        return 0 if self._file is None else os.fstat(self._file.fileno()).st_size

    def give(self, size_bytes: int) -> None:
        """Free as much, in whole steps, as far as there is so much."""
        if self._file is not None and size_bytes > 0:
            steps = -(-size_bytes // STEP_BYTES)
            self._file.truncate(max(0, self.held_bytes - steps * STEP_BYTES))

    def _give_as_others_take(self) -> None:
        level = free_bytes() or 0
        while not self._is_over.wait(_PAUSE_S):
            self.give(level + STEP_BYTES - (free_bytes() or 0))


def free_bytes() -> int | None:
    """The machine's free memory, in bytes; None where the system does not say."""
    try:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            text = file.read(256)
    except OSError:
        return None
    return int(text.partition(b"MemFree:")[2].split()[0]) * 1024
