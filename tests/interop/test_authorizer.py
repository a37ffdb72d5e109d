"""confluent-kafka against two brokers with ACLs: what is denied fails at once, what is permitted works, and the
brokers, which come by a listener of their own, replicate."""

import time

import pytest

import kcore
from kcore.errors import GroupAuthorizationFailed, TopicAuthorizationFailed
from kcore.protocol.api_keys import ApiKey
from kcore.security.acl import AclBinding, AclBindingFilter, AclOperation, PatternType, ResourceType
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

DEADLINE_S = 90
ACLS = [
    AclBinding.allow("User:*", AclOperation.WRITE, ResourceType.TOPIC, "open-", PatternType.PREFIXED),
    AclBinding.allow("User:*", AclOperation.READ, ResourceType.TOPIC, "open-", PatternType.PREFIXED),
    AclBinding.allow("User:*", AclOperation.READ, ResourceType.GROUP, "readers"),
]


class BrokersByListener(kcore.AclAuthorizer):
    def is_super_user(self, request_context):
        return request_context.listener_name == "REPLICATION"


def start(number, tmp_path, authorizer):
    settings = {
        "listeners": "EXTERNAL://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        "listener.security.protocol.map": "EXTERNAL:PLAINTEXT,REPLICATION:PLAINTEXT",
        "inter.broker.listener.name": "REPLICATION",
        "broker.id": number,
        "offsets.topic.num.partitions": 1,
        "zookeeper.session.timeout.ms": LONG_MS,
        "replica.fetch.backoff.ms": 100,
    }
    store = f"sqlite:{tmp_path}/cluster.db"
    return kcore.Broker(tmp_path / str(number), store=store, authorizer=authorizer, **settings)


@pytest.fixture
def authorizer():
    return BrokersByListener(ACLS)


@pytest.fixture
def brokers(tmp_path, authorizer):
    with start(0, tmp_path, authorizer) as first, start(1, tmp_path, authorizer) as second:
        brokers = [first, second]
        wait_until(lambda: all(set(b.metadata_cache.snapshot.broker_ids()) == {0, 1} for b in brokers))
        controller = next(broker for broker in brokers if broker.cluster_member.is_controller)
        for name in ("open-1", "closed"):
            controller.create_topic(name, replication_factor=2)
        wait_until(lambda: all(broker.metadata_cache.topic("closed") is not None for broker in brokers))
        yield brokers


def leader_of(brokers, topic):
    return brokers[brokers[0].metadata_cache.topic(topic).partitions[0].leader]


def produce(servers, topic, value, **settings):
    """The error of one record's delivery, None for none."""
    errors = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 2, **settings})
    try:
        producer.produce(topic, value, on_delivery=lambda error, message: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
    except confluent_kafka.KafkaException as error:
        return error.args[0].code()
    (error,) = errors
    return None if error is None else error.code()


def consume_one(servers, topic, group):
    """(value, None) of the first record, or (None, error code)."""
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "log_level": 2}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                return (None, message.error().code()) if message.error() else (message.value(), None)
        raise AssertionError("nothing came")
    finally:
        consumer.close()


