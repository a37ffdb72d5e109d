"""Three brokers in this process; a leader is killed under load, and nothing is lost: python examples/cluster.py

A producer with acks=all keeps writing while the leader of its partition is killed.  The killed broker starts again and
catches up.  Then every record that was acknowledged is looked for, and `kcore diff` compares the three directories.
The producer needs `pip install confluent-kafka`.  It takes some 10 seconds.
"""

import itertools
import pathlib
import sys
import tempfile
import time
from collections import Counter

from confluent_kafka import Producer

import kcore
from kcore.inspect.replica_diff import compare

TOPIC, PARTITIONS = "orders", 3


def main(data_dir: pathlib.Path) -> None:
    with kcore.Cluster(3, data_dir) as cluster:
        print(f"three brokers: {cluster.bootstrap_servers}, broker {cluster.controller()} is the controller")
        cluster.create_topic(TOPIC, PARTITIONS)
        acknowledged = produce_while_the_leader_fails(cluster)
        wait(
            "every broker to be in sync again", lambda: all(len(cluster.isr(TOPIC, n)) == 3 for n in range(PARTITIONS))
        )
        print("every broker is in the ISR of every partition again")
    check(data_dir, acknowledged)
    for n in range(PARTITIONS):
        first, *others = (str(data_dir / str(broker) / f"{TOPIC}-{n}") for broker in range(3))
        for other in others:
            diff = compare(first, other)
            print(f"kcore diff {first} {other}: {'equal' if diff.equal else 'DIFFERENT'}")
            assert diff.equal


def produce_while_the_leader_fails(cluster: kcore.Cluster) -> set[bytes]:
    """Write for as long as it takes others to lead; the values that were acknowledged."""
    acknowledged, refused = set(), []

    def delivered(error, message):
        if error is None:
            acknowledged.add(message.value())
        else:
            refused.append(error)

    producer = Producer(
        # log_level: librdkafka would print that the connections to the killed broker break.
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True, "log_level": 2}
    )
    numbers, killed, killed_at, pause_ends = itertools.count(), None, 0.0, 0.0
    begin = time.monotonic()
    while not pause_ends or time.monotonic() < pause_ends + 1:
        for number in itertools.islice(numbers, 100):
            producer.produce(TOPIC, f"order {number}", key=str(number), on_delivery=delivered)
        producer.poll(0.02)
        if killed is None and time.monotonic() > begin + 2:
            killed, killed_at = cluster.leader(TOPIC, 0), time.monotonic()
            cluster.kill(killed)
            print(f"broker {killed}, the leader of {TOPIC}-0, is killed after {len(acknowledged)} records")
        elif killed is not None and not pause_ends and cluster.leader(TOPIC, 0) not in (None, killed):
            pause_ends = time.monotonic()
            seconds = pause_ends - killed_at
            print(f"broker {cluster.leader(TOPIC, 0)} leads {TOPIC}-0 {seconds:.1f} s later")
        elif killed is not None and not pause_ends and time.monotonic() > killed_at + 60:
            sys.exit("nobody leads the partition")
    waiting = producer.flush(30)
    print(f"{len(acknowledged)} records were acknowledged, {len(refused)} refused, {waiting} have no answer")
    cluster.start(killed)
    print(f"broker {killed} runs again")
    return acknowledged


def check(data_dir: pathlib.Path, acknowledged: set[bytes]) -> None:
    """Read all that the first broker has."""
    counts = Counter()
    for n in range(PARTITIONS):
        with kcore.open_log(str(data_dir / "0" / f"{TOPIC}-{n}")) as log:
            counts.update(record.value for record in log.records())
    lost = [value for value in acknowledged if value not in counts]
    repeated = [value for value, count in counts.items() if count > 1]
    print(f"{len(lost)} of them are lost, {len(repeated)} are there twice")
    assert not lost and not repeated


def wait(what, is_done):
    deadline = time.monotonic() + 60
    while not is_done():
        if time.monotonic() > deadline:
            sys.exit(f"waited 60 s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(pathlib.Path(directory))
