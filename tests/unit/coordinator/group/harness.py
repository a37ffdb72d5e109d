"""A coordinator on MockTime over an offsets topic in memory."""

import struct
import uuid
from random import Random
from types import SimpleNamespace

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.consumer_group import Heartbeat
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_coordinator import GroupCoordinator
from kcore.coordinator.group.member_metadata import LeavingMember
from kcore.coordinator.group.regex_resolver import TopicNames
from kcore.errors import NONE, ApiError, KafkaStorageError, MessageTooLarge
from kcore.log.log_config import LogConfig
from kcore.log.log_hot_path import FetchDataInfo
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
)
from kcore.protocol.messages.consumer_protocol import TopicPartition as ProtocolPartitions
from kcore.purgatory.timer import Timer
from kcore.record.memory_records import MemoryRecords
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus

OFFSETS_TOPIC = "__consumer_offsets"


def code_of(function, *args):
    """The error code that a client gets."""
    try:
        function(*args)
    except ApiError as error:
        return error.code
    return NONE


class MemoryLog:
    """As much of a log as the coordinator uses: batches one after the other, offsets assigned, none that is too large,
    each in a segment of its own.

    high_watermark: set it, or all is committed.
    """

    def __init__(self):
        self.config = LogConfig()
        self.log_start_offset = self.log_end_offset = 0
        self.batches = []
        self._high_watermark = None

    @property
    def high_watermark(self):
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset):
        self._high_watermark = offset

    def append(self, batch):
        if len(batch) > self.config.max_message_bytes:
            raise MessageTooLarge(f"{len(batch)} bytes")
        records = MemoryRecords(bytes(batch))
        assert len(records) == 1
        base_offset = self.log_end_offset
        self.batches.append((base_offset, struct.pack(">q", base_offset) + bytes(batch)[8:]))
        self.log_end_offset += records.last_offset + 1
        return base_offset

    def read(self, start_offset, max_length, isolation, min_one_message):
        base_offset, data = next(
            ((base_offset, data) for base_offset, data in self.batches if base_offset >= start_offset), (-1, b"")
        )
        return FetchDataInfo(LogOffsetMetadata(start_offset, base_offset, 0), MemoryRecords(data))

    def segment_base_offsets(self):
        return [base_offset for base_offset, _ in self.batches]

    def records(self):
        return [record for _, data in self.batches for record in MemoryRecords(data).records()]


class MemoryReplicaManager:
    """Appends at once, unless `held` is a list (then they wait in it) or `error` is set (then they fail).

    unanswered: if it is a list, answers to what is in the log wait in it, as for followers.
    """

    def __init__(self):
        self.logs = {}
        #: Partitions whose data directory has failed, and those that are not hosted.
        self.offline = set()
        self.missing = set()
        self.error = None
        self.held = None
        self.unanswered = None

    def get_partition(self, topic_partition):
        assert topic_partition.topic == OFFSETS_TOPIC
        if topic_partition.partition in self.missing:
            return None
        return SimpleNamespace(local_log=lambda: self._log(topic_partition))

    def _log(self, topic_partition):
        if topic_partition.partition in self.offline:
            raise KafkaStorageError(f"{topic_partition} is offline")
        return self.logs.setdefault(topic_partition.partition, MemoryLog())

    def append_records(
        self,
        timeout_ms,
        required_acks,
        internal_topics_allowed,
        origin,
        entries,
        response_callback,
        leader_epochs=None,
    ):
        assert (required_acks, internal_topics_allowed) == (-1, True)
        if self.held is not None:
            self.held.append(lambda: self._append(entries, response_callback))
        else:
            self._append(entries, response_callback)

    def _append(self, entries, response_callback):
        statuses = {}
        for topic_partition, batch in entries.items():
            if self.error is not None:
                statuses[topic_partition] = ProducePartitionStatus(self.error)
                continue
            try:
                base_offset = self._log(topic_partition).append(batch)
                statuses[topic_partition] = ProducePartitionStatus(None, base_offset)
            except MessageTooLarge as error:
                statuses[topic_partition] = ProducePartitionStatus(error)
        if self.unanswered is not None and self.error is None:
            self.unanswered.append(lambda: response_callback(statuses))
        else:
            response_callback(statuses)

    def answer(self, number):
        """The first ones of what waits."""
        for _ in range(number):
            self.unanswered.pop(0)()

    def release(self):
        held, self.held = self.held, None
        for append in held:
            append()


class Answer:
    """The callback of a request; .result is None until it is answered, and it must be answered once."""

    def __init__(self):
        self.result = None

    def __call__(self, result):
        assert self.result is None, f"answered twice: {self.result}, then {result}"
        self.result = result

    def __getattr__(self, name):
        assert self.result is not None, f"not answered yet, so no {name}"
        return getattr(self.result, name)

    @property
    def waits(self):
        return self.result is None


