import io
import json
import os
import re
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

import kcore
from kcore.spark.load import load_test
from kcore.spark.load.load_options import LoadOptions
from kcore.spark.load.load_test import LoadFailed, LoadResult, LoadRun, check_slots, measure, run
from kcore.spark.load.load_workloads import WORKLOADS, Append, Task, batches_of_task, remove_data_dirs, values_of
from tests.unit.spark.data import make_records, write_partition

APPEND = LoadOptions("append", (2,), ("/nowhere",), seconds=0.2, warm_up=0.05)


@pytest.fixture
def soon(monkeypatch):
    """Threads hand out their clocks at once; Spark takes a second."""
    monkeypatch.setattr(load_test, "START_DELAY_NS", 20_000_000)


MS = 1_000_000


class SetClock:
    """A clock that moves only by wait_until(); a task may wake up late."""

    def __init__(self, ahead_ms=0, wakes_late_ms=0):
        self.moment = (5_000_000 + ahead_ms) * MS
        self.wakes_late_ms = wakes_late_ms

    def now(self):
        return self.moment

    def wait_until(self, moment):
        self.moment = max(self.moment, moment) + self.wakes_late_ms * MS


def measure_together(options, makes, clocks=None):
    """As measure() runs in the tasks of a stage, here in threads: a row for each of these workloads."""
    count = len(makes)
    texts, all_there = [""] * count, threading.Barrier(count, timeout=60)
    rows = [None] * count

    def gather(number, text):
        texts[number] = text
        all_there.wait()
        all_texts = list(texts)
        all_there.wait()
        return all_texts

    def work(number):
        task = Task(options, number, count, "run")
        if clocks is not None:
            task.clock = clocks[number]
        rows[number] = measure(task, makes[number], lambda text: gather(number, text))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    common = {"run_id": "run", "config": options.config(), "spark_version": "4", "master": "threads"}
    return LoadRun(tuple({**row, **common} for row in rows), "driver")


class Steps:
    """A workload of steps of a millisecond that records its steps, and fails where its arguments say so."""

    def __init__(self, task, *, fail_after=None, fail_at_close=False, first_step_ms=1):
        self.clock = task.clock
        self.fail_after = fail_after
        self.fail_at_close = fail_at_close
        self.first_step_ms = first_step_ms
        self.done = []

    def step(self, recorder):
        started = self.clock.now()
        if self.fail_after is not None and len(self.done) >= self.fail_after:
            raise OSError("no space left")
        self.clock.moment += (1 if self.done else self.first_step_ms) * MS
        recorder.record(started, self.clock.now(), 3, 100)
        self.done.append((started, self.clock.now()))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.fail_at_close:
            raise OSError("cannot be closed")


class Made:
    """Makes a workload, and keeps it for the test."""

    def __init__(self, **kinds):
        self.kinds = kinds

    def __call__(self, task):
        self.steps = Steps(task, **self.kinds)
        return self.steps


def in_window(result, steps):
    start, stop = result.rows[0]["window_start_ns"], result.rows[0]["window_stop_ns"]
    return [(a, b) for a, b in steps.done if start <= b < stop]


def test_only_what_ends_in_the_window_of_all_is_counted():
    makes = [Made(), Made()]
    result = measure_together(APPEND, makes, [SetClock(), SetClock(ahead_ms=-300)])
    assert result.seconds == pytest.approx(APPEND.seconds)
    for row, made in zip(result.rows, makes, strict=True):
        inside = in_window(result, made.steps)
        assert len(inside) == 200  # the first began in the warm-up, the last ends when the window does
        assert len(made.steps.done) == 250  # with the warm-up
        assert (row["operations"], row["records"], row["bytes"]) == (200, 3 * 200, 100 * 200)
        assert sum(row["latency_counts"]) == 200
        assert row["start_ns"] == row["window_start_ns"] == row["began_ns"] + 50 * MS
    assert result.errors == []
    assert result.start_skew_ns == 0
    assert result.notes == []
    assert result.latencies.percentile(50).ns == pytest.approx(MS, rel=1 / 64)


