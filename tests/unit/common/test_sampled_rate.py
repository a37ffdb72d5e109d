"""SampledRate against sums over all that was recorded."""

import random

import pytest

from kcore.common.sampled_rate import SampledRate


def test_a_simple_rate_counts_the_time_since_the_first_window_and_at_least_one_window():
    rate = SampledRate(10, 1000, 0)
    rate.record(500, 0)
    assert rate.simple_rate(0) == rate.simple_rate(1000) == 500
    assert rate.simple_rate(2000) == 250
    rate.record(500, 4000)
    assert rate.simple_rate(4000) == 250


def test_a_rate_takes_the_windows_that_have_not_been_yet_for_empty_ones():
    rate = SampledRate(11, 1000, 0)
    rate.record(5000, 0)
    assert (rate.rate(0), rate.window_size_ms(0)) == (500, 10_000)
    assert (rate.rate(500), rate.window_size_ms(500)) == (5000 / 10.5, 10_500)
    assert rate.window_size_ms(10_999) == 10_999


def test_what_is_older_than_all_windows_counts_no_more():
    rate = SampledRate(3, 1000, 0)
    for now_ms in (0, 1000, 2000):
        rate.record(1, now_ms)
    assert [rate.total(now_ms) for now_ms in (2999, 3000, 4000, 5000, 10**6)] == [3, 2, 1, 0, 0]


def test_a_record_can_be_taken_back():
    rate = SampledRate(3, 1000, 0)
    rate.record(70, 10)
    rate.record(-70, 10)
    assert rate.total(10) == 0


@pytest.mark.parametrize("seed", range(10))
def test_the_total_is_that_of_the_last_windows(seed):
    rng = random.Random(seed)
    rate, now_ms, windows = SampledRate(5, 100, 0), 0, [[0, 0]]
    for _ in range(300):
        now_ms += rng.choice((0, 1, 30, 99, 100, 250))
        amount = rng.randrange(100)
        windows = [window for window in windows if now_ms - window[0] < 500] or [[now_ms, 0]]
        if now_ms - windows[-1][0] >= 100:
            windows = [*windows, [now_ms, 0]][-5:]
        windows[-1][1] += amount
        rate.record(amount, now_ms)
        assert rate.total(now_ms) == sum(total for _, total in windows), f"seed={seed}"
