"""Every message in every version: there and back, and nothing but InvalidRequest for bytes that cannot be one."""

import contextlib
import random
import struct
import sys
import threading
import time
import tracemalloc
import uuid
from functools import partial

import pytest

from kcore.errors import InvalidRequest, UnsupportedVersion
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.codec import TooManyElements
from kcore.protocol.messages import request_class, response_class
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
    subscribed_topics,
)
from kcore.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from kcore.protocol.messages.heartbeat import HeartbeatRequest
from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcore.protocol.schema import Message, Struct, array, int8, int32, string
from kcore.protocol.schema import struct as struct_field
from tests.unit.protocol.random_messages import all_messages, all_versions, case_id, random_struct

CASES = all_versions()


def test_the_messages_of_every_announced_api_are_there_in_every_announced_version():
    for key, (first, last) in SUPPORTED.items():
        for cls in (request_class(key), response_class(key)):
            assert cls.api_key is key
            assert cls.min_version <= first and last <= cls.max_version


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_what_is_encoded_decodes_to_an_equal_message(cls, version):
    seed = f"{cls.__name__}{version}"
    rng = random.Random(seed)
    for _ in range(30):
        sent = random_struct(rng, cls, version)
        data = sent.encode(version)
        got = cls.decode(data, version)
        assert got == sent, f"seed={seed}"
        assert got.encode(version) == data
        assert cls.decode(bytearray(b"head" + data), version, 4) == sent


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_a_message_of_defaults_comes_back_as_it_was(cls, version):
    assert cls.decode(cls().encode(version), version) == cls()


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_a_message_cut_anywhere_is_an_invalid_request(cls, version):
    seed = f"cut {cls.__name__}{version}"
    data = random_struct(random.Random(seed), cls, version, size=2).encode(version)
    for end in range(len(data)):
        with pytest.raises(InvalidRequest, match=rf"^{cls.__name__} version {version}: .* at position \d+: "):
            cls.decode(data[:end], version)


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_changed_bytes_raise_nothing_but_an_invalid_request_and_never_allocate_by_a_count(cls, version):
    seed = f"flip {cls.__name__}{version}"
    rng = random.Random(seed)
    for _ in range(8):
        data = bytearray(random_struct(rng, cls, version, size=2).encode(version))
        for _ in range(60):
            if not data:
                return
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 6])):
                changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            try:
                cls.decode(changed, version)
            except InvalidRequest:
                pass


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("count", [0x7FFFFFFF, 0x10000000, 100_000])
def test_a_huge_count_is_refused_before_anything_is_allocated(version, count):
    data = bytearray(FetchRequest().encode(version))
    if version == 4:
        data[-4:] = count.to_bytes(4, "big")
    else:
        value, varint = count + 1 & 0xFFFFFFFF, bytearray()
        while value >= 0x80:
            varint.append(value & 0x7F | 0x80)
            value >>= 7
        data[25:26] = bytes([*varint, value])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"FetchRequest version \d+: topics at position (17|2\d)"):
            FetchRequest.decode(data, version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_count_that_the_bytes_could_hold_costs_no_more_than_they_do():
    # 1 MB of 0xff claims 2^31-1 of everything; the reader stops at the first null.
    with pytest.raises(InvalidRequest):
        FetchRequest.decode(b"\xff" * 1_000_000, 4)


def test_the_complaint_names_the_fields_path_and_position():
    request = FetchRequest(topics=[FetchTopic(topic="a"), FetchTopic(topic="b", partitions=[FetchPartition()] * 3)])
    data = request.encode(4)
    with pytest.raises(InvalidRequest) as caught:
        FetchRequest.decode(data[:-5], 4)
    assert "FetchRequest version 4: topics[1].partitions[2].fetch_offset at position" in str(caught.value)


def test_a_string_that_is_not_utf8_is_an_invalid_request():
    with pytest.raises(InvalidRequest, match="group_id at position 2: string is not UTF-8"):
        HeartbeatRequest.decode(b"\x00\x01\xff" + bytes(6), 0)


def test_a_null_where_none_is_allowed_is_an_invalid_request():
    with pytest.raises(InvalidRequest, match="group_id at position 0: null"):
        HeartbeatRequest.decode(b"\xff\xff" + bytes(6), 0)
    with pytest.raises(InvalidRequest, match="group_id at position 0: null"):
        HeartbeatRequest.decode(bytes(9), 4)


def test_a_varint_of_six_bytes_is_an_invalid_request():
    with pytest.raises(InvalidRequest, match="more than 5 bytes"):
        HeartbeatRequest.decode(b"\x80\x80\x80\x80\x80\x80\x00" + bytes(9), 4)


def test_bytes_after_a_message_are_ignored_as_kafka_ignores_them():
    sent = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    assert HeartbeatRequest.decode(sent.encode(4) + b"more", 4) == sent


def test_unknown_tagged_fields_are_skipped():
    sent = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    data = sent.encode(4)
    assert data[-1] == 0
    assert HeartbeatRequest.decode(data[:-1] + b"\x02\x05\x02ab\x87\x01\x00", 4) == sent


def test_a_tagged_field_that_does_not_fill_its_size_is_an_invalid_request():
    sent = FetchRequest(replica_state=ReplicaState(replica_id=1, replica_epoch=2))
    data = sent.encode(15)
    assert data.endswith(b"\x01\x01\x0d" + b"\0\0\0\1" + bytes(7) + b"\2\0")
    assert FetchRequest.decode(data, 15) == sent
    for size, complaint in [(0x0C, "replica_state at position"), (0x0E, "14 bytes expected, 13 left")]:
        broken = bytearray(data)
        broken[-14] = size
        with pytest.raises(InvalidRequest, match=complaint):
            FetchRequest.decode(broken, 15)
    with pytest.raises(InvalidRequest, match=r"replica_state at position .*1 bytes of its size unread"):
        FetchRequest.decode(data[:-14] + b"\x0e" + data[-13:] + b"\0", 15)


def test_a_version_outside_the_messages_range_is_unsupported_both_ways():
    for version in (-1, 5, 0x7FFF):
        with pytest.raises(UnsupportedVersion, match="HeartbeatRequest has versions 0 to 4"):
            HeartbeatRequest().encode(version)
        with pytest.raises(UnsupportedVersion):
            HeartbeatRequest.decode(bytes(100), version)


def test_a_value_that_the_version_cannot_carry_is_refused_unless_it_may_be_ignored():
    partition = FetchPartition(current_leader_epoch=9)  # ignorable
    assert FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])]).encode(4)
    partition.last_fetched_epoch = 3  # not ignorable
    with pytest.raises(UnsupportedVersion, match=r"FetchPartition.last_fetched_epoch"):
        FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])]).encode(11)
    with pytest.raises(UnsupportedVersion, match=r"FetchRequest.replica_state"):
        FetchRequest(replica_state=ReplicaState(replica_id=1)).encode(14)
    with pytest.raises(UnsupportedVersion, match=r"HeartbeatRequest.group_instance_id"):
        HeartbeatRequest(group_instance_id="i").encode(2)
    with pytest.raises(UnsupportedVersion, match=r"MetadataRequest.topics"):
        MetadataRequest(topics=None).encode(0)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (lambda: HeartbeatRequest(generation_id=2**31), "HeartbeatRequest.generation_id"),
        (lambda: HeartbeatRequest(generation_id="3"), "HeartbeatRequest.generation_id"),
        (lambda: HeartbeatRequest(generation_id=2**80), "HeartbeatRequest.generation_id"),
        (lambda: HeartbeatRequest(group_id=b"g"), "HeartbeatRequest.group_id"),
        (lambda: HeartbeatRequest(group_id="x" * 32_768), "HeartbeatRequest.group_id"),
        (lambda: HeartbeatRequest(group_id="\ud800"), "HeartbeatRequest.group_id"),
        (lambda: MetadataRequest(topics=["t"]), "MetadataRequest.topics.*MetadataRequestTopic expected, got str"),
        (lambda: MetadataRequest(topics=[None]), "MetadataRequest.topics"),
        (lambda: MetadataRequest(topics=7), "MetadataRequest.topics"),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_a_value_that_no_version_can_carry_is_named(message, complaint, version):
    with pytest.raises((ValueError, TypeError, OverflowError, UnsupportedVersion), match=complaint):
        message().encode(version)