def test_a_task_that_wakes_up_after_the_warm_up_narrows_the_window_for_all():
    makes = [Made(), Made()]
    result = measure_together(APPEND, makes, [SetClock(), SetClock(wakes_late_ms=150)])
    assert result.start_skew_ns == 150 * MS
    assert result.seconds == pytest.approx(0.1)
    assert [row["operations"] for row in result.rows] == [100, 99]  # the late one has none that began before
    assert any("worked together for 0.1 s only, of 0.2 s" in note for note in result.notes)


def test_a_task_that_ends_early_ends_the_window_for_all():
    healthy, failing = Made(), Made(fail_after=150)
    result = measure_together(APPEND, [healthy, failing], [SetClock(), SetClock()])
    assert result.seconds == pytest.approx(0.1)
    assert [row["operations"] for row in result.rows] == [100, 100]
    assert [row["stop_ns"] - row["start_ns"] for row in result.rows] == [200 * MS, 100 * MS]
    assert result.rows[1]["errors"] == 100
    (error,) = result.errors
    assert "task 1" in error and "OSError: no space left (and 99 more)" in error
    assert any("worked together for" in note for note in result.notes)


def test_errors_now_and_then_are_counted_and_the_task_goes_on():
    class Flaky(Steps):
        def step(self, recorder):
            super().step(recorder)
            if len(self.done) % 5 == 0:
                raise OSError("now and then")

    result = measure_together(APPEND, [Flaky], [SetClock()])
    assert (result.total("operations"), result.total("errors")) == (200, 50)
    assert result.seconds == pytest.approx(APPEND.seconds)


def test_when_one_task_cannot_begin_none_does_and_the_reason_is_reported():
    def cannot(task):
        raise FileNotFoundError("no such directory: /data")

    waiting = Made()
    result = measure_together(APPEND, [waiting, cannot], [SetClock(), SetClock()])
    assert waiting.steps.done == []
    assert result.seconds == result.rate("records") == 0
    assert [row["errors"] for row in result.rows] == [0, 1]
    assert "no such directory: /data" in result.errors[0]


def test_an_error_at_the_end_is_reported_and_the_figures_stay():
    result = measure_together(APPEND, [Made(fail_at_close=True)], [SetClock()])
    assert "cannot be closed" in result.errors[0]
    assert result.total("operations") == 200


def test_an_operation_longer_than_the_window_is_not_half_counted():
    result = measure_together(APPEND, [Made(first_step_ms=500)], [SetClock()])
    assert result.total("operations") == 0
    assert any("--seconds is too short" in note for note in result.notes)


def test_the_summary_adds_the_tasks_up():
    result = measure_together(APPEND, [Made(), Made()], [SetClock(), SetClock(wakes_late_ms=2)])
    total = json.loads(json.dumps(result.summary()))
    assert total["records"] == sum(row["records"] for row in result.rows)
    assert total["records_per_s"] == pytest.approx(total["records"] / result.seconds)
    assert len(result.latencies) == total["operations"]
    assert total["latency_ns"]["p50"] == pytest.approx(MS, rel=1 / 64)
    assert total["start_skew_ns"] == 2 * MS
    assert total["cpu_share"] == pytest.approx(total["cpu_s"] / 0.4)


def test_a_note_is_added_when_driver_and_tasks_share_cores():
    result = measure_together(APPEND, [Made()], [SetClock()])
    here = LoadRun(result.rows, result.rows[0]["host"])
    assert any("not for absolute figures" in note for note in here.notes)
    assert not any("not for absolute figures" in note for note in result.notes)
    crowd = LoadRun(tuple({**result.rows[0], "cores": 1, "task": n} for n in range(3)), "driver")
    assert any("3 tasks shared the 1 cores" in note for note in crowd.notes)


def test_a_note_is_added_when_the_broker_is_on_these_cores():
    row = measure_together(APPEND, [Made()], [SetClock()]).rows[0]
    for server, is_noted in (("localhost:9092", True), ("far.example:9092", False), (f"{row['host']}:1", True)):
        result = LoadRun(({**row, "config": {**row["config"], "bootstrap_servers": server}},), "driver")
        assert any("the broker ran on these cores" in note for note in result.notes) == is_noted


