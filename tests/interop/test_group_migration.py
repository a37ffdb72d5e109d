"""librdkafka's consumers of both protocols in one group: its members are replaced one at a time, while it reads on."""

import pytest
from confluent_kafka import Consumer, TopicPartition

import kcore
from kcore.errors import GroupIdNotFound
from tests.cluster_sessions import LONG_MS

from .test_consumer_protocol import FAST, broker, described, members, produce  # noqa: F401  # fixtures

CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}


class Owners:
    """Consumers whose callbacks say who owns what.  Each commits what it has read before it gives a partition up."""

    def __init__(self, group):
        self.group, self.of = group, {}

    def add(self, **settings):
        name = object()

        def gets(consumer, partitions):
            for tp in partitions:
                assert self.of.setdefault(tp.partition, name) is name, f"partition {tp.partition} has two owners"

        def gives_up(consumer, partitions):
            read = [tp for tp in consumer.position(partitions) if tp.offset >= 0]
            if read:
                consumer.commit(offsets=read, asynchronous=False)
            loses(consumer, partitions)

        def loses(consumer, partitions):
            for tp in partitions:
                assert self.of.pop(tp.partition) is name

        made = Consumer(self.group.settings | settings)
        made.subscribe(["t"], on_assign=gets, on_revoke=gives_up, on_lost=loses)
        self.group.consumers.append(made)
        return made

    def wait_for_all(self):
        """Until each member has a partition, and each partition an owner."""
        self.group.poll_until(lambda: len(self.of) == 4 and len(set(self.of.values())) == len(self.group.consumers))


def coordinator_of(cluster):
    """The broker that leads the groups' partition, also after the last one was killed."""
    cluster.wait_until_led("__consumer_offsets")
    return cluster.brokers[cluster.leader("__consumer_offsets")]


def uses_new_protocol(broker):  # noqa: F811
    return broker.group_coordinator.manager.get_group("g").consumer is not None


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_CG_54_CG_55_members_are_replaced_one_at_a_time_by_those_of_the_other_protocol_and_back(
    broker,  # noqa: F811
    members,  # noqa: F811
    strategy,
):
    group = members(broker.bootstrap_servers)
    owners, num_sent = Owners(group), 0
    classic = CLASSIC | {"partition.assignment.strategy": strategy}

    def read_on():
        """Nothing is read twice, and nothing is left out."""
        nonlocal num_sent
        produce(broker.bootstrap_servers, range(num_sent, num_sent + 100))
        num_sent += 100
        group.poll_until(lambda: len(group.values) == num_sent)
        assert set(group.values.values()) == {1}

    def replace(old, settings):
        owners.add(**settings)
        owners.wait_for_all()
        read_on()
        assert uses_new_protocol(broker)
        group.leave(old)
        owners.wait_for_all()
        read_on()

    first, second = owners.add(**classic), owners.add(**classic)
    owners.wait_for_all()
    read_on()
    assert not uses_new_protocol(broker)
    for old in (first, second):
        replace(old, {})
        assert uses_new_protocol(broker)
    first, second = group.consumers
    replace(first, classic)
    assert uses_new_protocol(broker)
    replace(second, classic)
    assert not uses_new_protocol(broker)
    group.close()
    reader = Consumer(group.settings | classic)
    committed = reader.committed([TopicPartition("t", number) for number in range(4)])
    assert [tp.offset for tp in committed] == [num_sent // 4] * 4
    reader.close()


def test_CG_55_a_group_of_both_protocols_goes_on_when_its_coordinator_is_killed_and_can_be_classic_again(
    members,  # noqa: F811
):
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "offsets_topic_num_partitions": 1}
    with kcore.Cluster(3, **settings, **FAST) as cluster:
        cluster.create_topic("t", partitions=4)
        group = members(cluster.bootstrap_servers)
        owners = Owners(group)
        owners.add(**CLASSIC)
        owners.wait_for_all()
        new = owners.add()
        owners.wait_for_all()
        produce(cluster.bootstrap_servers, range(100))
        group.poll_until(lambda: len(group.values) == 100)
        before = described(coordinator_of(cluster))
        cluster.kill(cluster.leader("__consumer_offsets"))
        produce(cluster.bootstrap_servers, range(100, 200))
        group.poll_until(lambda: len(group.values) == 200)
        after = described(coordinator_of(cluster))
        assert after.members.keys() == before.members.keys()
        group.leave(new)
        owners.wait_for_all()
        produce(cluster.bootstrap_servers, range(200, 300))
        group.poll_until(lambda: len(group.values) == 300)
        with pytest.raises(GroupIdNotFound):
            coordinator_of(cluster).group_coordinator.consumer_groups.describe("g")
        group.close()
