"""kcore diff: reports the first difference of two replicas and explains it by their leader epochs."""

import random
import shutil
from pathlib import Path

import pytest

from kcore.log.checkpoints import LeaderEpochCheckpointFile
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.tools.main import main
from tests import golden_data
from tests.reference import record_batch as model
from tests.unit.tools.command import LOG, run_json

#: offset, leader epoch, values
Batch = tuple[int, int, list[bytes]]


def encoded(offset: int, epoch: int, values: list[bytes], codec: str = "none") -> bytearray:
    builder = RecordBatchBuilder(base_offset=offset, leader_epoch=epoch, compression=codec)
    for value in values:
        builder.append(value, b"key", timestamp=1_700_000_000_000 + offset)
    return builder.build()


def replica(directory: Path, batches: list[Batch], *, segment_bytes: int = 2_000, skip=()) -> Path:
    """A directory with (offset, epoch, values) batches, as a follower appends them; `skip`: offsets left out."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=300, segment_index_bytes=4_096)
    with open_log(directory, "a", config=config) as log:
        for offset, epoch, values in batches:
            if offset not in skip:
                log.append_as_follower(MemoryRecords(encoded(offset, epoch, values)))
    return directory


def plain(first: int, end: int, epoch: int, word: str = "v") -> list[Batch]:
    """Batches of two records each."""
    return [(n, epoch, [f"{word} {n}".encode(), f"{word} {n + 1}".encode()]) for n in range(first, end, 2)]


def compared(capsys, a, b, *options) -> tuple[int, dict]:
    status, events = run_json(capsys, "diff", a, b, *options)
    assert [event["type"] for event in events] == ["partition", "summary"]
    return status, events[0]


@pytest.mark.parametrize("partition", golden_data.partitions())
def test_a_copy_does_not_differ(partition, tmp_path, capsys):
    directory = golden_data.partition_dir(partition)
    status, report = compared(capsys, directory, shutil.copytree(directory, tmp_path / partition))
    assert (status, report["equal"], report["gaps"], report["rewritten"]) == (0, True, [], 0)
    assert report["first_difference"] is report["only_a"] is report["only_b"] is None


def test_segments_indexes_and_the_log_start_may_differ(tmp_path, capsys):
    batches = plain(0, 200, 1)
    a = replica(tmp_path / "a" / "t-0", batches, segment_bytes=1_000)
    b = replica(tmp_path / "b" / "t-0", batches, segment_bytes=5_000)
    first = min(a.glob("*.log"))
    for path in list(a.glob(f"{first.stem}.*")):
        path.unlink()
    status, report = compared(capsys, a, b)
    start = int(min(a.glob("*.log")).stem)
    assert (status, report["equal"], report["start"], report["common_end"]) == (0, True, start, 200)
    assert report["before_b"] == {"first_offset": 0, "last_offset": start - 1, "records": start}
    assert report["common_bytes"]["a"] == report["common_bytes"]["b"] > 0


def test_a_replica_that_lags_lacks_the_end(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", plain(0, 100, 1))
    b = replica(tmp_path / "b" / "t-0", plain(0, 60, 1))
    status, report = compared(capsys, a, b)
    assert (status, report["common_end"], report["first_difference"]) == (1, 60, None)
    assert report["only_a"] == {"first_offset": 60, "last_offset": 99, "records": 40}
    assert report["only_b"] is None
    # The shorter log cuts nothing when it follows; the longer one cuts what the other does not have.
    assert (report["if_b_follows_a"]["truncate_to"], report["if_b_follows_a"]["records_lost"]) == (60, 0)
    assert (report["if_a_follows_b"]["truncate_to"], report["if_a_follows_b"]["records_lost"]) == (60, 40)


def test_of_a_batch_that_is_partly_in_both_only_the_records_after_the_others_end_are_counted(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", plain(0, 100, 1))
    b = replica(tmp_path / "b" / "t-0", [*plain(0, 60, 1), (60, 1, [b"v 60"])])
    _, report = compared(capsys, a, b)
    assert report["only_a"] == {"first_offset": 61, "last_offset": 99, "records": 39}
    # A truncation inside a batch removes the whole batch.
    assert report["if_a_follows_b"]["records_lost"] == 40


def test_EPOCH_08_two_tails_are_explained_by_the_epochs_that_wrote_them(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", [*plain(0, 40, 1), *plain(40, 60, 2, "first")])
    b = replica(tmp_path / "b" / "t-0", [*plain(0, 40, 1), *plain(40, 50, 3, "second")])
    status, report = compared(capsys, a, b)
    assert (status, report["common_end"]) == (1, 40)
    first = report["first_difference"]
    assert first["offset"] == 40
    assert (first["a"]["leader_epoch"], first["b"]["leader_epoch"]) == (2, 3)
    assert (first["a"]["record"]["value"], first["b"]["record"]["value"]) == ("first 40", "second 40")
    assert first["batch_fields"] == ["partition_leader_epoch", "size", "crc"]
    assert first["record_fields"] == ["value_size", "value"]
    assert report["newer_leader"] == "b"
    assert report["only_a"] == {"first_offset": 50, "last_offset": 59, "records": 10}
    assert (report["if_a_follows_b"]["truncate_to"], report["if_a_follows_b"]["records_lost"]) == (40, 20)
    assert not report["if_a_follows_b"]["difference_stays"]
    for side in (first["a"], first["b"]):
        data = Path(side["file"]).read_bytes()[side["position"] :]
        assert model.decode_batches(data)[0].base_offset == 40


def test_EPOCH_09_several_elections_take_several_questions(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", [*plain(0, 20, 1), *plain(20, 30, 3, "x"), *plain(30, 40, 5, "x")])
    b = replica(tmp_path / "b" / "t-0", [*plain(0, 20, 1), *plain(20, 26, 2, "y"), *plain(26, 36, 6, "y")])
    _, report = compared(capsys, a, b)
    assert report["first_difference"]["offset"] == 20
    truncation = report["if_a_follows_b"]
    assert truncation["truncate_to"] == 20
    assert len(truncation["steps"]) > 1
    assert main(["diff", str(a), str(b)]) == 1
    text = capsys.readouterr().out
    assert "first difference: offset 20" in text
    assert 'record value: A "x 20", B "y 20"'
    assert "leader epochs of A: 1 from 0, 3 from 20, 5 from 30" in text
    assert "if A followed B: cut to 20" in text


def test_one_epoch_with_two_contents_is_reported_as_not_explained_by_elections(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", plain(0, 40, 1))
    b = replica(tmp_path / "b" / "t-0", [*plain(0, 20, 1), *plain(20, 40, 1, "w")])
    status, report = compared(capsys, a, b)
    assert (status, report["first_difference"]["offset"], report["newer_leader"]) == (1, 20, None)
    assert report["if_a_follows_b"]["difference_stays"]
    assert main(["diff", str(a), str(b)]) == 1
    assert "no election explains" in capsys.readouterr().out


def test_a_leader_epoch_alone_is_a_difference_though_no_crc_covers_it(tmp_path, capsys):
    a = replica(tmp_path / "a" / "t-0", plain(0, 40, 1))
    b = replica(tmp_path / "b" / "t-0", [*plain(0, 20, 1), *plain(20, 40, 2)])
    status, report = compared(capsys, a, b)
    assert (status, report["first_difference"]["offset"]) == (1, 20)
    assert report["first_difference"]["batch_fields"] == ["partition_leader_epoch"]
    assert report["first_difference"]["record_fields"] == []


def test_gaps_are_a_difference_and_when_cleaning_left_them_a_note(tmp_path, capsys):
    batches = plain(0, 100, 1)
    a = replica(tmp_path / "a" / "t-0", batches)
    b = replica(tmp_path / "b" / "t-0", batches, skip=(10, 12, 40))
    for options, cleaned in (((), False), (("--gaps-are-cleaning",), True)):
        status, report = compared(capsys, a, b, *options)
        assert (status, report["equal"]) == (int(not cleaned), cleaned)
        assert report["gaps"] == [
            {"missing_in": "b", "first_offset": 10, "last_offset": 13, "records": 4, "cleaned": cleaned},
            {"missing_in": "b", "first_offset": 40, "last_offset": 41, "records": 2, "cleaned": cleaned},
        ]


def test_batches_that_cleaning_wrote_anew_are_compared_by_their_records(tmp_path, capsys):
    batches = plain(0, 20, 1)
    a = replica(tmp_path / "a" / "t-0", batches)
    b = tmp_path / "b" / "t-0"
    b.mkdir(parents=True)
    data = b"".join(bytes(encoded(offset, epoch, values, "gzip")) for offset, epoch, values in batches)
    (b / LOG).write_bytes(data)
    status, report = compared(capsys, a, b)
    assert (status, report["equal"], report["rewritten"], report["gaps"]) == (0, True, 10, [])


def test_a_cleaned_and_an_uncleaned_log_of_kafka_hold_the_same(capsys, tmp_path):
    """Kafka's own compacted log against itself cleaned once more: nothing but a gap."""
    directory = golden_data.partition_dir("g-compact-0")
    other = Path(shutil.copytree(directory, tmp_path / "g-compact-0"))
    victim = next(log for log in sorted(other.glob("*.log")) if len(model.decode_batches(log.read_bytes())) > 2)
    batches = model.decode_batches(victim.read_bytes())
    content = victim.read_bytes()
    victim.write_bytes(content[: batches[1].position] + content[batches[2].position :])
    status, report = compared(capsys, directory, other)
    assert (status, report["equal"]) == (0, True)
    assert [gap["missing_in"] for gap in report["gaps"]] == ["b"] * len(report["gaps"])
    assert sum(gap["records"] for gap in report["gaps"]) == len(batches[1].records) > 0


