"""How far a command is, shown on stderr: two lines with a bar on a terminal, elsewhere a line now and then.

The bar is drawn by rich, which knows the terminal's width and colours and follows NO_COLOR.  It is imported when the
first bar is drawn.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TextIO

from kcore.common.text import bytes_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

#: A phase that takes less is not named where there is no terminal.
_PHASE_SECONDS = 1.0


class Stopped(Exception):
    """Progress.stop() was called: the threads that read give up."""


class Progress:
    """How far readers in several threads have come.

    Thread-safe: readers call advance(); show() and clear() belong to one thread.  quiet: nothing is shown, but stop()
    still works.  unit: what total and done count.  findings: the number of problems so far, counted by the command.
    """

    _BAR_SECONDS = 0.2
    _LINE_SECONDS = 10.0

    def __init__(
        self,
        what: str,
        total: float,
        *,
        unit: Literal["bytes", "seconds"] = "bytes",
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.what = what
        self.total = total
        self.done: float = 0
        self.findings = 0
        self._unit = unit
        self._file = ""
        self._stream = None if quiet else stream or sys.stderr
        self._live: Live | None = None
        self._on_terminal = self._stream is not None and self._stream.isatty()
        self._lock = threading.Lock()
        self._stopped = False
        self._started = self._shown = time.monotonic()

    def advance(self, size: int, file: str | None = None) -> None:
        """So many bytes more, of that file.  Raises Stopped after stop()."""
        with self._lock:
            self.done += size
        if file is not None:
            self._file = file
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        self._stopped = True

    def show(self) -> None:
        """Draw, if it is time."""
        now = time.monotonic()
        if self._stream is None or now - self._shown < (self._BAR_SECONDS if self._on_terminal else self._LINE_SECONDS):
            return
        self._shown = now
        if not self._on_terminal:
            self._stream.write(f"{self.what}: {', '.join([*self._figures(), *self._details()])}\n")
            self._stream.flush()
        elif self._live is not None:
            self._live.refresh()
        elif (console := _console(self._stream)) is None:
            self._on_terminal = False
        else:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._bar,
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            _on_screen.add(self)
            self._live.start(refresh=True)

    def clear(self) -> None:
        """Take the bar off the screen, so that a line can be printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None  # started again, it would erase the lines above it
            _on_screen.discard(self)

    def _figures(self) -> list[str]:
        """How much is done, how fast, and the time left."""
        elapsed = max(time.monotonic() - self._started, 1e-3)
        if self._unit == "seconds":
            return [f"{self.done:.0f} of {self.total:.0f} s"]
        figures = [f"{bytes_of(self.done)} of {bytes_of(self.total)}"]
        if self.done:
            left = max(self.total - self.done, 0) * elapsed / self.done
            figures += [f"{bytes_of(self.done / elapsed)}/s", f"{timedelta(seconds=round(left))} left"]
        return figures

    def _details(self) -> list[str]:
        """The number of findings so far, and the file that is read: the last two parts of its path."""
        details = [f"{self.findings} finding{'' if self.findings == 1 else 's'}"] if self.findings else []
        return details + ([os.sep.join(self._file.split(os.sep)[-2:])] if self._file else [])

    def _bar(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        figures = Table.grid(padding=(0, 2, 0, 0), expand=True)
        bar = ProgressBar(total=self.total or 1, completed=self.done if self.total else 1)
        percent = f"{min(self.done / self.total, 1.0) if self.total else 1.0:.0%}"
        cells = [self.what, bar, percent, *self._figures()]
        for cell in cells:
            figures.add_column(no_wrap=True, ratio=1 if cell is bar else None)
        figures.add_row(*(cell if cell is bar else Text(str(cell)) for cell in cells))
        below = [Text(detail) for detail in self._details()]
        if self.findings:
            below[0].stylize("red")
        return Group(figures, Text("  ", overflow="ellipsis", no_wrap=True).join([Text(""), *below]))


#: Those whose bar is drawn now.
_on_screen: set[Progress] = set()


def clear_screen() -> None:
    """Take off the screen what a command that was left by an exception has drawn there."""
    for progress in list(_on_screen):
        progress.clear()


@contextmanager
def phase(what: str, *, quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """Say on stderr what is done while the body runs and nothing can be counted: a turning sign on a terminal,
    elsewhere one line, if it takes a second."""
    stream = stream or sys.stderr
    console = _console(stream) if not quiet and stream.isatty() else None
    if console is not None:
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        sign = Spinner("dots" if console.encoding.startswith("utf") else "line", Text(what))
        with Live(sign, console=console, transient=True, redirect_stdout=False, redirect_stderr=False):
            yield
        return
    timer = threading.Timer(_PHASE_SECONDS, lambda: print(what, file=stream, flush=True))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _console(stream: TextIO) -> Console | None:
    """None on a terminal that cannot move the cursor (TERM=dumb)."""
    from rich.console import Console

    console = Console(file=stream)
    return console if console.is_terminal and not console.is_dumb_terminal else None
