"""How a command of `kcore` is defined: a function with click's options, which gets their values and returns the exit
status.

    @command(example="kcore verify data")
    @paths_argument()
    @json_option()
    @click.option("--deep", is_flag=True, help="...")
    def run(args: Arguments) -> int: ...

main.COMMANDS has the function's place and a line about it.  What several commands have is in command_line.py,
bootstrap.py (which cluster), cluster_names.py (TOPIC) and cluster_command.py; the type of a value is a function that
raises click.BadParameter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from kcore.common.progress import clear_screen
from kcore.common.text import nearest
from kcore.errors import KafkaError
from kcore.tools import config_file
from kcore.tools.bootstrap import note_origin
from kcore.tools.command_line import Arguments, UsageError
from kcore.tools.config_file import Default

#: By which a shell's completion script asks, as click names it.
COMPLETION_VARIABLE = "_KCORE_COMPLETE"

#: What exit status 1 means, unless a group says otherwise.
_STATUS_1 = "damage or a difference found, or something in the answer is not in order"

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(click.Command):
    """one_of: names of options of which at most one is allowed; exactly_one_of: and one is needed."""

    def __init__(
        self,
        *args: Any,
        one_of: Sequence[Sequence[str]] = (),
        exactly_one_of: Sequence[Sequence[str]] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.context_settings = _CONTEXT
        self._alternatives = [(group, False) for group in one_of] + [(group, True) for group in exactly_one_of]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options that are not in args come from the environment, or from the configuration file.  Raises
        click.UsageError for args; OSError, UsageError for that file."""
        try:
            return self._parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # that of an option without a value has none
            raise

    def _parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes the line: what is wrong with it, or with the file, can wait
            with suppress(OSError, UsageError):
                ctx.default_map = {name: default.value for name, default in config_file.defaults(ctx).items()}
            return super().parse_args(ctx, args)
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        if any(param.is_eager for param in given):  # --help
            return super().parse_args(ctx, args)
        defaults = config_file.defaults(ctx)
        for group, is_needed in self._alternatives:
            self._check_alternatives(ctx, group, is_needed, given, defaults)
        ctx.default_map = {name: default.value for name, default in defaults.items()}
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = None if error.param is None else error.param.name
            if name is None or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
                raise
            assert error.param is not None
            choices = error.param.type.choices if isinstance(error.param.type, click.Choice) else ()
            place, value = defaults[name].place, str(defaults[name].value)
            raise UsageError(f"{place}: {error.message.rstrip('.')}{nearest(value, choices)}") from None

    def _check_alternatives(
        self,
        ctx: click.Context,
        group: Sequence[str],
        is_needed: bool,
        given: Sequence[click.Parameter],
        defaults: dict[str, Default],
    ) -> None:
        """Those of the command line replace those of the configuration file.  Raises click.UsageError, UsageError."""
        options = [param for param in self.params if any(name in group for name in param.opts)]
        names = list(dict.fromkeys(param.opts[0] for param in given if param in options))
        if len(names) > 1:
            raise click.UsageError(f"{names[1]} is not allowed with {names[0]}", ctx)
        in_file = {param.name for param in options if param.name in defaults}
        if names:
            for name in in_file:
                del defaults[str(name)]
        elif len(in_file) > 1:
            first, second, *_ = (defaults[str(name)].place for name in sorted(map(str, in_file)))
            raise UsageError(f"{second} is not allowed with {first}")
        elif is_needed and not in_file:
            raise click.UsageError(f"expected one of {', '.join(group)}", ctx)

    def arguments(self, ctx: click.Context) -> Arguments:
        """What its function gets."""
        several = {param.name for param in self.params if param.multiple or param.nargs == -1}
        return Arguments(
            **{
                name: list(value) if name in several and isinstance(value, tuple) else value
                for name, value in ctx.params.items()
            }
        )

    def invoke(self, ctx: click.Context) -> int:
        """The exit status.  Raises what the command raises."""
        assert self.callback is not None
        args = self.arguments(ctx)
        try:
            status: int = self.callback(args)
        except (OSError, KafkaError) as error:
            note_origin(args, error)
            raise
        finally:
            clear_screen()
        # Here and not at interpreter exit: main() notices a reader that has gone.
        sys.stdout.flush()
        return status


class LazyCommand(click.Command):
    """In the place of a command whose module is imported when it runs."""

    def __init__(self, name: str, function: str, text: str) -> None:
        """function: MODULE:NAME.  text: what the command does, in one line."""
        super().__init__(name, short_help=text, help=_sentence(text))
        self._function = function

    def load(self) -> click.Command:
        module, _, name = self._function.partition(":")
        command: click.Command = getattr(import_module(module), name)
        command.name, command.help = self.name, command.help or self.help
        return command


class Group(click.Group):
    """Commands, some of which are imported only when they run.  Its help imports none of these."""

    def __init__(
        self,
        name: str,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        *,
        status_1: str | None = _STATUS_1,
        **settings: Any,
    ) -> None:
        """lazy: name -> (MODULE:NAME, what the command does).  status_1: what exit status 1 means, None where no
        command has it."""
        commands: dict[str, click.Command] = {name: LazyCommand(name, *rest) for name, rest in (lazy or {}).items()}
        super().__init__(
            name, commands, subcommand_metavar="COMMAND [ARGUMENT...]", context_settings=_CONTEXT, **settings
        )
        self._status_1 = status_1

    def subcommand(self, name: str, text: str, **settings: Any) -> Callable[[Any], click.Command]:
        """As command(), for a command of this group.  text: what it does, in one line."""

        def add(function: Any) -> click.Command:
            made = command(name=name, short_help=text, help=_sentence(text), **settings)(function)
            self.add_command(made)
            return made

        return add

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # not sorted

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A name may be without its s: config, topic, group."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, f"{cmd_name}s")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help" and not ctx.resilient_parsing:
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        _, command, left = super().resolve_command(ctx, args)
        command = command.load() if isinstance(command, LazyCommand) else command
        return None if command is None else command.name, command, left

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        fine = ["0 fine", *([f"1 {self._status_1}"] if self._status_1 else [])]
        statuses = "; ".join([*fine, "2 usage or environment", "130 Ctrl-C"])
        formatter.write_paragraph()
        formatter.write(f"`{ctx.command_path} COMMAND --help` says more.\nExit status: {statuses}.\n")


def command(*, example: str | None = None, **settings: Any) -> Callable[[Any], click.Command]:
    """A decorator for a command's function.  example: a command line, for --help; settings: of Command."""
    if example is not None:
        settings["epilog"] = f"\b\nExample: {example}"
    # Without, click would take the docstring, which is for who reads the code.
    return click.command(cls=Command, **{"help": ""} | settings)


def whole_tree(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Each command below this one by its words, as "topics list"; imports every module."""
    if isinstance(command, LazyCommand):
        command = command.load()
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    for name, subcommand in command.commands.items():
        yield from whole_tree(subcommand, *words, name)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