def test_damage_is_a_difference_and_named(tmp_path, capsys):
    a = golden_data.partition_dir("g-none-0")
    b = Path(shutil.copytree(a, tmp_path / "g-none-0"))
    content = bytearray((b / LOG).read_bytes())
    content[3700] ^= 1
    (b / LOG).write_bytes(content)
    status, report = compared(capsys, a, b)
    assert status == 1
    assert len(report["damage"]) == 1 and "position 3541" in report["damage"][0]


def test_two_data_directories_are_compared_partition_by_partition(tmp_path, capsys):
    a = golden_data.data_dir()
    b = Path(shutil.copytree(a, tmp_path / "data"))
    assert main(["diff", str(a), str(b)]) == 0
    assert "0 different" in capsys.readouterr().out
    shutil.rmtree(b / "g-zstd-0")
    shutil.rmtree(b / "g-lz4-0")
    shutil.copytree(a / "g-idempotent-0", b / "g-lz4-0")
    status, events = run_json(capsys, "diff", a, b)
    assert status == 1
    assert {Path(e["a"]).name for e in events[:-1] if not e["equal"]} == {"g-zstd-0", "g-lz4-0"}
    assert events[-1] == {"type": "summary", "partitions": len(events) - 1, "different": 2}


def test_things_that_cannot_be_compared_are_bad_usage(tmp_path, capsys):
    partition = golden_data.partition_dir("g-none-0")
    assert main(["diff", str(partition), str(golden_data.data_dir())]) == 2
    assert main(["diff", str(golden_data.data_dir()), str(tmp_path)]) == 2
    assert main(["diff", str(partition)]) == 2
    assert capsys.readouterr().err.count("kcore") >= 3


