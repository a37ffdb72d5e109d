"""Records of consumer groups of KIP-848: bytes, and what is written when."""

import struct
import uuid
from dataclasses import replace

import pytest

from kcore.coordinator.group.consumer_group import ConsumerGroup, ConsumerMember, MemberState, ResolvedRegex
from kcore.coordinator.group.consumer_group_records import (
    ConsumerGroupReplay,
    Touched,
    read_consumer_group_key,
    records_between,
    tombstones,
)
from kcore.errors import CorruptMessage

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
MEMBER = ConsumerMember(
    "m",
    None,
    "rack",
    "client",
    "/127.0.0.1",
    300_000,
    ("t", "u"),
    "uniform",
    None,
    5,
    4,
    MemberState.UNREVOKED_PARTITIONS,
    frozenset({(T, 1), (T, 0)}),
    frozenset({(U, 3)}),
    assignment_epochs={(T, 0): 3, (T, 1): 5, (U, 3): 2},
)
GROUP = ConsumerGroup("g", 6, -2, 5, {"m": MEMBER}, {"m": frozenset({(T, 0)})})
PATTERN_MEMBER = replace(MEMBER, regex="u.*")
PATTERN_GROUP = replace(GROUP, members={"m": PATTERN_MEMBER}, resolved={"u.*": ResolvedRegex(("u", "u2"), 1000)})


def short(text):
    """Not flexible: int16 length."""
    return struct.pack(">h", len(text)) + text.encode()


def compact(text):
    return b"\0" if text is None else bytes([len(text) + 1]) + text.encode()


def numbers(*values):
    return bytes([len(values) + 1]) + b"".join(struct.pack(">i", value) for value in values)


def topic(topic_id, *partitions, epochs=None):
    tags = b"\0" if epochs is None else b"\x01\x00" + bytes([len(numbers(*epochs))]) + numbers(*epochs)
    return topic_id.bytes + numbers(*partitions) + tags


def current(of_t, of_u):
    return struct.pack(">hiib", 0, 5, 4, 1) + b"\x02" + of_t + b"\x02" + of_u + b"\0"


CURRENT = struct.pack(">h", 8) + short("g") + short("m")
#: By the message definitions of Kafka 4.3, by hand: int16 version, then the fields, then tagged fields.
EXPECTED = {
    struct.pack(">h", 3) + short("g"): struct.pack(">hi", 0, 6) + b"\x01\x00\x08" + struct.pack(">q", -2),
    struct.pack(">h", 5) + short("g") + short("m"): b"\0\0"
    + compact(None)
    + compact("rack")
    + compact("client")
    + compact("/127.0.0.1")
    + b"\x03"
    + compact("t")
    + compact("u")
    + compact(None)
    + struct.pack(">i", 300_000)
    + compact("uniform")
    # Tag 0, of one byte, null: no member of the classic protocol.
    + b"\x01\x00\x01\x00",
    struct.pack(">h", 6) + short("g"): struct.pack(">hi", 0, 5) + b"\0",
    struct.pack(">h", 7) + short("g") + short("m"): b"\0\0" + b"\x02" + topic(T, 0) + b"\0",
    CURRENT: current(topic(T, 0, 1, epochs=[3, 5]), topic(U, 3, epochs=[2])),
}


def replayed(*batches):
    replay = ConsumerGroupReplay("g")
    for records in batches:
        for key, value in records:
            replay.read(read_consumer_group_key(key), value)
    return replay.group()


def types(records):
    return [(key[1], value is None) for key, value in records]


def test_CG_56_records_have_the_bytes_of_kafka():
    assert dict(records_between(None, GROUP)) == EXPECTED
    assert replayed(EXPECTED.items()) == GROUP


def test_CG_56_tags_of_newer_brokers_are_read_over():
    target_epoch = struct.pack(">hi", 0, 5) + b"\x01\x00\x08" + struct.pack(">q", 1_700_000_000_000)
    group_epoch = struct.pack(">hi", 0, 6) + b"\x02\x00\x08" + struct.pack(">q", -2) + b"\x01\x08" + bytes(8)
    newer = {
        **EXPECTED,
        struct.pack(">h", 6) + short("g"): target_epoch,
        struct.pack(">h", 3) + short("g"): group_epoch,
    }
    assert replayed(newer.items()) == GROUP


@pytest.mark.parametrize("epochs", [None, [3]])
def test_CG_56_partitions_of_a_record_without_an_epoch_for_each_are_assigned_since_the_epoch_of_the_member(epochs):
    """As of a broker before 4.3; Kafka takes another number of epochs than of partitions for the same."""
    older = EXPECTED | {CURRENT: current(topic(T, 0, 1, epochs=epochs), topic(U, 3, epochs=[2]))}
    member = replace(MEMBER, assignment_epochs={(T, 0): 5, (T, 1): 5, (U, 3): 2})
    assert replayed(older.items()) == replace(GROUP, members={"m": member})


