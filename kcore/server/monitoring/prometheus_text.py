"""Metrics as Prometheus reads them, under the names that the JMX exporter gives to Kafka's.

Source: the exporter's example rules for Kafka 2.0 and later (kafka-2_0_0.yml), which boards for Grafana expect, with
Strimzi's addition for percentages.  Format: Prometheus' text exposition, version 0.0.4.

    kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=orders   Count
    kafka_server_brokertopicmetrics_bytesin_total{topic="orders"}

    kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce     99thPercentile, Count
    kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"}
    kafka_network_requestmetrics_totaltimems_count{request="Produce"}

    kafka.log:type=Log,name=Size,topic=orders,partition=0                  Value
    kafka_log_log_size{topic="orders",partition="0"}

Mean, MeanRate, Min and Max have no such name and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kcore.common.metrics import Measured, MetricName, Table, attributes_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNSAFE = re.compile(r"[^a-z0-9_]")
_PERCENTILE = re.compile(r"(\d+)thPercentile")
_PER_SECOND = re.compile(r"(.+)PerSec\w*")
_PERCENT = re.compile(r"(.+)Percent\w*")
_TO_ESCAPE = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


class _Families:
    """The lines of each name: Prometheus wants them together."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def lines(self, name: str, kind: str, mbean: str) -> list[str]:
        """To append to; kind: gauge or counter."""
        lines = self._lines.get(name)
        if lines is None:
            lines = self._lines[name] = [f"# HELP {name} {mbean}\n# TYPE {name} {kind}\n"]
        return lines

    def text(self) -> str:
        return "".join("".join(self._lines[name]) for name in sorted(self._lines))


def prometheus_text(items: Iterable[tuple[MetricName, Measured] | Table]) -> str:
    """What Metrics.measured() yields."""
    families = _Families()
    for item in items:
        if isinstance(item, Table):
            _add_table(families, item)
        else:
            _add(families, *item)
    return families.text()


def _add(families: _Families, metric: MetricName, measured: Measured) -> None:
    name, tags = (metric.group, metric.type_name, metric.name), _with_broker(metric.tags)
    for attribute, value in attributes_of(measured, 1.0).items():
        percentile = _PERCENTILE.fullmatch(attribute)
        if percentile:
            quantile = {"quantile": f"0.{percentile[1]}"}
            families.lines(*_gauge(name)).append(_line(_gauge(name)[0], tags | quantile, value))
        elif attribute == "Count":
            is_rate = _PER_SECOND.fullmatch(metric.name) is not None
            family = _rate(name) if is_rate else _count(name)
            families.lines(*family).append(_line(family[0], tags, value))
        elif attribute == "Value" or (attribute == "OneMinuteRate" and _PERCENT.fullmatch(metric.name)):
            families.lines(*_gauge(name)).append(_line(_gauge(name)[0], tags, value))
        elif not metric.name:
            family = _gauge((metric.group, metric.type_name, attribute))
            families.lines(*family).append(_line(family[0], tags, value))


def _add_table(families: _Families, table: Table) -> None:
    columns = [_rate(column) if table.attribute == "Count" else _gauge(column) for column in table.columns]
    targets = [(families.lines(*family), family[0]) for family in columns]
    for tag_values, values in table.rows:
        labels = _labels(dict(zip(table.tags, tag_values, strict=True)))
        for (lines, name), value in zip(targets, values, strict=True):
            lines.append(f"{name}{labels} {+value}\n")


def _with_broker(tags: Mapping[str, str]) -> dict[str, str]:
    """With a broker's host and port as one label."""
    tags = dict(tags)
    if "brokerHost" in tags and "brokerPort" in tags:
        tags["broker"] = f"{tags.pop('brokerHost')}:{tags.pop('brokerPort')}"
    return tags


# -- names: (of the family, its kind, Kafka's) ----------------------------------------------------------


def _gauge(name: tuple[str, str, str]) -> tuple[str, str, str]:
    percent = _PERCENT.fullmatch(name[2])
    return _family(name, f"{percent[1]}_percent" if percent else name[2], "gauge")


def _rate(name: tuple[str, str, str]) -> tuple[str, str, str]:
    per_second = _PER_SECOND.fullmatch(name[2])
    return _family(name, f"{per_second[1] if per_second else name[2]}_total", "counter")


def _count(name: tuple[str, str, str]) -> tuple[str, str, str]:
    return _family(name, f"{name[2]}_count", "counter")


def _family(name: tuple[str, str, str], last: str, kind: str) -> tuple[str, str, str]:
    group, type_name, of_kafka = name
    return _UNSAFE.sub("_", f"{group}_{type_name}_{last}".lower()), kind, f"{group}:type={type_name},name={of_kafka}"


# -- lines ----------------------------------------------------------------------------------------------


def _line(name: str, tags: Mapping[str, object], value: float) -> str:
    number = float(value)
    return f"{name}{_labels(tags)} {int(number) if number.is_integer() else number!r}\n"


def _labels(tags: Mapping[str, object]) -> str:
    if not tags:
        return ""
    return "{" + ",".join(f'{tag.replace("-", "_")}="{_escaped(str(value))}"' for tag, value in tags.items()) + "}"


def _escaped(value: str) -> str:
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], value) if _TO_ESCAPE.search(value) else value
