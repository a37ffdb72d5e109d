"""consumer_protocol.py JARS CLASSES: Kafka's own programs with a kcore broker in the group protocol of KIP-848.

Two console consumers share a topic, and two of Kafka's consumers the topics that match a pattern, one that comes later
too (PatternConsumer.java); kafka-consumer-groups describes a group, and Kafka's decoder of __consumer_offsets reads
each record of both.  Exits with a message at the first thing that is not so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kcore
from kcore.coordinator.group.consumer_group import ConsumerGroup
from kcore.errors import ApiError

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90
NUM_RECORDS = 40
RECORD = re.compile(r"key: (\{.*?\}\}) payload: (.*)$", re.MULTILINE)


def group_of(broker: kcore.Broker) -> ConsumerGroup | None:
    try:
        return broker.group_coordinator.consumer_groups.describe("java")
    except ApiError:
        return None


def main() -> None:
    java = ["java", "-Xmx256M", f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"]
    java += ["-cp", f"{sys.argv[1]}/*:{sys.argv[2]}"]
    settings = {"group.consumer.min.heartbeat.interval.ms": 100, "group.consumer.heartbeat.interval.ms": 200}
    with tempfile.TemporaryDirectory() as data:
        with kcore.Broker(data, offsets_topic_num_partitions=1, **settings) as broker:
            broker.create_topic("t", partitions=4)
            at = ["--bootstrap-server", broker.bootstrap_servers]
            command = [*java, "org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--topic", "t", "--group", "java"]
            command += ["--from-beginning", "--max-messages", str(NUM_RECORDS // 2)]
            command += ["--command-property", "group.protocol=consumer"]
            consumers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            try:
                described = share(broker, java, at)
                read = [line for one in consumers for line in one.communicate(timeout=DEADLINE_S)[0].split()]
            finally:
                for one in consumers:
                    one.kill()
            if sorted(read) != sorted(f"v{number}" for number in range(NUM_RECORDS)):
                sys.exit(f"the console consumers have read {read}")
            if len(re.findall(r"^java .* t:(?:0,1|2,3) ", described, re.MULTILINE)) != 2:
                sys.exit(f"kafka-consumer-groups shows\n{described}")
            share_by_pattern(broker, java)
        check_records(java, Path(data))
    print("interop: Kafka's consumers with group.protocol=consumer, no difference")


class Member:
    """A running PatternConsumer; a context manager.  lines: what it has printed."""

    def __init__(self, java: list[str], servers: str, pattern: str) -> None:
        self.lines: list[str] = []
        command = [*java, "PatternConsumer", servers, "patterns", pattern]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def all(self, kind: str) -> list[str]:
        return [line.partition(" ")[2] for line in list(self.lines) if line.startswith(f"{kind} ")]

    def assigned(self) -> set[str]:
        return set(filter(None, ["", *self.all("assigned")][-1].split(",")))


def await_true(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(what())
        time.sleep(0.05)


def share_by_pattern(broker: kcore.Broker, java: list[str]) -> None:
    """Two members of Kafka's client whose pattern the coordinator resolves."""
    for topic in ("re-a", "other-re-a"):
        broker.create_topic(topic, partitions=2)
    # RE2 matches whole names, and has no look-ahead.
    with Member(java, broker.bootstrap_servers, "re-(?=a)") as refused:
        await_true(lambda: bool(refused.all("refused")), lambda: f"a pattern that RE2 refuses: {refused.lines}")
    if not refused.all("refused")[0].startswith("InvalidRegularExpression "):
        sys.exit(f"a pattern that RE2 refuses: {refused.lines}")
    with (
        Member(java, broker.bootstrap_servers, "re-[a-z]+") as one,
        Member(java, broker.bootstrap_servers, "re-[a-z]+") as two,
    ):

        def await_shared(*topics: str) -> None:
            expected = {f"{topic}-{number}" for topic in topics for number in range(2)}

            def are_shared() -> bool:
                shares = (one.assigned(), two.assigned())
                return shares[0] | shares[1] == expected and all(len(share) == len(topics) for share in shares)

            await_true(are_shared, lambda: f"{expected} are shared as {one.assigned()} and {two.assigned()}")

        await_shared("re-a")
        broker.create_topic("re-b", partitions=2)
        await_shared("re-a", "re-b")
        written = sorted(f"{topic} {number}" for topic in ("re-a", "re-b") for number in range(4))
        for value in [*written, "other-re-a 0"]:
            topic, number = value.split()
            broker.produce(topic, value, partition=int(number) % 2)
        await_true(
            lambda: sorted(one.all("read") + two.all("read")) == written,
            lambda: f"{written} were written, read are {one.all('read')} and {two.all('read')}",
        )


def share(broker: kcore.Broker, java: list[str], at: list[str]) -> str:
    """Write records once both members have their partitions; what Kafka's tool says of the group."""
    deadline = time.monotonic() + DEADLINE_S
    while (group := group_of(broker)) is None or len(group.members) < 2 or group.state != "Stable":
        if time.monotonic() > deadline:
            sys.exit(f"two of Kafka's consumers do not share a topic: {group}")
        time.sleep(0.1)
    tool = [*java, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", "java"]
    described = subprocess.run([*tool, "--members", "--verbose"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for number in range(NUM_RECORDS):
        broker.produce("t", f"v{number}", partition=number % 4)
    return described


def decoded(java: list[str], directory: Path) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """(key, value) of each record in the first segment of a partition of __consumer_offsets, as Kafka's decoder reads
    it; None is a tombstone."""
    log = directory / "00000000000000000000.log"
    dump = [*java, "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(log)]
    output = subprocess.run(dump, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [
        (json.loads(key), None if payload.strip() == "<DELETE>" else json.loads(payload))
        for key, payload in RECORD.findall(output)
    ]


def check_records(java: list[str], data: Path) -> None:
    records = decoded(java, data / "__consumer_offsets-0")
    types = {int(key["type"]) for key, value in records if value is not None}
    if types != {1, 3, 5, 6, 7, 8, 16}:
        sys.exit(f"Kafka's decoder finds records of the types {sorted(types)}")
    members = [value for key, value in records if key["type"] == "5" and value is not None]
    for member in members:
        # It leaves out what is the default, which is a member of the classic protocol.
        is_classic = member["data"].get("classicMemberMetadata", "default") is not None
        subscribed = (member["data"].get("subscribedTopicNames", []), member["data"].get("subscribedTopicRegex"))
        if is_classic or subscribed not in ((["t"], ""), (["t"], None), ([], "re-[a-z]+")):
            sys.exit(f"Kafka's decoder takes a member for {member}")


if __name__ == "__main__":
    main()
