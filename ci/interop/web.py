"""`kcore web` with a real Kafka: its pages, a search, changes, and the files while the broker writes them."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from starlette.testclient import TestClient  # noqa: E402

from bench.peers.real_kafka import RealKafka, Unavailable  # noqa: E402
from ci.interop.commands import check  # noqa: E402
from ci.interop.mirror import step  # noqa: E402
from tests.unit.web.pages import TOKEN, cells, opened, words  # noqa: E402

TOPIC, GROUP, RECORDS, READ = "pages", "billing", 1000, 400
START_MS = 1_700_000_000_000
DEADLINE_S = 60


def fill(kafka: RealKafka) -> None:
    """Partition 1 of the topic has the records, of which the group has read some."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    topic = NewTopic(TOPIC, num_partitions=3, config={"segment.bytes": "1048576"})
    admin = AdminClient(settings)
    admin.create_topics([topic])[TOPIC].result()
    producer = Producer(settings | {"compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(
            TOPIC, f"value {number}", f"key {number}", 1, timestamp=START_MS + number, headers={"n": str(number)}
        )
    producer.flush()
    consumer = Consumer(settings | {"group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, READ)], asynchronous=False)
    consumer.close()


def page(client: TestClient, address: str, **values: object) -> str:
    """What a reader sees.  Raises RuntimeError unless its status is 200."""
    answer = client.post(address, data=values | {"token": TOKEN}) if values else client.get(address)
    check((answer.status_code, answer.status_code != 200 and words(answer.text)), (200, False))
    return str(answer.text)


def offsets(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'ffset (\d+)"', text.replace("\u202f", ""))]


def cluster_pages(client: TestClient) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while TOPIC not in page(client, "/topics") and time.monotonic() < deadline:
        time.sleep(0.2)
    # How long the broker took to answer, which the page has asked by now or will soon.
    while " ms" not in (state := cells(page(client, "/"))[0][3]) and time.monotonic() < deadline:
        time.sleep(0.2)
    check(re.sub(r"[\d.]+ ms", "N ms", state), "answers after N ms, is the controller")
    check([row[:4] for row in cells(page(client, "/topics"))], [[TOPIC, "3", "1", "0"]])
    check([row[1:6] for row in cells(page(client, f"/topic?name={TOPIC}"))][1], ["1", "1", "1", "0", str(RECORDS)])
    check("segment.bytes 1048576" in words(page(client, f"/topic?name={TOPIC}")), True)
    (group,) = (row for row in cells(page(client, "/groups?lag=1")) if row[0] == GROUP)
    check((group[1], group[4:]), ("Empty", ["1", str(RECORDS - READ)]))
    described = cells(page(client, f"/group?id={GROUP}"))[0]
    check(described[:4], [f"{TOPIC} -1", str(READ), str(RECORDS), str(RECORDS - READ)])


def messages(client: TestClient, place: str) -> None:
    check(offsets(page(client, f"/messages?{place}")), list(range(RECORDS - 50, RECORDS)))
    check(offsets(page(client, f"/messages?{place}&offset=0")), list(range(50)))
    check(offsets(page(client, f"/messages?{place}&time=@{START_MS + 777}"))[0], 777)
    check("value 7" in page(client, f"/message?{place}&offset=7"), True)


def found(client: TestClient, **form: object) -> list[int]:
    answer = client.post("/search", data=form | {"token": TOKEN})
    check(answer.status_code, 200)
    deadline = time.monotonic() + DEADLINE_S
    while "Cancel</button>" in (text := page(client, str(answer.url))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return offsets(text)


def changes(client: TestClient) -> None:
    page(client, "/change/create-topic", name="made-here", partitions=2, config="retention.ms=60000")
    check("retention.ms 60000" in words(page(client, "/topic?name=made-here")), True)
    page(client, "/change/elect", topic="made-here")
    page(client, "/change/delete-topic", topic="made-here", again="made-here")
    page(client, "/change/delete-group", group=GROUP)
    check(GROUP in page(client, "/groups"), False)


def searches(client: TestClient) -> None:
    for form in ({"topic": TOPIC}, {"dir": 0}):
        check(found(client, text="value 77", field="value", **form), [77, *range(770, 780)])


def files(client: TestClient) -> None:
    check("No damage" in words(page(client, f"/log?dir=0&log={TOPIC}-1")), True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kcore-web-") as directory:
        # The records are old.
        kafka = RealKafka(Path(directory) / "kafka", log_retention_ms=-1)
        try:
            with kafka:
                fill(kafka)
                shown = opened([("127.0.0.1", kafka.port)], [kafka.directory / "data"], allows_changes=True)
                with shown as (client, _):
                    step("the pages of a cluster of Kafka", lambda: cluster_pages(client))
                    step("messages from its broker", lambda: messages(client, f"topic={TOPIC}&partition=1"))
                    step("messages from the files that it writes", lambda: messages(client, f"dir=0&log={TOPIC}-1"))
                    step("searches in both", lambda: searches(client))
                    step("the map of a log's segments", lambda: files(client))
                    step("topics and groups are changed", lambda: changes(client))
        except Unavailable as missing:
            print(f"web: skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
