"""`kcore completion SHELL`: the script by which a shell completes commands, options, choices, paths and names.

The shell runs kcore when Tab is pressed, so that the script is the same for all versions, and names of topics and
groups come from the cluster (cluster_names.py).
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kcore.tools.command_line import OK, Arguments
from kcore.tools.commands import COMPLETION_VARIABLE, command


@command()
@click.argument(
    "shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL", help="bash, zsh or fish: who is to read it"
)
def run(args: Arguments) -> int:
    shell = get_completion_class(args.shell)
    assert shell is not None
    # The script has only the names of the program and of the variable.
    print(shell(click.Command("kcore"), {}, "kcore", COMPLETION_VARIABLE).source())
    return OK
