"""A broker process is killed in the middle of its work; what it had acknowledged is there afterwards."""

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import kcore
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.batches import batch
from tests.unit.server.client import Client
from tests.waiting import wait_until


class Serve:
    """`kcore serve` as a child process.  data None: the options name the data directories."""

    def __init__(self, data, *options):
        command = [sys.executable, "-m", "kcore.tools.main", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *([] if data is None else ["--data", str(data)]), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("kcore: serving"), line + self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1])

    def stop(self, number=signal.SIGTERM):
        """Send a signal and wait; (exit status, what was left on stdout, stderr)."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def produce_until_dead(broker, number, acknowledged):
    """Send numbered records with acks=all, five at a time; note each value that was acknowledged, with its offset."""
    rng = random.Random(number)
    count = 0
    try:
        with Client(broker) as client:
            while True:
                values = [b"%d-%d-" % (number, count + i) + b"x" * rng.randrange(2000) for i in range(5)]
                request = ProduceRequest(
                    acks=-1,
                    timeout_ms=10_000,
                    topic_data=[
                        TopicProduceData(
                            name="t",
                            partition_data=[PartitionProduceData(index=number % 2, records=batch(*values))],
                        )
                    ],
                )
                answer = client.ask(request, 9).responses[0].partition_responses[0]
                assert answer.error_code == 0
                acknowledged.extend((number % 2, answer.base_offset + i, value) for i, value in enumerate(values))
                count += 5
    except (OSError, EOFError, struct.error):
        pass  # it is dead


@pytest.mark.parametrize("seed", range(4))
def test_every_acknowledged_record_survives_kill_dash_nine(tmp_path, seed):
    rng = random.Random(seed)
    acknowledged = []
    for life in range(3):
        broker = Serve(tmp_path, "-o", "log.segment.bytes=200000", "-o", "num.partitions=2")
        with Client(broker) as client:
            from kcore.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

            topic = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9).topics[0]
            assert topic.error_code == 0
        producers = [
            threading.Thread(target=produce_until_dead, args=(broker, 10 * life + n, acknowledged)) for n in range(4)
        ]
        for producer in producers:
            producer.start()
        time.sleep(rng.uniform(0.2, 0.7))
        wait_until(lambda life=life: len(acknowledged) > 50 * (life + 1))
        broker.process.kill()
        broker.process.communicate()
        for producer in producers:
            producer.join()
    assert len(acknowledged) > 100, f"seed={seed}"
    with kcore.Broker(tmp_path) as broker:
        values = [{r.offset: r.value for r in broker.log("t", number).records()} for number in range(2)]
        missing = [(p, offset) for p, offset, value in acknowledged if values[p].get(offset) != value]
        assert not missing, f"seed={seed}: {len(missing)} of {len(acknowledged)} are lost, first {missing[:3]}"
        for number in range(2):
            assert sorted(values[number]) == list(range(len(values[number])))


def test_what_was_agreed_about_topics_and_groups_survives_kill_dash_nine(tmp_path):
    from kcore.protocol.messages import find_coordinator as fc
    from kcore.protocol.messages import offset_commit as oc
    from kcore.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
    from kcore.protocol.messages.init_producer_id import InitProducerIdRequest

    broker = Serve(tmp_path, "-o", "offsets.topic.num.partitions=3")
    with Client(broker) as client:
        topic = CreatableTopic(name="kept", num_partitions=3, replication_factor=1)
        (created,) = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics
        producer_id = client.ask(InitProducerIdRequest(transactional_id=None), 0).producer_id
        assert client.ask(fc.FindCoordinatorRequest(key="g"), 0).error_code == 0
        partition = oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=0, committed_metadata="m")
        request = oc.OffsetCommitRequest(
            group_id="g", topics=[oc.OffsetCommitRequestTopic(name="kept", partitions=[partition])]
        )
        assert client.ask(request, 5).topics[0].partitions[0].error_code == 0
    broker.process.kill()
    broker.process.communicate()
    with kcore.Broker(tmp_path) as broker:
        kept = broker.metadata_cache.topic("kept")
        assert (kept.topic_id, len(kept.partitions)) == (created.topic_id, 3)
        # Unclean: by the higher epoch clients notice that the log may have been truncated.
        assert {info.leader_epoch for info in kept.partitions.values()} == {1}
        with Client(broker) as client:
            assert client.ask(InitProducerIdRequest(transactional_id=None), 0).producer_id > producer_id
            from kcore.protocol.messages import offset_fetch as of

            topic = of.OffsetFetchRequestTopic(name="kept", partition_indexes=[1])
            response = client.ask(of.OffsetFetchRequest(group_id="g", topics=[topic]), 5)
            assert [(x.committed_offset, x.metadata) for x in response.topics[0].partitions] == [(0, "m")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_kcore_serve_cleanly(tmp_path, number):
    broker = Serve(tmp_path)
    with Client(broker) as client:
        from kcore.protocol.messages.metadata import MetadataRequest

        assert client.ask(MetadataRequest(), 1).brokers[0].port == broker.port
        status, out, err = broker.stop(number)
        assert client.is_closed()
    assert (status, out) == (0, "kcore: stopped\n"), err
    assert os.path.exists(tmp_path / ".kafka_cleanshutdown")


def test_a_second_process_on_one_directory_reports_it_and_exits_2(tmp_path):
    broker = Serve(tmp_path)
    second = subprocess.run(
        [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert second.returncode == 2
    assert str(tmp_path) in second.stderr and ".lock" in second.stderr
    assert broker.stop()[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "log.segment.byte=1"], "log.segment.bytes"),
        (["-o", "num.partitions"], "KEY=VALUE"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--host", "203.0.113.7"], "203.0.113.7"),
    ],
)
def test_kcore_serve_prints_the_error_and_exits_2(tmp_path, options, message):
    result = subprocess.run(
        [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(tmp_path), "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 2
    assert message in result.stderr


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert result.returncode == 2 and str(port) in result.stderr