def test_while_it_waits_it_prints_the_elapsed_time(monkeypatch):
    monkeypatch.setattr(load_test, "_TICK_S", 0.01)
    monkeypatch.setattr(load_test.Progress, "_LINE_SECONDS", 0.0)
    output, gone_on = io.StringIO(), threading.Event()

    def collect():
        while output.getvalue().count("\n") < 3:
            gone_on.wait(0.01)
        return [{"task": 0}]

    assert load_test._wait_for(collect, "append, 1 task", 13.5, output) == [{"task": 0}]
    assert re.match(r"load append, 1 task: \d+ of 14 s\n", output.getvalue())


def test_work_that_takes_longer_than_expected_is_not_shown_as_more_than_all(monkeypatch):
    monkeypatch.setattr(load_test, "_TICK_S", 0.01)
    monkeypatch.setattr(load_test.Progress, "_LINE_SECONDS", 0.0)
    output, started = io.StringIO(), time.monotonic()

    def collect():
        while time.monotonic() < started + 2.1 or output.getvalue().count("\n") < 3:
            time.sleep(0.01)
        return []

    load_test._wait_for(collect, "append", 1.0, output)
    shown = [tuple(map(int, re.findall(r": (\d+) of (\d+) s", line)[0])) for line in output.getvalue().splitlines()]
    assert max(done for done, _ in shown) == 1 and {expected for _, expected in shown} == {1}


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError("of the work's own")])
def test_what_the_work_raises_is_raised(error):
    def collect():
        raise error

    with pytest.raises(type(error), match=str(error)):
        load_test._wait_for(collect, "append", 1, None)


# -- the workloads, without Spark -------------------------------------------------------------------------------------


def test_values_have_the_requested_size():
    assert {len(value) for size in (1, 30, 100, 5000) for value in values_of(size, 7)} == {1, 30, 100, 5000}


@pytest.mark.parametrize("record_size", [1, 100, 1024, 50_000])
def test_batches_are_no_larger_than_the_limit_unless_one_record_is(record_size):
    options = LoadOptions("append", (1,), ("/a",), record_size=record_size)
    for batch, records in batches_of_task(options, 3):
        assert len(kcore.MemoryRecords(batch).batches) == 1
        assert sum(1 for _ in kcore.MemoryRecords(batch).records()) == records
        assert len(batch) <= options.batch_size or records == 1


def load(options, count=1):
    result = measure_together(options, [WORKLOADS[options.mode]] * count)
    assert result.errors == []
    return result


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_append_writes_logs_that_are_sound(soon, tmp_path, codec):
    options = LoadOptions("append", (1,), (str(tmp_path),), seconds=3, warm_up=0.1, codec=codec, keep=True)
    result = load(options)
    (data_dir,) = tmp_path.iterdir()
    with kcore.open_log(data_dir / "load-0") as log:
        count = sum(1 for _ in log.records())
        # Old segments are deleted during the run, so that it does not fill the disk.
        assert count == log.log_end_offset - log.log_start_offset > 0
        assert log.log_end_offset >= result.total("records") > 0
        assert {batch.compression for batch in log.batches()} == {codec}


def test_append_leaves_nothing_behind(soon, tmp_path):
    load(LoadOptions("append", (1,), (str(tmp_path),), seconds=0.1, warm_up=0))
    assert list(tmp_path.iterdir()) == []


