"""Which clients push their metrics, when they may, and what becomes of a push."""

import random
from uuid import UUID

import pytest

from kcore import errors
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.record.compression import CODECS, compress
from kcore.server.config.config_changes import ConfigOperation
from kcore.server.config.stored_client_metrics import StoredClientMetrics
from kcore.server.requests import client_telemetry
from kcore.server.requests.client_telemetry import ClientMetadata, ClientTelemetry, ClientTelemetryPayload
from kcore.testing import MockTime

ZERO, ID, OTHER = UUID(int=0), UUID(int=0x0123456789ABCDEF8FEDCBA987654321), UUID(int=1 << 64 | 2)
CLIENT = ClientMetadata("shop-1", "librdkafka", "2.16.0", "10.0.0.9", 40_001)
INTERVAL_MS, MINUTE_MS, MAX_BYTES = 10_000, 60_000, 100
NONE, ZSTD = 0, 4


class Connection:
    fd = 5


class Broker:
    """A broker's telemetry, with one subscription.  received: what its receiver was called with."""

    def __init__(self):
        self.time = MockTime()
        self.received = []
        self.stored = StoredClientMetrics(MemoryStore(MemoryTree()), is_member=False)
        self.telemetry = ClientTelemetry(self.stored, self.receive, MAX_BYTES, self.time, random.Random(7))
        self.subscribe("m", metrics="a.", **{"interval.ms": INTERVAL_MS})
        self.connection = Connection()

    def receive(self, payload):
        if payload.data == b"fail":
            raise OSError("the collector is gone")
        self.received.append(payload)

    def subscribe(self, name, **settings):
        self.stored.alter(name, [ConfigOperation(key, 0, str(value)) for key, value in settings.items()], replace=True)

    def get(self, instance_id=ID, client=CLIENT, connection=None):
        return self.telemetry.get_subscription(instance_id, client, connection or self.connection)[1]

    def push(self, data=b"metrics", instance_id=ID, subscription_id=None, codec=NONE, is_last=False, connection=None):
        """subscription_id: of the subscription of now by default."""
        if subscription_id is None:
            subscriptions = client_telemetry.subscriptions_of(self.stored.configs)
            subscription_id = client_telemetry.subscription_of(instance_id, CLIENT, subscriptions).subscription_id
        payload = ClientTelemetryPayload(instance_id, CLIENT, is_last, data)
        self.telemetry.push(payload, subscription_id, codec, connection or self.connection)

    def metrics(self):
        ((name, values),) = self.telemetry.measured()
        assert name == "kafka.server:type=client-metrics"
        return values

    def instance_count(self):
        return self.metrics()["instance-count"]


@pytest.fixture
def broker():
    return Broker()


# -- what a client is to push -----------------------------------------------------------------------------------------


def test_ADM_25_a_client_without_an_id_gets_a_new_one_and_keeps_it(broker):
    first, _ = broker.telemetry.get_subscription(ZERO, CLIENT, broker.connection)
    second, _ = broker.telemetry.get_subscription(ZERO, CLIENT, broker.connection)
    assert len({first, second, ZERO}) == 3 and first.version == 4
    assert broker.telemetry.get_subscription(ID, CLIENT, broker.connection)[0] == ID
    assert broker.instance_count() == 3


def test_ADM_25_the_id_that_kafka_reserves_is_no_clients(broker):
    with pytest.raises(errors.InvalidRequest):
        broker.get(UUID(int=1))
    assert broker.instance_count() == 0


@pytest.mark.parametrize(
    ("instance_id", "metrics", "interval_ms", "expected"),
    [
        # From ClientMetricsManager.computeSubscriptionId of Kafka 4.3.1.
        ("0123456789abcdef8fedcba987654321", [], 300_000, 1422351326),
        ("0123456789abcdef8fedcba987654321", ["*"], 100, -1247871839),
        ("0123456789abcdef8fedcba987654321", ["org.apache.kafka.consumer."], 3_600_000, 1258517891),
        ("f123456789ab4def8fedcba907654321", [], 300_000, 617077726),
        ("f123456789ab4def8fedcba907654321", ["*"], 100, -979469151),
        ("00000000000000010000000000000002", ["*"], 100, 899611810),
        ("00000000000000010000000000000002", ["org.apache.kafka.consumer."], 3_600_000, -888965760),
    ],
)
def test_ADM_25_a_subscription_has_the_number_that_kafka_gives_it(broker, instance_id, metrics, interval_ms, expected):
    broker.subscribe("m", metrics=",".join(metrics), **{"interval.ms": interval_ms})
    assert broker.get(UUID(instance_id)) == (expected, metrics, interval_ms)


