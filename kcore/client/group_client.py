"""GroupClient: asks a cluster about its consumer groups, deletes them and stores their offsets.

Source of the requests: KIP-222 (ListGroups, DescribeGroups, DeleteGroups), and as Kafka's kafka-consumer-groups.sh uses
them OffsetFetch and ListOffsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from kcore.client.admin_client import NEWEST, RETRY_MS, Address, AdminClient, Node, explanation, is_change, silence_text
from kcore.client.monitor import store_lock_at
from kcore.common.text import plain_error
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    NotCoordinator,
    UnsupportedVersion,
    for_code,
)
from kcore.protocol.messages import consumer_group_describe as cd
from kcore.protocol.messages import delete_groups as dg
from kcore.protocol.messages import describe_groups as de
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import list_groups as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages.consumer_protocol import assigned_partitions
from kcore.protocol.schema import Message

_M = TypeVar("_M", bound=Message)

#: The protocol type of consumers; others (Connect's workers) have assignments of their own.
_CONSUMER = "consumer"
#: The state in which a coordinator describes a group that it does not have.
_DEAD = "Dead"
#: Timestamps that name the ends of a log.
LATEST, EARLIEST = -1, -2
#: Newer versions ask about several keys or groups at once, in other fields.
_FIND_ONE_VERSION, _FETCH_ONE_VERSION = 3, 7
#: Newer versions have ids in the place of topic names.
_COMMIT_BY_NAME_VERSION = 9
#: The coordinator moves, or has just moved: asked again.
_PASSING = {error.code for error in (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)}


#: After so long without a coordinator that answers it is looked whether the metadata store is locked, and then again.
_LOCK_CHECK_MS = 1000


class ListedGroup(NamedTuple):
    """state: None from brokers before 2.6.  protocol_type: "consumer" for consumers."""

    group_id: str
    protocol_type: str
    state: str | None
    coordinator: int


class GroupMember(NamedTuple):
    """group_instance_id: of a static member (group.instance.id).  assignment: None where it is not known: while the
    group rebalances, and of members that are no consumers."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] | None


