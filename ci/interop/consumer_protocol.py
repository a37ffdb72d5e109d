"""consumer_protocol.py JARS: Kafka's own programs with a kcore broker in the consumer group protocol of KIP-848.

Two console consumers share a topic, kafka-consumer-groups describes their group, and Kafka's decoder of
__consumer_offsets reads each record of it.  Exits with a message at the first thing that is not so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
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
    java += ["-cp", f"{sys.argv[1]}/*"]
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
        check_records(java, Path(data))
    print("interop: two of Kafka's consumers with group.protocol=consumer, no difference")


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
    if types != {1, 3, 5, 6, 7, 8}:
        sys.exit(f"Kafka's decoder finds records of the types {sorted(types)}")
    members = [value for key, value in records if key["type"] == "5" and value is not None]
    for member in members:
        # It leaves out what is the default, which is a member of the classic protocol.
        is_classic = member["data"].get("classicMemberMetadata", "default") is not None
        if is_classic or member["data"]["subscribedTopicNames"] != ["t"]:
            sys.exit(f"Kafka's decoder takes a member for {member}")


if __name__ == "__main__":
    main()
