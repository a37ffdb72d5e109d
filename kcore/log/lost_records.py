"""lost-records: the mark of a log that lacks records which it once had, so that its broker does not lead with it.

The file is beside the segments.  Two lines: "version: 0" and "first_lost_offset: " with the offset from which on
records may be missing; some above it may still be there.  Kafka's loader leaves a file of this name alone.
Source: kcore's own; what Kafka plans instead is in KIP-966.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kcore.common.file import read_file, unlink_if_there, write_atomically
from kcore.errors import CorruptFile
from kcore.log.log_file_names import LOST_RECORDS_FILE


@dataclass(slots=True)
class LostRecords:
    """What a log lacks.  first_offset: of the records that are lost, or may be.

    has_mark: whether the file says so; False after a failure of the machine, which may have taken the end of any log.
    is_cut: the log was truncated to first_offset since, so there is no hole in it; what is above was fetched again.
    """

    first_offset: int
    has_mark: bool = True
    is_cut: bool = False


def read_mark(directory: str) -> int | None:
    """The first lost offset; None without a mark.  Raises CorruptFile naming the line, OSError."""
    path = os.path.join(directory, LOST_RECORDS_FILE)
    try:
        lines = read_file(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    values = []
    for number, field in ((1, "version"), (2, "first_lost_offset")):
        line = lines[number - 1] if number <= len(lines) else ""
        name, colon, value = line.partition(":")
        value = value.strip()
        if name != field or not colon or not (value.isascii() and value.isdigit()) or int(value) >= 2**63:
            raise CorruptFile(f"{path}: line {number}: {line!r}, expected '{field}: NUMBER'")
        values.append(int(value))
    if values[0] != 0:
        raise CorruptFile(f"{path}: line 1: version {values[0]}, expected 0")
    return values[1]


def meaning_of(first_lost_offset: int) -> str:
    """What the mark says, for people."""
    return (
        f"this replica lacks records from offset {first_lost_offset} on, or may; while another replica has them it "
        "does not lead, and it copies them from the leader"
    )


def encode_mark(first_lost_offset: int) -> bytes:
    return f"version: 0\nfirst_lost_offset: {first_lost_offset}\n".encode()


def write_mark(directory: str, first_lost_offset: int) -> None:
    """On the disk when it returns.  Raises OSError."""
    write_atomically(os.path.join(directory, LOST_RECORDS_FILE), encode_mark(first_lost_offset))


def remove_mark(directory: str) -> None:
    """Raises OSError."""
    unlink_if_there(os.path.join(directory, LOST_RECORDS_FILE))
