"""coordinators.py: transactions, rebalances, and a start that loads both, at kcore and at a real Apache Kafka.

    transactions      of ten records by confluent-kafka's producers, one and three brokers: how many a second, the
                      brokers' CPU for each, and how long commit_transaction() takes a producer that is alone
    rebalances        of a group of --members, in both protocols: all join at once, then one more
    start             with --offsets committed offsets and --ids transactional ids: from the launch of the process until
                      every partition of both coordinators answers

Only one side runs at a time, rounds alternate, and each side does every row once before it counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.group_members import ClassicMember, ConsumerMember, Member, Members  # noqa: E402
from bench.peers.real_kafka import Unavailable  # noqa: E402
from bench.peers.replicate import BROKERS, Cluster, KafkaCluster, KcoreCluster, brokers_cpu_s, wait_for  # noqa: E402
from bench.peers.rounds import Goals, Rows, table_of_rounds  # noqa: E402
from bench.peers.stored_state import StoredState  # noqa: E402
from bench.replication_client import CLIENT_ID, TIMEOUT_S, leaders_of_whole_isr  # noqa: E402
from kcore.client.blocking_sender import BlockingSender  # noqa: E402
from kcore.protocol.messages.find_coordinator import (  # noqa: E402
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

KCORE, KAFKA = "kcore", "Apache Kafka"
RECORDS = 10
RECORD = bytes(100)
PRODUCERS = 4
#: Members that join one after the other, each when the group has settled; the median of them is the row.
MORE = 9
#: Partitions for each member of the group.
SHARE = 2
PROTOCOLS: dict[str, type[Member]] = {"classic": ClassicMember, "consumer": ConsumerMember}
SETTINGS = {"transaction.state.log.num.partitions": "6"}

#: Unit -> whether more is better; row -> the goal as a ratio of kcore to Kafka.
_SIZES = (1, BROKERS)
TRANSACTIONS = {
    brokers: f"transactions of {RECORDS} records, {brokers} broker{'s'[: brokers - 1]}" for brokers in _SIZES
}
JOINS = {protocol: f"all join a group, {protocol} protocol" for protocol in PROTOCOLS}
ONE_MORE = {protocol: f"one more joins, {protocol} protocol" for protocol in PROTOCOLS}
REBALANCES = {protocol: f"both, {protocol} protocol" for protocol in PROTOCOLS}
START = "start with stored offsets and ids"
#: Unit -> whether more is better; row -> the goal as a ratio of kcore to Kafka.
GOALS: Goals = {
    "per s": (True, dict.fromkeys(TRANSACTIONS.values(), 2.0)),
    "CPU-ms each": (False, dict.fromkeys(TRANSACTIONS.values(), 0.5)),
    "commit p50 ms": (False, dict.fromkeys(TRANSACTIONS.values(), 1.0)),
    "s": (False, dict.fromkeys((*JOINS.values(), *ONE_MORE.values(), START), 1.0)),
}


@contextmanager
def cluster_of(name: str, brokers: int, **settings: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="kcore-peers-") as directory:
        config = SETTINGS | {key.replace("_", "."): value for key, value in settings.items()}
        config["transaction.state.log.min.isr"] = "2" if brokers > 1 else "1"
        if name == KCORE:
            config["offsets.topic.replication.factor"] = str(brokers)
            config["transaction.state.log.replication.factor"] = str(brokers)
            cluster: Cluster = KcoreCluster(Path(directory), [config] * brokers)
        else:
            cluster = KafkaCluster(Path(directory), brokers, config)
        with cluster:
            await_coordinators(cluster)
            yield cluster


def create_topic(cluster: Cluster, name: str, partitions: int, replicas: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap_servers(cluster)})
    admin.create_topics([NewTopic(name, partitions, replicas)], operation_timeout=60)[name].result(90)
    leaders_of_whole_isr(cluster.address(0), name, partitions, replicas)


def await_coordinators(cluster: Cluster) -> None:
    """Have the internal topics made, and their partitions led."""
    address = cluster.address(0)
    sender = BlockingSender(*address, CLIENT_ID, request_timeout_ms=TIMEOUT_S * 1000)
    with closing(sender):

        def is_found(key_type: int) -> bool:
            answer = sender.send(FindCoordinatorRequest(key="any", key_type=key_type), 2)
            assert isinstance(answer, FindCoordinatorResponse)
            return not answer.error_code

        for key_type in (0, 1):  # of groups, of transactions
            wait_for(partial(is_found, key_type), "a coordinator", pause_s=0.1)


def bootstrap_servers(cluster: Cluster) -> str:
    host, port = cluster.address(0)
    return f"{host}:{port}"


# -- transactions ---------------------------------------------------------------------------------------


def commit_times(bootstrap: str, topic: str, transactional_id: str, partition: int, count: int) -> list[float]:
    """Seconds of each commit_transaction() of one producer."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    taken = []
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(RECORDS):
            producer.produce(topic, RECORD, partition=partition)
        start = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        taken.append(time.perf_counter() - start)
    return taken


