"""Broker: its life, and what becomes of its directory."""

import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import kcore
from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    DirectoryInUse,
    InconsistentClusterId,
    InvalidConfig,
    KafkaStorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kcore.metadata.embedded_store import FILE_NAME as STORE
from kcore.metadata.embedded_store import FILE_NAME as STORE_FILE_NAME
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.znodes import encode_deletion, id_to_string, topic_deletion
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import produce as p
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from tests import golden_data
from tests.batches import batch
from tests.own_process import in_own_process
from tests.unit.server.client import Client
from tests.waiting import wait_until


def produce(broker, topic, *values, partition=0):
    data = p.PartitionProduceData(index=partition, records=batch(*values))
    request = p.ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[p.TopicProduceData(name=topic, partition_data=[data])]
    )
    with Client(broker) as client:
        (answer,) = client.ask(request, 9).responses[0].partition_responses
    assert answer.error_code == 0, answer.error_message
    return answer.base_offset


def fetched(broker, topic):
    wanted = [f.FetchPartition(partition=0, partition_max_bytes=1 << 20)]
    request = f.FetchRequest(topics=[f.FetchTopic(topic=topic, partitions=wanted)], max_bytes=1 << 20)
    with Client(broker) as client:
        return client.ask(request, 12).responses[0].partitions[0].records


def values(broker, topic, partition=0):
    return [record.value for record in broker.log(topic, partition).records()]


def epochs(broker, topic):
    return [info.leader_epoch for _, info in sorted(broker.metadata_cache.topic(topic).partitions.items())]


@in_own_process
def test_without_a_directory_nothing_is_left_behind():
    gc.collect()
    fds, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    broker = kcore.Broker()
    assert broker.data_dir is None
    with broker:
        directory = broker.data_dir
        broker.create_topic("t", partitions=3)
        produce(broker, "t", b"x")
        assert os.path.isdir(os.path.join(directory, "t-0"))
    assert not os.path.exists(directory)
    assert set(threading.enumerate()) == threads
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == fds


