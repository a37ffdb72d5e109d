"""Every file and directory name of a log, both ways.

A segment's files share its base offset, 20 digits: .log, .index, .timeindex, .txnindex; a producer snapshot is named
after the offset it describes.  A second suffix says what is happening to a file: .deleted (to be removed), .cleaned
(being written by the cleaner), .swap (complete, about to replace what it was made from).  A partition's directory is
topic-partition; topic-partition.<32 hex digits>-delete, -future or -stray one that is going, moving or unknown.
Source: UnifiedLog, LogFileUtils, Kafka 2.4-4.x.
"""

from __future__ import annotations

import os
import re
from random import Random
from typing import NamedTuple

from kcore.common.random_source import random_uuid
from kcore.common.topic_partition import TopicPartition

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"  # of a small file that is being written (file.write_atomically)

SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
INDEX_SUFFIXES = SEGMENT_SUFFIXES[1:]

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
PARTITION_METADATA_FILE = "partition.metadata"
LOST_RECORDS_FILE = "lost-records"

_LONGEST_NAME = 255  # what common file systems allow

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?")
_MARKED_DIRECTORY = re.compile(r"(\S+-\S+)\.\S+(-delete|-future|-stray)")


class SegmentFileName(NamedTuple):
    base_offset: int
    kind: str  # .log, .index, .timeindex, .txnindex or .snapshot
    mark: str  # "", .deleted, .cleaned or .swap


def segment_file(directory: str, offset: int, suffix: str) -> str:
    return os.path.join(directory, f"{offset:020d}{suffix}")


def parse_segment_file(name: str) -> SegmentFileName | None:
    """None for a name that is no segment file or snapshot."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    offset = int(match[1])
    return SegmentFileName(offset, match[2], match[3] or "") if offset < 2**63 else None


def partition_directory(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def marked_directory(topic_partition: TopicPartition, suffix: str, random: Random) -> str:
    """A unique name, of 255 characters at most, for a directory that goes, moves or is unknown."""
    tail = f".{random_uuid(random).hex}{suffix}"
    return partition_directory(topic_partition)[: _LONGEST_NAME - len(tail)] + tail


class PartitionDirectoryName(NamedTuple):
    topic_partition: TopicPartition
    mark: str  # "", -delete, -future or -stray


def parse_partition_directory(name: str) -> PartitionDirectoryName | None:
    """None for a name that no partition's directory has."""
    mark = ""
    for suffix in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX):
        if name.endswith(suffix):
            match = _MARKED_DIRECTORY.fullmatch(name)
            if match is None:
                return None
            name, mark = match[1], suffix
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdigit()) or int(partition) > 2**31 - 1:
        return None
    return PartitionDirectoryName(TopicPartition(topic, int(partition)), mark)
