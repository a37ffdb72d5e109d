"""How much memory this process may still take: of the machine's, and of what its control groups are allowed.

Files in memory count for the control group of the process that writes them.  One that would go beyond its limit is
killed, while /proc/meminfo, in a container too, speaks of the whole machine.
Source: the kernel's documentation of control groups, version 1 and version 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple


class _Names(NamedTuple):
    """Of a version of control groups: where they are, and the files of one."""

    groups: str
    limit: str
    usage: str
    #: What the names of memory.stat begin with that count the groups below too.
    total: str


_VERSION_1 = _Names("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_VERSION_2 = _Names("sys/fs/cgroup", "memory.max", "memory.current", "")


class _Group(NamedTuple):
    directory: str
    names: _Names
    limit: int


def free_memory(root: str = "/") -> int:
    """In bytes; pages that are only a cache of a disk are free.  Raises OSError, KeyError and ValueError where the
    system does not say it as Linux does."""
    free = [_numbers(os.path.join(root, "proc/meminfo"))["MemAvailable:"] << 10]
    for group in _limited_groups(root):
        with suppress(OSError):  # it is gone: the process is in another one now
            usage = int(_text(os.path.join(group.directory, group.names.usage)))
            stat = _numbers(os.path.join(group.directory, "memory.stat"))
            cached = sum(stat[f"{group.names.total}{name}"] for name in ("active_file", "inactive_file"))
            free.append(group.limit - usage + cached)
    return min(free)


#: Version 1 says so many bytes or more where there is no limit.
_NO_LIMIT = 1 << 60


@cache
def _limited_groups(root: str) -> list[_Group]:
    """Those around this process that have a limit.  Looked up once: a broker of a test is to start in a few ms."""
    groups = []
    for names, directory in _groups(root):
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            limit = int(_text(os.path.join(directory, names.limit)))
            if limit < _NO_LIMIT:
                groups.append(_Group(directory, names, limit))
    return groups


def _groups(root: str) -> Iterator[tuple[_Names, str]]:
    try:
        lines = _text(os.path.join(root, "proc/self/cgroup")).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = _VERSION_2
        elif "memory" in controllers.split(","):
            names = _VERSION_1
        else:
            continue
        while path.strip("/"):
            yield names, os.path.join(root, names.groups, path.strip("/"))
            path = os.path.dirname(path)
        yield names, os.path.join(root, names.groups)


def _numbers(path: str) -> dict[str, int]:
    """The lines of a file with a name and a number each."""
    lines = map(str.split, _text(path).splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1}


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
