"""The coordinator over real logs: what it writes is there after a restart."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.member_metadata import GroupMember
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.replica.conftest import Node

from .harness import OFFSETS_TOPIC, Answer, Harness, MixedGroup


def coordinated(node, partitions=2, harness=Harness, **config):
    for partition in range(partitions):
        node.lead(TopicPartition(OFFSETS_TOPIC, partition))
    harness = harness(node.replica_manager, offsets_topic_num_partitions=partitions, **config)
    harness.scheduler.tick()
    return harness


def test_groups_and_offsets_survive_a_restart_of_the_broker(tmp_path):
    node = Node(tmp_path, {OFFSETS_TOPIC: {"cleanup.policy": "compact"}})
    harness = coordinated(node)
    (join,) = harness.stable_group()
    for offset in range(100):
        harness.commit({("t", 0): offset, ("t", 1): 2 * offset}, join.member_id, 1)
    harness.commit({("u", 0): 5}, group_id="simple")
    node.shutdown()
    again = coordinated(Node(tmp_path), offsets_load_buffer_size=500)
    assert again.committed() == {("t", 0): 99, ("t", 1): 198}
    assert again.committed("simple") == {("u", 0): 5}
    assert again.heartbeat(join) == 0


def test_a_partition_that_is_no_longer_led_refuses_commits(tmp_path):
    node = Node(tmp_path)
    harness = coordinated(node)
    harness.commit({("t", 0): 1})
    partition = TopicPartition(OFFSETS_TOPIC, harness.coordinator.partition_for("g"))
    node.replica_manager.get_partition(partition).resign()
    assert harness.commit({("t", 0): 2}).result == {("t", 0): 16}
    assert harness.committed() == {("t", 0): 1}


def test_a_member_whose_record_the_topics_settings_do_not_allow_is_refused_and_the_group_goes_on(tmp_path):
    mixed = coordinated(Node(tmp_path, {OFFSETS_TOPIC: {"max.message.bytes": "1000"}}), harness=MixedGroup)
    assert mixed.join_new("a").error_code == 0
    large = mixed.join_new("b", topics=[letter * 249 for letter in "tuvwx"])
    assert large.error_code == errors.UnknownServerError.code
    assert mixed.join_new("c").error_code == 0
    assert set(mixed.value().members) == {"a", "c"}


def damaged(directory, value, at):
    """Change the byte at this place of the batch that has this value: 16 is its magic, 17 in its CRC."""
    (segment,) = [path for path in directory.glob("*.log") if value in path.read_bytes()]
    data = bytearray(segment.read_bytes())
    place = data.index(value)
    start = max(batch.position for batch in MemoryRecords(bytes(data)).batches if batch.position < place)
    data[start + at] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize("load_buffer_size", [1, 100, 5 << 20])
def test_a_damaged_batch_costs_its_own_offsets_only(tmp_path, caplog, load_buffer_size):
    node = Node(tmp_path)
    harness = coordinated(node, 1)
    for number, metadata in enumerate(["before", "damaged", "after"]):
        harness.commit({("t", number): OffsetAndMetadata(number, metadata)})
    node.shutdown()
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", b"damaged", 17)
    again = coordinated(Node(tmp_path), 1, offsets_load_buffer_size=load_buffer_size)
    assert again.committed() == {("t", 0): 0, ("t", 2): 2}
    (line,) = [record.getMessage() for record in caplog.records if "are skipped" in record.getMessage()]
    assert line.startswith(f"{OFFSETS_TOPIC}-0: offsets 1 to 1, the batch at position ")
    assert line.endswith(", are skipped: its CRC does not match")


@pytest.mark.parametrize("at", [16, 8], ids=["unknown format", "size beyond the end of the file"])
def test_what_is_before_a_batch_that_cannot_be_told_from_the_next_counts(tmp_path, caplog, at):
    """Damaged after the start, which would not have served the log."""
    node = Node(tmp_path)
    harness = coordinated(node, 1)
    for number, metadata in enumerate(["before", "damaged", "after"]):
        harness.commit({("t", number): OffsetAndMetadata(number, metadata)})
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", b"damaged", at)
    again = Harness(node.replica_manager, offsets_topic_num_partitions=1)
    again.scheduler.tick()
    assert again.committed() == {("t", 0): 0}
    assert "reading its records stopped by an error" in caplog.text


#: By which the marker of a transaction is found in a segment: its coordinator's epoch.
MARK = b"mark"


def commit_in_transaction(harness, number, offset):
    """For partition `number` of t."""
    answer = Answer()
    values = {TopicPartition("t", number): OffsetAndMetadata(offset, "in transaction")}
    harness.coordinator.offsets.commit_in_transaction("g", GroupMember(), (5, 0), values, answer)
    assert answer.result == {("t", number): 0}


def end_transaction(harness, marker):
    """1 commits, 0 aborts."""
    batch = RecordBatchBuilder(producer_id=5, producer_epoch=0, is_transactional=True, is_control=True)
    batch.append(b"\0\0" + MARK, bytes([0, 0, 0, marker]), timestamp=1)
    answer = Answer()
    harness.coordinator.manager.partitions.append(0, 0, batch.build(), answer)
    assert answer.error is None


@pytest.mark.parametrize("marker, expected", [(1, 7), (0, -1)])
@pytest.mark.parametrize("at", [17, 16], ids=["one batch is skipped", "reading stops"])
def test_a_transaction_whose_marker_is_damaged_has_ended_as_the_log_says(tmp_path, marker, expected, at):
    """A stable fetch would wait for ever, and the commit would not count."""
    node = Node(tmp_path)
    harness = coordinated(node, 1)
    harness.commit({("t", 1): 1})
    commit_in_transaction(harness, 0, 7)
    end_transaction(harness, marker)
    if at == 17:
        node.shutdown()
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", MARK, at)
    again = (
        coordinated(Node(tmp_path), 1) if at == 17 else Harness(node.replica_manager, offsets_topic_num_partitions=1)
    )
    again.scheduler.tick()
    fetched = again.coordinator.offsets.fetch("g", [TopicPartition("t", 0)], require_stable=True)
    assert [tuple(result) for result in fetched.values()] == [
        (expected, -1, "in transaction" if expected == 7 else "", 0)
    ]


def test_a_transaction_that_is_open_after_a_damaged_batch_is_still_open(tmp_path):
    node = Node(tmp_path)
    harness = coordinated(node, 1)
    commit_in_transaction(harness, 0, 7)
    harness.commit({("t", 1): OffsetAndMetadata(1, "damaged")})
    node.shutdown()
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", b"damaged", 17)
    again = coordinated(Node(tmp_path), 1)
    assert again.committed(require_stable=True) == {}
    fetched = again.coordinator.offsets.fetch("g", [TopicPartition("t", 0)], require_stable=True)
    assert [result.error_code for result in fetched.values()] == [errors.UnstableOffsetCommit.code]
    again.coordinator.manager.end_transaction(5, {0: 0}, True)
    assert again.committed() == {("t", 0): 7}


@pytest.mark.parametrize("marker, expected", [(1, 7), (0, 3)])
def test_the_next_transaction_of_a_producer_does_not_end_one_whose_marker_is_damaged(tmp_path, marker, expected):
    """It commits or aborts its own offsets, here of another partition."""
    node = Node(tmp_path)
    harness = coordinated(node, 1)
    harness.commit({("t", 0): 3})
    commit_in_transaction(harness, 0, 7)
    end_transaction(harness, marker)
    commit_in_transaction(harness, 9, 9)
    end_transaction(harness, 1 - marker)
    node.shutdown()
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", MARK, 17)
    again = coordinated(Node(tmp_path), 1)
    assert again.committed(require_stable=True) == {("t", 0): expected} | ({("t", 9): 9} if marker == 0 else {})


@pytest.mark.parametrize("load_buffer_size", [1, 300, 5 << 20])
@pytest.mark.parametrize("number", [0, 8, 9, 10, 11, 199])
@pytest.mark.parametrize("at", [3, 6])
@pytest.mark.parametrize("segment_bytes", [1_000, 1 << 20])
def test_a_base_offset_that_is_too_high_costs_nothing_of_what_follows(
    tmp_path, load_buffer_size, number, at, segment_bytes
):
    """Wherever a read ends, or a segment.  Its byte `at` is damaged, which no CRC covers."""
    node = Node(tmp_path, {OFFSETS_TOPIC: {"segment.bytes": str(segment_bytes)}})
    harness = coordinated(node, 1)
    for one in range(200):
        harness.commit({("t", one): OffsetAndMetadata(one, "damaged" if one == number else "")})
    damaged(tmp_path / f"{OFFSETS_TOPIC}-0", b"damaged", at)
    again = Harness(node.replica_manager, offsets_topic_num_partitions=1, offsets_load_buffer_size=load_buffer_size)
    again.scheduler.tick()
    assert again.committed() == {("t", one): one for one in range(200)}
