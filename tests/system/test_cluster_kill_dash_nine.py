"""Three `kcore serve` processes with one store: killed and paused at random, and restarted in turn, under verifying
clients.

`python -m tests.system.kill_everything` does the former for as long as one wants, also over a ZooKeeper server.
"""

import os
import random
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("confluent_kafka")

from tests.system import kill_everything
from tests.system.broker_processes import BROKERS, DEADLINE_S, BrokerProcesses
from tests.system.kill_everything import PARTITIONS, TOPIC
from tests.system.partition_history import PartitionHistory
from tests.system.verifying_clients import VerifyingProducer

#: A session that outlives pauses of the machine: of brokers that stop in order.
LONG_MS = 60_000
#: Each does one to three things to the brokers and the store.
ROUNDS = 6 if os.environ.get("KCORE_LONG") else 3
SEED = random.randrange(1 << 32) if os.environ.get("KCORE_RANDOM") else 16


@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost_or_written_twice_whichever_broker_is_killed(tmp_path):
    summary = kill_everything.run(tmp_path, "sqlite", SEED, lambda summary: summary.rounds < ROUNDS)
    assert summary.counts["records acknowledged"] > 0


@pytest.mark.timeout(600)
def test_a_rolling_restart_refuses_the_producer_nothing(tmp_path):
    processes = BrokerProcesses(tmp_path, topic=TOPIC, partitions=PARTITIONS, session_ms=LONG_MS)
    histories = [PartitionHistory(f"{TOPIC}-{number}") for number in range(PARTITIONS)]
    try:
        processes.start_all()
        kill_everything.create_topic(processes.bootstrap_servers)
        producer = VerifyingProducer(processes.bootstrap_servers, "producer", TOPIC, histories, "none")
        producer.start()
        try:
            for number in BROKERS:
                processes.terminate(number)
                # Its leaders have moved already.
                assert all(state.leader not in (number, -1) for state in processes.states()), processes.report()
                processes.start(number)
                processes.await_serving(number)
                processes.await_whole_isr()
        finally:
            producer.stop()
        waiting = producer.flush(DEADLINE_S)
        assert not waiting and not producer.refused and producer.crash is None
        processes.stop_all()
        kill_everything.check_logs(processes, histories)
    finally:
        processes.close()


def test_kcore_serve_with_a_store_names_the_missing_option(tmp_path):
    def serve(*options):
        command = [sys.executable, "-m", "kcore.tools.main", "serve", "--port", "0", "--data", str(tmp_path / "d")]
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=200)

    no_id = serve("--store", f"sqlite:{tmp_path / 's.db'}")
    assert no_id.returncode == 2 and "--id" in no_id.stderr
    no_store = serve("--store", "etcd:x", "--id", "1")
    assert no_store.returncode == 2 and "sqlite:FILE" in no_store.stderr


def test_the_hints_of_a_broker_of_a_cluster_say_how_to_start_the_next(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "kcore.tools.main", "serve", "--id", "4", "--port", "0", "--hints"]
        + ["--store", f"sqlite:{tmp_path / 's.db'}", "--data", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        process.stdout.readline()
        hint = process.stdout.readline()
        assert f"serve --id 5 --port {port + 1} --data {tmp_path / 'd'}-5 --store sqlite:{tmp_path / 's.db'}" in hint
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free again
