"""The names, labels and kinds that Prometheus gets; read back with Prometheus' own parser."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kcore.common.meters import Meter, TimeHistogram
from kcore.common.metrics import MetricName, Table, count
from kcore.server.monitoring.prometheus_text import prometheus_text


def samples(*items):
    """[(name, labels, value)], and {family: kind}."""
    families = list(text_string_to_metric_families(prometheus_text(items)))
    kinds = {family.name: family.type for family in families}
    return [(s.name, s.labels, s.value) for family in families for s in family.samples], kinds


@pytest.mark.parametrize(
    ("name", "measured", "expected"),
    [
        (
            MetricName("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", topic="orders"),
            count(7),
            ("kafka_server_brokertopicmetrics_bytesin_total", {"topic": "orders"}, 7),
        ),
        (
            MetricName("kafka.server", "ReplicaManager", "IsrShrinksPerSec"),
            Meter(),
            ("kafka_server_replicamanager_isrshrinks_total", {}, 0),
        ),
        (
            MetricName("kafka.server", "SessionExpireListener", "ZooKeeperDisconnectsPerSec"),
            count(2),
            ("kafka_server_sessionexpirelistener_zookeeperdisconnects_total", {}, 2),
        ),
        (
            MetricName("kafka.controller", "KafkaController", "ActiveControllerCount"),
            1.0,
            ("kafka_controller_kafkacontroller_activecontrollercount", {}, 1),
        ),
        (
            MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", clientId="r-0", topic="t", partition=3),
            12.0,
            ("kafka_server_fetcherlagmetrics_consumerlag", {"clientId": "r-0", "topic": "t", "partition": "3"}, 12),
        ),
        (
            MetricName("kafka.server", "FetcherStats", "BytesPerSec", clientId="r", brokerHost="h", brokerPort=9092),
            count(5),
            ("kafka_server_fetcherstats_bytes_total", {"clientId": "r", "broker": "h:9092"}, 5),
        ),
        (
            MetricName("kafka.controller", "ControllerChannelManager", "QueueSize", **{"broker-id": 1}),
            0.5,
            ("kafka_controller_controllerchannelmanager_queuesize", {"broker_id": "1"}, 0.5),
        ),
        (
            MetricName("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent"),
            0.25,
            ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", {}, 0.25),
        ),
        (
            MetricName("kafka.log", "LogManager", "LogDirectoryOffline", logDirectory='/a "b"\\\n'),
            math.inf,
            ("kafka_log_logmanager_logdirectoryoffline", {"logDirectory": '/a "b"\\\n'}, math.inf),
        ),
    ],
)
def test_a_metric_has_the_name_that_the_jmx_exporter_gives_to_kafkas(name, measured, expected):
    (sample,), kinds = samples((name, measured))
    assert sample == expected
    (kind,) = kinds.values()
    assert kind == ("counter" if expected[0].endswith("_total") else "gauge")


def test_a_histogram_has_its_count_and_quantiles():
    times = TimeHistogram()
    for _ in range(3):
        times.update(2_000_000)
    metric = MetricName("kafka.network", "RequestMetrics", "TotalTimeMs", request="Produce")
    got, kinds = samples((metric, times))
    name = "kafka_network_requestmetrics_totaltimems"
    assert kinds == {name: "gauge", f"{name}_count": "counter"}
    quantiles = {labels["quantile"]: value for sample, labels, value in got if sample == name}
    assert set(quantiles) == {"0.50", "0.75", "0.95", "0.98", "0.99", "0.999"}
    assert all(2 <= value <= 2.5 for value in quantiles.values())
    # The parser adds _total to a counter's name, as OpenMetrics wants it; Prometheus does not.
    assert f'{name}_count{{request="Produce"}} 3\n' in prometheus_text([(metric, times)])


def test_a_table_is_what_its_metrics_are_one_by_one():
    columns = [("kafka.log", "Log", "Size"), ("kafka.cluster", "Partition", "UnderReplicated")]
    rows = [(("a.b", 0), (17, False)), (('q"', 1), (0, True))]
    one_by_one = [
        (MetricName(*column, topic=topic, partition=partition), float(value))
        for (topic, partition), values in rows
        for column, value in zip(columns, values, strict=True)
    ]
    assert samples(Table(columns, "Value", ("topic", "partition"), rows)) == samples(*one_by_one)
    counts = Table([("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec")], "Count", ("topic",), [(("t",), (9,))])
    assert samples(counts) == (
        [("kafka_server_brokertopicmetrics_messagesin_total", {"topic": "t"}, 9)],
        {"kafka_server_brokertopicmetrics_messagesin": "counter"},
    )


def test_the_lines_of_a_name_are_together_whatever_the_order_of_the_metrics():
    name = "BytesInPerSec"
    text = prometheus_text(
        [
            (MetricName("kafka.server", "BrokerTopicMetrics", name, topic="b"), count(1)),
            (MetricName("kafka.server", "ReplicaManager", "LeaderCount"), 1.0),
            (MetricName("kafka.server", "BrokerTopicMetrics", name), count(2)),
        ]
    )
    assert text == (
        "# HELP kafka_server_brokertopicmetrics_bytesin_total kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec\n"
        "# TYPE kafka_server_brokertopicmetrics_bytesin_total counter\n"
        'kafka_server_brokertopicmetrics_bytesin_total{topic="b"} 1\n'
        "kafka_server_brokertopicmetrics_bytesin_total 2\n"
        "# HELP kafka_server_replicamanager_leadercount kafka.server:type=ReplicaManager,name=LeaderCount\n"
        "# TYPE kafka_server_replicamanager_leadercount gauge\n"
        "kafka_server_replicamanager_leadercount 1\n"
    )