@in_own_process
def test_brokers_that_were_killed_leave_no_descriptor_to_the_garbage_collector():
    def live_and_die():
        broker = kcore.Broker().start()
        broker.create_topic("t", partitions=2)
        produce(broker, "t", b"x")
        assert fetched(broker, "t")
        broker.kill()

    live_and_die()
    gc.collect()
    gc.disable()
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        live_and_die()
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_directory_keeps_topics_records_and_identity_through_clean_restarts(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        topic_id = broker.create_topic("t", partitions=2, retention_ms=12345, **{"segment.bytes": "1000000"})
        produce(broker, "t", b"a", b"b")
        cluster_id = broker.cluster_id
    for life in range(2):
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        with kcore.Broker(tmp_path) as broker:
            assert not (tmp_path / ".kafka_cleanshutdown").exists()
            assert broker.cluster_id == cluster_id
            assert broker.metadata_cache.topic_id("t") == broker.log("t").topic_id == topic_id
            assert broker.log("t").config.retention_ms == 12345
            assert broker.log("t").config.segment_bytes == 1_000_000
            assert epochs(broker, "t") == [0, 0]
            assert broker.log("t").high_watermark == 2 + life
            assert produce(broker, "t", b"c") == 2 + life
    with kcore.Broker(tmp_path) as broker:
        assert values(broker, "t") == [b"a", b"b", b"c", b"c"]


def test_after_an_unclean_stop_leader_epochs_go_up(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t", partitions=2)
        produce(broker, "t", b"a")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with kcore.Broker(tmp_path) as broker:
        assert epochs(broker, "t") == [1, 1]
        produce(broker, "t", b"b")
        assert [batch.leader_epoch for batch in _batches(broker, "t")] == [0, 1]
        assert broker.log("t").end_offset_for_epoch(0) == (0, 1)


def _batches(broker, topic):
    return list(broker.log(topic).read(0, 1 << 20).records.memory_records().batches)


def test_a_directory_has_one_broker_at_a_time(tmp_path):
    with kcore.Broker(tmp_path), pytest.raises(DirectoryInUse, match=str(tmp_path)):
        kcore.Broker(tmp_path).start()
    with kcore.Broker(tmp_path):
        pass


@in_own_process
def test_a_start_that_fails_leaves_nothing_running_and_nothing_locked():
    with tempfile.TemporaryDirectory() as directory, kcore.Broker() as other:
        gc.collect()
        fds, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
        with pytest.raises(OSError, match=str(other.port)):
            kcore.Broker(directory, port=other.port).start()
        assert set(threading.enumerate()) == threads
        gc.collect()
        assert set(os.listdir("/proc/self/fd")) == fds
        with kcore.Broker(directory) as broker:
            assert broker.metadata_cache.topics() == []


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_cannot_be_is_refused_not_wrapped(tmp_path, port):
    with pytest.raises(InvalidConfig, match=str(port)):
        kcore.Broker(tmp_path, port=port)


def test_a_broker_that_does_not_run_is_reported(tmp_path):
    broker = kcore.Broker(tmp_path)
    for use in (
        lambda: broker.bootstrap_servers,
        lambda: broker.create_topic("t"),
        lambda: broker.delete_topic("t"),
        lambda: broker.log("t"),
    ):
        with pytest.raises(RuntimeError, match="has not started"):
            use()
    broker.start()
    broker.create_topic("t")
    broker.stop()
    for use in (lambda: broker.create_topic("u"), lambda: broker.delete_topic("t")):
        with pytest.raises(RuntimeError, match="has stopped"):
            use()
    with kcore.Broker(tmp_path) as broker:
        assert list(broker.metadata_cache.snapshot.topic_names()) == ["t"]


@pytest.mark.parametrize("stopped_before", range(3))
@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("marker", ["new", "old"])
def test_a_deletion_that_a_crash_interrupts_goes_on_at_the_next_start(
    tmp_path, monkeypatch, stopped_before, recreated, marker
):
    """Directories that are left would be adopted, and a deleted topic would be back with its records."""
    with kcore.Broker(tmp_path) as broker:
        topic_id = broker.create_topic("t", partitions=3)
        broker.create_topic("other")
        produce(broker, "t", b"deleted", partition=2)
        produce(broker, "other", b"kept")
        stop_replicas = broker.replica_manager.stop_replicas

        def crash(stops, controller_epoch):
            stop_replicas(stops[:stopped_before], controller_epoch)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(broker.replica_manager, "stop_replicas", crash)
            with pytest.raises(KeyboardInterrupt):
                broker.delete_topic("t")
    with contextlib.closing(EmbeddedStore(str(tmp_path / STORE_FILE_NAME))) as store:
        assert store.children("/kcore/topic_deletions") == [id_to_string(topic_id)]
        # To Kafka's controller a node here is the order to delete the topic of that name.
        assert store.children("/admin/delete_topics") == []
        if marker == "old":
            store.delete_recursive("/kcore/topic_deletions")
            store.create_recursive("/admin/delete_topics/t", id_to_string(topic_id).encode())
    if recreated:  # a directory of the same name with another topic id is not deleted
        with kcore.Broker(tmp_path) as broker:
            assert broker.create_topic("t", retention_ms=5) != topic_id
            if marker == "old":
                broker.store.create_recursive("/admin/delete_topics/t", id_to_string(topic_id).encode())
            else:
                broker.store.create_recursive(topic_deletion(topic_id), encode_deletion("t"))
            produce(broker, "t", b"new")
    with kcore.Broker(tmp_path) as broker:
        assert sorted(broker.metadata_cache.snapshot.topic_names()) == (["other", "t"] if recreated else ["other"])
        assert broker.store.children("/admin/delete_topics") == []
        assert broker.store.children("/kcore/topic_deletions") == []
        assert values(broker, "other") == [b"kept"]
        assert not (tmp_path / "t-2").exists()
        if recreated:
            assert values(broker, "t") == [b"new"]
            assert broker.log("t").config.retention_ms == 5
        else:
            broker.create_topic("t")
            assert values(broker, "t") == []
            assert broker.log("t").config.retention_ms != -1


def test_an_order_to_kafkas_controller_is_not_taken_for_an_interrupted_deletion(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
        produce(broker, "t", b"kept")
        broker.store.create_recursive("/admin/delete_topics/t")
    with kcore.Broker(tmp_path) as broker:
        assert broker.store.children("/admin/delete_topics") == ["t"]
        assert values(broker, "t") == [b"kept"]


def await_leadership(broker, topic_partition):
    """Until the controller's request has come: a broker that is given a store is one of a cluster."""

    def is_led():
        hosted = broker.replica_manager.get_partition(topic_partition)
        return hosted is not None and hosted.is_leader

    wait_until(is_led)


def test_a_broker_uses_the_store_that_it_is_given_and_leaves_it_open(tmp_path):
    store = EmbeddedStore(str(tmp_path / "given.db"), durable=False, poll_interval_ms=5)
    with kcore.Broker(tmp_path, store=store) as broker:
        assert broker.store is store
        topic_id = broker.create_topic("t", partitions=2, retention_ms=5)
        produce(broker, "t", b"x", partition=1)
        broker.restart()
        await_leadership(broker, TopicPartition("t", 1))
        assert broker.metadata_cache.topic_id("t") == topic_id
        cluster_id = broker.cluster_id
    assert not (tmp_path / STORE_FILE_NAME).exists()
    assert store.children("/brokers/topics/t/partitions") == ["0", "1"]
    with kcore.Broker(tmp_path, store=store) as broker:
        await_leadership(broker, TopicPartition("t", 1))
        assert values(broker, "t", 1) == [b"x"]
        assert broker.log("t", 1).config.retention_ms == 5
        assert broker.cluster_id == cluster_id
        broker.delete_topic("t")
        wait_until(lambda: not store.children("/brokers/topics"))
    assert store.children("/config/topics") == []
    store.close()
    with pytest.raises(TypeError, match="store must be a MetadataStore"):
        kcore.Broker(tmp_path, store=tmp_path / STORE_FILE_NAME)


def test_a_broker_starts_once_and_stops_as_often_as_one_likes():
    broker = kcore.Broker()
    broker.stop()  # before it started: no effect
    broker.start()
    with pytest.raises(RuntimeError):
        broker.start()
    broker.stop()
    broker.stop()
    with pytest.raises(RuntimeError):
        broker.start()


def test_two_brokers_live_in_one_process_and_know_nothing_of_each_other():
    with kcore.Broker() as one, kcore.Broker(broker_id=7) as two:
        one.create_topic("t")
        produce(one, "t", b"x")
        assert one.cluster_id != two.cluster_id
        assert two.metadata_cache.topics() == []
        with Client(two) as client:
            assert client.ask(m.MetadataRequest(topics=[]), 1).brokers[0].node_id == 7


def test_bad_settings_are_refused_before_anything_happens(tmp_path):
    with pytest.raises(InvalidConfig, match=r"log\.segment\.bytes"):
        kcore.Broker(tmp_path / "new", log_segment_byte=1)
    assert not (tmp_path / "new").exists()


def test_a_forked_child_can_neither_stop_the_broker_nor_remove_its_directory():
    with kcore.Broker() as broker:
        child = os.fork()
        if child == 0:
            broker.stop()
            os._exit(0 if os.path.isdir(broker.data_dir) else 1)
        assert os.waitpid(child, 0)[1] == 0
        broker.create_topic("t")
        assert produce(broker, "t", b"x") == 0


@pytest.mark.parametrize("fork", [False, True])
def test_a_running_broker_is_stopped_when_the_interpreter_exits(tmp_path, fork):
    script = (
        "import os, sys, kcore\n"
        "kept = kcore.Broker(sys.argv[1]).start(); kept.create_topic('t')\n"
        "temporary = kcore.Broker().start()\n"
        "print(temporary.data_dir)\n"
        + ("sys.stdout.flush()\nif os.fork() == 0: sys.exit(0)\nos.wait()\nkept.create_topic('u')\n" if fork else "")
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not os.path.exists(result.stdout.strip())
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_topics_are_created_and_deleted_from_python():
    with kcore.Broker() as broker:
        first = broker.create_topic("t", partitions=2, message_timestamp_type="LogAppendTime", preallocate=True)
        assert broker.log("t", 1).config.message_timestamp_type == "LogAppendTime"
        assert broker.log("t", 1).config.preallocate is True
        with pytest.raises(TopicAlreadyExists):
            broker.create_topic("t")
        with pytest.raises(InvalidConfig):
            broker.create_topic("u", retention_ms="soon")
        produce(broker, "t", b"x")
        broker.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            broker.log("t")
        with pytest.raises(UnknownTopicOrPartition):
            broker.delete_topic("t")
        assert broker.create_topic("t") != first
        assert values(broker, "t") == []


def test_a_directory_that_only_kafka_knew_is_adopted_once_and_its_data_kept_for_good(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(golden_data.data_dir(), data)
    before = (data / "meta.properties").read_bytes()
    with kcore.Broker(data) as broker:
        assert (data / "meta.properties").read_bytes() == before
        names = {topic.name for topic in broker.metadata_cache.topics()}
        assert "__cluster_metadata" not in names and "__transaction_state" in names
        assert epochs(broker, "g-epochs") == [3]  # its last leader wrote with epoch 2
        assert broker.log("g-none").config.retention_ms == -1
        assert broker.log("g-none").config.retention_bytes == -1
        epoch_of = {name: epochs(broker, name) for name in names}
        topic_id = broker.metadata_cache.topic_id("g-none")
        produce(broker, "g-none", b"more")
    with kcore.Broker(data) as broker:
        assert {topic.name for topic in broker.metadata_cache.topics()} == names
        assert {name: epochs(broker, name) for name in names} == epoch_of
        assert broker.metadata_cache.topic_id("g-none") == topic_id
        assert broker.log("g-none").config.retention_ms == -1
        assert values(broker, "g-none")[-1] == b"more"


def test_producer_ids_in_an_adopted_directory_are_not_assigned_again(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(golden_data.partition_dir("g-idempotent-0"), data / "g-idempotent-0")
    with kcore.Broker(data, producer_id_expiration_ms=2**31 - 1) as broker, Client(broker) as client:
        taken = set(broker.log("g-idempotent").producer_state_manager.producers)
        assert taken
        answer = client.ask(InitProducerIdRequest(transactional_id=None), 0)
        assert answer.producer_id > max(taken)


def test_partitions_that_are_elsewhere_are_listed_without_a_leader(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(golden_data.partition_dir("g-segments-1"), data / "g-segments-1")
    with kcore.Broker(data) as broker, Client(broker) as client:
        (topic,) = client.ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="g-segments")]), 9).topics
        assert [(x.partition_index, x.error_code, x.leader_id) for x in topic.partitions] == [(0, 5, -1), (1, 0, 1)]
        assert len(values(broker, "g-segments", 1)) == 100
        data_of_nobody = p.PartitionProduceData(index=0, records=batch(b"x"))
        request = p.ProduceRequest(
            acks=1, topic_data=[p.TopicProduceData(name="g-segments", partition_data=[data_of_nobody])]
        )
        assert client.ask(request, 9).responses[0].partition_responses[0].error_code == 6


def test_an_identity_that_does_not_match_is_refused(tmp_path):
    with kcore.Broker(tmp_path, broker_id=3):
        pass
    text = (tmp_path / "meta.properties").read_text()
    assert "broker.id=3" in text and "version=0" in text
    with pytest.raises(InvalidConfig, match="belongs to broker 3"):
        kcore.Broker(tmp_path, broker_id=4).start()
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=another\n")
    with pytest.raises(InconsistentClusterId, match="another"):
        kcore.Broker(tmp_path).start()
    (tmp_path / "meta.properties").unlink()
    with kcore.Broker(tmp_path) as broker:
        assert broker.broker_id == 1


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_broker_alone_whose_meta_properties_is_lost_keeps_its_id(tmp_path, damage):
    with kcore.Broker(tmp_path, broker_id=7) as broker:
        broker.create_topic("orders", 2)
        produce(broker, "orders", b"a book")
    damage(tmp_path / "meta.properties")
    with kcore.Broker(tmp_path) as broker:
        assert broker.broker_id == 7 and values(broker, "orders") == [b"a book"]
    assert "broker.id=7" in (tmp_path / "meta.properties").read_text()


def test_a_broker_alone_refuses_the_directory_that_has_a_clusters_store(tmp_path):
    path = tmp_path / "kcore-metadata.db"
    with kcore.Broker(tmp_path / "0", broker_id=1, store=f"sqlite:{path}") as broker:
        broker.create_topic("orders")
        expected = rf"metadata store of cluster {broker.cluster_id}.*`kcore serve --brokers N --data {tmp_path}`"
        with pytest.raises(InvalidConfig, match=expected):
            kcore.Broker(tmp_path).start()
    with pytest.raises(InvalidConfig, match=expected):
        kcore.Broker(tmp_path).start()
    assert not (tmp_path / "orders-0").exists() and not (tmp_path / "meta.properties").exists()


def test_a_directory_of_another_topic_of_the_same_name_is_set_aside_and_logged(tmp_path, caplog):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("bad", partitions=2)
        broker.create_topic("good")
        produce(broker, "good", b"x")
        produce(broker, "bad", b"old", partition=1)
    path = tmp_path / "bad-1" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    with kcore.Broker(tmp_path) as broker, Client(broker) as client:
        assert values(broker, "good") == [b"x"]
        (topic,) = client.ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="bad")]), 9).topics
        assert [(x.partition_index, x.error_code) for x in topic.partitions] == [(0, 0), (1, 0)]
        assert values(broker, "bad", 1) == []
        (aside,) = tmp_path.glob("bad-1.*-stray")
        assert f"it is {aside} now, with the offsets [0, 1)" in caplog.text
    with kcore.open_log(aside) as log:
        assert [record.value for record in log.records()] == [b"old"]


