"""`kcore groups reset`: move the committed offsets of a consumer group; without --apply say where to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple

import click

from kcore.client.group_client import LATEST, GroupClient, GroupDescription
from kcore.common.text import counted, json_line, nearest, printable
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, GroupIdNotFound, NonEmptyGroup, UnknownTopicOrPartition
from kcore.tools.cluster_command import (
    cluster_options,
    error_text,
    group_client,
    members_text,
    partitions,
    partitions_word,
    topics_of,
)
from kcore.tools.cluster_names import group_ids, topic_names
from kcore.tools.command_line import DAMAGE, OK, USAGE, Arguments, UsageError, protocol_string
from kcore.tools.commands import command
from kcore.tools.offset_places import TIME_HELP, Place, listed, log_starts, offsets_of, place, time_ms


class _Move(NamedTuple):
    """What is to be done with one partition.  old: None where nothing is committed; new: None where nothing can be
    done, because of problem; note: why new is not what was asked for."""

    topic_partition: TopicPartition
    old: int | None
    new: int | None
    log_start: int
    log_end: int
    note: str | None = None

    @property
    def is_change(self) -> bool:
        return self.new is not None and self.new != self.old


def _offset(text: str) -> Place:
    """Raises click.BadParameter."""
    if (found := place(text)).offset is None:
        raise click.BadParameter(f"{text!r}: expected an offset")
    return found


def _datetime(text: str) -> Place:
    """Raises click.BadParameter."""
    try:
        return Place(timestamp=time_ms(text))
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected {TIME_HELP}") from None


@command(
    example="kcore groups reset billing --topic orders --to -1h",
    exactly_one_of=[
        ("--topic", "--all-topics"),
        ("--to", "--by", "--to-earliest", "--to-latest", "--to-offset", "--to-datetime"),
    ],
)
@click.argument("group", required=False, type=protocol_string, shell_complete=group_ids, metavar="[GROUP]")
@click.option(
    "--group",
    "named_group",
    type=protocol_string,
    shell_complete=group_ids,
    metavar="GROUP",
    help="the same, as kafka-consumer-groups.sh has it; so are --to-earliest, --to-latest, --to-offset, --to-datetime, "
    "--shift-by and --execute",
)
@click.option(
    "--topic",
    type=partitions_word,
    shell_complete=topic_names,
    multiple=True,
    metavar="TOPIC[:N[,N...]]",
    help="all partitions of the topic, or these; repeatable",
)
@click.option("--all-topics", is_flag=True, help="every partition for which the group has committed an offset")
@click.option(
    "--to",
    type=place,
    metavar="PLACE",
    help=f"earliest, latest, an offset, or the first record at or after {TIME_HELP}",
)
@click.option("--to-earliest", "to", flag_value="earliest", type=place, hidden=True)
@click.option("--to-latest", "to", flag_value="latest", type=place, hidden=True)
@click.option("--to-offset", type=_offset, metavar="N", hidden=True)
@click.option("--to-datetime", type=_datetime, metavar="TIME", hidden=True)
@click.option("--by", "--shift-by", type=int, metavar="N", help="so many offsets forward, or back if it is negative")
@click.option(
    "--apply",
    "--execute",
    is_flag=True,
    help="do it; without, only the plan is printed.  Refused while the group has members",
)
@cluster_options("one JSON object a line for each partition")
def run(args: Arguments) -> int:
    """0; 1 if some partitions cannot be moved; 2 if some were not.  Raises OSError, KafkaError, UsageError."""
    names = [name for name in (args.group, args.named_group) if name is not None]
    if len(names) != 1:
        raise UsageError("expected one GROUP")
    (args.group,) = names
    args.to = args.to or args.to_offset or args.to_datetime
    with group_client(args, ends_where_locked=True) as (client, _):
        group = _described(client, args)
        committed = {} if group is None else client.committed_offsets(args.group)
        moves = _plan(client, args, committed, [] if args.all_topics else _named(client, args.topic))
        if args.apply and group is not None and group.members:
            raise NonEmptyGroup(f"nothing is changed: {members_text(group)}. Stop them first")
        errors: dict[TopicPartition, ApiError | None] = {}
        if args.apply:
            changes = {move.topic_partition: move.new for move in moves if move.is_change and move.new is not None}
            errors = client.commit_offsets(args.group, changes) if changes else {}
    if args.json:
        for move in moves:
            print(json_line(_as_json(args, move, errors)))
    else:
        print("\n".join(map(printable, _lines(args, group, moves, errors))))
    if any(errors.values()):
        return USAGE
    return DAMAGE if any(move.new is None for move in moves) else OK


def _described(client: GroupClient, args: Arguments) -> GroupDescription | None:
    """None for a group that --apply would make.  Raises GroupIdNotFound for one without offsets to move, UsageError."""
    try:
        describe = client.describe_group if args.apply else client.look_at_group
        return describe(args.group)
    except GroupIdNotFound:
        if args.all_topics or args.by is not None:
            groups, _ = client.list_groups()
            known = [group.group_id for group in groups]
            raise GroupIdNotFound(f"there is no group {args.group!r}{nearest(args.group, known)}") from None
        return None


def _named(client: GroupClient, words: Iterable[str]) -> list[TopicPartition]:
    """Raises UnknownTopicOrPartition, UsageError."""
    names = topics_of([*words])
    try:
        return partitions(words, client.describe_cluster(names))
    except UnknownTopicOrPartition as error:
        existing = client.describe_cluster().topics
        missing = next((name for name in names if name not in existing), "")
        hint = nearest(missing, existing) or f": `kcore topics create {shlex.quote(missing)}` makes it"
        raise UnknownTopicOrPartition(f"{error}{hint}") from None


def _plan(
    client: GroupClient, args: Arguments, committed: dict[TopicPartition, int], named: list[TopicPartition]
) -> list[_Move]:
    tps = sorted(committed) if args.all_topics else named
    existing = client.describe_cluster().topics
    gone = [tp for tp in tps if tp.topic not in existing or tp.partition not in existing[tp.topic].partitions]
    there = [tp for tp in tps if tp not in gone]
    starts = log_starts(client, there, args.timeout)
    ends = listed(client, dict.fromkeys(there, LATEST), args.timeout)
    if args.by is None:
        wanted = offsets_of(client, dict.fromkeys(there, args.to), args.timeout)
    else:
        wanted = {tp: committed[tp] + args.by for tp in there if tp in committed}
    moves = [_move(tp, committed.get(tp), wanted.get(tp), starts[tp], ends[tp]) for tp in there]
    moves += [_Move(tp, committed[tp], None, -1, -1, "the partition does not exist any more") for tp in gone]
    if not moves:
        raise UsageError(f"the group {args.group} has committed no offset")
    return sorted(moves)


def _move(tp: TopicPartition, old: int | None, wanted: int | None, start: int, end: int) -> _Move:
    if wanted is None:
        return _Move(tp, old, None, start, end, "nothing is committed that could be moved")
    new = min(max(wanted, start), end)
    note = None
    if new != wanted:
        note = f"{wanted} is {'before the start' if wanted < start else 'after the end'} of the log"
    return _Move(tp, old, new, start, end, note)


def _as_json(
    args: Arguments, move: _Move, errors: dict[TopicPartition, ApiError | None]
) -> dict[str, str | int | bool | None]:
    tp = move.topic_partition
    error = errors.get(tp)
    is_known = move.log_end >= 0
    return {
        "group": args.group,
        "topic": tp.topic,
        "partition": tp.partition,
        "old_offset": move.old,
        "new_offset": move.new,
        "log_start_offset": move.log_start if is_known else None,
        "log_end_offset": move.log_end if is_known else None,
        "lag": None if move.new is None else move.log_end - move.new,
        "applied": tp in errors and error is None,
        "problem": move.note if error is None else error_text(error),
    }


def _lines(
    args: Arguments,
    group: GroupDescription | None,
    moves: list[_Move],
    errors: dict[TopicPartition, ApiError | None],
) -> list[str]:
    lines = [f"{args.group}: {_headline(args, moves, errors)}"]
    if group is None and not args.apply:
        lines.append(f"  there is no group {args.group}: --apply makes it")
    if group is not None and group.members:
        lines.append(f"  {members_text(group)}: --apply is refused until they have stopped")
    for move in moves:
        old = "nothing committed" if move.old is None else str(move.old)
        note = "" if move.note is None else f" ({move.note})"
        error = errors.get(move.topic_partition)
        if move.new is None:
            lines.append(f"  {move.topic_partition}: {old}, cannot be moved: {move.note}")
        elif error is not None:
            lines.append(f"  {move.topic_partition}: {old}, not moved: {error}")
        else:
            lag = f"lag {move.log_end - move.new}"
            before = lag if move.old is None else f"lag {move.log_end - move.old} -> {move.log_end - move.new}"
            lines.append(f"  {move.topic_partition}: {old} -> {move.new}, {before}{note}")
    return lines


def _headline(args: Arguments, moves: list[_Move], errors: dict[TopicPartition, ApiError | None]) -> str:
    changes = sum(move.is_change for move in moves)
    if not args.apply:
        return f"{counted(changes, 'offset')} would change; --apply changes them"
    return f"{counted(changes - sum(error is not None for error in errors.values()), 'offset')} changed"
