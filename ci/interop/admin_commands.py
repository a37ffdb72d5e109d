"""`kcore metadata`, `configs`, `acls`, `quotas`, `logdirs` and `explain lso` with a real Kafka."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import RealKafka, Unavailable  # noqa: E402
from ci.interop.commands import Commands, check, committed_alone  # noqa: E402
from ci.interop.mirror import step  # noqa: E402

TOPIC = "managed"


def lines(commands: Commands, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in commands.run(*words, "--json").splitlines()]


def only(found: list[dict[str, Any]], **fields: object) -> dict[str, Any]:
    """The one line with these fields.  Raises RuntimeError."""
    fitting = [line for line in found if all(line[name] == value for name, value in fields.items())]
    if len(fitting) != 1:
        raise RuntimeError(f"{len(fitting)} lines with {fields} in {found!r:.2000}")
    return fitting[0]


def until(ask: Callable[[], object], expected: object) -> None:
    """Kafka's brokers follow a change a moment later.  Raises RuntimeError."""
    found = None
    for _ in range(200):
        found = ask()
        if found == expected:
            return
    check(found, expected)


def metadata(commands: Commands) -> None:
    cluster, broker = lines(commands, "metadata", "--apis")
    check(cluster["controller"], 1)
    features = {feature["name"] for feature in cluster["features"]}
    check("metadata.version" in features, True)
    check("PLAINTEXT://127.0.0.1:" in broker["listeners"], True)
    check(only(broker["apis"], name="Fetch")["max_version"] >= 17, True)
    check("metadata.version" in commands.run("metadata").decode(), True)


def configs(commands: Commands) -> None:
    of = ("--topic", TOPIC)
    (plan,) = lines(commands, "configs", "set", *of, "retention.ms=60000")
    check((plan["old_value"], plan["old_source"], plan["applied"]), ("604800000", "default", False))

    def topic() -> dict[str, tuple[str, str]]:
        return {s["name"]: (s["value"], s["source"]) for s in lines(commands, "configs", "describe", *of)}

    check("retention.ms" in topic(), False)
    commands.run("configs", "set", *of, "retention.ms=60000", "--apply")
    until(lambda: topic().get("retention.ms"), ("60000", "topic"))
    (back,) = lines(commands, "configs", "unset", *of, "retention.ms", "--apply")
    check((back["old_value"], back["new_value"], back["applied"]), ("60000", "604800000", True))
    until(lambda: "retention.ms" in topic(), False)
    error = commands.run("configs", "set", *of, "retention.sm=1", "--apply", status=2).decode()
    check("did you mean retention.ms?" in error, True)
    for whose, source in ((("--broker", "1"), "dynamic broker"), (("--default",), "dynamic default")):
        commands.run("configs", "set", *whose, "log.cleaner.backoff.ms=20000", "--apply")
        shown = lambda whose=whose: {  # noqa: E731
            s["name"]: (s["value"], s["source"]) for s in lines(commands, "configs", "describe", *whose)
        }
        until(lambda shown=shown: shown().get("log.cleaner.backoff.ms"), ("20000", source))
        commands.run("configs", "unset", *whose, "log.cleaner.backoff.ms", "--apply")
        until(lambda shown=shown: "log.cleaner.backoff.ms" in shown(), False)
    rates = ("leader.replication.throttled.rate=1000000",)
    commands.run("configs", "set", "--broker", "1", *rates, "--apply")
    error = commands.run("configs", "set", "--broker", "1", "log.cleaner.backof.ms=1", "--apply", status=2).decode()
    check("did you mean log.cleaner.backoff.ms?" in error, True)
    error = commands.run("configs", "set", "--broker", "1", "broker.rack=r", status=2).decode()
    check("cannot be changed while the broker runs" in error, True)
    commands.run("configs", "set", "--client-metrics", "m", "interval.ms=10000", "--apply")
    until(
        lambda: [(s["name"], s["value"]) for s in lines(commands, "configs", "describe", "--client-metrics", "m")],
        [("interval.ms", "10000")],
    )
    commands.run("configs", "set", "--group", "g", "consumer.session.timeout.ms=50000", "--apply")
    until(
        lambda: [s["value"] for s in lines(commands, "configs", "describe", "--group", "g") if s["source"] == "group"],
        ["50000"],
    )
    commands.run("configs", "describe")


