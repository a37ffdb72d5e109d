"""Steps of mixed.py: what operators change in a cluster of both kinds of brokers, and brokers that stand still.

1. Moves with `--throttle` that are cancelled, by kafka-reassign-partitions under a kcore controller and by
   `kcore reassign` under a Java controller: neither ZooKeeper nor a data directory keeps a trace.
2. Settings of topics, of brokers and of clients, changed at a broker of each kind, reach all brokers; kafka-topics
   grows and deletes a topic, under controllers of both kinds.  ACLs that one kind stores hold at all brokers.
3. A controller of each kind is paused until its session has ended, and goes on after another was elected, while a
   producer writes with acks=all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.peers.replicate import wait_for
from ci.interop.mirror import kcore, step
from ci.interop.mixed_cluster import (
    ASSIGNMENT,
    JAVA_BROKERS,
    KCORE_BROKER,
    LOAD_RECORD,
    Mixed,
    Writer,
    await_controller,
    check,
    compare,
    create_topic,
    elect_preferred,
)
from kcore.client.blocking_sender import BlockingSender
from kcore.errors import TopicAuthorizationFailed
from kcore.metadata import znodes
from kcore.protocol.messages import alter_client_quotas as acq
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import describe_client_quotas as dcq
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.schema import Message
from kcore.security.acl import AclOperation, AclPermissionType, PatternType, ResourceType

BROKERS = (*JAVA_BROKERS, KCORE_BROKER)
CANCELLED, PAUSED, CHANGED = "cancelled", "paused", "changed"
#: Replicas of each partition of CANCELLED, and where they would go: each adds one and takes one away, between both
#: kinds, as kafka-reassign-partitions of 3.9 does not cancel a move that only adds replicas.
HERE = ((1, 2), (3, 1), (2, 1), (1, 3))
THERE = ((3, 2), (2, 1), (3, 1), (2, 1))
#: Bytes of each partition of CANCELLED, and bytes a second: a move takes longer than two runs of a tool.
LOAD, THROTTLE = 24 << 20, 500_000
_TOOLS = "org.apache.kafka.tools"
_TOPIC, _BROKER, _OWN, _OF_ALL_BROKERS, _DEFAULT = 2, 4, 1, 3, 5


def change_things(mixed: Mixed) -> None:
    await_controller(mixed, [KCORE_BROKER])
    create_topic(mixed, CANCELLED, HERE, 1)
    load(mixed)
    step("under a kcore controller kafka-reassign-partitions cancels throttled moves", lambda: cancel_with_kafka(mixed))
    step("settings that one kind of broker stores reach the other", lambda: change_settings(mixed))
    step("ACLs that one kind of broker stores hold at the other", lambda: change_acls(mixed))
    step("kafka-topics grows a topic and deletes it", lambda: grow_and_delete(mixed))
    create_topic(mixed, PAUSED, ASSIGNMENT, 2)
    writer = Writer(mixed.bootstrap_servers, PAUSED, len(ASSIGNMENT))
    try:
        step("the kcore controller is paused, and goes on", lambda: pause_controller(mixed, writer))
        await_controller(mixed, JAVA_BROKERS)
        step("a Java controller is paused, and goes on", lambda: pause_controller(mixed, writer))
    finally:
        writer.stop()
    step("each acknowledged record is read once", lambda: compare(mixed, writer))
    await_controller(mixed, JAVA_BROKERS)
    step("under a Java controller kcore reassign cancels throttled moves", lambda: cancel_with_kcore(mixed))
    step("kafka-topics grows a topic and deletes it", lambda: grow_and_delete(mixed))


# -- moves that are cancelled ---------------------------------------------------------------------------


def load(mixed: Mixed) -> None:
    count = len(HERE) * LOAD // LOAD_RECORD
    options = ("--topic", CANCELLED, "--num-records", str(count), "--record-size", str(LOAD_RECORD))
    properties = (f"bootstrap.servers={mixed.bootstrap_servers}", "acks=all")
    mixed.run(f"{_TOOLS}.ProducerPerformance", *options, "--throughput", "-1", "--producer-props", *properties)


def cancel_with_kafka(mixed: Mixed) -> None:
    moves = [{"topic": CANCELLED, "partition": number, "replicas": replicas} for number, replicas in enumerate(THERE)]
    plan = mixed.directory / "cancel.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))

    def run(*options: str) -> str:
        server = ("--bootstrap-server", mixed.bootstrap_servers, "--reassignment-json-file", str(plan))
        return mixed.run(f"{_TOOLS}.reassign.ReassignPartitionsCommand", *server, *options)

    run("--execute", "--throttle", str(THROTTLE))
    moves_are_throttled(mixed)
    verified = run("--verify")
    check(verified.count("still in progress") == len(THERE), verified)
    run("--cancel")
    await_no_trace(mixed)


def cancel_with_kcore(mixed: Mixed) -> None:
    server = ("--bootstrap", mixed.bootstrap_servers)
    for number, replicas in enumerate(THERE):
        target = ",".join(map(str, replicas))
        kcore("reassign", f"{CANCELLED}:{number}", "--to", target, "--throttle", str(THROTTLE), *server)
    moves_are_throttled(mixed)
    kcore("reassign", CANCELLED, "--cancel", *server)
    kcore("reassign", CANCELLED, "--unthrottle", *server)
    await_no_trace(mixed)


def moves_are_throttled(mixed: Mixed) -> None:
    """All partitions are being moved, and their settings say that both ends are throttled."""
    node = mixed.assignment(CANCELLED)
    check(sorted(node.adding) == sorted(node.removing) == list(range(len(THERE))), node)
    throttled = {f"{end}.replication.throttled.replicas" for end in ("leader", "follower")}
    config = mixed.config(znodes.topic_config(CANCELLED))
    check(throttled <= config.keys(), config)
    for broker in BROKERS:
        config = mixed.config(znodes.broker_config(str(broker)))
        rates = [config.get(f"{end}.replication.throttled.rate") for end in ("leader", "follower")]
        check(rates == [str(THROTTLE)] * 2, f"broker {broker}: {config}")


def await_no_trace(mixed: Mixed) -> None:
    def is_as_before() -> bool:
        node = mixed.assignment(CANCELLED)
        replicas = [sorted(node.assignment.get(number, ())) for number in range(len(HERE))]
        return not node.adding and not node.removing and replicas == [sorted(brokers) for brokers in HERE]

    wait_for(is_as_before, "the replicas of before")
    mixed.await_whole_isr(CANCELLED, HERE)
    for number, replicas in enumerate(HERE):
        for broker in set(BROKERS) - set(replicas):
            directory = mixed.data_dir(broker) / f"{CANCELLED}-{number}"
            wait_for(lambda directory=directory: not directory.exists(), f"{directory} to go")  # type: ignore[misc]
    paths = [znodes.topic_config(CANCELLED), *(znodes.broker_config(str(broker)) for broker in BROKERS)]
    left = {path: name for path in paths for name in mixed.config(path) if "throttled" in name}
    check(not left, f"settings that were left: {left}")


# -- settings -------------------------------------------------------------------------------------------


def change_settings(mixed: Mixed) -> None:
    create_topic(mixed, CHANGED, ASSIGNMENT, 2)
    senders = {broker: BlockingSender(*mixed.address(broker), "mixed", request_timeout_ms=60_000) for broker in BROKERS}
    try:
        for number, broker in enumerate((JAVA_BROKERS[0], KCORE_BROKER), 1):
            _change_at(senders, broker, 1_000_000 * number)
    finally:
        for sender in senders.values():
            sender.close()


def _change_at(senders: dict[int, BlockingSender], asked: int, value: int) -> None:
    """Ask one broker for changes, and all of them what they have then."""

    def ask(request: Message, version: int = 1) -> None:
        response = senders[asked].send(request, version)
        results = response.entries if isinstance(response, acq.AlterClientQuotasResponse) else response.responses  # type: ignore[attr-defined]
        check([result.error_code for result in results] == [0], f"broker {asked}: {response}")

    def alter(kind: int, name: str, setting: str, value: str | None) -> None:
        config = iac.AlterableConfig(name=setting, config_operation=0 if value else 1, value=value)
        resource = iac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        ask(iac.IncrementalAlterConfigsRequest(resources=[resource]))

    def all_have(kind: int, setting: str, expected: str | None, source: int) -> None:
        for broker, sender in senders.items():
            name = str(broker) if kind == _BROKER else CHANGED

            def has(sender: BlockingSender = sender, name: str = name) -> bool:
                value, its_source = _described(sender, kind, name)[setting]
                return its_source == source and (expected is None or value == expected)

            wait_for(has, f"broker {broker}: {setting} is {expected} of {source}, as broker {asked} was told", 60)

    text = str(value)
    alter(_BROKER, "", "log.retention.ms", text)
    all_have(_BROKER, "log.retention.ms", text, _OF_ALL_BROKERS)
    all_have(_TOPIC, "retention.ms", text, _OF_ALL_BROKERS)
    alter(_BROKER, "", "log.retention.ms", None)
    all_have(_BROKER, "log.retention.ms", None, _DEFAULT)
    alter(_TOPIC, CHANGED, "max.message.bytes", text)
    all_have(_TOPIC, "max.message.bytes", text, _OWN)
    settings = [ac.AlterableConfig(name=name, value=text) for name in ("segment.bytes", "min.insync.replicas")]
    settings[1].value = "2"
    ask(
        ac.AlterConfigsRequest(
            resources=[ac.AlterConfigsResource(resource_type=_TOPIC, resource_name=CHANGED, configs=settings)]
        )
    )
    all_have(_TOPIC, "segment.bytes", text, _OWN)
    all_have(_TOPIC, "max.message.bytes", None, _DEFAULT)
    for remove, expected in ((False, [float(value)]), (True, [])):
        entity = [acq.EntityData(entity_type="client-id", entity_name="mixed")]
        quota = acq.OpData(key="producer_byte_rate", value=float(value), remove=remove)
        ask(acq.AlterClientQuotasRequest(entries=[acq.EntryData(entity=entity, ops=[quota])]))
        for broker, sender in senders.items():
            wait_for(
                lambda sender=sender, expected=expected: list(_quotas(sender)) == expected,  # type: ignore[misc]
                f"broker {broker}: the quota is {expected}, as broker {asked} was told",
                60,
            )


def _described(sender: BlockingSender, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
    """Setting -> its value, and where that is from."""
    resource = dc.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = sender.send(dc.DescribeConfigsRequest(resources=[resource]), 4).results  # type: ignore[attr-defined]
    check(result.error_code == 0, result)
    return {config.name: (config.value, config.config_source) for config in result.configs}


def _quotas(sender: BlockingSender) -> Iterator[float]:
    response = sender.send(dcq.DescribeClientQuotasRequest(components=[], strict=False), 1)
    for entry in response.entries:  # type: ignore[attr-defined]
        yield from (value.value for value in entry.values)


# -- ACLs -----------------------------------------------------------------------------------------------


def change_acls(mixed: Mixed) -> None:
    """A broker of one kind stores an ACL that denies a topic, or all of a prefix; one of the other kind deletes it."""
    senders = {broker: BlockingSender(*mixed.address(broker), "mixed", request_timeout_ms=60_000) for broker in BROKERS}
    pair = JAVA_BROKERS[0], KCORE_BROKER
    try:
        for asked, other in (pair, pair[::-1]):
            for pattern_type, name in ((PatternType.LITERAL, "denied"), (PatternType.PREFIXED, "den")):
                _all_deny(senders, False)
                response = senders[asked].send(_create_acl(pattern_type, name), 2)
                check([result.error_code for result in response.results] == [0], response)  # type: ignore[attr-defined]
                _all_deny(senders, True)
                deletion = da.DeleteAclsFilter(
                    resource_type_filter=ResourceType.TOPIC,
                    resource_name_filter=name,
                    pattern_type_filter=pattern_type,
                    principal_filter=None,
                    host_filter=None,
                    operation=AclOperation.ANY,
                    permission_type=AclPermissionType.ANY,
                )
                response = senders[other].send(da.DeleteAclsRequest(filters=[deletion]), 2)
                deleted = [len(result.matching_acls) for result in response.filter_results]  # type: ignore[attr-defined]
                check(deleted == [1], response)
        _all_deny(senders, False)
    finally:
        for sender in senders.values():
            sender.close()


def _create_acl(pattern_type: PatternType, name: str) -> ca.CreateAclsRequest:
    creation = ca.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=pattern_type,
        principal="User:ANONYMOUS",
        host="127.0.0.1",
        operation=AclOperation.ALL,
        permission_type=AclPermissionType.DENY,
    )
    return ca.CreateAclsRequest(creations=[creation])


def _all_deny(senders: dict[int, BlockingSender], expected: bool) -> None:
    """All brokers refuse to describe a topic, that there is not."""
    resource = dc.DescribeConfigsResource(resource_type=_TOPIC, resource_name="denied", configuration_keys=None)
    request = dc.DescribeConfigsRequest(resources=[resource])
    for broker, sender in senders.items():

        def denies(sender: BlockingSender = sender) -> bool:
            (result,) = sender.send(request, 4).results  # type: ignore[attr-defined]
            return bool(result.error_code == TopicAuthorizationFailed.code)

        wait_for(lambda denies=denies: denies() is expected, f"broker {broker}: denied is {expected}", 60)  # type: ignore[misc]


def grow_and_delete(mixed: Mixed) -> None:
    """And once more under the same name, at once."""
    server = ("--bootstrap-server", mixed.bootstrap_servers)
    grown = (*ASSIGNMENT, (1, 2, 3), (3, 2, 1))
    text = ",".join(":".join(map(str, replicas)) for replicas in grown)
    create_topic(mixed, "grown", ASSIGNMENT, 2)
    count = ("--partitions", str(len(grown)), "--replica-assignment", text)
    mixed.run(f"{_TOOLS}.TopicCommand", *server, "--alter", "--topic", "grown", *count)
    mixed.await_whole_isr("grown", grown)
    mixed.run(f"{_TOOLS}.TopicCommand", *server, "--delete", "--topic", "grown")
    # In the order in which the controller deletes them.
    for path in (znodes.topic("grown"), znodes.topic_config("grown"), znodes.delete_topic("grown")):
        wait_for(lambda path=path: not mixed.has(path), f"{path} to go")  # type: ignore[misc]
    for broker in BROKERS:
        left = [path for path in mixed.data_dir(broker).glob("grown-*") if not path.name.endswith("-delete")]
        check(not left, f"{left} are left")
    create_topic(mixed, "grown", ASSIGNMENT, 2)
    mixed.run(f"{_TOOLS}.TopicCommand", *server, "--delete", "--topic", "grown")
    wait_for(lambda: not mixed.has(znodes.topic("grown")), "the topic to be deleted")


# -- brokers that stand still ---------------------------------------------------------------------------


def pause_controller(mixed: Mixed, writer: Writer) -> None:
    """It leads too.  When it goes on, it believes for a moment that it still is the controller, and a leader."""
    elect_preferred(mixed, PAUSED)
    writer.await_more()
    paused, epoch = mixed.controller(), mixed.controller_epoch()
    assert paused is not None
    mixed.pause(paused)
    try:
        wait_for(lambda: paused not in mixed.registered(), f"the session of broker {paused} to end")
        wait_for(lambda: mixed.controller() not in (None, paused), "another controller")
        mixed.await_leaders(paused, PAUSED)
        writer.await_more()
    finally:
        mixed.resume(paused)
    wait_for(lambda: paused in mixed.registered(), f"broker {paused} to register again")
    mixed.await_whole_isr(PAUSED)
    check(mixed.controller() != paused, f"broker {paused} has become the controller again")
    check(mixed.controller_epoch() > epoch, f"the controller epoch is still {epoch}")
    writer.await_more()
