"""Quotas of clients: which one holds, what is measured, what a client sees, and where they are kept."""

import time

import pytest

import kcore
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.errors import InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import UnreadableNode
from kcore.protocol.messages import alter_client_quotas as a
from kcore.protocol.messages import describe_client_quotas as d
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcore.server.config.config_changes import config_change_notifications
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.client_quota_manager import DEFAULT, ClientQuotaManager, QuotaEntity, RequestTime, quota_of
from kcore.server.quotas.client_quotas import ClientQuotas
from kcore.server.quotas.stored_client_quotas import QuotaChange, StoredClientQuotas
from tests.batches import batch
from tests.unit.server.client import Client

ANONYMOUS_C = QuotaEntity("ANONYMOUS", "c")


def test_QUOTA_07_the_most_specific_quota_applies_and_decides_whose_requests_count_together():
    by_precedence = [
        (QuotaEntity("u", "c"), ("u", "c")),
        (QuotaEntity("u", DEFAULT), ("u", "c")),
        (QuotaEntity("u", None), ("u", "")),
        (QuotaEntity(DEFAULT, "c"), ("u", "c")),
        (QuotaEntity(DEFAULT, DEFAULT), ("u", "c")),
        (QuotaEntity(DEFAULT, None), ("u", "")),
        (QuotaEntity(None, "c"), ("", "c")),
        (QuotaEntity(None, DEFAULT), ("", "c")),
    ]
    quotas = {entity: float(place) for place, (entity, _) in enumerate(by_precedence)}
    for place, (entity, scope) in enumerate(by_precedence):
        assert quota_of(quotas, "u", "c") == (scope, place)
        del quotas[entity]
    assert quota_of(quotas, "u", "c") is None
    others = {QuotaEntity("v", None): 1.0, QuotaEntity("u", "d"): 1.0, QuotaEntity(None, "d"): 1.0}
    assert quota_of(others, "u", "c") is None


def manager(clock, limit=100.0, **arguments):
    quota = ClientQuotaManager(11, 1, clock, **arguments)
    quota.update({QuotaEntity("u", None): limit})
    return quota


def test_QUOTA_07_a_client_waits_until_its_rate_is_the_quota():
    clock = MockTime()
    quota = manager(clock)
    assert quota.record("u", "c", 1000) == 0, "100 a second in the 10 s before the last window"
    assert quota.record("u", "other client id", 500) == 5000, "its user's requests count together"
    assert quota.record("v", "c", 10**9) == 0
    clock.sleep(10_999)
    assert quota.record("u", "c", 0) > 0
    clock.sleep(1)
    assert quota.record("u", "c", 0) == 0, "the windows are over"


def test_QUOTA_07_what_was_not_sent_is_taken_back():
    quota = manager(MockTime())
    assert quota.record("u", "c", 1500) == 5000
    quota.unrecord("u", "c", 1500)
    assert quota.record("u", "c", 1000) == 0


def test_a_new_quota_holds_at_once_and_no_quota_is_no_cost():
    quota = manager(MockTime())
    assert quota.is_enabled and quota.record("u", "c", 1500) > 0
    quota.update({QuotaEntity("u", "c"): 10_000.0})
    assert quota.limit("u", "c") == 10_000 and quota.record("u", "c", 1500) == 0
    quota.update({})
    assert not quota.is_enabled and quota.record("u", "c", 10**9) == 0


def test_the_wait_of_a_request_quota_has_a_limit():
    quota = manager(MockTime(), max_throttle_ms=1000)
    assert quota.record("u", "c", 10**6) == 1000


def test_state_of_disconnected_clients_is_removed(monkeypatch):
    monkeypatch.setattr("kcore.server.quotas.client_quota_manager._MAX_RESOLVED", 10)
    clock = MockTime()
    quota = ClientQuotaManager(11, 1, clock)
    quota.update({QuotaEntity(None, DEFAULT): 1.0})
    for number in range(100):
        quota.record("u", f"c{number}", 1)
        clock.sleep(2000)
    assert len(quota._rates) <= 10 and len(quota._resolved) <= 10


