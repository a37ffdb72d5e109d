"""`kcore logdirs`: what the data directories of brokers hold, and moves of logs between those of one broker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from kcore.client.admin_client import ClusterDescription, Node
from kcore.client.log_dir_client import LogDir, LogDirClient, Replica
from kcore.common.progress import Progress
from kcore.common.text import bytes_of, counted, json_line, nearest, plain_error, printable
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.tools.cluster_command import (
    apply_option,
    broker_ids,
    client_and_errors,
    cluster_client,
    cluster_options,
    error_text,
    ids_text,
    partitions,
    partitions_word,
    topics_of,
)
from kcore.tools.cluster_names import broker_ids_of_cluster, topic_names
from kcore.tools.command_line import (
    DAMAGE,
    OK,
    USAGE,
    Arguments,
    Decorator,
    UsageError,
    broker_id,
    protocol_string,
    quiet_option,
)
from kcore.tools.commands import Group

_POLL_MS = 200

logdirs = Group("logdirs", status_1="a data directory is offline; a log was not moved")


def _partitions_argument(*, required: bool) -> Decorator:
    return click.argument(
        "partitions",
        nargs=-1,
        required=required,
        type=partitions_word,
        shell_complete=topic_names,
        metavar="TOPIC[:N[,N...]]..." if required else "[TOPIC[:N[,N...]]]...",
        help="partitions; without numbers all of the topic",
    )


# -- list -------------------------------------------------------------------------------------------------------------


@logdirs.subcommand(
    "list",
    "show the data directories of the brokers, their sizes, and moves between them",
    example="kcore logdirs list --broker 1",
)
@_partitions_argument(required=False)
@click.option(
    "--broker",
    "--broker-list",
    type=broker_ids,
    shell_complete=broker_ids_of_cluster,
    metavar="ID[,ID...]",
    help="only of these brokers",
)
@click.option(
    "--topic-list",
    type=lambda text: [partitions_word(name) for name in text.split(",")],
    default="",
    metavar="TOPIC[,...]",
    help="as kafka-log-dirs.sh has it, as the arguments",
)
@click.option("--partitions", "with_partitions", is_flag=True, help="a line for each partition, not for each topic")
@cluster_options("one JSON object a line for each data directory")
def _run_list(args: Arguments) -> int:
    """0; 1 if a directory is offline; 2 if a broker could not be asked.  Raises UsageError, OSError, KafkaError."""
    words = [*args.partitions, *(word for word in args.topic_list if word)]
    with client_and_errors(LogDirClient, args, ends_where_locked=True) as (client, errors):
        cluster = client.describe_cluster(topics_of(words))
        wanted = set(partitions(words, cluster)) if words else None
        unknown = sorted(set(args.broker or ()) - set(cluster.brokers))
        if unknown:
            raise UsageError(f"broker {ids_text(unknown)} is not alive; alive: {ids_text(cluster.brokers)}")
        status = OK
        for number in sorted(args.broker or cluster.brokers):
            try:
                log_dirs = client.log_dirs(cluster.brokers[number])
            except (OSError, ApiError) as error:
                errors.print(f"broker {number}: {plain_error(error)}")
                status = USAGE
                continue
            _print_broker(args, number, [_filtered(log_dir, wanted) for log_dir in log_dirs])
            if status == OK and any(log_dir.error is not None for log_dir in log_dirs):
                status = DAMAGE
    return status


def _filtered(log_dir: LogDir, wanted: Collection[TopicPartition] | None) -> LogDir:
    if wanted is None:
        return log_dir
    return log_dir._replace(replicas=tuple(r for r in log_dir.replicas if r.topic_partition in wanted))


def _print_broker(args: Arguments, number: int, log_dirs: Sequence[LogDir]) -> None:
    if args.json:
        for log_dir in log_dirs:
            print(json_line({"broker": number} | _dir_fields(log_dir)))
        return
    print(f"broker {number}:")
    for log_dir in log_dirs:
        print(printable(f"  {_dir_text(log_dir)}"))
        for line in _replica_lines(log_dir.replicas, each=args.with_partitions):
            print(printable(f"    {line}"))


def _dir_fields(log_dir: LogDir) -> dict[str, Any]:
    return {
        "log_dir": log_dir.path,
        "error": error_text(log_dir.error),
        "size": sum(replica.size for replica in log_dir.replicas),
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.usable_bytes,
        "partitions": [
            {
                "topic": replica.topic_partition.topic,
                "partition": replica.topic_partition.partition,
                "size": replica.size,
                "offset_lag": replica.offset_lag,
                "is_future": replica.is_future,
            }
            for replica in log_dir.replicas
        ],
    }


def _dir_text(log_dir: LogDir) -> str:
    if log_dir.error is not None:
        return f"{log_dir.path}: offline, {error_text(log_dir.error)}"
    text = f"{log_dir.path}: {_size_text(log_dir.replicas)}"
    if log_dir.usable_bytes is not None and log_dir.total_bytes is not None:
        text += f"; {bytes_of(log_dir.usable_bytes)} of {bytes_of(log_dir.total_bytes)} free"
    return text


def _size_text(replicas: Collection[Replica]) -> str:
    return f"{bytes_of(sum(replica.size for replica in replicas))} in {counted(len(replicas), 'partition')}"


def _replica_lines(replicas: Sequence[Replica], *, each: bool) -> Iterable[str]:
    """A line for each topic, or for each partition; future replicas, and those that lack records, have one anyway."""
    topics: dict[str, list[Replica]] = {}
    for replica in replicas:
        topics.setdefault(replica.topic_partition.topic, []).append(replica)
    for topic, its_replicas in topics.items():
        current = [replica for replica in its_replicas if not replica.is_future]
        if current and not each:
            yield f"{topic}: {_size_text(current)}"
        for replica in its_replicas:
            text = f"{replica.topic_partition}: {bytes_of(replica.size)}"
            behind = "" if replica.offset_lag < 0 else f", {counted(replica.offset_lag, 'offset')} behind"
            if replica.is_future:
                yield f"{text}, is being moved here{behind}"
            elif each or replica.offset_lag > 0:
                yield f"{text}{behind if replica.offset_lag > 0 else ''}"


# -- move -------------------------------------------------------------------------------------------------------------


class _Move(NamedTuple):
    """source: None where the broker has no log of the partition.  target: where it is, or is being moved to."""

    topic_partition: TopicPartition
    source: str | None
    target: str | None
    size: int


@logdirs.subcommand(
    "move",
    "say which logs would be moved to another data directory of their broker; with --apply, move them",
    example="kcore logdirs move orders:0 --to /data/b --apply --wait",
)
@_partitions_argument(required=True)
@click.option(
    "--to", type=protocol_string, required=True, metavar="DIR", help="the data directory, as the broker names it"
)
@click.option(
    "--broker",
    type=broker_id,
    shell_complete=broker_ids_of_cluster,
    metavar="ID",
    help="whose replicas; needed where several brokers have one",
)
@apply_option()
@click.option(
    "--wait", is_flag=True, help="with --apply: until all is moved, or until Ctrl-C, with the progress on stderr"
)
@quiet_option()
@cluster_options("one JSON object a line for each partition")
def _run_move(args: Arguments) -> int:
    """0; 1 if a log was not moved.  Raises UsageError, OSError, KafkaError."""
    if args.wait and not args.apply:
        raise UsageError("--wait goes with --apply")
    with cluster_client(LogDirClient, args) as client:
        cluster = client.describe_cluster(topics_of(args.partitions))
        tps = partitions(args.partitions, cluster)
        node = _broker(args, cluster, tps)
        moves = _plan(args.to, node, client.log_dirs(node), tps)
        needed = [move.topic_partition for move in moves if move.target != args.to]
        errors = client.move_logs(node, needed, args.to) if args.apply and needed else {}
        _show(args, node, moves, errors)
        failed = {tp for tp, error in errors.items() if error is not None}
        # Also those that were on the way before.
        moving = [m for m in moves if m.topic_partition not in failed and (m.source, m.target) != (args.to, args.to)]
        begun = {move.topic_partition for move in moving}
        elsewhere: Mapping[TopicPartition, str] = {}
        if args.wait and begun:
            total = sum(move.size for move in moving)
            progress = Progress("move", total, quiet=args.quiet or args.json)
            elsewhere = await_moves(client, node, begun, args.to, progress)
            progress.clear()
            _show_ends(args, node, begun, elsewhere)
    return DAMAGE if elsewhere or failed else OK


def _broker(args: Arguments, cluster: ClusterDescription, tps: Iterable[TopicPartition]) -> Node:
    """Whose logs are to move.  Raises UsageError."""
    replicas = {tp: cluster.topics[tp.topic].partitions[tp.partition].replicas for tp in tps}
    having = sorted({replica for its_replicas in replicas.values() for replica in its_replicas})
    number = args.broker
    if number is None:
        if len(having) != 1:
            raise UsageError(f"whose replicas? Brokers {ids_text(having)} have some: expected --broker ID")
        (number,) = having
    if number not in cluster.brokers:
        raise UsageError(f"broker {number} is not alive; alive: {ids_text(cluster.brokers)}")
    for tp, its_replicas in replicas.items():
        if number not in its_replicas:
            raise UsageError(f"broker {number} has no replica of {tp}, {ids_text(its_replicas)} have")
    return cluster.brokers[number]


def _plan(path: str, node: Node, log_dirs: Sequence[LogDir], tps: Iterable[TopicPartition]) -> list[_Move]:
    """Raises UsageError where the directory is none of the broker's, is offline, or lacks the space."""
    directories = {log_dir.path: log_dir for log_dir in log_dirs}
    target = directories.get(path)
    if target is None:
        known = ", ".join(directories)
        raise UsageError(
            f"{path} is no data directory of broker {node.broker_id}, it has {known}{nearest(path, directories)}"
        )
    if target.error is not None:
        raise UsageError(f"{path} is offline: {error_text(target.error)}; the broker's log says why")
    sources = {
        r.topic_partition: (log_dir.path, r.size) for log_dir in log_dirs for r in log_dir.replicas if not r.is_future
    }
    moving = {r.topic_partition: log_dir.path for log_dir in log_dirs for r in log_dir.replicas if r.is_future}
    moves = []
    for tp in tps:
        source, size = sources.get(tp, (None, 0))
        moves.append(_Move(tp, source, moving.get(tp, source), size))
    needed_bytes = sum(move.size for move in moves if path not in (move.source, move.target))
    if target.usable_bytes is not None and needed_bytes > target.usable_bytes:
        raise UsageError(
            f"{path} has {bytes_of(target.usable_bytes)} free, and the logs need {bytes_of(needed_bytes)}: "
            "a move copies a log before it deletes it"
        )
    return moves


