"""Tests that look at the whole process: its threads, its descriptors."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TIMEOUT_S = 280 if "KCORE_LONG" in os.environ else 100


def in_own_process(check: Callable[[], None]) -> Callable[[], None]:
    """Decorator: a test that runs `check` in a process of its own.

    In the process of the other tests their clients (librdkafka's threads, Spark's gateway) open and close sockets
    whenever they like.
    """

    def test() -> None:
        code = f"from {check.__module__} import {check.__name__} as test; test.check()"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr

    test.__name__, test.__module__, test.__doc__ = check.__name__, check.__module__, check.__doc__
    test.check = check  # type: ignore[attr-defined]
    return test
