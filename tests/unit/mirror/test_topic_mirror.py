"""TopicMirror: a topic of a running broker, copied batch by batch."""

import socket
import threading

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ClusterAuthorizationFailed,
    ClusterMemberDirectory,
    CorruptMessage,
    DirectoryInUse,
    InconsistentTopicId,
    InvalidTopicException,
    KafkaStorageError,
    LeaderNotAvailable,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from kcore.log import meta_properties
from kcore.mirror.topic_mirror import MirrorFailed, TopicMirror
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.security.acl import AclBinding, AclOperation, ResourceType
from kcore.security.acl_authorizer import AclAuthorizer
from kcore.server.handlers import fetch, metadata
from kcore.tools.main import main
from tests.unit.tools.command import contents

CONFIG = {"segment.bytes": 20_000, "index.interval.bytes": 500}


@pytest.fixture
def broker(tmp_path):
    with kcore.Broker(tmp_path / "source") as broker:
        broker.create_topic("orders", 2, **CONFIG)
        yield broker


def mirror_of(broker, directory, **arguments):
    return TopicMirror([("127.0.0.1", broker.port)], "orders", str(directory), backoff_ms=20, **arguments)


def produce(broker, count, start=0):
    for n in range(start, start + count):
        broker.produce("orders", f"value {n} " + "x" * 100, partition=n % 2)


def copy_now(broker, directory, **arguments):
    with mirror_of(broker, directory, **arguments) as mirror:
        mirror.wait_until_caught_up()
        return mirror.partitions()


def batches(directory):
    """All bytes of a partition's log: where segments begin may differ."""
    return b"".join(data for name, data in contents(directory).items() if name.endswith(".log"))


def assert_same(tmp_path, *numbers):
    for number in numbers or (0, 1):
        source = batches(tmp_path / "source" / f"orders-{number}")
        assert source, f"orders-{number} is empty: the test compares nothing"
        assert batches(tmp_path / "copy" / f"orders-{number}") == source


def test_the_copy_has_the_bytes_of_the_source_and_goes_on_where_it_ended(broker, tmp_path):
    produce(broker, 500)
    first = copy_now(broker, tmp_path / "copy")
    assert [(copy.previous_end_offset, copy.log_end_offset, copy.lag) for copy in first] == [(0, 250, 0)] * 2
    assert_same(tmp_path)
    produce(broker, 100, start=500)
    second = copy_now(broker, tmp_path / "copy")
    assert [(copy.previous_end_offset, copy.log_end_offset) for copy in second] == [(250, 300)] * 2
    assert_same(tmp_path)


def test_a_broker_serves_the_copy(broker, tmp_path):
    produce(broker, 50)
    copy_now(broker, tmp_path / "copy")
    with kcore.Broker(tmp_path / "copy") as copy:
        assert sorted(record.value for record in copy.consume("orders")) == sorted(
            record.value for record in broker.consume("orders")
        )


def test_only_the_partitions_that_were_named(broker, tmp_path):
    produce(broker, 50)
    copy_now(broker, tmp_path / "copy", partitions=[1])
    assert_same(tmp_path, 1)
    assert not (tmp_path / "copy" / "orders-0").exists()
    with pytest.raises(UnknownTopicOrPartition, match="no partition 2"):
        mirror_of(broker, tmp_path / "copy", partitions=[1, 2]).start()


def test_a_copy_that_starts_below_the_sources_log_start_begins_anew_there(broker, tmp_path):
    produce(broker, 20)
    copy_now(broker, tmp_path / "copy")
    produce(broker, 300, start=20)
    offsets = {TopicPartition("orders", 0): 100, TopicPartition("orders", 1): 5}
    broker.replica_manager.delete_records(offsets, lambda results: None)
    starts = [copy.log_start_offset for copy in copy_now(broker, tmp_path / "copy")]
    assert starts == [100, 5]
    assert batches(tmp_path / "source" / "orders-0").endswith(batches(tmp_path / "copy" / "orders-0"))


