"""Brokers whose session with the store expires: they register again, one is the controller, and nothing is lost."""

import threading
from contextlib import ExitStack

import pytest

import kcore
from kcore.errors import KafkaError
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages import produce as p
from tests.batches import batch
from tests.unit.server.client import Client
from tests.waiting import wait_until


def run_now(call):
    threading.Thread(target=call).start()


class Brokers:
    """Three brokers on one tree, each with a session of its own."""

    def __init__(self, stack):
        self.tree = MemoryTree()
        self.stores = {number: MemoryStore(self.tree, executor=run_now) for number in (1, 2, 3)}
        settings = {
            "offsets_topic_num_partitions": 1,
            "zookeeper.session.timeout.ms": 4000,
            "controlled.shutdown.retry.backoff.ms": 200,
            # The records of batch() are old: they would be deleted once the brokers have run for 30 s.
            "log.retention.ms": -1,
        }
        self.brokers = {
            number: stack.enter_context(kcore.Broker(store=store, broker_id=number, **settings))
            for number, store in self.stores.items()
        }
        wait_until(lambda: all(broker.metadata_cache.snapshot.broker_ids() == [1, 2, 3] for broker in self.all))

    @property
    def all(self):
        return list(self.brokers.values())

    @property
    def controller(self):
        """The active controller, once all brokers' metadata have it."""
        wait_until(lambda: len({broker.metadata_cache.snapshot.controller_id for broker in self.all}) == 1)
        return self.brokers[self.all[0].metadata_cache.snapshot.controller_id]

    def leader(self, topic):
        number = self.all[0].metadata_cache.topic(topic).partitions[0].leader
        return self.brokers.get(number)

    def produce(self, value):
        """With acks=all and all three replicas in sync, as often as it takes."""
        data = [p.PartitionProduceData(index=0, records=batch(value))]
        request = p.ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[p.TopicProduceData(name="t", partition_data=data)]
        )

        def is_acknowledged():
            leader = self.leader("t")
            if leader is None:
                return False
            with Client(leader) as client:
                return client.ask(request, 9).responses[0].partition_responses[0].error_code == 0

        wait_until(is_acknowledged)

    def values(self):
        """Without what a new leader does not yet know to be committed, and once what was repeated; empty while there is
        no leader."""
        leader = self.leader("t")
        try:
            return list(dict.fromkeys(r.value for r in leader.consume("t"))) if leader is not None else []
        except KafkaError:
            return []  # it has resigned


@pytest.fixture
def brokers():
    with ExitStack() as stack:
        brokers = Brokers(stack)
        brokers.all[0].admin_manager.create_topic("t", 1, 3, configs={"min.insync.replicas": "3"})
        wait_until(lambda: all(broker.metadata_cache.topic("t") is not None for broker in brokers.all))
        yield brokers


@pytest.mark.parametrize("whose", ["the controller's", "the leader's", "another's"])
def test_after_a_session_has_expired_all_replicas_come_into_sync_again(brokers, whose):
    brokers.produce(b"before")
    controller = brokers.controller
    leader = brokers.leader("t")
    others = [broker for broker in brokers.all if broker not in (controller, leader)]
    broker = {"the controller's": controller, "the leader's": leader, "another's": others[0]}[whose]
    epoch = broker.cluster_member.broker_epoch
    controller_epoch = int(brokers.stores[1].get(znodes.CONTROLLER_EPOCH).data)
    brokers.tree.expire(brokers.stores[broker.broker_id].session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
    brokers.produce(b"after")
    wait_until(lambda: brokers.values() == [b"before", b"after"])
    wait_until(lambda: set(brokers.stores[1].children(znodes.BROKER_IDS)) == {"1", "2", "3"})
    wait_until(lambda: brokers.controller.cluster_member.is_controller)  # not the controller before it
    if broker is controller:
        assert int(brokers.stores[1].get(znodes.CONTROLLER_EPOCH).data) > controller_epoch


def test_when_all_sessions_expire_at_once_the_cluster_comes_back(brokers):
    brokers.produce(b"before")
    epochs = {broker: broker.cluster_member.broker_epoch for broker in brokers.all}
    for store in brokers.stores.values():
        brokers.tree.expire(store.session_id)
    wait_until(lambda: all(broker.cluster_member.broker_epoch > epoch for broker, epoch in epochs.items()))
    brokers.produce(b"after")
    wait_until(lambda: brokers.values()[:1] == [b"before"])
    wait_until(lambda: len([broker for broker in brokers.all if broker.cluster_member.is_controller]) == 1)
