"""A client that breaks every rule: the exact Kafka error or a closed connection, and everybody else is served."""

import random
import socket
import struct
import time

import pytest

import kcore
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.headers import encode_request_header
from kcore.protocol.messages import request_class
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kcore.protocol.messages.metadata import MetadataRequest
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.batches import batch
from tests.unit.server.client import Client


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker(socket_request_max_bytes=5_000_000) as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def bystander(broker):
    """A well-behaved client whose connection must survive everything."""
    with Client(broker) as client:
        yield client
        assert [b.port for b in client.ask(MetadataRequest(), 1).brokers] == [broker.port]
        assert produce(client, batch(b"still works")).error_code == 0


def produce(client, records, version=9, acks=1):
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)]),
        ],
    )
    return client.ask(request, version).responses[0].partition_responses[0]


@pytest.mark.parametrize("size", [-1, -(2**31), 5_000_001, 2**31 - 1, 0x47455420])  # the last is "GET "
def test_an_absurd_frame_size_closes_the_connection(broker, bystander, size):
    with Client(broker) as client:
        client.send_bytes(struct.pack(">i", size) + b"/ HTTP/1.1\r\n\r\n")
        assert client.is_closed()


@pytest.mark.parametrize("length", range(24))
def test_a_truncated_request_closes_the_connection(broker, bystander, length):
    request = encode_request_header(ApiKey.METADATA, 9, 1, "x") + MetadataRequest().encode(9)
    with Client(broker) as client:
        client.send_frame(request[: min(length, len(request) - 1)])
        assert client.is_closed()


def test_a_frame_that_never_ends_delays_no_other_connection(broker, bystander):
    clients = [Client(broker) for _ in range(30)]
    for client in clients:
        client.send_bytes(struct.pack(">i", 4_000_000) + bytes(70_000))
    with Client(broker) as fast:
        started = time.monotonic()
        for _ in range(50):
            assert produce(fast, batch(b"x")).error_code == 0
        assert time.monotonic() - started < 50
    for client in clients:
        client.sock.close()


@pytest.mark.parametrize("api_key", [-1, 4, 52, 99, 32767])
def test_an_unknown_api_closes_the_connection(broker, bystander, api_key):
    with Client(broker) as client:
        client.send_frame(struct.pack(">hhih", api_key, 0, 7, -1))
        assert client.is_closed()


@pytest.mark.parametrize("api_key", [key for key in SUPPORTED if key != ApiKey.API_VERSIONS], ids=lambda key: key.name)
def test_a_version_that_is_not_announced_closes_the_connection(broker, bystander, api_key):
    first, last = SUPPORTED[api_key]
    for version in {-1, first - 1, last + 1, 32767}:
        with Client(broker) as client:
            client.send_frame(struct.pack(">hhih", api_key, version, 7, -1) + bytes(20))
            assert client.is_closed(), f"version {version}"


@pytest.mark.parametrize("version", [5, 99, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0_with_unsupported_version(
    broker, bystander, version
):
    with Client(broker) as client:
        client.send_frame(struct.pack(">hhih", 18, version, 7, -1) + bytes(20))
        frame = client.receive_frame()
        correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
        assert (correlation_id, error_code) == (7, 35)
        keys = [struct.unpack_from(">hhh", frame, 10 + 6 * i) for i in range(count)]
        assert (18, *SUPPORTED[ApiKey.API_VERSIONS]) in keys
        assert client.ask(MetadataRequest(), 1).brokers  # the connection goes on


@pytest.mark.parametrize("count", [2**31 - 1, 1_000_000])
def test_an_impossible_array_length_closes_the_connection(broker, bystander, count):
    with Client(broker) as client:
        client.send_frame(encode_request_header(ApiKey.METADATA, 1, 1, "x") + struct.pack(">i", count) + b"\0\1t")
        assert client.is_closed()


def test_garbage_ends_connections_and_nothing_else(broker, bystander, seed):
    rng = random.Random(seed)
    for _ in range(300):
        with Client(broker) as client:
            client.sock.settimeout(60)
            try:
                client.send_frame(rng.randbytes(rng.choice([0, 1, 7, 8, 12, 50, 500])))
                client.sock.shutdown(socket.SHUT_WR)
                while client.sock.recv(65536):
                    pass
            except ConnectionError:
                pass


@pytest.mark.parametrize("api_key", SUPPORTED, ids=lambda key: key.name)
def test_mutated_requests_are_answered_or_end_their_connection(broker, bystander, api_key, seed):
    rng = random.Random(seed)
    for _ in range(40):
        version = rng.randint(*SUPPORTED[api_key])
        header = encode_request_header(api_key, version, 1, "mutant")
        body = bytearray(_plausible(api_key).encode(version))
        for _ in range(rng.randint(1, 6)):
            if body:
                body[rng.randrange(len(body))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        with Client(broker) as client:
            client.sock.settimeout(60)
            try:
                client.send_frame(header + body)
                client.sock.shutdown(socket.SHUT_WR)
                while client.sock.recv(65536):
                    pass
            except ConnectionError:
                pass


def _plausible(api_key):
    if api_key is ApiKey.PRODUCE:
        return ProduceRequest(
            acks=1,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"a", b"b"))])
            ],
        )
    if api_key is ApiKey.FETCH:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        return FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    return request_class(api_key)()


