"""The sink's writer for a broker, without a session."""

import pickle

import pytest

import kcore
from kcore.bulk.bulk_load import BulkLoad
from kcore.errors import InvalidTimestamp
from kcore.spark.options import OptionError
from kcore.spark.sink.broker_writer import DeliveryFailed
from kcore.spark.sink.writer import make_stream_writer, make_writer
from kcore.testing.request_faults import RequestChoice, action_of, make_fault
from tests.reference.partitioner import partition_for_key
from tests.unit.bulk.test_bulk_load import NOW, batch_of, contents, random_rows
from tests.unit.server.transactions import await_markers
from tests.unit.spark.schemas import schema_of
from tests.unit.spark.sink.test_bulk_writer import SCHEMA


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with kcore.Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def options_for(broker, **options):
    return {"kcore.bootstrap.servers": broker.bootstrap_servers} | options


@pytest.mark.parametrize("make", [make_writer, make_stream_writer])
def test_records_arrive_with_key_value_headers_timestamp_where_java_would_send_them(broker, make):
    topic = make.__name__
    broker.create_topic(topic, 4)
    rows = random_rows(1, 700, topics=(topic,))
    writer = make(options_for(broker, **{"kafka.compression.type": "lz4"}), SCHEMA, False)
    pickle.loads(pickle.dumps(writer)).write(iter([batch_of(rows[:300]), batch_of(rows[300:])]))
    written = {tp: records for tp, records in contents_of(broker).items() if tp.topic == topic}
    keyed = {
        p: [(k, v, t, h or []) for _, k, v, t, h in rows if k is not None and partition_for_key(k, 4) == p]
        for p in range(4)
    }
    for tp, records in written.items():
        assert [r for r in records if r[0] is not None] == keyed[tp.partition]
    without = [(k, v, t, h or []) for _, k, v, t, h in rows if k is None]
    assert sorted(map(repr, (r for records in written.values() for r in records if r[0] is None))) == sorted(
        map(repr, without)
    )
    with kcore.open_log(f"{broker.data_dir}/{topic}-0") as log:
        assert {batch.compression for batch in log.batches()} == {"lz4"}
        assert min(batch.producer_id for batch in log.batches()) >= 0  # idempotent


def contents_of(broker):
    import pathlib

    return contents(pathlib.Path(broker.data_dir))


def test_the_topic_of_the_option_is_that_of_all_records(broker):
    broker.create_topic("chosen", 1)
    writer = make_writer(options_for(broker, topic="chosen", includeHeaders="false"), SCHEMA, False)
    writer.write(iter([batch_of(random_rows(2, 50, topics=("a", "b")))]))
    with kcore.open_log(f"{broker.data_dir}/chosen-0") as log:
        records = list(log.records())
    assert len(records) == 50 and not any(record.headers for record in records)


def test_a_record_that_the_broker_refuses_fails_the_task_with_the_brokers_words(broker):
    broker.create_topic("small", 1, max_message_bytes=500)
    writer = make_writer(options_for(broker, topic="small"), SCHEMA, False)
    rows = [("small", b"k", b"v" * n, NOW, None) for n in (10, 5000, 10)]
    with pytest.raises(DeliveryFailed, match=r"small: .*(?i:too large|MSG_SIZE_TOO_LARGE)"):
        writer.write(iter([batch_of(rows)]))
    writer = make_writer(options_for(broker, topic="small", **{"kafka.max.request.size": "2000"}), SCHEMA, False)
    with pytest.raises(DeliveryFailed, match=r"record 1 of this task: .*(?i:too large|MSG_SIZE_TOO_LARGE)"):
        writer.write(iter([batch_of(rows)]))


def test_a_partition_that_there_is_not_fails_the_task(broker):
    import pyarrow as pa

    broker.create_topic("two", 2)
    writer = make_writer(options_for(broker, topic="two"), SCHEMA, False)
    rows = random_rows(3, 1)
    with pytest.raises(DeliveryFailed, match="partition"):
        writer.write(iter([batch_of(rows, partition=pa.array([7], pa.int32()))]))
    with pytest.raises(ValueError, match="-3 is negative"):
        writer.write(iter([batch_of(rows, partition=pa.array([-3], pa.int32()))]))
    for timestamp, words in ((-7, "-7 ms: a record's timestamp is 1970"), (0, "0 ms: librdkafka takes it for none")):
        with pytest.raises(InvalidTimestamp, match=words):
            writer.write(iter([batch_of([("two", b"k", b"v", timestamp, None)])]))
    with pytest.raises(ValueError, match="column topic is null"):
        make_writer(options_for(broker), SCHEMA, False).write(iter([batch_of([(None, b"k", b"v", 0, None)])]))


