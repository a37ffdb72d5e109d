"""partition.metadata: which topic id a directory belongs to.

Two lines: "version: 0" and "topic_id: " with the id in URL-safe base64 without padding.
Source: PartitionMetadataFile, Kafka 2.8-4.x.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from uuid import UUID

from kcore.common.file import read_file, sync_path, write_atomically
from kcore.errors import CorruptFile
from kcore.log.log_file_names import PARTITION_METADATA_FILE


def format_topic_id(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> UUID:
    """Raises ValueError."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is no topic id: {error}") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is no topic id: {len(raw)} bytes, expected 16")
    return UUID(bytes=raw)


def read_topic_id(directory: str) -> UUID | None:
    """The topic id of a partition's directory; None if there is no file, or an empty one, as a lost power leaves it
    in a new directory.  Raises CorruptFile naming the line."""
    path = os.path.join(directory, PARTITION_METADATA_FILE)
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    if not data:
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    values = []
    for number, field in ((1, "version"), (2, "topic_id")):
        line = lines[number - 1] if number <= len(lines) else ""
        name, colon, value = line.partition(":")
        if name.strip() != field or not colon:
            raise CorruptFile(f"{path}: line {number}: {line!r}, expected '{field}: ...'")
        values.append(value.strip())
    if values[0] != "0":
        raise CorruptFile(f"{path}: line 1: version {values[0]!r}, expected 0")
    try:
        return parse_topic_id(values[1])
    except ValueError as error:
        raise CorruptFile(f"{path}: line 2: {error}") from None


def write_topic_id(directory: str, topic_id: UUID, *, sync: bool = True) -> None:
    """Raises OSError."""
    text = f"version: 0\ntopic_id: {format_topic_id(topic_id)}"
    write_atomically(os.path.join(directory, PARTITION_METADATA_FILE), text.encode(), sync=sync)


def sync_topic_id(directory: str) -> None:
    """Make the file durable, if there is one; its name needs a sync of the directory.  Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        sync_path(os.path.join(directory, PARTITION_METADATA_FILE))