class GroupDescription(NamedTuple):
    """protocol: the assignor that the members agreed on, empty while the group rebalances."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: Node
    members: tuple[GroupMember, ...]


class LogEnd(NamedTuple):
    """offset: None where it is not known, because of problem."""

    offset: int | None
    problem: str | None = None


class Commit(NamedTuple):
    """What a group stores for a partition.  leader_epoch: of the last record before the offset, -1 for none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupClient(AdminClient):
    """For one thread.  What goes to a group's coordinator is sent again, within the timeout, as long as there is none,
    it is loading, it cannot be reached or another broker has become it; not where its process stands still.
    list_groups() and log_end_offsets() wait for no broker that is silent."""

    def list_groups(self) -> tuple[list[ListedGroup], dict[int, OSError | ApiError]]:
        """The groups by id, and the error of each broker that could not be asked for its groups: BrokerNotAvailable of
        a silent one."""
        groups: dict[str, ListedGroup] = {}
        errors: dict[int, OSError | ApiError] = {}
        with self._timed():
            brokers = self.describe_cluster(()).brokers.values()
            silent = self.note_silent_brokers(brokers)
            answering = [node for node in brokers if node.broker_id not in silent]
            for node in brokers:
                if node.broker_id in silent:
                    text = silence_text((node.host, node.port), silent[node.broker_id])
                    errors[node.broker_id] = BrokerNotAvailable(text)
            for index, node in enumerate(answering):
                try:
                    with self._timed(share=len(answering) - index):
                        for group in self._listed_by(node):
                            groups[group.group_id] = group
                except (OSError, ApiError) as error:
                    errors[node.broker_id] = error
        return [groups[group_id] for group_id in sorted(groups)], errors

    def group_partitions_without_leader(self) -> list[int]:
        """Those of __consumer_offsets: no broker has their groups now, so list_groups() lacks them.  Makes no topic."""
        try:
            cluster = self.describe_cluster([GROUP_METADATA_TOPIC])
        except ApiError:
            return []  # there is none yet, or it may not be described
        partitions = cluster.topics[GROUP_METADATA_TOPIC].partitions
        return [number for number, partition in partitions.items() if partition.leader < 0]

    def _listed_by(self, node: Node) -> list[ListedGroup]:
        response = self._send_until_loaded(
            None, lambda: (node.host, node.port), lg.ListGroupsRequest(), lg.ListGroupsResponse, lambda r: r.error_code
        )
        _raise_error(response.error_code, f"broker {node.broker_id} does not list its groups")
        return [
            ListedGroup(group.group_id, group.protocol_type, group.group_state or None, node.broker_id)
            for group in response.groups
        ]

    def look_at_group(self, group_id: str) -> GroupDescription:
        """describe_group() that makes no __consumer_offsets.  Not for what decides a change: a broker that has just
        started may not know the topic yet."""
        if not self._has_topic(GROUP_METADATA_TOPIC):
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        return self.describe_group(group_id)

    def describe_group(self, group_id: str) -> GroupDescription:
        """Raises GroupIdNotFound, GroupAuthorizationFailed and so on; CoordinatorNotAvailable where no broker has
        become the coordinator within the timeout, or its process stands still."""
        coordinators: list[Node] = []

        def coordinator() -> Address:
            coordinators.append(self._coordinator(group_id))
            return coordinators[-1].host, coordinators[-1].port

        response = self._send_until_loaded(
            group_id,
            coordinator,
            de.DescribeGroupsRequest(groups=[group_id]),
            de.DescribeGroupsResponse,
            _described_code,
        )
        (group,) = response.groups
        if group.error_code == GroupIdNotFound.code or (group.error_code == NONE and group.group_state == _DEAD):
            described = self._describe_consumer_group(group_id, coordinators, coordinator)
            if described is None:
                raise GroupIdNotFound(group.error_message or f"there is no group {group_id!r}")
            return described
        _raise_error(group.error_code, f"group {group_id!r}", group.error_message)
        return GroupDescription(
            group_id,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            coordinators[-1],
            tuple(
                GroupMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    _assignment(group.protocol_type, bytes(member.member_assignment)),
                )
                for member in sorted(group.members, key=lambda member: (member.client_id, member.member_id))
            ),
        )

    def _describe_consumer_group(
        self, group_id: str, coordinators: list[Node], coordinator: Callable[[], Address]
    ) -> GroupDescription | None:
        """One of the protocol of KIP-848; None where there is none, or brokers do not know the protocol."""
        try:
            response = self._send_until_loaded(
                group_id,
                coordinator,
                cd.ConsumerGroupDescribeRequest(group_ids=[group_id]),
                cd.ConsumerGroupDescribeResponse,
                lambda response: response.groups[0].error_code,
            )
        except UnsupportedVersion:
            return None
        (group,) = response.groups
        if group.error_code in (GroupIdNotFound.code, UnsupportedVersion.code):
            return None
        _raise_error(group.error_code, f"group {group_id!r}", group.error_message)
        members = sorted(group.members, key=lambda member: (member.client_id, member.member_id))
        return GroupDescription(
            group_id,
            group.group_state,
            _CONSUMER,
            group.assignor_name,
            coordinators[-1],
            tuple(
                GroupMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    tuple(
                        sorted(
                            TopicPartition(topic.topic_name, number)
                            for topic in member.assignment.topic_partitions
                            for number in topic.partitions
                        )
                    ),
                )
                for member in members
            ),
        )

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Of every partition for which the group has committed one.  Raises as describe_group()."""
        return {tp: commit.offset for tp, commit in self.commits(group_id).items()}

    def commits(self, group_id: str) -> dict[TopicPartition, Commit]:
        """committed_offsets(), with all that is stored."""
        response = self._send_until_loaded(
            group_id,
            lambda: self._coordinator_address(group_id),
            of.OffsetFetchRequest(group_id=group_id, topics=None),
            of.OffsetFetchResponse,
            lambda response: response.error_code,
            _FETCH_ONE_VERSION,
        )
        _raise_error(response.error_code, f"the offsets of group {group_id!r}")
        return {
            TopicPartition(topic.name, partition.partition_index): Commit(
                partition.committed_offset, partition.committed_leader_epoch, partition.metadata or ""
            )
            for topic in response.topics
            for partition in topic.partitions
            if partition.error_code == NONE and partition.committed_offset >= 0
        }

    def log_end_offsets(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """The high watermark of each partition, which its leader answers: where a consumer without lag is."""
        return self.listed_offsets(dict.fromkeys(topic_partitions, LATEST))

    def listed_offsets(
        self, topic_partitions: Mapping[TopicPartition, int], isolation_level: int = 0
    ) -> dict[TopicPartition, LogEnd]:
        """The first offset with a timestamp of at least so many ms, -1 if there is none; for EARLIEST and LATEST the
        ends of the log.  isolation_level 1: the latest one is the last stable offset."""
        ends: dict[TopicPartition, LogEnd] = {}
        by_leader: dict[Node, list[TopicPartition]] = {}
        with self._timed():
            for tp, leader in self._leaders(topic_partitions).items():
                if isinstance(leader, Node):
                    by_leader.setdefault(leader, []).append(tp)
                else:
                    ends[tp] = LogEnd(None, leader)
            silent = self.note_silent_brokers(
                [node for node in by_leader if (node.host, node.port) not in self._answered]
            )
            for node in [node for node in by_leader if node.broker_id in silent]:
                problem = f"broker {node.broker_id}: {silent[node.broker_id].reason}"
                ends |= dict.fromkeys(by_leader.pop(node), LogEnd(None, problem))
            for index, (node, led) in enumerate(by_leader.items()):
                try:
                    with self._timed(share=len(by_leader) - index):
                        questions = {tp: topic_partitions[tp] for tp in led}
                        ends |= self._ends_at(node, questions, isolation_level)
                except (OSError, KafkaError) as error:
                    ends |= dict.fromkeys(led, LogEnd(None, f"broker {node.broker_id}: {plain_error(error)}"))
        return ends

    def _leaders(self, topic_partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Node | str]:
        """The leader of each, or why there is none."""
        names = dict.fromkeys(tp.topic for tp in topic_partitions)
        if not names:
            return {}
        request = m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        response = self._ask_any(request, m.MetadataResponse)
        brokers = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        }
        leaders: dict[TopicPartition, int] = {}
        problems: dict[str, str] = {}
        for topic in response.topics:
            if topic.error_code != NONE:
                kind = for_code(topic.error_code)
                problems[topic.name or ""] = f"{kind.__name__}: {explanation(kind)}"
            for partition in topic.partitions:
                leaders[TopicPartition(topic.name or "", partition.partition_index)] = partition.leader_id
        return {
            tp: brokers.get(leaders.get(tp, -1))
            or ("it has no leader" if tp in leaders else problems.get(tp.topic, "there is no such partition"))
            for tp in topic_partitions
        }

    def _ends_at(
        self, node: Node, questions: Mapping[TopicPartition, int], isolation_level: int
    ) -> dict[TopicPartition, LogEnd]:
        topics: dict[str, list[lo.ListOffsetsPartition]] = {}
        for tp, timestamp in questions.items():
            topics.setdefault(tp.topic, []).append(
                lo.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
            )
        request = lo.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[lo.ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
            timeout_ms=self._broker_timeout_ms,
        )
        response = self._send((node.host, node.port), request, lo.ListOffsetsResponse)
        ends = {}
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                kind = None if partition.error_code == NONE else for_code(partition.error_code)
                if kind is None:
                    ends[tp] = LogEnd(partition.offset)
                else:
                    ends[tp] = LogEnd(None, f"broker {node.broker_id}: {kind.__name__}: {explanation(kind)}")
        return ends

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ApiError | None]:
        """Store these offsets for a group without members; the error of each partition.  Raises as describe_group()."""
        return self.store_commits(group_id, {tp: Commit(offset) for tp, offset in offsets.items()})

    def store_commits(
        self, group_id: str, commits: Mapping[TopicPartition, Commit]
    ) -> dict[TopicPartition, ApiError | None]:
        """commit_offsets(), with all that is stored."""
        topics: dict[str, list[oc.OffsetCommitRequestPartition]] = {}
        for tp, commit in commits.items():
            topics.setdefault(tp.topic, []).append(
                oc.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=commit.offset,
                    committed_leader_epoch=commit.leader_epoch,
                    committed_metadata=commit.metadata,
                )
            )
        response = self._send_until_loaded(
            group_id,
            lambda: self._coordinator_address(group_id),
            oc.OffsetCommitRequest(
                group_id=group_id,
                topics=[oc.OffsetCommitRequestTopic(name=name, partitions=listed) for name, listed in topics.items()],
            ),
            oc.OffsetCommitResponse,
            _commit_code,
            _COMMIT_BY_NAME_VERSION,
        )
        errors: dict[TopicPartition, ApiError | None] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                kind = None if partition.error_code == NONE else for_code(partition.error_code)
                error = None if kind is None else kind(f"{kind.__name__}: {explanation(kind)}")
                errors[TopicPartition(topic.name, partition.partition_index)] = error
        return errors

    def delete_group(self, group_id: str) -> None:
        """Raises NonEmptyGroup, GroupIdNotFound, GroupAuthorizationFailed and so on."""
        response = self._send_until_loaded(
            group_id,
            lambda: self._coordinator_address(group_id),
            dg.DeleteGroupsRequest(groups_names=[group_id]),
            dg.DeleteGroupsResponse,
            lambda response: response.results[0].error_code,
        )
        (result,) = response.results
        if self._is_made_already(result.error_code, GroupIdNotFound):
            return
        if result.error_code == GroupIdNotFound.code:
            raise GroupIdNotFound(result.error_message or f"there is no group {group_id!r}")
        _raise_error(result.error_code, f"group {group_id!r}", result.error_message)

    # -- the coordinator --------------------------------------------------------------------------------

    def _coordinator_address(self, group_id: str) -> Address:
        node = self._coordinator(group_id)
        return node.host, node.port

    def _coordinator(self, group_id: str) -> Node:
        """Raises CoordinatorNotAvailable, and the error of a group that the user may not see."""
        response = self._ask_any(
            fc.FindCoordinatorRequest(key=group_id), fc.FindCoordinatorResponse, max_version=_FIND_ONE_VERSION
        )
        if response.error_code == CoordinatorNotAvailable.code:
            raise CoordinatorNotAvailable(
                f"group {group_id!r} has no coordinator now: its partition of __consumer_offsets has no leader, or the "
                "topic waits for as many live brokers as offsets.topic.replication.factor says"
            )
        _raise_error(response.error_code, f"the coordinator of group {group_id!r}", response.error_message)
        return Node(response.node_id, response.host, response.port, None)

    def _send_until_loaded(
        self,
        group_id: str | None,
        address: Callable[[], Address],
        request: Message,
        response_class: type[_M],
        error_code: Callable[[_M], int],
        max_version: int = NEWEST,
    ) -> _M:
        """Asks the broker whose address is looked up before each attempt.  Returns the last answer at the deadline.

        group_id: it asks for this group's coordinator, and another broker may take the place of one that cannot be
        reached.  None: it asks a certain broker, and that it cannot be reached is raised at once.

        It raises CoordinatorNotAvailable where a broker of this machine says that its store is locked: until it is free
        no broker becomes a coordinator.  It asks for that at the deadline, with ends_where_locked earlier too.
        """
        with self._timed() as deadline_ms:
            lock_check_ms = self._time.hi_res_clock_ms() + _LOCK_CHECK_MS
            while True:
                failure: OSError | CoordinatorNotAvailable | None = None
                response = to = None
                try:
                    to = address()
                    response = self._send(to, request, response_class, max_version)
                    code = error_code(response)
                    if code not in _PASSING:
                        return response
                    # Its records may be in the log, and be committed later.
                    self._is_change_open |= is_change(request) and code == CoordinatorNotAvailable.code
                except CoordinatorNotAvailable as error:
                    failure = error
                except OSError as error:
                    if to is None or group_id is None:  # no broker answers, or this one does not
                        raise
                    silence = self._silent.get(to)
                    if silence is not None and silence.ends_request:
                        next_one = "Another broker becomes the coordinator once the session of this one has ended"
                        raise CoordinatorNotAvailable(
                            f"group {group_id!r}: its coordinator at {silence_text(to, silence)}"
                            + (f". {next_one}" if silence.stands_still else "")
                        ) from error
                    failure = error
                now_ms = self._time.hi_res_clock_ms()
                is_over = now_ms + RETRY_MS > deadline_ms
                if is_over or (self._ends_where_locked and now_ms >= lock_check_ms):
                    lock_check_ms = now_ms + _LOCK_CHECK_MS
                    self._check_lock(group_id, to)
                if is_over:
                    if failure is not None:
                        raise failure
                    assert response is not None
                    return response
                self._time.sleep(RETRY_MS)

    def _check_lock(self, group_id: str | None, coordinator: Address | None) -> None:
        """coordinator: None where no broker says which one it is.  Raises CoordinatorNotAvailable."""
        lock = store_lock_at(*(coordinator or (*self._bootstrap, *self._brokers)[0]))
        if lock is not None:
            what = "the groups" if group_id is None else f"group {group_id!r}"
            who = "no broker coordinates it"
            if coordinator is not None:
                who = f"{coordinator[0]}:{coordinator[1]} does not answer as a coordinator"
            raise CoordinatorNotAvailable(f"{what}: {who} now: {lock}")


def _described_code(response: de.DescribeGroupsResponse) -> int:
    return response.groups[0].error_code


def _commit_code(response: oc.OffsetCommitResponse) -> int:
    """That of the coordinator, which every partition has."""
    return next((partition.error_code for topic in response.topics for partition in topic.partitions), NONE)


def _assignment(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...] | None:
    if protocol_type != _CONSUMER or not assignment:
        return None
    try:
        topics = assigned_partitions(assignment)
    except InvalidRequest:
        return None
    return tuple(sorted(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions))


def _raise_error(code: int, what: str, message: str | None = None) -> None:
    if code != NONE:
        kind = for_code(code)
        raise kind(f"{what}: {kind.__name__}: {explanation(kind, message)}")