def test_the_rates_of_active_clients_outlast_the_removal_of_others(monkeypatch):
    """Otherwise new client ids would free all others from their throttling."""
    monkeypatch.setattr("kcore.server.quotas.client_quota_manager._MAX_RESOLVED", 10)
    clock = MockTime()
    quota = ClientQuotaManager(11, 1, clock)
    quota.update({QuotaEntity(None, DEFAULT): 1.0})
    for number in range(9):
        quota.record("u", f"old{number}", 1)
    clock.sleep(6000)
    quota.record("u", "busy", 1000)
    clock.sleep(6000)
    throttled_ms = quota.record("u", "busy", 0)
    assert throttled_ms > 0
    quota.record("u", "new", 1)
    assert quota._rates.keys() == {("", "busy"), ("", "new")}
    assert quota.record("u", "busy", 0) == throttled_ms


def test_what_a_request_waits_for_a_thread_is_no_request_time():
    clock = MockTime()
    quota = manager(clock, limit=1.0)
    request_time = RequestTime(quota, "u", "c", clock)
    clock.sleep(5000)
    request_time.restart()
    clock.sleep(30)
    request_time.stop()
    clock.sleep(5000)
    assert request_time.record() == 0
    (rate,) = quota._rates.values()
    assert rate.total(clock.hi_res_clock_ms()) == 3  # percent of a second


def test_API_13_what_a_quota_allows_in_its_windows_limits_a_fetch():
    quota = manager(MockTime())
    assert quota.max_amount_in_window("u", "c") == 1000
    assert quota.max_amount_in_window("v", "c") == float("inf")


# -- in the store ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store():
    store = MemoryStore()
    yield store
    store.close()


class Stored:
    """The quotas of a broker, as they are in the store and in force."""

    def __init__(self, store, is_member=True):
        self.in_force = ClientQuotas(KafkaConfig(), MockTime())
        self.stored = StoredClientQuotas(store, self.in_force, is_member=is_member)
        self.stored.read_all()
        self.alter = self.stored.alter

    def __getattr__(self, name):
        return getattr(self.in_force, name)


def quotas_over(store, **kwargs):
    return Stored(store, **kwargs)


ENTITIES = {
    "/config/clients/c%20d%2A": QuotaEntity(None, "c d*"),
    "/config/clients/<default>": QuotaEntity(None, DEFAULT),
    "/config/users/User%3Au~": QuotaEntity("User:u~", None),
    "/config/users/<default>": QuotaEntity(DEFAULT, None),
    "/config/clients/%2E": QuotaEntity(None, "."),
    "/config/users/%2E%2E/clients/%2E": QuotaEntity("..", "."),
    "/config/clients/..a.": QuotaEntity(None, "..a."),
    "/config/users/u/clients/c": QuotaEntity("u", "c"),
    "/config/users/%3Cdefault%3E/clients/<default>": QuotaEntity("<default>", DEFAULT),
}


@pytest.mark.parametrize(("path", "entity"), ENTITIES.items())
def test_quotas_are_where_kafka_keeps_them(store, path, entity):
    path = path.replace("~", "%7E")
    quotas_over(store).alter(
        entity, [QuotaChange("producer_byte_rate", 1024.0), QuotaChange("request_percentage", 2.5)]
    )
    stored = znodes.decode_config(store.get(path).data)
    assert stored == {"producer_byte_rate": "1024", "request_percentage": "2.5"}
    again = quotas_over(store)
    assert again.entities == {entity: {"producer_byte_rate": 1024.0, "request_percentage": 2.5}}
    assert (again.is_enabled, again.produce.is_enabled, again.fetch.is_enabled) == (True, True, False)
    (change,) = store.children("/config/changes")
    body = store.get(f"/config/changes/{change}").data
    assert body == b'{"version":2,"entity_path":"%s"}' % path.removeprefix("/config/").encode()


def test_quotas_that_an_earlier_version_has_stored_under_a_dot_hold_and_change(store, monkeypatch):
    for kind in ("clients", "users"):
        with monkeypatch.context() as earlier_version:
            earlier_version.setattr("kcore.metadata.node_changes.check_path", lambda path: path)
            store.create_recursive(f"/config/{kind}/.", znodes.encode_config({"consumer_byte_rate": "5"}))
    quotas = quotas_over(store)
    client, user = QuotaEntity(None, "."), QuotaEntity(".", None)
    assert quotas.entities == {client: {"consumer_byte_rate": 5.0}, user: {"consumer_byte_rate": 5.0}}
    quotas.alter(user, [QuotaChange("consumer_byte_rate", 6)])
    quotas.alter(client, [QuotaChange("consumer_byte_rate", None)])
    assert quotas_over(store).entities == quotas.entities == {user: {"consumer_byte_rate": 6.0}}


