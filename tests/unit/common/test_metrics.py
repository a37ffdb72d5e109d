"""Meters that lose no count between threads, histograms, and the registry that reads them."""

import random
import sys
import threading

import pytest

from kcore.common.meters import Meter, RequestMeters, TimeHistogram, TopicMeters
from kcore.common.metrics import MetricName, Metrics, rates
from kcore.common.time import MockTime

COUNTS = [name for name in dir(TopicMeters) if not name.startswith("_") and not callable(getattr(TopicMeters(), name))]


def test_METRIC_01_a_metric_has_the_name_of_kafkas_mbean():
    assert MetricName("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="a.b_c-d") == (
        "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=a.b_c-d"
    )
    # As JMX shows a directory; the characters that an ObjectName reserves are escaped inside quotes.
    assert MetricName("kafka.log", "LogManager", "LogDirectoryOffline", logDirectory='/d"*') == (
        'kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory="/d\\"\\*"'
    )


def test_counts_of_several_threads_are_all_there():
    meters, meter, times = TopicMeters(), Meter(), TimeHistogram()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work():
        for _ in range(20_000):
            meters.produced(3, 100)
            meters.read(7, -1)
            meter.mark()
            times.update(5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (meters.produce_requests, meters.messages_in, meters.bytes_in) == (80_000, 240_000, 8_000_000)
    assert (meters.bytes_out, meter.count, times.count) == (560_000, 80_000, 80_000)


def test_the_sum_of_two_topics_has_every_count_of_both():
    one, other = TopicMeters(), TopicMeters()
    for meters in (one, other):
        meters.produced(2, 10)
        meters.produce_refused(True, 5)
        meters.read(3, -1)
        meters.read(13, 2)
        meters.read_failed(True)
        meters.replicated_in(11, True)
        meters.converted(4, 6)
    counts = {name: getattr(one, name) for name in COUNTS}
    assert len(counts) == 13 and all(counts.values())
    one.add(other)
    assert {name: getattr(one, name) for name in COUNTS} == {name: 2 * value for name, value in counts.items()}


@pytest.mark.parametrize("seed", range(5))
def test_a_percentile_is_at_most_a_quarter_above_the_true_one(seed):
    rng = random.Random(seed)
    values = sorted(int(rng.lognormvariate(10, 3)) for _ in range(rng.randrange(1, 2000)))
    times = TimeHistogram()
    for value in values:
        times.update(value)
    percentiles = [0.01, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0]
    smallest, largest, mean, *measured = times.milliseconds(*percentiles)
    assert (smallest, largest) == (values[0] / 1e6, values[-1] / 1e6)
    assert mean == pytest.approx(sum(values) / len(values) / 1e6)
    for percentile, ms in zip(percentiles, measured, strict=True):
        rank = max(1, -int(-percentile * len(values) // 1))
        true = values[rank - 1]
        assert true <= ms * 1e6 + 1e-6 and ms * 1e6 <= max(true * 1.25, true + 1) + 1e-6, (seed, percentile)


@pytest.mark.parametrize("ns", [-5, 0, 1, 3, 4, 7, 8, 2**62, 2**63 - 1])
def test_a_histogram_takes_any_time(ns):
    times = TimeHistogram()
    times.update(ns)
    assert times.count == 1
    assert times.milliseconds(0.5) == [max(ns, 0) / 1e6] * 4


def test_bytes_that_were_read_for_a_request_that_waits_are_not_sent():
    meters = TopicMeters()
    meters.read(100, -1)
    meters.read(7, 0)
    assert (meters.fetch_requests, meters.bytes_out, meters.replication_bytes_out) == (2, 100, 7)
    meters.not_sent(100, -1)
    meters.not_sent(7, 0)
    assert (meters.fetch_requests, meters.bytes_out, meters.replication_bytes_out) == (2, 0, 0)


def test_the_read_of_a_move_between_directories_is_no_request():
    meters = TopicMeters()
    meters.read(100, -3)
    assert (meters.fetch_requests, meters.bytes_out, meters.replication_bytes_out) == (0, 0, 0)


def test_requests_are_counted_by_version():
    meters = RequestMeters()
    for version in (0, 9, 63, 64, -1):
        meters.begin_request(version)
    meters.end(meters.begin_request(9))
    assert (meters.requests(), meters.count) == ({0: 1, 9: 2, 63: 1}, 1)


def test_what_nothing_was_counted_in_is_zero():
    assert TimeHistogram().milliseconds(0.5, 0.99) == [0.0] * 5


def test_begin_and_end_count_the_time_between_them():
    times = TimeHistogram()
    begin = times.begin()
    times.end(begin - 3_000_000)
    smallest, largest, *_ = times.milliseconds()
    assert smallest == largest >= 3.0


def test_a_name_has_its_parts_and_a_tag_its_value_without_quotes():
    name = MetricName("kafka.log", "LogManager", "LogDirectoryOffline", logDirectory='/d"*', partition=3)
    assert (name.group, name.type_name, name.name) == ("kafka.log", "LogManager", "LogDirectoryOffline")
    assert name.tags == {"logDirectory": '/d"*', "partition": "3"}
    assert {name: 1}[str(name)] == 1


def test_a_reading_has_counts_rates_times_and_values_by_name():
    time = MockTime()
    metrics = Metrics(time)
    meter, times = Meter(), TimeHistogram()
    size = [3.0]
    metrics.add_source(lambda: [(MetricName("b", "T", "PerSec"), meter), (MetricName("c", "T", "Size"), size[0])])
    metrics.add_source(lambda: [(MetricName("a", "T", "TimeMs"), times)])
    meter.mark(10)
    times.update(2_000_000)
    time.sleep(4000)
    size[0] = 5
    values = metrics.read()
    assert list(values) == ["a:type=T,name=TimeMs", "b:type=T,name=PerSec", "c:type=T,name=Size"]
    assert values["b:type=T,name=PerSec"] == {"Count": 10, "MeanRate": 2.5}
    assert values["c:type=T,name=Size"] == {"Value": 5.0}
    assert {key: values["a:type=T,name=TimeMs"][key] for key in ("Count", "Min", "Max", "Mean", "99thPercentile")} == {
        "Count": 1,
        "Min": 2.0,
        "Max": 2.0,
        "Mean": 2.0,
        "99thPercentile": 2.0,
    }


def test_a_source_that_fails_is_logged_and_the_others_are_read(caplog):
    metrics = Metrics(MockTime())
    metrics.add_source(lambda: [(MetricName("x", "T", "Broken"), 1 // 0)])
    metrics.add_source(lambda: [(MetricName("x", "T", "Whole"), 1.0)])
    assert metrics.read() == {"x:type=T,name=Whole": {"Value": 1.0}}
    assert "ZeroDivisionError" in caplog.text


def test_rates_are_those_between_two_readings():
    before = {"a": {"Count": 10.0}, "restarted": {"Count": 50.0}, "gauge": {"Value": 1.0}}
    after = {"a": {"Count": 30.0}, "new": {"Count": 4.0}, "restarted": {"Count": 6.0}, "gauge": {"Value": 2.0}}
    assert rates(before, after, 2.0) == {"a": 10.0, "new": 2.0, "restarted": 3.0}
    with pytest.raises(ValueError):
        rates(before, after, 0)