def _show(
    args: Arguments, node: Node, moves: Sequence[_Move], errors: Mapping[TopicPartition, ApiError | None]
) -> None:
    if args.json:
        for move in moves:
            tp = move.topic_partition
            fields = {"topic": tp.topic, "partition": tp.partition, "broker": node.broker_id, "source": move.source}
            fields |= {"target": args.to, "size": move.size, "applied": tp in errors and errors[tp] is None}
            print(json_line(fields | {"problem": error_text(errors.get(tp))}), flush=True)
        return
    begun = sum(move.target != args.to and errors.get(move.topic_partition) is None for move in moves)
    moving = "moves" if begun == 1 else "move"
    done = moving if args.apply else "would move; --apply moves them"
    print(f"broker {node.broker_id}: {counted(begun, 'log')} {done}")
    for move in moves:
        tp = move.topic_partition
        error = errors.get(tp)
        if error is not None:
            text = f"not moved: {error_text(error)}"
        elif move.target != args.to:
            text = f"{move.source} -> {args.to}, {bytes_of(move.size)}"
        else:
            where = "is there already" if move.source == args.to else "is on the way there already"
            text = f"{where}: nothing to do"
        print(printable(f"  {tp}: {text}"), flush=True)


def await_moves(
    client: LogDirClient,
    node: Node,
    tps: Collection[TopicPartition],
    path: str,
    progress: Progress,
    time: Time = SYSTEM_TIME,
) -> dict[TopicPartition, str]:
    """Wait until no log is being moved to that directory any more: where those are that are not there then."""
    while True:
        replicas = [(log_dir.path, replica) for log_dir in client.log_dirs(node) for replica in log_dir.replicas]
        replicas = [(directory, replica) for directory, replica in replicas if replica.topic_partition in tps]
        copied = sum(replica.size for directory, replica in replicas if directory == path)
        progress.advance(copied - int(progress.done))
        progress.show()
        if not any(replica.is_future and directory == path for directory, replica in replicas):
            current = {replica.topic_partition: directory for directory, replica in replicas if not replica.is_future}
            return {tp: current.get(tp, "no directory") for tp in sorted(tps) if current.get(tp) != path}
        time.sleep(_POLL_MS)


def _show_ends(
    args: Arguments, node: Node, begun: Collection[TopicPartition], elsewhere: Mapping[TopicPartition, str]
) -> None:
    for tp, path in elsewhere.items():
        reason = f"it was cancelled or moved again: it is in {path}"
        if args.json:
            fields = {"topic": tp.topic, "partition": tp.partition, "broker": node.broker_id, "source": path}
            fields |= {"target": args.to, "size": None, "applied": False}
            print(json_line(fields | {"problem": f"NotMoved: {reason}"}))
        else:
            print(printable(f"{tp} is not moved: {reason}"))
    if not args.json:
        print(f"{counted(len(begun) - len(elsewhere), 'log')} moved")