def test_what_else_is_in_a_users_node_stays(store):
    store.create_recursive("/config/users/u", znodes.encode_config({"SCRAM-SHA-256": "salt=x"}))
    quotas = quotas_over(store)
    assert not quotas.is_enabled
    quotas.alter(QuotaEntity("u", None), [QuotaChange("consumer_byte_rate", 5)])
    quotas.alter(QuotaEntity("u", None), [QuotaChange("consumer_byte_rate", None)])
    assert znodes.decode_config(store.get("/config/users/u").data) == {"SCRAM-SHA-256": "salt=x"}
    assert quotas.entities == {} and not quotas.is_enabled


def test_ADM_38_credentials_that_another_broker_stores_at_the_same_time_are_kept(store, monkeypatch):
    path = "/config/users/u"
    store.create_recursive(path, znodes.encode_config({"SCRAM-SHA-256": "salt=x"}))
    read = store.get

    def read_and_be_overtaken(path, watch=None):
        node = read(path, watch)
        monkeypatch.undo()
        store.set(path, znodes.encode_config({"SCRAM-SHA-256": "salt=y"}))
        return node

    quotas = quotas_over(store)
    monkeypatch.setattr(store, "get", read_and_be_overtaken)
    quotas.alter(QuotaEntity("u", None), [QuotaChange("producer_byte_rate", 5.0)])
    assert znodes.decode_config(store.get(path).data) == {"SCRAM-SHA-256": "salt=y", "producer_byte_rate": "5"}


def test_a_change_of_a_node_that_cannot_be_read_names_it_and_leaves_it(store):
    """It has the user's credentials too."""
    store.create_recursive("/config/users/u", b"garbage")
    with pytest.raises(UnreadableNode, match="/config/users/u in the metadata store cannot be read"):
        quotas_over(store).alter(QuotaEntity("u", None), [QuotaChange("producer_byte_rate", 1.0)])
    assert store.get("/config/users/u").data == b"garbage"


def test_a_node_that_cannot_be_read_has_no_quota_and_the_others_hold(store):
    store.create_recursive("/config/clients/bad", b"{]")
    store.create_recursive("/config/clients/odd", znodes.encode_config({"consumer_byte_rate": "many"}))
    store.create_recursive("/config/clients/good", znodes.encode_config({"consumer_byte_rate": "5"}))
    assert quotas_over(store).entities == {QuotaEntity(None, "good"): {"consumer_byte_rate": 5.0}}


@pytest.mark.parametrize(
    "change",
    [("no_such_rate", 1), ("producer_byte_rate", 0), ("request_percentage", -1), ("consumer_byte_rate", 1.5)]
    + [("request_percentage", float(text)) for text in ("nan", "inf")],
)
def test_a_quota_that_there_is_not_and_a_value_that_it_cannot_have_are_refused(store, change):
    quotas = quotas_over(store)
    with pytest.raises(InvalidRequest):
        quotas.alter(ANONYMOUS_C, [QuotaChange("producer_byte_rate", 7), QuotaChange(*change)])
    assert quotas.entities == {} and store.children("/config/users") == []


def test_a_broker_follows_what_another_one_changes_also_in_its_next_session(store):
    clock = MockTime()
    scheduler = MockScheduler(clock)
    scheduler.startup()
    follower = quotas_over(store)
    config_change_notifications(store, scheduler, clock).start([follower.stored])
    others_store = MemoryStore(store.tree)
    other = quotas_over(others_store)

    def follow():
        store.pump()
        scheduler.tick()
        return follower.fetch.limit("ANONYMOUS", "c")

    for rate in (5, 6):
        other.alter(ANONYMOUS_C, [QuotaChange("consumer_byte_rate", rate)])
        assert follow() == rate
    store.tree.expire(store.session_id)
    other.alter(ANONYMOUS_C, [QuotaChange("consumer_byte_rate", 7)])
    assert follow() == 6
    store.new_session()
    assert follow() == 7
    others_store.close()


