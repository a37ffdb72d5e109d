"""What `kcore doctor` calls wrong: rules over what the clients and the checks of files have found.

Nothing here asks anybody or reads a file.  Each finding names the command that mends it, or that says more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kcore.client.config_client import ConfigSource, Setting
from kcore.client.log_dir_client import LogDir
from kcore.client.transaction_client import OpenTransaction
from kcore.common.text import bytes_of, counted, date_of, some_of
from kcore.common.topic_partition import TopicPartition
from kcore.tools.cluster import ClusterState, PartitionProblem
from kcore.tools.cluster_command import error_text, ids_text
from kcore.tools.monitored_broker import why_nobody_leads

#: A file system with less than this part of it free is full.
_FREE_SHARE = 0.05
#: Settings in which the brokers of one cluster differ.
_OWN_SETTINGS = {
    *("broker.id", "node.id", "broker.rack", "process.roles", "kcore.monitoring.address"),
    *("listeners", "advertised.listeners", "log.dir", "log.dirs", "metadata.log.dir", "host.name", "port"),
    *("advertised.host.name", "advertised.port", "listener.security.protocol.map"),
    # A move of one broker's replicas is limited on that broker.
    *("leader.replication.throttled.rate", "follower.replication.throttled.rate"),
    "replica.alter.log.dirs.io.max.bytes.per.second",
}


class Finding(NamedTuple):
    """kind: for programs.  what: is wrong.  mend: a command or what else to do.  since_ms: None where it is not
    known."""

    kind: str
    what: str
    mend: str
    since_ms: int | None = None

    def __str__(self) -> str:
        since = "" if self.since_ms is None else f", since {date_of(self.since_ms)}"
        return f"{self.what}{since}: {self.mend}"


class Cause(NamedTuple):
    """Why a replica is not in sync.  is_in_isr: the leader has it in the ISR; the metadata that were read are older."""

    text: str
    since_ms: int | None = None
    is_in_isr: bool = False


# -- a cluster --------------------------------------------------------------------------------------------------------


def of_brokers(state: ClusterState, min_insync: Mapping[str, int]) -> Iterator[Finding]:
    """min_insync: min.insync.replicas of the topics where it is known."""
    for number in state.brokers:
        reason = state.silent.get(number)
        if number not in state.cluster.brokers:
            has = counted(sum(number in partition.replicas for partition in state.partitions.values()), "replica")
            because = "" if reason is None else f"; {reason}"
            yield Finding(
                "broker_not_alive",
                f"broker {number} is not alive, and has {has}{because}",
                f"{state.to_continue.get(number, 'start it')}; if it does not come back, "
                f"{_without_broker(number, state, min_insync)}",
            )
        elif reason is not None:
            mend = state.to_continue.get(number, "`kcore cluster` asks it again")
            yield Finding("broker_silent", f"broker {number} does not answer: {reason}", mend)
    if state.cluster.controller_id < 0:
        yield Finding("no_controller", "no broker is the controller", "`kcore cluster`; a broker must reach the store")
    if state.store_lock is not None:
        yield Finding("store_locked", state.store_lock, "end that process, or let it release the file")


def _without_broker(number: int, state: ClusterState, min_insync: Mapping[str, int]) -> str:
    """What to do when the broker stays away."""
    live = state.cluster.brokers
    topics = dict.fromkeys(tp.topic for tp, partition in state.partitions.items() if number in partition.replicas)
    most = max(((min_insync.get(topic, 1), topic) for topic in topics), key=lambda found: found[0], default=(1, ""))
    if most[0] <= len(live):
        return f"`kcore reassign TOPIC --to {ids_text(live)}`"
    return (
        f"another broker must take its place: with {counted(len(live), 'broker')}, min.insync.replicas={most[0]} of "
        f"topic {most[1]} refuses acks=all"
    )


def of_denied_brokers(number: int, denied: Iterable[str]) -> Iterator[Finding]:
    for text in denied:
        yield Finding(
            "brokers_denied",
            f"broker {number}: {text}: what `kcore cluster` and clients see of the cluster may be old",
            "an ACL for CLUSTER_ACTION on the cluster, or super.users and a restart, lets them; then start the brokers "
            "one after the other, since a controller does not send again what was refused",
        )


def of_refused_writes(state: ClusterState, min_insync: Mapping[str, int]) -> Iterator[Finding]:
    """min_insync: as of_brokers().  Not those that no number of live brokers would mend (of_topics()), or that have no
    leader."""
    groups: dict[tuple[int, int, tuple[int, ...]], list[PartitionProblem]] = {}
    for problem in state.problems:
        partition = problem.partition
        needed = min_insync.get(problem.topic_partition.topic, 1)
        if partition.leader >= 0 and len(partition.isr) < needed <= len(partition.replicas):
            groups.setdefault((len(partition.isr), needed, problem.not_in_sync), []).append(problem)
    for (isr, needed, missing), problems in groups.items():
        first = problems[0].topic_partition
        away = [number for number in missing if number not in state.cluster.brokers or number in state.silent]
        steps = [state.to_continue.get(number, f"start broker {number}") for number in away]
        if len(away) < len(missing):
            steps.append(f"`kcore explain isr {shlex.quote(first.topic)} {first.partition}`")
        names = some_of([str(problem.topic_partition) for problem in problems])
        refuse = "refuses" if len(problems) == 1 else "refuse"
        yield Finding(
            "acks_all_refused",
            f"{counted(len(problems), 'partition')} {refuse} acks=all: ISR {isr}, min.insync.replicas {needed} "
            f"({names})",
            (" or " if needed - isr == 1 else " and ").join(steps),
        )


def of_partitions(state: ClusterState, cause_of: Callable[[PartitionProblem, int], Cause | None]) -> Iterator[Finding]:
    """cause_of(problem, broker): why a replica on a live broker is not in sync, as far as that is known."""
    groups: dict[tuple[int, ...], list[PartitionProblem]] = {}
    offline: dict[tuple[frozenset[int], frozenset[int]], list[PartitionProblem]] = {}
    for problem in state.problems:
        if problem.is_offline:
            key = (frozenset(problem.partition.replicas), frozenset(problem.partition.isr))
            offline.setdefault(key, []).append(problem)
        else:
            groups.setdefault((problem.partition.leader, *problem.not_in_sync), []).append(problem)
    for of_group in offline.values():
        first, partition = of_group[0].topic_partition, of_group[0].partition
        what = why_nobody_leads(first, partition, state.cluster)
        if len(of_group) > 1:
            names = some_of([str(problem.topic_partition) for problem in of_group])
            what = f"{counted(len(of_group), 'partition')} of the same brokers without a leader ({names}): {what}"
        needed = sorted(partition.isr or partition.replicas)
        start = f"start broker {needed[0]}" if len(needed) == 1 else f"start one of the brokers {ids_text(needed)}"
        yield Finding("no_leader", what, start)
    for (leader, *missing), of_group in groups.items():
        for number in missing:
            is_away = number not in state.cluster.brokers or number in state.silent
            problems, cause = (of_group, None) if is_away else _not_joined(of_group, number, cause_of)
            if not problems:
                continue
            names = some_of([str(problem.topic_partition) for problem in problems])
            first = problems[0].topic_partition
            what = f"{counted(len(problems), 'partition')} led by broker {leader} without broker {number} in the ISR"
            if is_away:
                away = "not alive" if number not in state.cluster.brokers else "silent"
                mend = state.to_continue.get(number, f"start broker {number}")
                yield Finding("under_replicated", f"{what}, which is {away} ({names})", mend)
                continue
            yield Finding(
                "under_replicated",
                f"{what} ({names})" + ("" if cause is None else f": {cause.text}"),
                f"`kcore explain isr {shlex.quote(first.topic)} {first.partition}`",
                None if cause is None else cause.since_ms,
            )


def _not_joined(
    problems: list[PartitionProblem], number: int, cause_of: Callable[[PartitionProblem, int], Cause | None]
) -> tuple[list[PartitionProblem], Cause | None]:
    """Those that lack the broker still, and why the first of them does.  Only where a broker has just joined one, the
    leader is asked about each."""
    first = cause_of(problems[0], number)
    if first is None or not first.is_in_isr:
        return problems, first
    left = [(problem, cause_of(problem, number)) for problem in problems[1:]]
    left = [(problem, cause) for problem, cause in left if cause is None or not cause.is_in_isr]
    return [problem for problem, _ in left], left[0][1] if left else None


def of_transactions(
    transactions: Iterable[OpenTransaction], now_ms: int, longest_ms: int, bootstrap: str
) -> Iterator[Finding]:
    """Those that hold back the last stable offset for longer than a transaction may last."""
    for transaction in transactions:
        if now_ms - transaction.last_timestamp <= longest_ms:
            continue
        tp = transaction.topic_partition
        partition = shlex.quote(f"{tp.topic}:{tp.partition}")
        yield Finding(
            "transaction_open",
            f"{tp}: read_committed consumers stop at offset {transaction.start_offset}: the transaction of producer "
            f"{transaction.producer_id}, epoch {transaction.producer_epoch}, is open",
            f"`kcore explain lso {shlex.quote(tp.topic)} {tp.partition}`; "
            f"`kcore txns abort {partition} --start-offset {transaction.start_offset} "
            f"--bootstrap {bootstrap} --apply` ends it",
            transaction.last_timestamp,
        )


class GroupState(NamedTuple):
    """lag: the sum over the partitions where it is known."""

    group_id: str
    state: str
    members: int
    lag: int


#: While a group is in one of them, its members get no partitions.
REBALANCES = ("PreparingRebalance", "CompletingRebalance")


def of_groups(groups: Iterable[GroupState], waited_s: float) -> Iterator[Finding]:
    """Those that are in a rebalance were in one so many seconds ago."""
    for group in groups:
        name = shlex.quote(group.group_id)
        if group.state in REBALANCES:
            yield Finding(
                "group_rebalancing",
                f"group {group.group_id} is in a rebalance ({group.state}, {counted(group.members, 'member')}) for "
                f"{waited_s:g} s at least",
                f"`kcore groups describe {name}` names the members: one of them may not call poll()",
            )
        elif group.members == 0 and group.lag > 0:
            yield Finding(
                "group_without_members",
                f"group {group.group_id} has no members, and a lag of {counted(group.lag, 'offset')}",
                f"start its consumers; if nobody needs it, `kcore groups delete {name}`",
            )


def of_log_dirs(broker: int, log_dirs: Collection[LogDir]) -> Iterator[Finding]:
    for log_dir in log_dirs:
        if log_dir.error is not None:
            yield Finding(
                "log_dir_offline",
                f"broker {broker}: {log_dir.path} is offline: {error_text(log_dir.error)}",
                "mend or replace the disk, and start the broker again",
            )
        elif log_dir.total_bytes and log_dir.usable_bytes is not None:
            more = f"`kcore logdirs list --broker {broker}`"
            if len(log_dirs) > 1:
                more += ", `kcore logdirs move TOPIC:N --to DIR`"
            yield from of_disk(f"broker {broker}: {log_dir.path}", log_dir.usable_bytes, log_dir.total_bytes, more)


def of_disk(place: str, free: int, total: int, mend: str) -> Iterator[Finding]:
    if free < _FREE_SHARE * total:
        what = f"{place} has {bytes_of(free)} of {bytes_of(total)} free"
        yield Finding("disk_full", what, f"{mend}; less retention.ms or retention.bytes frees space")


def of_broker_settings(settings: Mapping[int, Mapping[str, Setting]]) -> Iterator[Finding]:
    """settings: of each broker, by name.  Only what all of them have is compared."""
    if len(settings) < 2:
        return
    common = set.intersection(*(set(of_broker) for of_broker in settings.values()))
    for name in sorted(common - _OWN_SETTINGS):
        found = {number: of_broker[name] for number, of_broker in settings.items()}
        if name.startswith("listener.name.") or any(setting.is_sensitive for setting in found.values()):
            continue
        brokers: dict[str, list[int]] = {}
        for number, setting in found.items():
            brokers.setdefault(str(setting.value), []).append(number)
        if len(brokers) < 2:
            continue
        values = ", ".join(f"{value or 'nothing'} on {ids_text(numbers)}" for value, numbers in brokers.items())
        own = [number for number, setting in found.items() if setting.source is ConfigSource.BROKER]
        if own:
            mend = f"`kcore configs unset --broker {own[0]} {name} --apply`"
        elif all(setting.is_read_only for setting in found.values()):
            mend = "give all brokers the same value, and start them again"
        else:
            mend = f"`kcore configs set --default {name}=VALUE --apply`"
        yield Finding("settings_differ", f"the brokers differ in {name}: {values}", mend)


class TopicSafety(NamedTuple):
    """replicas: of the partition that has the fewest.  is_min_insync_own: min.insync.replicas was set for the topic."""

    topic: str
    is_internal: bool
    replicas: int
    min_insync_replicas: int
    is_min_insync_own: bool
    unclean_elections: bool


def of_topics(topics: Iterable[TopicSafety], brokers: Collection[int]) -> Iterator[Finding]:
    """brokers: those that are alive."""
    kinds: dict[str, list[str]] = {}
    for topic in topics:
        for kind in _unwise(topic, len(brokers)):
            kinds.setdefault(kind, []).append(topic.topic)
    for kind, names in kinds.items():
        what, mend = _ADVICE[kind]
        noun = "topic" if len(names) == 1 else "topics"
        topic_name = shlex.quote(names[0]) if len(names) == 1 else "TOPIC"
        yield Finding(
            kind, f"{noun} {some_of(names)}: {what}", mend.format(topic=topic_name, brokers=ids_text(brokers))
        )


def _unwise(topic: TopicSafety, brokers: int) -> Iterator[str]:
    if topic.min_insync_replicas > topic.replicas:
        yield "min_insync_impossible"
    elif topic.min_insync_replicas == topic.replicas > 1:
        yield "min_insync_all"
    elif topic.min_insync_replicas == 1 and topic.replicas > 2 and topic.is_min_insync_own and not topic.is_internal:
        yield "min_insync_one"
    if topic.replicas == 1 and brokers > 1:
        yield "one_replica"
    if topic.unclean_elections and topic.replicas > 1:
        yield "unclean_elections"


_ADVICE = {
    "min_insync_impossible": (
        "min.insync.replicas is above the number of replicas, so acks=all is always refused",
        # Not `unset`: the value may be that of the brokers' settings.
        "`kcore configs set --topic {topic} min.insync.replicas=N --apply` with N at most the number of replicas, or "
        "more replicas with `kcore reassign`",
    ),
    "min_insync_all": (
        "min.insync.replicas is the number of replicas, so acks=all is refused as soon as one broker is away",
        "`kcore configs set --topic {topic} min.insync.replicas=N --apply` with a lower N, or more replicas",
    ),
    "min_insync_one": (
        "min.insync.replicas is set to 1, so the only copy of a record that acks=all acknowledged may be on one broker",
        "`kcore configs set --topic {topic} min.insync.replicas=2 --apply`",
    ),
    "one_replica": (
        "one replica, so records are away or lost with its broker",
        "`kcore reassign {topic} --to {brokers}`",
    ),
    "unclean_elections": (
        "unclean.leader.election.enable is true, so an election may lose acknowledged records",
        "`kcore configs set --topic {topic} unclean.leader.election.enable=false --apply`",
    ),
}


# -- a directory ------------------------------------------------------------------------------------------------------


def of_damage(
    directory: str,
    problems: Collection[str],
    *,
    only_gaps: bool = False,
    wrong_name: bool = False,
    misplaced: bool = False,
    before_empty: bool = False,
) -> Finding:
    """problems: of one partition, or of the small files of a data directory, as `kcore verify` names them.  only_gaps:
    all of them are offsets that no file here has.  wrong_name: the first one is of a file's name.  misplaced: the
    first one is of a segment that is not one of the log.  before_empty: the files after the last gap are empty."""
    first, *others = problems
    more = f", and {counted(len(others), 'damaged place')} more" if others else ""
    quoted = shlex.quote(directory)
    mend = f"`kcore repair {quoted}`"
    if only_gaps:
        mend = (
            "no repair brings these records back: copy the segment from a backup or from another replica, or delete "
            "this replica while another broker leads the partition, and its broker copies it anew"
        )
        if before_empty:
            mend = f"move what is empty and not of this log away; if it is of it, {mend}"
    elif misplaced:
        mend += ", before a broker starts on it"
    elif wrong_name:
        mend = f"no repair changes this log until you rename the file or move it away; then `kcore verify {quoted}`"
    return Finding("damage", f"{first}{more}", mend)


def of_unclean_stop(data_dir: str, last_written_ms: int | None, *, is_kcores: bool) -> Finding:
    """is_kcores: a kcore broker alone has the topics of the directory, so one can be started on it."""
    recovers = f"`kcore serve --data {shlex.quote(data_dir)}`" if is_kcores else "the broker that it belongs to"
    return Finding(
        "unclean_stop",
        f"{data_dir} has no marker of a clean stop (its broker was killed, or this is a copy of a part of a "
        "directory), so the ends of its logs may not be checked yet",
        f"{recovers} recovers them at its start",
        last_written_ms,
    )


def of_missing_properties(data_dir: str, *, is_kcores: bool) -> Finding:
    """is_kcores: as of_unclean_stop()."""
    starts = f"`kcore serve --data {shlex.quote(data_dir)}`" if is_kcores else "the broker that it belongs to"
    mend = f"{starts} writes it anew at its start"
    if not is_kcores:
        mend += ", with the broker.id of its settings; a broker with KRaft needs `kafka-storage.sh format` before"
    return Finding(
        "no_meta_properties",
        f"{data_dir} has no meta.properties, though a broker has used it: nothing in it says which broker's it is",
        mend,
    )


def of_damaged_properties(data_dir: str, problem: str, *, is_kcores: bool) -> Finding:
    """problem: as `kcore verify` names it.  is_kcores: as of_unclean_stop()."""
    mend = f"`kcore serve --data {shlex.quote(data_dir)}` keeps it under another name, and writes it anew at its start"
    if not is_kcores:
        mend = (
            "the broker that it belongs to, if it is one of kcore, keeps it under another name, and writes it anew at "
            "its start, with the broker.id of its settings; for one of Kafka write it with the ids that it had"
        )
    return Finding("damage", problem, mend)


def of_lost_records(directory: str, first_lost_offset: int, since_ms: int | None) -> Finding:
    return Finding(
        "lost_records",
        f"{directory}: records from offset {first_lost_offset} on are missing, or may be",
        "start its broker: it copies them from the leader; the only replica cannot get them back",
        since_ms,
    )


def of_held_log(tp: TopicPartition, transaction: OpenTransaction, directory: str) -> Finding:
    return Finding(
        "transaction_open",
        f"{tp}: read_committed consumers stop at offset {transaction.start_offset}: the transaction of producer "
        f"{transaction.producer_id}, epoch {transaction.producer_epoch}, is open",
        f"`kcore explain lso --dir {shlex.quote(directory)}`; start its broker: the coordinator ends it",
        transaction.last_timestamp,
    )
