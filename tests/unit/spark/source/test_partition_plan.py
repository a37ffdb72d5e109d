"""How ranges are cut into tasks, by what they cost."""

import os
from dataclasses import replace

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.spark.source import partition_plan
from kcore.spark.source.partition_plan import OffsetRange, plan
from tests.unit.spark.data import FIRST_TIMESTAMP, make_records, write_partition

COUNT = 3000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six partitions of the same size, in one segment each, of which the odd ones are compressed."""
    directory = tmp_path_factory.mktemp("data")
    for partition in range(6):
        rows = [row._replace(partition=partition) for row in make_records("orders", 0, COUNT)]
        codecs = ("zstd" if partition % 2 else "none",)
        write_partition(directory, rows, codecs=codecs, segment_bytes=1 << 20, index_interval_bytes=1024)
    return directory


def ranges(data, partitions, **options):
    return [
        OffsetRange(TopicPartition("orders", n), str(data / f"orders-{n}"), 0, COUNT, **options) for n in partitions
    ]


def bytes_of(data, partition):
    return os.path.getsize(data / f"orders-{partition}" / f"{0:020d}.log")


@pytest.fixture
def small_tasks(data, monkeypatch):
    """Tasks of a whole partition or less, and nothing for opening one."""
    size = bytes_of(data, 0)
    monkeypatch.setattr(partition_plan, "SMALLEST_TARGET_BYTES", size // 20)
    monkeypatch.setattr(partition_plan, "LEAST_TARGET_BYTES", size // 2)
    monkeypatch.setattr(partition_plan, "TARGET_BYTES", size)
    monkeypatch.setattr(partition_plan, "_OPEN_COST", 0)
    return size


def covered(tasks, partitions):
    """Whether each offset is in exactly one task, and the pieces are in order."""
    at = dict.fromkeys(partitions, 0)
    for piece in (piece for task in tasks for piece in task):
        assert piece.start == at[piece.topic_partition.partition] < piece.end
        at[piece.topic_partition.partition] = piece.end
    return set(at.values()) == {COUNT}


def sizes(tasks):
    return [sum(piece.size for piece in task) for task in tasks]


@pytest.mark.parametrize("parallelism", [None, 1, 2, 4, 7, 100])
def test_as_many_even_tasks_as_run_at_once_within_bounds(data, small_tasks, parallelism):
    pieces = [replace(piece, end=COUNT // 2) for piece in ranges(data, [0, 2])]  # a whole target in all
    tasks = plan(pieces, parallelism=parallelism)
    expected = {None: 2, 1: 1, 2: 2, 4: 4, 7: 8, 100: 20}[parallelism]
    assert len(tasks) == pytest.approx(expected, abs=expected // 10)
    assert max(sizes(tasks)) < 1.3 * min(sizes(tasks))


def test_there_are_at_least_the_requested_number_of_tasks_and_no_more_than_useful(data):
    pieces = ranges(data, [0, 2, 4])
    assert len(plan(pieces)) == len(plan(pieces, min_tasks=1)) == 1
    for count in (2, 3, 7):
        tasks = plan(pieces, min_tasks=count)
        assert count <= len(tasks) <= 2 * count and covered(tasks, [0, 2, 4])


def test_more_than_the_largest_tasks_is_cut_into_more_of_them(data, small_tasks):
    tasks = plan(ranges(data, [0, 2, 4]), parallelism=1)
    assert len(tasks) == 3 and covered(tasks, [0, 2, 4])


def test_what_is_left_is_no_small_task_of_its_own(data, small_tasks, monkeypatch):
    monkeypatch.setattr(partition_plan, "TARGET_BYTES", int(2.6 * small_tasks))
    tasks = plan(ranges(data, [0, 2, 4]), parallelism=1)
    assert [len(task) for task in tasks] == [3]  # not 2 and 1
    monkeypatch.setattr(partition_plan, "TARGET_BYTES", int(1.6 * small_tasks))
    assert [len(task) for task in plan(ranges(data, [0, 2, 4, 0]), parallelism=1)] == [2, 2]


def test_what_would_be_much_larger_than_the_others_is_not_put_together(data, small_tasks, monkeypatch):
    monkeypatch.setattr(partition_plan, "TARGET_BYTES", int(1.5 * small_tasks))
    assert [len(task) for task in plan(ranges(data, [0, 2, 4] * 2), parallelism=2)] == [1] * 6


def test_records_after_the_window_of_time_count_less(data, small_tasks):
    whole = sum(sizes(plan(ranges(data, [0]))))
    assert whole == pytest.approx(bytes_of(data, 0), rel=0.01)
    half = ranges(data, [0], time_to=FIRST_TIMESTAMP + 1000 * COUNT // 2)
    tasks = plan(half, parallelism=4)
    assert sum(sizes(tasks)) == pytest.approx(whole * (0.5 + 0.5 / 8), rel=0.1)
    assert covered(tasks, [0]) and max(sizes(tasks)) < 1.3 * min(sizes(tasks))
    # So the data after the window are in few tasks, and the data to be read in many.
    assert tasks[-1][-1].end - tasks[-1][0].start > 2 * (tasks[0][-1].end - tasks[0][0].start)
    assert sum(sizes(plan(ranges(data, [0], time_to=FIRST_TIMESTAMP * 2)))) == pytest.approx(whole, rel=0.01)
    assert sum(sizes(plan(ranges(data, [0], time_to=5)))) == pytest.approx(whole / 8, rel=0.05)


def test_decompressing_records_after_that_time_counts_too(data, small_tasks):
    packed = bytes_of(data, 1)
    assert sum(sizes(plan(ranges(data, [1])))) == pytest.approx(4 * packed, rel=0.01)
    half = ranges(data, [1], time_to=FIRST_TIMESTAMP + 1000 * COUNT // 2)
    assert sum(sizes(plan(half))) == pytest.approx(2 * packed + 0.75 * packed, rel=0.05)
    tasks = plan(half, max_bytes=packed // 4)
    assert sum(sizes(tasks)) == pytest.approx(packed, rel=0.01), "an explicit number means bytes of files"


def test_an_index_that_goes_back_cuts_nothing_twice(data, small_tasks, tmp_path):
    (tmp_path / "orders-0").mkdir()
    name = f"{0:020d}"
    for extension in ("log", "index", "timeindex"):
        content = (data / "orders-0" / f"{name}.{extension}").read_bytes()
        if extension == "index":
            entries = [content[at : at + 8] for at in range(0, len(content), 8)]
            entries[3:6] = [entries[n][:4] + entries[0][4:] for n in range(3, 6)]  # offsets ascend, positions do not
            content = b"".join(entries)
        (tmp_path / "orders-0" / f"{name}.{extension}").write_bytes(content)
    for options in ({}, {"time_to": FIRST_TIMESTAMP + 1000}):
        assert covered(plan(ranges(tmp_path, [0], **options), parallelism=16), [0])


def test_a_directory_without_its_log_is_one_piece_of_work_whose_reader_reports_it(data, tmp_path):
    (tmp_path / "orders-0").mkdir()
    assert covered(plan(ranges(tmp_path, [0])), [0])
