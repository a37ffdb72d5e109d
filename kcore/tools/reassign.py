"""`kcore reassign`: move partitions to other brokers, see how far that is, or stop it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

import click

from kcore.client.admin_client import AdminClient, Reassignment, preferred_assignment
from kcore.common.text import counted, json_line
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, NoReassignmentInProgress
from kcore.tools.cluster_command import (
    admin_client,
    broker_ids,
    cluster_options,
    error_text,
    ids_text,
    partitions,
    partitions_word,
    split_partitions,
    topics_of,
)
from kcore.tools.cluster_names import topic_names
from kcore.tools.command_line import DAMAGE, OK, Arguments, UsageError, positive
from kcore.tools.commands import command
from kcore.tools.reassign_throttle import Throttle, remove_throttle, throttled_topics

_POLL_MS = 200
#: How long after the end of a move the brokers' metadata may still show the replicas of before.
_STALE_MS = 5000


@command(
    example="kcore reassign orders --to 1,2,3 --wait",
    exactly_one_of=[("--to", "--status", "--cancel", "--unthrottle")],
    one_of=[("--dry-run", "--apply")],
)
@click.argument(
    "partitions",
    nargs=-1,
    type=partitions_word,
    shell_complete=topic_names,
    metavar="[TOPIC[:N[,N...]]]...",
    help="partitions; without numbers all of the topic",
)
@click.option(
    "--to",
    type=broker_ids,
    metavar="ID[,ID...]",
    help="the brokers that are to have the replicas.  With partition numbers the first one is the preferred leader; of "
    "a whole topic the brokers take turns",
)
@click.option("--status", is_flag=True, help="what is being moved; without TOPIC of all topics")
@click.option("--cancel", is_flag=True, help="restore the replicas from before the move; without TOPIC for all")
@click.option(
    "--unthrottle",
    is_flag=True,
    help="remove the throttle of a move that has ended: from TOPIC, with partition numbers of these partitions alone; "
    "and from all brokers once nothing is being moved",
)
@click.option(
    "--throttle",
    type=positive,
    metavar="BYTES",
    help="with --to: copy at most so many bytes a second to, and from, each broker; with --wait until all is moved, "
    "else until --unthrottle",
)
@click.option("--dry-run", is_flag=True, help="with --to: print what would be moved, and move nothing")
@click.option("--apply", "--execute", is_flag=True, help="begin the move: so it does without this option too")
@click.option("--wait", is_flag=True, help="with --to: wait until all is moved, or until Ctrl-C")
@cluster_options("one JSON object a line for each partition")
def run(args: Arguments) -> int:
    """0; 1 if a partition was refused, or ended elsewhere while we waited.  Raises UsageError, OSError, KafkaError."""
    if args.to is None and (args.dry_run or args.wait or args.throttle):
        raise UsageError("--dry-run, --wait and --throttle go with --to")
    with admin_client(args) as admin:
        if args.to is not None:
            return _move(admin, args)
        if args.unthrottle:
            return _unthrottle(admin, args)
        wanted = None
        if args.partitions:
            wanted = partitions(args.partitions, admin.describe_cluster(topics_of(args.partitions)))
        running = admin.reassignments(wanted)
        if args.status:
            _show_running(args, running)
            return OK
        results = admin.alter_reassignments(dict.fromkeys(running)) if running else {}
        if running:
            _name_old_throttles(admin, sorted({tp.topic for tp in running}), "the throttle stays")
    # One that ended in the meantime.
    left = {tp: None if isinstance(error, NoReassignmentInProgress) else error for tp, error in results.items()}
    return _show(args, left, {tp: _origin(running[tp]) for tp in left}, "goes back to")


def _move(admin: AdminClient, args: Arguments) -> int:
    if not args.partitions:
        raise UsageError("--to needs a TOPIC")
    cluster = admin.describe_cluster(topics_of(args.partitions))
    unknown = sorted(set(args.to) - set(cluster.brokers))
    if unknown:
        raise UsageError(f"broker {ids_text(unknown)} is not alive; alive: {ids_text(cluster.brokers)}")
    targets: dict[TopicPartition, Sequence[int]] = {}
    for word in args.partitions:
        _, numbers = split_partitions(word)
        for tp in partitions([word], cluster):
            targets[tp] = args.to if numbers else preferred_assignment(args.to, tp.partition)
    running = admin.reassignments(targets)
    there = {
        tp
        for tp, target in targets.items()
        if tp not in running and cluster.topics[tp.topic].partitions[tp.partition].replicas == tuple(target)
    }
    if not args.throttle and len(there) < len(targets):
        text = "the throttle of an earlier move is still there, and may slow this one down"
        _name_old_throttles(admin, topics_of(args.partitions), text)
    if args.dry_run:
        return _show(args, dict.fromkeys(targets), targets, "would move to", there)
    throttle = Throttle(admin, cluster)
    if args.throttle:
        moved = {tp: target for tp, target in targets.items() if tp not in there}
        present = {
            tp: running[tp].replicas if tp in running else cluster.topics[tp.topic].partitions[tp.partition].replicas
            for tp in moved
        }
        throttle.set(moved, present, args.throttle)
    try:
        # Also those that are there already: the metadata may be older than another's move.
        results = admin.alter_reassignments(targets)
    except ApiError as error:
        if not error.retriable:  # else the moves may have begun
            throttle.undo()
        raise
    status = _show(args, results, targets, "moves to", there)
    accepted = {tp: targets[tp] for tp, error in results.items() if error is None and tp not in there}
    if args.throttle and not args.json and accepted and not args.wait:
        print(f"throttled; when all is moved: kcore reassign {' '.join(args.partitions)} --unthrottle")
    if throttle.undo(accepted) and not accepted and not args.json:
        print("nothing moves: the throttles are as they were before")
    if not args.wait or not accepted:
        return status
    elsewhere = await_moves(admin, accepted)
    if args.throttle:
        _unthrottle(admin, args)
    for tp, replicas in sorted(elsewhere.items()):
        reason = f"it was cancelled or moved again: replicas {ids_text(replicas)}, not {ids_text(targets[tp])}"
        if args.json:
            fields = {"replicas": list(replicas), "error": f"NotMoved: {reason}"}
            print(json_line({"topic": tp.topic, "partition": tp.partition} | fields))
        else:
            print(f"{tp} is not moved: {reason}")
    if not args.json:
        print(f"{counted(len(accepted) - len(elsewhere), 'partition')} moved")
    return DAMAGE if elsewhere else status


def _name_old_throttles(admin: AdminClient, topics: Sequence[str], text: str) -> None:
    """Nothing else shows that a topic's replication is limited."""
    for topic in throttled_topics(admin, topics):
        print(
            f"{topic}: {text}; this removes it: kcore reassign {topic} --unthrottle",
            file=sys.stderr,
            flush=True,
        )


