import random
import time

import pytest

from kcore.spark.load.latency_histogram import LatencyHistogram
from kcore.spark.load.load_window import SLICES, SteadyClock, Window, WindowRecorder, common_window

SECOND = 1_000_000_000


def test_the_common_window_lasts_from_the_last_start_to_the_first_stop():
    assert common_window([Window(10, 100), Window(30, 90), Window(20, 95)]) == (30, 90)


def test_tasks_that_never_worked_together_have_no_common_window():
    assert common_window([Window(10, 20), Window(30, 40)]).seconds == 0


def test_the_clock_waits_for_the_moment_and_not_less():
    clock = SteadyClock()
    moment = clock.now() + 20_000_000
    clock.wait_until(moment)
    assert clock.now() >= moment
    assert abs(clock.now() - time.time_ns()) < SECOND


def test_a_moment_that_has_passed_is_not_waited_for():
    clock = SteadyClock()
    before = clock.now()
    clock.wait_until(before - 10 * SECOND)
    assert clock.now() - before < SECOND


def test_only_operations_that_ended_inside_count():
    window = Window(1000 * SECOND, 1010 * SECOND)
    recorder = WindowRecorder(window)
    recorder.record(window.start - 1, window.start + 50, 1, 100)  # began in the warm-up
    recorder.record(window.start, window.start + 50, 2, 200)
    recorder.record(window.stop - 50, window.stop - 1, 4, 400)
    recorder.record(window.stop - 50, window.stop, 8, 800)  # ended after it
    recorder.record(window.start - 200, window.start - 100, 16, 1600)
    counted = recorder.within(window)
    assert (counted.window, counted.operations, counted.records, counted.bytes) == (window, 3, 7, 700)
    assert len(counted.latencies) == 3


@pytest.mark.parametrize("seed", range(20))
def test_steps_outside_the_common_window_are_not_counted(seed):
    rng = random.Random(seed)
    own = Window(5 * SECOND, 5 * SECOND + rng.choice([SECOND, 10 * SECOND, 123_456_789, SLICES, 777]))
    length = own.stop - own.start
    cut = Window(own.start + rng.randrange(-length, length), own.stop + rng.randrange(-length, length))
    operations, at = [], own.start - length // 10
    while at < own.stop + length // 10:
        stopped = at + rng.randrange(1, max(length // 50, 2))
        operations.append((at, stopped, rng.randrange(10), rng.randrange(1000)))
        at = stopped
    recorder = WindowRecorder(own)
    for operation in operations:
        recorder.record(*operation)
    counted = recorder.within(cut)
    taken = counted.window
    if not taken.seconds:
        assert counted[1:4] == (0, 0, 0)
        assert min(cut.stop, own.stop) - max(cut.start, own.start) <= 2 * (length // SLICES + 1) + length % SLICES
        return
    assert max(own.start, cut.start) <= taken.start < taken.stop <= min(own.stop, cut.stop)
    # It loses less than two slices.
    assert (
        min(own.stop, cut.stop) - max(own.start, cut.start) - (taken.stop - taken.start)
        <= 2 * (length // SLICES + 1) + length % SLICES
    )
    inside = [operation for operation in operations if taken.start <= operation[1] < taken.stop]
    assert counted.operations == len(inside), f"{seed=}"
    assert counted.records == sum(operation[2] for operation in inside)
    assert counted.bytes == sum(operation[3] for operation in inside)
    expected = LatencyHistogram()
    for started, stopped, *_ in inside:
        expected.record(stopped - started)
    assert (counted.latencies.counts == expected.counts).all()


def test_more_operations_than_are_kept_back_are_all_counted():
    window = Window(0, 100 * SECOND)
    recorder = WindowRecorder(window)
    for at in range(40_000):
        recorder.record(at * 1000, at * 1000 + 500, 1, 7)
    counted = recorder.within(window)
    assert (counted.operations, counted.records, counted.bytes) == (40_000, 40_000, 280_000)
