"""`kcore doctor`: what is wrong with a running cluster or with directories, and which command mends it.

What it looks at is what the other commands show; what counts as wrong is in findings.py.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import click

from kcore.client.admin_client import Address, AdminClient, ConfigValue, Node, Silence
from kcore.client.config_client import ConfigClient, ConfigResource, ResourceKind
from kcore.client.group_client import GroupClient
from kcore.client.log_dir_client import LogDirClient
from kcore.client.monitor import MonitorError, ask_broker
from kcore.client.monitored_directory import directory_of_address
from kcore.client.transaction_client import OpenTransaction, TransactionClient
from kcore.common.progress import Progress
from kcore.common.text import counted, json_line, plain_error, printable
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, CorruptFile, GroupIdNotFound, KafkaError
from kcore.inspect import log_files
from kcore.inspect.directories import data_dir_of, lacks_meta_properties, partitions_under
from kcore.inspect.partition_checks import Problem
from kcore.inspect.topic_settings import METADATA_FILE
from kcore.inspect.verifier import Summary, verify
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.directory_lock import is_held
from kcore.log.log_file_names import LOST_RECORDS_FILE
from kcore.log.lost_records import read_mark
from kcore.log.lso_explanation import explain_lso
from kcore.log.open_log import open_log
from kcore.tools import findings
from kcore.tools.cluster import ClusterState, PartitionProblem, look_at
from kcore.tools.cluster_command import admin_client, cluster_client, cluster_options
from kcore.tools.command_line import DAMAGE, FILE, OK, USAGE, Arguments, UsageError, reading_options
from kcore.tools.commands import command
from kcore.tools.findings import Cause, Finding, GroupState, TopicSafety
from kcore.tools.groups import positions_of
from kcore.tools.verify import problem_text

#: A transaction may last so long by the default of transaction.max.timeout.ms.
_LONGEST_TRANSACTION_MS = 900_000
#: A group that is in a rebalance is looked at again after so long.
_REBALANCE_MS = 5000
_READ_COMMITTED = 1

_Client = TypeVar("_Client", bound=AdminClient)


@command(example="kcore doctor --bootstrap localhost:9092")
@click.argument(
    "paths",
    nargs=-1,
    type=FILE,
    metavar="[PATH]...",
    help="partition directories or data directories; without, the cluster is examined",
)
@reading_options()
@cluster_options("one JSON object a line for each finding, the summary last")
def run(args: Arguments) -> int:
    """0 when nothing is wrong; 1 with findings; 2 if a part could not be examined, named on stderr.  Raises OSError,
    KafkaError, UsageError."""
    if args.paths and args.bootstrap.is_given:
        raise UsageError("PATH and --bootstrap are two things to examine: give one of them")
    examination = DirectoryExamination(args) if args.paths else ClusterExamination(args)
    found = 0
    for finding in examination.findings():
        found += 1
        fields = {"type": "finding", **finding._asdict()}
        print(json_line(fields) if args.json else printable(str(finding)), flush=True)
    if args.json:
        summary = {"type": "summary", "findings": found, "unexamined": examination.unexamined}
        print(json_line(summary | examination.examined))
    else:
        what = counted(found, "finding") if found else "nothing is wrong"
        print(f"{what}: {', '.join(examination.examined_texts())} examined")
    return USAGE if examination.unexamined else DAMAGE if found else OK


class _Examination:
    """examined: how much of what, by its plural.  unexamined: how many parts could not be had."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self.examined: dict[str, int] = {}
        self.unexamined = 0

    def examined_texts(self) -> list[str]:
        return [
            counted(number, "directory" if plural == "directories" else plural.removesuffix("s"), plural)
            for plural, number in self.examined.items()
        ]

    def _not_examined(self, what: str, error: Exception) -> None:
        self.unexamined += 1
        print(printable(f"kcore: {what}: not examined: {plain_error(error)}"), file=sys.stderr)


