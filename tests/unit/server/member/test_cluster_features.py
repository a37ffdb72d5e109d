"""Which level of transaction.version a cluster uses: the highest that every live broker knows."""

import json

import pytest

import kcore
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.unit.server.client import Client
from tests.unit.server.member.conftest import run_now
from tests.unit.server.transactions import SETTINGS, TransactionalClient, announced
from tests.waiting import wait_until

#: What a Java broker of 3.9 registers.
JAVA_BROKER = {
    "features": {},
    "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
    "endpoints": ["PLAINTEXT://127.0.0.1:9"],
    "jmx_port": -1,
    "port": 9,
    "host": "127.0.0.1",
    "version": 5,
    "timestamp": "1",
}


def level(broker):
    return announced(broker)[1]


@pytest.fixture
def others(tree):
    """The store as other brokers use it."""
    return MemoryStore(tree, executor=run_now)


def test_TXN_24_ADM_10_while_a_broker_of_3_9_is_registered_there_is_no_level(broker, store, others):
    assert json.loads(store.get(znodes.broker_id(1)).data)["features"] == {
        # Java brokers up to 3.2 cannot read a level 0.
        "transaction.version": {"min_version": 1, "max_version": 2}
    }
    supported, finalized, epoch = announced(broker)
    assert (supported, finalized) == (2, 2)
    others.create(znodes.broker_id(7), json.dumps(JAVA_BROKER).encode(), ephemeral=True)
    wait_until(lambda: level(broker) == 0)
    # So that clients believe it.
    assert announced(broker) == (2, 0, others.get(znodes.broker_id(7)).czxid) and announced(broker)[2] > epoch
    others.delete(znodes.broker_id(7))
    wait_until(lambda: level(broker) == 2)
    others.create(znodes.broker_id(8), b'{"version": 5, "features": {"transaction.version": 2}}', ephemeral=True)
    wait_until(lambda: level(broker) == 0)


def test_TXN_24_a_broker_that_acts_like_an_older_release_keeps_its_cluster_from_the_feature(broker, others):
    with kcore.Broker(store=others, broker_id=2, act_like="3.9") as older:
        assert announced(older)[:2] == (0, 0)
        wait_until(lambda: level(broker) == 0)
    wait_until(lambda: level(broker) == 2)


@pytest.mark.parametrize("set_to", [0, 1])
def test_TXN_23_one_broker_whose_setting_is_lower_is_enough(broker, others, set_to):
    with kcore.Broker(store=others, broker_id=2, kcore_transaction_version=set_to) as lower:
        assert announced(lower)[:2] == (set_to, set_to)
        wait_until(lambda: level(broker) == set_to)


def test_TXN_23_a_broker_alone_may_be_set_lower():
    with kcore.Broker(kcore_transaction_version=1) as broker:
        assert announced(broker) == (1, 1, 0)


def test_TXN_24_after_a_lost_session_the_registrations_are_read_again(broker, tree, store, others):
    epoch = broker.cluster_member.broker_epoch
    tree.expire(store.session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
    others.create(znodes.broker_id(7), json.dumps(JAVA_BROKER).encode(), ephemeral=True)
    wait_until(lambda: level(broker) == 0)


@pytest.mark.parametrize(("set_to", "version"), [(0, 0), (1, 1), (2, 1)])
def test_TXN_25_the_level_decides_how_states_are_written(set_to, version):
    with kcore.Broker(kcore_transaction_version=set_to, **SETTINGS) as broker, Client(broker) as client:
        TransactionalClient(client).find()
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        wait_until(lambda: client.ask(request, 2).error_code == 0)
        number = broker.running.services.transaction_coordinator.partition_for("x")
        (record,) = broker.log("__transaction_state", number).records()
        assert record.value[:2] == bytes([0, version])
