"""How many partitions the topics of a data directory have, by which a load partitions its records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kcore.common.file import is_directory, list_directory
from kcore.errors import InvalidPartitions
from kcore.log.log_file_names import parse_partition_directory

#: Of a topic that is made.  Each is a directory with files of its own: who wants more has made a slip.
MOST_PARTITIONS = 100_000


@dataclass(frozen=True)
class PartitionCounts:
    """The number of partitions of each topic: `known` for topics that exist, `new` for a topic that does not."""

    known: Mapping[str, int] = field(default_factory=dict)
    new: int = 1
    #: Topics whose number of partitions cannot be determined, with the reason.
    unknown: Mapping[str, str] = field(default_factory=dict)

    def of(self, topic: str) -> int:
        """Raises InvalidPartitions."""
        if topic in self.unknown:
            raise InvalidPartitions(self.unknown[topic])
        return self.known.get(topic, self.new)

    def check(self, topic: str, wanted: int | None) -> None:
        """Raises InvalidPartitions for another number than the topic has."""
        there = self.of(topic)
        if topic in self.known and wanted not in (None, there):
            raise InvalidPartitions(
                f"topic {topic} has {there} partitions, not {wanted}: with another number keys would change theirs"
            )


def partition_counts(data_dir: str, new: int = 1) -> PartitionCounts:
    """The counts of a data directory.  A topic with a gap among its partitions is unknown: the others
    may be in other directories.  new: for topics that do not exist.  Raises InvalidPartitions for a number that no
    topic can have, OSError."""
    if not 1 <= new <= MOST_PARTITIONS:
        raise InvalidPartitions(f"{new} partitions: a topic is made with 1 to {MOST_PARTITIONS}")
    partitions_by_topic: dict[str, set[int]] = {}
    for name in list_directory(data_dir):
        parsed = parse_partition_directory(name)
        if parsed is not None and not parsed.mark and is_directory(os.path.join(data_dir, name)):
            partitions_by_topic.setdefault(parsed.topic_partition.topic, set()).add(parsed.topic_partition.partition)
    known = {
        topic: len(partitions)
        for topic, partitions in partitions_by_topic.items()
        if max(partitions) + 1 == len(partitions)
    }
    unknown = {
        topic: f"{data_dir}: of topic {topic} there is partition {max(partitions)}, and of those before it not all: "
        "a key's partition depends on their number"
        for topic, partitions in partitions_by_topic.items()
        if topic not in known
    }
    return PartitionCounts(known, new, unknown)