class Harness:
    """random: of the ids of members, by which a group sorts them; the same in each run."""

    def __init__(self, replica_manager=None, partitions=None, disk_scheduler=None, random=None, **config):
        self.random = Random(0) if random is None else random
        config.setdefault("offsets_topic_num_partitions", 4)
        self.config = GroupConfig(**config)
        self.time = MockTime()
        self.timer = Timer(self.time)
        self.scheduler = MockScheduler(self.time)
        self.replica_manager = replica_manager or MemoryReplicaManager()
        self.coordinator = GroupCoordinator(
            0,
            self.replica_manager,
            self.config,
            self.time,
            self.scheduler,
            self.timer,
            self.random,
            disk_scheduler=disk_scheduler and disk_scheduler(self.time),
            find_topic=self.find_topic,
            topic_names=self.topic_names,
        )
        self.coordinator.startup()
        for partition in range(self.config.offsets_topic_num_partitions) if partitions is None else partitions:
            self.coordinator.on_election(partition, 0)

    def find_topic(self, name):
        return None

    def topic_names(self):
        return TopicNames()

    def advance(self, ms):
        self.time.sleep(ms)
        self.timer.advance()
        self.scheduler.tick()

    def group(self, group_id="g"):
        return self.coordinator.manager.get_group(group_id)

    def state(self, group_id="g"):
        return self.coordinator.admin.describe_group(group_id).state

    def records(self, group_id="g"):
        return self.replica_manager.logs[self.coordinator.partition_for(group_id)].records()

    # -- requests, with the defaults of an ordinary consumer

    def join(self, member_id="", group_id="g", instance_id=None, protocols=None, **more):
        answer = Answer()
        settings = {
            "rebalance_timeout_ms": 60_000,
            "session_timeout_ms": 10_000,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "require_known_member_id": False,
        }
        settings.update(more)
        protocol_type = settings.pop("protocol_type", "consumer")
        protocols = [("range", b"subscription")] if protocols is None else protocols
        self.coordinator.join_group(
            group_id, member_id, instance_id, protocol_type, protocols, callback=answer, **settings
        )
        return answer

    def sync(self, join, assignments=None, group_id="g", instance_id=None, **more):
        answer = Answer()
        settings = {"generation_id": join.generation_id, "protocol_type": "consumer", "protocol_name": "range"}
        settings.update(more)
        self.coordinator.sync_group(
            group_id,
            settings["generation_id"],
            join.member_id,
            settings["protocol_type"],
            settings["protocol_name"],
            instance_id,
            assignments or {},
            answer,
        )
        return answer

    def heartbeat(self, join, group_id="g", instance_id=None, generation_id=None):
        generation_id = join.generation_id if generation_id is None else generation_id
        return code_of(self.coordinator.heartbeat, group_id, join.member_id, instance_id, generation_id)

    def leave(self, member_id, instance_id=None, group_id="g"):
        """The error code of the group, or else of the member; None if it is not answered yet."""
        result = self.leave_together([LeavingMember(member_id, instance_id)], group_id).result
        return result and (result.error_code or result.members[0].error_code)

    def leave_together(self, leaving, group_id="g"):
        answer = Answer()
        self.coordinator.leave_group(group_id, leaving, answer)
        return answer

    def delete_groups(self, *group_ids):
        """Error codes by group; None if they are not answered yet."""
        answer = Answer()
        self.coordinator.admin.delete_groups(group_ids, answer)
        return answer.result

    def delete_offsets(self, *partitions, group_id="g"):
        """Error codes by partition or else that of the group; None if it is not answered yet."""
        answer = Answer()
        self.coordinator.admin.delete_offsets(group_id, partitions, answer)
        return answer.result and (answer.result.error_code or answer.result.partitions)

    def commit(self, offsets, member_id="", generation_id=-1, group_id="g", instance_id=None):
        """offsets: {(topic, partition): offset or OffsetAndMetadata}"""
        answer = Answer()
        values = {
            TopicPartition(*tp): value
            if isinstance(value, OffsetAndMetadata)
            else OffsetAndMetadata(value, "", -1, self.time.milliseconds())
            for tp, value in offsets.items()
        }
        self.coordinator.offsets.commit(group_id, member_id, instance_id, generation_id, values, answer)
        return answer

    def committed(self, group_id="g", require_stable=False):
        offsets = self.coordinator.offsets.fetch(group_id, None, require_stable)
        return {tuple(tp): result.offset for tp, result in offsets.items()}

    # -- whole rebalances

    def stable_group(self, members=1, group_id="g", **more):
        """A stable group of dynamic members; their join answers, the leader's first."""
        joins = [self.join(group_id=group_id, **more) for _ in range(members)]
        while any(join.waits for join in joins):
            self.advance(self.config.initial_rebalance_delay_ms)
        assert all(join.error_code == 0 for join in joins)
        joins.sort(key=lambda join: join.member_id != join.leader_id)
        self.sync_all(joins, group_id=group_id)
        return joins

    def sync_all(self, joins, group_id="g"):
        """The leader, first of the joins, assigns each member its own id."""
        leader, *followers = joins
        waiting = [self.sync(join, group_id=group_id) for join in followers]
        done = self.sync(leader, {join.member_id: join.member_id.encode() for join in joins}, group_id=group_id)
        for join, answer in zip(joins, [done, *waiting], strict=True):
            assert (answer.error_code, answer.assignment) == (0, join.member_id.encode())


