import numpy as np
import pytest

from kcore.spark.load.latency_histogram import (
    BUCKETS,
    HIGHEST_NS,
    LatencyHistogram,
    bucket_bounds,
    bucket_of,
    buckets_of,
)

PERCENTS = (0, 1, 50, 90, 99, 99.9, 99.99, 100)


def test_buckets_follow_each_other_without_gap_or_overlap():
    greatest = -1
    for bucket in range(BUCKETS):
        least, following = bucket_bounds(bucket)
        assert least == greatest + 1, bucket
        assert bucket_of(least) == bucket_of(following) == bucket
        greatest = following
    assert greatest == HIGHEST_NS


def test_no_bucket_is_wider_than_a_thirty_second_of_its_latencies():
    for bucket in range(BUCKETS):
        least, greatest = bucket_bounds(bucket)
        assert greatest - least <= least / 32


def test_values_outside_the_range_count_in_the_outermost_buckets():
    assert bucket_of(-5) == 0
    assert bucket_of(10 * HIGHEST_NS) == BUCKETS - 1


def latencies(rng, count):
    """Of all magnitudes, many alike."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.integers(0, 200, count)
    if kind == 1:
        return rng.integers(0, HIGHEST_NS, count)
    if kind == 2:
        return np.exp(rng.normal(np.log(50_000), 2, count)).astype(np.int64)
    return np.repeat(rng.integers(0, 10**9, 3), count)[:count]


@pytest.mark.parametrize("seed", range(40))
def test_percentiles_are_numpys_within_the_error_that_is_stated(seed):
    rng = np.random.default_rng(seed)
    values = latencies(rng, int(rng.integers(1, 3000)))
    histogram = LatencyHistogram()
    histogram.record_all(values)
    assert len(histogram) == len(values)
    for percent in PERCENTS:
        expected = np.percentile(values, percent, method="inverted_cdf")
        ns, error = histogram.percentile(percent)
        assert abs(ns - expected) <= error, f"{seed=} {percent=}"
        assert error <= expected / 64


@pytest.mark.parametrize("seed", range(5))
def test_one_at_a_time_is_the_same_as_all_at_once(seed):
    values = latencies(np.random.default_rng(seed), 500)
    one, all_at_once = LatencyHistogram(), LatencyHistogram()
    for value in values:
        one.record(int(value))
    all_at_once.record_all(values)
    assert (one.counts == all_at_once.counts).all()
    assert [bucket_of(int(value)) for value in values] == buckets_of(values).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_merged_histograms_are_the_histogram_of_all(seed):
    rng = np.random.default_rng(seed)
    parts = [latencies(rng, 300) for _ in range(4)]
    merged, whole = LatencyHistogram(), LatencyHistogram()
    for part in parts:
        histogram = LatencyHistogram()
        histogram.record_all(part)
        # As it comes from a task: a list of numbers.
        merged.merge(LatencyHistogram(histogram.counts.tolist()))
    whole.record_all(np.concatenate(parts))
    assert (merged.counts == whole.counts).all()


def test_an_empty_histogram_has_no_percentiles():
    assert LatencyHistogram().percentile(50) is None


def test_a_percentile_beyond_100_is_refused():
    with pytest.raises(ValueError, match="101"):
        LatencyHistogram().percentile(101)


def test_counts_of_another_number_of_buckets_are_refused():
    with pytest.raises(ValueError, match="buckets"):
        LatencyHistogram([1, 2, 3])
