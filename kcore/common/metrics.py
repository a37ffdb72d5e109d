"""Metrics: the registry of what a broker measures, under the names that Kafka gives to it (METRIC-01).

A metric has the name of Kafka's MBean and that MBean's attributes:

    kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=orders    Count, MeanRate
    kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce      Count, Min, Max, Mean, 50thPercentile, ...
    kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions         Value

Nothing runs between two readings: code on a hot path adds to an integer (kcore/common/meters.pyx), everything else is a
function that is called when the metrics are read.  So there are no one-minute rates: MeanRate is that since the start,
and rates() gives the rates between two readings.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcore.common.meters import Meter, TimeHistogram
from kcore.common.time import Time

logger = logging.getLogger(__name__)

#: The attributes of one metric.
Attributes = dict[str, float]
#: What is measured, as a source yields it: (name, an object that counts, or the value of a gauge).
Measured = Meter | TimeHistogram | float | Attributes
Source = Callable[[], Iterable["tuple[MetricName, Measured] | Table"]]

#: Attributes of a TimeHistogram, with Kafka's names.
_PERCENTILES = {
    "50thPercentile": 0.5,
    "75thPercentile": 0.75,
    "95thPercentile": 0.95,
    "98thPercentile": 0.98,
    "99thPercentile": 0.99,
    "999thPercentile": 0.999,
}
#: Values of tags that need no quotes.  Source: Sanitizer.jmxSanitize, Kafka.
_PLAIN = re.compile(r"[\w\-%. \t]*", re.ASCII)


class MetricName(str):
    """The name of Kafka's MBean, and its parts: MetricName("kafka.server", "ReplicaManager", "LeaderCount").

    A few have no name, but many attributes: kafka.server:type=socket-server-metrics.  Tags come in the order of the
    arguments.  In the string a tag's value is quoted if it has characters that JMX reserves; `tags` has it as it is.
    """

    __slots__ = ("group", "name", "tags", "type_name")

    group: str
    type_name: str
    name: str
    tags: Mapping[str, str]

    def __new__(cls, group: str, type_name: str, name: str, **tags: object) -> MetricName:
        values = {tag: str(value) for tag, value in tags.items()}
        parts = [f"{group}:type={type_name},name={name}" if name else f"{group}:type={type_name}"]
        parts += [f"{tag}={_tag_value(value)}" for tag, value in values.items()]
        self = super().__new__(cls, ",".join(parts))
        self.group, self.type_name, self.name, self.tags = group, type_name, name, values
        return self


class Table(NamedTuple):
    """The same metrics of each of many things, as of all partitions: a name for each would take most of the time of a
    reading.

    columns: (group, type, name) of each metric.  attribute: of all of them, "Value" for gauges or "Count".
    rows: (the values of the tags, the values in the order of columns).
    """

    columns: Sequence[tuple[str, str, str]]
    attribute: str
    tags: Sequence[str]
    rows: Iterable[tuple[Sequence[object], Sequence[int]]]


def one_by_one(items: Iterable[tuple[MetricName, Measured] | Table]) -> Iterator[tuple[MetricName, Measured]]:
    """With a name for each metric of a table."""
    for item in items:
        if not isinstance(item, Table):
            yield item
            continue
        measured = count if item.attribute == "Count" else float
        for tag_values, values in item.rows:
            tags = dict(zip(item.tags, tag_values, strict=True))
            for (group, type_name, name), value in zip(item.columns, values, strict=True):
                yield MetricName(group, type_name, name, **tags), measured(value)


def _tag_value(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = re.sub(r'([\\"*?])', r"\\\1", value).replace("\n", "\\n")
    return f'"{escaped}"'


class Metrics:
    """The registry of one broker.  Thread-safe.

    Sources are added while the broker starts; read() calls all of them on the caller's thread.  A source that raises is
    logged and left out: the others are still read.
    """

    def __init__(self, time: Time) -> None:
        self._time = time
        self._start_ms = time.hi_res_clock_ms()
        self._sources: list[Source] = []

    def add_source(self, source: Source) -> None:
        """source(): the metrics of a part of the broker; called at each read()."""
        self._sources.append(source)

    def read(self) -> dict[MetricName, Attributes]:
        """All metrics, sorted by name: {name: {attribute: value}}.  Times are ms, rates per second."""
        elapsed_s = max(self._time.hi_res_clock_ms() - self._start_ms, 1.0) / 1000
        values: dict[MetricName, Attributes] = {}
        for name, measured in one_by_one(self.measured()):
            values[name] = attributes_of(measured, elapsed_s)
        return dict(sorted(values.items()))

    def measured(self) -> Iterator[tuple[MetricName, Measured] | Table]:
        """What the sources yield, in their order."""
        for source in list(self._sources):
            try:
                yield from source()
            except Exception:
                logger.exception("metrics: %r failed", source)


def attributes_of(measured: Measured, elapsed_s: float) -> Attributes:
    """elapsed_s: since the counting began, for MeanRate."""
    if isinstance(measured, Meter):
        return {"Count": measured.count, "MeanRate": measured.count / elapsed_s}
    if isinstance(measured, TimeHistogram):
        count = measured.count
        smallest, largest, mean, *percentiles = measured.milliseconds(*_PERCENTILES.values())
        return {
            "Count": count,
            "MeanRate": count / elapsed_s,
            "Min": smallest,
            "Max": largest,
            "Mean": mean,
            **dict(zip(_PERCENTILES, percentiles, strict=True)),
        }
    if isinstance(measured, dict):
        return measured
    return {"Value": measured}


def count(value: int) -> Meter:
    """A Meter that has counted up to value, for a source that computes a sum."""
    meter = Meter()
    meter.mark(value)
    return meter


def rates(before: Mapping[str, Attributes], after: Mapping[str, Attributes], seconds: float) -> dict[str, float]:
    """What happened per second between two readings, for each metric with a Count.

    One that the first reading does not have began between the two.  One whose Count has gone down (the broker was
    restarted) is counted from 0.  Raises ValueError unless seconds is positive.
    """
    if seconds <= 0:
        raise ValueError(f"{seconds} seconds between the readings")
    result = {}
    for name, attributes in after.items():
        if "Count" in attributes:
            start = before.get(name, {}).get("Count", 0.0)
            end = attributes["Count"]
            result[name] = (end - start if end >= start else end) / seconds
    return result