def test_a_broker_alone_announces_no_change(store):
    quotas = quotas_over(store, is_member=False)
    quotas.alter(ANONYMOUS_C, [QuotaChange("consumer_byte_rate", 5)])
    assert store.children("/config/changes") == []
    assert quotas.fetch.limit("ANONYMOUS", "c") == 5


def test_of_two_nodes_for_one_name_the_one_that_kcore_writes_counts_in_any_order_of_changes(store):
    written, other = "/config/users/a%2Ab", "/config/users/a*b"
    store.create_recursive(other, znodes.encode_config({"consumer_byte_rate": "5"}))
    quotas = quotas_over(store)
    assert quotas.fetch.limit("a*b", "c") == 5
    store.create(written, znodes.encode_config({"consumer_byte_rate": "6"}))
    quotas.stored.read_changed([other, written])
    assert quotas.fetch.limit("a*b", "c") == 6
    store.set(other, znodes.encode_config({"consumer_byte_rate": "7"}))
    for changed in ([other], [other, written], ["/config/users", "/config/topics/t", "/config/users/a/b/c"]):
        quotas.stored.read_changed(changed)
        assert quotas.fetch.limit("a*b", "c") == 6
    store.delete(written)
    quotas.stored.read_changed([written])
    assert not quotas.is_enabled
    quotas.stored.read_all()
    assert quotas.fetch.limit("a*b", "c") == 7


# -- through a socket --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"x" * 5000)
        yield broker


@pytest.fixture
def limit(broker):
    """limit(key, value): a quota of client id "c", which ends with the test."""
    keys = []

    def set_limit(key, value):
        keys.append(key)
        broker.running.services.stored_client_quotas.alter(QuotaEntity(None, "c"), [QuotaChange(key, value)])

    yield set_limit
    quotas = broker.running.services.client_quotas
    broker.running.services.stored_client_quotas.alter(QuotaEntity(None, "c"), [QuotaChange(key, None) for key in keys])
    assert not quotas.is_enabled
    for manager in (quotas.produce, quotas.fetch, quotas.request):
        manager._rates.clear()


def fetch(**fields):
    partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return f.FetchRequest(max_wait_ms=0, topics=[f.FetchTopic(topic="t", partitions=[partition])], **fields)


def produce(acks=1, size=1000):
    data = PartitionProduceData(index=0, records=batch(b"y" * size))
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


def is_muted(client, start, for_at_least):
    """Whether the next request is answered only this many seconds after `start`, when the throttled one was sent."""
    client.ask(ApiVersionsRequest(), 0)
    return time.monotonic() - start >= for_at_least


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("version", [1, 11, 12])
def test_QUOTA_07_a_consumer_over_its_quota_gets_an_empty_answer_waits_and_loses_nothing(
    broker, limit, version, session_epoch
):
    if version < 7 and session_epoch == 0:
        return
    limit("consumer_byte_rate", 600)
    with Client(broker, "c") as client, Client(broker, "d") as other:
        body = fetch(session_epoch=session_epoch)
        first = client.ask(body, version)
        assert first.throttle_time_ms == 0 and len(first.responses[0].partitions[0].records) > 5000
        second = client.ask(body, version)
        assert second.responses == [] and second.session_id == 0 and 0 < second.throttle_time_ms < 30_000
        (rate,) = broker.running.services.client_quotas.fetch._rates.values()
        assert 5000 < rate.total(time.monotonic_ns() / 1e6) < 6000, "what was not sent does not count"
        assert len(other.ask(body, version).responses) == 1
    limit("consumer_byte_rate", 10**9)
    with Client(broker, "c") as client:
        assert len(client.ask(body, version).responses[0].partitions[0].records) > 5000


