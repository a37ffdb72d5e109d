"""The import table of docs/architecture.md: a lower room never imports a higher one."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent / "kcore"

#: room -> rooms it may import.  Every room may import itself, common and kcore.errors.
MAY_IMPORT = {
    "common": set(),
    "record": set(),
    "kernels": {"record.layout"},
    "log": {"record"},
    "bulk": {"record", "log"},
    "purgatory": set(),
    "replica": {"record", "log", "purgatory"},
    "protocol": set(),
    "network": {"protocol", "record.file_records"},
    "client": {"protocol"},
    "metadata": set(),
    "coordinator": {"record", "purgatory", "protocol.messages", "replica", "log.log_offset_metadata"},
    "controller": {"protocol", "client", "metadata"},
    "server": {"record", "log", "purgatory", "replica", "protocol", "network", "client", "metadata", "coordinator"},
    "inspect": {"record", "log", "replica.offset_truncation"},
    "tools": {"client", "record", "log", "inspect"},
    "spark": {"record", "log", "bulk", "inspect", "client"},
    "testing": {"server", "client"},
}
#: Single files that may reach further.
EXCEPTIONS = {
    "tools.serve": {"server"},
    "tools.spark": {"spark"},
    # kcore's own brokers keep the topics' cleanup.policy in their store: there is no other place that has it.
    "inspect.topic_settings": {"metadata"},
    "tools.internal_topics": {"coordinator.group.group_records", "coordinator.transaction.transaction_log"},
}

_CIMPORT = re.compile(r"^\s*(?:from\s+(kcore[\w.]*)\s+c?import|c?import\s+(kcore[\w.]*))", re.M)


def imported_modules(path: pathlib.Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".py":
        names = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names.add(node.module or "")
        return {name for name in names if name.split(".")[0] == "kcore"}
    return {a or b for a, b in _CIMPORT.findall(text)}


def modules():
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in {".py", ".pyx", ".pxd"} and path.parent != ROOT:
            yield path


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_lower_room_never_imports_a_higher_one(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = module.split(".")[0]
    allowed = MAY_IMPORT[room] | {room, "common", "errors"} | EXCEPTIONS.get(module, set())
    for name in imported_modules(path):
        target = name.removeprefix("kcore").lstrip(".")
        assert target, f"{module} imports the package root; import the module it needs"
        assert any(target == a or target.startswith(a + ".") for a in allowed), f"{module} may not import {name}"
