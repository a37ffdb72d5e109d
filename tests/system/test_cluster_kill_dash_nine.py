"""Three `kcore serve` processes with one store: brokers are killed at random under a verifying producer.

KCORE_LONG=1 makes it minutes instead of seconds.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

import kcore
from kcore.inspect.replica_diff import compare
from kcore.metadata import znodes
from kcore.metadata.open_store import open_store

confluent_kafka = pytest.importorskip("confluent_kafka")

DEADLINE_S = 120
SESSION_TIMEOUT_MS = 3000
PARTITIONS = 4
TOPIC = "orders"
KILLS = 40 if os.environ.get("KCORE_LONG") else 3
#: Records that a producer has sent and no broker has answered.
MAX_WAITING = 20_000


def await_true(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Processes:
    """Brokers 0, 1, 2 as processes; each keeps its port."""

    def __init__(self, directory):
        self.directory = directory
        self.running = {}
        self.ports = {}
        self.history = []
        self.store = open_store(f"sqlite:{directory / 'cluster.db'}")

    def start(self, number, *more_settings):
        """Returns at once; serving() waits."""
        settings = [
            *more_settings,
            f"zookeeper.session.timeout.ms={SESSION_TIMEOUT_MS}",
            "default.replication.factor=3",
            "controlled.shutdown.retry.backoff.ms=200",
            "offsets.topic.num.partitions=1",
        ]
        command = [sys.executable, "-m", "kcore.tools.main", "serve", "--id", str(number)]
        command += ["--store", f"sqlite:{self.directory / 'cluster.db'}", "--data", str(self.directory / str(number))]
        command += ["--port", str(self.ports.get(number, 0))]
        for setting in settings:
            command += ["-o", setting]
        self._note(f"start {number}")
        with open(self.directory / f"{number}.err", "a") as log:
            self.running[number] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def serving(self, number):
        line = self.running[number].stdout.readline()
        assert line.startswith("kcore: serving"), line + (self.directory / f"{number}.err").read_text()[-4000:]
        self.ports[number] = int(line.rsplit(":", 1)[1])
        self._note(f"{number} serves")

    def kill(self, number):
        self._note(f"kill {number}")
        process = self.running.pop(number)
        process.kill()
        process.communicate()

    def _note(self, event):
        self.history.append(f"{time.monotonic():.1f} {event}")

    def report(self):
        """What a failed test prints: the last kills, the states in the store, what each broker explains and logs."""
        lines = ["", *self.history[-40:], f"{time.monotonic():.1f} now; controller {self.controller()}"]
        for partition in range(PARTITIONS):
            lines.append(f"{TOPIC}-{partition}: {self.state(partition)}")
            for number in self.running:
                command = [sys.executable, "-m", "kcore.tools.main", "explain", "isr", TOPIC, str(partition)]
                command += ["--data", str(self.directory / str(number))]
                explained = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
                lines.append(f"-- broker {number}: {explained.stdout}{explained.stderr[-1000:]}")
        for number in range(3):
            lines += [f"-- log of broker {number}", (self.directory / f"{number}.err").read_text()[-4000:]]
        return "\n".join(lines)

    def stop_all(self):
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for number, process in list(self.running.items()):
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, (self.directory / f"{number}.err").read_text()[-4000:]
            del self.running[number]

    def close(self):
        for number in list(self.running):
            self.kill(number)
        self.store.close()

    def state(self, partition):
        node = self.store.get(znodes.partition_state(TOPIC, partition))
        return znodes.PartitionStateZNode.decode(node.data) if node is not None else None

    def controller(self):
        node = self.store.get(znodes.CONTROLLER)
        return znodes.ControllerZNode.decode(node.data).broker_id if node is not None else None


@pytest.fixture
def processes(tmp_path):
    processes = Processes(tmp_path)
    yield processes
    processes.close()


class VerifyingProducer:
    """Idempotent, acks=all; values are numbers, and `acknowledged` has those that were acknowledged."""

    def __init__(self, servers):
        self.acknowledged = []
        self.refused = []
        self._stopped = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 0,  # none: how long a partition may be without a leader is up to the kills
                "log_level": 2,
            }
        )
        self.count = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stopped.is_set():
            for _ in range(20 if len(self._producer) < MAX_WAITING else 0):
                self._producer.produce(
                    TOPIC, b"%d" % self.count, partition=self.count % PARTITIONS, on_delivery=self._delivered
                )
                self.count += 1
            self._producer.poll(0.02)

    def _delivered(self, error, message):
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))
        else:
            self.refused.append(str(error))

    def stop(self):
        self._stopped.set()
        self._thread.join()
        return self._producer.flush(DEADLINE_S)


def await_whole_isr(processes):
    try:
        await_true(lambda: all(len(processes.state(n).isr) == 3 for n in range(PARTITIONS)), "the ISR is not whole")
    except AssertionError as error:
        pytest.fail(str(error) + processes.report())


def start_all(processes):
    for number in range(3):
        processes.start(number)
    for number in range(3):
        processes.serving(number)
    return ",".join(f"127.0.0.1:{port}" for port in processes.ports.values())


def create_topic(servers):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    await_true(lambda: len(admin.list_topics(timeout=60).brokers) == 3, "the brokers never knew each other")
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        future.result(DEADLINE_S)


@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost_or_written_twice_whichever_broker_is_killed(processes):
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    servers = start_all(processes)
    create_topic(servers)
    producer = VerifyingProducer(servers)
    try:
        await_true(lambda: len(producer.acknowledged) > 100, "nothing was acknowledged")
        kills = 0
        while kills < KILLS:
            time.sleep(rng.uniform(0.2, 2))
            leader = processes.state(rng.randrange(PARTITIONS)).leader
            victim = rng.choice([leader, processes.controller(), rng.randrange(3)])
            if victim in processes.running and len(processes.running) > 1:
                processes.kill(victim)
                kills += 1
            if len(processes.running) < 3 and rng.random() < 0.7:
                time.sleep(rng.uniform(0, 1.5 * SESSION_TIMEOUT_MS / 1000))
                number = rng.choice([number for number in range(3) if number not in processes.running])
                processes.start(number)
                processes.serving(number)
        for number in {0, 1, 2} - processes.running.keys():
            processes.start(number)
            processes.serving(number)
    finally:
        waiting = producer.stop()
    if waiting or producer.refused:
        last = {partition: offset for partition, offset, _ in producer.acknowledged}
        message = f"seed={seed}: {producer.refused[:3]}, {waiting} unanswered, last acknowledged offsets {last}"
        pytest.fail(message + processes.report())
    await_whole_isr(processes)
    processes.stop_all()
    check_logs(processes.directory, producer, f"seed={seed} kills={kills}")


def check_logs(directory, producer, context):
    for number in range(PARTITIONS):
        partition_dirs = [str(directory / str(broker) / f"{TOPIC}-{number}") for broker in range(3)]
        with kcore.open_log(partition_dirs[0]) as log:
            values = {record.offset: record.value for record in log.records()}
        acknowledged = {(offset, value) for at, offset, value in producer.acknowledged if at == number}
        missing = [(offset, value) for offset, value in acknowledged if values.get(offset) != value]
        assert not missing, f"{context} partition={number}: {len(missing)} of {len(acknowledged)}, first {missing[:3]}"
        repeated = [value for value, count in Counter(values.values()).items() if count > 1]
        assert not repeated, f"{context} partition={number}: twice {repeated[:3]}"
        # One producer: what it has sent to a partition is there in its order.
        assert [int(value) for value in values.values()] == sorted(int(value) for value in values.values()), context
        for other in partition_dirs[1:]:
            assert compare(partition_dirs[0], other).equal, f"{context}: {partition_dirs[0]} {other}"


@pytest.mark.timeout(600)
def test_a_rolling_restart_refuses_the_producer_nothing(processes):
    servers = start_all(processes)
    create_topic(servers)
    producer = VerifyingProducer(servers)
    try:
        await_true(lambda: len(producer.acknowledged) > 100, "nothing was acknowledged")
        for number in range(3):
            process = processes.running.pop(number)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
            # Its leaders have moved already.
            assert all(processes.state(n).leader not in (number, -1) for n in range(PARTITIONS))
            processes.start(number)
            processes.serving(number)
            await_whole_isr(processes)
    finally:
        waiting = producer.stop()
    assert not waiting and not producer.refused
    processes.stop_all()
    check_logs(processes.directory, producer, "rolling restart")


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
