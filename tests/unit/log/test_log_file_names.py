import pytest

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_file_names import (
    marked_directory,
    parse_partition_directory,
    parse_segment_file,
    partition_directory,
    segment_file,
)


@pytest.mark.parametrize("offset", [0, 7, 2**63 - 1])
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".log.deleted"])
def test_SEG_01_a_segment_files_name_is_its_base_offset_in_20_digits(offset, suffix):
    name = segment_file("", offset, suffix)
    assert len(name) == 20 + len(suffix)
    parsed = parse_segment_file(name)
    assert (parsed.base_offset, parsed.kind + parsed.mark) == (offset, suffix)


@pytest.mark.parametrize(
    "name",
    ["0.log", f"{0:020d}", f"{0:020d}.logs", "x.log", f"{0:021d}.log", f"{2**63:020d}.log", "leader-epoch-checkpoint"],
)
def test_other_files_are_no_segment_files(name):
    assert parse_segment_file(name) is None


@pytest.mark.parametrize("topic", ["orders", "a-b-1", "__consumer_offsets", "with.dots", "a-delete"])
def test_a_directorys_name_gives_topic_and_partition(topic):
    tp = TopicPartition(topic, 12)
    assert parse_partition_directory(partition_directory(tp)) == (tp, "")
    for mark in ("-delete", "-future", "-stray"):
        assert parse_partition_directory(marked_directory(tp, mark, SYSTEM_RANDOM)) == (tp, mark)


def test_a_marked_name_is_unique_and_never_longer_than_file_systems_allow():
    tp = TopicPartition("t" * 249, 3)
    names = {marked_directory(tp, "-delete", SYSTEM_RANDOM) for _ in range(10)}
    assert len(names) == 10 and {len(name) for name in names} == {255}


@pytest.mark.parametrize(
    "name", ["", "-", "orders", "orders-", "orders-x", "-3", "orders-1-delete", f"orders-{2**31}", "o-\u0663"]
)
def test_other_directories_are_no_partitions(name):
    assert parse_partition_directory(name) is None
