"""What a partition of __consumer_offsets says, against a model that reads each key and value anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import CommittedOffset, OffsetAndMetadata
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.group_records import (
    OffsetCommitKey,
    offset_commit_key,
    offset_commit_value,
    read_key,
    read_offset_commit_value,
)
from kcore.errors import CorruptMessage
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

GROUPS, TOPICS = ("", "g", "gt", "é"), ("t", "gt", "é" * 40)
PRODUCER_ID = 7

keys = st.builds(
    lambda group_id, topic, partition, version: (
        version + offset_commit_key(group_id, TopicPartition(topic, partition))[2:]
    ),
    st.sampled_from(GROUPS),
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.sampled_from((b"\0\0", b"\0\1")),
)
damaged_keys = st.one_of(
    st.tuples(keys, st.integers(0, 12)).map(lambda cut: cut[0][: cut[1]]),
    # The size of the group's id is another one; bytes that are not UTF-8; more bytes than there should be.
    st.tuples(keys, st.sampled_from((0, 1, 2, 0x7FFF, 0x8000, 0xFFFF))).map(
        lambda sized: sized[0][:2] + sized[1].to_bytes(2, "big") + sized[0][4:]
    ),
    st.tuples(keys, st.integers(4, 12)).map(lambda at: at[0][: at[1]] + b"\xff" + at[0][at[1] + 1 :]),
    keys.map(lambda key: key + b"more"),
)
values = st.one_of(
    st.none(),
    st.integers(0, 9).map(lambda offset: offset_commit_value(OffsetAndMetadata(offset, "m"))),
    st.just(b"\0\3damaged"),
)
batches = st.lists(
    st.tuples(
        st.sampled_from(("plain", "plain", "transactional", "commit", "abort")),
        st.lists(st.tuples(st.one_of(keys, keys, keys, damaged_keys), values), min_size=1, max_size=6),
    ),
    max_size=8,
)


def log_of(batches):
    """The batches one after the other, with offsets."""
    data, offset = bytearray(), 0
    for kind, records in batches:
        producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        if kind == "plain":
            producer = {}
        elif kind != "transactional":
            producer |= {"base_sequence": -1, "is_control": True}
            records = [((b"\0\0\0\1" if kind == "commit" else b"\0\0\0\0"), bytes(6))]
        builder = RecordBatchBuilder(base_offset=offset, **producer)
        for key, value in records:
            builder.append(value, key, timestamp=1_000)
        data += builder.build()
        offset += len(records)
    return MemoryRecords(bytes(data)).batches


def expected(batches):
    """(offsets by group and partition, those of the open transaction)"""
    offsets, of_transaction, base_offset = {}, {}, 0
    for kind, records in batches:
        if kind in ("commit", "abort"):
            for key, committed in of_transaction.items() if kind == "commit" else ():
                if committed is None:
                    offsets.pop(key, None)
                elif key not in offsets or offsets[key].append_offset < committed.append_offset:
                    offsets[key] = committed
            of_transaction = {}
            base_offset += 1
            continue
        for key, value in records:
            try:
                place = read_key(key)
                committed = None if value is None else CommittedOffset(base_offset, read_offset_commit_value(value))
            except CorruptMessage:
                continue
            if not isinstance(place, OffsetCommitKey):
                continue
            if kind == "transactional":
                of_transaction[place] = committed
            elif committed is None:
                offsets.pop(place, None)
                of_transaction.pop(place, None)
            else:
                offsets[place] = committed
        base_offset += len(records)
    return offsets, {key: committed for key, committed in of_transaction.items() if committed is not None}


@given(batches)
def test_offsets_are_those_of_the_last_readable_record_of_each_key(batches):
    published = []
    load = GroupLoad(TopicPartition("__consumer_offsets", 0), MockTime(), published.extend, lambda group: None)
    for batch in log_of(batches):
        load.read_batch(batch)
    load.finish()
    load.publish()
    offsets = {(group.group_id, tp): committed for group in published for tp, committed in group.offsets.items()}
    of_transaction = {
        (group.group_id, tp): committed
        for group in published
        for tp, committed in group.transactional_offsets.get(PRODUCER_ID, {}).items()
    }
    assert (offsets, of_transaction) == expected(batches)
    assert all(group.offsets or group.transactional_offsets for group in published)


def test_groups_share_the_partitions_that_they_read():
    records = [
        (offset_commit_key(group_id, TopicPartition("t", 0)), offset_commit_value(OffsetAndMetadata(1)))
        for group_id in "ab"
    ]
    published = []
    load = GroupLoad(TopicPartition("__consumer_offsets", 0), MockTime(), published.extend, lambda group: None)
    for batch in log_of([("plain", records)]):
        load.read_batch(batch)
    load.finish()
    load.publish()
    (of_a,), (of_b,) = (group.offsets for group in published)
    assert of_a is of_b


@pytest.mark.parametrize("is_committed, expected", [(True, {"offsets": {1}}), (None, {"pending": {1}}), (False, {})])
def test_a_tombstone_removes_what_a_transaction_has_committed_whose_marker_may_have_been_left_out(
    is_committed, expected
):
    """The log says whether the transaction is committed; what came after its commits still counts."""
    keys = [offset_commit_key("g", TopicPartition("t", number)) for number in range(2)]
    value = offset_commit_value(OffsetAndMetadata(1))
    in_transaction, tombstone = log_of(
        [("transactional", [(key, value) for key in keys]), ("plain", [(keys[0], None)])]
    )
    published = []
    load = GroupLoad(
        TopicPartition("__consumer_offsets", 0),
        MockTime(),
        published.extend,
        lambda group: None,
        lambda producer_id, offset: is_committed,
    )
    load.read_batch(in_transaction)
    load.skip()
    load.read_batch(tombstone)
    load.finish()
    load.publish()
    found = {}
    for group in published:
        for name, offsets in (("offsets", group.offsets), ("pending", group.transactional_offsets.get(PRODUCER_ID))):
            if offsets:
                found[name] = {topic_partition.partition for topic_partition in offsets}
    assert found == expected