def test_QUOTA_07_a_throttled_answer_in_a_session_keeps_the_session(broker, limit):
    with Client(broker, "c") as client:
        session_id = client.ask(fetch(session_epoch=0), 12).session_id
        limit("consumer_byte_rate", 1)
        broker.running.services.client_quotas.fetch.record("ANONYMOUS", "c", 20)
        throttled = client.ask(f.FetchRequest(session_id=session_id, session_epoch=1), 12)
        assert (throttled.session_id, throttled.error_code, throttled.responses) == (session_id, 0, [])
        assert throttled.throttle_time_ms > 0
    limit("consumer_byte_rate", 10**9)
    with Client(broker, "c") as client:
        resumed = client.ask(f.FetchRequest(session_id=session_id, session_epoch=2), 12)
        assert len(resumed.responses[0].partitions[0].records) > 5000


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_QUOTA_07_a_producer_over_its_quota_is_answered_and_then_muted(broker, limit, acks):
    end = broker.log("t").log_end_offset
    limit("producer_byte_rate", 400)
    with Client(broker, "c") as client:
        start = time.monotonic()
        client.send(produce(acks, 4400), 9)  # over the quota at once, which is 4,000 bytes in 10 s
        throttle_ms = client.receive(0, 9).throttle_time_ms if acks else 500
        assert throttle_ms > 500 or not acks
        assert is_muted(client, start, throttle_ms / 1000)
    assert broker.log("t").log_end_offset > end, "what is over the quota is written too"


def test_QUOTA_07_every_request_of_a_client_counts_toward_its_request_quota_but_a_followers_do_not(broker, limit):
    limit("request_percentage", 0.000_001)
    with Client(broker, "c") as client:
        assert client.ask(ApiVersionsRequest(), 1).throttle_time_ms > 0
        assert 0 < client.ask(fetch(), 12).throttle_time_ms <= 1000
        assert 0 < client.ask(produce(), 9).throttle_time_ms <= 1000
    with Client(broker, "c") as client:
        for version in (12, 18):
            body = fetch(replica_id=2) if version < 15 else fetch(replica_state=f.ReplicaState(replica_id=2))
            response = client.ask(body, version)
            assert response.throttle_time_ms == 0 and len(response.responses) == 1


def test_API_13_the_quota_limits_how_much_a_fetch_reads(broker, limit):
    for _ in range(3):
        broker.produce("t", b"z" * 3000)
    with Client(broker, "c") as client:
        whole = len(client.ask(fetch(), 12).responses[0].partitions[0].records)
        limit("consumer_byte_rate", 600)
        body = fetch()
        assert len(client.ask(body, 12).responses[0].partitions[0].records) <= 6000 < whole


def test_a_fetch_that_waited_costs_no_request_time(broker, limit):
    limit("request_percentage", 10_000)
    end = broker.log("t").log_end_offset

    def is_counted(client_id):
        broker.running.services.stored_client_quotas.alter(
            QuotaEntity(None, client_id), [QuotaChange("request_percentage", 10_000)]
        )
        with Client(broker, client_id) as client:
            body = fetch()
            body.topics[0].partitions[0].fetch_offset, body.max_wait_ms, body.min_bytes = end, 300, 1
            start = time.monotonic()
            client.ask(body, 12)
            took_ms = (time.monotonic() - start) * 1000
        (rate,) = [
            rate
            for scope, rate in broker.running.services.client_quotas.request._rates.items()
            if scope[1] == client_id
        ]
        broker.running.services.stored_client_quotas.alter(
            QuotaEntity(None, client_id), [QuotaChange("request_percentage", None)]
        )
        # 300 ms are 30 % of a second.
        return 10 * rate.total(time.monotonic_ns() / 1e6) > took_ms - 290

    # Where the network thread stands still between parking a request and its next line, it is counted.
    assert not all(is_counted(f"waits-{attempt}") for attempt in range(20))


# -- the APIs ----------------------------------------------------------------------------------------------------------