class ClusterExamination(_Examination):
    def __init__(self, args: Arguments, time: Time = SYSTEM_TIME) -> None:
        super().__init__(args)
        self._time = time
        #: The brokers that did not answer at the first look: nothing else waits for them.
        self._silent: Mapping[Address, Silence] = {}

    def findings(self) -> Iterator[Finding]:
        """Raises OSError, KafkaError, UsageError where no broker can be asked at all."""
        with admin_client(self._args, ends_where_locked=True) as admin:
            state = look_at(admin)
            self._silent = admin.silent
        live = [node for node in state.cluster.brokers.values() if node.broker_id not in state.silent]
        self.examined = {"brokers": len(live), "topics": len(state.cluster.topics), "partitions": len(state.partitions)}
        of_topics = self._topic_configs(state)
        min_insync = {name: int(config["min.insync.replicas"].value or 1) for name, config in of_topics.items()}
        yield from findings.of_brokers(state, min_insync)
        for node in live:
            yield from findings.of_denied_brokers(node.broker_id, self._denied_brokers(node))
        yield from findings.of_refused_writes(state, min_insync)
        yield from findings.of_partitions(state, lambda problem, broker: self._cause(state, problem, broker))
        yield from self._transactions(state, live)
        yield from self._groups()
        yield from self._log_dirs(live)
        yield from self._settings(state, live, of_topics)

    def _client(self, kind: type[_Client]) -> AbstractContextManager[_Client]:
        return cluster_client(kind, self._args, ends_where_locked=True, silent=self._silent)

    def _denied_brokers(self, node: Node) -> list[str]:
        """What a broker of this machine says of requests of brokers that its authorizer denies."""
        try:
            directory = directory_of_address((node.host, node.port), node, self._args.timeout)
            denied: list[str] = ask_broker(directory, "denied_brokers", self._args.timeout)
        except (MonitorError, OSError):
            return []
        return denied

    def _cause(self, state: ClusterState, problem: PartitionProblem, broker: int) -> Cause | None:
        """What the leader says, if it runs on this machine."""
        tp, timeout_s = problem.topic_partition, self._args.timeout
        leader = state.cluster.brokers.get(problem.partition.leader)
        if leader is None or leader.broker_id in state.silent:
            return None
        try:
            directory = directory_of_address((leader.host, leader.port), leader, timeout_s)
            explained = ask_broker(directory, "explain_isr", timeout_s, topic=tp.topic, partition=tp.partition)["value"]
        except (MonitorError, OSError):
            return None
        for replica in explained["replicas"]:
            if replica["broker_id"] == broker:
                passed_ms = replica["ms_since_caught_up"]
                since_ms = None if passed_ms is None else self._time.milliseconds() - passed_ms
                return Cause(replica["held_back_by"] or replica["rule"], since_ms, replica["is_in_isr"])
        return None

    def _transactions(self, state: ClusterState, live: Collection[Node]) -> Iterator[Finding]:
        led = [tp for tp, partition in state.partitions.items() if partition.leader in {n.broker_id for n in live}]
        with self._client(GroupClient) as client:
            ends = client.log_end_offsets(led)
            stable = client.listed_offsets(dict.fromkeys(led, -1), _READ_COMMITTED)
        held = []
        for tp in led:
            end, last_stable = ends[tp], stable[tp]
            if end.offset is None or last_stable.offset is None:
                self._not_examined(f"{tp}", KafkaError(end.problem or last_stable.problem or "no offset"))
            elif last_stable.offset < end.offset:
                held.append(tp)
        if not held:
            return
        longest_ms = _LONGEST_TRANSACTION_MS
        with self._client(TransactionClient) as producers:
            for leader in sorted({state.partitions[tp].leader for tp in held}):
                try:
                    limit = producers.broker_config(state.cluster.brokers[leader]).get("transaction.max.timeout.ms")
                except (OSError, ApiError) as error:
                    self._not_examined(f"the settings of broker {leader}", error)
                    continue
                if limit is not None and limit.value is not None:
                    longest_ms = max(longest_ms, int(limit.value))
            try:
                opened, errors = producers.open_transactions(held)
            except (OSError, ApiError) as error:
                self._not_examined("open transactions", error)
                return
        for tp, reason in errors.items():
            self._not_examined(f"the producers of {tp}", reason)
        # What comes after the first one of a partition waits for it.
        transactions = {transaction.topic_partition: transaction for transaction in reversed(opened)}.values()
        bootstrap = self._args.bootstrap
        yield from findings.of_transactions(transactions, self._time.milliseconds(), longest_ms, bootstrap)

    def _groups(self) -> Iterator[Finding]:
        with self._client(GroupClient) as client:
            listed, missing = client.list_groups()
            for broker, error in missing.items():
                self._not_examined(f"the groups of broker {broker}", error)
            groups = [*self._group_states(client, [group.group_id for group in listed])]
            before = [group.group_id for group in groups if group.state in findings.REBALANCES]
            if before:
                self._time.sleep(_REBALANCE_MS)
                again = {group.group_id: group for group in self._group_states(client, before)}
                groups = [again.get(group.group_id, group) for group in groups]
        self.examined["groups"] = len(groups)
        yield from findings.of_groups(groups, _REBALANCE_MS / 1000)

    def _group_states(self, client: GroupClient, names: Iterable[str]) -> Iterator[GroupState]:
        for name in names:
            try:
                group = client.describe_group(name)
                lags = [position.lag for position in positions_of(client, group)]
            except GroupIdNotFound:  # deleted meanwhile, or of the protocol of KIP-848
                continue
            except (OSError, ApiError) as error:
                self._not_examined(f"group {name}", error)
                continue
            yield GroupState(name, group.state, len(group.members), sum(lag for lag in lags if lag is not None))

    def _log_dirs(self, live: Iterable[Node]) -> Iterator[Finding]:
        number = 0
        with self._client(LogDirClient) as client:
            for node in live:
                try:
                    log_dirs = client.log_dirs(node)
                except (OSError, ApiError) as error:
                    self._not_examined(f"the data directories of broker {node.broker_id}", error)
                    continue
                number += len(log_dirs)
                yield from findings.of_log_dirs(node.broker_id, log_dirs)
        self.examined["directories"] = number

    def _topic_configs(self, state: ClusterState) -> Mapping[str, Mapping[str, ConfigValue]]:
        """By topic and setting; empty where they could not be had."""
        with self._client(ConfigClient) as client:
            try:
                return client.topic_configs(state.cluster.topics)
            except (OSError, ApiError) as error:
                self._not_examined("the settings of the topics", error)
                return {}

    def _settings(
        self, state: ClusterState, live: Collection[Node], of_topics: Mapping[str, Mapping[str, ConfigValue]]
    ) -> Iterator[Finding]:
        of_brokers = {}
        with self._client(ConfigClient) as client:
            for node in live:
                try:
                    resource = ConfigResource(ResourceKind.BROKER, str(node.broker_id))
                    of_brokers[node.broker_id] = client.settings(resource)
                except (OSError, ApiError) as error:
                    self._not_examined(f"the settings of broker {node.broker_id}", error)
        yield from findings.of_broker_settings(of_brokers)
        topics = []
        for name, config in of_topics.items():
            replicas = [len(partition.replicas) for partition in state.cluster.topics[name].partitions.values()]
            min_insync = config["min.insync.replicas"]
            if replicas:
                topics.append(
                    TopicSafety(
                        name,
                        state.cluster.topics[name].is_internal,
                        min(replicas),
                        int(min_insync.value or 1),
                        min_insync.is_own,
                        config["unclean.leader.election.enable"].value == "true",
                    )
                )
        yield from findings.of_topics(topics, [node.broker_id for node in live])


