"""What all commands share: options, JSON lines, bytes for people, and progress while they read."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn, TextIO

#: Exit statuses: fine; damage or a difference found; usage or environment.
OK, DAMAGE, USAGE = 0, 1, 2
INTERRUPTED = 130

_SHOWN_CHARACTERS = 100


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?", or nothing when no known word is near."""
    found = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f"; did you mean {found[0]}?" if found else ""


class Parser(argparse.ArgumentParser):
    """Names the nearest option that there is when one is wrong, whatever else is wrong."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = [option for action in self._actions for option in action.option_strings]
        given = list(sys.argv[1:] if args is None else args)
        for word in given[: given.index("--")] if "--" in given else given:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"no option {name}{nearest(name, known)}")
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n`{self.prog} --help` says more\n")


def add_paths(parser: argparse.ArgumentParser, what: str = "a file, a partition directory or a data directory") -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help=what)


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON object a line") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """How a command reads that goes through whole directories."""
    parser.add_argument(
        "--jobs",
        "-j",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="how many segments to read at a time; default: one for each CPU",
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")


def positive(text: str) -> int:
    """Raises ArgumentTypeError."""
    try:
        if (number := int(text)) > 0:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")


def json_line(event: dict[str, Any]) -> str:
    """Byte strings become text where they are UTF-8, else {"hex": ...}."""
    return json.dumps(event, default=_json_bytes, ensure_ascii=(sys.stdout.encoding or "").lower() != "utf-8")


def _json_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def bytes_text(data: bytes | None) -> str:
    """For people: quoted text, or hex; long ones cut short."""
    if data is None:
        return "null"
    try:
        text = data.decode()
        shown = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False) if text.isprintable() else None
        cut = len(text) > _SHOWN_CHARACTERS
    except UnicodeDecodeError:
        shown = None
    if shown is None:
        shown = "0x" + data[: _SHOWN_CHARACTERS // 2].hex()
        cut = len(data) > _SHOWN_CHARACTERS // 2
    return f"{shown}... ({len(data)} bytes)" if cut else shown


def places(offset: int | None, position: int | None) -> str:
    """ "offset 5, position 70: ", as far as they are known."""
    known = [f"{name} {value}" for name, value in (("offset", offset), ("position", position)) if value is not None]
    return ", ".join(known) + (": " if known else "")


def bytes_of(size: int) -> str:
    """A size for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


class UsageError(Exception):
    """The command line asks for something that cannot be; main() prints why."""


class Stopped(Exception):
    """Progress.stop() was called: whoever reads gives up."""


class Progress:
    """How far readers in several threads have come, shown on a stream: a bar on a terminal, else now and then a line.

    Thread-safe: readers call advance(), the main thread show().  quiet: nothing is shown, but stop() still works.
    """

    _BAR_SECONDS = 0.1
    _LINE_SECONDS = 10.0
    _WIDTH = 30

    def __init__(self, what: str, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._stream = None if quiet else stream or sys.stderr
        self._bar = self._stream is not None and self._stream.isatty()
        self._lock = threading.Lock()
        self._stopped = False
        self._started = self._shown = time.monotonic()
        self._on_screen = False

    def advance(self, size: int) -> None:
        """So many bytes more.  Raises Stopped after stop()."""
        with self._lock:
            self.done += size
        if self._stopped:
            raise Stopped

    def stop(self) -> None:
        self._stopped = True

    def show(self) -> None:
        """Draw, if it is time."""
        now = time.monotonic()
        if self._stream is None or now - self._shown < (self._BAR_SECONDS if self._bar else self._LINE_SECONDS):
            return
        self._shown = now
        rate = self.done / (now - self._started) / 1e9
        text = f"{self.what}: {bytes_of(self.done)} of {bytes_of(self.total)}, {rate:.2f} GB/s"
        if self._bar:
            part = min(self.done / self.total, 1.0) if self.total else 1.0
            bar = "#" * round(part * self._WIDTH)
            self._stream.write(f"\r\x1b[K[{bar:.<{self._WIDTH}}] {part:4.0%} {text}")
            self._on_screen = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the bar off the screen, so that a line can be printed."""
        if self._on_screen and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._on_screen = False