def test_append_spreads_its_logs_over_the_paths_and_bounds_their_size(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    options = LoadOptions("append", (2,), tuple(map(str, paths)), log_size=1 << 20)
    tasks = [Append(Task(options, number, 2, "run")) for number in range(2)]
    for path, append in zip(paths, tasks, strict=True):
        with append:
            for _ in range(500):  # 8 MB
                append.step(NothingRecorded())
            assert append._log.size <= 1.5 * options.log_size
            assert append._log.log_start_offset > 0
            assert [entry.name for entry in path.iterdir()] == [os.path.basename(append.data_dir)]


def test_append_waits_while_deleted_segments_have_not_left_the_disk(tmp_path):
    options = LoadOptions("append", (1,), (str(tmp_path),), log_size=1 << 20)
    with Append(Task(options, 0, 1, "run")) as append:
        waiting = os.path.join(append.data_dir, "load-0", f"{7:020}.log.deleted")
        with open(waiting, "wb") as file:
            file.truncate(100 << 20)
        left = []

        def disk():
            time.sleep(0.3)
            left.append(True)
            os.remove(waiting)

        thread = threading.Thread(target=disk)
        thread.start()
        for _ in range(100):  # 1.6 MB
            append.step(NothingRecorded())
        assert left
        thread.join()


def test_what_killed_tasks_leave_goes_and_nothing_else(tmp_path):
    for name in ("kcore-load-run1-0-abc", "kcore-load-run1-1-def", "kcore-load-run2-0-abc", "orders-0"):
        (tmp_path / name / "load-0").mkdir(parents=True)
    remove_data_dirs([str(tmp_path), str(tmp_path / "missing")], "run1")
    assert {entry.name for entry in tmp_path.iterdir()} == {"kcore-load-run2-0-abc", "orders-0"}


class NothingRecorded:
    def record(self, *operation):
        pass


class Recorded:
    def __init__(self):
        self.records = self.bytes = 0

    def record(self, started, stopped, records, size):
        assert started <= stopped
        self.records += records
        self.bytes += size


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("logs")
    for partition, count in ((0, 400), (1, 300), (2, 500)):
        write_partition(data_dir, make_records("orders", partition, count))
    return data_dir


def size_of(data_dir):
    return sum(path.stat().st_size for path in data_dir.glob("*/*.log"))


@pytest.mark.parametrize("mode", ["read", "verify"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_task_goes_over_all_records_starting_at_a_place_of_its_own(logs, mode, count):
    options = LoadOptions(mode, (count,), (str(logs),), fetch_size=4096)
    places = set()
    for number in range(count):
        task = Task(options, number, count, "run")
        with WORKLOADS[mode](task) as workload:
            start = (workload._at, getattr(workload, "_offset", 0))
            places.add(start)
            # Once to the start of a log, then exactly once over all of them.
            while workload._at == start[0]:
                workload.step(NothingRecorded())
            at, seen = workload._at, Recorded()
            left = False
            while workload._at != at or not left:
                workload.step(seen)
                left = left or workload._at != at
            assert (seen.records, seen.bytes) == (1200, size_of(logs))
    assert len(places) == count


def test_verify_counts_damage_as_an_error_and_goes_on(soon, tmp_path):
    write_partition(tmp_path, make_records("orders", 0, 400))
    segment = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    result = measure_together(
        LoadOptions("verify", (1,), (str(tmp_path),), seconds=3, warm_up=0.1), [WORKLOADS["verify"]]
    )
    assert result.total("records") > 0
    assert segment.name in result.errors[0] and "position" in result.errors[0]


@pytest.mark.parametrize("mode", ["read", "verify"])
def test_a_directory_without_logs_is_an_error(soon, tmp_path, mode):
    result = measure_together(LoadOptions(mode, (1,), (str(tmp_path),)), [WORKLOADS[mode]])
    assert str(tmp_path) in result.errors[0]


def test_produce_and_fetch_move_records_through_a_broker(soon):
    with kcore.Broker() as broker:
        broker.create_topic("load", partitions=3)
        common = {"bootstrap_servers": broker.bootstrap_servers, "topic": "load", "seconds": 3, "warm_up": 0.1}
        # A short queue: else two busy threads fill it and hardly let the broker, which is in this process, work it off.
        queue = {"queue.buffering.max.messages": "500"}
        produced = load(LoadOptions("produce", (2,), codec="lz4", client_settings=queue, **common), 2)
        assert produced.total("records") == produced.total("operations") > 0
        assert produced.total("bytes") == 100 * produced.total("records")
        there = sum(broker.log("load", number).log_end_offset for number in range(3))
        assert there >= produced.total("records")

        fetched = load(LoadOptions("fetch", (2,), **common), 2)
        assert fetched.total("bytes") == 100 * fetched.total("records") > 0
        assert len(fetched.latencies) == fetched.total("operations")

        broker.create_topic("empty")
        empty = measure_together(LoadOptions("fetch", (1,), **{**common, "topic": "empty"}), [WORKLOADS["fetch"]])
        assert "no records" in empty.errors[0]
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert consumer.committed([TopicPartition("load", 0)], 60)[0].offset < 0
        consumer.close()


def test_a_broker_that_goes_away_does_not_keep_produce_from_ending(soon, monkeypatch):
    settings = {"queue.buffering.max.messages": "500", "log_level": "0"}
    with kcore.Broker() as broker:
        broker.create_topic("load")
        servers = broker.bootstrap_servers
        options = LoadOptions(
            "produce", (1,), bootstrap_servers=servers, topic="load", seconds=1, client_settings=settings
        )

        def made_before_it_goes(task):
            workload = WORKLOADS["produce"](task)
            broker.stop()
            monkeypatch.setattr("kcore.spark.load.load_workloads._BROKER_TIMEOUT_S", 2)
            return workload

        result = measure_together(options, [made_before_it_goes])
    assert "500 records were not acknowledged within 2 s" in result.errors[0]


@pytest.mark.parametrize("mode", ["produce", "fetch"])
def test_a_broker_that_is_not_there_is_named(soon, monkeypatch, mode):
    monkeypatch.setattr("kcore.spark.load.load_workloads._BROKER_TIMEOUT_S", 0.5)
    options = LoadOptions(mode, (1,), bootstrap_servers="127.0.0.1:1", topic="t", client_settings={"log_level": "0"})
    result = measure_together(options, [WORKLOADS[mode]])
    assert "no answer from 127.0.0.1:1" in result.errors[0]


@pytest.mark.parametrize("mode", ["produce", "fetch"])
def test_without_confluent_kafka_the_error_names_it(soon, monkeypatch, mode):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    options = LoadOptions(mode, (1,), bootstrap_servers="127.0.0.1:1", topic="t")
    result = measure_together(options, [WORKLOADS[mode]])
    assert "pip install 'kcore[spark]'" in result.errors[0]


# -- on Spark ---------------------------------------------------------------------------------------------------------


def test_a_sweep_on_spark_gives_a_row_for_each_task(spark, tmp_path, capfd):
    options = LoadOptions("append", (1, 2), (str(tmp_path),), seconds=3, warm_up=0.2)
    result = run(spark, options)
    assert [run_.tasks for run_ in result.runs] == [1, 2]
    for load_run in result.runs:
        assert load_run.errors == []
        assert load_run.rate("records") > 0
        assert load_run.seconds <= 3
    rows = result.dataframe.orderBy("tasks", "task").collect()
    assert [(row["tasks"], row["task"]) for row in rows] == [(1, 0), (2, 0), (2, 1)]
    assert len({row["pid"] for row in rows[1:]}) == 2
    for row in rows:
        assert row["mode"] == "append"
        assert row["records"] > 0
        assert row["operations"] == sum(row["latency_counts"])
        assert row["cpu_s"] > 0
        assert row["config"]["batch_size"] == "16384"
        assert row["versions"]["kcore"] == kcore.__version__
        assert row["spark_version"] == spark.version
        assert row["master"] == "local[2]"
        assert row["error"] is None
    assert any("not for absolute figures" in note for note in result.runs[0].notes)
    lines = [json.loads(line) for line in result.json_lines()]
    assert [line["type"] for line in lines] == ["task", "run", "task", "task", "run"]
    assert lines[0]["latency_counts"] == list(rows[0]["latency_counts"])
    assert list(tmp_path.iterdir()) == []


def test_more_tasks_than_slots_are_refused_at_once(spark):
    with pytest.raises(LoadFailed, match=r"--tasks 3: local\[2\] runs only 2 at a time"):
        check_slots(spark.sparkContext, 3)


def test_a_missing_directory_is_reported_at_once(spark, tmp_path):
    with pytest.raises(LoadFailed, match="nowhere: there is no such directory"):
        run(spark, LoadOptions("append", tasks=(1,), paths=(str(tmp_path / "nowhere"),), seconds=1))


def test_results_without_a_session_have_no_dataframe():
    with pytest.raises(LoadFailed, match="no session"):
        LoadResult(()).dataframe  # noqa: B018