def test_what_the_source_never_had_is_cut_off_the_copy(tmp_path):
    """The copy has a record of leader epoch 1; in the source, epoch 2 follows 0."""
    with kcore.Broker(tmp_path / "source") as broker:
        broker.create_topic("orders", 2, **CONFIG)
        produce(broker, 20)
        copy_now(broker, tmp_path / "copy")
    with kcore.open_log(tmp_path / "copy" / "orders-0", "a") as log:
        builder = RecordBatchBuilder()
        builder.append(b"of a leader that nobody elected", timestamp=1)
        log.append_as_leader(builder.build(), leader_epoch=1)
        assert log.log_end_offset == 11
    for _ in range(2):  # each start without the marker of a clean stop begins a leader epoch
        (tmp_path / "source" / ".kafka_cleanshutdown").unlink()
        broker = kcore.Broker(tmp_path / "source").start()
        if broker.metadata_cache.snapshot.topic("orders").partitions[0].leader_epoch == 2:
            produce(broker, 10, start=20)
            copy_now(broker, tmp_path / "copy")
        broker.stop()
    assert_same(tmp_path)


def test_a_source_that_restarts_is_followed(broker, tmp_path):
    produce(broker, 20)
    with mirror_of(broker, tmp_path / "copy") as mirror:
        mirror.wait_until_caught_up()
        thread = threading.Thread(target=mirror.keep_up)
        thread.start()
        broker.restart()
        produce(broker, 100, start=20)
        mirror.wait_until_caught_up()
        mirror.close()
        thread.join()
    assert_same(tmp_path)


def test_a_look_at_the_leaders_waits_for_another_one(broker, tmp_path, monkeypatch):
    """While one changes the leader of a partition, it has no fetcher, as one that cannot go on."""
    with mirror_of(broker, tmp_path / "copy") as mirror:
        mirror.wait_until_caught_up()
        begun, goes_on = [], threading.Event()
        real = mirror._fetch_metadata

        def fetch_metadata():
            begun.append(1)
            assert goes_on.wait(60)
            return real()

        monkeypatch.setattr(mirror, "_fetch_metadata", fetch_metadata)
        looks = [threading.Thread(target=mirror.refresh) for _ in range(2)]
        for look in looks:
            look.start()
        looks[1].join(0.2)
        assert len(begun) == 1
        goes_on.set()
        for look in looks:
            look.join(60)
        assert len(begun) == 2


def test_a_copy_without_a_fetcher_cannot_go_on_unless_the_mirror_is_being_closed(broker, tmp_path):
    with mirror_of(broker, tmp_path / "copy") as mirror:
        mirror.wait_until_caught_up()
        mirror._fetchers.remove_partitions(list(mirror._partitions))
        with pytest.raises(MirrorFailed, match="cannot be copied any further"):
            mirror.refresh()
        mirror._stopped.set()
        assert mirror.refresh() == []


def test_a_topic_that_is_made_anew_is_not_copied_into_the_old_ones_directory(broker, tmp_path):
    produce(broker, 20)
    with mirror_of(broker, tmp_path / "copy") as mirror:
        mirror.wait_until_caught_up()
        broker.delete_topic("orders")
        with pytest.raises(MirrorFailed, match="gone"):
            mirror.refresh()
        broker.create_topic("orders", 2)
        with pytest.raises(MirrorFailed, match="created again"):
            mirror.refresh()
    with pytest.raises(InconsistentTopicId):
        mirror_of(broker, tmp_path / "copy").start()


def test_a_topic_that_cannot_be_mirrored_is_an_error_with_the_reason(broker, tmp_path):
    with pytest.raises(UnknownTopicOrPartition):
        TopicMirror([("127.0.0.1", broker.port)], "invoices", str(tmp_path / "copy")).start()
    assert not (tmp_path / "copy").exists()
    with pytest.raises(OSError):
        TopicMirror([("127.0.0.1", 1)], "orders", str(tmp_path / "copy")).start()
    with pytest.raises(DirectoryInUse):
        TopicMirror([("127.0.0.1", broker.port)], "orders", str(tmp_path / "source")).start()
    (tmp_path / "member").mkdir()
    meta_properties.write(str(tmp_path / "member"), "c", 4)
    meta_properties.mark_as_member(str(tmp_path / "member"))
    with pytest.raises(ClusterMemberDirectory):
        TopicMirror([("127.0.0.1", broker.port)], "orders", str(tmp_path / "member")).start()


def test_a_mirror_needs_a_bootstrap_address(tmp_path):
    with pytest.raises(ValueError, match="no bootstrap address"):
        TopicMirror([], "orders", str(tmp_path / "copy"))


