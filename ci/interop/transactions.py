"""transactions.py JARS CLASSES: Kafka's transactional producer with a kcore broker, at transaction version 2 (KIP-890).

The producer (TransactionsClient.java) commits and aborts, with offsets of a group, while the broker is killed with
SIGKILL and starts again; what is committed is there once.  Kafka's decoder of __transaction_state reads each record,
and kafka-transactions lists, describes, finds and ends transactions.  Then the same at version 0, where the producer
adds its partitions itself.  Exits with a message at the first thing that is not so.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kcore
from kcore.common.topic_partition import TopicPartition

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
COUNT = 60
#: The broker is killed when this many transactions have ended.
KILLED_AFTER = (15, 35)
#: Of Kafka's decoder; it leaves out what is the default.
RECORD = re.compile(r"payload: (\{.*)$", re.MULTILINE)


class Broker:
    """A process that serves a directory on one port, also after it was killed."""

    def __init__(self, data: Path, version: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.servers = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(data)]
        settings = data.parent / "server.properties"
        settings.write_text(f"kcore.transaction.version={version}\ntransaction.state.log.num.partitions=1\n")
        self._command += ["--port", str(self.port), "--config", str(settings)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    sys.exit("the broker does not start")
                time.sleep(0.05)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)


def main() -> None:
    java = ["java", "-Xmx256M", f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"]
    java += ["-cp", f"{sys.argv[1]}/*:{sys.argv[2]}"]
    for version in (2, 0):
        with tempfile.TemporaryDirectory() as directory:
            data = Path(directory) / "data"
            with kcore.Broker(data) as broker:
                broker.create_topic("in")
                broker.create_topic("out", partitions=2)
            process = Broker(data, version)
            try:
                write(process, java)
                if version == 2:
                    use_tool(process, java)
            finally:
                process.end(signal.SIGTERM)
            check(data)
            check_states(java, data, version)
    print(f"interop: {COUNT} transactions of Kafka's producer at each version, no difference")


def write(broker: Broker, java: list[str]) -> None:
    """Have the producer write, and kill the broker in between."""
    client = subprocess.Popen(
        [*java, "TransactionsClient", broker.servers, str(COUNT)], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    ended = 0
    for _ in client.stdout:
        ended += 1
        if ended in KILLED_AFTER:
            broker.end(signal.SIGKILL)
            broker.start()
    if client.wait(DEADLINE_S) or ended != COUNT:
        sys.exit(f"Kafka's producer ends with status {client.returncode} after {ended} transactions")


def use_tool(broker: Broker, java: list[str]) -> None:
    """kafka-transactions."""

    def run(*words: str) -> str:
        tool = [*java, "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.servers, *words]
        return subprocess.run(tool, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S).stdout

    if not re.search(r"^java\s+\d+\s+\d+\s+Complete(Commit|Abort)\s*$", listed := run("list"), re.MULTILINE):
        sys.exit(f"kafka-transactions list shows\n{listed}")
    if not re.search(
        r"^\d+\s+java\s+\d+\s+\d+\s+Complete", run("describe", "--transactional-id", "java"), re.MULTILINE
    ):
        sys.exit("kafka-transactions describe does not show the id")
    producers = run("describe-producers", "--topic", "out", "--partition", "0")
    if not re.search(r"^\d+\s+\d+\s+\d+\s+-?\d+\s+-?\d+\s+None\s*$", producers, re.MULTILINE):
        sys.exit(f"kafka-transactions describe-producers shows\n{producers}")
    hanging = run("find-hanging", "--broker-id", "1")
    if re.search(r"^out\s", hanging, re.MULTILINE):
        sys.exit(f"kafka-transactions finds\n{hanging}")


def check(data: Path) -> None:
    """Each committed record is there once, in order, and the group's committed offset is right after the last one."""
    expected = [str(number).encode() for number in range(COUNT) if number % 3 != 2 for _ in range(2)]
    with kcore.Broker(data) as broker:
        for partition in (0, 1):
            found = [record.value for record in broker.log("out", partition).records(isolation="read_committed")]
            if found != expected:
                sys.exit(f"committed in partition {partition}: {found}")
        at = TopicPartition("in", 0)
        offset = broker.group_coordinator.offsets.fetch("g", [at])[at].offset
        if offset != 1 + int(expected[-1]):
            sys.exit(f"the group stands at {offset}")


def check_states(java: list[str], directory: Path, version: int) -> None:
    log = directory / "__transaction_state-0" / "00000000000000000000.log"
    dump = [*java, "org.apache.kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", str(log)]
    output = subprocess.run(dump, stdout=subprocess.PIPE, text=True, check=True).stdout
    states = [json.loads(payload) for payload in RECORD.findall(output)]
    if len(states) < 4 * COUNT or {state["version"] for state in states} != {"1" if version == 2 else "0"}:
        sys.exit(f"Kafka's decoder finds\n{output}")
    for state in states:
        data = state["data"]
        if data["transactionStatus"] and data.get("clientTransactionVersion", 0) != version:
            sys.exit(f"Kafka's decoder takes a state for {state}")
    # Each end raises the epoch; what the client repeats after a kill raises none.
    if (epoch := states[-1]["data"]["producerEpoch"]) != (COUNT if version == 2 else 0):
        sys.exit(f"after {COUNT} transactions the epoch is {epoch}")


if __name__ == "__main__":
    main()
