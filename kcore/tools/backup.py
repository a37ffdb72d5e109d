"""`kcore backup`: topics of a running cluster or of a data directory, with their offsets, settings and groups' offsets,
in a directory that `kcore restore` reads.

A cluster's topics are copied as `kcore mirror` copies them, those of a data directory file by file.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple
from uuid import UUID

import click

from kcore.client.acl_client import AclClient, AclFilter
from kcore.client.admin_client import Address
from kcore.client.config_client import ConfigClient, ConfigResource, ConfigSource, ResourceKind
from kcore.client.group_client import GroupClient
from kcore.client.quota_client import QuotaClient
from kcore.common.file import sync_path
from kcore.common.progress import Progress, Stopped
from kcore.common.text import bytes_of, counted, json_line, nearest, plain_error, printable
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
)
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ClusterAuthorizationFailed,
    GroupIdNotFound,
    KafkaError,
    SecurityDisabled,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kcore.inspect.directories import closed_directory
from kcore.inspect.log_files import META_PROPERTIES_FILE, log_size_under, partition_dirs
from kcore.inspect.repair import ASIDE_SUFFIX
from kcore.inspect.topic_settings import copy_metadata
from kcore.inspect.verifier import verify
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpointFile,
)
from kcore.log.log_file_names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    TEMPORARY_SUFFIX,
    parse_partition_directory,
)
from kcore.log.log_manager import LogManager
from kcore.log.meta_properties import read_member
from kcore.log.partition_metadata import format_topic_id, read_topic_id
from kcore.mirror.topic_mirror import TopicMirror
from kcore.tools.backup_manifest import (
    DATA_DIRECTORY,
    BackupCommit,
    BackupPartition,
    BackupQuota,
    BackupTopic,
    Manifest,
    copy_file,
    files_below,
)
from kcore.tools.cluster_command import cluster_options
from kcore.tools.cluster_names import topic_names
from kcore.tools.command_line import (
    DIRECTORY,
    INTERRUPTED,
    OK,
    Arguments,
    UsageError,
    addresses,
    protocol_string,
    quiet_option,
)
from kcore.tools.commands import command
from kcore.tools.mirror import answering_brokers
from kcore.tools.stop_signals import stop_on_signal
from kcore.tools.temporary_broker import temporary_broker
from kcore.tools.verify import problem_text

#: What brokers keep in logs for themselves.
_NOT_COPIED = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC}

PARTIAL_SUFFIX = ".partial"

#: They name replicas, and belong to a move between brokers.
_SETTINGS_OF_BROKERS = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
#: Of a partition's directory: what is going, or was being written.
_LEFT_OUT = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX, ASIDE_SUFFIX)
#: Without the high watermarks: a broker that has the only replica knows them by the end of the log.
CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT)
LOCAL_TIMEOUT_MS = 60_000


class BackupFailed(KafkaError):
    """Something cannot be in a backup, so there is none."""


@command(example="kcore backup /backups/monday", one_of=[("--data", "--bootstrap")])
@click.argument("directory", type=DIRECTORY, metavar="DIR", help="where the backup goes; it must not exist")
@click.argument(
    "topics",
    nargs=-1,
    type=protocol_string,
    shell_complete=topic_names,
    metavar="[TOPIC]...",
    help="only these, without ACLs and quotas; default: all but the internal ones",
)
@click.option(
    "--data",
    multiple=True,
    type=DIRECTORY,
    metavar="DATA_DIR",
    help="a data directory that no broker has open, in the place of a cluster; repeatable for those of one broker",
)
@quiet_option()
@cluster_options("one JSON object a line for each partition and committed offset, the summary last")
def run(args: Arguments) -> int:
    """0, or 130 after Ctrl-C, which leaves nothing.  Raises OSError, KafkaError, UsageError."""
    if _NOT_COPIED & {*args.topics}:
        raise UsageError("internal topics are not in a backup: it has the committed offsets of the groups instead")
    target = os.path.normpath(args.directory)
    work = _Work(args)
    try:
        with stop_on_signal(work.stop), new_directory(target) as partial:
            data = os.path.join(partial, DATA_DIRECTORY)
            os.mkdir(data)
            manifest = work.of_directories(data) if args.data else work.of_cluster(data)
            files = [*files_below(data, work.progress)]
            manifest = replace(manifest, files=files)
            sync_tree(data)
            manifest.write(partial)
    except Stopped:
        return INTERRUPTED
    finally:
        work.progress.clear()
    for line in _lines(manifest, target, as_json=args.json):
        print(line)
    return OK


def check_new(target: str) -> None:
    """Raises UsageError where it is there, or is left from a run that did not end."""
    partial = f"{target}{PARTIAL_SUFFIX}"
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already: nothing is changed; name another directory")
    if os.path.lexists(partial):
        raise UsageError(f"{partial} is there: a run that did not end has left it; remove it first")


@contextmanager
def new_directory(target: str) -> Iterator[str]:
    """The path of a directory that gets the name `target` when the block ends, and is removed where it raises.  Raises
    UsageError where one of the two is there, OSError."""
    check_new(target)
    partial = f"{target}{PARTIAL_SUFFIX}"
    os.makedirs(partial)
    try:
        yield partial
        sync_path(partial)
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_path(os.path.dirname(target) or ".")


def sync_tree(directory: str) -> None:
    """Make each file below durable.  Raises OSError."""
    for parent, _, names in os.walk(directory):
        for name in names:
            sync_path(os.path.join(parent, name))
        sync_path(parent)


class _Work:
    """One backup being made.  Each method raises Stopped after stop(), which another thread calls."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._topics: list[str] = list(dict.fromkeys(args.topics))
        self._mirror: TopicMirror | None = None
        self.progress = Progress("backup", 0, quiet=args.quiet or args.json)
        self._begun_ms = SYSTEM_TIME.milliseconds()

    def stop(self) -> None:
        self.progress.stop()
        mirror = self._mirror
        if mirror is not None:
            mirror.stop()

    # -- a running cluster ------------------------------------------------------------------------------

    def of_cluster(self, data: str) -> Manifest:
        """Raises OSError, KafkaError, UsageError."""
        bootstrap = answering_brokers(self._args)
        cluster = self._cluster(bootstrap, self._args.timeout * 1000)
        topics = self._chosen(cluster.topics())
        # Before the records: what a group has committed since may be beyond the end of the copy.
        commits = cluster.commits(topics)
        copied = [self._mirrored(bootstrap, name, data, cluster.settings(name)) for name in topics]
        self.progress.total = 2 * log_size_under(partition_dirs(data))
        for topic in copied:
            for tp, _ in topic.topic_partitions():
                self._refuse_damage(os.path.join(data, str(tp)), topic)
        rest = (None, ()) if self._topics else (cluster.acls(), cluster.quotas())
        return Manifest(f"cluster {cluster.cluster_id}", self._begun_ms, copied, commits, *rest)

    def _cluster(self, bootstrap: Sequence[Address], timeout_ms: int) -> _Cluster:
        self.progress.advance(0)
        return _Cluster({"bootstrap": bootstrap, "client_id": "kcore", "timeout_ms": timeout_ms})

    def _chosen(self, known: Collection[str]) -> list[str]:
        """Raises UnknownTopicOrPartition."""
        for name in self._topics:
            if name not in known:
                raise UnknownTopicOrPartition(f"there is no topic {name!r}{nearest(name, known)}")
        return self._topics or sorted(known)

    def _mirrored(self, bootstrap: Sequence[Address], name: str, data: str, settings: Mapping[str, str]) -> BackupTopic:
        mirror = self._mirror = TopicMirror(bootstrap, name, data)
        with mirror:
            mirror.wait_until_caught_up(self._args.timeout * 1000)
        copies = mirror.partitions()
        self.progress.advance(0)  # raises Stopped
        partitions = [
            BackupPartition(copy.topic_partition.partition, copy.log_start_offset, copy.log_end_offset)
            for copy in copies
        ]
        topic_id = read_topic_id(os.path.join(data, str(copies[0].topic_partition)))
        return BackupTopic(name, _id_text(topic_id), settings, partitions)

    # -- data directories -------------------------------------------------------------------------------

    def of_directories(self, data: str) -> Manifest:
        """Raises OSError, KafkaError, UsageError."""
        with ExitStack() as locks:
            for source in self._args.data:
                if (member := read_member(source)) is not None:
                    raise BackupFailed(
                        f"{source} belongs to broker {member.node_id} of a cluster, whose topics and settings are in a "
                        "store elsewhere: start the cluster, and use --bootstrap"
                    )
                _close(source, locks)
            found = self._directories()
            names = self._chosen({tp.topic for tp in found} - _NOT_COPIED)
            rest = self._of_temporary_broker(names, found, f"{data}.broker")
            topics = [BackupTopic(name, None, rest.settings[name], ()) for name in names]
            chosen = {tp: path for tp, path in found.items() if tp.topic in names}
            self.progress.total = 3 * log_size_under([*chosen.values()])
            for topic in topics:
                for tp, path in chosen.items():
                    if tp.topic == topic.topic:
                        self._refuse_damage(path, topic)
            self._copy(chosen, data)
        copied = _closed_cleanly(data, topics, chosen)
        return Manifest(", ".join(self._args.data), self._begun_ms, copied, rest.commits, rest.acls, rest.quotas)

    def _directories(self) -> dict[TopicPartition, str]:
        """Each partition's directory."""
        found = {}
        for source in self._args.data:
            for path in partition_dirs(source):
                parsed = parse_partition_directory(os.path.basename(path))
                if parsed is not None and not parsed.mark:
                    found[parsed.topic_partition] = path
        if not found:
            raise UsageError(f"{', '.join(self._args.data)}: no partition's directory is there")
        return found

    def _of_temporary_broker(self, topics: Sequence[str], found: Mapping[TopicPartition, str], directory: str) -> _Rest:
        """What a broker says that serves a copy of the metadata and of the committed offsets."""
        os.mkdir(directory)
        for source in self._args.data:
            copy_metadata(source, directory)
            if os.path.isfile(os.path.join(source, META_PROPERTIES_FILE)):
                shutil.copyfile(
                    os.path.join(source, META_PROPERTIES_FILE), os.path.join(directory, META_PROPERTIES_FILE)
                )
        self._copy({tp: path for tp, path in found.items() if tp.topic == GROUP_METADATA_TOPIC}, directory)
        with temporary_broker(directory) as broker:
            cluster = self._cluster(addresses(broker.bootstrap_servers), LOCAL_TIMEOUT_MS)
            known = cluster.topics()
            settings = {name: cluster.settings(name) if name in known else {} for name in topics}
            commits = cluster.commits(topics)
            rest = (None, ()) if self._topics else (cluster.acls(), cluster.quotas())
        shutil.rmtree(directory)
        return _Rest(settings, commits, *rest)

    def _copy(self, partitions: Mapping[TopicPartition, str], target: str) -> None:
        """With what the checkpoints of their data directories say about them."""
        for tp, source in partitions.items():
            os.mkdir(os.path.join(target, str(tp)))
            for name in sorted(os.listdir(source)):
                if os.path.isfile(os.path.join(source, name)) and not name.endswith(_LEFT_OUT):
                    copy_file(os.path.join(source, name), os.path.join(target, str(tp), name), self.progress)
        data_dirs = {os.path.dirname(path) for path in partitions.values()}
        for name in CHECKPOINTS:
            offsets = [OffsetCheckpointFile(os.path.join(data_dir, name)).read() for data_dir in data_dirs]
            kept = {tp: offset for of_dir in offsets for tp, offset in of_dir.items() if tp in partitions}
            OffsetCheckpointFile(os.path.join(target, name)).write(kept)
        if all(os.path.isfile(os.path.join(data_dir, CLEAN_SHUTDOWN_FILE)) for data_dir in data_dirs):
            for data_dir in data_dirs:
                shutil.copyfile(os.path.join(data_dir, CLEAN_SHUTDOWN_FILE), os.path.join(target, CLEAN_SHUTDOWN_FILE))

    def _refuse_damage(self, directory: str, topic: BackupTopic) -> None:
        """Raises BackupFailed.  A gap is none: what it held is in no file."""
        is_compacted = "compact" in topic.settings.get("cleanup.policy", "")
        for problem in verify(directory, records=False, compacted=is_compacted, progress=self.progress):
            if problem.damage and not problem.gaps:
                raise BackupFailed(f"{problem_text(problem)}; `kcore repair {directory}` says what can be done")


