"""Free memory that the host of a virtual machine has backed with pages already.

A machine whose balloon reports free pages (its kernel's log has `Free page reporting enabled`) returns memory to its
host within seconds, and whoever needs it again waits for the host.  Writing 512 MiB of new pages of the page cache with
`os.pwrite` took 0.25 CPU-s/GB right after as much was freed, and 1.0 to 1.8 from three seconds later on.  With large
batches that is most of what three brokers spend, and it depends on what the machine did in the seconds before.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import TracebackType

MIB = 1 << 20
FILE_BYTES = 8 * MIB
_PAUSE_S = 0.005


class BackedPages:
    """While it is entered, whoever takes memory gets pages that the host has backed.

    It holds size_bytes of the page cache in files and deletes as many of them as memory is taken: the kernel hands out
    first what was freed last.  Linux only; elsewhere it does nothing.
    """

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """directory: on the file system that the others write to, so that pages come in blocks of the same sizes."""
        self._directory = directory
        self._size_bytes = size_bytes
        self._files: list[Path] = []
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
        self.give(len(self._files) * FILE_BYTES)

    def hold(self) -> None:
        block = b"\1" * MIB
        for _ in range(self._size_bytes // FILE_BYTES):
            with tempfile.NamedTemporaryFile("wb", buffering=0, dir=self._directory, delete=False) as file:
                self._files.append(Path(file.name))
                for _ in range(FILE_BYTES // MIB):
                    file.write(block)

    def give(self, size_bytes: int) -> None:
        """Free as much, in whole files, as long as there are any."""
        while size_bytes > 0 and self._files:
            self._files.pop().unlink()
            size_bytes -= FILE_BYTES

    def _give_as_others_take(self) -> None:
        level = free_bytes() or 0
        while not self._is_over.wait(_PAUSE_S):
            self.give(level + FILE_BYTES - (free_bytes() or 0))


def free_bytes() -> int | None:
    """The machine's free memory, in bytes; None where the system does not say."""
    try:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            text = file.read(256)
    except OSError:
        return None
    return int(text.partition(b"MemFree:")[2].split()[0]) * 1024
