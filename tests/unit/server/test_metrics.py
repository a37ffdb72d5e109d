"""What a broker counts, under Kafka's names: broker.metrics(), and `kcore metrics` from another process."""

import json
import os
import re
import socket
import stat

import pytest

import kcore
from kcore.client import monitor
from kcore.client.monitor import MonitorError, ask_broker
from kcore.common.meters import TopicMeters
from kcore.common.metrics import MetricName, one_by_one
from kcore.common.topic_partition import TopicPartition
from kcore.protocol.messages import fetch as f
from kcore.replica.replica_meters import ReplicaMeters
from kcore.tools.main import main
from tests.batches import batch
from tests.unit.server.client import Client
from tests.unit.server.test_every_version import fetch_request, produce_request


@pytest.fixture
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("t", partitions=2)
        yield broker


def topic_count(broker, name, **tags):
    return broker.metrics()[MetricName("kafka.server", "BrokerTopicMetrics", name, **tags)]["Count"]


def value(broker, group, type_name, name, **tags):
    return broker.metrics()[MetricName(group, type_name, name, **tags)]["Value"]


def test_METRIC_01_APP_14_produced_records_bytes_and_requests_are_counted_by_topic_and_in_total(broker):
    broker.create_topic("other")
    sizes = 0
    with Client(broker) as client:
        for topic, partition, values in (("t", 0, (b"a", b"b")), ("t", 1, (b"c",)), ("other", 0, (b"d",))):
            records = batch(*values)
            client.ask(produce_request(broker, topic, partition, records), 9)
            sizes += len(records)
    assert [topic_count(broker, "MessagesInPerSec", topic=topic) for topic in ("t", "other")] == [3, 1]
    assert [topic_count(broker, "TotalProduceRequestsPerSec", topic=topic) for topic in ("t", "other")] == [2, 1]
    assert topic_count(broker, "MessagesInPerSec") == 4
    assert topic_count(broker, "TotalProduceRequestsPerSec") == 3
    assert (
        topic_count(broker, "BytesInPerSec")
        == sizes
        == broker.log("t").size + broker.log("t", 1).size + (broker.log("other").size)
    )


def test_APP_14_one_request_for_two_partitions_counts_twice(broker):
    request = produce_request(broker, "t", 0, batch(b"a"))
    request.topic_data += produce_request(broker, "t", 1, batch(b"b")).topic_data
    with Client(broker) as client:
        client.ask(request, 9)
    assert topic_count(broker, "TotalProduceRequestsPerSec", topic="t") == 2