def test_a_broker_that_is_not_there_fails_the_task_in_the_time_that_the_options_give():
    options = {"kcore.bootstrap.servers": "127.0.0.1:1", "kafka.delivery.timeout.ms": "300", "topic": "t"}
    writer = make_writer(options | {"kafka.linger.ms": "0"}, SCHEMA, False)
    with pytest.raises(DeliveryFailed, match=r"t: .*(timed out|TIMED_OUT)"):
        writer.write(iter([batch_of(random_rows(4, 3))]))


def test_a_broker_without_transactions_is_reported_before_any_task_runs(broker):
    refused = action_of("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", None, None, silent=False)
    with (
        make_fault([broker], "FindCoordinator", RequestChoice(), refused, None),
        pytest.raises(OptionError, match=r"kafka.transactional.id x: .* begins no transactions: .*authorization"),
    ):
        make_writer(options_for(broker, topic="t", **{"kafka.transactional.id": "x"}), SCHEMA, False)


def test_with_a_transactional_id_a_task_that_fails_has_written_nothing_for_committed_readers(broker):
    broker.create_topic("whole", 1)
    writer = make_writer(options_for(broker, topic="whole", **{"kafka.transactional.id": "task"}), SCHEMA, False)

    def batches(*, fails):
        yield batch_of(random_rows(5, 20, topics=("whole",)))
        if fails:
            raise ZeroDivisionError("the task fails")

    with pytest.raises(ZeroDivisionError):
        writer.write(batches(fails=True))
    writer.write(batches(fails=False))
    await_markers(broker)
    log = broker.log("whole")
    assert len(list(log.records(isolation="read_committed"))) == 20
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize(
    "options, words",
    [
        ({"startingOffsets": "earliest"}, "option startingOffsets is not for this: it is an option for reading"),
        ({"kafka.key.serializer": "x"}, "bytes are written as they are"),
        ({"kafka.no.such": "x"}, "producer cannot be made: .*no.such"),
        ({"numPartitions": "3"}, "it is for files"),
        ({"topics": "t"}, "unknown option topics; did you mean topic"),
    ],
)
def test_a_setting_that_cannot_be_is_named_before_any_task_runs(options, words):
    all_options = {"kcore.bootstrap.servers": "127.0.0.1:1", "topic": "t"} | options
    with pytest.raises(OptionError, match=words):
        make_writer(all_options, schema_of("value string"), False)


def test_records_of_a_running_broker_cannot_be_overwritten():
    with pytest.raises(OptionError, match="cannot be replaced"):
        make_writer({"kcore.bootstrap.servers": "127.0.0.1:1", "topic": "t"}, SCHEMA, True)


def test_a_broker_serves_what_was_loaded_into_its_directory_while_it_was_stopped(tmp_path):
    import confluent_kafka

    def consumed(broker, count):
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0), confluent_kafka.TopicPartition("new", 0, 0)])
        messages = [m for m in consumer.consume(count, timeout=60) if m.error() is None]
        consumer.close()
        return sorted((m.topic(), m.offset(), m.value()) for m in messages)

    def produce(broker, values):
        writer = make_writer(options_for(broker, topic="orders"), SCHEMA, False)
        writer.write(iter([batch_of([("orders", None, value, NOW, None) for value in values])]))

    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("orders", 1)
        produce(broker, [b"a", b"b"])
    with BulkLoad(tmp_path) as load:
        load.append(batch_of([("orders", None, b"c", NOW, None), ("new", None, b"x", NOW, None)]))
        load.commit()
    with kcore.Broker(tmp_path) as broker:
        produce(broker, [b"d"])
        assert consumed(broker, 5) == [("new", 0, b"x"), *(("orders", n, b"abcd"[n : n + 1]) for n in range(4))]
