"""The `kcore` command.  A subcommand is a module with add_arguments(parser) and run(args) -> exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from kcore.common.progress import clear_screen
from kcore.common.text import nearest
from kcore.errors import KafkaError
from kcore.tools.command_line import INTERRUPTED, OK, USAGE, Parser, UsageError, note_variable, with_notes

#: name -> (module, what it does in one line).  A module is imported only when its command runs; one that has COMMANDS
#: of its own has subcommands, with the functions in the place of a module, and STATUS_1 if its exit status 1 means
#: something else than _STATUS_1.
COMMANDS: dict[str, tuple[Any, str]] = {
    "serve": ("kcore.tools.serve", "run a broker on a data directory"),
    "dump": ("kcore.tools.dump_log_segments", "show what log files hold: text, JSON lines or Arrow"),
    "verify": ("kcore.tools.verify", "check log files for damage"),
    "diff": ("kcore.tools.diff", "show the first difference of two replicas, and explain it"),
    "repair": ("kcore.tools.repair", "say what is wrong and what a repair loses; with --apply, repair it"),
    "reindex": ("kcore.tools.reindex", "rebuild the indexes of a closed log"),
    "explain": ("kcore.tools.explain", "say why a running broker of this machine does what it does"),
    "metrics": ("kcore.tools.metrics", "show what a running broker of this machine measures"),
    "cluster": ("kcore.tools.cluster", "show a running cluster's brokers, and partitions without a leader or replica"),
    "topics": ("kcore.tools.topics", "list, describe, create, change and delete topics of a running cluster"),
    "groups": ("kcore.tools.groups", "list, describe, reset and delete consumer groups of a running cluster"),
    "produce": ("kcore.tools.produce", "write lines of stdin or of files as records to a topic of a running cluster"),
    "consume": ("kcore.tools.consume", "print the records of a topic of a running cluster"),
    "reassign": ("kcore.tools.reassign", "move partitions of a running cluster to other brokers"),
    "elect": (
        "kcore.tools.elect",
        "elect the preferred leaders of partitions, or any replica where all others are gone",
    ),
    "mirror": ("kcore.tools.mirror", "copy a topic of a running cluster into a data directory, byte for byte"),
    "spark": ("kcore.tools.spark", "verify, reindex, recompress and more on Spark, in parallel inside a partition"),
    "completion": ("kcore.tools.completion", "print the script by which bash, zsh or fish completes kcore's commands"),
    "version": ("kcore.tools.version", "print the version"),
}


_ABOUT = "The Apache Kafka log, native in Python."


#: What exit status 1 means.
_STATUS_1 = "damage or a difference found, or something in the answer is not in order"


def overview(
    prog: str = "kcore",
    commands: Mapping[str, tuple[Any, str]] = COMMANDS,
    about: str = _ABOUT,
    status_1: str | None = _STATUS_1,
) -> Parser:
    """A parser that knows the commands, but none of their arguments: its help lists them.  status_1: None where no
    command has it."""
    statuses = ["0 fine", *([f"1 {status_1}"] if status_1 else []), "2 usage or environment", "130 Ctrl-C"]
    parser = Parser(
        prog=prog,
        usage=f"{prog} COMMAND [ARGUMENT...]",
        description=about,
        epilog=f"`{prog} COMMAND --help` says more.\nExit status: {'; '.join(statuses)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND [ARGUMENT...]")
    for name, (_, text) in commands.items():
        subparsers.add_parser(name, help=text, add_help=False)
    return parser


def whole_parser(
    prog: str = "kcore", commands: Mapping[str, tuple[Any, str]] = COMMANDS, about: str = _ABOUT
) -> Parser:
    """All commands with all their arguments, for what has to know them at once; imports every command's module."""
    parser = Parser(prog=prog, description=about)
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for name, (command, text) in commands.items():
        module, subcommands = _loaded(command)
        if subcommands is not None:
            whole = whole_parser(f"{prog} {name}", subcommands, _sentence(text))
            subparsers.add_parser(name, help=text, parents=[whole], add_help=False)
        else:
            module.add_arguments(subparsers.add_parser(name, help=text))
    return parser


def _loaded(command: Any) -> tuple[Any, Mapping[str, tuple[Any, str]] | None]:
    """The command's module (or Command), and its subcommands if it has some."""
    module = import_module(command) if isinstance(command, str) else command
    return module, getattr(module, "COMMANDS", None)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _run(
    argv: Sequence[str],
    prog: str = "kcore",
    commands: Mapping[str, tuple[Any, str]] = COMMANDS,
    about: str = _ABOUT,
    status_1: str | None = _STATUS_1,
) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        overview(prog, commands, about, status_1).print_help(sys.stdout if argv else sys.stderr)
        return OK if argv else USAGE
    name = argv[0].removeprefix("--") if argv[0] == "--version" else argv[0]
    if name not in commands:
        print(f"{prog}: no command {name!r}; `{prog} --help` lists them{nearest(name, commands)}", file=sys.stderr)
        return USAGE
    command, subcommands = _loaded(commands[name][0])
    text = _sentence(commands[name][1])
    if subcommands is not None:
        return _run(argv[1:], f"{prog} {name}", subcommands, text, getattr(command, "STATUS_1", status_1))
    parser = Parser(prog=f"{prog} {name}", description=text)
    command.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    try:
        status: int = command.run(args)
    except (OSError, KafkaError) as error:
        note_variable(args, error)
        raise
    finally:
        clear_screen()
    # Here and not at interpreter exit: a reader that has gone must still be noticed below.
    sys.stdout.flush()
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.  130 after Ctrl-C, 141 when the reader of our output has gone."""
    # A stream that was closed before the start is None: what goes there is lost, as in /dev/null.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:  # argparse: 0 after --help, 2 for bad usage
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would complain about the same pipe again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError:
        print("kcore: not enough memory", file=sys.stderr)
        return USAGE
    except (OSError, KafkaError, ImportError, UsageError) as error:
        print(f"kcore: {with_notes(error)}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