def test_APP_17_errors_that_clients_may_meet_are_no_failed_produce(broker, monkeypatch):
    partition = broker.replica_manager.get_partition(TopicPartition("t", 0))
    big = batch(b"x" * 2_000_000)
    with Client(broker) as client:
        client.ask(produce_request(broker, "t", 0, big), 9)
        assert topic_count(broker, "FailedProduceRequestsPerSec", topic="t") == 0
        assert topic_count(broker, "BytesRejectedPerSec", topic="t") == len(big)
        monkeypatch.setattr(partition, "append_records_to_leader", lambda *args: 1 // 0)
        client.ask(produce_request(broker, "t", 0, batch(b"x")), 9)
    assert topic_count(broker, "FailedProduceRequestsPerSec", topic="t") == 1
    assert topic_count(broker, "FailedProduceRequestsPerSec") == 1
    assert topic_count(broker, "TotalProduceRequestsPerSec", topic="t") == 2
    assert topic_count(broker, "MessagesInPerSec", topic="t") == 0


def test_RD_11_fetches_and_what_they_send_are_counted_by_topic_and_in_total(broker):
    records = batch(b"a", b"b")
    with Client(broker) as client:
        client.ask(produce_request(broker, "t", 0, records), 9)
        request = fetch_request(broker, "t", 0, 0)
        request.topics += fetch_request(broker, "t", 1, 0).topics
        answer = client.ask(request, 11)
        sent = sum(len(topic.partitions[0].records) for topic in answer.responses)
        assert sent == len(records)
        assert topic_count(broker, "BytesOutPerSec", topic="t") == topic_count(broker, "BytesOutPerSec") == sent
        assert topic_count(broker, "TotalFetchRequestsPerSec", topic="t") == 2
        client.ask(fetch_request(broker, "t", 0, 99), 11)  # out of range: a client's matter, no failure
    assert topic_count(broker, "TotalFetchRequestsPerSec") == 3
    assert topic_count(broker, "FailedFetchRequestsPerSec") == 0


def test_RD_11_bytes_of_a_fetch_that_waits_are_counted_once_when_they_are_sent(broker):
    records = batch(b"a")
    with Client(broker) as client, Client(broker) as producer:
        producer.ask(produce_request(broker, "t", 0, records), 9)
        request = fetch_request(broker, "t", 0, 0)
        request.max_wait_ms, request.min_bytes = 60_000, len(records) + 1
        client.send(request, 11)
        while not value(broker, "kafka.server", "DelayedOperationPurgatory", "PurgatorySize", delayedOperation="Fetch"):
            pass
        assert topic_count(broker, "BytesOutPerSec", topic="t") == 0
        producer.ask(produce_request(broker, "t", 0, records), 9)
        answer = client.receive(f.FetchRequest.api_key, 11)
        assert len(answer.responses[0].partitions[0].records) == 2 * len(records)
    assert topic_count(broker, "BytesOutPerSec", topic="t") == 2 * len(records)


def test_APP_07_conversions_are_counted_for_each_partition_when_its_records_are_appended(broker):
    broker.create_topic("zipped", compression_type="gzip")
    with Client(broker) as client:
        client.ask(produce_request(broker, "zipped", 0, batch(b"a", b"b", b"c")), 9)
        client.ask(produce_request(broker, "t", 0, batch(b"d")), 9)
    assert topic_count(broker, "ProduceMessageConversionsPerSec", topic="zipped") == 3
    assert topic_count(broker, "ProduceMessageConversionsPerSec", topic="t") == 0
    times = broker.metrics()["kafka.network:type=RequestMetrics,name=MessageConversionsTimeMs,request=Produce"]
    assert times["Count"] == 1 and times["Max"] > 0


def test_METRIC_01_records_that_are_converted_for_old_consumers_are_counted(broker):
    with Client(broker) as client:
        client.ask(produce_request(broker, "t", 0, batch(b"a", b"b")), 9)
        client.ask(fetch_request(broker, "t", 0, 0), 11)
        assert topic_count(broker, "FetchMessageConversionsPerSec", topic="t") == 0
        client.ask(fetch_request(broker, "t", 0, 0), 2)
    assert topic_count(broker, "FetchMessageConversionsPerSec", topic="t") == 2


def test_PURG_16_fetches_that_expire_are_counted_apart_for_consumers_and_followers(broker):
    with Client(broker) as client:
        request = fetch_request(broker, "t", 0, 0)
        request.max_wait_ms = 1
        client.ask(request, 11)
    name = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType="
    while not (metrics := broker.metrics())[name + "consumer"]["Count"]:
        pass  # it is counted after the answer has left
    assert (metrics[name + "consumer"]["Count"], metrics[name + "follower"]["Count"]) == (1, 0)


def test_METRIC_01_requests_are_counted_by_api_and_version_with_their_times(broker):
    with Client(broker) as client:
        client.ask(produce_request(broker, "t", 0, batch(b"a")), 9)
        client.ask(produce_request(broker, "t", 0, batch(b"a")), 3)
        client.ask(fetch_request(broker, "t", 0, 0), 11)
    name = "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce"
    while (metrics := broker.metrics())[name]["Count"] < 2:
        pass  # it is counted after the answer has left
    requests = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request="
    assert [metrics[requests + tags]["Count"] for tags in ("Produce,version=9", "Produce,version=3")] == [1, 1]
    assert metrics[requests + "Fetch,version=11"]["Count"] == 1
    times = metrics[name]
    assert times["Count"] == 2 and 0 < times["Min"] <= times["50thPercentile"] <= times["Max"]


def test_METRIC_01_partitions_are_counted_by_what_they_are(broker):
    assert value(broker, "kafka.server", "ReplicaManager", "PartitionCount") == 2
    assert value(broker, "kafka.server", "ReplicaManager", "LeaderCount") == 2
    assert value(broker, "kafka.server", "ReplicaManager", "UnderReplicatedPartitions") == 0
    assert value(broker, "kafka.server", "ReplicaManager", "AtMinIsrPartitionCount") == 2
    assert value(broker, "kafka.server", "ReplicaManager", "UnderMinIsrPartitionCount") == 0
    assert value(broker, "kafka.log", "LogManager", "OfflineLogDirectoryCount") == 0
    broker.produce("t", b"x", partition=1)
    assert value(broker, "kafka.log", "Log", "LogEndOffset", topic="t", partition=1) == 1
    flushes = broker.metrics()["kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"]["Count"]
    broker.log("t", 1).flush()
    assert broker.metrics()["kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"]["Count"] == flushes + 1


def test_a_deleted_topic_has_no_metrics_and_its_counts_stay_in_the_totals(broker):
    broker.produce("t", b"x")
    broker.delete_topic("t")
    assert not [name for name in broker.metrics() if "topic=t" in name]
    assert topic_count(broker, "MessagesInPerSec") == 1
    broker.create_topic("t")
    assert topic_count(broker, "MessagesInPerSec", topic="t") == 0


def test_counters_of_topics_that_are_not_hosted_do_not_fill_the_memory():
    meters = ReplicaMeters()
    for number in range(100):
        meters.topic(f"unknown-{number}").produce_refused()
    assert not [name for name, _ in one_by_one(meters.measured()) if "topic=" in name]
    assert isinstance(meters.other_topics, TopicMeters) and meters.other_topics.produce_requests == 100


# -- from another process


@pytest.fixture(params=["short", "long"])
def served(request, tmp_path):
    """A broker's data directory; the long one is too long for a socket's address."""
    path = tmp_path / ("d" * 90 if request.param == "long" else "d")
    with kcore.Broker(path) as broker:
        broker.produce("orders", b"x")
        yield path, broker


def test_a_broker_answers_over_the_socket_in_its_data_directory(served, capsys):
    path, broker = served
    assert main(["metrics", "--data", str(path), "--match", "MessagesInPerSec"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"MeanRate=\S+", "MeanRate=", line) for line in lines] == [
        "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec  Count=1  MeanRate=",
        "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=orders  Count=1  MeanRate=",
    ]
    assert main(["metrics", "--data", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == broker.metrics().keys()


def test_rates_are_what_happened_between_two_readings(served, capsys, monkeypatch):
    path, broker = served
    monkeypatch.setattr("time.sleep", lambda seconds: broker.produce("orders", b"y"))
    assert main(["metrics", "--data", str(path), "--rates", "1", "--match", "MessagesInPerSec,"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=orders  \S+/s", line)


def test_explanations_come_over_the_socket_as_text_and_as_json(served, capsys):
    path, broker = served
    assert main(["explain", "isr", "orders", "0", "--data", str(path)]) == 0
    assert capsys.readouterr().out == f"{broker.explain_isr('orders', 0)}\n"
    assert main(["explain", "fetch", "orders", "--offset", "1", "--data", str(path), "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert (explained["fetch_offset"], explained["answered_now"], explained["waiting"]) == (1, False, [])
    assert explained["rule"] == broker.explain_fetch("orders", 0, 1).rule
    assert main(["explain", "isr", "no-such-topic", "--data", str(path)]) == 2
    assert "UnknownTopicOrPartition" in capsys.readouterr().err
    with pytest.raises(ValueError, match="isolation"):
        broker.explain_fetch("orders", isolation="committed")


def test_the_socket_is_for_the_brokers_user_alone_and_goes_with_the_broker(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        mode = os.stat(tmp_path / monitor.FILE_NAME).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        broker.restart()
        assert ask_broker(str(tmp_path), "metrics")
    assert not (tmp_path / monitor.FILE_NAME).exists()
    with pytest.raises(MonitorError, match="no broker of this machine serves it"):
        ask_broker(str(tmp_path), "metrics")


def test_a_directory_that_is_not_the_brokers_first_one_is_told_which_one_to_ask(tmp_path):
    first, second = tmp_path / "cluster" / "0", tmp_path / "cluster" / "0b"
    with kcore.Broker(log_dirs=f"{first},{second}") as broker:
        broker.create_topic("orders", 4)
        with pytest.raises(MonitorError, match=rf"it is not its broker's first data directory: ask {first}$"):
            ask_broker(str(second), "metrics")
        with pytest.raises(MonitorError, match=r"no broker of this machine serves it, but 0 in it: name that$"):
            ask_broker(str(tmp_path / "cluster"), "metrics")


def test_a_socket_that_a_killed_broker_left_is_replaced(tmp_path, capsys):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / monitor.FILE_NAME))
    left.close()
    assert main(["metrics", "--data", str(tmp_path)]) == 2
    assert "no broker of this machine serves it" in capsys.readouterr().err
    with kcore.Broker(tmp_path):
        assert ask_broker(str(tmp_path), "metrics")


def test_something_else_of_the_sockets_name_costs_the_questions_not_the_start(tmp_path, caplog):
    (tmp_path / monitor.FILE_NAME).mkdir()
    with kcore.Broker(tmp_path) as broker:
        broker.produce("orders", b"x")
    assert "cannot ask this broker" in caplog.text


@pytest.mark.parametrize("question", [b"", b"\n", b"[]\n", b'"metrics"\n', b'{"command": "stop"}\n', b"\xff" * 70_000])
def test_an_unknown_command_is_an_error_and_the_next_one_is_answered(tmp_path, question):
    with kcore.Broker(tmp_path):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(tmp_path / monitor.FILE_NAME))
            try:
                client.sendall(question)
                client.shutdown(socket.SHUT_WR)
                assert b"error" in client.recv(1 << 16)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the broker did not read all of a question that is too long
        with pytest.raises(MonitorError, match="does not know"):
            ask_broker(str(tmp_path), "no such command")
        assert ask_broker(str(tmp_path), "metrics")