def alter(client, version, entity, ops, **fields):
    """entity: {type: name}; ops: {key: value or None}."""
    entry = a.EntryData(
        entity=[a.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[a.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )
    (result,) = client.ask(a.AlterClientQuotasRequest(entries=[entry], **fields), version).entries
    assert {part.entity_type: part.entity_name for part in result.entity} == entity
    return result.error_code


def describe(client, version, *components, strict=False):
    body = d.DescribeClientQuotasRequest(
        components=[d.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components],
        strict=strict,
    )
    response = client.ask(body, version)
    if response.error_code:
        assert response.entries is None and response.error_message
        return response.error_code
    return sorted(
        (
            sorted((part.entity_type, part.entity_name or "<default>") for part in entry.entity),
            {item.key: item.value for item in entry.values},
        )
        for entry in response.entries
    )


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described_by_their_apis(broker, version):
    with Client(broker) as client:
        both, rate = {"user": "u", "client-id": "c"}, {"consumer_byte_rate": 5.0}
        assert alter(client, version, both, rate, validate_only=True) == 0
        assert describe(client, version) == []
        for entity in (both, {"user": "u"}, {"user": None}, {"client-id": "c"}):
            assert alter(client, version, entity, rate) == 0
        user, default, client_id = [("user", "u")], [("user", "<default>")], [("client-id", "c")]
        assert describe(client, version, ("user", 0, "u")) == [(client_id + user, rate), (user, rate)]
        assert describe(client, version, ("user", 0, "u"), strict=True) == [(user, rate)]
        assert describe(client, version, ("user", 1, None)) == [(default, rate)]
        assert describe(client, version, ("user", 2, None), strict=True) == [(default, rate), (user, rate)]
        assert describe(client, version, ("client-id", 2, None), ("user", 2, None)) == [(client_id + user, rate)]
        assert len(describe(client, version)) == 4 and describe(client, version, strict=True) == []
        for entity in (both, {"user": "u"}, {"user": None}, {"client-id": "c"}):
            assert alter(client, version, entity, {"consumer_byte_rate": None}) == 0
        assert describe(client, version) == []


def test_what_is_no_quota_is_refused_by_the_apis(broker):
    with Client(broker) as client:
        rate = {"consumer_byte_rate": 5.0}
        invalid, unsupported = 42, 35
        assert alter(client, 1, {}, rate) == invalid
        assert alter(client, 1, {"user": ""}, rate) == invalid
        assert alter(client, 1, {"": "x"}, rate) == invalid
        assert alter(client, 1, {"country": "nz"}, rate) == unsupported
        assert alter(client, 1, {"user": "u"}, {"no_such": 5.0}) == invalid
        assert describe(client, 1, ("country", 2, None)) == unsupported
        assert describe(client, 1, ("user", 7, None)) == invalid
        assert describe(client, 1, ("user", 0, None)) == invalid
        assert describe(client, 1, ("user", 1, None), ("user", 2, None)) == invalid
        assert describe(client, 1) == []


def test_quotas_are_there_after_a_restart(tmp_path):
    with kcore.Broker(tmp_path) as broker, Client(broker) as client:
        assert alter(client, 1, {"user": "u"}, {"request_percentage": 12.5}) == 0
    with kcore.Broker(tmp_path) as broker, Client(broker) as client:
        assert describe(client, 1) == [([("user", "u")], {"request_percentage": 12.5})]
        assert broker.running.services.client_quotas.request.limit("u", "any") == 12.5


@pytest.mark.parametrize("start", [kcore.Broker, lambda path: kcore.Cluster(1, data_dir=path)], ids=["alone", "member"])
def test_a_broker_starts_where_an_earlier_version_has_stored_names_of_dots(tmp_path, monkeypatch, start):
    with start(tmp_path):
        pass
    (path,) = tmp_path.glob("*.db")
    store = EmbeddedStore(str(path))
    with monkeypatch.context() as earlier_version:
        earlier_version.setattr("kcore.metadata.node_changes.check_path", lambda path: path)
        for name in (".", ".."):
            for kind in (znodes.CLIENT_CONFIGS, znodes.USER_CONFIGS, znodes.TOPIC_CONFIGS):
                store.create_recursive(f"{kind}/{name}", znodes.encode_config({"request_percentage": "12.5"}))
            store.create_recursive(znodes.topic(name), znodes.TopicZNode({0: [0]}).encode())
    store.close()
    with start(tmp_path) as started:
        broker = started.brokers[0] if isinstance(started, kcore.Cluster) else started
        started.create_topic("t")
        with Client(broker) as client:
            dots = [
                ([(kind, name)], {"request_percentage": 12.5}) for kind in ("client-id", "user") for name in (".", "..")
            ]
            assert sorted(describe(client, 1)) == dots
