"""Three broker processes, of which the leader's is killed with SIGKILL under a producer: python examples/failover.py

Prints how many seconds after the kill another broker led, and after how many a record that was produced after the kill
was acknowledged.  Then every record is read back.

The session of the killed broker ends when the kernel frees the lock of its process, not after
zookeeper.session.timeout.ms (18 s here, the default).  When the producer goes on depends on the client, too: librdkafka
asks at once who leads, which may be too early, and then once a second.  It needs `pip install confluent-kafka`.
"""

import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from confluent_kafka import Consumer, Producer, TopicPartition

from kcore.client.admin_client import AdminClient

TOPIC, RECORDS, TIMEOUT_S = "orders", 2000, 60


def main(data_dir: pathlib.Path) -> None:
    with ExitStack() as stack:
        brokers = [start_broker(data_dir, number, stack) for number in range(3)]
        for broker in brokers:
            stack.callback(broker.terminate)
        addresses = [address_of(broker) for broker in brokers]
        leader = create_topic(addresses)
        acknowledged = produce_while_it_is_killed(leader, brokers, addresses)
        counts = read_all(addresses)
    lost = sum(value not in counts for value in acknowledged)
    repeated = sum(count > 1 for count in counts.values())
    print(f"{len(acknowledged)} records were acknowledged: {lost} are lost, {repeated} are there twice")
    assert not lost and not repeated


# -- the brokers ----------------------------------------------------------------------------------------


def start_broker(data_dir: pathlib.Path, number: int, stack: ExitStack) -> subprocess.Popen:
    """A process whose end is waited for at the end of `stack`."""
    command = [sys.executable, "-m", "kcore", "serve", "--id", str(number), "--port", "0"]
    command += ["--data", str(data_dir / str(number)), "--store", f"sqlite:{data_dir / 'cluster.db'}"]
    with open(data_dir / f"broker-{number}.txt", "w") as log:
        return stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))


def address_of(broker: subprocess.Popen) -> tuple[str, int]:
    """Waits until the broker serves."""
    line = broker.stdout.readline()  # kcore: serving DIRECTORY on HOST:PORT
    if not line:
        sys.exit("a broker has not started")
    host, port = line.split()[-1].rsplit(":", 1)
    return host, int(port)


def create_topic(addresses: list[tuple[str, int]]) -> int:
    """One partition with a replica on each broker; its leader."""
    with AdminClient(addresses) as admin:
        wait("the brokers to know each other", lambda: len(admin.describe_cluster([]).brokers) == 3)
        admin.create_topic(TOPIC, assignment=[(0, 1, 2)])
        wait("a broker to lead the topic", lambda: leader_of(admin) >= 0)
        return leader_of(admin)


def leader_of(admin: AdminClient) -> int:
    """Below 0: none, or the broker that answers does not have the topic yet."""
    topics = admin.describe_cluster().topics
    return topics[TOPIC].partitions[0].leader if TOPIC in topics else -1


def wait_for_another_leader(old: int, addresses: list[tuple[str, int]]) -> tuple[int, float]:
    """Its id, and when it led: asked of the other brokers."""
    with AdminClient([address for number, address in enumerate(addresses) if number != old]) as admin:
        leader = old

        def another_leads() -> bool:
            nonlocal leader
            leader = leader_of(admin)  # asked once: the other broker may still name the old leader
            return leader not in (old, -1)

        wait("another broker to lead", another_leads)
        return leader, time.monotonic()


def wait(what, is_done):
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        if time.monotonic() > deadline:
            sys.exit(f"waited {TIMEOUT_S} s for {what}")
        time.sleep(0.01)


# -- the clients ----------------------------------------------------------------------------------------


def settings(addresses: list[tuple[str, int]]) -> dict:
    """log_level: librdkafka would print that its connections to the killed broker break."""
    return {"bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses), "log_level": 2}


def produce_while_it_is_killed(
    leader: int, brokers: list[subprocess.Popen], addresses: list[tuple[str, int]]
) -> list[bytes]:
    """Produce a record every millisecond, half of them after the kill; the values that were acknowledged."""
    acknowledged, acknowledged_at = [], {}

    def delivered(error, message):
        if error is not None:
            sys.exit(f"a record was refused: {error}")
        acknowledged.append(message.value())
        acknowledged_at.setdefault(message.value(), time.monotonic())

    producer = Producer(settings(addresses) | {"acks": "all", "enable.idempotence": True})
    values = [b"order %d" % number for number in range(RECORDS)]
    first_after_the_kill = values[RECORDS // 2]
    with ThreadPoolExecutor() as threads:
        for value in values:
            if value == first_after_the_kill:
                killed_at = time.monotonic()
                brokers[leader].kill()
                another = threads.submit(wait_for_another_leader, leader, addresses)
            producer.produce(TOPIC, value, on_delivery=delivered)
            producer.poll(0.001)
        if producer.flush(TIMEOUT_S):
            sys.exit(f"{len(producer)} records are not acknowledged after {TIMEOUT_S} s")
    next_leader, led_at = another.result()
    pause = acknowledged_at[first_after_the_kill] - killed_at
    print(
        f"broker {leader} led {TOPIC}-0 and was killed; broker {next_leader} led {led_at - killed_at:.2f} s later; "
        f"the next record was acknowledged after {pause:.2f} s"
    )
    return acknowledged


def read_all(addresses: list[tuple[str, int]]) -> Counter:
    """How many records of the topic have each value."""
    consumer = Consumer(settings(addresses) | {"group.id": "unused", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_S)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    messages = consumer.consume(end, timeout=TIMEOUT_S)
    consumer.close()
    return Counter(message.value() for message in messages)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(pathlib.Path(directory))