def test_ADM_27_several_subscriptions_are_one_of_all_their_metrics_and_the_shortest_interval(broker):
    broker.subscribe("n", metrics="b.,a.", **{"interval.ms": INTERVAL_MS - 1})
    broker.subscribe("o", metrics="c.")
    assert broker.get()[1:] == (["a.", "b.", "c."], INTERVAL_MS - 1)
    broker.subscribe("o", metrics="c.,*")
    assert broker.get()[1:] == (["*"], INTERVAL_MS - 1)


def test_ADM_27_a_client_that_no_subscription_is_for_pushes_nothing(broker):
    broker.subscribe("m", metrics="a.", match="client_id=other", **{"interval.ms": 100})
    assert broker.get()[1:] == ([], 300_000)


@pytest.mark.parametrize(
    ("match", "is_for"),
    [
        (f"client_instance_id={ID}", True),
        ("client_id=shop-\\d", True),
        ("client_id=shop", False),
        ("client_id=hop-1", False),
        ("client_id=shop-1|x", True),
        ("client_software_name=librdkafka,client_software_version=2[.]16[.].*", True),
        ("client_software_name=librdkafka,client_software_version=2[.]15[.].*", False),
        ("client_id=shop.*,client_id=.*2", False),
        ("client_source_address=10[.]0[.]0[.]9,client_source_port=40001", True),
        ("client_source_port=4000", False),
    ],
)
def test_ADM_27_all_patterns_of_a_subscription_match_the_whole_of_what_the_client_has(broker, match, is_for):
    broker.subscribe("m", metrics="a.", match=match)
    assert broker.get().metrics == (["a."] if is_for else [])


def test_ADM_27_a_stored_pattern_that_cannot_be_matched_ends_its_own_subscription_only(broker, caplog):
    broker.subscribe("n", metrics="b.")
    broker.stored.configs = {**broker.stored.configs, "m": {"metrics": "a.", "match": "client_id=("}}
    assert broker.get().metrics == ["b."]
    assert "the client metrics subscription m is not followed" in caplog.text


# -- when a client may ask and push -----------------------------------------------------------------------------------


def test_ADM_29_a_push_after_a_get_comes_when_the_client_likes_the_next_ones_after_the_interval(broker):
    broker.get()
    broker.push(b"1")
    broker.time.sleep(INTERVAL_MS - 1)
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.push(b"2")
    broker.time.sleep(1)
    broker.push(b"3")
    assert [payload.data for payload in broker.received] == [b"1", b"3"]
    assert broker.received[0] == (ID, CLIENT, False, b"1")


def test_ADM_29_a_last_push_does_not_wait_and_nothing_comes_after_it(broker):
    broker.push()
    broker.push(b"bye", is_last=True)
    broker.time.sleep(2 * INTERVAL_MS)
    for is_last in (False, True):
        with pytest.raises(errors.InvalidRequest):
            broker.push(is_last=is_last)
    assert [(payload.data, payload.is_terminating) for payload in broker.received] == [
        (b"metrics", False),
        (b"bye", True),
    ]


FAULTS = [
    (errors.InvalidRequest, {"instance_id": ZERO}),
    (errors.ThrottlingQuotaExceeded, {"is_last": False}),
    (errors.UnknownSubscriptionId, {"subscription_id": 1}),
    (errors.UnsupportedCompressionType, {"codec": 5}),
    (errors.TelemetryTooLarge, {"data": b"x" * (MAX_BYTES + 1)}),
]