def acls(commands: Commands) -> None:
    add = ("acls", "add", "--principal", "User:alice", "--consumer", "--topic", TOPIC, "--group", "g")
    check(all(not acl["applied"] for acl in lines(commands, *add)), True)
    check(lines(commands, "acls", "list"), [])
    check(len(lines(commands, *add, "--apply")), 3)
    until(lambda: len(lines(commands, "acls", "list", "--topic", TOPIC)), 2)
    commands.run("acls", "add", "--deny-principal", "User:*", "--operation", "all", "--topic", "m", "--pattern",
                 "prefixed", "--host", "10.0.0.1", "--apply")  # fmt: skip
    until(lambda: len(lines(commands, "acls", "list", "--topic", TOPIC)), 3)
    commands.run("acls", "remove", "--principal", "User:alice", "--topic", TOPIC, "--apply")
    until(
        lambda: sorted(acl["principal"] for acl in lines(commands, "acls", "list")),
        ["User:*", "User:alice"],
    )
    commands.run("acls", "remove", "--apply", status=2)
    commands.run("acls", "remove", "--host", "10.0.0.1", "--host", "*", "--apply")
    until(lambda: lines(commands, "acls", "list"), [])


def quotas(commands: Commands) -> None:
    entities = {
        "producer_byte_rate": ("--user", "alice", "--client", "app"),
        "consumer_byte_rate": ("--user-defaults",),
        "connection_creation_rate": ("--ip", "10.0.0.1"),
    }
    for quota, whose in entities.items():
        commands.run("quotas", "set", *whose, f"{quota}=1000", "--apply")
    until(lambda: sorted(line["quota"] for line in lines(commands, "quotas", "list")), sorted(entities))
    for quota, whose in entities.items():
        (plan,) = lines(commands, "quotas", "unset", *whose, quota)
        check(plan["old_value"], 1000)
        commands.run("quotas", "unset", *whose, quota, "--apply")
    until(lambda: lines(commands, "quotas", "list"), [])


def logdirs(commands: Commands, directories: list[str]) -> None:
    found = lines(commands, "logdirs", "list", TOPIC)
    check(sorted(line["log_dir"] for line in found), sorted(directories))
    (source,) = [line["log_dir"] for line in found if line["partitions"]]
    (target,) = set(directories) - {source}
    commands.run("logdirs", "move", TOPIC, "--to", target, "--apply", "--wait")
    check([line["log_dir"] for line in lines(commands, "logdirs", "list", TOPIC) if line["partitions"]], [target])


def open_transaction(kafka: RealKafka, commands: Commands, directories: list[str]) -> None:
    from confluent_kafka import Producer

    commands.run("topics", "create", "held", "--partitions", "1")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "stuck"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("held", "1")
    producer.flush(60)
    (directory,) = [path for path in directories if (Path(path) / "held-0").is_dir()]
    (explained,) = [json.loads(commands.run("explain", "lso", "held", "0", "--dir", directory, "--json"))]
    (txn,) = explained["transactions"]
    check((explained["last_stable_offset"], txn["first_offset"], txn["marker_offset"]), (0, 0, None))
    # Its coordinator may have its partition of __transaction_state in the other directory.
    is_beside = any((Path(directory) / f"__transaction_state-{number}").is_dir() for number in range(50))
    check(txn["transactional_id"] in (("stuck", None) if is_beside else (None,)), True)
    producer.abort_transaction(60)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kcore-admin-") as temporary:
        directories = [f"{temporary}/{name}" for name in ("a", "b")]
        kafka = RealKafka(
            Path(temporary) / "kafka",
            log_dirs=",".join(directories),
            authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            super_users="User:ANONYMOUS",
        )
        commands = Commands(kafka)
        try:
            with kafka:
                commands.run("topics", "create", TOPIC, "--partitions", "1")
                commands.run("produce", TOPIC, stdin=b"1\n2\n")
                step("kcore metadata: features, listeners, APIs of Kafka's broker", lambda: metadata(commands))
                step(
                    "kcore configs: topics, brokers, groups and client metrics are set, described, unset",
                    lambda: configs(commands),
                )
                step("kcore acls: ACLs are added, listed, removed", lambda: acls(commands))
                step("kcore quotas: of users, client ids and addresses", lambda: quotas(commands))
                step("kcore logdirs: a log moves to the other directory", lambda: logdirs(commands, directories))
                step(
                    "kcore explain lso --dir: an open transaction in Kafka's files",
                    lambda: open_transaction(kafka, commands, directories),
                )
                step("transactions that have ended hold nothing", lambda: committed_alone(kafka, commands))
        except Unavailable as missing:
            print(f"admin commands: skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
