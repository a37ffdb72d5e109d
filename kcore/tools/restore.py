"""`kcore restore`: a data directory out of a backup, with the same offsets.

The logs are copied as they are.  What is not in them (settings, committed offsets, ACLs, quotas) is given to a broker
that serves the new directory for a moment.  The directory gets its name once all of it was compared with the backup.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
from click.core import ParameterSource

from kcore.client.acl_client import Acl, AclClient, AclFilter
from kcore.client.config_client import ConfigClient, ConfigResource, ConfigSource, ResourceKind
from kcore.client.group_client import EARLIEST, Commit, GroupClient
from kcore.client.quota_client import QuotaClient
from kcore.client.transaction_client import TransactionClient
from kcore.common.progress import Progress, Stopped
from kcore.common.text import bytes_of, counted, json_line, nearest, printable
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, InvalidConfig, InvalidRequest, KafkaError, UnknownTopicOrPartition
from kcore.inspect.replica_diff import compare
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import CLEAN_SHUTDOWN_FILE
from kcore.tools.backup import (
    CHECKPOINTS,
    LOCAL_TIMEOUT_MS,
    check_new,
    contents_as_json,
    contents_as_text,
    counts,
    counts_text,
    new_directory,
    sync_tree,
)
from kcore.tools.backup_manifest import DATA_DIRECTORY, BackupFile, Manifest, copy_checked, read_manifest
from kcore.tools.cluster_command import apply_option, error_text
from kcore.tools.command_line import (
    DAMAGE,
    DIRECTORY,
    INTERRUPTED,
    OK,
    Arguments,
    UsageError,
    addresses,
    broker_id,
    config_option,
    json_option,
    protocol_string,
    quiet_option,
)
from kcore.tools.commands import command
from kcore.tools.stop_signals import stop_on_signal
from kcore.tools.temporary_broker import temporary_broker


class RestoreFailed(KafkaError):
    """What was restored is not what the backup has: nothing is left of it."""


@dataclass
class _Outcome:
    """aborted: transactions that were open in the backup, by partition.  problems: what the broker did not take."""

    aborted: dict[TopicPartition, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def _refuse_cluster(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Raises click.UsageError where it is on the command line; a configuration file has it for other commands."""
    if ctx.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
        raise click.UsageError(
            "a running cluster cannot be restored into: its leaders would give the records new offsets.  Restore into "
            "a new DATA_DIR and `kcore serve --data` it",
            ctx,
        )


@command(example="kcore restore /backups/monday /var/lib/kcore --apply")
@click.argument("backup", type=DIRECTORY, metavar="BACKUP", help="a directory that `kcore backup` has made")
@click.argument(
    "data_dir",
    type=DIRECTORY,
    metavar="DATA_DIR",
    help="the data directory to make, for `kcore serve --data`; it must not exist",
)
@click.argument(
    "topics",
    nargs=-1,
    type=protocol_string,
    metavar="[TOPIC]...",
    help="only these, without ACLs and quotas; default: all that the backup has",
)
@click.option("--id", type=broker_id, metavar="N", help="the id of the broker that will serve it; default 1")
@config_option("a setting of each restored topic, in the place of the backup's, as retention.ms=-1")
@click.option("--bootstrap", "--bootstrap-server", hidden=True, expose_value=False, callback=_refuse_cluster)
@apply_option()
@quiet_option()
@json_option("one JSON object a line for each partition and committed offset, the summary last")
def run(args: Arguments) -> int:
    """0; 1 if a setting, ACL or quota is not one of kcore's; 130 after Ctrl-C, which leaves nothing.  Raises OSError,
    KafkaError, UsageError."""
    target = os.path.normpath(args.data_dir)
    try:
        LogConfig.from_kafka(dict(args.config))
    except InvalidConfig as error:
        raise UsageError(f"--config: {error}") from None
    manifest = _chosen(read_manifest(args.backup), args.topics)
    topics = [replace(topic, settings={**topic.settings, **dict(args.config)}) for topic in manifest.topics]
    manifest = replace(manifest, topics=topics)
    # With --apply the logs are read twice more, to compare them.
    total = manifest.size * (3 if args.apply else 1)
    progress = Progress("restore", total, quiet=args.quiet or args.json)
    source = os.path.join(args.backup, DATA_DIRECTORY)
    outcome = _Outcome()
    try:
        with stop_on_signal(progress.stop):
            if args.apply:
                with new_directory(target) as partial:
                    _copy(manifest, source, partial, progress)
                    _serve(manifest, partial, args.id, outcome)
                    _compare(manifest, source, partial, outcome, progress)
                    sync_tree(partial)
            else:
                check_new(target)
                for file in manifest.files:
                    copy_checked(file, os.path.join(source, file.file), None, progress)
    except Stopped:
        return INTERRUPTED
    finally:
        progress.clear()
    for line in _lines(args, manifest, target, outcome):
        print(line)
    return DAMAGE if outcome.problems else OK