def test_CG_56_partitions_of_a_static_member_that_is_away_are_assigned_since_epoch_0():
    """Its epoch in the records of a broker before 4.3 is -2."""
    away = struct.pack(">hiib", 0, -2, 5, 0) + b"\x02" + topic(T, 0) + b"\x01" + b"\0"
    assert replayed((EXPECTED | {CURRENT: away}).items()).members["m"].assignment_epochs == {(T, 0): 0}


def test_CG_56_tombstones_of_a_member_come_in_the_order_8_7_5_and_those_of_a_group_end_with_its_epoch():
    without = replace(GROUP, epoch=7, members={}, targets={})
    records = records_between(GROUP, without)
    assert types(records) == [(8, True), (7, True), (5, True), (3, False)]
    assert replayed(EXPECTED.items(), records) == without
    assert types(tombstones(GROUP)) == [(8, True), (7, True), (6, True), (5, True), (3, True)]
    assert replayed(EXPECTED.items(), tombstones(GROUP)) is None


def test_CG_33_the_topics_of_a_regular_expression_are_a_record_with_the_bytes_of_kafka():
    """By ConsumerGroupRegularExpressionKey.json and -Value.json of Kafka 4.3, by hand."""
    records = [(k, v) for k, v in records_between(None, PATTERN_GROUP) if k[1] == 16]
    topics = b"\x03" + compact("u") + compact("u2")
    value = b"\0\0" + topics + struct.pack(">qq", 0, 1000) + b"\0"
    assert records == [(struct.pack(">h", 16) + short("g") + short("u.*"), value)]
    assert replayed(records_between(None, PATTERN_GROUP)) == PATTERN_GROUP


def test_CG_36_a_regular_expression_that_nobody_has_any_more_gets_a_tombstone():
    key = struct.pack(">h", 16) + short("g") + short("u.*")
    changed = records_between(PATTERN_GROUP, GROUP)
    assert [(k, v) for k, v in changed if k[1] == 16] == [(key, None)]
    assert [(k, v) for k, v in tombstones(PATTERN_GROUP) if k[1] == 16] == [(key, None)]
    assert replayed(records_between(None, PATTERN_GROUP), changed) == GROUP
    assert replayed(records_between(None, PATTERN_GROUP), tombstones(PATTERN_GROUP)) is None


def test_only_what_has_changed_is_written():
    moved = replace(MEMBER, epoch=6, previous_epoch=5, state=MemberState.STABLE, revoking=frozenset())
    assert records_between(GROUP, GROUP) == []
    assert types(records_between(GROUP, replace(GROUP, members={"m": moved}))) == [(8, False)]
    assert types(records_between(GROUP, replace(GROUP, assignment_epoch=6))) == [(6, False)]


def test_what_did_not_reach_the_log_is_written_again():
    other = replace(MEMBER, member_id="n")
    now = replace(GROUP, members={"n": other}, targets={"n": frozenset()})
    records = records_between(now, now, Touched(frozenset({"m", "n"})))
    assert replayed(EXPECTED.items(), records) == now


def test_the_removal_of_a_regular_expression_that_did_not_reach_the_log_is_written_again():
    unsaved = Touched(regexes=frozenset({"u.*"}))
    of_regexes = [(k, v) for k, v in records_between(GROUP, GROUP, unsaved) if k[1] == 16]
    assert of_regexes == [(struct.pack(">h", 16) + short("g") + short("u.*"), None)]
    assert [(k, v) for k, v in tombstones(GROUP, unsaved) if k[1] == 16] == of_regexes
    still_there = records_between(PATTERN_GROUP, PATTERN_GROUP, unsaved)
    assert [v is None for k, v in still_there if k[1] == 16] == [False]


def test_records_of_an_unknown_version_and_cut_ones_are_refused_and_change_nothing():
    replay = ConsumerGroupReplay("g")
    for key, value in EXPECTED.items():
        replay.read(read_consumer_group_key(key), value)
        for length in range(len(value)):
            with pytest.raises(CorruptMessage):
                replay.read(read_consumer_group_key(key), value[:length])
        with pytest.raises(CorruptMessage, match="unknown version"):
            replay.read(read_consumer_group_key(key), b"\0\1" + value[2:])
        for length in range(2, len(key)):
            with pytest.raises(CorruptMessage):
                read_consumer_group_key(key[:length])
    assert replay.group() == GROUP


def test_keys_of_other_types_are_none_of_these():
    assert [read_consumer_group_key(struct.pack(">h", n) + short("g")) for n in (0, 1, 2, 9, 15, 17)] == [None] * 6
    assert read_consumer_group_key(struct.pack(">h", 4) + short("g")).record_type == 4
