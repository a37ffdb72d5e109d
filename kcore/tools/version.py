"""`kcore version`."""

from __future__ import annotations

import argparse
import platform
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    # The package itself is always loaded; no module of it may be imported by a room (tests/test_layers.py).
    version = sys.modules["kcore"].__version__
    print(f"kcore {version}, Python {platform.python_version()}, {platform.platform()}")
    return 0
