"""group_migration.py JARS CLASSES: Kafka's consumers of both group protocols in one group on three kcore brokers.

The members (GroupMembers.java), all of the classic protocol at first, are replaced one at a time by those of the new
one and back, while the group's coordinator moves and is killed.  Each value is read once, and no partition has two
owners.  In the end Kafka's decoder reads each record of __consumer_offsets.  Exits with a message at the first thing
that is not so.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import kcore
from ci.interop.consumer_protocol import decoded
from kcore.coordinator.group.group_metadata import GroupMetadata

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
OFFSETS, GROUP, TOPIC, NUM_PARTITIONS, NUM_VALUES = "__consumer_offsets", "java", "t", 4, 100
ASSIGNORS = ("RangeAssignor", "CooperativeStickyAssignor")
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    # Longer than a busy machine stands still.
    "zookeeper.session.timeout.ms": 60_000,
}


class Members:
    """owners: by partition, as the members' callbacks say.  values: how often each was read."""

    def __init__(self, java: list[str], servers: str) -> None:
        self.owners: dict[int, str] = {}
        self.values: Counter[str] = Counter()
        self.names: list[str] = []
        self.process = subprocess.Popen(
            [*java, "GroupMembers", servers, GROUP, TOPIC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def add(self, name: str, *words: str) -> None:
        """Returns when each member has a partition, and each partition an owner."""
        self._say(" ".join(["add", name, *words]))
        self.names.append(name)
        self._wait_for_shares()

    def close(self, name: str) -> None:
        """As add()."""
        self._say(f"close {name}")
        self.wait_until(lambda: name not in self.names, f"{name} ends")
        self._wait_for_shares()

    def _wait_for_shares(self) -> None:
        self.wait_until(
            lambda: len(self.owners) == NUM_PARTITIONS and set(self.owners.values()) == set(self.names),
            f"{self.names} share the partitions",
        )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            with suppress(queue.Empty):
                self._hear(self._lines.get(timeout=0.1).split())
            if time.monotonic() > deadline:
                sys.exit(f"waited for: {what}.  Owners: {self.owners}, {sum(self.values.values())} values were read")

    def _hear(self, words: list[str]) -> None:
        name, event, *rest = words
        if event == "fails":
            sys.exit(f"a consumer of Kafka fails: {' '.join(words)}")
        if event == "ends":
            self.names.remove(name)
        if event == "reads":
            self.values[rest[0]] += 1
            return
        for partition in map(int, rest):
            before = self.owners.pop(partition, None)
            if before != (None if event == "gets" else name):
                sys.exit(f"{' '.join(words)}: partition {partition} belongs to {before}")
            if event == "gets":
                self.owners[partition] = name

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Migration:
    def __init__(self, cluster: kcore.Cluster, members: Members, assignor: str) -> None:
        self.cluster, self.members = cluster, members
        self.protocols: dict[str, tuple[str, ...]] = {
            "classic": ("classic", f"org.apache.kafka.clients.consumer.{assignor}"),
            "consumer": ("consumer",),
        }
        self.num_sent = 0

    def run(self) -> None:
        for name in ("a", "b"):
            self.members.add(name, *self.protocols["classic"])
        self.read_on("classic")
        self.replace("a", "c", "consumer", self.move_coordinator)
        self.replace("b", "d", "consumer", self.kill_coordinator)
        self.replace("c", "e", "classic", self.kill_coordinator)
        self.members.add("f", *self.protocols["classic"])
        self.read_on("consumer")
        self.move_coordinator()
        self.members.close("d")
        self.read_on("classic")
        self.kill_coordinator()
        self.read_on("classic")

    def replace(self, old: str, new: str, protocol: str, disturb: Callable[[], None]) -> None:
        """The group has both protocols, or the new one, before and after it."""
        self.members.add(new, *self.protocols[protocol])
        self.read_on("consumer")
        disturb()
        self.read_on("consumer")
        self.members.close(old)
        self.read_on("consumer")

    def read_on(self, protocol: str) -> None:
        """Nothing is read twice, and nothing is left out.  protocol: what the group uses."""
        for number in range(self.num_sent, self.num_sent + NUM_VALUES):
            self.cluster.produce(TOPIC, f"v{number}", partition=number % NUM_PARTITIONS)
        self.num_sent += NUM_VALUES
        self.members.wait_until(lambda: len(self.members.values) == self.num_sent, f"{self.num_sent} values are read")
        if again := [value for value, count in self.members.values.items() if count > 1]:
            sys.exit(f"read more than once: {again}")
        found = "classic" if self.group().consumer is None else "consumer"
        if found != protocol:
            sys.exit(f"the group of {self.members.names} uses the protocol {found}")

    def coordinator(self) -> int:
        self.cluster.wait_until_led(OFFSETS)
        leader = self.cluster.leader(OFFSETS)
        assert leader is not None
        return leader

    def group(self) -> GroupMetadata:
        manager = self.cluster.brokers[self.coordinator()].group_coordinator.manager
        self.members.wait_until(lambda: manager.get_group(GROUP) is not None, "the coordinator has the group")
        group = manager.get_group(GROUP)
        assert group is not None
        return group

    def move_coordinator(self) -> None:
        now = self.coordinator()
        self.cluster.move_leader(OFFSETS, to=(now + 1) % 3)

    def kill_coordinator(self) -> None:
        killed = self.coordinator()
        self.cluster.kill(killed)
        self.read_on("classic" if self.group().consumer is None else "consumer")
        self.cluster.start(killed)
        self.cluster.wait_until_in_sync(OFFSETS)
        self.cluster.wait_until_in_sync(TOPIC)


def check_records(java: list[str], directory: Path) -> None:
    """Kafka's decoder reads each record of the groups of either protocol, with members of both in one group."""
    records = decoded(java, directory)
    types = {int(key["type"]) for key, value in records if value is not None}
    if types != {1, 2, 3, 5, 6, 7, 8}:
        sys.exit(f"Kafka's decoder finds records of the types {sorted(types)}")
    with kcore.open_log(directory) as log:
        num_records = sum(1 for _ in log.records())
    if len(records) != num_records:
        sys.exit(f"Kafka's decoder finds {len(records)} of {num_records} records")
    members: dict[str, Any] = {}
    for key, value in records:
        if key["type"] == "5" and value is not None:
            members[value["data"]["clientId"]] = value["data"].get("classicMemberMetadata", "default")
        elif key["type"] == "8" and value is not None:
            for topic in value["data"]["assignedPartitions"]:
                if len(topic.get("assignmentEpochs", [])) != len(topic["partitions"]):
                    sys.exit(f"Kafka's decoder takes an assignment for {topic}")
    if sorted(members) != list("abcdef"):
        sys.exit(f"Kafka's decoder finds the members {sorted(members)}")
    for name, classic in members.items():
        if (classic is None) != (name in "cd"):
            sys.exit(f"Kafka's decoder takes {name} for a member with {classic}")
        if classic is not None and classic["sessionTimeoutMs"] != 30_000:
            sys.exit(f"Kafka's decoder takes the classic protocol of {name} for {classic}")


def main() -> None:
    java = ["java", "-Xmx256M", f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"]
    java += ["-cp", f"{sys.argv[1]}/*:{sys.argv[2]}"]
    for assignor in ASSIGNORS:
        with tempfile.TemporaryDirectory() as data:
            with kcore.Cluster(3, data, **SETTINGS) as cluster:
                cluster.create_topic(TOPIC, partitions=NUM_PARTITIONS)
                members = Members(java, cluster.bootstrap_servers)
                try:
                    migration = Migration(cluster, members, assignor)
                    migration.run()
                finally:
                    members.end()
            check_records(java, Path(data) / "0" / f"{OFFSETS}-0")
        print(f"interop: {assignor}: {migration.num_sent} values read once by a group that changes its protocol")


if __name__ == "__main__":
    main()
