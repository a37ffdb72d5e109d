"""librdkafka with group.protocol=consumer (KIP-848): groups live, move and outlast their brokers."""

import random
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import kcore
from kcore.errors import CoordinatorLoadInProgress, GroupIdNotFound
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until

DEADLINE_S = 90
#: So that a member hears of a change soon.
FAST = {"group.consumer.min.heartbeat.interval.ms": 50, "group.consumer.heartbeat.interval.ms": 100}


class Members:
    """Consumers of topic t in one group.  values: what they have read, with each value's number of times."""

    def __init__(self, servers, group="g"):
        self.settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
        self.settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
        self.consumers, self.values, self.errors = [], Counter(), []

    def add(self, *topics, **settings):
        made = Consumer(self.settings | settings)
        made.subscribe(list(topics or ("t",)))
        self.consumers.append(made)
        return made

    def poll_until(self, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, (self.values, self.errors, self.assigned())
            for consumer in self.consumers:
                message = consumer.poll(0.005)
                if message is not None and message.error():
                    self.errors.append(message.error())
                elif message is not None:
                    self.values[message.value()] += 1

    def assigned(self):
        return [sorted((tp.topic, tp.partition) for tp in consumer.assignment()) for consumer in self.consumers]

    def wait_for_sizes(self, *sizes):
        """Until the members have so many partitions, and no two have the same."""
        self.poll_until(lambda: sorted(map(len, self.assigned())) == sorted(sizes))
        everything = [partition for partitions in self.assigned() for partition in partitions]
        assert len(everything) == len(set(everything))

    def commit(self, consumer):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return consumer.commit(asynchronous=False)
            except KafkaException:
                assert time.monotonic() < deadline
                self.poll_until(lambda: True)
                time.sleep(0.1)

    def leave(self, consumer):
        self.consumers.remove(consumer)
        consumer.close()

    def close(self):
        for consumer in list(self.consumers):
            self.leave(consumer)


@pytest.fixture
def members(request):
    made = []

    def make(servers, group="g"):
        made.append(Members(servers, group))
        return made[-1]

    yield make
    for one in made:
        one.close()


def produce(servers, numbers, topic="t", partitions=4):
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0


def described(broker):
    """The group, once a member has joined, and after a restart once the broker has loaded it."""
    find = broker.group_coordinator.consumer_groups.describe
    return wait_until(lambda: find("g"), ignoring=(CoordinatorLoadInProgress, GroupIdNotFound))


@pytest.fixture
def broker(tmp_path):
    with kcore.Broker(tmp_path / "data", offsets_topic_num_partitions=1, **FAST) as broker:
        broker.create_topic("t", partitions=4)
        yield broker


def test_members_share_the_partitions_as_they_come_and_go_and_go_on_where_the_group_has_committed(broker, members):
    group = members(broker.bootstrap_servers)
    produce(broker.bootstrap_servers, range(100))
    first = group.add()
    group.poll_until(lambda: len(group.values) == 100)
    group.commit(first)
    second = group.add()
    group.wait_for_sizes(2, 2)
    third = group.add()
    group.wait_for_sizes(1, 1, 2)
    committed = second.committed([TopicPartition("t", number) for number in range(4)])
    assert [tp.offset for tp in committed] == [25] * 4
    produce(broker.bootstrap_servers, range(100, 200))
    group.poll_until(lambda: len(group.values) == 200)
    group.leave(first)
    group.wait_for_sizes(2, 2)
    group.leave(third)
    group.wait_for_sizes(4)
    group.close()
    assert described(broker).state == "Empty"


@pytest.mark.parametrize("seed", range(2))
def test_CG_22_no_partition_has_two_owners_while_members_come_and_go_and_the_broker_restarts(broker, members, seed):
    rng, owners = random.Random(seed), {}
    group = members(broker.bootstrap_servers)
    produce(broker.bootstrap_servers, range(100))

    def gets(consumer, partitions):
        for tp in partitions:
            assert owners.setdefault(tp.partition, consumer) is consumer, f"seed={seed}: partition {tp.partition}"

    def loses(consumer, partitions):
        for tp in partitions:
            assert owners.pop(tp.partition) is consumer, f"seed={seed}: partition {tp.partition}"

    def join():
        consumer = Consumer(group.settings)
        consumer.subscribe(["t"], on_assign=gets, on_revoke=loses, on_lost=loses)
        group.consumers.append(consumer)

    def session_deadlines():
        described(broker)
        sessions = broker.group_coordinator.manager.get_group("g").consumer.sessions
        return {member_id: session.deadline_ms for member_id, session in dict(sessions).items()}

    def wait_for_a_heartbeat_of_each():
        before = session_deadlines()
        # Who joins meanwhile has found the coordinator.
        group.poll_until(lambda: all(ms > before.get(member_id, 0) for member_id, ms in session_deadlines().items()))

    def leave(consumer):
        # One whose join is under way would be a member without a process until its session is over.
        group.poll_until(lambda: len(session_deadlines()) == len(group.consumers))
        group.leave(consumer)
        # close() takes an assignment that was under way as none: it calls on_assign, and never says what it gives back.
        for partition in [partition for partition, owner in owners.items() if owner is consumer]:
            del owners[partition]

    join()
    for step in range(20):
        if step == 10:
            broker.restart()
            # Who leaves before it has found its coordinator again says it to nobody.
            wait_for_a_heartbeat_of_each()
        if len(group.consumers) < 2 or (len(group.consumers) < 6 and rng.random() < 0.6):
            join()
        else:
            leave(rng.choice(group.consumers))
        polls = iter(range(rng.randrange(1, 20)))
        group.poll_until(lambda polls=polls: next(polls, None) is None)
    group.poll_until(lambda: len(owners) == 4 and len(group.values) == 100)
    assert set(owners.values()) <= set(group.consumers)


def test_a_group_goes_on_after_a_restart_of_its_broker(broker, members):
    group = members(broker.bootstrap_servers)
    first, second = group.add(), group.add()
    group.wait_for_sizes(2, 2)
    produce(broker.bootstrap_servers, range(100))
    group.poll_until(lambda: len(group.values) == 100)
    for consumer in (first, second):
        group.commit(consumer)
    before = described(broker)
    broker.restart()
    assert set(described(broker).members) == set(before.members)
    produce(broker.bootstrap_servers, range(100, 200))
    group.poll_until(lambda: len(group.values) == 200)
    group.leave(second)
    group.wait_for_sizes(4)
    assert set(group.values.values()) == {1}


def test_a_group_goes_on_when_its_coordinator_is_killed(members):
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "offsets_topic_num_partitions": 1}
    with kcore.Cluster(3, **settings, **FAST) as cluster:
        cluster.create_topic("t", partitions=4)
        group = members(cluster.bootstrap_servers)
        first = group.add()
        produce(cluster.bootstrap_servers, range(100))
        group.poll_until(lambda: len(group.values) == 100)
        group.commit(first)
        cluster.kill(cluster.leader("__consumer_offsets"))
        second = group.add()
        group.wait_for_sizes(2, 2)
        produce(cluster.bootstrap_servers, range(100, 200))
        group.poll_until(lambda: len(group.values) == 200)
        group.commit(second)
        group.close()