def _chosen(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """What there is of these topics.  Raises UnknownTopicOrPartition."""
    if not names:
        return manifest
    topics = {topic.topic: topic for topic in manifest.topics}
    for name in names:
        if name not in topics:
            raise UnknownTopicOrPartition(f"the backup has no topic {name!r}{nearest(name, topics)}")
    partitions = {str(tp) for name in names for tp, _ in topics[name].topic_partitions()}
    return replace(
        manifest,
        topics=[topics[name] for name in dict.fromkeys(names)],
        commits=[commit for commit in manifest.commits if commit.topic in names],
        acls=None,
        quotas=(),
        files=[file for file in manifest.files if os.path.dirname(file.file) in {"", *partitions}],
    )


# -- files ------------------------------------------------------------------------------------------------------------


def _copy(manifest: Manifest, source: str, target: str, progress: Progress) -> None:
    """The logs, and what the checkpoints say about them.  Raises BackupDamaged, OSError, Stopped."""
    wanted = {tp for topic in manifest.topics for tp, _ in topic.topic_partitions()}
    for tp in wanted:
        os.mkdir(os.path.join(target, str(tp)))
    for file in manifest.files:
        copy_checked(file, os.path.join(source, file.file), _target_of(file, target), progress)
    for name in CHECKPOINTS:
        path = os.path.join(target, name)
        if os.path.exists(path):
            OffsetCheckpointFile(path).write(
                {tp: offset for tp, offset in OffsetCheckpointFile(path).read().items() if tp in wanted}
            )


def _target_of(file: BackupFile, target: str) -> str | None:
    """None for a file that is checked and not needed."""
    if os.path.dirname(file.file) or file.file in (*CHECKPOINTS, CLEAN_SHUTDOWN_FILE):
        return os.path.join(target, file.file)
    return None


def _compare(manifest: Manifest, source: str, target: str, outcome: _Outcome, progress: Progress) -> None:
    """Raises RestoreFailed unless each log has the batches of the backup, byte for byte, and only these, but for the
    ends of transactions."""
    for topic in manifest.topics:
        for tp, _ in topic.topic_partitions():
            a, b = (os.path.join(directory, str(tp)) for directory in (source, target))
            diff = compare(a, b, gaps_are_cleaning=True, progress=progress)
            markers = 0 if diff.only_b is None else diff.only_b.records
            differs = diff.divergence or diff.only_a or diff.before_a or diff.before_b or diff.damages or diff.gaps
            if differs or markers != outcome.aborted.get(tp, 0):
                raise RestoreFailed(f"{b} is not what {a} has; `kcore diff` says where: nothing is restored")


# -- what a broker stores ---------------------------------------------------------------------------------------------


def _serve(manifest: Manifest, data_dir: str, number: int | None, outcome: _Outcome) -> None:
    """Give a broker what is not in the logs, and ask it for all of it.  Raises RestoreFailed, OSError, KafkaError."""
    with temporary_broker(data_dir, number) as broker:
        options = {
            "bootstrap": addresses(broker.bootstrap_servers),
            "client_id": "kcore",
            "timeout_ms": LOCAL_TIMEOUT_MS,
        }
        # Before the settings: one replica writes no marker where min.insync.replicas is above 1.
        outcome.aborted = _end_transactions(manifest, options)
        outcome.problems += _restore_settings(manifest, options)
        _check_offsets(manifest, options, outcome.aborted)
        _restore_commits(manifest, options)
        outcome.problems += _restore_acls(manifest, options)
        outcome.problems += _restore_quotas(manifest, options)


def _restore_settings(manifest: Manifest, options: dict[str, Any]) -> Iterator[str]:
    """Why settings are not restored."""
    with ConfigClient(**options) as client:
        for topic in manifest.topics:
            resource = ConfigResource(ResourceKind.TOPIC, topic.topic)
            # A broker that finds a topic without settings makes some that keep its records.
            own = [
                name
                for name, setting in client.settings(resource).items()
                if setting.source is ConfigSource.TOPIC and name not in topic.settings
            ]
            if own:
                client.alter_settings(resource, dict.fromkeys(own))
            for name, value in topic.settings.items():
                try:
                    client.alter_settings(resource, {name: value})
                except (InvalidConfig, InvalidRequest) as error:
                    yield f"topic {topic.topic}: setting {name}={value} is not restored: {error_text(error)}"


def _end_transactions(manifest: Manifest, options: dict[str, Any]) -> dict[TopicPartition, int]:
    """Abort the transactions that were open: the coordinator that could end them is not in the backup."""
    aborted: dict[TopicPartition, int] = {}
    with TransactionClient(**options) as client:
        opened, errors = client.open_transactions(tp for topic in manifest.topics for tp, _ in topic.topic_partitions())
        for error in errors.values():
            raise error
        for transaction in opened:
            client.abort_in_partition(transaction)
            tp = transaction.topic_partition
            aborted[tp] = aborted.get(tp, 0) + 1
    return aborted


def _check_offsets(manifest: Manifest, options: dict[str, Any], aborted: dict[TopicPartition, int]) -> None:
    """Raises RestoreFailed unless consumers see each log from the same offset to the same offset."""
    partitions = dict(pair for topic in manifest.topics for pair in topic.topic_partitions())
    with GroupClient(**options) as client:
        starts = client.listed_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = client.log_end_offsets(partitions)
    for tp, partition in partitions.items():
        expected = (partition.log_start_offset, partition.log_end_offset + aborted.get(tp, 0))
        if (starts[tp].offset, ends[tp].offset) != expected:
            raise RestoreFailed(
                f"{tp} would have the offsets {starts[tp].offset} to {ends[tp].offset}, the backup has "
                f"{expected[0]} to {expected[1]}: nothing is restored"
            )


def _restore_commits(manifest: Manifest, options: dict[str, Any]) -> None:
    groups: dict[str, dict[TopicPartition, Commit]] = {}
    for commit in manifest.commits:
        stored = Commit(commit.offset, commit.leader_epoch, commit.metadata)
        groups.setdefault(commit.group, {})[commit.topic_partition] = stored
    with GroupClient(**options) as client:
        for group, commits in groups.items():
            for tp, error in client.store_commits(group, commits).items():
                if error is not None:
                    raise RestoreFailed(f"group {group}: the offset of {tp} cannot be committed: {error_text(error)}")
            if client.commits(group) != commits:
                raise RestoreFailed(f"group {group} has other committed offsets than the backup: nothing is restored")


def _restore_acls(manifest: Manifest, options: dict[str, Any]) -> Iterator[str]:
    if not manifest.acls:
        return
    with AclClient(**options) as client:
        errors = client.create_acls([Acl(*fields) for fields in manifest.acls])
        for acl, error in errors.items():
            if error is not None:
                yield f"ACL of {acl.principal} on {acl.resource_name} is not restored: {error_text(error)}"
        missing = {acl for acl, error in errors.items() if error is None} - {*client.acls(AclFilter())}
        if missing:
            raise RestoreFailed(
                f"{counted(len(missing), 'ACL')} of the backup cannot be read back: nothing is restored"
            )


def _restore_quotas(manifest: Manifest, options: dict[str, Any]) -> Iterator[str]:
    with QuotaClient(**options) as client:
        for quota in manifest.quotas:
            try:
                client.alter_quotas(quota.entity, {quota.quota: quota.value})
            except ApiError as error:
                name = ", ".join(f"{kind} {name or '(default)'}" for kind, name in quota.entity)
                yield f"quota {quota.quota} of {name} is not restored: {error_text(error)}"
                continue
            if client.quotas(quota.entity, is_whole=True).get(quota.entity, {}).get(quota.quota) != quota.value:
                raise RestoreFailed(f"quota {quota.quota} cannot be read back: nothing is restored")


# -- output -----------------------------------------------------------------------------------------------------------


def _warnings(manifest: Manifest) -> Iterator[str]:
    """What producers will meet on one replica."""
    for topic in manifest.topics:
        number = topic.settings.get("min.insync.replicas", "1")
        if number.isdecimal() and int(number) > 1:
            yield (
                f"topic {topic.topic}: min.insync.replicas is {number}, so one replica refuses acks=all: "
                "--config min.insync.replicas=1 changes it"
            )


def _lines(args: Arguments, manifest: Manifest, target: str, outcome: _Outcome) -> Iterator[str]:
    if args.json:
        yield from contents_as_json(manifest)
        for tp, number in outcome.aborted.items():
            yield json_line({"type": "aborted", "topic": tp.topic, "partition": tp.partition, "transactions": number})
        for problem in outcome.problems:
            yield json_line({"type": "problem", "problem": problem})
        for warning in _warnings(manifest):
            yield json_line({"type": "warning", "problem": warning})
        yield json_line({"type": "summary", "directory": target, **counts(manifest), "applied": args.apply})
        return
    yield from contents_as_text(manifest)
    for tp, number in outcome.aborted.items():
        which = "1 transaction was" if number == 1 else f"{number} transactions were"
        yield f"{tp}: {which} open and is aborted: {counted(number, 'marker')} after the last record"
    yield from map(printable, [*outcome.problems, *_warnings(manifest)])
    if not args.apply:
        yield printable(
            f"the backup is complete: {counted(len(manifest.files), 'file')} with {bytes_of(manifest.size)} are as "
            f"they were written; --apply makes {target} of them"
        )
        return
    yield printable(f"{target}: {counts_text(manifest)}")
    yield (
        "compared with the backup: every batch byte for byte, the first and last offset of each partition, committed "
        f"offsets, ACLs and quotas; `kcore serve --data {target}` serves it"
    )
