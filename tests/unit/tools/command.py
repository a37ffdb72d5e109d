"""Running a command of `kcore` and reading what it printed."""

import json
from pathlib import Path

from kcore.tools.main import main

#: The first segment's file.
LOG = f"{0:020}.log"


def run_text(capsys, command: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    status = main([command, *arguments])
    return status, *capsys.readouterr()


def run_json(capsys, command: str, *arguments) -> tuple[int, list[dict]]:
    """Exit status, and the objects it printed as JSON lines; nothing may go to stderr."""
    status, out, err = run_text(capsys, command, *map(str, arguments), "--json")
    assert not err
    return status, [json.loads(line) for line in out.splitlines()]


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative path, but for the lock file."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def as_hex(shown) -> str | None:
    """Hex of what --json printed for a byte string: text, {"hex": ...} or null."""
    if isinstance(shown, dict):
        return shown["hex"]
    return None if shown is None else shown.encode().hex()


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)
