"""librdkafka, through confluent-kafka, against our broker."""

import threading
import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

import kcore
from tests import golden_data
from tests.interop.conftest import CODECS
from tests.waiting import wait_until


def produce(servers, topic, records, **config):
    """records: (key, value, headers, timestamp) tuples; the messages as delivered."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **config})
    delivered = []

    def on_delivery(error, message):
        assert error is None, error
        delivered.append(message)

    for key, value, headers, timestamp in records:
        producer.produce(topic, value, key, headers=headers, timestamp=timestamp or 0, on_delivery=on_delivery)
    assert producer.flush(60) == 0
    return delivered


def values(*items):
    return [(None, item, None, None) for item in items]


def consumer(servers, group, **config):
    return Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "session.timeout.ms": 30_000}
        | config
    )


def take(client, count, timeout=60):
    messages = []
    deadline = time.monotonic() + timeout
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages"
        for message in client.consume(count - len(messages), 0.1):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def read_all(servers, topic, partition=0, **config):
    """Every message of a partition, up to its end as this consumer sees it."""
    client = consumer(
        servers,
        "nobody",
        **{"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 20} | config,
    )
    try:
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        messages = []
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "no end of the partition"
            for message in client.consume(1000, 0.05):
                if message.error() is None:
                    messages.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return messages
                else:
                    raise KafkaException(message.error())
    finally:
        client.close()


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_with_every_codec(servers, name, codec):
    records = [
        (
            b"k%d" % i if i % 3 else None,
            b"value-%d " % i * (i % 40) if i % 7 else None,
            [("h", b"%d" % i)],
            1_700_000_000_000 + i,
        )
        for i in range(500)
    ]
    produce(servers, name, records, **{"compression.type": codec, "batch.num.messages": 50})
    read = read_all(servers, name)
    assert [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in read] == records
    assert [m.offset() for m in read] == list(range(500))


def test_headers_null_and_empty_keys_and_values_survive(servers, name):
    records = [
        (None, None, [("a", None), ("a", b""), ("ä", b"\0\xff")], None),
        (b"", b"", [], None),
        (b"\0", b"\0", None, None),
    ]
    produce(servers, name, records)
    read = read_all(servers, name)
    assert [(m.key(), m.value()) for m in read] == [(r[0], r[1]) for r in records]
    assert read[0].headers() == records[0][2]


def test_an_idempotent_producer_writes_each_record_once_and_in_order(servers, name):
    count = 20_000
    produce(
        servers,
        name,
        values(*(b"%d" % i for i in range(count))),
        **{"enable.idempotence": True, "batch.num.messages": 100, "compression.type": "lz4"},
    )
    assert [m.value() for m in read_all(servers, name)] == [b"%d" % i for i in range(count)]


def test_a_large_message_goes_through_and_a_too_large_one_is_refused(broker, servers, name):
    broker.create_topic(name, max_message_bytes=3_000_000)
    big = {"message.max.bytes": 10_000_000}
    produce(servers, name, values(b"x" * 2_900_000), **big)
    assert read_all(servers, name, **{"fetch.message.max.bytes": 1000})[0].value() == b"x" * 2_900_000
    failures = []
    producer = Producer({"bootstrap.servers": servers, **big})
    producer.produce(name, b"x" * 3_100_000, on_delivery=lambda error, message: failures.append(error))
    producer.flush(60)
    assert failures[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert broker.log(name).log_end_offset == 1


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level_delivers(servers, name, acks):
    produce(servers, name, values(b"a", b"b", b"c"), acks=acks)
    assert [m.value() for m in read_all(servers, name)] == [b"a", b"b", b"c"]


def test_a_topic_is_created_when_it_is_first_produced_to(broker, servers, name):
    produce(servers, name, values(b"x"))
    assert broker.log(name).log_end_offset == 1


def test_without_auto_creation_an_unknown_topic_is_an_error(name):
    with kcore.Broker(auto_create_topics_enable=False) as broker:
        failures = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 3000})
        try:
            producer.produce(name, b"x", on_delivery=lambda error, message: failures.append(error))
            producer.flush(60)
        except KafkaException as error:
            failures.append(error.args[0])
        assert failures[0].code() in (
            KafkaError._UNKNOWN_TOPIC,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._MSG_TIMED_OUT,
        )
        assert not broker.metadata_cache.topics()


def test_two_members_share_a_group_and_take_over_from_each_other(broker, servers, name):
    broker.create_topic(name, partitions=4)
    first, second = consumer(servers, name), consumer(servers, name)
    assigned = {}

    def on_assign(client, partitions):
        assigned[client] = sorted(p.partition for p in partitions)

    def poll_both():
        for client in (first, second):
            message = client.poll(0.05)
            if message is not None:
                assert message.error() is None

    try:
        first.subscribe([name], on_assign=on_assign)
        wait_until(lambda: first.poll(0.1) or assigned.get(first) == [0, 1, 2, 3], "one member does not get everything")
        second.subscribe([name], on_assign=on_assign)

        def shared():
            poll_both()
            halves = assigned.get(first, []), assigned.get(second, [])
            return sorted(halves[0] + halves[1]) == [0, 1, 2, 3] and all(halves)

        wait_until(shared, "two members do not share the partitions")
        second.close()
        wait_until(
            lambda: first.poll(0.1) or assigned[first] == [0, 1, 2, 3], "the partitions of the one that left are lost"
        )
    finally:
        first.close()


def test_a_group_resumes_where_it_committed(servers, name):
    produce(servers, name, values(*(b"%d" % i for i in range(100))))
    first = consumer(servers, name, **{"enable.auto.commit": False})
    first.subscribe([name])
    messages = take(first, 40)
    first.commit(message=messages[-1], asynchronous=False)
    first.close()
    second = consumer(servers, name, **{"enable.auto.commit": False})
    second.subscribe([name])
    assert [m.value() for m in take(second, 60)] == [b"%d" % i for i in range(40, 100)]
    assert second.committed([TopicPartition(name, 0)])[0].offset == 40
    second.close()


def test_a_group_resumes_after_the_broker_was_restarted(tmp_path, name):
    with kcore.Broker(tmp_path) as broker:
        port = broker.port
        produce(broker.bootstrap_servers, name, values(*(b"%d" % i for i in range(50))))
        client = consumer(broker.bootstrap_servers, name, **{"enable.auto.commit": False})
        client.subscribe([name])
        take(client, 20)
        client.commit(offsets=[TopicPartition(name, 0, 20, metadata="so far")], asynchronous=False)
        client.close()
        cluster_id = broker.cluster_id
    with kcore.Broker(tmp_path, port=port) as broker:
        assert broker.cluster_id == cluster_id
        client = consumer(broker.bootstrap_servers, name)
        committed = client.committed([TopicPartition(name, 0)])[0]
        assert (committed.offset, committed.metadata) == (20, "so far")
        client.subscribe([name])
        assert [m.value() for m in take(client, 30)] == [b"%d" % i for i in range(20, 50)]
        client.close()


def test_offsets_are_found_by_time(servers, name):
    produce(servers, name, [(None, b"%d" % i, None, 1_700_000_000_000 + 1000 * i) for i in range(100)])
    client = consumer(servers, name)
    for wanted, offset in [(0, 0), (1_700_000_000_000, 0), (1_700_000_049_500, 50), (1_700_000_099_000, 99)]:
        assert client.offsets_for_times([TopicPartition(name, 0, wanted)])[0].offset == offset
    assert client.offsets_for_times([TopicPartition(name, 0, 1_700_000_099_001)])[0].offset == -1
    assert client.get_watermark_offsets(TopicPartition(name, 0)) == (0, 100)
    client.close()


def test_a_waiting_consumer_gets_a_record_as_soon_as_it_is_written(servers, name):
    produce(servers, name, values(b"first"))
    client = consumer(servers, name, **{"fetch.wait.max.ms": 50_000})
    client.subscribe([name])
    take(client, 1)
    time.sleep(0.3)  # by now it waits in the broker
    started = time.monotonic()
    threading.Thread(target=produce, args=(servers, name, values(b"second"))).start()
    assert take(client, 1)[0].value() == b"second"
    assert time.monotonic() - started < 40
    client.close()


def test_topics_are_created_described_grown_and_deleted(broker, servers, name):
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic(
        name, num_partitions=3, replication_factor=1, config={"retention.ms": "12345", "cleanup.policy": "compact"}
    )
    admin.create_topics([topic])[name].result(60)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])[name].result(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    listed = admin.list_topics(name, timeout=60).topics[name]
    assert sorted(listed.partitions) == [0, 1, 2]
    assert listed.partitions[0].leader == 1 and listed.partitions[0].isrs == [1]
    admin.create_partitions([NewPartitions(name, 5)])[name].result(60)
    assert len(admin.list_topics(name, timeout=60).topics[name].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(60)
    assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("12345", False)
    assert (entries["segment.bytes"].value, entries["segment.bytes"].is_default) == ("1073741824", True)
    assert entries["cleanup.policy"].value == "compact"
    admin.delete_topics([name])[name].result(60)
    assert name not in admin.list_topics(timeout=60).topics


def test_a_topic_validated_only_is_not_created(servers, name):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 2, 1)], validate_only=True)[name].result(60)
    assert name not in admin.list_topics(timeout=60).topics


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("rf", 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("config", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("config", 1, 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("assigned", 1, replica_assignment=[[99]]), KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_error(servers, topic, code):
    admin = AdminClient({"bootstrap.servers": servers})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([topic])[topic.topic].result(60)
    assert refused.value.args[0].code() == code


def test_cluster_and_broker_describe_themselves(broker, servers):
    admin = AdminClient({"bootstrap.servers": servers})
    cluster = admin.describe_cluster().result(60)
    assert cluster.cluster_id == broker.cluster_id
    assert cluster.controller.id == 1 and [node.port for node in cluster.nodes] == [broker.port]
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(60)
    assert entries["num.partitions"].value == "1" and entries["num.partitions"].is_read_only


def test_settings_of_a_broker_are_changed_described_and_taken_back(broker, servers):
    admin = AdminClient({"bootstrap.servers": servers})
    rate = "leader.replication.throttled.rate"

    def alter(name, operation, value, setting=rate):
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(60)

    def described():
        resource = ConfigResource(ResourceType.BROKER, "1")
        entry = admin.describe_configs([resource])[resource].result(60)[rate]
        return entry.value, ConfigSource(entry.source)

    alter("1", AlterConfigOpType.SET, "1000000")
    assert described() == ("1000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert broker.running.services.replication_quotas.leader.bytes_per_second == 1_000_000
    alter("1", AlterConfigOpType.DELETE, None)
    assert described()[1] == ConfigSource.DEFAULT_CONFIG
    for setting, value, code in (
        ("num.partitions", "3", KafkaError.INVALID_REQUEST),
        (rate, "fast", KafkaError.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaException) as refused:
            alter("1", AlterConfigOpType.SET, value, setting)
        assert refused.value.args[0].code() == code and setting in refused.value.args[0].str()


def test_groups_are_listed_described_altered_and_deleted(servers, name):
    produce(servers, name, values(b"a", b"b"))
    admin = AdminClient({"bootstrap.servers": servers})
    client = consumer(servers, name, **{"client.id": "the-client"})
    client.subscribe([name])
    take(client, 2)
    client.commit(asynchronous=False)
    group = admin.describe_consumer_groups([name])[name].result(60)
    assert group.state.name == "STABLE"
    (member,) = group.members
    assert member.client_id == "the-client"
    assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(name, 0)]
    assert name in [g.group_id for g in admin.list_consumer_groups().result(60).valid]
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([name])[name].result(60)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    client.close()
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(60)
    assert [(p.topic, p.partition, p.offset) for p in offsets.topic_partitions] == [(name, 0, 2)]
    admin.delete_consumer_groups([name])[name].result(60)
    assert name not in [g.group_id for g in admin.list_consumer_groups().result(60).valid]


def test_offsets_are_listed_and_records_deleted_by_an_administrator(broker, servers, name):
    produce(servers, name, [(None, b"%d" % i, None, 1_700_000_000_000 + (i * 7 % 10)) for i in range(10)])
    admin = AdminClient({"bootstrap.servers": servers})
    partition = TopicPartition(name, 0)

    def offset_of(spec):
        asked = admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        return asked[partition].result(60)

    assert offset_of(OffsetSpec.latest()).offset == 10
    assert offset_of(OffsetSpec.earliest()).offset == 0
    newest = offset_of(OffsetSpec.max_timestamp())
    assert (newest.offset, newest.timestamp) == (7, 1_700_000_000_009)
    deleted = admin.delete_records([TopicPartition(name, 0, 4)])
    assert deleted[TopicPartition(name, 0, 4)].result(60).low_watermark == 4
    assert offset_of(OffsetSpec.earliest()).offset == 4
    assert [m.offset() for m in read_all(servers, name)] == list(range(4, 10))


@pytest.mark.parametrize(
    "partition", [p for p in golden_data.partitions() if golden_data.expected()["partitions"][p]["consumer"]]
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_directory_that_kafka_wrote_is_consumed_as_kafkas_consumer_read_it(golden_broker, partition, isolation):
    topic, _, number = partition.rpartition("-")
    expected = golden_data.expected()["partitions"][partition]["consumer"]
    everything = {
        record[0]: (
            record[1],
            None if record[3] is None else bytes.fromhex(record[3]),
            None if record[4] is None else bytes.fromhex(record[4]),
            [(bytes.fromhex(k).decode(), None if v is None else bytes.fromhex(v)) for k, v in record[5]],
        )
        for record in expected["read_uncommitted"]["records"]
    }
    offsets = expected["read_committed"]["offsets"] if isolation == "read_committed" else sorted(everything)
    client = consumer(golden_broker.bootstrap_servers, "watermarks", **{"isolation.level": isolation})
    low, high = client.get_watermark_offsets(TopicPartition(topic, int(number)), timeout=60)
    client.close()
    assert low == expected[isolation]["beginning_offset"]
    assert high == expected[isolation]["end_offset"]
    read = read_all(golden_broker.bootstrap_servers, topic, int(number), **{"isolation.level": isolation})
    assert [m.offset() for m in read] == offsets
    for m in read:
        assert (m.timestamp()[1], m.key(), m.value(), m.headers() or []) == everything[m.offset()]


def test_a_directory_that_kafka_wrote_keeps_its_identity(golden_broker):
    assert golden_broker.cluster_id == "CnicigT2Tj6S8vTq1Po1SA"
    assert golden_broker.broker_id == 1
    admin = AdminClient({"bootstrap.servers": golden_broker.bootstrap_servers})
    topics = admin.list_topics(timeout=60).topics
    assert "__cluster_metadata" not in topics
    assert len(topics["g-segments"].partitions) == 2
    (described,) = admin.describe_topics(TopicCollection(["g-none"])).values()
    # partition.metadata says JCJw_LQ9TLarK9Q8M3kEtA; librdkafka writes ids in the other alphabet of base64.
    assert str(described.result(60).topic_id) == "JCJw/LQ9TLarK9Q8M3kEtA"


def test_a_directory_that_kafka_wrote_takes_more_records(golden_broker):
    servers = golden_broker.bootstrap_servers
    end = golden_broker.log("g-lz4").log_end_offset
    (message,) = produce(servers, "g-lz4", values(b"from kcore"), **{"compression.type": "zstd"})
    assert message.offset() == end
    assert read_all(servers, "g-lz4")[-1].value() == b"from kcore"
