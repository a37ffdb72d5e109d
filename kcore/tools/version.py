"""`kcore version`."""

from __future__ import annotations

import platform
import sys

from kcore.tools.command_line import OK, Arguments
from kcore.tools.commands import command


@command()
def run(args: Arguments) -> int:
    print(version_text())
    return OK


def version_text() -> str:
    # The package itself is always loaded; no module of it may be imported by a room (tests/test_layers.py).
    version = sys.modules["kcore"].__version__
    return f"kcore {version}, Python {platform.python_version()}, {platform.platform()}"
