"""What open_log and a log's append do not take is refused with the path or the bytes, what is wrong, and what to do."""

import os

import pytest

import kcore
from kcore.errors import ClusterMemberDirectory, CorruptMessage, InvalidRecord, NoRecordBatch, NotAPartitionDirectory
from kcore.log import clean_shutdown, meta_properties
from tests.golden_data import data_dir, partition_dir
from tests.unit.log.logs import batch

MODES = pytest.mark.parametrize("mode", ["r", "a"])


def names_below(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def test_appending_below_a_missing_data_directory_is_an_error_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such data directory") as raised:
        kcore.open_log(tmp_path / "data" / "orders-0", "a")
    assert raised.value.filename == str(tmp_path / "data")
    assert names_below(tmp_path) == []


def test_appending_below_a_file_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "data").write_text("x")
    with pytest.raises(NotADirectoryError, match="not a data directory") as raised:
        kcore.open_log(tmp_path / "data" / "orders-0", "a")
    assert raised.value.filename == str(tmp_path / "data")


@MODES
def test_a_data_directory_is_recognised_by_the_partitions_in_it(mode):
    with pytest.raises(NotAPartitionDirectory) as raised:
        kcore.open_log(data_dir(), mode)
    message = str(raised.value)
    assert str(data_dir()) in message and "a data directory" in message
    partitions = sorted(path.name for path in data_dir().iterdir() if (path / f"{0:020}.log").exists())
    assert len(partitions) > 3 and all(name in message for name in partitions[:3])
    assert f"and {len(partitions) - 3} more" in message


def test_a_data_directory_with_a_partitions_name_is_one_all_the_same(tmp_path):
    (tmp_path / "kafka-0" / "orders-0").mkdir(parents=True)
    for mode in ("r", "a"):
        with pytest.raises(NotAPartitionDirectory, match="it holds orders-0: open"):
            kcore.open_log(tmp_path / "kafka-0", mode)
    assert names_below(tmp_path) == ["kafka-0", "kafka-0/orders-0"]


def test_a_log_of_a_clusters_member_is_read_and_not_appended_to(tmp_path):
    """Its other replicas would not get the records."""
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(batch(), 0)
    meta_properties.write(str(tmp_path), "c", 4)
    meta_properties.mark_as_member(str(tmp_path))
    before = names_below(tmp_path)
    for name in ("orders-0", "new-0"):
        with pytest.raises(ClusterMemberDirectory, match="belongs to broker 4 of cluster c"):
            kcore.open_log(tmp_path / name, "a")
    assert names_below(tmp_path) == before and clean_shutdown.was_clean_shutdown(str(tmp_path))
    with kcore.open_log(tmp_path / "orders-0") as log:
        assert log.log_end_offset == 1
    (tmp_path / "meta.properties").write_text("broker.id=4\ncluster.id=c\n")  # of a broker alone, or Kafka's
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(batch(), 0)


@MODES
def test_a_file_is_no_partitions_directory(tmp_path, mode):
    log_file = tmp_path / "orders-0" / f"{0:020}.log"
    log_file.parent.mkdir()
    log_file.write_bytes(bytes(batch()))
    with pytest.raises(NotADirectoryError, match="open the directory around it") as raised:
        kcore.open_log(log_file, mode)
    assert raised.value.filename == str(log_file)
    assert names_below(tmp_path) == ["orders-0", f"orders-0/{0:020}.log"]


@pytest.mark.parametrize("name", ["orders", "orders-", "-0", "orders-x", "orders-99999999999"])
def test_appending_needs_a_name_with_topic_and_partition(tmp_path, name):
    with pytest.raises(NotAPartitionDirectory, match="TOPIC-PARTITION") as raised:
        kcore.open_log(tmp_path / name, "a")
    assert str(tmp_path / name) in str(raised.value)
    assert names_below(tmp_path) == []


def test_a_directory_that_was_set_aside_is_read_and_not_appended_to(tmp_path):
    aside = tmp_path / "orders-0.0123456789abcdef0123456789abcdef-stray"
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(batch(3))
    os.rename(tmp_path / "orders-0", aside)
    with pytest.raises(NotAPartitionDirectory, match=r"-stray.*rename it to orders-0"):
        kcore.open_log(aside, "a")
    with kcore.open_log(aside) as log:
        assert log.log_end_offset == 3


def test_a_copy_of_any_name_is_read(tmp_path):
    copy = tmp_path / "copy"
    os.symlink(partition_dir("g-none-0"), copy)
    with kcore.open_log(copy) as log:
        assert log.log_end_offset > 0


@pytest.mark.parametrize(("data", "size"), [(b"", 0), (b"hello", 5), (b"hello world", 11)])
def test_LOG_04_bytes_without_a_whole_batch_are_refused_from_every_origin(tmp_path, data, size):
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        for records in (data, bytearray(data)):
            with pytest.raises(NoRecordBatch, match=f"orders-0: {size} bytes hold no whole record batch") as raised:
                log.append_as_leader(records)
            assert "RecordBatchBuilder" in str(raised.value)
        with pytest.raises(NoRecordBatch, match="orders-0: the records hold no whole record batch"):
            log.append_as_leader(kcore.MemoryRecords(data))
        with pytest.raises(CorruptMessage, match="magic"):
            log.append_as_leader(b"hello world, hello log")
        assert log.log_end_offset == 0 and log.size == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_LOG_04_a_cut_batch_is_refused_at_each_length(tmp_path, magic):
    whole = bytes(batch(magic=magic))
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        for size in range(len(whole)):
            with pytest.raises(InvalidRecord, match=f" {size} bytes hold no whole record batch"):
                log.append_as_leader(whole[:size])
        assert log.append_as_leader(whole).first_offset == 0


@pytest.mark.parametrize("argument", ["config", "time"])
def test_a_config_or_clock_of_another_type_is_refused(tmp_path, argument):
    with pytest.raises(TypeError, match=f"{argument} must be a .*, not 5"):
        kcore.open_log(tmp_path / "orders-0", "a", **{argument: 5})
    assert list(tmp_path.iterdir()) == []