def measure_transactions(cluster: Cluster, brokers: int, count: int, number: int) -> dict[str, float]:
    topic = f"transactions-{number}"
    create_topic(cluster, topic, PRODUCERS, brokers)
    bootstrap = bootstrap_servers(cluster)
    alone = commit_times(bootstrap, topic, f"{topic}-alone", 0, count // PRODUCERS)
    failures: list[BaseException] = []

    def run(producer: int) -> None:
        try:
            commit_times(bootstrap, topic, f"{topic}-{producer}", producer, count // PRODUCERS)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(producer,)) for producer in range(PRODUCERS)]
    cpu, start = brokers_cpu_s(cluster), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken, cpu = time.perf_counter() - start, brokers_cpu_s(cluster) - cpu
    if failures:
        raise failures[0]
    done = count // PRODUCERS * PRODUCERS
    return {"per s": done / taken, "CPU-ms each": cpu / done * 1e3, "commit p50 ms": statistics.median(alone) * 1e3}


# -- rebalances -----------------------------------------------------------------------------------------


def measure_rebalances(cluster: Cluster, members: int, number: int) -> Rows:
    rows: Rows = {}
    topic, partitions = f"group-{number}", (members + MORE) * SHARE
    create_topic(cluster, topic, partitions, 1)
    for protocol, kind in PROTOCOLS.items():
        with Members(cluster.address(0)) as group:
            group.connect(members + MORE)
            taken = []
            cpu = brokers_cpu_s(cluster)
            for count in (members, *[1] * MORE):
                start = time.perf_counter()
                for _ in range(count):
                    group.add(kind(f"{protocol}-{number}", topic, partitions))
                while not (group.step() and kind.have_settled(group.members, partitions)):
                    pass
                taken.append(time.perf_counter() - start)
            rows[JOINS[protocol], "s"] = taken[0]
            rows[ONE_MORE[protocol], "s"] = statistics.median(taken[1:])
            rows[REBALANCES[protocol], "CPU-s"] = brokers_cpu_s(cluster) - cpu
    return rows


# -- start ----------------------------------------------------------------------------------------------


def measure_start(cluster: Cluster, state: StoredState) -> Rows:
    cluster.stop(0)
    start = time.perf_counter()
    cluster.launch(0)
    wait_for(lambda: state.is_loaded(cluster.address(0)), "the coordinators to load", pause_s=0.005)
    return {(START, "s"): time.perf_counter() - start, (START, "CPU-s"): brokers_cpu_s(cluster)}


# -- the run --------------------------------------------------------------------------------------------


def measure_all(name: str, args: argparse.Namespace) -> Rows:
    """Of one side; the first pass of each row warms it, and does not count."""
    rows: Rows = {}
    for brokers, row in TRANSACTIONS.items():
        if "transactions" in args.rows:
            with cluster_of(name, brokers) as cluster:
                for number in range(2):
                    measured = measure_transactions(cluster, brokers, args.transactions, number)
                rows |= {(row, unit): value for unit, value in measured.items()}
    if "rebalances" in args.rows:
        with cluster_of(name, 1) as cluster:
            for number in range(2):
                rebalances = measure_rebalances(cluster, args.members, number)
            rows |= rebalances
    if "start" in args.rows:
        with cluster_of(name, 1) as cluster:
            create_topic(cluster, "stored", 100, 1)
            state = StoredState("stored", 100, args.offsets // 100, args.ids)
            state.write(cluster.address(0))
            for _ in range(2):
                started = measure_start(cluster, state)
            rows |= started
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ["transactions", "rebalances", "start"]
    parser.add_argument("rows", nargs="*", default=kinds, metavar="ROW", help=f"of {', '.join(kinds)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="of both sides, alternating (3)")
    parser.add_argument("--transactions", type=int, default=2000, help="of each row (2000)")
    parser.add_argument("--members", type=int, default=200, help="of a group, before one more joins (200)")
    parser.add_argument("--offsets", type=int, default=1_000_000, help="committed, of 100 partitions (1000000)")
    parser.add_argument("--ids", type=int, default=100_000, help="transactional ids (100000)")
    parser.add_argument("--only", choices=[KCORE, KAFKA], help="measure one of the two alone")
    args = parser.parse_args(arguments)
    if unknown := set(args.rows) - set(kinds):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")

    results: dict[str, list[Rows]] = {name: [] for name in (KCORE, KAFKA) if args.only in (None, name)}
    for n in range(args.rounds):
        for name, rounds in results.items():
            try:
                rounds.append(measure_all(name, args))
            except Unavailable as missing:
                print(f"{missing}: kcore is measured alone", file=sys.stderr)
                continue
            figures = ", ".join(f"{row}: {value:,.2f} {unit}" for (row, unit), value in rounds[-1].items())
            print(f"round {n + 1}, {name}: {figures}", flush=True)
    print(table_of_rounds({name: rounds for name, rounds in results.items() if rounds}, GOALS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
