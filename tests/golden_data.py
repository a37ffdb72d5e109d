"""The golden data: log directories that Apache Kafka wrote, and what Kafka reads in them.

A test that needs golden data and does not find it fails; nothing here makes the data anew.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_GOLDEN = Path(__file__).resolve().parent / "golden"


def golden_dir(name: str = "kafka-log") -> Path:
    """The directory that holds `data/` and `expected.json`.  Tests only read it; copy it before changing anything."""
    path = _GOLDEN / name
    assert (path / "data").is_dir(), f"golden data is missing: {path / 'data'}"
    return path


def data_dir(name: str = "kafka-log") -> Path:
    """The log directory itself, what Kafka calls log.dirs."""
    return golden_dir(name) / "data"


def golden_file(name: str) -> Path:
    """A single file below tests/golden."""
    path = _GOLDEN / name
    assert path.is_file(), f"golden data is missing: {path}"
    return path


def partition_dir(partition: str, name: str = "kafka-log") -> Path:
    path = data_dir(name) / partition
    assert path.is_dir(), f"golden data is missing: {path}"
    return path


@cache
def expected(name: str = "kafka-log") -> dict[str, Any]:
    """expected.json, parsed once.  Shared by all tests: do not change what you get."""
    with open(golden_dir(name) / "expected.json", encoding="utf-8") as file:
        return json.load(file)


def partitions(name: str = "kafka-log") -> list[str]:
    """Names of the partition directories that expected.json describes."""
    return sorted(expected(name)["partitions"])


def files(suffix: str, name: str = "kafka-log") -> list[tuple[str, str]]:
    """(partition, file name) of every described file that ends with suffix, e.g. ".log"."""
    found = [
        (partition, file)
        for partition, entry in sorted(expected(name)["partitions"].items())
        for file in sorted(entry["files"])
        if file.endswith(suffix)
    ]
    assert found, f"no *{suffix} in the golden data"
    return found


def expected_file(partition: str, file: str, name: str = "kafka-log") -> dict[str, Any]:
    """What DumpLogSegments printed for one file."""
    return expected(name)["partitions"][partition]["files"][file]