def _close(source: str, locks: ExitStack) -> None:
    """Keep a data directory from being opened while `locks` is held.  One that this process may not write, as a
    snapshot that is mounted for reading only, must only be closed now.  Raises DirectoryInUse, OSError."""
    try:
        locks.enter_context(closed_directory(source, write=True))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        locks.enter_context(closed_directory(source, write=False))


def _closed_cleanly(data: str, topics: Sequence[BackupTopic], chosen: Collection[TopicPartition]) -> list[BackupTopic]:
    """Open and close the copied logs, as a broker's start and stop do; the topics with what is in them."""
    manager = LogManager([data])
    manager.startup()
    try:
        logs = {log.topic_partition: log for log in manager.all_logs()}
        missing = sorted(set(chosen) - logs.keys())
        if missing:
            raise BackupFailed(f"{missing[0]}: its log cannot be opened; `kcore verify` says why")
        return [
            replace(
                topic,
                topic_id=_id_text(next((log.topic_id for log in its_logs if log.topic_id is not None), None)),
                partitions=[
                    BackupPartition(log.topic_partition.partition, log.log_start_offset, log.log_end_offset)
                    for log in its_logs
                ],
            )
            for topic in topics
            for its_logs in [[logs[tp] for tp in sorted(logs) if tp.topic == topic.topic]]
        ]
    finally:
        manager.shutdown()


