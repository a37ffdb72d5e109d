"""The client of the replication benchmarks: Produce requests that were encoded before the clock started.

What is timed is the brokers' work and the sockets between; the client only sends bytes and reads answers, with several
requests in flight per connection, as a producer does.  It speaks to kcore and to a real Kafka alike.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Mapping

from bench.micro.bench_log_segment import batch_of_size
from kcore.client.blocking_sender import BlockingSender
from kcore.errors import for_code
from kcore.protocol.headers import decode_response_header, encode_request_header
from kcore.protocol.messages import response_class
from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kcore.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kcore.protocol.schema import Message

Address = tuple[str, int]

PRODUCE_VERSION = 9
METADATA_VERSION = 9
IN_FLIGHT = 5
TIMEOUT_S = 120
CLIENT_ID = "bench"


def produce_frame(topic: str, partition: int, batch: bytes | bytearray, acks: int) -> bytes:
    """One whole request with its size before it; every request has correlation id 1."""
    data = PartitionProduceData(index=partition, records=bytes(batch))
    body = ProduceRequest(
        acks=acks, timeout_ms=TIMEOUT_S * 1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    ).encode(PRODUCE_VERSION)
    header = encode_request_header(ProduceRequest.api_key, PRODUCE_VERSION, 1, CLIENT_ID)
    return struct.pack(">i", len(header) + len(body)) + header + body


def send(connection: socket.socket, request: Message, version: int) -> None:
    header, body = encode_request_header(request.api_key, version, 1, CLIENT_ID), request.encode(version)
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)


def receive(connection: socket.socket, request: Message, version: int) -> Message:
    """The answer to the request.  Raises OSError if the broker closes the connection."""
    size = connection.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        raise OSError("the broker closed the connection")
    frame = connection.recv(int.from_bytes(size), socket.MSG_WAITALL)
    _, position = decode_response_header(frame, request.api_key, version)
    return response_class(request.api_key).decode(frame, version, position)


class Connection:
    """A connection to the leader of one partition, over which the same request goes again and again."""

    def __init__(self, address: Address, frame: bytes, requests: int) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame = frame
        self.unsent = requests
        self.unanswered = requests
        self._received = bytearray()

    def send(self, requests: int) -> None:
        for _ in range(min(requests, self.unsent)):
            self.socket.sendall(self.frame)
            self.unsent -= 1

    def receive(self) -> int:
        """How many answers came.  Raises the error that one of them has, OSError."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise OSError("the broker closed the connection")
        received = self._received
        received += data
        answers = 0
        while len(received) >= 4 and len(received) >= 4 + (size := int.from_bytes(received[:4])):
            check_answer(bytes(received[4 : 4 + size]))
            del received[: 4 + size]
            answers += 1
        self.unanswered -= answers
        return answers


def check_answer(frame: bytes) -> None:
    _, position = decode_response_header(frame, ProduceResponse.api_key, PRODUCE_VERSION)
    answer = ProduceResponse.decode(frame, PRODUCE_VERSION, position).responses[0].partition_responses[0]
    if answer.error_code:
        raise for_code(answer.error_code)(f"partition {answer.index}: {answer.error_message}")


def produce(leaders: Mapping[int, Address], topic: str, batch_size: int, total_bytes: int, acks: int = -1) -> float:
    """Seconds until total_bytes, in batches of batch_size, spread over the partitions, are acknowledged."""
    batch = batch_of_size(batch_size)
    requests = max(1, total_bytes // batch_size // len(leaders))
    connections = [
        Connection(address, produce_frame(topic, partition, batch, acks), requests)
        for partition, address in leaders.items()
    ]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    start = time.perf_counter()
    for connection in connections:
        connection.send(IN_FLIGHT)
    waiting = len(connections)
    while waiting:
        ready = selector.select(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"no answer for {TIMEOUT_S} s")
        for key, _ in ready:
            connection = key.data
            connection.send(connection.receive())
            if not connection.unanswered:
                selector.unregister(connection.socket)
                connection.socket.close()
                waiting -= 1
    taken = time.perf_counter() - start
    selector.close()
    return taken


def round_trips(leader: Address, topic: str, partition: int, count: int, acks: int = -1) -> list[float]:
    """Seconds of each of `count` requests with one small record, one at a time."""
    connection = Connection(leader, produce_frame(topic, partition, batch_of_size(170), acks), count)
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        connection.send(1)
        while not connection.receive():
            pass
        taken.append(time.perf_counter() - start)
    connection.socket.close()
    return taken


def metadata(bootstrap: Address, topic: str) -> MetadataResponse:
    """Raises OSError while the broker does not answer."""
    sender = BlockingSender(*bootstrap, CLIENT_ID, request_timeout_ms=5000)
    try:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        response = sender.send(request, METADATA_VERSION)
        assert isinstance(response, MetadataResponse)
        return response
    finally:
        sender.close()


def leaders_of_whole_isr(bootstrap: Address, topic: str, partitions: int, replicas: int) -> dict[int, Address]:
    """Partition -> address of its leader, once every partition has a leader and all its replicas in sync.

    Every broker must say so: one that has not heard of the topic yet does not lead it yet.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            leaders = _leaders(bootstrap, topic, partitions, replicas)
            if leaders and all(_leaders(leader, topic, partitions, replicas) == leaders for leader in leaders.values()):
                return leaders
        except OSError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{topic}: the ISR is not whole after {TIMEOUT_S} s")


def _leaders(broker: Address, topic: str, partitions: int, replicas: int) -> dict[int, Address] | None:
    """What this broker says; None unless every partition has a leader and its whole ISR."""
    response = metadata(broker, topic)
    addresses = {node.node_id: (node.host, node.port) for node in response.brokers}
    states = response.topics[0].partitions
    if len(states) != partitions:
        return None
    if any(state.leader_id not in addresses or len(state.isr_nodes) != replicas for state in states):
        return None
    return {state.partition_index: addresses[state.leader_id] for state in states}
