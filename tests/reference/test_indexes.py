"""The index models against Kafka's index files."""

import pytest

from tests import golden_data
from tests.reference import record_batch
from tests.reference.offset_index import OffsetIndexModel
from tests.reference.time_index import TimeIndexModel


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".index"))
def test_the_offset_index_model_reads_and_writes_kafkas_file(partition, file):
    base = int(file.split(".")[0])
    data = (golden_data.partition_dir(partition) / file).read_bytes()
    model = OffsetIndexModel.from_bytes(base, data)
    listed = [(entry["offset"], entry["position"]) for entry in golden_data.expected_file(partition, file)["entries"]]
    assert model.entries == listed
    assert model.is_sane()
    written = OffsetIndexModel(base)
    for entry in listed:
        written.append(*entry)
    assert written.to_bytes() == data


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".timeindex"))
def test_the_time_index_model_reads_and_writes_kafkas_file(partition, file):
    base = int(file.split(".")[0])
    data = (golden_data.partition_dir(partition) / file).read_bytes()
    model = TimeIndexModel.from_bytes(base, data)
    listed = [(entry["timestamp"], entry["offset"]) for entry in golden_data.expected_file(partition, file)["entries"]]
    assert model.entries == listed
    assert model.is_sane()
    written = TimeIndexModel(base)
    for entry in listed:
        written.maybe_append(*entry, skip_full_check=True)
    assert written.to_bytes() == data


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".index"))
def test_IDX_17_every_entry_of_kafkas_index_names_the_batch_that_it_points_to(partition, file):
    directory = golden_data.partition_dir(partition)
    model = OffsetIndexModel.from_bytes(int(file.split(".")[0]), (directory / file).read_bytes())
    batches = record_batch.decode_batches((directory / file.replace(".index", ".log")).read_bytes())
    at = {batch.position: n for n, batch in enumerate(batches)}
    for offset, position in model.entries:
        n = at[position]
        assert batches[n].last_offset >= offset
        assert n == 0 or offset > batches[n - 1].last_offset


def test_lookups_on_an_empty_index_name_the_base():
    assert OffsetIndexModel(45).lookup(100) == (45, 0)
    assert TimeIndexModel(45).lookup(100) == (-1, 45)


def test_fetch_upper_bound_and_truncation_by_hand():
    model = OffsetIndexModel(10)
    for offset, position in [(14, 100), (20, 200), (25, 300)]:
        model.append(offset, position)
    assert model.fetch_upper_bound_offset(0, 100) == (14, 100)
    assert model.fetch_upper_bound_offset(100, 101) == (25, 300)
    assert model.fetch_upper_bound_offset(200, 101) is None
    assert [model.lookup(o) for o in (9, 10, 14, 19, 20, 99)] == [
        (10, 0),
        (10, 0),
        (14, 100),
        (14, 100),
        (20, 200),
        (25, 300),
    ]
    model.truncate_to(20)
    assert model.entries == [(14, 100)]
    with pytest.raises(ValueError, match="not above"):
        model.append(14, 150)


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".timeindex"))
def test_the_last_time_index_entry_of_a_closed_segment_has_its_highest_timestamp(partition, file):
    directory = golden_data.partition_dir(partition)
    batches = record_batch.decode_batches((directory / file.replace(".timeindex", ".log")).read_bytes())
    model = TimeIndexModel.from_bytes(int(file.split(".")[0]), (directory / file).read_bytes())
    highest = max((batch.max_timestamp for batch in batches), default=-1)
    assert model.last_entry[0] == highest
    for timestamp, offset in model.entries:
        (holder,) = [batch for batch in batches if batch.base_offset <= offset <= batch.last_offset]
        assert holder.max_timestamp == timestamp
        own = [record.offset for record in holder.records if record.timestamp == timestamp]
        assert offset in (holder.last_offset, own[0])
