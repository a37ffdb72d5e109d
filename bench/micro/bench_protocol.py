"""The wire codec on the two hottest messages: a Fetch request in, its response out, 10 partitions each, version 12.

The peers decode the same bytes and encode the same values; they hold the records as bytes of 1 byte, because they know
no file slices, so theirs is the better case.
"""

from __future__ import annotations

import io

import pytest
from kafka.protocol.consumer import FetchRequest as KafkaPythonFetchRequest
from kafka.protocol.consumer import FetchResponse as KafkaPythonFetchResponse
from kio.schema.fetch.v12.request import FetchRequest as KioFetchRequest
from kio.schema.fetch.v12.response import FetchResponse as KioFetchResponse
from kio.serial import entity_reader, entity_writer

from bench.conftest import record_role
from kcore.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

VERSION = 12
PARTITIONS = 10
PER_ROUND = 200

DECODE = "fetch request decode, 10 partitions"
ENCODE = "fetch response encode, 10 partitions"


class Slice:
    """Records by reference, as a file slice looks to the codec."""

    size_in_bytes = 1 << 20


def request_bytes() -> bytes:
    partitions = [
        FetchPartition(partition=i, current_leader_epoch=5, fetch_offset=10**9 + i, partition_max_bytes=1 << 20)
        for i in range(PARTITIONS)
    ]
    topic = FetchTopic(topic="orders", partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic]).encode(VERSION)


def response(records: object) -> FetchResponse:
    partitions = [
        PartitionData(
            partition_index=i,
            high_watermark=10**9 + 7,
            last_stable_offset=10**9 + 7,
            log_start_offset=0,
            aborted_transactions=None,
            records=records,
        )
        for i in range(PARTITIONS)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=partitions)])


@pytest.mark.benchmark(group=DECODE)
def bench_decode_fetch_request(benchmark):
    record_role(benchmark, "ours", per_round=PER_ROUND, unit="op", goal={"at_most_ns": 3_000})
    data, decode = request_bytes(), FetchRequest.decode
    assert len(decode(data, VERSION).topics[0].partitions) == PARTITIONS

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            decode(data, VERSION)


@pytest.mark.benchmark(group=DECODE)
def bench_decode_fetch_request_kio(benchmark):
    record_role(benchmark, "peer", per_round=PER_ROUND, unit="op", label="kio (Rust)")
    data, decode = request_bytes(), entity_reader(KioFetchRequest)
    assert len(decode(data, 0)[0].topics[0].partitions) == PARTITIONS

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            decode(data, 0)


@pytest.mark.benchmark(group=DECODE)
def bench_decode_fetch_request_kafka_python(benchmark):
    record_role(benchmark, "peer", per_round=PER_ROUND, unit="op", label="kafka-python")
    data, decode = request_bytes(), KafkaPythonFetchRequest.decode
    assert len(decode(data, version=VERSION).topics[0].partitions) == PARTITIONS

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            decode(data, version=VERSION)


@pytest.mark.benchmark(group=ENCODE)
def bench_encode_fetch_response(benchmark):
    record_role(benchmark, "ours", per_round=PER_ROUND, unit="op", goal={"at_most_ns": 10_000})
    encode = response(Slice()).encode_frame
    assert len(encode(VERSION, b"\0\0\0\1\0")) == 2 * PARTITIONS + 1

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            encode(VERSION, b"\0\0\0\1\0")


@pytest.mark.benchmark(group=ENCODE)
def bench_encode_fetch_response_kio(benchmark):
    record_role(benchmark, "peer", per_round=PER_ROUND, unit="op", label="kio")
    data = response(b"x").encode(VERSION)
    entity, encode = entity_reader(KioFetchResponse)(data, 0)[0], entity_writer(KioFetchResponse)
    out = io.BytesIO()
    encode(out, entity)
    assert out.getvalue() == data

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            encode(io.BytesIO(), entity)


@pytest.mark.benchmark(group=ENCODE)
def bench_encode_fetch_response_kafka_python(benchmark):
    record_role(benchmark, "peer", per_round=PER_ROUND, unit="op", label="kafka-python")
    data = response(b"x").encode(VERSION)
    message = KafkaPythonFetchResponse.decode(data, version=VERSION)
    message._header = None  # only a message made by hand has one
    assert bytes(message.encode(version=VERSION)) == data

    @benchmark
    def rounds():
        for _ in range(PER_ROUND):
            message.encode(version=VERSION)
