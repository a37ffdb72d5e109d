"""The coordinator over real logs: what it writes is there after a restart."""

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from tests.unit.replica.conftest import Node

from .harness import OFFSETS_TOPIC, Harness, MixedGroup


def coordinated(node, partitions=2, harness=Harness, **config):
    for partition in range(partitions):
        node.lead(TopicPartition(OFFSETS_TOPIC, partition))
    harness = harness(node.replica_manager, offsets_topic_num_partitions=partitions, **config)
    harness.scheduler.tick()
    return harness


def test_groups_and_offsets_survive_a_restart_of_the_broker(tmp_path):
    node = Node(tmp_path, {OFFSETS_TOPIC: {"cleanup.policy": "compact"}})
    harness = coordinated(node)
    (join,) = harness.stable_group()
    for offset in range(100):
        harness.commit({("t", 0): offset, ("t", 1): 2 * offset}, join.member_id, 1)
    harness.commit({("u", 0): 5}, group_id="simple")
    node.shutdown()
    again = coordinated(Node(tmp_path), offsets_load_buffer_size=500)
    assert again.committed() == {("t", 0): 99, ("t", 1): 198}
    assert again.committed("simple") == {("u", 0): 5}
    assert again.heartbeat(join) == 0


def test_a_partition_that_is_no_longer_led_refuses_commits(tmp_path):
    node = Node(tmp_path)
    harness = coordinated(node)
    harness.commit({("t", 0): 1})
    partition = TopicPartition(OFFSETS_TOPIC, harness.coordinator.partition_for("g"))
    node.replica_manager.get_partition(partition).resign()
    assert harness.commit({("t", 0): 2}).result == {("t", 0): 16}
    assert harness.committed() == {("t", 0): 1}


def test_a_member_whose_record_the_topics_settings_do_not_allow_is_refused_and_the_group_goes_on(tmp_path):
    mixed = coordinated(Node(tmp_path, {OFFSETS_TOPIC: {"max.message.bytes": "1000"}}), harness=MixedGroup)
    assert mixed.join_new("a").error_code == 0
    large = mixed.join_new("b", topics=[letter * 249 for letter in "tuvwx"])
    assert large.error_code == errors.UnknownServerError.code
    assert mixed.join_new("c").error_code == 0
    assert set(mixed.value().members) == {"a", "c"}