def _unthrottle(admin: AdminClient, args: Arguments) -> int:
    """After moves, or with --unthrottle.  Raises UsageError."""
    if not args.partitions:
        raise UsageError("--unthrottle needs a TOPIC")
    cluster = admin.describe_cluster(topics_of(args.partitions))
    partitions(args.partitions, cluster)  # refuses a partition that does not exist
    ended: dict[str, set[int] | None] = {}
    for name, numbers in map(split_partitions, args.partitions):
        others = ended.setdefault(name, set())
        ended[name] = {*others, *numbers} if numbers and others is not None else None
    if remove_throttle(admin, cluster, ended):
        text = "the throttle is removed"
    else:
        text = "partitions are still being moved: the brokers keep the rates of the throttle"
    if not args.json:
        print(text)
    return OK


def await_moves(
    admin: AdminClient, targets: Mapping[TopicPartition, Sequence[int]], time: Time = SYSTEM_TIME
) -> dict[TopicPartition, tuple[int, ...]]:
    """Wait until no partition moves to its target any more; the replicas of those that others took elsewhere.

    Raises UnknownTopicOrPartition once a topic is deleted: its move may never end.
    """
    waiting = dict(targets)
    elsewhere: dict[TopicPartition, tuple[int, ...]] = {}
    ended_ms: dict[TopicPartition, float] = {}
    while True:
        running = admin.reassignments(waiting)
        topics = admin.describe_cluster({tp.topic for tp in waiting}).topics
        now_ms = time.hi_res_clock_ms()
        for tp, target in list(waiting.items()):
            partition = topics[tp.topic].partitions.get(tp.partition)
            replicas = () if partition is None else partition.replicas
            if tp in running:
                ended_ms.pop(tp, None)
                if set(running[tp].target) == set(target):
                    continue
                elsewhere[tp] = running[tp].target
            elif replicas != tuple(target):
                if now_ms - ended_ms.setdefault(tp, now_ms) < _STALE_MS:
                    continue
                elsewhere[tp] = replicas
            del waiting[tp]
        if not waiting:
            return elsewhere
        time.sleep(_POLL_MS)


def _show(
    args: Arguments,
    results: Mapping[TopicPartition, ApiError | None],
    targets: Mapping[TopicPartition, Sequence[int]],
    verb: str,
    there: Collection[TopicPartition] = (),
) -> int:
    """there: those that need no move."""
    for tp, error in sorted(results.items()):
        if args.json:
            fields = {"replicas": list(targets[tp]), "error": error_text(error)}
            print(json_line({"topic": tp.topic, "partition": tp.partition} | fields), flush=True)
        elif error is None:
            replicas = ids_text(targets[tp])
            print(
                f"{tp} is on {replicas} already: nothing to do" if tp in there else f"{tp} {verb} {replicas}",
                flush=True,
            )
        else:
            print(f"{tp}: {error_text(error)}", flush=True)
    if not results and not args.json:
        print("nothing is being moved")
    return DAMAGE if any(results.values()) else OK


def _show_running(args: Arguments, running: Mapping[TopicPartition, Reassignment]) -> None:
    for tp, moving in running.items():
        if args.json:
            print(json_line({"topic": tp.topic, "partition": tp.partition} | moving._asdict()))
        else:
            adding, removing = ids_text(moving.adding), ids_text(moving.removing)
            print(f"{tp} moves to {ids_text(moving.target)}: adding {adding}, removing {removing}")
    if not running and not args.json:
        print("nothing is being moved")


def _origin(moving: Reassignment) -> list[int]:
    return [replica for replica in moving.replicas if replica not in moving.adding]
