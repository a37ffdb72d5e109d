"""controller_mutation_rate: how many partitions a client may create and delete per second."""

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.common.token_bucket import TokenBucket
from kcore.errors import ThrottlingQuotaExceeded
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.client_quota_manager import DEFAULT, QuotaEntity
from kcore.server.quotas.client_quotas import CONTROLLER_MUTATION_RATE, ClientQuotas
from kcore.server.quotas.controller_mutation_quotas import ControllerMutationQuotas
from tests.unit.server.client import Client

EXCEEDED = ThrottlingQuotaExceeded.code


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def broker(time):
    with kcore.Broker(controller_quota_window_num=5) as broker:
        # A broker measures its clients by a clock that no test moves.
        broker.running.services.client_quotas.controller_mutation._time = time
        yield broker


def limit(client, rate, *, client_id="test"):
    """For the client id; burst is five seconds of it."""
    operation = OpData(key=CONTROLLER_MUTATION_RATE, value=rate, remove=False)
    entry = EntryData(entity=[EntityData(entity_type="client-id", entity_name=client_id)], ops=[operation])
    assert client.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0


def create(client, *topics, version=7, **fields):
    """topics: (name, partitions).  (error code of each, throttle time)."""
    made = [ct.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics]
    answer = client.ask(ct.CreateTopicsRequest(topics=made, timeout_ms=60_000, **fields), version)
    return [topic.error_code for topic in answer.topics], answer.throttle_time_ms


def delete(client, *names, version=5):
    answer = client.ask(dt.DeleteTopicsRequest(topic_names=list(names), timeout_ms=60_000), version)
    return [topic.error_code for topic in answer.responses], answer.throttle_time_ms


def grow(client, *topics, version=3, **fields):
    grown = [cp.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in topics]
    answer = client.ask(cp.CreatePartitionsRequest(topics=grown, timeout_ms=60_000, **fields), version)
    return [topic.error_code for topic in answer.results], answer.throttle_time_ms


def test_a_bucket_is_full_at_first_is_refilled_up_to_its_burst_and_pays_debts_back():
    bucket = TokenBucket(2, 10, 1000)
    bucket.withdraw(10, 1000)
    assert bucket.debt_ms(1000) == 0
    bucket.withdraw(5, 1000)
    assert [bucket.debt_ms(1000 + ms) for ms in (0, 500, 2499, 2500, 9000)] == [2500, 2000, 1, 0, 0]
    bucket.withdraw(11, 99_000)  # not more than 10 were saved
    assert bucket.debt_ms(99_000) == 500
    bucket.set_rate(4, 1, 99_000)
    assert bucket.debt_ms(99_000) == 250
    bucket.withdraw(1, 199_000)
    assert bucket.debt_ms(199_000) == 0


@pytest.mark.parametrize("rate", [1e-6, 1e-320])
def test_a_debt_that_takes_longer_than_a_throttle_time_can_say_is_the_longest_one(rate):
    bucket = TokenBucket(rate, 0, 0)
    bucket.withdraw(5, 0)
    assert bucket.debt_ms(0) == 2**31 - 1


def test_ADM_33_the_most_specific_quota_holds_and_without_one_there_is_no_limit(time):
    quotas = ControllerMutationQuotas(1, time)
    assert quotas.record(("u", "c"), 10**9) == 0
    quotas.update({QuotaEntity("u", "c"): 1, QuotaEntity("u", None): 2, QuotaEntity(None, DEFAULT): 4})
    assert [quotas.record(client, 9) for client in (("u", "c"), ("u", "d"), ("v", "c"))] == [8000, 3500, 1250]
    # "u" counts for all of his client ids but "c", a default client id for each by itself.
    assert [quotas.record(client, 0) for client in (("u", "e"), ("v", "d"))] == [3500, 0]


@pytest.mark.parametrize(("num", "seconds", "burst"), [(11, 1, 11), (2, 3, 6)])
def test_ADM_33_what_is_not_used_is_saved_for_the_windows_of_the_settings(time, num, seconds, burst):
    config = KafkaConfig({"controller.quota.window.num": num, "controller.quota.window.size.seconds": seconds})
    quotas = ClientQuotas(config, time)
    quotas.use({QuotaEntity("u", None): {CONTROLLER_MUTATION_RATE: 10}})
    assert quotas.controller_mutation.record(("u", "c"), 10 * burst) == 0
    assert quotas.controller_mutation.record(("u", "c"), 10) == 1000


def test_ADM_34_topics_that_come_during_a_debt_are_refused_and_those_before_are_done(broker, time):
    with Client(broker) as client:
        limit(client, 1)
        # Five were saved: the second topic leaves a debt of two.
        codes, throttle_ms = create(client, ("a", 3), ("b", 4), ("c", 1))
        assert (codes, throttle_ms) == ([0, 0, EXCEEDED], 2000)
        assert sorted(broker.metadata_cache.snapshot.topic_names()) == ["a", "b"]
    with Client(broker) as client:
        assert delete(client, "a") == ([EXCEEDED], 2000)
    with Client(broker) as client:
        assert grow(client, ("a", 4)) == ([EXCEEDED], 2000)
    assert len(broker.metadata_cache.topic("a").partitions) == 3
    time.sleep(2000)
    with Client(broker) as client:
        assert grow(client, ("a", 5)) == ([0], 0)
    with Client(broker) as client:
        assert delete(client, "a", "b") == ([EXCEEDED] * 2, 2000)
    time.sleep(2000)
    with Client(broker) as client:
        assert delete(client, "a", "b") == ([0, EXCEEDED], 5000)


def test_ADM_34_other_clients_are_not_limited(broker):
    with Client(broker) as client:
        limit(client, 0.001)
        assert create(client, ("a", 3))[0] == [0]
    with Client(broker, client_id="other") as other:
        assert create(other, ("b", 9), ("c", 9)) == ([0, 0], 0)


def test_ADM_35_older_clients_get_everything_done_and_wait_afterwards(broker):
    with Client(broker) as client:
        limit(client, 1)
        assert create(client, ("a", 3), ("b", 4), ("c", 1), version=5) == ([0, 0, 0], 3000)
    with Client(broker) as client:
        assert grow(client, ("a", 5), version=2) == ([0], 5000)
    with Client(broker) as client:
        assert delete(client, "a", "b", version=4) == ([0, 0], 14_000)


def test_ADM_35_a_request_that_only_validates_and_one_that_fails_do_not_count(broker):
    with Client(broker) as client:
        limit(client, 1)
        assert create(client, ("a", 50), validate_only=True) == ([0], 0)
        assert create(client, ("a", 5)) == ([0], 0)
        assert grow(client, ("a", 50), validate_only=True) == ([0], 0)
        assert create(client, ("a", 50))[0] != [0]
        assert grow(client, ("a", 3))[0] != [0]
        assert delete(client, "unknown")[0] != [0]
        assert delete(client, "a") == ([0], 0)
        assert create(client, ("a", 1), validate_only=True)[0] == [0]
