"""The user's configuration file: values of options that are not on the command line.

    bootstrap = "broker1:9092"      # for every command that has the option
    timeout = 10

    [consume]                       # for one command
    format = "json"

    [topics.create]
    replication-factor = 3

A key is the name of an option, without its dashes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from kcore.common.text import nearest
from kcore.tools.command_line import UsageError

#: The variable of the environment that names another file.
VARIABLE = "KCORE_CONFIG"

#: Options that mean the same in every command that has them: their keys may stand outside the commands' tables.
SHARED = ("bootstrap", "timeout", "jobs", "quiet")

#: How the metavars of options begin that take addresses.  A number as their text would be looked up as a host's name.
_ADDRESSES = ("HOST:PORT", "ADDRESS")


class Default(NamedTuple):
    """The value of a parameter; place: the file and the key, for errors."""

    value: Any
    place: str


def path() -> str:
    """Where the file is, or would be."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    directory = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(directory, "kcore", "config.toml")


def read() -> dict[str, Any]:
    """What the file has; nothing if it does not exist, unless VARIABLE names it.  Raises OSError, UsageError."""
    name = path()
    if not os.environ.get(VARIABLE) and not os.path.lexists(name):
        return {}
    import tomllib

    try:
        # Not to wait for the writer of a FIFO.
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) and not os.path.samefile(name, os.devnull):
                raise UsageError(f"{name}: expected a file with settings, this is no regular file")
            return tomllib.load(file)
    except IsADirectoryError:
        source = f", and {VARIABLE} names it" if os.environ.get(VARIABLE) else ""
        raise UsageError(f"{name}: expected a file with settings, this is a directory{source}") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise UsageError(f"{name}: it is no TOML: {error}") from None


def defaults(ctx: click.Context) -> dict[str, Default]:
    """By the names of its parameters, what the file has for the command of ctx.  Raises OSError, UsageError for a key
    that is no option or command, and for a value of the wrong type."""
    table = read()
    if not table:
        return {}
    options = {
        name.removeprefix("--"): option
        for option in ctx.command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    found: dict[str, Default] = {}
    levels = _levels(ctx)
    for level, below in zip(levels, [*levels[1:], None], strict=True):
        where = ".".join(level.command_path.split()[1:])
        for key, value in table.items():
            place = f"{path()}: {f'{where}.' if where else ''}{key}"
            if isinstance(level.command, click.Group):
                if isinstance(value, dict):
                    _check_known(key, level.command.commands, place, "command")
                    continue
                if key in level.command.commands:
                    raise UsageError(f"{place}: expected a table of options, as [{f'{where}.' if where else ''}{key}]")
                if key not in SHARED:
                    is_option = key in options
                    words = (
                        ctx.command_path if is_option else f"{level.command_path} {next(iter(level.command.commands))}"
                    )
                    raise UsageError(
                        f"{place}: there is no such option of all commands{'' if is_option else nearest(key, SHARED)}; "
                        f"options of one command are in its table, as [{'.'.join(words.split()[1:])}]"
                    )
            else:
                _check_known(key, options, place, "option")
            if key in options:
                found |= _default(key, value, options[key], place)
        table = {} if below is None else table.get(below.info_name or "", {})
    return found


def _levels(ctx: click.Context) -> list[click.Context]:
    """From `kcore` to the command."""
    return [*(_levels(ctx.parent) if ctx.parent is not None else ()), ctx]


def _check_known(key: str, known: Iterable[str], place: str, what: str) -> None:
    if key not in known:
        raise UsageError(f"{place}: there is no such {what}{nearest(key, known)}")


def _default(key: str, value: Any, option: click.Option, place: str) -> Mapping[str, Default]:
    """As click.Context.default_map wants it: text, as on the command line, or a bool, or a list of texts."""
    name = option.name
    assert name is not None
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{place}: expected true or false, not {value!r}")
        if option.is_bool_flag:
            return {name: Default(value is (f"--{key}" in option.opts), place)}
        return {name: Default(option.flag_value, place)} if value else {}
    values = value if isinstance(value, list) and option.multiple else [value]
    if any(isinstance(item, bool | list | dict) for item in values):
        expected = "a list of texts or numbers" if option.multiple else "a text or a number"
        raise UsageError(f"{place}: expected {expected}")
    metavar = option.metavar or ""
    if metavar.startswith(_ADDRESSES) and not all(isinstance(item, str) for item in values):
        raise UsageError(f'{place}: expected a text, as "{metavar}", not {value}')
    texts = [str(item) for item in values]
    return {name: Default(texts if option.multiple else texts[0], place)}
