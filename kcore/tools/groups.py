"""`kcore groups`: list, describe and delete consumer groups of a running cluster (`reset`: groups_reset.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import click

from kcore.client.group_client import GroupClient, GroupDescription, GroupMember, LogEnd
from kcore.common.text import counted, json_line, plain_error, printable, some_of
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, UnknownTopicOrPartition
from kcore.tools.cluster_command import Errors, cluster_options, group_client, nearest_topic_of
from kcore.tools.cluster_names import group_ids, topic_names
from kcore.tools.command_line import DAMAGE, OK, USAGE, Arguments, UsageError, protocol_string
from kcore.tools.commands import Group, LazyCommand

groups = Group(
    "groups",
    status_1="no broker leads some of the groups, the log end of a partition is unknown, or an offset cannot be moved",
)


class GroupPosition(NamedTuple):
    """Where a group is in one partition.  committed_offset: None if it has committed none.  member: who consumes the
    partition now."""

    topic_partition: TopicPartition
    committed_offset: int | None
    log_end: LogEnd
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.committed_offset is None or self.log_end.offset is None:
            return None
        return self.log_end.offset - self.committed_offset


@groups.subcommand("list", "list the consumer groups", example="kcore groups list --bootstrap localhost:9092")
@cluster_options("one JSON object a line for each group")
def _run_list(args: Arguments) -> int:
    with group_client(args, ends_where_locked=True) as (client, errors):
        listed, missing = client.list_groups()
        for group in listed:
            if args.json:
                fields = {"state": group.state, "protocol_type": group.protocol_type, "coordinator": group.coordinator}
                print(json_line({"group": group.group_id} | fields))
            else:
                print(printable(group.group_id))
        return _report_missing(client, missing, errors)


def _report_missing(client: GroupClient, missing: Mapping[int, OSError | ApiError], errors: Errors) -> int:
    """The exit status of a list that lacks the groups of these brokers, and those that no broker has now."""
    for broker_id, error in missing.items():
        errors.print(f"the groups of broker {broker_id} are missing: {plain_error(error)}")
    without_leader = client.group_partitions_without_leader()
    if without_leader:
        names = some_of([f"{GROUP_METADATA_TOPIC}-{number}" for number in without_leader])
        errors.print(
            f"the groups of {counted(len(without_leader), 'partition')} that no broker leads are missing: {names}; "
            f"`kcore topics describe {GROUP_METADATA_TOPIC}` has their replicas"
        )
    return USAGE if missing else DAMAGE if without_leader else OK


_named_groups = click.option(
    "--group",
    "named_groups",
    type=protocol_string,
    shell_complete=group_ids,
    multiple=True,
    metavar="GROUP",
    help="the same, as kafka-consumer-groups.sh has it; repeatable",
)


@groups.subcommand(
    "describe",
    "show the state and members of a group, and its committed offset, log end and lag for each partition",
    example="kcore groups describe --topic orders",
)
@click.argument(
    "groups",
    nargs=-1,
    type=protocol_string,
    shell_complete=group_ids,
    metavar="[GROUP]...",
    help="default: all",
)
@_named_groups
@click.option(
    "--topic",
    "topics",
    type=protocol_string,
    shell_complete=topic_names,
    multiple=True,
    metavar="TOPIC",
    help="only groups that read it, and only its partitions; repeatable",
)
@cluster_options("one JSON object a line for each group")
def _run_describe(args: Arguments) -> int:
    args.groups += args.named_groups
    status, missing, unknown = OK, False, False
    unread = dict.fromkeys(args.topics)
    with group_client(args, ends_where_locked=True) as (client, errors):
        names: Iterable[str] = dict.fromkeys(args.groups)
        if not names:
            listed, unasked = client.list_groups()
            names = [group.group_id for group in listed]
            status = _report_missing(client, unasked, errors)
        for name in names:
            try:
                group = client.look_at_group(name)
                positions = positions_of(client, group, args.topics)
            except ApiError as error:
                missing = True
                errors.print(str(error))
                continue
            if args.topics and not positions:
                continue
            for position in positions:
                unread.pop(position.topic_partition.topic, None)
            unknown = unknown or any(position.log_end.offset is None for position in positions)
            if args.json:
                print(json_line(_as_json(group, positions)))
            else:
                print("\n".join(map(printable, _lines(group, positions))))
        for topic in unread:
            which = "no group of these" if args.groups or missing or status else "no group"
            try:
                client.describe_cluster([topic])
                errors.print(f"{which} reads {topic}: none has committed an offset for it, or is assigned it")
            except UnknownTopicOrPartition as error:
                missing = True
                errors.print(f"{error}{nearest_topic_of(client, topic)}")
    return USAGE if missing or status == USAGE else DAMAGE if unknown or status else OK


def positions_of(client: GroupClient, group: GroupDescription, topics: Collection[str] = ()) -> list[GroupPosition]:
    """Of each partition that the group has committed an offset for, or that is assigned to a member.  topics: only
    partitions of these; () for all."""
    committed = client.committed_offsets(group.group_id)
    consumers = {tp: member for member in group.members for tp in member.assignment or ()}
    partitions = sorted(tp for tp in {*committed, *consumers} if not topics or tp.topic in topics)
    ends = client.log_end_offsets(partitions)
    unknown = LogEnd(None, "its leader's answer has nothing about it")
    return [GroupPosition(tp, committed.get(tp), ends.get(tp, unknown), consumers.get(tp)) for tp in partitions]


def _as_json(group: GroupDescription, positions: list[GroupPosition]) -> dict[str, Any]:
    members = [
        member._asdict()
        | {
            "assignment": None
            if member.assignment is None
            else [{"topic": tp.topic, "partition": tp.partition} for tp in member.assignment]
        }
        for member in group.members
    ]
    partitions = [
        {
            "topic": position.topic_partition.topic,
            "partition": position.topic_partition.partition,
            "committed_offset": position.committed_offset,
            "log_end_offset": position.log_end.offset,
            "lag": position.lag,
            "member_id": None if position.member is None else position.member.member_id,
            "problem": position.log_end.problem,
        }
        for position in positions
    ]
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator.broker_id,
        "members": members,
        "partitions": partitions,
    }


def _lines(group: GroupDescription, positions: list[GroupPosition]) -> list[str]:
    protocol = f", protocol {group.protocol}" if group.protocol else ""
    lines = [
        f"{group.group_id}: {group.state}{protocol}, coordinator {group.coordinator.broker_id}, "
        f"{counted(len(group.members), 'member')}"
    ]
    for member in group.members:
        static = f" (static member {member.group_instance_id})" if member.group_instance_id else ""
        lines.append(
            f"  member {member.member_id}{static}, client {member.client_id} at {member.host.lstrip('/')}: "
            f"{_assignment_text(group, member)}"
        )
    for position in positions:
        committed = (
            "nothing committed" if position.committed_offset is None else f"committed {position.committed_offset}"
        )
        end = position.log_end
        end_text = f"log end unknown: {end.problem}" if end.offset is None else f"log end {end.offset}"
        lag = "" if position.lag is None else f", lag {position.lag}"
        consumer = "" if position.member is None else f"member {position.member.member_id}, "
        lines.append(f"  {position.topic_partition}: {consumer}{committed}, {end_text}{lag}")
    return lines


def _assignment_text(group: GroupDescription, member: GroupMember) -> str:
    if member.assignment is not None:
        return ", ".join(map(str, member.assignment)) or "no partition"
    return "assignment not known" if group.protocol else "no assignment yet"


groups.add_command(
    LazyCommand("reset", "kcore.tools.groups_reset:run", "move the committed offsets of a group, or say where to")
)


@groups.subcommand(
    "delete",
    "delete groups that have no members, with their committed offsets",
    example="kcore groups delete billing",
)
@click.argument(
    "groups",
    nargs=-1,
    type=protocol_string,
    shell_complete=group_ids,
    metavar="[GROUP]...",
    help="groups without members: their committed offsets are gone for good",
)
@_named_groups
@cluster_options("one JSON object a line for each group that is deleted")
def _run_delete(args: Arguments) -> int:
    args.groups += args.named_groups
    if not args.groups:
        raise UsageError("expected a GROUP")
    status = OK
    with group_client(args, ends_where_locked=True) as (client, errors):
        for name in dict.fromkeys(args.groups):
            try:
                client.delete_group(name)
            except ApiError as error:
                status = USAGE
                errors.print(str(error))
                continue
            print(json_line({"group": name, "deleted": True}) if args.json else printable(f"{name} is deleted"))
    return status