@pytest.mark.parametrize("seed", range(12))
def test_random_elections_diverge_where_the_model_does_and_the_truncation_makes_them_equal(seed, tmp_path, capsys):
    rng = random.Random(seed)
    common = plain(0, 2 * rng.randint(1, 20), 1)
    end = common[-1][0] + 2
    tails = []
    for side, epochs in enumerate(rng.sample([(2, 4), (3, 5)], 2)):
        at, tail = end, []
        for epoch in epochs:
            stop = at + 2 * rng.randint(1, 6)
            tail += plain(at, stop, epoch, f"side {side}")
            at = stop
        tails.append(tail)
    a = replica(tmp_path / "a" / "t-0", common + tails[0])
    b = replica(tmp_path / "b" / "t-0", common + tails[1])
    _, report = compared(capsys, a, b)
    assert report["first_difference"]["offset"] == end, f"seed={seed}"
    follower, leader, key = (a, b, "if_a_follows_b") if report["newer_leader"] == "b" else (b, a, "if_b_follows_a")
    with open_log(follower, "a") as log:
        log.truncate_to(report[key]["truncate_to"])
    assert not report[key]["difference_stays"]
    _, report = compared(capsys, follower, leader)
    assert report["first_difference"] is None, f"seed={seed}"
    assert report["only_a"] is None
    entries = LeaderEpochCheckpointFile(str(follower / "leader-epoch-checkpoint")).read()
    assert all(entry.epoch == 1 for entry in entries)
