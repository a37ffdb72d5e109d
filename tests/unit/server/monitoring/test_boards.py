"""The metrics that well-known boards for Grafana ask for are there."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kcore

#: What the panels about Kafka of Strimzi's board strimzi-kafka.json ask for, and the labels that they use.
STRIMZI = {
    "kafka_cluster_partition_atminisr": (),
    "kafka_cluster_partition_replicascount": (),
    "kafka_cluster_partition_underminisr": (),
    "kafka_controller_controllerstats_uncleanleaderelections_total": (),
    "kafka_controller_kafkacontroller_activecontrollercount": (),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (),
    "kafka_log_log_size": ("topic", "partition"),
    "kafka_network_socketserver_networkprocessoravgidle_percent": (),
    "kafka_server_brokertopicmetrics_bytesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_bytesout_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_messagesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("topic",),
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": (),
    "kafka_server_kafkaserver_linux_disk_read_bytes": (),
    "kafka_server_kafkaserver_linux_disk_write_bytes": (),
    "kafka_server_replicamanager_leadercount": (),
    "kafka_server_replicamanager_partitioncount": (),
    "kafka_server_replicamanager_underreplicatedpartitions": (),
    "kafka_server_socket_server_metrics_connection_count": ("listener",),
    "process_open_fds": (),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Name -> the sets of labels with which it is there."""
    path = tmp_path_factory.mktemp("store") / "store"
    settings = {"broker_id": 1, "kcore_monitoring_address": "127.0.0.1:0"}
    with kcore.Broker(store=f"sqlite:{path}", **settings) as broker:
        broker.create_topic("orders")
        broker.produce("orders", b"a book")
        text = urllib.request.urlopen(f"{broker.monitoring_url}/metrics", timeout=60).read().decode()
    labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, []).append(set(sample.labels))
    return labels


@pytest.mark.parametrize("name", STRIMZI)
def test_what_a_board_asks_for_is_there(samples, name):
    assert any(set(STRIMZI[name]) <= labels for labels in samples[name])