def test_an_unknown_keyword_is_refused_and_a_deleted_field_noticed():
    with pytest.raises(TypeError, match="no field 'group'"):
        HeartbeatRequest(group="g")
    request = HeartbeatRequest()
    del request.group_id
    with pytest.raises(AttributeError):
        request.encode(0)
    with pytest.raises(AttributeError):
        request.nothing = 1


def test_two_messages_share_no_default():
    FetchRequest().topics.append(FetchTopic())
    FetchRequest().replica_state.replica_id = 7
    assert FetchRequest().topics == []
    assert FetchRequest().replica_state.replica_id == -1


def test_messages_compare_by_value_and_show_what_differs_from_the_default():
    assert FetchTopic(topic="a") == FetchTopic(topic="a") != FetchTopic(topic="b")
    assert FetchTopic() != FetchPartition()
    assert repr(FetchTopic(topic="a", partitions=[FetchPartition(partition=1)])) == (
        "FetchTopic(topic='a', partitions=[FetchPartition(partition=1)])"
    )
    with pytest.raises(TypeError):
        hash(FetchTopic())


class Cursor(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class RequestWithCursor(Message):
    """Of no API here: Kafka's DescribeTopicPartitions has such a field."""

    api_key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    min_version, max_version, flexible_version = 0, 0, 0

    cursor: Cursor | None = struct_field(Cursor, nullable="0+", default=None)


def test_a_nullable_struct_is_null_by_its_marker():
    for cursor, data in ((None, b"\xff\0"), (Cursor(topic_name="t", partition_index=4), b"\1\2t\0\0\0\4\0\0")):
        assert RequestWithCursor(cursor=cursor).encode(0) == data
        assert RequestWithCursor.decode(data, 0).cursor == cursor


class RequestWithTaggedCursor(Message):
    """Of no API here: the record of a member of a consumer group has such a field."""

    api_key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    min_version, max_version, flexible_version = 0, 0, 0

    cursor: Cursor | None = struct_field(Cursor, nullable="0+", tag=0)


def test_a_nullable_struct_in_a_tag_is_null_by_the_marker_0():
    """An absent tag is the default, a struct of defaults."""
    some = Cursor(topic_name="t", partition_index=4)
    for cursor, data in (
        (None, b"\1\0\1\0"),
        (some, b"\1\0\x08\1\2t\0\0\0\4\0"),
        (Cursor(), b"\0"),
    ):
        assert RequestWithTaggedCursor(cursor=cursor).encode(0) == data
        assert RequestWithTaggedCursor.decode(data, 0).cursor == cursor


def produce_request(records):
    return ProduceRequest(
        acks=-1,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
    )


@pytest.mark.parametrize("version", [3, 9])
def test_decoded_records_are_a_view_of_the_request(version):
    data = bytearray(produce_request(b"\0" * 70).encode(version))
    (topic,) = ProduceRequest.decode(data, version).topic_data
    records = topic.partition_data[0].records
    assert isinstance(records, memoryview) and not records.readonly and len(records) == 70
    records[:3] = b"abc"
    assert b"abc" in data
    (topic,) = ProduceRequest.decode(bytes(data), version).topic_data
    assert topic.partition_data[0].records.readonly


class Slice:
    """As a file slice looks to the writer."""

    path, position = "x.log", 100

    def __init__(self, data, size=None):
        self.data = data
        self.size_in_bytes = len(data) if size is None else size

    def read(self):
        return bytearray(self.data)


def fetch_response(*records):
    partitions = [PartitionData(partition_index=i, records=r) for i, r in enumerate(records)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 12])
