"""A .log under a wrong name: one problem that gives the right one, and no repair removes a batch for it."""

import os
import random
import shutil
from pathlib import Path

import pytest

from kcore.errors import CorruptFile
from kcore.inspect import examine_index_files, plan_repair, scan_segment, verify
from kcore.inspect.segment_names import Span, right_base
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder


def make_log(directory: Path) -> Path:
    """Batches of five records, some in each segment; no gaps."""
    directory.mkdir()
    config = LogConfig(segment_bytes=1500, index_interval_bytes=100)
    with open_log(str(directory / "orders-0"), "a", config=config) as log:
        for n in range(60):
            builder = RecordBatchBuilder()
            for _ in range(5):
                builder.append(b"value", b"key", timestamp=1_700_000_000_000 + n)
            log.append_as_leader(builder.build())
    return directory


def bases(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def rename(partition: Path, old: int, new: int, suffixes=("log", "index", "timeindex")) -> None:
    for suffix in suffixes:
        os.rename(partition / f"{old:020}.{suffix}", partition / f"{new:020}.{suffix}")


def damage(data: Path) -> list[tuple[str, str]]:
    return [(os.path.basename(problem.path), problem.text) for problem in verify(str(data)) if problem.damage]


@pytest.mark.parametrize("shift", [-7, -3, -1, 1, 3, 7, 12])
def test_a_name_that_is_too_high_or_too_low_is_one_problem_and_a_repair_removes_nothing(shift, tmp_path):
    data = make_log(tmp_path / "data")
    right = bases(data / "orders-0")[2]
    rename(data / "orders-0", right, right + shift)
    ((name, text),) = damage(data)
    assert name == f"{right + shift:020}.log"
    assert f"begin at offset {right}" in text and f"{right:020}" in text
    for salvage in ("truncate", "keep-after"):
        plans = plan_repair(str(data), salvage=salvage)
        assert not any(plan.losses or plan.actions for plan in plans)
        assert [os.path.basename(problem.path) for plan in plans for problem in plan.beyond_repair] == [name]
    with pytest.raises(CorruptFile, match=f"{right:020}"):
        examine_index_files(str(data / "orders-0"))


def test_the_name_of_the_first_and_of_the_last_segment_may_be_wrong(tmp_path):
    for n, shift in ((0, 4), (-1, 4), (-1, -4)):
        data = make_log(tmp_path / f"data{n}{shift}")
        right = bases(data / "orders-0")[n]
        rename(data / "orders-0", right, right + shift)
        ((name, _),) = damage(data)
        assert name == f"{right + shift:020}.log"


def test_a_wrong_name_without_indexes_of_this_name_is_damage_too(tmp_path):
    data = make_log(tmp_path / "data")
    right = bases(data / "orders-0")[2]
    rename(data / "orders-0", right, right + 3, ("log",))
    assert [name for name, _ in damage(data)] == [f"{right + 3:020}.log"]


def test_after_the_renaming_nothing_is_wrong(tmp_path):
    data = make_log(tmp_path / "data")
    assert not list(verify(str(data)))
    right = bases(data / "orders-0")[3]
    rename(data / "orders-0", right, right + 3)
    assert damage(data)
    rename(data / "orders-0", right + 3, right)
    assert not list(verify(str(data)))


def test_the_file_alone_has_the_same_problem(tmp_path):
    data = make_log(tmp_path / "data")
    right = bases(data / "orders-0")[2]
    rename(data / "orders-0", right, right + 3)
    for suffix in ("log", "index"):
        (problem,) = verify(str(data / "orders-0" / f"{right + 3:020}.{suffix}"))
        assert f"begin at offset {right}" in problem.text


def test_a_copy_of_a_segment_under_another_name_is_not_taken_for_a_wrong_name(tmp_path):
    data = make_log(tmp_path / "data")
    first, second, *_ = bases(data / "orders-0")
    shutil.copy(data / "orders-0" / f"{first:020}.log", data / "orders-0" / f"{second + 3:020}.log")
    assert not any("begin at offset" in text for _, text in damage(data))


def test_no_flipped_bit_of_a_header_makes_a_name_look_wrong(tmp_path):
    """Of the first and last batches of segments, which the rule looks at."""
    data = make_log(tmp_path / "data")
    rng = random.Random(6)
    for base in bases(data / "orders-0")[:-1]:
        log = data / "orders-0" / f"{base:020}.log"
        rows = scan_segment(str(log)).batches
        content = log.read_bytes()
        for start in (0, int(rows["position"][1]), int(rows["position"][-1])):
            for _ in range(20):
                at = start + rng.choice([*range(8), 16, *range(23, 27)])
                flipped = bytearray(content)
                flipped[at] ^= 1 << rng.randrange(8)
                log.write_bytes(flipped)
                found = damage(data)
                assert found and not any("begin at offset" in text for _, text in found), (base, at)
        log.write_bytes(content)


A, B, C, D = Span(0, 4), Span(5, 9), Span(10, 14), Span(15, 19)


@pytest.mark.parametrize(
    ("name", "own", "before", "before_name", "following", "expected"),
    [
        (10, [C, D], [A, B], 0, 20, None),  # as it should be
        (8, [C, D], [A, B], 0, 20, 10),  # inside the batch before
        (12, [C, D], [A, B], 0, 20, 10),  # inside its own first batch
        (15, [C, D], [A, B], 0, 20, 10),  # a whole batch too high
        (12, [C], [A, B], 0, 15, 10),  # its only batch ends where the next segment begins
        (12, [C], [A, B], 0, None, None),  # nothing says where its only batch ends
        (12, [C], [A, B], 0, 16, None),
        (12, [C, Span(16, 20)], [A, B], 0, 30, None),  # a gap after its first batch: that may be what is wrong
        (12, [C, D], [A], 0, 20, None),  # a gap before it
        (8, [C, D], [A, Span(6, 9)], 0, 20, None),  # the batch before may be what is wrong
        (8, [C, D], [B], 5, 20, 10),  # the only batch before has the offset of its segment's name
        (8, [C, D], [B], 4, 20, None),
        (7, [C, D], [A], 0, 20, None),  # compaction leaves a name below the first batch
        (3, [A, B], [], None, 10, 0),  # the first segment
        (0, [B, C], [], None, 15, None),
        (12, [], [A, B], 0, 20, None),
    ],
)
def test_a_name_is_wrong_only_where_the_batches_on_both_sides_go_on_without_a_gap(
    name, own, before, before_name, following, expected
):
    assert right_base(name, own, before, before_name, following) == expected
