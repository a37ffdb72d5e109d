"""The manifest of a backup: manifest.json, which says what is in it and what each of its files is.

A backup is a directory with manifest.json and data/, which is a data directory that was closed cleanly: the partitions'
directories and the checkpoints.  The manifest is written last, so a directory with one is complete.  It has a checksum
of itself and the SHA-256 of each file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kcore.common.file import read_file, write_atomically
from kcore.common.progress import Progress
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError

MANIFEST_FILE = "manifest.json"
DATA_DIRECTORY = "data"

_FORMAT, _VERSION = "kcore backup", 1
_CHUNK = 1 << 20


class BackupDamaged(KafkaError):
    """A backup is not what its manifest says, or has none."""


@dataclass(frozen=True)
class BackupPartition:
    partition: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True)
class BackupTopic:
    """settings: those that did not have their default value.  topic_id: None where there was none."""

    topic: str
    topic_id: str | None
    settings: Mapping[str, str]
    partitions: Collection[BackupPartition]

    def topic_partitions(self) -> Iterator[tuple[TopicPartition, BackupPartition]]:
        for partition in self.partitions:
            yield TopicPartition(self.topic, partition.partition), partition


@dataclass(frozen=True)
class BackupCommit:
    """A group's committed offset."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class BackupQuota:
    """entity: (type, name) of each part, as client.quota_client has it."""

    entity: tuple[tuple[str, str | None], ...]
    quota: str
    value: float


@dataclass(frozen=True)
class BackupFile:
    """file: its path below data/."""

    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """source: a cluster's id or a data directory, for people.  begun_ms: since 1970.  acls: the fields of client.Acl,
    None where the brokers have none."""

    source: str
    begun_ms: int
    topics: Collection[BackupTopic] = ()
    commits: Collection[BackupCommit] = ()
    acls: Collection[tuple[Any, ...]] | None = None
    quotas: Collection[BackupQuota] = ()
    files: Collection[BackupFile] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def write(self, directory: str) -> None:
        """Raises OSError."""
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        text = json.dumps(content | {"checksum": _checksum(content)}, indent=1)
        write_atomically(os.path.join(directory, MANIFEST_FILE), text.encode())


def read_manifest(directory: str) -> Manifest:
    """That of a backup.  Raises BackupDamaged, OSError."""
    path = os.path.join(directory, MANIFEST_FILE)
    try:
        content = json.loads(read_file(path))
        checksum = content.pop("checksum", None)
    except FileNotFoundError:
        os.stat(directory)
        raise BackupDamaged(f"{path} is missing: {directory} is no backup, or one that did not end") from None
    except (ValueError, AttributeError) as error:
        raise BackupDamaged(f"{path} is damaged: {error}; take another backup") from None
    if checksum != _checksum(content):
        raise BackupDamaged(f"{path} was changed: its checksum does not fit; take another backup")
    if (content.pop("format", None), content.pop("version", None)) != (_FORMAT, _VERSION):
        raise BackupDamaged(f"{path} is of another version of kcore: this one reads version {_VERSION}")
    files = [BackupFile(**file) for file in content["files"]]
    for file in files:
        if os.path.isabs(file.file) or os.pardir in file.file.split(os.sep):
            raise BackupDamaged(f"{path} names a file outside of the backup, {file.file!r}: it is none of kcore's")
    return Manifest(
        content["source"],
        content["begun_ms"],
        [
            BackupTopic(**topic | {"partitions": [BackupPartition(**fields) for fields in topic["partitions"]]})
            for topic in content["topics"]
        ],
        [BackupCommit(**commit) for commit in content["commits"]],
        None if content["acls"] is None else [tuple(acl) for acl in content["acls"]],
        [BackupQuota(**quota | {"entity": tuple(map(tuple, quota["entity"]))}) for quota in content["quotas"]],
        files,
    )


def _checksum(content: Mapping[str, Any]) -> str:
    # As JSON has it: tuples are lists there.
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def copy_file(source: str, target: str, progress: Progress) -> None:
    """Raises OSError, Stopped."""
    _read(source, target, progress)


def files_below(directory: str, progress: Progress) -> Iterator[BackupFile]:
    """Each file, but for locks, in the order of the names.  Raises OSError."""
    for parent, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            if name != ".lock":
                path = os.path.join(parent, name)
                digest = _read(path, None, progress)
                yield BackupFile(os.path.relpath(path, directory), os.path.getsize(path), digest)


def copy_checked(file: BackupFile, source: str, target: str | None, progress: Progress) -> None:
    """Check a file of a backup against its manifest; target: where a copy of it goes, if it is wanted.  Raises
    BackupDamaged, which names the file, OSError."""
    try:
        size = os.path.getsize(source)
        if size != file.size:
            how = "is truncated" if size < file.size else "was changed"
            raise BackupDamaged(f"{source} {how}: {size} bytes, the manifest has {file.size}; take another backup")
        digest = _read(source, target, progress)
    except FileNotFoundError:
        if os.path.exists(source):
            raise
        raise BackupDamaged(f"{source} is missing; take another backup") from None
    if digest != file.sha256:
        raise BackupDamaged(f"{source} was changed: its SHA-256 is not that of the manifest; take another backup")


def _read(source: str, target: str | None, progress: Progress) -> str:
    """The SHA-256 of a file, which is copied to target."""
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target or os.devnull, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
            progress.advance(len(chunk), os.path.basename(source))
            progress.show()
    return digest.hexdigest()