@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_ADM_29_of_several_faults_the_first_one_is_answered_and_nothing_received(broker, first):
    broker.push()
    arguments = {"is_last": True}
    for _, fault in FAULTS[first:]:
        arguments |= fault
    with pytest.raises(FAULTS[first][0]):
        broker.push(**arguments)
    assert len(broker.received) == 1


def test_ADM_29_the_id_that_kafka_reserves_pushes_nothing(broker):
    with pytest.raises(errors.InvalidRequest):
        broker.push(instance_id=UUID(int=1))


@pytest.mark.parametrize("codec", [-1, len(CODECS), 127])
def test_ADM_29_an_unknown_codec_is_refused(broker, codec):
    with pytest.raises(errors.UnsupportedCompressionType):
        broker.push(codec=codec)


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_ADM_29_the_receiver_gets_the_metrics_unpacked_from_each_codec_and_from_none(broker, codec):
    broker.push(bytes(compress(codec, b"metrics" * 50)) if codec else b"metrics", codec=codec)
    assert broker.received[0].data == (b"metrics" * 50 if codec else b"metrics")


def test_ADM_29_a_push_of_as_many_bytes_as_allowed_is_received(broker):
    broker.push(b"x" * MAX_BYTES)
    assert len(broker.received[0].data) == MAX_BYTES


@pytest.mark.parametrize(("data", "codec"), [(b"fail", NONE), (b"not zstd", ZSTD)])
def test_ADM_29_where_the_receiver_fails_or_nothing_can_be_unpacked_the_metrics_are_lost_and_it_is_logged(
    broker, caplog, data, codec
):
    with pytest.raises(errors.InvalidRecord):
        broker.push(data, codec=codec)
    assert f"the metrics of client {ID} are lost" in caplog.text
    assert (broker.metrics()["plugin-error-count"], broker.metrics()["plugin-export-count"]) == (1, 0)


