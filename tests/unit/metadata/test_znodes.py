"""Bodies that somebody else wrote: each is read, or refused with StoreError."""

import json

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import StoreError

STATE = {"controller_epoch": 1, "leader": 0, "version": 1, "leader_epoch": 0, "isr": [0, 1]}
BROKER = {"version": 5, "endpoints": ["PLAINTEXT://h:9092"], "listener_security_protocol_map": {}}


def body(known, **changes):
    return json.dumps(known | changes).encode()


DECODERS = [
    znodes.TopicZNode.decode,
    znodes.PartitionStateZNode.decode,
    znodes.BrokerZNode.decode,
    znodes.ControllerZNode.decode,
    znodes.ProducerIdBlock.decode,
    znodes.decode_cluster_id,
    znodes.decode_config,
    znodes.decode_partitions,
    znodes.decode_reassignment,
    znodes.decode_log_dir_event,
    znodes.decode_deletion,
    znodes.decode_config_change,
]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__qualname__)
@pytest.mark.parametrize(
    "data",
    [b"", b"\xff{", b"null", b"[1]", b"{}", b"[" * 100_000],
    ids=["", "bytes", "null", "list", "{}", "deep"],
)
def test_a_body_of_something_else_is_an_error_of_the_store(decode, data):
    with pytest.raises(StoreError):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (znodes.PartitionStateZNode.decode, body(STATE, leader=2**31)),
        (znodes.PartitionStateZNode.decode, body(STATE, leader=1e999)),
        (znodes.PartitionStateZNode.decode, body(STATE, leader=-7)),
        (znodes.PartitionStateZNode.decode, body(STATE, leader_epoch=2**31 - 1)),
        (znodes.PartitionStateZNode.decode, body(STATE, controller_epoch=2**31)),
        (znodes.PartitionStateZNode.decode, body(STATE, isr=["0", "1"])),
        (znodes.PartitionStateZNode.decode, body(STATE, isr=[2**31])),
        (znodes.TopicZNode.decode, b'{"partitions":{"0":[4294967296]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":{"0":[1e999]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":{"0":[0.5]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":{"0":[-5]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":{"4294967296":[0]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":{"-1":[0]}}'),
        (znodes.TopicZNode.decode, b'{"partitions":[1,2]}'),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=[])),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=None)),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=["PLAINTEXT://h:99999999999"])),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=["PLAINTEXT://h:-1"])),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=["PLAINTEXT://\ud800:1"])),
        (znodes.BrokerZNode.decode, body(BROKER, endpoints=["PLAINTEXT://" + "h" * 40_000 + ":1"])),
        (znodes.BrokerZNode.decode, body(BROKER, rack=5)),
        (znodes.BrokerZNode.decode, body(BROKER, timestamp=1e999)),
        (znodes.ControllerZNode.decode, b'{"brokerid":1e999,"timestamp":"1"}'),
        (znodes.decode_partitions, b'{"partitions":[{"topic":"t","partition":1e999}]}'),
        (znodes.decode_partitions, b'{"partitions":[{"topic":"t","partition":4294967296}]}'),
        (znodes.decode_reassignment, b'{"partitions":[{"topic":"t","partition":0,"replicas":[99999999999]}]}'),
        (znodes.decode_reassignment, b'{"partitions":[{"topic":"t","partition":0,"replicas":["a"]}]}'),
        (znodes.decode_log_dir_event, b'{"broker":1e999}'),
    ],
)
def test_what_fits_into_no_request_is_an_error_of_the_store(decode, data):
    with pytest.raises(StoreError):
        decode(data)


def test_what_fits_is_read():
    largest = 2**31 - 1
    state = znodes.PartitionStateZNode(-1, largest - 1, [largest], largest)
    assert znodes.PartitionStateZNode.decode(state.encode()) == state
    topic = znodes.TopicZNode({largest: [largest, 0]})
    assert znodes.TopicZNode.decode(topic.encode()) == topic
    broker = znodes.BrokerZNode({"PLAINTEXT": ("::1", 65535)}, None, 5, {"PLAINTEXT": "PLAINTEXT"})
    assert znodes.BrokerZNode.decode(broker.encode()) == broker
    orders = {TopicPartition("t", largest): (largest, -1)}
    assert znodes.decode_reassignment(znodes.encode_reassignment(orders)) == orders


def test_only_a_written_int32_is_the_name_of_a_brokers_node():
    names = ["0", "2147483647", "2147483648", "99999999999", "01", "-1", "abc", "", "\u0662", "9" * 6000]
    assert [znodes.broker_id_of(name) for name in names] == [0, 2**31 - 1, *[None] * 8]