def test_topics_that_appear_and_grow_reach_the_members(broker, members):
    group = members(broker.bootstrap_servers)
    group.add("t", "late")
    group.wait_for_sizes(4)
    broker.create_topic("late", partitions=1)
    group.wait_for_sizes(5)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions("late", 3)])["late"].result()
    group.wait_for_sizes(7)
    broker.delete_topic("late")
    group.wait_for_sizes(4)


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_the_assignor_that_the_members_name_is_taken(broker, members, assignor):
    group = members(broker.bootstrap_servers)
    for _ in range(2):
        group.add(**{"group.remote.assignor": assignor})
    group.wait_for_sizes(2, 2)
    if assignor == "range":
        assert sorted(group.assigned()) == [[("t", 0), ("t", 1)], [("t", 2), ("t", 3)]]


def test_static_members_keep_their_partitions_over_a_restart_of_their_process(broker, members):
    group = members(broker.bootstrap_servers)
    first = group.add(**{"group.instance.id": "one"})
    group.add(**{"group.instance.id": "two"})
    group.wait_for_sizes(2, 2)
    had, epoch = group.assigned()[0], described(broker).epoch
    group.leave(first)
    group.add(**{"group.instance.id": "one"})
    group.wait_for_sizes(2, 2)
    assert group.assigned()[-1] == had
    assert described(broker).epoch == epoch


def test_the_admin_client_sees_such_groups_with_type_and_members(broker, members):
    group = members(broker.bootstrap_servers)
    group.add()
    group.wait_for_sizes(4)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (listed,) = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result().valid
    assert (listed.group_id, listed.state, listed.type) == (
        *("g", ConsumerGroupState.STABLE),
        ConsumerGroupType.CONSUMER,
    )
    seen = admin.describe_consumer_groups(["g"])["g"].result()
    (member,) = seen.members
    assert (seen.type, seen.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert [tp.partition for tp in member.assignment.topic_partitions] == [0, 1, 2, 3]
    group.close()
    assert admin.delete_consumer_groups(["g"])["g"].result() is None


def test_CG_31_CG_35_members_with_a_pattern_share_its_topics_also_new_ones(broker, members):
    group = members(broker.bootstrap_servers)
    broker.create_topic("other", partitions=1)
    for _ in range(2):
        group.add("^t.*")
    group.wait_for_sizes(2, 2)
    produce(broker.bootstrap_servers, range(100))
    group.poll_until(lambda: len(group.values) == 100)
    broker.create_topic("t-new", partitions=2)
    group.wait_for_sizes(3, 3)
    assert not any(topic == "other" for partitions in group.assigned() for topic, _ in partitions)


def test_CG_31_a_pattern_that_re2_does_not_take_is_an_error_that_the_application_sees(broker, members):
    group = members(broker.bootstrap_servers)
    group.add("^(t)\\1")
    group.poll_until(lambda: group.errors)
    assert "regular expression is not valid" in str(group.errors[0])
