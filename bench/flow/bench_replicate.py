"""A follower that was away catches up: two brokers of one process, over a socket.

The limit moves the same bytes the same way, and looks at none of them: sendfile() from the leader's file into a socket,
recv_into() a buffer, pwrite() into another file.
"""

import os
import socket
import threading

import pytest

import kcore
from bench.conftest import record_role
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState

TOTAL_BYTES = 128 << 20
#: What one fetch brings: replica.fetch.max.bytes of one partition, or of ten up to replica.fetch.response.max.bytes.
REPLY_BYTES = {1: 1 << 20, 10: 10 << 20}
ROUNDS = 5


def batch_of(size):
    builder = RecordBatchBuilder()
    builder.append(b"x" * (size - 80), timestamp=1_700_000_000_000)
    return builder.build()


def wait_for(condition, seconds=60):
    pause = threading.Event()
    for _ in range(seconds * 1000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("not within the deadline")


@pytest.mark.parametrize("partitions", REPLY_BYTES)
@pytest.mark.benchmark(group="a follower catches up, 16 KiB batches")
def bench_catch_up(benchmark, bench_dir, partitions):
    record_role(
        benchmark,
        "ours",
        per_round=TOTAL_BYTES,
        unit="byte",
        case=f"{partitions} partitions",
        goal={"vs": "limit", "at_most": 2.5},
    )
    tps = [TopicPartition("t", number) for number in range(partitions)]
    with kcore.Cluster(2, data_dir=str(bench_dir / f"replicate-{partitions}")) as cluster:
        cluster.create_topic("t", partitions)
        records = batch_of(16 << 10)
        per_partition = TOTAL_BYTES // len(records) // partitions
        ends = dict.fromkeys(tps, 0)

        def partition(tp, leads):
            brokers = cluster.brokers.values()
            return next(p for b in brokers if (p := b.replica_manager.get_partition(tp)).is_leader is leads)

        def follower(tp):
            return cluster.brokers[partition(tp, False).local_broker_id].replica_manager.fetchers

        def append(tp):
            # As a produce request does, which also ends the fetches that wait for records.
            manager = cluster.brokers[partition(tp, True).local_broker_id].replica_manager
            manager.append_records(1000, 1, False, AppendOrigin.CLIENT, {tp: bytearray(records)}, lambda statuses: None)

        def fall_behind():
            for tp in tps:
                follower(tp).remove_partitions([tp])
                for _ in range(per_partition):
                    append(tp)
                ends[tp] += per_partition

        def catch_up():
            for tp in tps:
                copy = partition(tp, False)
                initial = InitialFetchState(copy.log.high_watermark, copy.leader_epoch)
                follower(tp).add_partitions({tp: FetchSource(copy.leader_id, initial)})
            wait_for(lambda: all(partition(tp, False).log.log_end_offset == ends[tp] for tp in tps))

        wait_for(lambda: all(partition(tp, leads) for tp in tps for leads in (True, False)))
        benchmark.pedantic(catch_up, setup=fall_behind, rounds=ROUNDS)


@pytest.mark.parametrize("partitions", REPLY_BYTES)
@pytest.mark.benchmark(group="a follower catches up, 16 KiB batches")
def bench_sendfile_receive_and_pwrite(benchmark, bench_dir, partitions):
    record_role(
        benchmark,
        "limit",
        per_round=TOTAL_BYTES,
        unit="byte",
        case=f"{partitions} partitions",
        label="sendfile, recv, pwrite",
    )
    size = REPLY_BYTES[partitions]
    source = os.open(bench_dir / "source", os.O_RDWR | os.O_CREAT)
    target = os.open(bench_dir / "target", os.O_RDWR | os.O_CREAT)
    for position in range(0, TOTAL_BYTES, size):
        os.pwrite(source, b"x" * size, position)
    here, there = socket.create_server(("127.0.0.1", 0)), socket.socket()
    there.connect(here.getsockname())
    sending, _ = here.accept()
    buffer = memoryview(bytearray(size))

    def serve():
        while len(request := sending.recv(8, socket.MSG_WAITALL)) == 8:
            position = int.from_bytes(request, "big")
            end = position + size
            while position < end:
                position += os.sendfile(sending.fileno(), source, position, end - position)

    thread = threading.Thread(target=serve)
    thread.start()

    def copy():
        for position in range(0, TOTAL_BYTES, size):
            there.sendall(position.to_bytes(8, "big"))
            there.recv_into(buffer, size, socket.MSG_WAITALL)
            os.pwrite(target, buffer, position)

    def empty():
        os.ftruncate(target, 0)

    benchmark.pedantic(copy, setup=empty, rounds=ROUNDS)
    for closing in (there, sending, here):
        closing.close()
    thread.join()
    for fd in (source, target):
        os.close(fd)
    for name in ("source", "target"):
        os.unlink(bench_dir / name)