class DirectoryExamination(_Examination):
    def __init__(self, args: Arguments, time: Time = SYSTEM_TIME) -> None:
        super().__init__(args)
        self._time = time

    def findings(self) -> Iterator[Finding]:
        """Raises OSError, CorruptFile for a path that cannot be examined at all."""
        paths: list[str] = self._args.paths
        directories = []
        for path in paths:
            directories += (partitions := partitions_under(path))
            if not partitions:
                text = "no partitions here: no directory has a name as orders-0 (TOPIC-N) and segments in it; if there "
                text += "should be logs, name another one of the broker's log.dirs"
                print(printable(f"kcore: {path}: {text}"), file=sys.stderr)
        self.examined = {"directories": len(directories)}
        # First, since a start, which mends other findings, can make the damage worse.
        damaged: set[str] = set()
        for finding in self._damage(paths):
            damaged.add(finding[0])
            yield finding[1]
        for data_dir in dict.fromkeys(os.path.normpath(data_dir_of(path)) for path in paths):
            is_kcores = os.path.isfile(os.path.join(data_dir, METADATA_FILE))
            if lacks_meta_properties(data_dir):
                yield findings.of_missing_properties(data_dir, is_kcores=is_kcores)
            if directories and not is_held(data_dir) and not was_clean_shutdown(data_dir):
                yield findings.of_unclean_stop(data_dir, _last_written_ms(data_dir), is_kcores=is_kcores)
            usage = shutil.disk_usage(data_dir)
            yield from findings.of_disk(data_dir, usage.free, usage.total, "`kcore logdirs move` takes logs elsewhere")
        for directory in directories:
            yield from self._lost_records(directory)
            if directory not in damaged:
                yield from self._open_transactions(directory)

    def _damage(self, paths: Iterable[str]) -> Iterator[tuple[str, Finding]]:
        """With the directory of each."""
        summary = Summary()
        total = sum(log_files.size_of(file) for path in paths for file in log_files.files_under(path))
        progress = Progress("doctor", total, quiet=self._args.quiet or self._args.json)
        problems: dict[str, list[Problem]] = {}
        for path in paths:
            for problem in verify(path, summary, jobs=self._args.jobs, progress=progress):
                if problem.damage:
                    problems.setdefault(_directory_of(problem.path), []).append(problem)
        progress.clear()
        self.examined |= {"files": summary.files, "bytes": summary.bytes}
        for directory, found in problems.items():
            for problem in [
                problem for problem in found if os.path.basename(problem.path) == log_files.META_PROPERTIES_FILE
            ]:
                found.remove(problem)
                is_kcores = os.path.isfile(os.path.join(directory, METADATA_FILE))
                yield directory, findings.of_damaged_properties(directory, problem_text(problem), is_kcores=is_kcores)
            if not found:
                continue
            # The name of a file comes first: once it is right, much of the rest is.
            found.sort(key=lambda problem: (not problem.is_wrong_name, not problem.is_misplaced))
            yield (
                directory,
                findings.of_damage(
                    directory,
                    [*map(problem_text, found)],
                    only_gaps=all(problem.gaps for problem in found),
                    wrong_name=found[0].is_wrong_name,
                    misplaced=found[0].is_misplaced,
                    before_empty=found[-1].is_before_empty,
                ),
            )

    def _lost_records(self, directory: str) -> Iterator[Finding]:
        try:
            first = read_mark(directory)
        except (CorruptFile, OSError):  # verify has named it
            return
        if first is not None:
            since_ms = int(os.path.getmtime(os.path.join(directory, LOST_RECORDS_FILE)) * 1000)
            yield findings.of_lost_records(directory, first, since_ms)

    def _open_transactions(self, directory: str) -> Iterator[Finding]:
        try:
            with _without_log_lines(), open_log(directory) as log:
                explained = explain_lso(log)
        except (OSError, KafkaError) as error:
            self._not_examined(directory, error)
            return
        tp = TopicPartition(explained.topic, explained.partition)
        for held in explained.transactions[:1]:
            is_over = held.marker_offset is not None
            if not is_over and self._time.milliseconds() - held.last_timestamp > _LONGEST_TRANSACTION_MS:
                transaction = OpenTransaction(
                    tp, held.first_offset, held.producer_id, held.producer_epoch, -1, held.last_timestamp
                )
                yield findings.of_held_log(tp, transaction, directory)


def _directory_of(path: str) -> str:
    """The partition's or data directory of a problem's path.  Under the name of a file there may be a directory, which
    is none of these."""
    is_one = os.path.isdir(path) and log_files.kind_of(path) is None
    return path if is_one else os.path.dirname(path)


@contextmanager
def _without_log_lines() -> Iterator[None]:
    """What an opened log has to say of its files is not among the findings: those are verify's."""
    logger = logging.getLogger("kcore.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _last_written_ms(data_dir: str) -> int | None:
    """When the last checkpoint was written; None where there is none."""
    with os.scandir(data_dir) as entries:
        times = [entry.stat().st_mtime for entry in entries if entry.name.endswith("-checkpoint")]
    return int(max(times) * 1000) if times else None