def test_ADM_29_what_unpacks_to_far_more_than_any_metrics_is_refused(broker, monkeypatch):
    monkeypatch.setattr(client_telemetry, "_MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(errors.InvalidRecord):
        broker.push(bytes(compress(ZSTD, bytes(1001))), codec=ZSTD)
    assert broker.received == []


@pytest.mark.parametrize(("error", "fault"), FAULTS[2:])
def test_ADM_29_a_push_that_is_refused_is_not_the_last_one_and_no_interval_begins_with_it(broker, error, fault):
    with pytest.raises(error):
        broker.push(is_last=True, **{"data": b"bye", **fault})
    broker.push(b"in time")
    assert [payload.data for payload in broker.received] == [b"in time"]


def test_ADM_29_without_metrics_the_receiver_is_not_called(broker):
    broker.push(b"", is_last=True)
    assert broker.received == [] and broker.metrics()["plugin-export-count"] == 0
    with pytest.raises(errors.InvalidRequest):
        broker.push()


def test_ADM_28_a_change_takes_effect_at_the_next_push_and_the_client_may_then_ask_at_once(broker):
    before = broker.get()
    broker.push()
    broker.subscribe("m", metrics="b.", **{"interval.ms": INTERVAL_MS})
    with pytest.raises(errors.UnknownSubscriptionId):
        broker.push(subscription_id=before.subscription_id)
    after = broker.get()
    assert after.metrics == ["b."] and after.subscription_id != before.subscription_id
    broker.push(subscription_id=after.subscription_id)
    assert broker.metrics()["unknown-subscription-request-count"] == 1


def test_ADM_28_a_deleted_subscription_takes_effect_too(broker):
    before = broker.get()
    broker.subscribe("m")
    with pytest.raises(errors.UnknownSubscriptionId):
        broker.push(subscription_id=before.subscription_id)
    assert broker.get()[1:] == ([], 300_000)


def test_ADM_30_a_get_before_the_interval_has_passed_is_throttled_whatever_the_last_request_was(broker):
    broker.get()
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.get()
    broker.time.sleep(INTERVAL_MS)
    broker.push()
    broker.time.sleep(INTERVAL_MS - 1)
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.get()
    broker.time.sleep(1)
    broker.get()
    assert broker.metrics()["throttle-count"] == 2


@pytest.mark.parametrize("fault", [{"subscription_id": 1}, {"codec": 9}])
def test_ADM_30_after_an_unknown_subscription_or_codec_one_get_is_answered_at_once(broker, fault):
    broker.get()
    with pytest.raises((errors.UnknownSubscriptionId, errors.UnsupportedCompressionType)):
        broker.push(**fault)
    broker.get()
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.get()


def test_ADM_30_after_another_error_a_get_waits_again(broker):
    broker.get()
    with pytest.raises(errors.UnknownSubscriptionId):
        broker.push(subscription_id=1)
    with pytest.raises(errors.TelemetryTooLarge):
        broker.push(b"x" * (MAX_BYTES + 1))
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.get()


def test_ADM_30_when_subscriptions_have_changed_a_get_is_answered_at_once(broker):
    broker.get()
    broker.subscribe("n", metrics="b.")
    assert broker.get().metrics == ["a.", "b."]


# -- which clients are remembered -------------------------------------------------------------------------------------


def is_remembered(broker, instance_id=ID):
    """A client that is remembered is throttled, a new one is not.  Asks with the client's own connection."""
    try:
        broker.get(instance_id)
    except errors.ThrottlingQuotaExceeded:
        return True
    return False


def test_ADM_31_a_client_is_forgotten_a_minute_after_its_last_request(broker):
    broker.get()
    broker.time.sleep(MINUTE_MS - 1)
    broker.push()
    broker.time.sleep(MINUTE_MS - 1)
    assert broker.instance_count() == 1
    broker.time.sleep(1)
    assert broker.instance_count() == 0


def test_ADM_31_with_a_long_interval_a_client_is_forgotten_after_three_of_them(broker):
    broker.subscribe("m", metrics="a.", **{"interval.ms": MINUTE_MS})
    broker.get()
    broker.time.sleep(3 * MINUTE_MS - 1)
    assert broker.instance_count() == 1
    broker.time.sleep(1)
    assert broker.instance_count() == 0


def test_ADM_31_clients_that_are_over_are_forgotten_at_a_later_request_of_any_client(broker):
    connections = [Connection() for _ in range(3)]
    for number, connection in enumerate(connections):
        broker.get(UUID(int=100 + number), connection=connection)
    connections[0].fd = -1
    broker.time.sleep(MINUTE_MS)
    broker.get()
    assert len(broker.telemetry._instances) == 1


def test_ADM_31_a_client_is_forgotten_with_the_end_of_its_connection(broker):
    broker.push(b"bye", is_last=True)
    broker.connection.fd = -1
    # Whoever comes with this id later is a new client, also before anybody has looked for those that are gone.
    new = Connection()
    broker.push(b"hello", connection=new)
    assert broker.instance_count() == 1
    new.fd = -1
    assert broker.instance_count() == 0


def test_ADM_31_a_connection_that_is_gone_altogether_is_not_kept(broker):
    broker.get()
    broker.connection = None
    assert broker.instance_count() == 0


def test_ADM_31_a_client_that_has_connected_again_outlasts_its_old_connection(broker):
    old, new = Connection(), Connection()
    broker.get(connection=old)
    broker.push(connection=new)
    old.fd = -1
    with pytest.raises(errors.ThrottlingQuotaExceeded):
        broker.push(connection=new)


def test_ADM_31_of_too_many_clients_the_one_that_was_silent_for_longest_is_forgotten(broker, monkeypatch):
    assert client_telemetry.MAX_INSTANCES == 16384
    monkeypatch.setattr(client_telemetry, "MAX_INSTANCES", 2)
    broker.get(ID)
    broker.get(OTHER)
    broker.push(instance_id=ID)
    broker.get(UUID(int=99))
    assert broker.instance_count() == 2
    assert is_remembered(broker, ID) and not is_remembered(broker, OTHER)


def test_ADM_31_the_metrics_of_all_clients_are_one_line_however_many_there_are(broker):
    for number in range(50):
        broker.push(instance_id=UUID(int=100 + number))
    assert broker.metrics() == {
        "instance-count": 50,
        "unknown-subscription-request-count": 0,
        "throttle-count": 0,
        "plugin-export-count": 50,
        "plugin-error-count": 0,
    }
