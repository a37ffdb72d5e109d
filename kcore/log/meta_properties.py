"""meta.properties: which broker, of which cluster, a data directory belongs to.

Version 0 (ZooKeeper) names broker.id, version 1 (KRaft) node.id; both name cluster.id, newer ones also
directory.id.  A file that is there is checked and left as it is, but for a line that kcore adds to it once the
directory is a member's; Kafka reads only the names it knows.
Source: MetaProperties, Kafka 3.9.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from kcore.common.file import read_file, set_aside, write_atomically
from kcore.common.properties import parse_properties
from kcore.errors import ClusterMemberDirectory, CorruptFile

FILE_NAME = "meta.properties"
#: "true": the directory belongs to a member of a kcore cluster, whose controller gives its leaders their epochs.
MEMBER = "kcore.cluster.member"

logger = logging.getLogger(__name__)


class MetaProperties(NamedTuple):
    """None where the file does not say."""

    version: int = 0
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: str | None = None
    is_member: bool = False


def read(directory: str) -> MetaProperties | None:
    """What a directory's file says, None without a file.  Raises CorruptFile naming it, OSError."""
    path = os.path.join(directory, FILE_NAME)
    try:
        properties = parse_properties(read_file(path).decode())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path}: not text: {error}") from error
    if "version" not in properties:
        raise CorruptFile(f"{path}: there is no version")
    try:
        version = int(properties["version"])
        node_id = properties.get("node.id", properties.get("broker.id"))
        return MetaProperties(
            version,
            properties.get("cluster.id"),
            int(node_id) if node_id is not None else None,
            properties.get("directory.id"),
            properties.get(MEMBER) == "true",
        )
    except ValueError as error:
        raise CorruptFile(f"{path}: {error}") from error


def read_member(directory: str) -> MetaProperties | None:
    """What the file of a member's directory says; None for any other directory, also one whose file is damaged: a
    broker that starts sets that aside.  Raises OSError."""
    try:
        properties = read(directory)
    except CorruptFile:
        return None
    return properties if properties is not None and properties.is_member else None


def refuse_members_directory(directory: str) -> None:
    """For a process that is about to append to a log in a data directory without its broker.

    The other replicas would not get the records, and their leader would give the same offsets, in the same leader
    epoch, to others.  Raises ClusterMemberDirectory, OSError.
    """
    properties = read_member(directory)
    if properties is not None:
        raise ClusterMemberDirectory(
            f"{directory} belongs to broker {properties.node_id} of cluster {properties.cluster_id}: what is appended "
            "here its other replicas would not get; start the broker and write through it, or append to a copy of the "
            f"partition in a directory without this {FILE_NAME}"
        )


def set_aside_if_damaged(directory: str) -> None:
    """A file that cannot be understood gets another name, so that a new one can be made.  Raises OSError."""
    path = os.path.join(directory, FILE_NAME)
    try:
        read(directory)
        return
    except CorruptFile as error:
        logger.error("%s; it is %s now, and is written again", error, set_aside(path))


def write(directory: str, cluster_id: str, broker_id: int, *, sync: bool = True) -> None:
    """Make the file of a new directory, as a broker that coordinates through znodes writes it.  sync: as of
    write_atomically().  Raises OSError."""
    text = f"#\n#kcore\nversion=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
    write_atomically(os.path.join(directory, FILE_NAME), text.encode(), sync=sync)


def mark_as_member(directory: str) -> None:
    """Add to a directory's file that it belongs to a member of a cluster.  Raises OSError."""
    path = os.path.join(directory, FILE_NAME)
    write_atomically(path, read_file(path).rstrip(b"\r\n") + f"\n{MEMBER}=true\n".encode())
