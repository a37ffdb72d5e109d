"""What all commands share: exit statuses, options, arguments, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from kcore.common.text import bytes_text, plain_error, printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Exit statuses: fine; damage or a difference found; usage or environment.
OK, DAMAGE, USAGE = 0, 1, 2
INTERRUPTED = 130

#: The largest partition number, broker id, timeout in ms and so on of the protocol.
MAX_INT32 = 0x7FFF_FFFF
#: Of a string of the protocol, in bytes.
_LONGEST_STRING = 0x7FFF

_DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{_DEFAULT_PORT}"

#: What click.option() and click.argument() return: it adds parameters to a command's function.
Decorator = Callable[[Any], Any]


class Arguments(SimpleNamespace):
    """The values of a command's options and arguments, by name; lists where there may be several."""


class UsageError(Exception):
    """The command line, or the configuration file, asks for something impossible; main() prints the reason."""


def with_notes(error: BaseException) -> str:
    """What the error says, for people, and its notes."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return plain_error(error) + notes


# -- options and arguments --------------------------------------------------------------------------------------------


def several(*decorators: Decorator) -> Decorator:
    """Decorators as one; their help is in this order."""
    return lambda function: reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), function)


#: A shell completes its names; what is no file of that name is left to the command.
FILE = click.Path(readable=False)


class _Directory(click.Path):
    """As FILE, of directories."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="dir")]


DIRECTORY = _Directory(readable=False)


def paths_argument(what: str = "a file, a partition directory or a data directory") -> Decorator:
    return click.argument("paths", nargs=-1, required=True, type=FILE, metavar="PATH...", help=what)


def json_option(what: str = "one JSON object a line") -> Decorator:
    return click.option("--json", is_flag=True, help=what)


def quiet_option(what: str = "no progress on stderr") -> Decorator:
    return click.option("--quiet", "-q", is_flag=True, help=what)


def config_option(what: str = "a setting") -> Decorator:
    """--config of topics."""
    return click.option("--config", type=_setting, multiple=True, metavar="NAME=VALUE", help=f"{what}; repeatable")


def reading_options() -> Decorator:
    """Options of the commands that read whole directories."""
    return several(
        click.option(
            "--jobs",
            "-j",
            type=positive,
            default=os.cpu_count() or 1,
            metavar="N",
            help="how many segments to read at a time; default: one for each CPU",
        ),
        quiet_option(),
    )


# -- types of values --------------------------------------------------------------------------------------------------
# click calls them with the text.  They raise click.BadParameter, to which it adds the name of the option or argument.


def positive(text: str | int) -> int:
    try:
        if (number := int(text)) > 0:
            return number
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r}: expected a whole number above 0")


def broker_id(text: str) -> int:
    if text.isdecimal() and int(text) <= MAX_INT32:
        return int(text)
    raise click.BadParameter(f"{text!r}: expected a broker id, from 0 to {MAX_INT32}")


def positive_int16(text: str) -> int:
    """What fits an INT16 of the protocol."""
    return at_most(0x7FFF, text)


def positive_int32(text: str) -> int:
    """What fits an INT32 of the protocol."""
    return at_most(MAX_INT32, text)


def at_most(largest: int, text: str) -> int:
    """A whole number from 1 on.  Raises click.BadParameter."""
    if (number := positive(text)) <= largest:
        return number
    raise click.BadParameter(f"{text!r}: expected a whole number from 1 to {largest}")


def protocol_string(text: str) -> str:
    """The name of a topic or group, or whatever else a request carries as a string."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"'{printable(text)}' is not UTF-8") from None
    if len(data) > _LONGEST_STRING:
        raise click.BadParameter(f"{bytes_text(data)}: a request carries at most {_LONGEST_STRING} bytes")
    return text


def _setting(text: str) -> tuple[str, str]:
    """Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
    return protocol_string(name), protocol_string(value)


def protocol_strings(text: str) -> list[str]:
    """ "a,b"; raises click.BadParameter."""
    return [protocol_string(part.strip()) for part in text.split(",")]


def addresses(text: str) -> list[tuple[str, int]]:
    """host:port,[::1]:port,host: with Kafka's port where there is none.  Raises UsageError."""
    result = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part.strip(), str(_DEFAULT_PORT)
        scheme, has_scheme, _ = part.strip().partition("://")
        if has_scheme or not host or not port.isdecimal() or int(port) > 65535 or not _can_be_looked_up(host):
            origin = getattr(text, "origin", None)
            problem = f"{f'{origin}: ' if origin else ''}'{printable(part.strip())}' is no HOST:PORT"
            raise UsageError(f"{problem}: leave {printable(scheme)}:// out" if has_scheme else problem)
        result.append((host.strip("[]"), int(port)))
    return result


def _can_be_looked_up(host: str) -> bool:
    try:
        host.encode("idna")  # as the socket module does: a part of 64 characters is too long, for one
    except UnicodeError:
        return False
    return True
