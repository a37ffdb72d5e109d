"""What all commands share: options and exit statuses."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import Any, NoReturn

from kcore.common.text import bytes_text, nearest, plain_error, printable

#: Exit statuses: fine; damage or a difference found; usage or environment.
OK, DAMAGE, USAGE = 0, 1, 2
INTERRUPTED = 130

#: The largest partition number, broker id, timeout in ms and so on of the protocol.
MAX_INT32 = 0x7FFF_FFFF
#: Of a string of the protocol, in bytes.
_LONGEST_STRING = 0x7FFF

_DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{_DEFAULT_PORT}"
#: The variable of the environment that takes the place of DEFAULT_BOOTSTRAP.
BOOTSTRAP_VARIABLE = "KCORE_BOOTSTRAP"


class _FromEnvironment(str):
    """The value of BOOTSTRAP_VARIABLE, where the command line has no --bootstrap."""


class Parser(argparse.ArgumentParser):
    """For an option that does not exist, the error names the nearest one; this is checked before everything else."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options = [option for action in self._actions for option in action.option_strings]
        words = list(sys.argv[1:] if args is None else args)
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                self.error(f"no option {name}{nearest(name, options)}")
        words = _with_times_joined(words)
        # Without subcommands: a command's parser has none.  parse_args() would take what stands before the first option
        # for all arguments that there are.
        if any(not action.option_strings for action in self._actions):
            return super().parse_intermixed_args(words, namespace)
        return super().parse_args(words, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What the first pass of parse_intermixed_args() leaves for the second one keeps its "--"."""
        known, left = super().parse_known_args(args, namespace)
        words = list(args or ())
        after = words[words.index("--") + 1 :] if "--" in words else []
        if after and "--" not in left and left[-len(after) :] == after:
            left[-len(after) :] = ["--", *after]
        return known, left

    def _get_option_tuples(self, option_string: str) -> Any:
        """Without the second spelling of an option, which makes no abbreviation ambiguous."""
        found = super()._get_option_tuples(option_string)
        return [*{id(option[0]): option for option in reversed(found)}.values()]

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n`{self.prog} --help` says more\n")


def with_notes(error: BaseException) -> str:
    """What the error says, for people, and its notes."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return plain_error(error) + notes


def _with_times_joined(words: list[str]) -> list[str]:
    """["--from", "-1h"] as ["--from=-1h"], ["-o", "-1h"] as ["-o=-1h"]: argparse takes -1h for an option."""
    joined: list[str] = []
    for word in words:
        if joined and re.fullmatch(r"-\d+[a-z]+", word) and re.fullmatch(r"--[a-z][a-z-]*|-o", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def default_bootstrap() -> str:
    """The addresses that a command asks without --bootstrap."""
    value = os.environ.get(BOOTSTRAP_VARIABLE)
    return _FromEnvironment(value) if value else DEFAULT_BOOTSTRAP


def add_bootstrap(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    parser.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        default=default,
        help=f"brokers of the cluster, one is enough; default: ${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP}",
    )


def note_variable(args: argparse.Namespace, error: Exception) -> None:
    """If the error names an address that BOOTSTRAP_VARIABLE gave the command, add a note that says so."""
    bootstrap = getattr(args, "bootstrap", None)
    if not isinstance(bootstrap, _FromEnvironment):
        return
    if any(f"{host}:{port}" in str(error) for host, port in addresses(bootstrap)):
        error.add_note(f"the address comes from {BOOTSTRAP_VARIABLE}")


def add_paths(parser: argparse.ArgumentParser, what: str = "a file, a partition directory or a data directory") -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help=what)


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON object a line") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that read whole directories."""
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


def broker_id(text: str) -> int:
    """Raises ArgumentTypeError."""
    if text.isdecimal() and int(text) <= MAX_INT32:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a broker id, from 0 to {MAX_INT32}")


def positive_int16(text: str) -> int:
    """What fits an INT16 of the protocol.  Raises ArgumentTypeError."""
    return _at_most(0x7FFF, text)


def positive_int32(text: str) -> int:
    """What fits an INT32 of the protocol.  Raises ArgumentTypeError."""
    return _at_most(MAX_INT32, text)


def _at_most(largest: int, text: str) -> int:
    if (number := positive(text)) <= largest:
        return number
    raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {largest}")


def protocol_string(text: str) -> str:
    """The name of a topic or group, or whatever else a request carries as a string.  Raises ArgumentTypeError."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not UTF-8") from None
    if len(data) > _LONGEST_STRING:
        raise argparse.ArgumentTypeError(f"{bytes_text(data)}: a request carries at most {_LONGEST_STRING} bytes")
    return text


class UsageError(Exception):
    """The command line asks for something impossible; main() prints the reason."""


def addresses(text: str) -> list[tuple[str, int]]:
    """host:port,[::1]:port,host: with Kafka's port where there is none.  Raises UsageError."""
    result = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part.strip(), str(_DEFAULT_PORT)
        if not host or not port.isdecimal() or int(port) > 65535 or not _can_be_looked_up(host):
            source = f"{BOOTSTRAP_VARIABLE}: " if isinstance(text, _FromEnvironment) else ""
            raise UsageError(f"{source}'{printable(part.strip())}' is no HOST:PORT")
        result.append((host.strip("[]"), int(port)))
    return result


def _can_be_looked_up(host: str) -> bool:
    try:
        host.encode("idna")  # as the socket module does: a part of 64 characters is too long, for one
    except UnicodeError:
        return False
    return True