def test_file_slices_stand_between_the_bytes_and_are_counted_in_the_frame(version):
    first, second = Slice(b"a" * 100), Slice(b"b" * 5_000)
    response = fetch_response(first, b"", second, Slice(b""), None, memoryview(b"plain"))
    chunks = response.encode_chunks(version)
    assert [type(chunk) for chunk in chunks] == [bytes, Slice, bytes, Slice, bytes]
    whole = b"".join(chunk if isinstance(chunk, bytes) else chunk.data for chunk in chunks)
    assert response.encode(version) == whole
    assert whole == fetch_response(b"a" * 100, b"", b"b" * 5_000, b"", None, b"plain").encode(version)
    assert response.encode_chunks(version, b"prefix")[0] == b"prefix" + chunks[0]
    frame = response.encode_frame(version, b"head")
    assert frame[0] == (len(whole) + 4).to_bytes(4, "big") + b"head" + chunks[0]
    assert frame[1:] == chunks[1:]


def test_a_file_slice_that_was_cut_meanwhile_is_not_encoded_as_if_it_were_whole():
    with pytest.raises(OSError, match="99 of 100 bytes"):
        fetch_response(Slice(b"a" * 99, 100)).encode(4)


def test_tagged_fields_longer_than_127_bytes_get_a_longer_size():
    topic = FetchableTopicResponse(partitions=[PartitionData(current_leader=LeaderIdAndEpoch(leader_id=3))])
    response = FetchResponse(responses=[topic])
    from kcore.protocol.messages.fetch import NodeEndpoint

    response.node_endpoints = [NodeEndpoint(node_id=i, host="h" * 100, port=i) for i in range(300)]
    assert FetchResponse.decode(response.encode(16), 16) == response


