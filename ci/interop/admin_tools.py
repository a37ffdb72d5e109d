"""admin_tools.py JARS CLASSES: Kafka's admin tools of 4.3, each called once or more, with two kcore brokers.

One JVM runs them all (kafka_tools.py).  What each prints is compared with what is so, and its exit status.  In the end
kafka-transactions finds a hanging transaction and aborts it, and the last stable offset moves.  Those of cluster.py are
not called again for what is tried there.  Exits with a message at the first thing that is not so.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from confluent_kafka import Consumer  # noqa: E402

import kcore  # noqa: E402
from ci.interop.kafka_tools import KafkaTools  # noqa: E402
from ci.interop.mirror import step  # noqa: E402
from kcore.coordinator.transaction.transaction_state import Producer  # noqa: E402
from tests.unit.server.client import Client  # noqa: E402
from tests.unit.server.config.test_altering_configs import METRICS, describe  # noqa: E402
from tests.unit.server.transactions import TransactionalClient  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

TOPIC = "t"
#: Of kafka-producer-perf-test, and besides these in each of the first two partitions.
RECORDS, MORE = 500, 20
#: Records at the begin of partition 0 that kafka-delete-records removes.
DELETED = 10
DEADLINE_S = 60
CONFIGS, GROUPS = "kafka.admin.ConfigCommand", "consumer.group.ConsumerGroupCommand"
CLIENT_METRICS = "ClientMetricsCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
LOGGER = "kcore.controller.kafka_controller"
SETTINGS: dict[str, Any] = {
    "authorizer.class.name": "kcore.StoredAclAuthorizer",
    "allow.everyone.if.no.acl.found": True,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "auto.leader.rebalance.enable": False,
}


def shows(printed: str, *patterns: str) -> None:
    """Raises RuntimeError unless each regular expression is there, in a line."""
    for pattern in patterns:
        if not re.search(pattern, printed, re.MULTILINE):
            raise RuntimeError(f"{pattern!r} is not in\n{printed:.4000}")


def until(ask: Callable[[], str], *patterns: str) -> None:
    """A broker may learn of a change a moment after the one that has carried it out.  As shows()."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return shows(ask(), *patterns)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def topics(tools: KafkaTools, cluster: kcore.Cluster) -> None:
    """kafka-topics, kafka-producer-perf-test, kafka-consumer-perf-test, kafka-get-offsets."""
    placed = ("--create", "--topic", TOPIC, "--replica-assignment", "0:1,1:0", "--config", "retention.ms=-1")
    shows(tools.run("TopicCommand", *placed), rf"^Created topic {TOPIC}\.$")
    shows(tools.run("TopicCommand", *placed, status=1), f"Topic '{TOPIC}' already exists")
    shows(tools.run("TopicCommand", "--list"), rf"^{TOPIC}$")
    of = ("--describe", "--topic", TOPIC)
    until(lambda: tools.run("TopicCommand", *of), r"Partition: 0\tLeader: 0\tReplicas: 0,1\tIsr: 0,1\t",
          r"Partition: 1\tLeader: 1\tReplicas: 1,0\tIsr: 1,0\t")  # fmt: skip
    written = ("--topic", TOPIC, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    shows(tools.run("ProducerPerformance", *written), rf"^{RECORDS} records sent, ")
    read = tools.run("ConsumerPerformance", "--topic", TOPIC, "--num-records", str(RECORDS), "--timeout", "60000")
    shows(read, rf"^[^,]+, [^,]+, 0\.0477, [^,]+, {RECORDS}, ")
    for number in range(2 * MORE):
        cluster.produce(TOPIC, f"{number}", partition=number % 2)
    tools.run("TopicCommand", "--alter", "--topic", TOPIC, "--partitions", "3")
    until(lambda: tools.run("TopicCommand", *of), "PartitionCount: 3", r"Partition: 2\tLeader: [01]\t")
    until(lambda: tools.run("GetOffsetShell", "--topic", TOPIC), rf"^{TOPIC}:2:0$")
    ends = re.findall(rf"^{TOPIC}:(\d):(\d+)$", tools.run("GetOffsetShell", "--topic", TOPIC), re.MULTILINE)
    if [number for number, _ in ends] != ["0", "1", "2"] or sum(int(end) for _, end in ends) != RECORDS + 2 * MORE:
        raise RuntimeError(f"kafka-get-offsets shows {ends}")
    shows(tools.run("GetOffsetShell", "--topic", TOPIC, "--time", "max-timestamp"), rf"^{TOPIC}:[01]:\d+$")
    shows(tools.run("TopicCommand", "--describe", "--topic", "nothing", status=1), "'nothing' does not exist")


def configs(tools: KafkaTools) -> None:
    """kafka-configs, kafka-client-metrics."""

    def alter(kind: str, *words: str, status: int = 0) -> str:
        return tools.run(CONFIGS, "--alter", "--entity-type", kind, *words, status=status)

    def described(kind: str, name: str, *patterns: str) -> None:
        until(lambda: tools.run(CONFIGS, "--describe", "--entity-type", kind, "--entity-name", name), *patterns)

    shows(alter("topics", "--entity-name", TOPIC, "--add-config", "retention.ms=7"), "Completed updating")
    described("topics", TOPIC, r"^  retention\.ms=7 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention\.ms=7, ")
    alter("topics", "--entity-name", TOPIC, "--add-config", "retention.ms=-1")
    described("topics", TOPIC, r"^  retention\.ms=-1 ")
    wrong = alter("topics", "--entity-name", TOPIC, "--add-config", "retention.sm=1", status=1)
    shows(wrong, r"InvalidConfigurationException: .*did you mean retention\.ms\?")

    described("broker-loggers", "1", rf"^  {LOGGER}=WARN ")
    alter("broker-loggers", "--entity-name", "1", "--add-config", f"{LOGGER}=ERROR")
    described("broker-loggers", "1", rf"^  {LOGGER}=ERROR ")
    alter("broker-loggers", "--entity-name", "1", "--delete-config", LOGGER)
    described("broker-loggers", "1", rf"^  {LOGGER}=WARN ")
    unknown = alter("broker-loggers", "--entity-name", "1", "--add-config", "no.such=DEBUG", status=1)
    shows(unknown, r"^Invalid broker logger\(s\): no\.such$")

    shows(alter("groups", "--entity-name", "g", "--add-config", "consumer.session.timeout.ms=50000"), "group g")
    described("groups", "g", r"^  consumer\.session\.timeout\.ms=50000 ")
    shows(alter("users", "--entity-name", "alice", "--add-config", "producer_byte_rate=1000"), "user alice")
    described("users", "alice", r"^Quota configs for user-principal 'alice' are producer_byte_rate=1000\.0$")
    alter("clients", "--entity-default", "--add-config", "request_percentage=50")
    until(lambda: tools.run(CONFIGS, "--describe", "--entity-type", "clients", "--entity-default"),
          r"default client-id are request_percentage=50\.0$")  # fmt: skip
    # Again where the broker that is asked has not heard of it yet.
    until(
        lambda: alter("clients", "--entity-default", "--delete-config", "request_percentage"),
        "Completed updating",
    )
    scram = ("--entity-name", "alice", "--add-config", "SCRAM-SHA-256=[password=secret]")
    shows(alter("users", *scram, status=1), "does not support ALTER_USER_SCRAM_CREDENTIALS")
    shows(alter("ips", "--entity-name", "10.0.0.1", "--add-config", "connection_creation_rate=5"), "ip 10.0.0.1")
    described("ips", "10.0.0.1", r"^Quota configs for ip '10\.0\.0\.1' are connection_creation_rate=5\.0$")
    subscriptions(tools, alter, described)


def subscriptions(tools: KafkaTools, alter: Callable[..., str], described: Callable[..., None]) -> None:
    """Those to client metrics: kafka-configs, then kafka-client-metrics."""
    shows(alter("client-metrics", "--entity-name", "m", "--add-config", "interval.ms=10000"), "client-metric m")
    described("client-metrics", "m", r"^  interval\.ms=10000 sensitive=false synonyms=\{")
    wrong = alter("client-metrics", "--entity-name", "m", "--add-config", "interval.ms=1", status=1)
    shows(wrong, r"InvalidRequestException: .*interval\.ms")
    wrong = alter("client-metrics", "--entity-name", "m", "--add-config", "match=[client_id=(]", status=1)
    shows(wrong, "InvalidConfigurationException: Illegal client matching pattern: client_id=\\(")
    until(lambda: tools.run(CLIENT_METRICS, "--list"), "^m$")
    until(lambda: tools.run(CLIENT_METRICS, "--describe", "--name", "m"), r"^  interval\.ms=10000$")
    tools.run(CLIENT_METRICS, "--delete", "--name", "m")
    until(lambda: tools.run(CLIENT_METRICS, "--describe", "--name", "m"), "resource m doesn't exist")
    values = ("--metrics", "org.apache.", "--interval", "5000", "--match", "client_id=a.*")
    altered = tools.run(CLIENT_METRICS, "--alter", "--generate-name", *values)
    (name,) = re.findall(r"^Altered client metrics config for (\S+)\.$", altered, re.MULTILINE)
    until(lambda: tools.run(CLIENT_METRICS, "--describe", "--name", name),
          r"^  interval\.ms=5000$", r"^  match=client_id=a\.\*$", r"^  metrics=org\.apache\.$")  # fmt: skip


def telemetry(tools: KafkaTools, cluster: kcore.Cluster, pushed: list[kcore.ClientTelemetryPayload]) -> None:
    """Kafka's producer pushes what a subscription asks for, and nothing else."""
    name = "org.apache.kafka.producer.record.send.total"
    of = ("--name", "sent", "--metrics", name, "--interval", "100", "--match", "client_id=perf-producer-client")
    tools.run(CLIENT_METRICS, "--alter", *of)
    for broker in cluster.brokers.values():
        with Client(broker) as client:
            wait_until(lambda client=client: describe(client, METRICS, "sent")[1]["interval.ms"][0] == "100")
    written = ("--topic", TOPIC, "--num-records", "60", "--record-size", "100", "--throughput", "30")
    tools.run("ProducerPerformance", *written)
    if not pushed:
        raise RuntimeError("Kafka's producer has pushed nothing")
    # A last push is often missing: the client may be closed before it is sent.
    for payload in pushed:
        named = set(re.findall(rb"org\.apache\.kafka\.[a-z.]*", payload.data))
        if named != {name.encode()} or payload.client.client_software_name != "apache-kafka-java":
            raise RuntimeError(f"Kafka's producer has pushed {payload}")
    tools.run(CLIENT_METRICS, "--delete", "--name", "sent")


def cluster_tools(tools: KafkaTools, cluster_id: str) -> None:
    """kafka-features, kafka-cluster, kafka-broker-api-versions, kafka-metadata-quorum."""
    features = tools.run("FeatureCommand", "describe")
    for feature, level in (("group.version", 1), ("transaction.version", 2)):
        shows(features, rf"^Feature: {feature}\s+SupportedMinVersion: 0\s.*FinalizedVersionLevel: {level}\s")
    for change in (("upgrade", "transaction.version=1"), ("downgrade", "transaction.version=0")):
        refused = tools.run("FeatureCommand", change[0], "--feature", change[1], status=1)
        shows(refused, "^1 out of 1 operation.* failed")
    shows(tools.run("ClusterTool", "cluster-id"), rf"^Cluster ID: {re.escape(cluster_id)}$")
    shows(tools.run("ClusterTool", "list-endpoints"), *(rf"^{number} .*unfenced +broker" for number in (0, 1)))
    shows(tools.run("ClusterTool", "unregister", "--id", "1"), "does not support the broker unregistration")
    shows(tools.run("BrokerApiVersionsCommand"), r"^127.*id: 0 .*-> \($", r"^127.*id: 1 .*-> \($",
          r"^\tProduce\(0\): 0 to 13 \[usable: 13\],$", r"^\tInitProducerId\(22\): 0 to 5 ")  # fmt: skip
    shows(tools.run("MetadataQuorumCommand", "describe", "--status", status=1), "does not support DESCRIBE_QUORUM")


def acls(tools: KafkaTools) -> None:
    """kafka-acls."""
    alice = ("--allow-principal", "User:alice")
    shows(tools.run("AclCommand", "--add", *alice, "--consumer", "--topic", "u", "--group", "g"), "^Adding ACLs")
    prefixed = ("--topic", "v-", "--resource-pattern-type", "prefixed")
    deny = ("--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "Write")
    tools.run("AclCommand", "--add", *deny, *prefixed)
    two_phase = ("--transactional-id", "x", "--operation", "TwoPhaseCommit")
    tools.run("AclCommand", "--add", "--allow-principal", "User:bob", *two_phase)
    topic = r"resourceType=TOPIC, name=u, patternType=LITERAL"
    until(lambda: tools.run("AclCommand", "--list"), topic, r"resourceType=GROUP, name=g, patternType=LITERAL",
          r"resourceType=TOPIC, name=v-, patternType=PREFIXED",
          r"\(principal=User:alice, host=\*, operation=DESCRIBE, permissionType=ALLOW\)",
          r"\(principal=User:bob, host=\*, operation=TWO_PHASE_COMMIT, permissionType=ALLOW\)",
          r"\(principal=User:\*, host=10\.0\.0\.1, operation=WRITE, permissionType=DENY\)")  # fmt: skip
    until(lambda: tools.run("AclCommand", "--list", "--topic", "u"), topic)
    tools.run("AclCommand", "--remove", "--force", "--topic", "u")
    tools.run("AclCommand", "--remove", "--force", *prefixed)
    tools.run("AclCommand", "--remove", "--force", "--group", "g")
    tools.run("AclCommand", "--remove", "--force", "--transactional-id", "x")
    until(lambda: tools.run("AclCommand", "--list"), r"\A\s*\Z")


def replicas(tools: KafkaTools, work: Path) -> None:
    """kafka-log-dirs, kafka-delete-records, kafka-reassign-partitions, kafka-leader-election."""

    def plan(name: str, **content: object) -> str:
        path = work / f"{name}.json"
        path.write_text(json.dumps({"version": 1, **content}))
        return str(path)

    def replicas_by_broker() -> str:
        printed = tools.run("LogDirsCommand", "--describe", "--topic-list", TOPIC)
        brokers = json.loads(printed[printed.index("{") :])["brokers"]
        names = [[replica["partition"] for replica in broker["logDirs"][0]["partitions"]] for broker in brokers]
        return str([sorted(of_broker) for of_broker in names])

    until(replicas_by_broker, re.escape(str([[f"{TOPIC}-{number}" for number in range(3)]] * 2)))
    deletion = plan("delete", partitions=[{"topic": TOPIC, "partition": 0, "offset": DELETED}])
    deleted = tools.run("DeleteRecordsCommand", "--offset-json-file", deletion)
    shows(deleted, rf"^partition: {TOPIC}-0\tlow_watermark: {DELETED}$")
    start = tools.run("GetOffsetShell", "--topic-partitions", f"{TOPIC}:0", "--time", "earliest")
    shows(start, rf"^{TOPIC}:0:{DELETED}$")
    beyond = plan("beyond", partitions=[{"topic": TOPIC, "partition": 0, "offset": 10**9}])
    refused = tools.run("DeleteRecordsCommand", "--offset-json-file", beyond)
    shows(refused, rf"^partition: {TOPIC}-0\terror: .*OutOfRange")

    both = plan("both", topics=[{"topic": TOPIC}])
    proposed = tools.run(REASSIGN, "--generate", "--topics-to-move-json-file", both, "--broker-list", "0,1")
    shows(proposed, "^Proposed partition reassignment configuration$")
    turned = plan("turned", partitions=[{"topic": TOPIC, "partition": 0, "replicas": [1, 0]}])
    execute = ("--reassignment-json-file", turned, "--execute")
    shows(tools.run(REASSIGN, *execute), f"^Successfully started partition reassignment for {TOPIC}-0$")
    verify = ("--reassignment-json-file", turned, "--verify")
    until(lambda: tools.run(REASSIGN, *verify), rf"^Reassignment of partition {TOPIC}-0 is completed\.$")
    shows(tools.run(REASSIGN, "--list"), r"^No partition reassignments found\.$")
    partition = ("--topic", TOPIC, "--partition", "0", "--election-type")
    elected = f"^Successfully completed leader election .*{TOPIC}-0|^Valid replica already elected .*{TOPIC}-0"
    shows(tools.run("LeaderElectionCommand", *partition, "PREFERRED"), elected)
    until(lambda: tools.run("TopicCommand", "--describe", "--topic", TOPIC), r"Partition: 0\tLeader: 1\t")
    shows(tools.run("LeaderElectionCommand", *partition, "UNCLEAN"), f"^Valid replica already elected .*{TOPIC}-0")


@contextmanager
def member(bootstrap_servers: str, protocol: str) -> Iterator[None]:
    """A consumer that has read and committed all, in the group of its protocol's name."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([TOPIC])
        count, deadline = 0, time.monotonic() + DEADLINE_S
        while count < RECORDS + 2 * MORE - DELETED:
            count += sum(message.error() is None for message in consumer.consume(RECORDS, 1))
            if time.monotonic() > deadline:
                raise RuntimeError(f"a member of {protocol} has read {count} records")
        consumer.commit(asynchronous=False)
        yield
    finally:
        consumer.close()


def groups(tools: KafkaTools, bootstrap_servers: str, protocol: str) -> None:
    """kafka-consumer-groups, kafka-groups, of a group of either protocol."""
    of = ("--group", protocol)
    type_name, assignor = ("Classic", "range") if protocol == "classic" else ("Consumer", "uniform")
    with member(bootstrap_servers, protocol):
        shows(tools.run(GROUPS, "--describe", *of), *(
            rf"^{protocol} +{TOPIC} +{number} +(\d+) +\1 +0 +\S+ +/127\.0\.0\.1 +rdkafka" for number in (0, 1)
        ))  # fmt: skip
        epoch = "-" if protocol == "classic" else r"\d+"
        shows(tools.run(GROUPS, "--describe", *of, "--members", "--verbose"),
              rf"^{protocol} +\S+ +/127\.0\.0\.1 +rdkafka +3 +{epoch} +{TOPIC}:0,1,2 +{epoch} ")  # fmt: skip
        shows(tools.run(GROUPS, "--describe", *of, "--state"), rf"^{protocol} .*\(\d\) +{assignor} +Stable +1$")
        shows(tools.run(GROUPS, "--list", "--state"), rf"^{protocol} +Stable")
        shows(tools.run(GROUPS, "--list", "--type"), rf"^{protocol} +{type_name}")
        shows(tools.run("GroupsCommand", "--list"), rf"^{protocol} +{type_name} +consumer")
        shows(tools.run(GROUPS, "--delete", *of), "GroupNotEmptyException")
    reset = ("--reset-offsets", *of, "--topic", f"{TOPIC}:0", "--to-offset", "20")
    # Once the coordinator knows that the member has left.
    until(lambda: tools.run(GROUPS, *reset, "--dry-run"), rf"^{protocol} +{TOPIC} +0 +20")
    shows(tools.run(GROUPS, *reset, "--execute"), rf"^{protocol} +{TOPIC} +0 +20")
    shows(tools.run(GROUPS, "--delete-offsets", *of, "--topic", f"{TOPIC}:1"), rf"^{TOPIC} +1 +Successful")
    left = tools.run(GROUPS, "--describe", *of, "--offsets")
    shows(left, "no active members", rf"^{protocol} +{TOPIC} +0 +20 ")
    if re.search(rf"^{protocol} +{TOPIC} +1 ", left, re.MULTILINE):
        raise RuntimeError(f"a deleted offset is there:\n{left}")
    shows(tools.run(GROUPS, "--delete", *of), rf"\('{protocol}'\) was successful")
    # This tool exits with 0 where it fails.
    shows(tools.run(GROUPS, "--describe", *of), rf"GroupIdNotFoundException: Group {protocol} not found\.")


def delete_topic(tools: KafkaTools) -> None:
    tools.run("TopicCommand", "--delete", "--topic", TOPIC)
    until(lambda: f"{TOPIC in tools.run('TopicCommand', '--list').split()}", "^False$")


def hanging_transaction(tools: KafkaTools, broker: kcore.Broker) -> None:
    """kafka-transactions, where a batch came after the end of its transaction."""

    def run(*words: str, status: int = 0) -> str:
        return tools.run("TransactionsCommand", *words, status=status)

    broker.create_topic("held")
    with broker.transaction("late") as late:
        late.produce("held", "in time")
    start = 2  # after the record and its marker
    until(lambda: f"{broker.log('held').last_stable_offset}", f"^{start}$")
    state = broker.running.services.transaction_coordinator.describe("late")
    with Client(broker) as client:
        producer = TransactionalClient(client, "late")
        producer.producer = Producer(state.producer_id, state.producer_epoch)
        if code := producer.produce("held", 0, b"late", base_sequence=1):
            raise RuntimeError(f"the late batch is refused with {code}")
    broker.produce("held", "behind it")
    if broker.log("held").last_stable_offset != start:
        raise RuntimeError(f"the late batch holds nobody back: {broker.log('held').last_stable_offset}")
    at = ("--topic", "held", "--partition", "0")
    row = rf"^held\s+0\s+{state.producer_id}\s+{state.producer_epoch}\s+\d+\s+{start}\s"
    for asked in (("--broker-id", "1"), at):
        shows(run("find-hanging", *asked, "--max-transaction-timeout", "0"), row)
    shows(run("describe-producers", *at), rf"^{state.producer_id}\s.*\s{start}\s*$")
    run("abort", *at, "--start-offset", str(start))
    end = broker.log("held").log_end_offset
    until(lambda: f"{broker.log('held').last_stable_offset}", f"^{end}$")
    read = [record.value for record in broker.log("held").records(isolation="read_committed")]
    if read != [b"in time", b"behind it"]:
        raise RuntimeError(f"committed are {read}")
    shows(run("describe-producers", *at), rf"^{state.producer_id}\s.*\sNone\s*$")
    if "held" in run("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0"):
        raise RuntimeError("the aborted transaction hangs")
    shows(
        run("abort", *at, "--start-offset", str(start), status=1), f"any open transactions starting at offset {start}"
    )
    shows(run("describe", "--transactional-id", "late"), r"^1\s+late\s.*\sCompleteCommit\s")
    shows(run("describe", "--transactional-id", "nobody", status=1), "ID could not be found")

    broker.transaction("open").produce("held", "x")
    shows(run("list"), r"^open\s+1\s+\d+\s+Ongoing\s*$", r"^late\s+1\s+\d+\s+CompleteCommit\s*$")
    run("forceTerminateTransaction", "--transactionalId", "open")
    until(lambda: run("list"), r"^open\s+1\s+\d+\s+(Empty|CompleteAbort)\s*$")


def main() -> None:
    jars, classes = sys.argv[1:]
    begin = time.monotonic()
    pushed: list[kcore.ClientTelemetryPayload] = []
    with tempfile.TemporaryDirectory(prefix="kcore-tools-") as directory:
        work = Path(directory)
        with (
            kcore.Cluster(2, work / "cluster", telemetry_receiver=pushed.append, **SETTINGS) as cluster,
            KafkaTools(jars, classes, cluster.bootstrap_servers) as tools,
        ):
            step("kafka-topics, -get-offsets, -producer-perf-test, -consumer-perf-test", lambda: topics(tools, cluster))
            step("kafka-configs, -client-metrics", lambda: configs(tools))
            step("kafka-producer-perf-test pushes its metrics", lambda: telemetry(tools, cluster, pushed))
            cluster_id = cluster.brokers[0].cluster_id
            step("kafka-features, -cluster, -broker-api-versions", lambda: cluster_tools(tools, cluster_id))
            step("kafka-acls", lambda: acls(tools))
            step(
                "kafka-log-dirs, -delete-records, -reassign-partitions, -leader-election", lambda: replicas(tools, work)
            )
            for protocol in ("classic", "consumer"):
                name = f"kafka-consumer-groups, -groups: group.protocol={protocol}"
                step(name, lambda p=protocol: groups(tools, cluster.bootstrap_servers, p))  # type: ignore[misc]
            step("kafka-topics --delete", lambda: delete_topic(tools))
        unverified = {
            "transaction.partition.verification.enable": False,
            "kcore.transaction.version": 0,
            "transaction.state.log.num.partitions": 1,
        }
        with (
            kcore.Broker(work / "broker", **unverified) as broker,
            KafkaTools(jars, classes, broker.bootstrap_servers) as tools,
        ):
            name = "kafka-transactions finds a hanging transaction and aborts it"
            step(name, lambda: hanging_transaction(tools, broker))
    print(f"interop: Kafka's admin tools, no difference ({time.monotonic() - begin:.0f} s)")


if __name__ == "__main__":
    main()
