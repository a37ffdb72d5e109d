"""The `kcore` command: its subcommands, and how errors end it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from kcore.errors import KafkaError
from kcore.tools.command_line import INTERRUPTED, USAGE, UsageError, with_notes
from kcore.tools.commands import COMPLETION_VARIABLE, Group

#: name -> (where it is, what it does in one line).  A module is imported only when its command runs.
COMMANDS = {
    "serve": ("kcore.tools.serve:run", "run a broker on a data directory"),
    "dump": ("kcore.tools.dump_log_segments:run", "show what log files hold: text, JSON lines, Arrow or Parquet"),
    "verify": ("kcore.tools.verify:run", "check log files for damage"),
    "diff": ("kcore.tools.diff:run", "show the first difference of two replicas, and explain it"),
    "repair": ("kcore.tools.repair:run", "say what is wrong and what a repair loses; with --apply, repair it"),
    "reindex": ("kcore.tools.reindex:run", "rebuild the indexes of a closed log"),
    "explain": ("kcore.tools.explain:explain", "say why a running broker of this machine does what it does"),
    "metrics": ("kcore.tools.metrics:run", "show what a running broker of this machine measures"),
    "cluster": (
        "kcore.tools.cluster:run",
        "show a running cluster's brokers, and partitions without a leader or replica",
    ),
    "doctor": (
        "kcore.tools.doctor:run",
        "say what is wrong with a running cluster or with directories, and which command mends it",
    ),
    "metadata": (
        "kcore.tools.metadata:run",
        "show a running cluster's id, controller, brokers, features and APIs",
    ),
    "topics": ("kcore.tools.topics:topics", "list, describe, create, change and delete topics of a running cluster"),
    "configs": (
        "kcore.tools.configs:configs",
        "show, set, unset and explain settings of topics, brokers, groups and client metrics",
    ),
    "acls": ("kcore.tools.acls:acls", "list, add and remove the ACLs of a running cluster"),
    "quotas": ("kcore.tools.quotas:quotas", "list, set and unset quotas of users, client ids and IP addresses"),
    "groups": (
        "kcore.tools.groups:groups",
        "list, describe, reset and delete consumer groups of a running cluster",
    ),
    "txns": (
        "kcore.tools.txns:txns",
        "list and describe transactions of a running cluster, and abort one that hangs in a partition",
    ),
    "produce": (
        "kcore.tools.produce:run",
        "write lines of stdin or of files as records to a topic of a running cluster",
    ),
    "consume": ("kcore.tools.consume:run", "print the records of a topic of a running cluster"),
    "replay": (
        "kcore.tools.replay:run",
        "write the records of a topic or of partition directories to another topic, in their original timing",
    ),
    "web": ("kcore.tools.web:run", "serve a page about a cluster or data directories, for a browser"),
    "reassign": ("kcore.tools.reassign:run", "move partitions of a running cluster to other brokers"),
    "logdirs": (
        "kcore.tools.logdirs:logdirs",
        "show the data directories of a running cluster's brokers, and move logs between them",
    ),
    "elect": (
        "kcore.tools.elect:run",
        "elect the preferred leaders of partitions, or any replica where all others are gone",
    ),
    "mirror": ("kcore.tools.mirror:run", "copy a topic of a running cluster into a data directory, byte for byte"),
    "backup": (
        "kcore.tools.backup:run",
        "copy topics with their offsets, settings and groups' offsets into a directory that restore reads",
    ),
    "restore": (
        "kcore.tools.restore:run",
        "say what a backup has; with --apply, make a data directory of it",
    ),
    "spark": (
        "kcore.tools.spark:spark",
        "verify, reindex, recompress and more on Spark, in parallel inside a partition",
    ),
    "completion": (
        "kcore.tools.completion:run",
        "print the script by which bash, zsh or fish completes kcore's commands",
    ),
    "version": ("kcore.tools.version:run", "print the version"),
}


def _print_version(ctx: click.Context, param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        from kcore.tools.version import version_text

        click.echo(version_text())
        ctx.exit()


kcore = Group(
    "kcore",
    COMMANDS,
    help="""The Apache Kafka log, native in Python.

    Options that are not on the command line may be in ~/.config/kcore/config.toml (KCORE_CONFIG names another file): a
    line as bootstrap = "HOST:PORT" is for all commands, a table as [consume] for one.""",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help=COMMANDS["version"][1],
        )
    ],
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.  130 after Ctrl-C, 141 when the reader of our output has gone."""
    # A stream that was closed before the start is None: what goes there is lost, as in /dev/null.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        if instruction := os.environ.get(COMPLETION_VARIABLE):
            return _complete(instruction)
        # Not click's main(), which has exit statuses of its own.
        with kcore.make_context("kcore", list(sys.argv[1:] if argv is None else argv)) as ctx:
            status: int = kcore.invoke(ctx)
            return status
    except click.exceptions.Exit as stop:  # --help
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USAGE
    except click.UsageError as error:
        print(usage_text(error), file=sys.stderr)
        return USAGE
    except SystemExit as stop:
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


def _complete(instruction: str) -> int:
    """What a shell's completion script asks for; 1, and nothing is printed, where no script of ours asks."""
    from click.shell_completion import get_completion_class, shell_complete

    shell = get_completion_class(instruction.partition("_")[0])
    if shell is not None and instruction.endswith("_complete"):
        try:
            shell(kcore, {}, "kcore", COMPLETION_VARIABLE).get_completion_args()
        except (KeyError, ValueError, IndexError):  # COMP_WORDS or COMP_CWORD is not there, or is none
            return 1
    return shell_complete(kcore, {}, "kcore", COMPLETION_VARIABLE, instruction)


def usage_text(error: click.UsageError) -> str:
    """What is wrong with the command line, what is right, and what says more."""
    prog = "kcore" if error.ctx is None else error.ctx.command_path
    help_text = "" if error.ctx is None else error.ctx.get_help()  # it names no option that only kcore's processes use
    possible = [word for word in getattr(error, "possibilities", None) or () if word in help_text]
    nearest = f"; did you mean {possible[0]}?" if possible else ""
    if isinstance(error, click.exceptions.NoSuchCommand):
        instead = _instead(error, error.command_name)
        return f"{prog}: no command {error.command_name!r}{instead or f'; `{prog} --help` lists them{nearest}'}"
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        text = f"no option {error.option_name}{_instead(error, error.option_name) or nearest}"
    return f"{prog}: {text}\n`{prog} --help` says more"


def _instead(error: click.UsageError, word: str) -> str:
    from kcore.tools.other_options import advice  # only for those who made a mistake

    text = None if error.ctx is None else advice(error.ctx, word)
    return f"; {text}" if text else ""


if __name__ == "__main__":
    sys.exit(main())
