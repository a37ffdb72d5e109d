"""`kcore topics`: list, describe, create, change and delete topics of a running cluster."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import click

from kcore.client.admin_client import AdminClient, Silence, TopicDescription, silence_text
from kcore.common.text import counted, json_line, nearest
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import (
    ApiError,
    InvalidTopicException,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.tools.cluster_command import (
    admin_client,
    broker_ids,
    cluster_options,
    ids_text,
    is_in_sync,
    leader_text,
    nearest_topic_of,
    one_topic,
    store_lock_of,
    topic_options,
)
from kcore.tools.cluster_names import topic_names
from kcore.tools.command_line import (
    DAMAGE,
    OK,
    USAGE,
    Arguments,
    UsageError,
    config_option,
    positive_int16,
    positive_int32,
    protocol_string,
)
from kcore.tools.commands import Group

#: How long brokers that are alive may take to delete a topic until that is said.
_DELETION_MS = 10_000
#: The same where only the cluster knows which brokers have the topic, so these may be dead.
_UNKNOWN_DELETION_MS = 2000
_POLL_MS = 100


topics = Group(
    "topics",
    status_1="a partition has no leader, or a replica that is not in sync or not available, or whose broker does not "
    "answer; the metadata store is locked; a deletion waits for brokers",
)


@topics.subcommand("list", "list the topics", example="kcore topics list --bootstrap localhost:9092")
@click.option("--internal", is_flag=True, help="also topics that the brokers keep for themselves")
@cluster_options("one JSON object a line for each topic")
def _run_list(args: Arguments) -> int:
    with admin_client(args, ends_where_locked=True) as admin:
        topics = admin.describe_cluster().topics
    for topic in topics.values():
        if args.internal or not topic.is_internal:
            print(json_line(_summary(topic)) if args.json else topic.name)
    return OK


def _summary(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else str(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


def _replication_factor(topic: TopicDescription) -> int:
    """Of a topic that is being moved, the largest."""
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _replicas_text(topic: TopicDescription) -> str:
    smallest = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
    largest = _replication_factor(topic)
    return f"{counted(largest, 'replica')} each" if smallest == largest else f"{smallest} to {largest} replicas"


@topics.subcommand(
    "describe",
    "show the leader, replicas and ISR of each partition, and the settings",
    example="kcore topics describe orders",
)
@click.argument(
    "topics",
    nargs=-1,
    type=protocol_string,
    shell_complete=topic_names,
    metavar="[TOPIC]...",
    help="default: all, internal ones too",
)
@click.option(
    "--topic",
    multiple=True,
    type=protocol_string,
    shell_complete=topic_names,
    metavar="TOPIC",
    help="the same, as kafka-topics.sh has it",
)
@cluster_options("one JSON object a line for each topic")
def _run_describe(args: Arguments) -> int:
    with admin_client(args, ends_where_locked=True) as admin:
        topics, deleted, missing = _described(admin, [*args.topics, *args.topic])
        configs = admin.topic_configs(topics) if topics else {}
        cluster = admin.describe_cluster(())
        hosts = set().union(*map(_replica_brokers, topics.values()))
        silences = admin.silent_brokers(node for broker, node in cluster.brokers.items() if broker in hosts)
    lock = store_lock_of(cluster, silences)
    for name, text in deleted.items():
        print(json_line({"topic": name, "is_being_deleted": True, "reason": text}) if args.json else f"{name}: {text}")
    for topic in topics.values():
        own = {key: entry.value for key, entry in sorted(configs.get(topic.name, {}).items()) if entry.is_own}
        if args.json:
            print(json_line(_description(topic, own, silences) | {"store_lock": lock}))
        else:
            print(*_description_lines(topic, own, silences), sep="\n")
    if not args.json:
        for broker, silence in silences.items():
            node = cluster.brokers[broker]
            print(f"broker {broker} at {silence_text((node.host, node.port), silence)}")
        if lock is not None:
            print(lock)
    for text in missing:
        print(f"kcore: {text}", file=sys.stderr)
    if missing:
        return USAGE
    are_in_sync = all(is_in_sync(partition) for topic in topics.values() for partition in topic.partitions.values())
    return OK if are_in_sync and not (deleted or silences or lock) else DAMAGE


def _description(topic: TopicDescription, own: Mapping[str, Any], silences: Mapping[int, Silence]) -> dict[str, Any]:
    silent = sorted(_replica_brokers(topic).intersection(silences))
    no_answer = [{"broker": broker, "reason": silences[broker].reason} for broker in silent]
    partitions = [{"partition": number} | partition._asdict() for number, partition in topic.partitions.items()]
    return _summary(topic) | {"config": own, "no_answer": no_answer, "partitions": partitions}


def _description_lines(
    topic: TopicDescription, own: Mapping[str, Any], silences: Mapping[int, Silence]
) -> Iterator[str]:
    settings = " ".join(f"{key}={value}" for key, value in own.items())
    yield (
        f"{topic.name}: {counted(len(topic.partitions), 'partition')}, "
        f"{_replicas_text(topic)}{', ' + settings if settings else ''}"
    )
    for number, partition in topic.partitions.items():
        silent = [replica for replica in partition.replicas if replica in silences]
        yield (
            f"  {number}: leader {leader_text(partition.leader)}, replicas {ids_text(partition.replicas)}, "
            f"ISR {ids_text(partition.isr)}"
            + (f", not available {ids_text(partition.offline)}" if partition.offline else "")
            + (f", no answer from {ids_text(silent)}" if silent else "")
        )


def _replica_brokers(topic: TopicDescription) -> set[int]:
    return {replica for partition in topic.partitions.values() for replica in partition.replicas}


#: Why one topic cannot be described and others can.
_OF_A_TOPIC = (UnknownTopicOrPartition, InvalidTopicException, TopicAuthorizationFailed)


def _described(
    admin: AdminClient, names: Sequence[str]
) -> tuple[Mapping[str, TopicDescription], dict[str, str], list[str]]:
    """These topics, all for none; of those that are being deleted, which the metadata do not have any more, what is
    known of that; and why each of the others cannot be described."""
    try:
        return admin.describe_cluster(names or None).topics, {}, []
    except _OF_A_TOPIC:
        if not names:
            raise
    topics: dict[str, TopicDescription] = {}
    deleted: dict[str, str] = {}
    missing = []
    for name in dict.fromkeys(names):
        try:
            topics |= admin.describe_cluster([name]).topics
        except UnknownTopicOrPartition as error:
            try:
                text = admin.waiting_deletion(name)
            except TopicAlreadyExists as reason:
                missing.append(str(reason))
                continue
            except ApiError:  # the user may not ask that either
                text = None
            if text is not None:
                deleted[name] = text
            else:
                missing.append(f"{error}{nearest_topic_of(admin, name)}")
        except _OF_A_TOPIC as error:
            missing.append(str(error))
    return topics, deleted, missing


def _assignment(text: str) -> list[tuple[int, ...]]:
    """Raises click.BadParameter."""
    return [broker_ids(part) for part in text.split(":")]


@topics.subcommand(
    "create",
    "create a topic",
    example="kcore topics create orders --partitions 6 --replicas 3 --config retention.ms=60000",
)
@topic_options()
@click.option("--partitions", type=positive_int32, metavar="N", help="default: num.partitions of the brokers")
@click.option(
    "--replicas",
    "--replication-factor",
    type=positive_int16,
    metavar="N",
    help="of each partition; default: default.replication.factor",
)
@click.option(
    "--assign",
    type=_assignment,
    metavar="ID,ID:ID,ID...",
    help="the brokers of each partition, the preferred leader first; instead of both numbers",
)
@config_option()
@click.option("--if-not-exists", is_flag=True, help="a topic that exists already is no error")
@cluster_options("one JSON object")
def _run_create(args: Arguments) -> int:
    if args.assign is not None and (args.partitions is not None or args.replicas is not None):
        raise UsageError("--assign goes without --partitions and --replicas")
    _check_named_once([name for name, _ in args.config])
    topic = one_topic(args)
    with admin_client(args) as admin:
        try:
            partitions, replicas = admin.create_topic(
                topic, args.partitions or -1, args.replicas or -1, args.assign, dict(args.config)
            )
            is_new = True
        except TopicAlreadyExists as error:
            if not args.if_not_exists:
                raise
            try:
                described = admin.describe_cluster([topic]).topics[topic]
            except UnknownTopicOrPartition:  # it is being deleted
                raise error from None
            partitions, replicas = len(described.partitions), _replication_factor(described)
            is_new = False
    if args.json:
        event = {"topic": topic, "partitions": partitions, "replication_factor": replicas}
        print(json_line(event | ({"is_new": is_new} if args.if_not_exists else {})))
    else:
        done = "is created" if is_new else "exists already"
        print(f"{topic} {done}: {counted(partitions, 'partition')}, {counted(replicas, 'replica')} each")
    return OK


@topics.subcommand(
    "alter",
    "add partitions to a topic, or change its settings",
    example="kcore topics alter orders --partitions 12 --config retention.ms=60000",
)
@topic_options()
@click.option("--partitions", type=positive_int32, metavar="N", help="how many there are to be")
@config_option()
@click.option(
    "--delete-config", type=protocol_string, multiple=True, metavar="NAME", help="take the brokers' value again"
)
@cluster_options("one JSON object")
def _run_alter(args: Arguments) -> int:
    _check_named_once([*(name for name, _ in args.config), *args.delete_config])
    changes: dict[str, str | None] = dict(args.config) | dict.fromkeys(args.delete_config)
    if args.partitions is None and not changes:
        raise UsageError("nothing to change: expected --partitions, --config or --delete-config")
    topic, unset = one_topic(args), []
    with admin_client(args) as admin:
        if args.delete_config:
            # Kafka's brokers answer the deletion of an unknown setting without an error.
            existing = admin.topic_configs([topic])[topic]
            for name in args.delete_config:
                if name not in existing:
                    raise UsageError(f"topics have no setting {name!r}{nearest(name, existing)}")
                if not existing[name].is_own:
                    unset.append(name)
                    del changes[name]
        if changes:
            admin.alter_topic_config(topic, changes)
        if args.partitions is not None:
            admin.create_partitions(topic, args.partitions)
    if args.json:
        print(json_line({"topic": topic, "partitions": args.partitions, "config": changes}))
        return OK
    for name in unset:
        print(f"{topic} has no value of its own for {name}: nothing to delete")
    if changes or args.partitions is not None:
        print(f"{topic} is changed")
    return OK


@topics.subcommand("delete", "delete a topic with its records", example="kcore topics delete orders")
@topic_options("one topic: its records are gone for good")
@cluster_options("one JSON object")
def _run_delete(args: Arguments) -> int:
    topic = one_topic(args)
    with admin_client(args) as admin:
        replicas = _replicas(admin, topic)
        admin.delete_topic(topic)
        is_deleted, dead = await_deletion(admin, topic, replicas)
        text = None
        if not is_deleted and not replicas:
            # Of a topic that has never had a leader, only the cluster knows the replicas.
            text = admin.waiting_deletion(topic)
            is_deleted = text is None
    if args.json:
        print(json_line({"topic": topic, "deleted": is_deleted, "waits_for_brokers": dead}))
    elif is_deleted:
        print(f"{topic} is deleted")
    elif dead:
        print(
            f"{topic} is being deleted: clients do not see it any more, but its deletion waits for "
            f"broker{'s' if len(dead) > 1 else ''} {ids_text(dead)}, not alive now, to delete "
            f"{'their' if len(dead) > 1 else 'its'} replicas; until then there can be no other topic of this name"
        )
    elif text is not None:
        print(text)
    else:
        print(
            f"{topic} is being deleted: clients do not see it any more, but brokers {ids_text(sorted(replicas))} "
            "have not all deleted their replicas yet; until then there can be no other topic of this name"
        )
    return OK if is_deleted else DAMAGE


def _replicas(admin: AdminClient, name: str) -> set[int]:
    """The brokers that have a topic; none if there is no such topic."""
    try:
        topic = admin.describe_cluster([name]).topics[name]
    except ApiError:
        return set()  # the deletion says why
    return _replica_brokers(topic)


def await_deletion(
    admin: AdminClient, name: str, replicas: Collection[int], time: Time = SYSTEM_TIME
) -> tuple[bool, list[int]]:
    """(whether a topic is gone that was on these brokers, the dead ones of them that its deletion waits for).  Without
    brokers, it is not known which ones have the topic.

    Asked once it has been ordered, until it has ended, a broker is dead, or has not been done after a while.  A broker
    is dead that does not answer: for its cluster it lives until its session ends.
    """
    deadline_ms = time.hi_res_clock_ms() + (_DELETION_MS if replicas else _UNKNOWN_DELETION_MS)
    while True:
        try:
            if admin.waiting_deletion(name) is None:
                return True, []
            is_known = True
        except ApiError:  # the user may not ask whether the name is free
            is_known = False
        alive = admin.describe_cluster(()).brokers
        silent = admin.silent_brokers(node for broker, node in alive.items() if broker in replicas)
        dead = sorted({*silent, *(set(replicas) - alive.keys())})
        if dead or not is_known:
            return not dead, dead
        if time.hi_res_clock_ms() >= deadline_ms:
            return False, []
        time.sleep(_POLL_MS)


def _check_named_once(settings: Sequence[str]) -> None:
    """Raises UsageError."""
    for name in settings:
        if settings.count(name) > 1:
            raise UsageError(f"the setting {name} is there more than once")