#: The id of topic t.
T = uuid.UUID(int=1)


def of_t(*numbers):
    return frozenset((T, number) for number in numbers)


class Consumers(Harness):
    """Members of groups of KIP-848, on topics that a test may change."""

    def __init__(self, *args, **config):
        self.topics = {"t": TopicOfGroup(T, 4)}
        super().__init__(*args, **config)

    def beat(self, member_id, epoch, owned=None, topics=None, group_id="g", permitted=list, **more):
        answer = Answer()
        beat = Heartbeat(member_id, epoch, topics=topics, owned=owned, **more)
        self.coordinator.consumer_groups.heartbeat(group_id, beat, answer, permitted)
        return answer

    def join_new(self, member_id, topics=("t",), group_id="g", **more):
        more.setdefault("rebalance_timeout_ms", 60_000)
        return self.beat(member_id, 0, frozenset(), topics, group_id, **more)

    def find_topic(self, name):
        return self.topics.get(name)

    def topic_names(self):
        return TopicNames(hash(frozenset(self.topics)), frozenset(self.topics))

    def leave_new(self, member_id, epoch=-1, instance_id=None):
        answer = Answer()
        self.coordinator.consumer_groups.leave("g", member_id, epoch, instance_id, answer)
        return answer

    def value(self, group_id="g"):
        return self.coordinator.consumer_groups.describe(group_id)

    def two_members(self):
        """a with partitions 0 and 1, b with the others; both in epoch 2."""
        self.join_new("a")
        self.join_new("b")
        self.beat("a", 1)
        self.beat("a", 1, of_t(0, 1))
        self.beat("b", 2)
        assert self.value().state == "Stable"

    def restarted(self, **config):
        """Another broker that leads the same partitions."""
        again = type(self)(self.replica_manager, partitions=[], random=self.random, **config)
        for partition in range(self.config.offsets_topic_num_partitions):
            again.coordinator.on_election(partition, 1)
        again.scheduler.tick()
        return again


def subscription(topics=("t",), owned=(), version=3, rack_id=None):
    """What a classic consumer says in JoinGroup.  owned: partitions of t."""
    value = ConsumerProtocolSubscription(topics=list(topics))
    if version >= 1 and owned:
        value.owned_partitions = [ProtocolPartitions(topic="t", partitions=sorted(owned))]
    if version >= 3:
        value.rack_id = rack_id
    return struct.pack(">h", version) + value.encode(version)


def assignment(numbers, user_data=None):
    """What a classic leader gives a member: partitions of t."""
    topics = [ProtocolPartitions(topic="t", partitions=sorted(numbers))] if numbers else []
    return b"\0\0" + ConsumerProtocolAssignment(assigned_partitions=topics, user_data=user_data).encode(0)


def assigned_numbers(data):
    """The partitions of t that a SyncGroup answer gives."""
    return {number for topic in read_assignment(data).assigned_partitions for number in topic.partitions}


class MixedGroup(Consumers):
    """Members of either protocol."""

    def join_classic(self, member_id="", owned=(), topics=("t",), **more):
        more.setdefault("protocols", [("range", subscription(topics, owned))])
        return self.join(member_id, **more)

    def classic_group(self, *shares, **more):
        """A stable classic group whose members, in this order, own these partitions of t; their join answers."""
        joins = [self.join_classic(**more) for _ in shares]
        while any(join.waits for join in joins):
            self.advance(self.config.initial_rebalance_delay_ms)
        given = {join.member_id: assignment(share) for join, share in zip(joins, shares, strict=True)}
        for join in sorted(joins, key=lambda join: join.member_id != join.leader_id):
            assert self.sync(join, given).error_code == 0
        return joins

    def rejoin_and_sync(self, join, owned=(), **more):
        """(generation, partitions)"""
        again = self.join_classic(join.member_id, owned, **more)
        assert again.error_code == 0
        synced = self.sync(again)
        assert synced.error_code == 0
        return again.generation_id, assigned_numbers(synced.assignment)