def test_the_offsets_topic_as_it_is_decides_where_groups_are(tmp_path):
    with kcore.Broker(tmp_path, offsets_topic_num_partitions=3) as broker, Client(broker) as client:
        assert client.ask(fc.FindCoordinatorRequest(key="g"), 0).error_code == 0
    with kcore.Broker(tmp_path) as broker:
        assert {broker.group_coordinator.partition_for(f"group-{n}") for n in range(100)} == {0, 1, 2}
    (tmp_path / STORE).unlink()  # now only the directories know
    with kcore.Broker(tmp_path) as broker:
        assert {broker.group_coordinator.partition_for(f"group-{n}") for n in range(100)} == {0, 1, 2}


def test_clients_are_sent_to_the_advertised_address():
    with kcore.Broker(host="0.0.0.0", advertised_listeners="PLAINTEXT://broker.example:1234") as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        with Client(broker) as client:
            (info,) = client.ask(m.MetadataRequest(topics=[]), 1).brokers
            assert (info.host, info.port) == ("broker.example", 1234)


def test_a_fetch_that_waits_is_woken_by_an_append_and_dropped_by_a_stop():
    with kcore.Broker() as broker:
        broker.create_topic("t")
        partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        request = f.FetchRequest(max_wait_ms=60_000, topics=[f.FetchTopic(topic="t", partitions=[partition])])
        request.min_bytes = 1
        with Client(broker) as woken:
            woken.send(request, 11)
            while not broker.replica_manager.delayed_fetch_purgatory.operations(TopicPartition("t", 0)):
                pass
            produce(broker, "t", b"x")
            assert woken.receive(1, 11).responses[0].partitions[0].high_watermark == 1
        partition.fetch_offset = 1
        dropped = Client(broker)
        dropped.send(request, 11)
    assert dropped.is_closed()


