"""The jobs find what the commands find, however the work is cut into tasks."""

import json
import random
import shutil
from pathlib import Path

import pytest

from kcore.errors import CorruptFile, DirectoryInUse
from kcore.log.directory_lock import DirectoryLock
from kcore.log.open_log import open_log
from kcore.record.memory_records import MemoryRecords
from kcore.spark import jobs
from kcore.spark.jobs import directory_jobs, job_runner, recompression
from kcore.spark.jobs.job_runner import Sized, balanced
from kcore.tools.main import main
from tests import golden_data
from tests.unit.inspect.test_gap_checks import idempotent, plain_topic, without_segment
from tests.unit.spark.data import make_records, write_partition
from tests.unit.tools.command import LOG, contents, flip


@pytest.fixture
def data(tmp_path) -> Path:
    """A copy of Kafka's data directory, to be changed."""
    return Path(shutil.copytree(golden_data.data_dir(), tmp_path / "data"))


def json_lines(capsys, *arguments):
    main([*map(str, arguments)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def as_dicts(rows):
    findings = [finding.asDict() for row in rows for finding in row.findings]
    return sorted(findings, key=lambda f: (f["file"], f["problem"]))


def assert_verified_as_by_the_command(spark, capsys, path, **options):
    *problems, summary = json_lines(capsys, "verify", "--json", "-q", path)
    rows = jobs.verify(spark, str(path), quiet=True, **options).collect()
    assert as_dicts(rows) == sorted(problems, key=lambda f: (f["file"], f["problem"]))
    for name in ("files", "bytes", "batches", "records", "damaged", "warnings", "gaps"):
        assert sum(row[name] for row in rows) == summary[name], name
    return rows


def test_a_sound_directory_is_verified_as_by_the_command(spark, capsys):
    rows = assert_verified_as_by_the_command(spark, capsys, golden_data.data_dir())
    assert sum(row.damaged + row.warnings for row in rows) == 0
    segments = [row for row in rows if row.file]
    assert {Path(row.file).parent.name for row in segments} >= set(golden_data.partitions())


@pytest.mark.parametrize("max_task_bytes", [1, 2000, 1 << 30])
def test_damage_is_found_however_the_segments_are_spread(spark, capsys, data, max_task_bytes):
    rng = random.Random(1)
    for path in sorted(data.rglob("*")):
        hit = path.suffix in (".log", ".index", ".txnindex", ".snapshot") and rng.random() < 0.6
        if hit and path.stat().st_size:
            flip(path, rng.randrange(path.stat().st_size))
    (data / "g-segments-0" / f"{30:020}.index").unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\nno-such 0 5\n")
    rows = assert_verified_as_by_the_command(spark, capsys, data, max_task_bytes=max_task_bytes)
    assert sum(row.damaged for row in rows) > 10


@pytest.mark.parametrize("max_task_bytes", [1, 1 << 30])
def test_transactions_across_segments_are_checked_when_the_partition_is_cut(spark, capsys, data, max_task_bytes):
    """The transaction indexes and snapshots swapped among partitions: what they say then contradicts the batches."""
    for suffix in (".txnindex", ".snapshot"):
        files = [path for path in sorted(data.rglob(f"*{suffix}")) if path.stat().st_size]
        contents_of = [path.read_bytes() for path in files]
        for path, content in zip(files, contents_of[1:] + contents_of[:1], strict=True):
            path.write_bytes(content)
    rows = assert_verified_as_by_the_command(spark, capsys, data, max_task_bytes=max_task_bytes)
    assert any(finding.file.endswith((".txnindex", ".snapshot")) for row in rows for finding in row.findings)


@pytest.mark.parametrize("max_task_bytes", [1, 5000, 1 << 30])
def test_gaps_are_judged_as_by_the_command_when_the_partition_is_cut(spark, capsys, tmp_path, max_task_bytes):
    """Missing segments, and gaps that only producers' batches in other segments explain or prove to be losses."""
    data = tmp_path / "data"
    without_segment(plain_topic(data / "plain-0"), 40)
    without_segment(plain_topic(data / "cleaned-0"), 60)
    (data / "cleaner-offset-checkpoint").write_text("0\n1\ncleaned 0 80\n")
    for name, gap, lost, producers in (
        ("explained", (40, 44), False, 1),
        ("proved", (30, 50), True, 3),
        ("inside", (90, 94), True, 2),
        ("seam", (72, 80), False, 1),
    ):
        idempotent(data / f"{name}-0", gap=gap, lost=lost, producers=producers)
    rows = assert_verified_as_by_the_command(spark, capsys, data, max_task_bytes=max_task_bytes)
    kinds_by_partition = {Path(f.file).parent.name: f.type for row in rows for f in row.findings if f.kind == "gap"}
    kinds_by_partition["cleaned-0"] = kinds_by_partition.pop("data")  # its one finding names the partition's directory
    kinds = {"plain-0": "damage", "cleaned-0": "gap", "explained-0": "warning", "seam-0": "warning"}
    assert kinds_by_partition == kinds | {"proved-0": "damage", "inside-0": "damage"}
    rows = jobs.verify(spark, str(data), compacted=True, max_task_bytes=max_task_bytes, quiet=True).collect()
    assert sum(row.damaged + row.warnings for row in rows) == 0 and sum(row.gaps for row in rows) == 6


def test_a_path_that_holds_no_log_is_an_error_of_one_line(spark, tmp_path):
    for job in (jobs.verify, jobs.reindex):
        with pytest.raises(FileNotFoundError):
            job(spark, str(tmp_path / "missing"), quiet=True)
        with pytest.raises(CorruptFile, match="neither a partition directory nor one that holds some"):
            job(spark, str(tmp_path), quiet=True)
        with pytest.raises(ValueError, match="no path"):
            job(spark)


def test_reindex_writes_what_the_command_would(spark, capsys, data, tmp_path):
    for name in (f"{30:020}.index", f"{60:020}.timeindex"):
        (data / "g-segments-0" / name).unlink()
    flip(next((data / "g-txn-0").glob("*.txnindex")), 20)
    flip(data / "g-zstd-0" / LOG, 80)
    twin = Path(shutil.copytree(data, tmp_path / "twin"))
    before = contents(data)
    planned = jobs.reindex(spark, str(data), mode="dry-run", quiet=True).collect()
    assert contents(data) == before and {row.done for row in planned} >= {"would write", "left", "refused"}
    done = jobs.reindex(spark, str(data), quiet=True).collect()
    events = json_lines(capsys, "reindex", "--json", "-q", twin)
    assert contents(data) == contents(twin)
    expected = {(event["file"].replace("/twin/", "/data/"), event["status"], event["done"]) for event in events}
    assert {(row.file, row.status, row.done) for row in done} == expected
    assert [row.problem for row in done if row.done == "refused"]
    checked = jobs.reindex(spark, str(data), mode="check", quiet=True).collect()
    assert not [row for row in checked if row.status in ("contradicts", "missing")]


@pytest.mark.parametrize("mode", ["dry_run", "Check", "", None])
def test_a_misspelt_mode_of_reindex_writes_nothing(spark, data, mode):
    (data / "g-segments-0" / f"{30:020}.index").unlink()
    before = contents(data)
    with pytest.raises(ValueError, match="expected 'write', 'check' or 'dry-run'"):
        jobs.reindex(spark, str(data), mode=mode, quiet=True)
    assert contents(data) == before


def test_a_directory_in_use_is_not_reindexed(spark, data):
    lock = DirectoryLock(str(data))
    try:
        with pytest.raises(DirectoryInUse):
            jobs.reindex(spark, str(data), quiet=True)
    finally:
        lock.release()


def test_two_directories_differ_where_the_command_reports_it(spark, capsys, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    for n in range(4):
        write_partition(a, make_records("t", n, 300))
    shutil.copytree(a, b)
    shutil.rmtree(b / "t-3")
    for file in (b / "t-1").iterdir():
        file.unlink()
    write_partition(b, make_records("t", 1, 200) + make_records("t", 1, 300, seed=1)[200:])
    last = sorted((b / "t-2").glob("*.log"))[-1]
    for file in (b / "t-2").glob(f"{last.stem}.*"):
        file.unlink()
    rows = {row.partition: row for row in jobs.diff(spark, str(a), str(b), quiet=True).collect()}
    assert [rows[f"t-{n}"].equal for n in range(4)] == [True, False, False, False]
    assert rows["t-1"].first_difference == 200 and rows["t-1"].common_end == 200
    assert rows["t-2"].first_difference is None and rows["t-2"].records_only_a == 300 - int(last.stem)
    assert rows["t-3"].b is None and rows["t-3"].start is None
    *events, _ = json_lines(capsys, "diff", "--json", "-q", a, b)
    assert [json.loads(rows[f"t-{n}"].detail) for n in range(3)] == events[:3]


def test_tasks_are_even_and_as_many_as_can_run(spark):
    pieces = [Sized(size, size) for size in (5, 90, 10, 40, 30, 25)]
    tasks = balanced(pieces, 2, target=1000)
    assert [task.size for task in tasks] == [100, 100]
    assert sorted(work for task in tasks for work in task.work) == [5, 10, 25, 30, 40, 90]
    assert len(balanced(pieces, 2, target=50)) == 4
    assert len(balanced(pieces[:1], 8)) == 1 and balanced([], 2) == []


def test_progress_is_printed_on_stderr_and_the_callers_job_group_stays(spark, monkeypatch, capsys, data):
    monkeypatch.setattr(job_runner.Progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(job_runner, "_TICK_SECONDS", 0.001)
    spark.sparkContext.setJobGroup("mine", "my job")
    jobs.verify(spark, str(data))
    captured = capsys.readouterr()
    assert "verify: " in captured.err and not captured.out
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"


# -- recompress -------------------------------------------------------------------------------------------------------


def batches_of(directory):
    return [
        batch
        for path in sorted(directory.glob("*.log"))
        for batch in MemoryRecords(path.read_bytes(), source=str(path)).batches
    ]


HEADER_FIELDS = [
    *(
        "base_offset",
        "last_offset",
        "leader_epoch",
        "magic",
        "timestamp_type",
        "is_transactional",
        "is_control",
        "count",
    ),
    *("delete_horizon_ms", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"),
]


def assert_same_but_for_the_codec(before, after, codec):
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert [getattr(old, name) for name in HEADER_FIELDS] == [getattr(new, name) for name in HEADER_FIELDS]
        assert [[*record] for record in old.records()] == [[*record] for record in new.records()]
        changes = old.magic == 2 and not old.is_control and old.count
        assert new.compression == (codec if changes else old.compression)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_directory_of_kafkas_is_the_same_in_another_codec(spark, capsys, data, tmp_path, codec):
    for old in ("v0-lz4", "v1-gzip", "v1-none"):
        (data / f"{old}-0").mkdir()
        shutil.copy(golden_data.golden_file(f"old-formats/{old}.log"), data / f"{old}-0" / LOG)
    before = contents(data)
    output = tmp_path / "output"
    rows = jobs.recompress(spark, str(data), str(output), codec=codec, quiet=True).collect()
    assert contents(data) == before
    partitions = sorted(path.name for path in data.iterdir() if path.is_dir())
    assert sorted(path.name for path in output.iterdir() if path.is_dir()) == partitions
    for name in partitions:
        assert_same_but_for_the_codec(batches_of(data / name), batches_of(output / name), codec)
    # (The old files go from offset 24 to 30.)
    verified = json_lines(capsys, "verify", "--json", "-q", "--compacted", output)
    assert {event["type"] for event in verified} == {"gap", "summary"}
    assert verified[-1]["damaged"] == verified[-1]["warnings"] == 0
    made = (".log", ".index", ".timeindex")
    others = {name: content for name, content in before.items() if not name.endswith(made)}
    assert {name: content for name, content in contents(output).items() if not name.endswith(made)} == others
    assert sum(row.bytes_after for row in rows) == sum(path.stat().st_size for path in output.rglob("*.log"))
    assert {row.output for row in rows} == {str(path) for path in output.rglob("*.log")}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_level_is_obeyed_and_a_partition_may_come_alone(spark, tmp_path):
    rows = make_records("t", 0, 2000)
    write_partition(
        tmp_path, [row._replace(value=(row.value or b"x") * 20) for row in rows], segment_bytes=1 << 20, per_batch=100
    )
    source = tmp_path / "t-0"
    sizes = []
    for level in (1, 19):
        output = tmp_path / f"level-{level}"
        results = jobs.recompress(spark, str(source), str(output), codec="zstd", level=level, quiet=True).collect()
        assert_same_but_for_the_codec(batches_of(source), batches_of(output), "zstd")
        assert sum(row.recompressed for row in results) == sum(row.batches for row in results) == 20
        sizes.append(sum(row.bytes_after for row in results))
    assert sizes[1] < sizes[0] < sum(row.bytes_before for row in results)
    again = jobs.recompress(spark, str(output), str(tmp_path / "again"), codec="zstd", quiet=True).collect()
    assert sum(row.recompressed for row in again) == 0
    assert [batch.crc for batch in batches_of(tmp_path / "again")] == [batch.crc for batch in batches_of(output)]


def test_a_segment_that_outgrows_its_bound_becomes_several(spark, capsys, tmp_path):
    rows = [row._replace(value=bytes(1000)) for row in make_records("t", 0, 3000)]
    write_partition(tmp_path, rows, per_batch=100, segment_bytes=1 << 30, codecs=("zstd",))
    source, output = tmp_path / "t-0", tmp_path / "out"
    (row,) = jobs.recompress(spark, str(source), str(output), codec="none", segment_bytes=1 << 20, quiet=True).collect()
    assert row.segments == len(list(output.glob("*.log"))) > 1
    assert_same_but_for_the_codec(batches_of(source), batches_of(output), "none")
    assert json_lines(capsys, "verify", "--json", "-q", output)[-1]["damaged"] == 0


def test_nothing_is_left_where_recompressing_fails(spark, data, tmp_path):
    output = tmp_path / "output"
    for codec, level, message in (
        ("zst", None, "did you mean zstd"),
        ("snappy", 3, "no levels"),
        ("gzip", 77, "gzip has no level 77: they go from -1 to 9"),
        ("lz4", 99, "lz4 has no level 99: they go from 0 to 17"),
    ):
        with pytest.raises(ValueError, match=message):
            jobs.recompress(spark, str(data), str(output), codec=codec, level=level, quiet=True)
    flip(data / "g-none-0" / LOG, 100)
    with pytest.raises(CorruptFile, match=r"g-none-0.*position 0: .*CRC-32C"):
        jobs.recompress(spark, str(data), str(output), codec="lz4", quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    output.mkdir()
    with pytest.raises(FileExistsError):
        jobs.recompress(spark, str(data), str(output), codec="lz4", quiet=True)
    lock = DirectoryLock(str(data))
    try:
        with pytest.raises(DirectoryInUse):
            jobs.recompress(spark, str(data), str(tmp_path / "other"), codec="lz4", quiet=True)
    finally:
        lock.release()


# -- compaction statistics --------------------------------------------------------------------------------------------


def statistics_by_hand(directory):
    """With open_log and a dict."""
    with open_log(str(directory)) as log:
        everything = list(log.records(isolation="read_uncommitted"))
        committed = list(log.records(isolation="read_committed"))
    last = {record.key: record for record in committed if record.key is not None}
    size = sum(len(record.key or b"") + len(record.value or b"") for record in everything)
    live = sum(len(record.key or b"") + len(record.value or b"") for record in last.values())
    return {
        "records": len(everything),
        "keys": len(last),
        "deleted_keys": sum(record.value is None for record in last.values()),
        "tombstones": sum(record.value is None for record in committed),
        "without_key": sum(record.key is None for record in committed),
        "aborted": len(everything) - len(committed),
        "dead": len(everything) - len(last),
        "bytes": size,
        "dead_bytes": size - live,
    }


def test_statistics_of_compaction_are_those_of_a_dict(spark, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    names = [n for n in golden_data.partitions() if "open" not in n]  # of an open transaction nobody knows the end
    for name in names:
        shutil.copytree(golden_data.partition_dir(name), data / name)
    write_partition(data, make_records("mixed", 0, 3000), segment_bytes=20_000, codecs=("none", "lz4", "zstd"))
    (data / "empty-0").mkdir()
    (data / "empty-0" / LOG).touch()
    rows = {Path(row.directory).name: row for row in jobs.compaction_statistics(spark, str(data), quiet=True).collect()}
    assert set(rows) == {*names, "mixed-0", "empty-0"}
    for name, row in rows.items():
        expected = statistics_by_hand(data / name)
        assert {key: row[key] for key in expected} == expected, name
        assert row.dead_ratio == (row.dead / row.records if row.records else 0.0)
    assert rows["mixed-0"].keys == 18 and rows["mixed-0"].without_key > 900
    assert sum(row.aborted for row in rows.values()) > 0


def test_statistics_of_a_damaged_log_are_refused_with_the_place(spark, data):
    flip(data / "g-none-0" / LOG, 100)
    with pytest.raises(Exception, match=r"CorruptFile: .*g-none-0.*position 0"):
        jobs.compaction_statistics(spark, str(data), quiet=True)


# -- what changes meanwhile -------------------------------------------------------------------------------------------


def test_a_segment_that_goes_between_plan_and_task_is_a_finding(spark, tmp_path, monkeypatch):
    """As retention takes it from a directory in use."""
    write_partition(tmp_path, make_records("t", 0, 2000))
    first = sorted((tmp_path / "t-0").glob("*.log"))[0]

    def removed_before(*arguments, **options):
        first.unlink()
        return run_tasks(*arguments, **options)

    run_tasks = job_runner.run_tasks
    monkeypatch.setattr(directory_jobs, "run_tasks", removed_before)
    rows = jobs.verify(spark, str(tmp_path / "t-0"), max_task_bytes=1, quiet=True).collect()
    findings = [finding for row in rows for finding in row.findings if finding.file == str(first)]
    assert any("No such file" in finding.problem for finding in findings)
    assert sum(row.records for row in rows) == 2000 - int(sorted((tmp_path / "t-0").glob("*.log"))[0].stem)


def test_a_segment_that_is_recompressed_twice_is_there_once(tmp_path):
    """A task that is tried again, or runs twice: each works in a directory of its own."""
    write_partition(tmp_path, make_records("t", 0, 2000), segment_bytes=1 << 20)
    attempts, target = tmp_path / "attempts", tmp_path / "target"
    attempts.mkdir()
    target.mkdir()
    settings = recompression._Settings(4, None, 1 << 30, 4096, str(attempts))
    segment = recompression._Segment(str(tmp_path / "t-0"), 0, str(target))
    dead = attempts / "of-a-task-that-was-killed"
    dead.mkdir()
    (dead / LOG).write_bytes(b"half of it")
    first = recompression._recompress_segments(settings, [segment])
    once = contents(target)
    assert recompression._recompress_segments(settings, [segment]) == first
    assert contents(target) == once and sorted(attempts.iterdir()) == [dead]
    assert_same_but_for_the_codec(batches_of(tmp_path / "t-0"), batches_of(target), "zstd")
