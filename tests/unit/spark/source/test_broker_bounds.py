import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.datasource import EqualTo

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.spark.catalog import Bounds
from kcore.spark.options import read_options
from kcore.spark.source.batch_plan import BatchPlan
from kcore.spark.source.broker_bounds import BrokerUnavailable, broker_asker
from kcore.spark.source.data_loss import DataLoss
from kcore.spark.source.stream_reader import StreamReader
from tests.unit.spark.data import schema_of


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def broker(directory):
    with kcore.Broker(directory) as started:
        yield started


def options(broker, directory):
    parameters = {"path": str(directory), "kcore.bootstrap.servers": broker.bootstrap_servers}
    return read_options(parameters, streaming=False)


def produce(broker, topic, count):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=0)
    assert producer.flush(60) == 0


def test_a_running_broker_gives_the_offset_up_to_which_its_files_can_be_read(broker, directory):
    produce(broker, "orders", 25)
    parsed = options(broker, directory)
    assert broker_asker(parsed)([TopicPartition("orders", 0)]) == {TopicPartition("orders", 0): Bounds(0, 25)}
    ranges = BatchPlan(parsed).ranges()
    assert [(piece.start, piece.end) for piece in ranges] == [(0, 25)]


def test_a_partition_that_the_broker_does_not_have_is_an_error(broker, directory):
    with pytest.raises(BrokerUnavailable, match="does not return the offsets of orders-0"):
        broker_asker(options(broker, directory))([TopicPartition("orders", 0)])


def test_partitions_of_a_topic_that_only_the_broker_has_are_missing(broker, directory, tmp_path, caplog):
    broker.create_topic("orders", 3)
    part = tmp_path / "part"
    shutil.copytree(directory / "orders-1", part / "orders-1")
    parameters = {"path": str(part), "kcore.bootstrap.servers": broker.bootstrap_servers}
    with pytest.raises(DataLoss, match=r"orders-0, orders-2: 127.0.0.1:.* has them, .*part has not"):
        BatchPlan(read_options(parameters, streaming=False)).ranges()
    with pytest.raises(DataLoss, match="orders-0, orders-2"):
        StreamReader(read_options(parameters, streaming=True), schema_of("offset")).initialOffset()
    BatchPlan(read_options(parameters | {"failOnDataLoss": "false"}, streaming=False)).ranges()
    assert "orders-0, orders-2" in caplog.text
    BatchPlan(read_options(parameters | {"assign": '{"orders":[1]}'}, streaming=False)).ranges()
    plan = BatchPlan(read_options(parameters, streaming=False))
    assert plan.push([EqualTo(("partition",), 1)]) == []
    plan.ranges()
    BatchPlan(options(broker, directory)).ranges()


def test_without_a_broker_no_request_is_sent(tmp_path):
    assert broker_asker(read_options({"path": str(tmp_path)}, streaming=False)) is None