def test_a_uuid_is_the_same_value_however_often_it_comes():
    ids = [uuid.UUID(int=i) for i in range(5_000)]
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=i, name=None) for i in ids])
    for _ in range(2):
        assert [topic.topic_id for topic in MetadataRequest.decode(request.encode(12), 12).topics] == ids


def subscription(version):
    message = ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=b"u",
        owned_partitions=[TopicPartition(topic="a", partitions=[0, 1])],
        generation_id=7,
        rack_id="r",
    )
    return struct.pack(">h", version) + message.encode(min(version, 3))


def test_topics_are_read_from_a_subscription_of_any_version():
    for version in range(4):
        assert subscribed_topics(subscription(version)) == ["a", "b"]
    assert subscribed_topics(subscription(9) + b"newer field") == ["a", "b"]
    assert subscribed_topics(b"\0\1" + subscription(0)[2:]) == ["a", "b"], "version 1 without owned partitions"


def test_what_is_no_subscription_is_an_invalid_request():
    whole = subscription(0)
    for broken in (*(whole[:size] for size in range(len(whole))), b"\xff\xff" + whole[2:], b"\0\0\xff\xff\xff\xff"):
        with pytest.raises(InvalidRequest):
            subscribed_topics(broken)
    rng = random.Random(5)
    for _ in range(2_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(InvalidRequest):
            assert all(isinstance(topic, str) for topic in subscribed_topics(bytes(damaged)))


def test_api_versions_requests_carry_no_body_before_version_3():
    assert ApiVersionsRequest(client_software_name="x").encode(2) == b""
    assert ApiVersionsRequest.decode(b"", 0) == ApiVersionsRequest()


def test_every_message_belongs_to_an_api_key_or_to_the_consumer_protocol():
    assert {cls.api_key for cls in all_messages() if hasattr(cls, "api_key")} >= set(SUPPORTED)
    assert request_class(ApiKey.FETCH) is FetchRequest
    assert response_class(ApiKey.FETCH) is FetchResponse


ELEMENTS = ["bool", "int8", "int16", "int32", "int64", "uuid", "string", "bytes", "struct"]


def message_with_an_array(element, nullable):
    class Element(Struct):
        number: int = int8()

    class Holder(Message):
        min_version, max_version, flexible_version = 0, 1, 1
        items: list = array(Element if element == "struct" else element, nullable="0+" if nullable else "")

    return Holder


def with_count(version, count, rest):
    if version == 0:
        return struct.pack(">i", count) + rest
    value, varint = count + 1, bytearray()
    while value >= 0x80:
        varint.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*varint, value]) + rest


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("version", [0, 1], ids=["fixed", "compact"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_an_array_never_has_more_elements_than_bytes_that_follow(element, version, nullable):
    holder = message_with_an_array(element, nullable)
    rest = bytes(50)
    for count in (51, 1000, 2**31 - 2):
        with pytest.raises(InvalidRequest, match=rf"items at position 0: length {count}, but only 50 bytes follow"):
            holder.decode(with_count(version, count, rest), version)
    with pytest.raises(InvalidRequest):  # 50 elements of one byte or more, and in a flexible version tagged fields
        holder.decode(with_count(version, 50, rest[:-1]), version)
    assert holder.decode(with_count(version, 0, rest), version).items == []


@pytest.mark.parametrize("version", [0, 1], ids=["fixed", "compact"])
def test_an_array_inside_a_tagged_field_is_bounded_by_that_field(version):
    class Holder(Message):
        min_version, max_version, flexible_version = 0, 1, 0
        items: list = array("int8", "0-1", tag=0)

    # One tagged field, tag 0, of 3 bytes: a count of 5 and two elements; more bytes follow it.
    with pytest.raises(InvalidRequest, match="length 5, but only 2 bytes follow"):
        Holder.decode(bytes([1, 0, 3, 6, 0, 0]) + bytes(50), version)
    assert Holder.decode(bytes([1, 0, 3, 3, 0, 0]) + bytes(50), version).items == [0, 0]


@pytest.mark.parametrize(("cls", "version"), CASES, ids=case_id)
def test_every_element_of_every_array_takes_at_least_one_byte(cls, version):
    """Only then is a count that is bounded by the bytes bounded by what they can hold."""

    # A struct in a flexible version has at least the number of its tagged fields.
    is_flexible = cls.flexible_version is not None and version >= cls.flexible_version

    def check(struct_class):
        for field in struct_class._layout.fields:
            if not field.versions[0] <= version <= field.versions[1] or field.struct is None:
                continue
            inner = [f for f in field.struct._layout.fields if f.versions[0] <= version <= f.versions[1]]
            assert any(f.tag < 0 for f in inner) or is_flexible, f"{struct_class.__name__}.{field.name}"
            check(field.struct)

    check(cls)


@pytest.mark.parametrize("version", [4, 12])
def test_a_message_of_more_elements_than_allowed_is_refused_before_they_are_read(version):
    topics = [FetchTopic(topic=name, partitions=[FetchPartition()] * 4) for name in ("a", "b")]
    data = FetchRequest(topics=topics).encode(version)  # 2 topics, 8 partitions
    assert len(FetchRequest.decode(data, version, 0, 10).topics) == 2
    with pytest.raises(TooManyElements):
        FetchRequest.decode(data, version, 0, 9)
    with pytest.raises(TooManyElements):  # although it is cut: what is beyond is not looked at
        FetchRequest.decode(data[:-1], version, 0, 9)


def test_other_threads_run_while_a_long_array_is_read_or_written():
    """sys.setswitchinterval gives the GIL away between bytecodes only, and the codec's loops have none."""
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()] * 200_000)])
    interval = sys.getswitchinterval()
    turns, stop = [], threading.Event()

    def count():
        while not stop.is_set():
            turns.append(1)
            time.sleep(0)

    thread = threading.Thread(target=count)
    sys.setswitchinterval(1e-5)
    thread.start()

    def turns_during(call):
        before = len(turns)
        result = call()
        return len(turns) - before, result

    try:
        # The operating system may leave the other thread without a core during one call, not during all of a minute.
        most_while_written = most_while_read = 0
        deadline = time.monotonic() + 60
        while min(most_while_written, most_while_read) <= 5 and time.monotonic() < deadline:
            while_written, data = turns_during(partial(request.encode, 4))
            while_read, _ = turns_during(partial(FetchRequest.decode, data, 4))
            most_while_written = max(most_while_written, while_written)
            most_while_read = max(most_while_read, while_read)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert most_while_written > 5
    assert most_while_read > 5
