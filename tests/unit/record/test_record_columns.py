"""Columns hold what the records hold, one by one: RecordBatch.records() is the slow way to the same answer."""

import pathlib
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcore.errors import CorruptMessage, KafkaError
from kcore.record.columns import COLUMNS
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of
from tests.reference import record_batch as model
from tests.unit.record.batches import random_batch, reseal

OLD_FORMATS = pathlib.Path(__file__).resolve().parents[2] / "golden" / "old-formats"


def rows_of(columns):
    """Records as tuples, from every column."""
    lists, names, values = columns.header_columns()
    pairs = list(zip((name.decode("utf-8", "surrogateescape") for name in names), values, strict=True))
    headers = [pairs[lists[i] : lists[i + 1]] for i in range(len(columns))]
    kinds = [{0: "CreateTime", 1: "LogAppendTime"}[kind] for kind in columns["timestampType"].tolist()]
    return list(
        zip(
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            kinds,
            columns.key,
            columns.value,
            headers,
            columns["leaderEpoch"].tolist(),
            columns["producerId"].tolist(),
            columns["sequence"].tolist(),
            columns["isTransactional"].tolist(),
            strict=True,
        )
    )


def expected_rows(data, *, start=0, end=1 << 62, control=False, skip=lambda batch: False):
    return [
        (
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            list(record.headers),
            batch.leader_epoch,
            batch.producer_id,
            -1 if batch.base_sequence < 0 else (batch.base_sequence + record.offset - batch.base_offset) % 2**31,
            batch.is_transactional,
        )
        for batch in MemoryRecords(data).batches
        if (control or not batch.is_control) and not skip(batch)
        for record in batch.records()
        if start <= record.offset < end
    ]


def random_log(seed, *, codec=None, count=None):
    """Bytes of batches as a log may hold them: gaps, control batches, transactions, batches emptied by the cleaner."""
    rng = random.Random(seed)
    data, offset = b"", rng.choice([0, 5, 2**40])
    for _ in range(rng.choice([0, 1, 2, 5, 12]) if count is None else count):
        batch = random_batch(rng, offset, gaps=rng.random() < 0.3, codec=codec)
        batch.producer_id = rng.choice([-1, 7, 8])
        batch.base_sequence = -1 if batch.producer_id < 0 else rng.choice([0, 2**31 - 3])
        kind = rng.random()
        if kind < 0.2:
            batch.attributes |= model.LOG_APPEND_TIME
        elif kind < 0.4 and batch.producer_id >= 0:
            batch.attributes |= model.TRANSACTIONAL
        elif kind < 0.5:
            batch.attributes |= model.CONTROL
        if kind > 0.9:
            batch.records.clear()
            batch.count = 0
            encoded = model.encode_batch(batch, b"")
        else:
            encoded = model.encode_batch(batch)
        data += encoded
        offset += batch.last_offset_delta + 1 + rng.choice([0, 0, 3])
    return data


@given(st.integers(0, 2**32))
def test_columns_hold_what_the_records_hold(seed):
    data = random_log(seed)
    assert rows_of(columns_of(data)) == expected_rows(data)
    assert rows_of(columns_of(MemoryRecords(data), keep_control=True)) == expected_rows(data, control=True)


@given(st.integers(0, 2**32), st.integers(-5, 300), st.integers(0, 300))
def test_an_offset_range_is_cut_record_by_record(seed, below, length):
    data = random_log(seed)
    start = (MemoryRecords(data).first_offset if data else 0) + below
    columns = columns_of(data, start_offset=start, end_offset=start + length)
    assert rows_of(columns) == expected_rows(data, start=start, end=start + length)
    assert int(columns.batch_records.sum()) == len(columns)


@given(st.integers(0, 2**32))
def test_records_of_aborted_transactions_are_left_out(seed):
    rng = random.Random(seed)
    data = random_log(seed, count=12)
    batches = list(MemoryRecords(data).batches)
    # Of one producer transactions do not overlap.
    aborted = []
    for producer_id in (7, 8, 9):
        edges = sorted(rng.sample(range(batches[0].base_offset, batches[-1].last_offset + 12), 4))
        aborted += [(producer_id, edges[0], edges[1], 0), (producer_id, edges[2], edges[3], 0)]
    rng.shuffle(aborted)

    def skip(batch):
        return batch.is_transactional and any(
            producer == batch.producer_id and first <= batch.last_offset and batch.base_offset <= last
            for producer, first, last, _ in aborted
        )

    assert rows_of(columns_of(data, aborted=aborted)) == expected_rows(data, skip=skip)


@pytest.mark.parametrize("codec", model.CODECS)
def test_only_the_requested_columns_are_there(codec):
    data = random_log(3, codec=codec, count=5)
    everything = columns_of(data)
    for name in COLUMNS:
        columns = columns_of(data, columns=[name])
        assert name in columns
        for other in ("timestamp", "key", "value", "headers"):
            assert (other in columns) == (other == name)
        if name != "headers":
            assert list(columns[name]) == list(everything[name])
    with pytest.raises(KeyError):
        columns_of(data, columns=["value"])["key"]
    with pytest.raises(ValueError, match="'vlaue'"):
        columns_of(data, columns=["vlaue"])


def test_without_compression_the_strings_stay_where_they_are():
    data = random_log(4, codec="none", count=5)
    columns = columns_of(data)
    assert np.shares_memory(np.frombuffer(columns.value.data, np.uint8), np.frombuffer(data, np.uint8))


