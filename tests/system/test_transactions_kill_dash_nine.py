"""A broker is killed in the middle of transactions: each of them is there as a whole afterwards, or not at all."""

import random
import struct
import threading
import time

import pytest

pytest.importorskip("confluent_kafka")

import kcore
from kcore.coordinator.transaction.transaction_state import TransactionState
from tests.histories.checker import Kind, Operation, Poll, Send, check
from tests.system.recording_clients import CommittedReader
from tests.system.test_kill_dash_nine import Serve
from tests.unit.server.client import Client
from tests.unit.server.transactions import SETTINGS, TransactionalClient, await_markers, committed
from tests.waiting import wait_until

OPTIONS = [option for name, value in SETTINGS.items() for option in ("-o", f"{name}={value}")]
T0, T1 = ("t", 0), ("t", 1)


def serve(path):
    return Serve(path, *OPTIONS, "-o", "num.partitions=2")


def kill(broker):
    broker.process.kill()
    broker.process.communicate()


def make_topic(client):
    from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

    (topic,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9).topics
    assert topic.error_code == 0


def begin(txn):
    """Be the producer of the id, whatever the last one has left."""
    wait_until(lambda: txn.init(timeout_ms=900_000).error_code == 0)


def transact_until_dead(broker, process, history):
    """One transaction after the other, a record to each partition.  For the one at the kill no answer comes."""
    sequences = [0, 0]
    sends, invoked = [], time.monotonic()
    try:
        with Client(broker) as client:
            txn = TransactionalClient(client).find()
            begin(txn)
            count = 0
            while True:
                sends, invoked = [], time.monotonic()
                while txn.add([T0, T1]) != {T0: 0, T1: 0}:
                    pass  # the last one is not complete yet
                for number in (0, 1):
                    sends.append(Send(f"t-{number}", b"%s-%d" % (process.encode(), count)))
                    assert txn.produce("t", number, sends[-1].value, base_sequence=sequences[number]) == 0
                    sends[-1] = sends[-1]._replace(offset=txn.offset)
                    sequences[number] += 1
                is_commit = count % 4 != 3
                assert txn.end(is_commit) == 0
                kind = Kind.OK if is_commit else Kind.FAIL
                history.append(Operation(process, kind, sends, invoked, time.monotonic()))
                count += 1
    except (OSError, EOFError, struct.error):  # it is dead
        history.append(Operation(process, Kind.INFO, sends, invoked))


def is_acknowledged(operation):
    return operation.process.startswith("producer") and operation.kind is not Kind.INFO


@pytest.mark.parametrize("seed", range(3))
def test_TXN_67_after_kill_dash_nine_each_transaction_is_there_as_a_whole_or_not_at_all(tmp_path, seed):
    rng = random.Random(seed)
    history = []
    for life in range(4):
        broker = serve(tmp_path)
        if life == 0:
            with Client(broker) as client:
                make_topic(client)
        reader = CommittedReader(f"127.0.0.1:{broker.port}", f"reader{life}", {"t": 2}, history)
        producer = threading.Thread(target=transact_until_dead, args=(broker, f"producer{life}", history))
        reader.start()
        producer.start()
        wait_until(lambda life=life: sum(map(is_acknowledged, list(history))) > 20 * (life + 1))
        time.sleep(rng.uniform(0, 0.1))
        kill(broker)
        producer.join()
        assert reader.stop()
        assert reader.crash is None
    with kcore.Broker(tmp_path, **SETTINGS) as broker, Client(broker) as client:
        begin(TransactionalClient(client).find())
        await_markers(broker)
        read, invoked = {}, time.monotonic()
        for number in (0, 1):
            log = broker.log("t", number)
            assert log.last_stable_offset == log.high_watermark == log.log_end_offset
            read[f"t-{number}"] = [(r.offset, r.value) for r in log.records(isolation="read_committed")]
        history.append(Operation("the log", Kind.OK, [Poll(read, is_whole=True)], invoked, time.monotonic()))
    assert any(operation.process.startswith("reader") for operation in history)
    assert [str(finding) for finding in check(history)] == [], f"seed={seed}"


@pytest.mark.parametrize("how", ["timeout", "next producer", "same producer"])
def test_TXN_67_a_transaction_that_was_open_at_kill_dash_nine_ends(tmp_path, how):
    broker = serve(tmp_path)
    with Client(broker) as client:
        make_topic(client)
        txn = TransactionalClient(client).find()
        txn.init(timeout_ms=30_000)
        txn.add([T0])
        assert txn.produce("t", 0, b"open") == 0
    kill(broker)
    clock = kcore.testing.MockTime()
    with kcore.Broker(tmp_path, time=clock, **SETTINGS) as broker, Client(broker) as txn.client:
        txn.find()
        coordinator = broker.running.services.transaction_coordinator
        wait_until(lambda: not coordinator.manager.is_loading)
        assert coordinator.describe("x").state is TransactionState.ONGOING
        assert broker.log("t").last_stable_offset == 0
        if how == "timeout":
            clock.sleep(max(0, coordinator.describe("x").start_timestamp - clock.milliseconds()) + 50_000)
            await_markers(broker)
            assert coordinator.describe("x").state is TransactionState.COMPLETE_ABORT
        elif how == "next producer":
            begin(TransactionalClient(txn.client))
        else:
            assert txn.end(True) == 0
        assert committed(broker, "t") == ([b"open"] if how == "same producer" else [])
        assert broker.log("t").last_stable_offset == broker.log("t").log_end_offset == 2