def test_a_denied_topic_fails_and_a_permitted_one_is_replicated_and_read(brokers, authorizer):
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    assert produce(servers, "open-1", b"a") is None
    # Who may write to one topic may be an idempotent producer.
    assert produce(servers, "open-1", b"b", **{"enable.idempotence": True}) is None
    assert produce(servers, "closed", b"secret") == TopicAuthorizationFailed.code
    for broker in brokers:  # acks=all: both have it
        assert broker.log("open-1").log_end_offset == 2
        assert broker.log("closed").log_end_offset == 0
    assert consume_one(servers, "open-1", "readers") == (b"a", None)
    leader_of(brokers, "closed").produce("closed", b"secret")
    assert consume_one(servers, "closed", "readers") == (None, TopicAuthorizationFailed.code)
    assert consume_one(servers, "open-1", "others") == (None, GroupAuthorizationFailed.code)
    # The followers of both topics are in sync: they may read everything.
    wait_until(lambda: all(broker.log("closed").log_end_offset == 1 for broker in brokers))
    for name in ("open-1", "closed"):
        assert sorted(leader_of(brokers, name).explain_isr(name).isr) == [0, 1]

    client = admin.AdminClient({"bootstrap.servers": servers, "log_level": 2})
    assert set(client.list_topics(timeout=DEADLINE_S).topics) == {"open-1"}
    (created,) = client.create_topics([admin.NewTopic("mine", 1, 1)], request_timeout=DEADLINE_S).values()
    with pytest.raises(confluent_kafka.KafkaException) as denied:
        created.result(DEADLINE_S)
    assert denied.value.args[0].code() == TopicAuthorizationFailed.code
    assert brokers[0].metadata_cache.topic("mine") is None

    # A change of the ACLs counts from then on.
    authorizer.add_acls([AclBinding.allow("User:*", AclOperation.ALL, ResourceType.TOPIC, "closed")])
    assert consume_one(servers, "closed", "readers") == (b"secret", None)
    authorizer.remove_acls(AclBindingFilter(name="open-"))
    assert produce(servers, "open-1", b"c") == TopicAuthorizationFailed.code


def test_without_the_cluster_action_permission_a_follower_gets_no_records(brokers, authorizer, monkeypatch):
    leader = leader_of(brokers, "open-1")
    (follower,) = [broker for broker in brokers if broker is not leader]
    leader.produce("open-1", b"a")
    wait_until(lambda: follower.log("open-1").log_end_offset == 1)
    denied = []  # fetches of this follower
    client_id = f"broker-{follower.broker_id}-fetcher-0"

    def is_super_user(self, request_context):
        if request_context.request_type == ApiKey.FETCH and request_context.client_id == client_id:
            denied.append(client_id)
            return False
        return request_context.listener_name == "REPLICATION"

    monkeypatch.setattr(BrokersByListener, "is_super_user", is_super_user)
    wait_until(lambda: denied)
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    assert produce(servers, "open-1", b"b", acks=1) is None
    seen = len(denied)
    wait_until(lambda: len(denied) >= seen + 3)
    assert (leader.log("open-1").log_end_offset, follower.log("open-1").log_end_offset) == (2, 1)
    monkeypatch.undo()
    wait_until(lambda: follower.log("open-1").log_end_offset == 2)


def test_an_admin_client_creates_describes_and_deletes_acls(tmp_path):
    settings = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "allow_everyone_if_no_acl_found": True}
    with kcore.Broker(tmp_path, **settings) as broker:
        servers = broker.bootstrap_servers
        client = admin.AdminClient({"bootstrap.servers": servers, "log_level": 2})
        assert produce(servers, "t", b"a") is None
        fields = ("User:alice", "*", admin.AclOperation.WRITE, admin.AclPermissionType.ALLOW)
        binding = admin.AclBinding(admin.ResourceType.TOPIC, "t", admin.ResourcePatternType.PREFIXED, *fields)
        (created,) = client.create_acls([binding], request_timeout=DEADLINE_S).values()
        created.result(DEADLINE_S)
        # Now that there is an ACL about the topic, all others are denied.
        assert produce(servers, "t", b"b") == TopicAuthorizationFailed.code
        every = admin.AclBindingFilter(
            *(admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None),
            *(admin.AclOperation.ANY, admin.AclPermissionType.ANY),
        )
        assert client.describe_acls(every, request_timeout=DEADLINE_S).result(DEADLINE_S) == [binding]
        (deleted,) = client.delete_acls([every], request_timeout=DEADLINE_S).values()
        assert deleted.result(DEADLINE_S) == [binding]
        assert produce(servers, "t", b"c") is None
        assert [record.value for record in broker.consume("t")] == [b"a", b"c"]
