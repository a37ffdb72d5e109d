"""Commands that `kcore serve --hints` prints, written as one would type them in the current directory."""

from __future__ import annotations

import os
import shlex
import sys

_EXAMPLE = "examples/quickstart.py"


def client_hint(bootstrap: str) -> str:
    """How to run a first client."""
    python = shlex.quote(script("python"))
    client = f"{python} -m pip install confluent-kafka"
    if os.path.exists(_EXAMPLE):
        return f"{client} && {python} {_EXAMPLE} {bootstrap}"
    return f"{client}  # or any other client, at {bootstrap}"


def script(name: str) -> str:
    """A command that is installed beside this Python."""
    return short(absolute_script(name))


def absolute_script(name: str) -> str:
    """For another directory than the current one."""
    return os.path.abspath(os.path.join(os.path.dirname(sys.executable), name))


def short(path: str) -> str:
    """Relative, if it is below the current directory."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
