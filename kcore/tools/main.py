"""The `kcore` command.  A subcommand is a module with add_arguments(parser) and run(args) -> exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from kcore.errors import KafkaError
from kcore.tools.command_line import INTERRUPTED, OK, USAGE, Parser, UsageError, nearest

#: name -> (module, what it does in one line).  A module is imported only when its command runs.
COMMANDS = {
    "serve": ("kcore.tools.serve", "run a broker on a data directory"),
    "dump": ("kcore.tools.dump_log_segments", "show what log files hold: text, JSON lines or Arrow"),
    "verify": ("kcore.tools.verify", "check log files for damage"),
    "diff": ("kcore.tools.diff", "say where two replicas part, and why"),
    "repair": ("kcore.tools.repair", "say what is wrong and what mending it costs; with --apply, mend it"),
    "reindex": ("kcore.tools.reindex", "make the indexes of a closed log anew"),
    "version": ("kcore.tools.version", "print the version"),
}


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: kcore COMMAND [ARGUMENT...]",
            "",
            "The Apache Kafka log, native in Python.",
            "",
            *lines,
            "",
            "`kcore COMMAND --help` says more.",
            "Exit status: 0 fine, 1 damage or a difference found, 2 usage or environment.",
        ]
    )


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview(), file=sys.stdout if argv else sys.stderr)
        return OK if argv else USAGE
    name = "version" if argv[0] == "--version" else argv[0]
    if name not in COMMANDS:
        print(f"kcore: no command {name!r}; `kcore --help` lists them{nearest(name, COMMANDS)}", file=sys.stderr)
        return USAGE
    module_name, text = COMMANDS[name]
    module = import_module(module_name)
    parser = Parser(prog=f"kcore {name}", description=text[0].upper() + text[1:] + ".")
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(argv[1:]))
    # Here and not at interpreter exit: a reader that has gone must still be noticed below.
    sys.stdout.flush()
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.  130 after Ctrl-C, 141 when the reader of our output has gone."""
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
        print(f"kcore: {error}", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
