"""The outputs of three commands that the README shows are those of a run."""

import re

import confluent_kafka
import pytest

import kcore
from kcore.tools.main import main
from tests.pages import ROOT
from tests.terminal import is_like


def shown(command):
    """(The command line without its comment, the lines that the README shows below it.)"""
    text = (ROOT / "README.md").read_text()
    line, output = re.search(rf"^    \$ (kcore {command}.*)\n((?:    (?!\$).*\n)*)", text, re.M).groups()
    return line.partition(" # ")[0].split()[1:], [printed[4:] + "\n" for printed in output.splitlines()]


def run(words, capsys):
    main(words)
    return capsys.readouterr().out.splitlines(keepends=True)


def missing(lines, printed):
    return [line for line in lines if not any(is_like(line, other) for other in printed)]


@pytest.fixture
def cluster():
    """Broker 2 has died with 12 replicas; the group billing has three records to read."""
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", partitions=11)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing"}
        with confluent_kafka.Consumer(settings) as consumer:
            consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 0)], asynchronous=False)
        for _ in range(3):
            cluster.produce("orders", "a book", partition=0)
        cluster.kill(2)
        cluster.wait_until_led("orders")
        yield cluster


def test_the_doctor_says_what_the_readme_shows(cluster, capsys):
    command, lines = shown("doctor")
    printed = run([*command, "--bootstrap", cluster.bootstrap_servers], capsys)
    assert len(lines) == 2 and missing(lines, printed) == []


def test_verify_and_repair_print_what_the_readme_shows(tmp_path, capsys):
    with kcore.Broker(tmp_path / "kafka", broker_id=1) as broker:
        broker.create_topic("orders")
        for value in ("a book", "a lamp", "a pen"):
            broker.produce("orders", value)
    with open(tmp_path / "kafka/orders-0/00000000000000000000.log", "r+b") as file:
        file.seek(74 + 70)
        file.write(b"\xff")
    for name, number in (("verify", 2), ("repair", 1)):
        words, lines = shown(name)
        printed = run([word.replace("/var/lib", str(tmp_path)) for word in words], capsys)
        assert len(lines) == number
        assert missing(lines, [line.replace(str(tmp_path), "/var/lib") for line in printed]) == []
