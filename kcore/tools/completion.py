"""`kcore completion SHELL`: the script by which a shell completes commands, options, choices and paths.

shtab (`pip install 'kcore[tools]'`) makes it from the arguments of all commands.  The shell then needs no Python to
complete: the price is that the script belongs to one version of kcore.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from kcore.common.optional_packages import missing_package
from kcore.tools.command_line import OK

SHELLS = ("bash", "zsh", "fish")

#: Metavars of arguments that are paths.
_FILES = ("PATH", "FILE", "A", "B", "OUTPUT", "OUT.tgz")
_DIRECTORIES = ("DIR",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise missing_package("kcore completion", "tools", error) from None
    from kcore.tools.main import whole_parser

    parser = whole_parser()
    for action in _arguments(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return OK


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _arguments(subparser)
        else:
            yield action
