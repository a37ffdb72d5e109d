"""A follower comes back to a leader that has much more than it, and replication is throttled (KIP-73): processes."""

import os
import time

import pytest

pytest.importorskip("confluent_kafka")

import confluent_kafka
from confluent_kafka.admin import NewTopic

from tests.system.broker_processes import BROKERS, DEADLINE_S, BrokerProcesses, await_true
from tests.system.kill_everything import TOPIC, create_topic

RATE = 128 * 1024
#: What the follower lacks: two minutes' worth.
LACKING = 120 * RATE
#: A fetch gets so much at most, so that the throttle can act in between.
FETCHED_AT_ONCE = 32 * 1024
BATCH_BYTES = 16 * 1024


@pytest.fixture
def processes(tmp_path):
    # The sessions outlive pauses of the machine.
    processes = BrokerProcesses(tmp_path, topic=TOPIC, partitions=1, session_ms=60_000)
    yield processes
    processes.close()


def produce(servers, count):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "acks": 1, "batch.size": BATCH_BYTES, "message.timeout.ms": DEADLINE_S * 1000}
    )
    errors = []
    for _ in range(count // 4096):
        while True:
            try:
                producer.produce(TOPIC, os.urandom(4096), on_delivery=lambda error, _: error and errors.append(error))
                break
            except BufferError:
                producer.poll(0.1)
    assert not producer.flush(DEADLINE_S) and not errors


def bytes_of(directory):
    """What its segments hold."""
    return sum(path.stat().st_size for path in directory.glob(f"{TOPIC}-0/*.log"))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_follower_copies_but_no_faster_than_its_rate(processes, tmp_path, side):
    limits = {"replica.fetch.max.bytes": str(FETCHED_AT_ONCE), "replica.fetch.response.max.bytes": str(FETCHED_AT_ONCE)}
    for number in BROKERS:
        processes.settings[number] |= limits
    processes.settings[0 if side == "leader" else 1][f"{side}.replication.throttled.rate"] = str(RATE)
    processes.start_all()
    settings = {f"{side}.replication.throttled.replicas": "*"}
    create_topic(processes.bootstrap_servers, NewTopic(TOPIC, 1, replica_assignment=[[0, 1]], config=settings))
    processes.terminate(1)
    await_true(lambda: (state := processes.state(0)) and state.isr == [0], "a stopped follower stays in the ISR")
    produce(processes.bootstrap_servers, LACKING)
    assert bytes_of(tmp_path / "0") > LACKING and bytes_of(tmp_path / "1") == 0

    start = time.monotonic()
    processes.start(1)
    copied, first_bytes = 0, None
    # Three seconds are enough for all of it without a throttle.
    while copied < 4 * RATE or time.monotonic() - first_bytes < 3:
        copied = bytes_of(tmp_path / "1")
        seconds = time.monotonic() - start  # later than the look at the files: only too long
        if copied and first_bytes is None:
            first_bytes = time.monotonic()
        assert seconds < DEADLINE_S, f"{copied} bytes were copied"
        # Half as much again as the rate, and two seconds for the first window: only too fast a copy gets above that.
        assert copied <= RATE * (1.5 * seconds + 2), f"{copied} bytes in {seconds:.1f} s"
        time.sleep(0.02)
    assert processes.state(0).isr == [0]