def test_many_partitions_open_quickly(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("many", partitions=300)
        assert broker.replica_manager.get_partition(TopicPartition("many", 299)) is not None
    with kcore.Broker(tmp_path) as broker:
        assert epochs(broker, "many") == [0] * 300


@pytest.mark.parametrize("threads", [1, 3])
def test_many_clients_write_one_partition_and_every_record_has_its_own_offset(threads):
    acknowledged = {}
    with kcore.Broker(num_network_threads=threads) as broker:
        broker.create_topic("t")

        def write(number):
            data = p.PartitionProduceData(index=0)
            request = p.ProduceRequest(
                acks=-1, timeout_ms=60_000, topic_data=[p.TopicProduceData(name="t", partition_data=[data])]
            )
            with Client(broker) as client:
                for count in range(100):
                    data.records = batch(b"%d-%d" % (number, count))
                    answer = client.ask(request, 9).responses[0].partition_responses[0]
                    assert answer.error_code == 0
                    acknowledged[answer.base_offset] = b"%d-%d" % (number, count)

        writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert len(acknowledged) == 800
        assert {record.offset: record.value for record in broker.log("t").records()} == acknowledged


def test_an_idle_broker_uses_no_cpu():
    others = set(threading.enumerate())

    def cpu_seconds():
        """Of the broker's threads: another test may have left one that works."""
        total = 0.0
        for thread in set(threading.enumerate()) - others:
            with contextlib.suppress(OSError):  # it has ended
                ticks = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
                total += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return total

    with kcore.Broker() as broker:
        broker.create_topic("t", partitions=20)
        with Client(broker) as client:
            client.ask(m.MetadataRequest(topics=[]), 1)

            def is_idle():
                before = cpu_seconds()
                time.sleep(1)
                return cpu_seconds() - before < 0.04

            wait_until(is_idle)


def test_a_failing_data_directory_goes_offline_alone_and_the_broker_stops_when_none_is_left(tmp_path):
    dirs = [str(tmp_path / "x"), str(tmp_path / "y")]
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        broker.create_topic("t", partitions=2)
        here, there = (TopicPartition("t", n) for n in range(2))
        if os.path.dirname(broker.log("t", 0).directory) == dirs[0]:
            here, there = there, here  # the first directory has the metadata, the second fails first
        produce(broker, "t", b"a", partition=there.partition)
        file.fail_next(("pwrite", "ftruncate"), errno.EIO, under=dirs[1], times=-1)
        with pytest.raises(AssertionError):
            produce(broker, "t", b"lost", partition=here.partition)
        assert produce(broker, "t", b"b", partition=there.partition) == 1
        broker.create_topic("u")
        assert broker.log("u").directory.startswith(dirs[0])
        file.fail_next(("pwrite", "ftruncate"), errno.EIO, under=dirs[0], times=-1)
        with pytest.raises((AssertionError, OSError)):
            produce(broker, "t", b"lost", partition=there.partition)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not broker.has_stopped:
            time.sleep(0.01)
        assert broker.has_stopped
    file.clear_faults()
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        assert values(broker, "t", there.partition) == [b"a", b"b"]


def test_RM_29_a_failed_disk_is_dealt_with_on_a_thread_of_its_own_that_holds_no_lock(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
        partition = broker.replica_manager.get_partition(TopicPartition("t", 0))
        log, ended, seen = broker.log("t"), threading.Event(), []

        def no_data_dir_left(error):
            seen.append((error.errno, threading.current_thread().name))
            # An append holds these two while it fails.
            with partition.leader_isr_update_lock.write(), log.lock:
                ended.set()

        broker.on_fatal_error = no_data_dir_left
        file.fail_next(("pwrite", "ftruncate"), errno.EIO, under=str(tmp_path / "t-0"), times=-1)
        with pytest.raises(KafkaStorageError):
            broker.produce("t", b"lost")
        assert ended.wait(60)
        assert seen == [(errno.EIO, f"kcore-log-dir-failures-{broker.broker_id}")]
        file.clear_faults()
        with pytest.raises(KafkaStorageError, match="t-0 is offline"):
            broker.log("t")


def test_a_second_data_directory_that_cannot_be_had_does_not_keep_the_broker_from_starting(tmp_path):
    dirs = [str(tmp_path / "x"), str(tmp_path / "y")]
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        broker.create_topic("t", partitions=2)
        kept = next(n for n in range(2) if broker.log("t", n).directory.startswith(dirs[0]))
    file.fail_next(("open", "open_write", "opendir"), errno.EIO, under=dirs[1], times=-1)
    with kcore.Broker(log_dirs=",".join(dirs)) as broker:
        assert produce(broker, "t", b"a", partition=kept) == 0
        offline = broker.metadata_cache.topic("t").partitions[1 - kept]
        assert offline.leader == -1


def test_a_partition_made_on_a_full_disk_comes_online_when_there_is_room(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        file.fail_next("mkdir", errno.ENOSPC, under=str(tmp_path / "t-1"), times=-1)
        broker.create_topic("t", partitions=2)
        assert [broker.metadata_cache.topic("t").partitions[n].leader for n in range(2)] == [broker.broker_id, -1]
        broker.running.membership.local_controller.retry_offline_partitions()
        assert broker.metadata_cache.topic("t").partitions[1].leader == -1
        file.clear_faults()
        broker.running.membership.local_controller.retry_offline_partitions()
        assert produce(broker, "t", b"a", partition=1) == 0


def test_a_partition_that_a_full_disk_keeps_from_being_recovered_comes_online_when_there_is_room(tmp_path):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t", partitions=2)
        for number in range(2):
            produce(broker, "t", b"a", partition=number)
        broker.kill()
    file.fail_next("pwrite", errno.ENOSPC, under=str(tmp_path / "t-1"), times=-1)
    with kcore.Broker(tmp_path) as broker:
        partitions = broker.metadata_cache.topic("t").partitions
        assert [partitions[number].leader for number in range(2)] == [broker.broker_id, -1]
        broker.running.membership.local_controller.retry_offline_partitions()
        assert broker.metadata_cache.topic("t").partitions[1].leader == -1
        file.clear_faults()
        broker.running.membership.local_controller.retry_offline_partitions()
        assert produce(broker, "t", b"b", partition=1) == 1


@pytest.mark.parametrize("damage", ["junk", "empty", "fifo", "directory"])
def test_a_damaged_meta_properties_is_set_aside_and_made_anew(tmp_path, damage, caplog):
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t")
        produce(broker, "t", b"a")
        cluster_id = broker.cluster_id
    path = tmp_path / "meta.properties"
    path.unlink()
    make = {
        "junk": lambda: path.write_bytes(b"broker.id=\xff"),
        "empty": path.touch,
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    make[damage]()
    with kcore.Broker(tmp_path) as broker:
        assert broker.cluster_id == cluster_id and values(broker, "t") == [b"a"]
    assert f"cluster.id={cluster_id}" in path.read_text()
    assert "meta.properties.damaged" in caplog.text


def test_only_a_temporary_brokers_store_is_written_without_a_sync(tmp_path, monkeypatch):
    """With synced changes in its write-ahead log only, a file that is lost in a power failure is no store."""
    written = []
    monkeypatch.setattr("kcore.server.broker_parts.write_empty_store", written.append)
    with kcore.Broker(tmp_path / "data"):
        assert written == []
    with kcore.Broker() as broker:
        store = os.path.join(broker.data_dir, STORE)
        broker.restart()
    assert written == [store]