def test_the_first_bootstrap_address_that_answers_is_enough(broker, tmp_path):
    produce(broker, 10)
    mirror = TopicMirror([("127.0.0.1", 1), ("127.0.0.1", broker.port)], "orders", str(tmp_path / "copy"))
    with mirror:
        mirror.wait_until_caught_up()
    assert_same(tmp_path)


def test_a_bootstrap_broker_that_does_not_answer_holds_up_nothing(broker, tmp_path):
    """Its timeout was waited for."""
    produce(broker, 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = [silent.getsockname(), ("127.0.0.1", broker.port)]
        mirror = TopicMirror(bootstrap, "orders", str(tmp_path / "copy"), request_timeout_ms=600_000)
        with mirror:
            mirror.wait_until_caught_up()
    assert_same(tmp_path)


def test_a_topic_without_partitions_yet_is_looked_up_again(broker, tmp_path, monkeypatch):
    with mirror_of(broker, tmp_path / "copy") as mirror:
        mirror.wait_until_caught_up()
        monkeypatch.setattr(metadata.Handler, "handle", _answer_without_partitions)
        assert mirror.refresh() == []


def _answer_without_partitions(self, context, body):
    topic = m.MetadataResponseTopic(error_code=LeaderNotAvailable.code, name="orders")
    context.respond(m.MetadataResponse(topics=[topic]))


DENIED_READ = AclBinding.deny("User:*", AclOperation.READ, ResourceType.TOPIC, "orders")
ALLOWED_ALL = AclBinding.allow("User:*", AclOperation.ALL, ResourceType.TOPIC, "*")


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE])
@pytest.mark.parametrize("count", [0, 20])
def test_a_topic_that_may_not_be_read_ends_the_mirror(tmp_path, operation, count):
    authorizer = AclAuthorizer(
        [ALLOWED_ALL, DENIED_READ._replace(entry=DENIED_READ.entry._replace(operation=operation))]
    )
    with kcore.Broker(tmp_path / "source", authorizer=authorizer) as broker:
        broker.create_topic("orders", 2)
        produce(broker, count)
        with pytest.raises(TopicAuthorizationFailed, match="orders"):
            copy_now(broker, tmp_path / "copy")
        assert main(["mirror", broker.bootstrap_servers, "orders", str(tmp_path / "copy")]) == 2


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE])
def test_a_permission_that_is_taken_away_ends_a_mirror_that_follows(tmp_path, operation):
    authorizer = AclAuthorizer([ALLOWED_ALL])
    with kcore.Broker(tmp_path / "source", authorizer=authorizer) as broker:
        broker.create_topic("orders", 2)
        produce(broker, 20)
        with mirror_of(broker, tmp_path / "copy") as mirror:
            mirror.wait_until_caught_up()
            authorizer.add_acls([DENIED_READ._replace(entry=DENIED_READ.entry._replace(operation=operation))])
            with pytest.raises(TopicAuthorizationFailed, match="orders"):
                mirror.keep_up()


@pytest.mark.parametrize("error", [CorruptMessage, UnknownServerError, KafkaStorageError])
def test_an_error_that_may_pass_is_named_when_the_time_is_over(broker, tmp_path, monkeypatch, error):
    produce(broker, 20)
    monkeypatch.setattr(fetch.Handler, "handle", refuse_every_partition(error))
    with mirror_of(broker, tmp_path / "copy") as mirror, pytest.raises(MirrorFailed, match=error.__name__):
        mirror.wait_until_caught_up(500)


@pytest.mark.parametrize("error", [InvalidTopicException, UnsupportedCompressionType, ClusterAuthorizationFailed])
def test_an_error_that_does_not_pass_by_itself_ends_the_mirror(broker, tmp_path, monkeypatch, error):
    produce(broker, 20)
    monkeypatch.setattr(fetch.Handler, "handle", refuse_every_partition(error))
    with pytest.raises(error, match="orders-"):
        copy_now(broker, tmp_path / "copy")


def refuse_every_partition(error):
    """A handler of Fetch that answers so."""

    def handle(self, context, body):
        partition = {"error_code": error.code, "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1,
                     "aborted_transactions": None, "preferred_read_replica": -1, "records": None}  # fmt: skip
        responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[PartitionData(partition_index=p.partition, **partition) for p in topic.partitions],
            )
            for topic in body.topics
        ]
        context.respond(FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=responses))

    return handle