def test_the_columns_keep_their_bytes_alive():
    data = bytearray(random_log(5, codec="none", count=5))
    expected = expected_rows(bytes(data))
    columns = columns_of(data)
    with pytest.raises(BufferError):
        data.clear()
    del data
    assert rows_of(columns) == expected


@pytest.mark.parametrize("codec", model.CODECS)
def test_each_flipped_byte_is_refused_as_the_records_are_or_gives_the_same_records(codec):
    rng = random.Random(11)
    batch = random_batch(rng, 1000, codec=codec)
    whole = model.encode_batch(batch)
    refused = 0
    for position in range(len(whole)):
        for resealed in (False, True):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.randrange(8)
            data = reseal(bytes(damaged)) if resealed else bytes(damaged)
            try:
                expected = expected_rows(data, control=True)
            except KafkaError as error:
                with pytest.raises(type(error)) as caught:
                    columns_of(data, keep_control=True)
                assert str(caught.value) == str(error)
                refused += 1
            else:
                assert rows_of(columns_of(data, keep_control=True)) == expected
    assert refused > len(whole)


@pytest.mark.parametrize("codec", model.CODECS)
def test_a_cut_batch_gives_nothing_and_a_cut_payload_is_refused(codec):
    batch = random_batch(random.Random(12), 0, codec=codec)
    whole = model.encode_batch(batch)
    payload = whole[model.HEADER_SIZE :]
    for size in range(len(payload)):
        assert len(columns_of(whole[: model.HEADER_SIZE + size])) == 0
        with pytest.raises(CorruptMessage, match=r"log-1.*batch at offset 0"):
            columns_of(model.encode_batch(batch, payload[:size]), source="log-1")


def test_a_count_that_the_bytes_cannot_hold_makes_no_room_for_it():
    data = bytearray(model.encode_batch(model.make_batch([model.Record(0, -1, None, b"x", [])])))
    struct.pack_into(">i", data, 23, 2**31 - 2)
    struct.pack_into(">i", data, 57, 2**31 - 1)
    with pytest.raises(CorruptMessage, match="record count"):
        columns_of(reseal(bytes(data)))


def test_gather_lays_strings_side_by_side():
    records = [model.Record(i, 0, None if i % 3 == 0 else b"k" * i, b"", []) for i in range(20)]
    key = columns_of(model.encode_batch(model.make_batch(records))).key
    valid, offsets, data, nulls = key.gather(1, 20)
    assert nulls == 6 and len(offsets) == 20 and offsets[0] == 0 and offsets[-1] == len(data)
    bits = np.unpackbits(valid, bitorder="little")[:19].astype(bool)
    strings = [bytes(data[offsets[i] : offsets[i + 1]]) if bits[i] else None for i in range(19)]
    assert strings == [record.key for record in records[1:]] == list(key)[1:] == [key[i] for i in range(1, 20)]
    assert key[-1] == b"k" * 19
    with pytest.raises(IndexError):
        key.gather(5, 4)
    with pytest.raises(IndexError):
        key[20]


def test_take_gives_the_records_of_these_numbers():
    def rows(columns):
        values = (columns.offset.tolist(), columns.timestamp.tolist(), columns.key, columns.value, columns.headers)
        return list(zip(*values, columns.header_count.tolist(), strict=True))

    columns = columns_of(random_log(6, codec="none", count=8))
    chosen = np.array([len(columns) - 1, 0, 3, 3], np.int64)
    taken = columns.take(chosen)
    assert rows(taken) == [rows(columns)[i] for i in chosen]
    assert "isControl" not in taken and len(columns.take(chosen[:0])) == 0
    with pytest.raises(IndexError):
        columns.take(np.array([len(columns)], np.int64))


def test_no_batches_make_empty_columns():
    columns = columns_of(b"")
    assert len(columns) == 0 and rows_of(columns) == []
    assert columns.offset.dtype == np.int64 and columns["timestampType"].dtype == np.int32


@pytest.mark.parametrize("path", sorted(OLD_FORMATS.glob("*.log")), ids=lambda path: path.stem)
def test_old_formats_of_kafkas_become_the_same_columns(path):
    kinds = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
    expected = [
        (r.offset, r.timestamp, kinds[r.timestamp_type], r.key, r.value)
        for r in MemoryRecords(path.read_bytes()).records()
    ]
    assert len(expected) > 10
    start, end = expected[3][0], expected[-4][0]
    for rows, columns in (
        (expected, columns_of(path.read_bytes())),
        (expected[3:-4], columns_of(path.read_bytes(), start_offset=start, end_offset=end)),
    ):
        kind = columns["timestampType"].tolist()
        rows_of_columns = zip(
            columns.offset.tolist(), columns.timestamp.tolist(), kind, columns.key, columns.value, strict=True
        )
        assert list(rows_of_columns) == rows


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_the_memory_of_a_column_cannot_be_freed_or_changed(codec, batches):
    builder = RecordBatchBuilder(compression=codec)
    builder.append(bytes(300_000))
    column = columns_of(bytes(builder.build()) * batches).value
    owner = column.data.obj
    with pytest.raises((BufferError, AttributeError)):
        owner.clear()
    with pytest.raises(TypeError):
        column.data[0] = 1
    assert list(column) == [bytes(300_000)] * batches
