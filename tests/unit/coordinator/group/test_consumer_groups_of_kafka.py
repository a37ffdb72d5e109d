"""Consumer groups of KIP-848 that a Kafka broker has written to __consumer_offsets."""

import base64
import hashlib
import json
import pathlib
import struct
import uuid

import pytest

from kcore.coordinator.group.consumer_group import MemberState
from kcore.coordinator.group.consumer_group_records import MEMBER, read_consumer_group_key, records_between
from kcore.protocol.messages import consumer_group_records as messages
from kcore.record.memory_records import MemoryRecords

from .harness import Harness, MemoryLog, MemoryReplicaManager, code_of

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "golden" / "consumer-protocol"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
DATA = (GOLDEN / "0.log").read_bytes()
VALUES = {
    3: messages.ConsumerGroupMetadataValue,
    6: messages.ConsumerGroupTargetAssignmentMetadataValue,
    7: messages.ConsumerGroupTargetAssignmentMemberValue,
    8: messages.ConsumerGroupCurrentMemberAssignmentValue,
}


def topic_id(text):
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def partitions(topics):
    return frozenset((topic_id(topic["topicId"]), number) for topic in topics for number in topic["partitions"])


def last_payloads(group_id):
    """What Kafka's tool says is in the last record of each key: by (type, member id)."""
    return {
        (int(record["key"]["type"]), record["key"]["data"].get("memberId")): record["payload"]
        for record in EXPECTED["records"]
        if record["key"]["data"].get("groupId") == group_id
    }


@pytest.fixture
def harness():
    replica_manager = MemoryReplicaManager()
    log = replica_manager.logs[0] = MemoryLog()
    for batch in MemoryRecords(DATA).batches:
        log.batches.append((batch.base_offset, bytes(batch.buffer)))
        log.log_end_offset = batch.next_offset
    harness = Harness(replica_manager, offsets_topic_num_partitions=1)
    harness.scheduler.tick()
    return harness


def test_the_file_is_the_one_that_kafka_has_written():
    assert hashlib.sha256(DATA).hexdigest() == EXPECTED["sha256"]["0.log"]


def test_CG_56_each_value_of_kafka_is_read_and_written_again_with_the_same_bytes():
    seen = set()
    for record, expected in zip(MemoryRecords(DATA).records(), EXPECTED["records"], strict=True):
        key = read_consumer_group_key(record.key)
        if key is None:
            assert int(expected["key"]["type"]) < 3
            continue
        data = expected["key"]["data"]
        assert key == (int(expected["key"]["type"]), data["groupId"], data.get("memberId", ""))
        if record.value is not None and key.record_type != MEMBER:
            value = messages.read_value(VALUES[key.record_type], record.value)
            assert struct.pack(">h", 0) + value.encode(0) == record.value
            seen.add(key.record_type)
    assert seen == VALUES.keys()


def test_CG_56_a_group_that_was_loaded_is_written_as_kafka_has_written_it(harness):
    """But for a tag of 4.3: when the target was computed."""
    of_kafka = {record.key: record.value for record in MemoryRecords(DATA).records()}
    written = dict(records_between(None, harness.coordinator.consumer_groups.describe("shop")))
    same = [key for key in written if read_consumer_group_key(key).record_type in (3, MEMBER, 7, 8)]
    assert len(same) == 7
    assert {key: written[key] for key in same} == {key: of_kafka[key] for key in same}
    assert written.keys() - set(same) <= of_kafka.keys()


def test_CG_56_a_group_of_kafka_is_loaded_with_its_members_as_kafkas_tool_shows_them(harness, caplog):
    group, last = harness.coordinator.consumer_groups.describe("shop"), last_payloads("shop")
    assert (group.state, group.epoch, group.metadata_hash) == (
        "Stable",
        last[3, None]["data"]["epoch"],
        last[3, None]["data"]["metadataHash"],
    )
    assert group.assignment_epoch == last[6, None]["data"]["assignmentEpoch"]
    assert sorted(member.client_id for member in group.members.values()) == ["one", "two"]
    for member_id, member in group.members.items():
        who, has = last[5, member_id]["data"], last[8, member_id]["data"]
        assert (member.instance_id, member.rack_id, member.client_host) == (
            *(who["instanceId"], who["rackId"]),
            who["clientHost"],
        )
        assert (list(member.topics), member.rebalance_timeout_ms) == (["t"], who["rebalanceTimeoutMs"])
        assert (member.epoch, member.previous_epoch) == (has["memberEpoch"], has["previousMemberEpoch"])
        assert (member.state, member.revoking) == (MemberState.STABLE, frozenset())
        assert member.assigned == partitions(has["assignedPartitions"])
        assert group.targets[member_id] == partitions(last[7, member_id]["data"]["topicPartitions"])
    assert harness.committed("shop") == {("t", 0): 2}
    assert caplog.records == [] or all(record.levelname == "INFO" for record in caplog.records)


def test_a_group_of_kafka_whose_members_have_left_is_empty(harness):
    group = harness.coordinator.consumer_groups.describe("gone")
    epoch = last_payloads("gone")[3, None]["data"]["epoch"]
    assert (group.state, group.epoch, group.metadata_hash) == ("Empty", epoch, 0)
    assert code_of(harness.coordinator.consumer_groups.describe, "none") != 0