def _with(records, position, data):
    changed = bytearray(records)
    changed[position : position + len(data)] = data
    return bytes(changed)


def _sealed(records):
    """With the right CRC, so that the checks after that of the CRC must refuse them."""
    return _with(records, 17, struct.pack(">I", kcore.crc32c(records[21:])))


def _control_batch():
    builder = kcore.RecordBatchBuilder(is_control=True, is_transactional=False)
    builder.append(b"\0\0\0\0\0\0", b"\0\0\0\1", timestamp=1)
    return bytes(builder.build())


GOOD = batch(b"one", b"two", b"three")


@pytest.mark.parametrize(
    ("what", "records", "codes"),
    [
        ("no records", None, {87}),
        ("empty records", b"", {87}),
        ("a crc that does not match", _with(GOOD, 17, b"\0\0\0\0"), {2}),
        ("a flipped payload bit", _with(GOOD, len(GOOD) - 2, b"\xff"), {2}),
        ("magic 1", _with(GOOD, 16, b"\1"), {87}),
        ("magic 9", _with(GOOD, 16, b"\x09"), {87}),
        ("a batch length of -1", _with(GOOD, 8, struct.pack(">i", -1)), {2}),
        ("a batch length of 10", _with(GOOD, 8, struct.pack(">i", 10)), {2}),
        ("a batch length beyond the end", _with(GOOD, 8, struct.pack(">i", 2**31 - 1)), {2, 87}),
        ("a cut batch", GOOD[:-5], {2, 87}),
        ("a count of two billion", _sealed(_with(GOOD, 57, struct.pack(">i", 2**31 - 1))), {2, 87}),
        ("a negative count", _sealed(_with(GOOD, 57, struct.pack(">i", -1))), {2, 87}),
        ("a wrong last offset", _sealed(_with(GOOD, 23, struct.pack(">i", 7))), {2, 87}),
        ("a negative last offset", _sealed(_with(GOOD, 23, struct.pack(">i", -7))), {2, 87}),
        ("records that end early", _sealed(_with(GOOD, 61, b"\xff\xff\xff\xff\x0f")), {2, 87}),
        ("two batches", GOOD + GOOD, {87}),
        ("a control batch", _control_batch(), {87}),
        (
            "a transaction without its id",
            batch(b"x", is_transactional=True, producer_id=5, producer_epoch=0, base_sequence=0),
            {53},
        ),
        ("codec 7", _sealed(_with(GOOD, 22, b"\7")), {2, 76, 87}),
        ("lz4 that is none", _sealed(_with(GOOD, 22, b"\3")), {2, 87}),
        ("zstd that is none", _sealed(_with(GOOD, 22, b"\4")), {2, 87}),
        ("a log append time of its own", _sealed(_with(GOOD, 22, b"\x08")), {32, 87}),
        ("garbage", random.Random(3).randbytes(500), {2, 42, 43, 87}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_batch_is_refused_and_nothing_of_it_is_written(broker, bystander, what, records, codes):
    end = broker.log("t").log_end_offset
    with Client(broker) as client:
        answer = produce(client, records)
        assert answer.error_code in codes, (answer.error_code, answer.error_message)
        assert broker.log("t").log_end_offset == end
        assert produce(client, GOOD).error_code == 0  # the connection goes on


def test_a_bad_batch_with_acks_0_ends_the_connection(broker, bystander):
    with Client(broker) as client:
        request = ProduceRequest(
            acks=0,
            topic_data=[
                TopicProduceData(
                    name="t", partition_data=[PartitionProduceData(index=0, records=_with(GOOD, 17, b"bad!"))]
                )
            ],
        )
        client.send(request, 9)
        assert client.is_closed()


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_impossible_acks_are_refused(broker, bystander, acks):
    with Client(broker) as client:
        assert produce(client, GOOD, acks=acks).error_code == 21


def test_a_fetch_without_limits_is_bounded(broker, bystander):
    with Client(broker) as client:
        partitions = [
            FetchPartition(partition=n % 2, fetch_offset=offset, partition_max_bytes=2**31 - 1)
            for n, offset in enumerate([0, -1, 2**63 - 1, -(2**63), 0] * 200)
        ]
        request = FetchRequest(
            max_wait_ms=2**31 - 1,
            min_bytes=2**31 - 1,
            max_bytes=2**31 - 1,
            topics=[FetchTopic(topic="t", partitions=partitions)],
        )
        answer = client.ask(request, 11)
        assert {p.error_code for p in answer.responses[0].partitions} == {0, 1, 3}


def test_connections_that_say_nothing_leave_when_they_like(broker, bystander):
    socks = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(300)]
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
