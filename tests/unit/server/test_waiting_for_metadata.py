"""AdminManager.when_done(): whoever waits for the metadata misses no change of them."""

import pytest

from kcore.common.time import MockTime
from kcore.metadata.metadata_cache import MetadataCache
from kcore.purgatory.timer import Timer
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.topics.admin_manager import AdminManager


@pytest.mark.parametrize("reading", [1, 2])
def test_a_change_of_the_metadata_between_the_check_and_the_registration_is_not_missed(reading):
    """Another thread changes the metadata just after this one has read them: nobody waits yet whom it could wake up."""
    admin = AdminManager(
        1, KafkaConfig({}), MetadataCache("c", controller_id=1), None, TopicConfigs(), Timer(MockTime())
    )
    readings, answers = [], []
    is_there = False

    def is_done(snapshot):
        nonlocal is_there
        readings.append(is_there)
        was_there = is_there
        if len(readings) == reading:
            is_there = True
            admin.metadata_changed()
        return was_there

    admin.when_done({"t": is_done}, 60_000, answers.append)
    assert answers == [[]] and readings.count(False) == reading


def test_who_waits_is_answered_with_the_change_and_without_it_when_its_time_is_up():
    clock = MockTime()
    timer = Timer(clock)
    admin = AdminManager(1, KafkaConfig({}), MetadataCache("c", controller_id=1), None, TopicConfigs(), timer)
    there, answers = set(), []
    for name in ("a", "b"):
        admin.when_done({name: lambda snapshot, name=name: name in there}, 1000, answers.append)
    admin.metadata_changed()
    assert answers == []
    there.add("a")
    admin.metadata_changed()
    assert answers == [[]]
    clock.sleep(1001)
    timer.advance()
    assert answers == [[], ["b"]]
