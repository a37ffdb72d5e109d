"""The machine's clock is set while consumers are members of a group: sessions follow a clock that never steps."""

import confluent_kafka
import pytest

import kcore
from kcore.testing import SkipTime
from kcore.testing.kafka_fixture import KafkaFixture
from tests.waiting import wait_until

DAY_MS = 86_400_000


class SettableTime(SkipTime):
    """A clock whose time of day an administrator sets."""

    stepped_ms = 0

    def milliseconds(self):
        return super().milliseconds() + self.stepped_ms

    def step(self, ms):
        """When this returns, the broker has done what it takes to be due by then."""
        self.stepped_ms += ms
        self._call_listeners()


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS])
def test_a_wall_clock_that_steps_by_a_day_ends_no_session_of_a_consumer(step_ms):
    with kcore.Broker(time=SettableTime()) as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop", session_timeout_ms=45_000))
        consumer.subscribe(["orders"])
        kafka.wait_for_group("shop", partitions=2)
        group = broker.group_coordinator.manager.get_group("shop")
        before = set(group.members), group.generation_id
        broker.time.step(step_ms)
        broker.produce("orders", "a book")
        assert wait_until(lambda: consumer.poll(1)).value() == b"a book"
        kafka.wait_for_group("shop", partitions=2)
        assert (set(group.members), group.generation_id) == before
        consumer.close()
