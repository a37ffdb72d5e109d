"""Keys go where Kafka's Java producer sends them; records without a key come in turn."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kcore.record.columns import binary_column
from kcore.record.partitioner import assign_partitions, group_by_partition, murmur2, partition_for_key
from tests.reference import partitioner as model

KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def column(keys):
    """The keys as a BinaryColumn over Arrow's layout."""
    sizes = [len(key or b"") for key in keys]
    offsets = np.array([0, *itertools.accumulate(sizes)], np.int32)
    valid = np.packbits(np.array([key is not None for key in keys], bool), bitorder="little")
    return binary_column(offsets, b"".join(key or b"" for key in keys), valid, 0, len(keys))


@pytest.mark.parametrize(
    "key, expected",
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_gives_the_values_that_kafka_publishes(key, expected):
    """Source: UtilsTest.testMurmur2."""
    assert murmur2(key) == expected % 2**32


@given(st.binary(max_size=100), st.integers(1, 2**31 - 1))
def test_the_hash_is_that_of_the_model_and_of_kafka_python(key, partitions):
    assert murmur2(key) == model.murmur2(key) == kafka_python_murmur2(key) % 2**32
    assert partition_for_key(key, partitions) == model.partition_for_key(key, partitions)


@given(KEYS, st.integers(1, 50), st.data())
def test_a_column_goes_where_its_keys_go_one_by_one(keys, partitions, data):
    turn = data.draw(st.integers(0, partitions - 1))
    wanted = data.draw(st.none() | st.lists(st.integers(-1, partitions - 1), min_size=len(keys), max_size=len(keys)))
    given_partitions = None if wanted is None else np.array(wanted, np.int32)
    partitions_of_records, next_turn = assign_partitions(len(keys), partitions, column(keys), given_partitions, turn)
    expected = []
    for key, own in zip(keys, wanted or [-1] * len(keys), strict=True):
        if own >= 0:
            expected.append(own)
        elif key is not None:
            expected.append(model.partition_for_key(key, partitions))
        else:
            expected.append(turn)
            turn = (turn + 1) % partitions
    assert partitions_of_records.tolist() == expected
    assert next_turn == turn


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=100))))
def test_groups_hold_the_records_of_each_partition_in_their_order(case):
    partitions, of_record = case
    starts, order = group_by_partition(np.array(of_record, np.int32), partitions)
    for p in range(partitions):
        assert order[starts[p] : starts[p + 1]].tolist() == [i for i, own in enumerate(of_record) if own == p]
    assert starts[0] == 0 and starts[-1] == len(of_record)


def test_records_without_keys_are_spread_evenly():
    partitions_of_records, turn = assign_partitions(10, 4)
    assert partitions_of_records.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1] and turn == 2


def test_a_partition_that_there_is_not_is_named_with_its_record():
    with pytest.raises(ValueError, match=r"record 2: partition 7, there are 4"):
        assign_partitions(3, 4, None, np.array([0, -1, 7], np.int32))


@pytest.mark.parametrize(
    "arguments",
    [
        (3, 0),
        (3, 2, None, None, 2),
        (3, 2, None, None, -1),
        (3, 2, column([b"a"])),
        (3, 2, None, np.zeros(2, np.int32)),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments):
    with pytest.raises(ValueError):
        assign_partitions(*arguments)


@pytest.mark.parametrize("partition", [-1, 2])
def test_groups_of_partitions_that_there_are_not_are_refused(partition):
    with pytest.raises(ValueError, match="outside"):
        group_by_partition(np.array([0, partition], np.int32), 2)


@pytest.mark.parametrize(("position", "size"), [(3, 100), (3, 3), (0, 6), (5, 1), (6, 0), (-1, 1)])
def test_an_extent_outside_its_data_is_refused(position, size):
    keys = column([b"abc", b"de"])
    keys.position[1], keys.size[1] = position, size
    with pytest.raises(ValueError, match="record 1"):
        assign_partitions(2, 3, keys)


@pytest.mark.parametrize(("position", "size"), [(0, 5), (4, 1), (5, 0)])
def test_an_extent_up_to_the_end_of_its_data_is_taken(position, size):
    keys = column([b"abc", b"de"])
    keys.position[1], keys.size[1] = position, size
    partitions, _ = assign_partitions(2, 3, keys)
    assert partitions[1] == partition_for_key(b"abcde"[position : position + size], 3)
