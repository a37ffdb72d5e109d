"""Three `kcore serve` processes; what was acknowledged is damaged on the disk of one while none of them runs."""

import shutil

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.tools.main import main
from tests.system.broker_processes import BROKERS, DEADLINE_S, BrokerProcesses, await_true
from tests.system.kill_everything import create_topic
from tests.unit.log.segments import flip_a_bit

TOPIC = "damaged"
RECORDS = 600
SETTINGS = {
    "log.segment.bytes": "4096",
    "log.flush.interval.messages": "1",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}


@pytest.fixture
def processes(tmp_path):
    processes = BrokerProcesses(tmp_path, topic=TOPIC, partitions=1, session_ms=6000)
    processes.settings = {number: dict(SETTINGS) for number in BROKERS}
    try:
        yield processes
    finally:
        processes.close()


def produce(processes, first, count):
    # Small batches, so that each segment has several.
    # Idempotent, so that a batch that is sent again, to a leader just elected, does not come after the next one.
    settings = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 5}
    producer = Producer({"bootstrap.servers": processes.bootstrap_servers, **settings})
    failed = []
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, on_delivery=lambda error, message: error and failed.append(error))
        if number % 20 == 19:
            producer.flush(DEADLINE_S)
    assert producer.flush(DEADLINE_S) == 0 and not failed


def checkpointed(processes, number, name):
    offsets = OffsetCheckpointFile(str(processes.data_dir(number) / name)).read()
    return offsets.get(TopicPartition(TOPIC, 0), 0)


def damage(directory, which):
    """The replica's directory is removed, or its broker's whole data directory.  Or one bit in the middle of a segment,
    flushed and below the high watermark: `older`: of one whose index is missing too, `last`: of the last one;
    `repaired`: and `kcore repair` ends the log there."""
    if which.startswith("removed"):
        shutil.rmtree(directory if which == "removed" else directory.parent)
        return
    segments = sorted(directory.glob("*.log"))
    path = segments[-1 if which == "last" else len(segments) // 2]
    flip_a_bit(path)
    if which == "older":
        path.with_suffix(".index").unlink()
    elif which == "repaired":
        assert main(["repair", str(directory), "--in-place", "--apply", "--quiet"]) == 0


def values(directory):
    with kcore.open_log(directory) as log:
        return [record.value for record in log.records()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["last", "older", "removed", "removed with all", "repaired"])
def test_a_replica_that_has_lost_acknowledged_records_does_not_lead_and_copies_them_from_the_others(processes, which):
    processes.start_all()
    create_topic(processes.bootstrap_servers, NewTopic(TOPIC, 1, len(BROKERS)))
    produce(processes, 0, RECORDS)
    processes.await_whole_isr()
    victim = processes.state(0).leader
    checkpoints = ("replication-offset-checkpoint", "recovery-point-offset-checkpoint")
    await_true(
        lambda: [checkpointed(processes, victim, name) for name in checkpoints] == [RECORDS, RECORDS],
        "the offsets were not checkpointed",
    )
    for number in BROKERS:
        processes.kill(number)
    directory = processes.partition_dirs(TOPIC, 0)[victim]
    damage(directory, which)

    processes.start(victim)
    processes.await_serving(victim)
    await_true(lambda: processes.controller() == victim, "the only broker is not the controller")
    state = processes.state(0)
    assert state.leader != victim and victim not in state.isr, processes.report()
    assert which.startswith("removed") or (directory / "lost-records").exists()

    others = [number for number in BROKERS if number != victim]
    for number in others:
        processes.start(number)
    for number in others:
        processes.await_serving(number)
    processes.await_whole_isr()
    await_true(lambda: not (directory / "lost-records").exists(), "the mark stays")
    produce(processes, RECORDS, 20)
    processes.stop_all()
    first, *rest = processes.partition_dirs(TOPIC, 0)
    assert values(first) == [b"%d" % number for number in range(RECORDS + 20)]
    assert [values(directory) for directory in rest] == [values(first)] * 2
    files = [{path.name: path.read_bytes() for path in directory.glob("*.log")} for directory in [first, *rest]]
    assert [b"".join(content for _, content in sorted(of.items())) for of in files[1:]] == [
        b"".join(content for _, content in sorted(files[0].items()))
    ] * 2
    assert not processes.tracebacks()