def _id_text(topic_id: UUID | None) -> str | None:
    return None if topic_id is None else format_topic_id(topic_id)


# -- what is not in the logs ------------------------------------------------------------------------------------------


class _Rest(NamedTuple):
    settings: Mapping[str, Mapping[str, str]]
    commits: Collection[BackupCommit]
    acls: Collection[tuple[Any, ...]] | None
    quotas: Collection[BackupQuota]


class _Cluster:
    """What a cluster says about its topics and groups.  options: of an AdminClient."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.cluster_id: str | None = None

    def topics(self) -> list[str]:
        """All but the internal ones."""
        with ConfigClient(**self._options) as client:
            described = client.describe_cluster()
        self.cluster_id = described.cluster_id
        return [
            topic.name for topic in described.topics.values() if not topic.is_internal and topic.name not in _NOT_COPIED
        ]

    def settings(self, topic: str) -> dict[str, str]:
        """Those that do not have their default value, wherever they are set."""
        with ConfigClient(**self._options) as client:
            settings = client.settings(ConfigResource(ResourceKind.TOPIC, topic))
        return {
            name: setting.value
            for name, setting in settings.items()
            if setting.source is not ConfigSource.DEFAULT
            and setting.value is not None
            and name not in _SETTINGS_OF_BROKERS
        }

    def commits(self, topics: Collection[str]) -> list[BackupCommit]:
        """Of all groups, for these topics.  Raises BackupFailed where a broker cannot be asked."""
        commits = []
        with GroupClient(**self._options) as client:
            groups, errors = client.list_groups()
            for broker_id, error in errors.items():
                raise BackupFailed(f"the groups of broker {broker_id} are not known: {plain_error(error)}")
            for group in groups:
                try:
                    stored = client.commits(group.group_id)
                except GroupIdNotFound:  # it was deleted meanwhile, or its kind has no committed offsets
                    continue
                commits += [
                    BackupCommit(group.group_id, tp.topic, tp.partition, **commit._asdict())
                    for tp, commit in sorted(stored.items())
                    if tp.topic in topics
                ]
        return commits

    def acls(self) -> list[tuple[Any, ...]] | None:
        with AclClient(**self._options) as client, _noted():
            try:
                return [tuple(acl) for acl in client.acls(AclFilter())]
            except (SecurityDisabled, UnsupportedVersion):
                return None

    def quotas(self) -> list[BackupQuota]:
        with QuotaClient(**self._options) as client, _noted():
            try:
                found = client.quotas(())
            except UnsupportedVersion:
                return []
        return [BackupQuota(entity, quota, value) for entity, of_it in found.items() for quota, value in of_it.items()]


@contextmanager
def _noted() -> Iterator[None]:
    try:
        yield
    except ClusterAuthorizationFailed as error:
        error.add_note("a backup of named topics needs no ACLs and quotas")
        raise


# -- output -----------------------------------------------------------------------------------------------------------


def _lines(manifest: Manifest, target: str, *, as_json: bool) -> Iterator[str]:
    if as_json:
        yield from contents_as_json(manifest)
        yield json_line({"type": "summary", "directory": target, **counts(manifest)})
        return
    yield from contents_as_text(manifest)
    yield printable(f"{target}: complete, {counts_text(manifest)}; `kcore restore {target} DATA_DIR` reads it")


def contents_as_json(manifest: Manifest) -> Iterator[str]:
    for topic in manifest.topics:
        for tp, partition in topic.topic_partitions():
            offsets = {"log_start_offset": partition.log_start_offset, "log_end_offset": partition.log_end_offset}
            yield json_line({"type": "partition", "topic": tp.topic, "partition": tp.partition} | offsets)
    for commit in manifest.commits:
        yield json_line({"type": "committed_offset"} | asdict(commit))


def contents_as_text(manifest: Manifest) -> Iterator[str]:
    for topic in manifest.topics:
        for tp, partition in topic.topic_partitions():
            yield f"{tp}: offsets {partition.log_start_offset} to {partition.log_end_offset}"
    groups: dict[str, int] = {}
    for commit in manifest.commits:
        groups[commit.group] = groups.get(commit.group, 0) + 1
    for group, count in groups.items():
        yield printable(f"group {group}: {counted(count, 'committed offset')}")


def counts(manifest: Manifest) -> dict[str, object]:
    return {
        "source": manifest.source,
        "begun_ms": manifest.begun_ms,
        "topics": len(manifest.topics),
        "partitions": sum(len(topic.partitions) for topic in manifest.topics),
        "groups": len({commit.group for commit in manifest.commits}),
        "acls": None if manifest.acls is None else len(manifest.acls),
        "quotas": len(manifest.quotas),
        "files": len(manifest.files),
        "bytes": manifest.size,
    }


def counts_text(manifest: Manifest) -> str:
    number = counts(manifest)
    words = [
        counted(int(str(number[f"{noun}s"] or 0)), noun) for noun in ("topic", "partition", "group", "acl", "quota")
    ]
    return f"{', '.join(words).replace('acl', 'ACL')}, {bytes_of(manifest.size)}"
