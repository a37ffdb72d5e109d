"""kcore groups, against a cluster of three brokers."""

import json
from contextlib import contextmanager

import pytest

import kcore
from kcore.client.admin_client import AdminClient
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import join_group as jg
from kcore.protocol.messages import leave_group as leave
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import sync_group as sg
from kcore.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcore.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from kcore.tools.command_line import addresses
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS, lasting_session
from tests.unit.server.client import Client
from tests.unit.tools.command import run_text
from tests.waiting import wait_until

#: They are spread over the partitions of __consumer_offsets, so over the brokers.
GROUPS = [f"group-{number}" for number in range(6)]


@pytest.fixture(scope="module")
def cluster():
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, offsets_topic_num_partitions=3, **settings) as cluster:
        cluster.create_topic("orders", partitions=3)
        leader = cluster.brokers[cluster.leader("orders", 1)]
        for number in range(5):
            leader.produce("orders", f"{number}", partition=1)
        yield cluster


def run_on(cluster, capsys, *words):
    """(exit status, JSON lines, stderr); broker 0 is asked, which coordinates only some of the groups."""
    status = main([*words, "--json", "--bootstrap", cluster.brokers[0].bootstrap_servers])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def run(cluster, capsys):
    return lambda *words: run_on(cluster, capsys, *words)


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""

    def text(*words):
        status = main([*words, "--bootstrap", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        return status, out, err

    return text


@contextmanager
def coordinator(cluster, group):
    """A connection to the group's coordinator, and its id."""
    found = []

    def is_there():
        with Client(cluster.brokers[0]) as client:
            found.append(client.ask(fc.FindCoordinatorRequest(key=group), 3))
        return found[-1].error_code == 0

    wait_until(is_there)
    number = found[-1].node_id
    with Client(cluster.brokers[number], client_id=f"client of {group}") as client:
        yield client, number


def commit(client, group, offsets, generation=-1, member=""):
    """offsets: (topic, partition) -> offset."""
    topics = [
        oc.OffsetCommitRequestTopic(
            name=topic,
            partitions=[oc.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
        )
        for (topic, partition), offset in offsets.items()
    ]
    request = oc.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )

    def is_done():  # the coordinator may be loading
        response = client.ask(request, 7)
        return {p.error_code for topic in response.topics for p in topic.partitions} == {0}

    wait_until(is_done)


@contextmanager
def member(client, group, partitions, instance_id=None, protocol_type="consumer", topic="orders"):
    """A member of the group that these partitions are assigned to: (member id, generation)."""
    request = jg.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")],
    )
    joined = []

    def has_joined():
        joined.append(client.ask(request, 5))
        if joined[-1].error_code == 79:  # MEMBER_ID_REQUIRED
            request.member_id = joined[-1].member_id
        return joined[-1].error_code == 0

    wait_until(has_joined)
    ids = {"group_id": group, "generation_id": joined[-1].generation_id, "member_id": joined[-1].member_id}
    assigned = [TopicPartition(topic=topic, partitions=partitions)]
    assignment = b"\0\1" + ConsumerProtocolAssignment(assigned_partitions=assigned).encode(1)
    assignments = [sg.SyncGroupRequestAssignment(member_id=joined[-1].member_id, assignment=assignment)]
    assert (
        client.ask(sg.SyncGroupRequest(**ids, group_instance_id=instance_id, assignments=assignments), 3).error_code
        == 0
    )
    try:
        yield joined[-1].member_id, joined[-1].generation_id
    finally:
        leaving = leave.MemberIdentity(member_id=joined[-1].member_id, group_instance_id=instance_id)
        assert client.ask(leave.LeaveGroupRequest(group_id=group, members=[leaving]), 3).error_code == 0


def test_who_looks_for_a_group_makes_no_topic_of_groups(capsys):
    with kcore.Broker() as broker:
        broker.create_topic("orders")
        servers = ("--bootstrap", broker.bootstrap_servers)
        assert run_text(capsys, "groups", "list", *servers) == (0, "", "")
        assert run_text(capsys, "groups", "describe", "x", *servers) == (2, "", "kcore: there is no group 'x'\n")
        plan = run_text(capsys, "groups", "reset", "x", "--topic", "orders", "--to", "earliest", *servers)
        assert plan[0] == 0 and "--apply makes it" in plan[1]
        assert "__consumer_offsets" not in run_text(capsys, "topics", "describe", *servers)[1]
        assert main(["groups", "reset", "x", "--topic", "orders", "--to", "earliest", "--apply", *servers]) == 0
        assert main(["groups", "describe", "x", *servers]) == 0


def test_the_groups_of_all_brokers_are_listed_and_described_by_their_coordinators(cluster, run, text):
    coordinators = {}
    for number, group in enumerate(GROUPS):
        with coordinator(cluster, group) as (client, coordinators[group]):
            commit(client, group, {("orders", 1): number})
    assert len(set(coordinators.values())) > 1
    status, listed, err = run("groups", "list")
    assert (status, err) == (0, "")
    assert [line for line in listed if line["group"] in GROUPS] == [
        {"group": group, "state": "Empty", "protocol_type": "", "coordinator": coordinators[group]} for group in GROUPS
    ]
    assert set(text("groups", "list")[1].splitlines()) >= set(GROUPS)
    status, described, err = run("groups", "describe", *GROUPS)
    assert (status, err) == (0, "")
    assert [(line["group"], line["state"], line["coordinator"], line["members"]) for line in described] == [
        (group, "Empty", coordinators[group], []) for group in GROUPS
    ]
    lags = [
        [(p["topic"], p["partition"], p["committed_offset"], p["log_end_offset"], p["lag"]) for p in line["partitions"]]
        for line in described
    ]
    assert lags == [[("orders", 1, number, 5, 5 - number)] for number in range(len(GROUPS))]
    assert [line["group"] for line in run("groups", "describe")[1] if line["group"] in GROUPS] == GROUPS


def test_a_group_with_members_is_described_with_what_is_assigned_to_each_and_is_not_deleted(cluster, run, text):
    with (
        coordinator(cluster, "busy") as (client, number),
        member(client, "busy", [1, 2], instance_id="till-7") as (member_id, generation),
    ):
        commit(client, "busy", {("orders", 1): 3, ("orders", 0): 0}, generation, member_id)
        status, out, err = text("groups", "describe", "busy")
        assert (status, err) == (0, "")
        assert out.splitlines() == [
            f"busy: Stable, protocol range, coordinator {number}, 1 member",
            f"  member {member_id} (static member till-7), client client of busy at 127.0.0.1: orders-1, orders-2",
            "  orders-0: committed 0, log end 0, lag 0",
            f"  orders-1: member {member_id}, committed 3, log end 5, lag 2",
            f"  orders-2: member {member_id}, nothing committed, log end 0",
        ]
        _, (described,), _ = run("groups", "describe", "busy")
        assert described["members"] == [
            {
                "member_id": member_id,
                "group_instance_id": "till-7",
                "client_id": "client of busy",
                "host": "/127.0.0.1",
                "assignment": [{"topic": "orders", "partition": 1}, {"topic": "orders", "partition": 2}],
            }
        ]
        assert [(p["lag"], p["member_id"]) for p in described["partitions"]] == [
            (0, None),
            (2, member_id),
            (None, member_id),
        ]
        assert text("groups", "delete", "busy") == (
            2,
            "",
            "kcore: group 'busy': NonEmptyGroup: The group still has members.\n",
        )
    assert text("groups", "delete", "busy") == (0, "busy is deleted\n", "")
    assert text("groups", "describe", "busy") == (2, "", "kcore: Group busy not found.\n")


def test_groups_as_kafkas_script_has_them(cluster, run, text):
    for group in ("one", "two", "three"):
        with coordinator(cluster, group) as (client, _):
            commit(client, group, {("orders", 0): 0})
    described = run("groups", "describe", "--group", "two", "one", "--group", "three")[1]
    assert [line["group"] for line in described] == ["one", "two", "three"]
    assert text("groups", "delete", "--group", "two", "--group", "three", "one")[1].count("is deleted") == 3
    assert text("groups", "delete") == (2, "", "kcore: expected a GROUP\n")


def test_of_several_groups_the_others_are_done_where_one_does_not_exist(cluster, run, text):
    for group in ("kept", "removed"):
        with coordinator(cluster, group) as (client, _):
            commit(client, group, {("orders", 0): 0})
    status, lines, err = run("groups", "describe", "missing", "kept")
    assert (status, [line["group"] for line in lines], err) == (2, ["kept"], "kcore: Group missing not found.\n")
    status, lines, err = run("groups", "delete", "missing", "removed")
    assert (status, lines) == (2, [{"group": "removed", "deleted": True}])
    assert err == "kcore: there is no group 'missing'\n"
    names = text("groups", "list")[1].splitlines()
    assert "kept" in names and "removed" not in names


def test_what_a_terminal_would_obey_in_a_groups_names_is_shown_as_escapes(cluster, run, text):
    name = "a\x1b[31mred\nb\x9b"
    shown = r"a\x1b[31mred\nb\x9b"
    with (
        coordinator(cluster, name) as (client, number),
        member(client, name, [1], instance_id="\x1b]0;title\a"),
    ):
        assert shown in text("groups", "list")[1].splitlines()
        _, out, _ = text("groups", "describe", name)
        first, of_member, _ = out.splitlines()
        assert first == f"{shown}: Stable, protocol range, coordinator {number}, 1 member"
        assert rf"(static member \x1b]0;title\x07), client client of {shown} at" in of_member
        assert name in [line["group"] for line in run("groups", "list")[1]]
        assert [line["group"] for line in run("groups", "describe", name)[1]] == [name]
    assert text("groups", "delete", name) == (0, f"{shown} is deleted\n", "")
    assert text("groups", "describe", name) == (2, "", f"kcore: Group {shown} not found.\n")


def test_where_the_topic_has_gone_the_log_end_is_unknown_with_the_reason(cluster, run, text):
    with (
        coordinator(cluster, "late") as (client, _),
        member(client, "late", [4], topic="gone") as (member_id, generation),
    ):
        commit(client, "late", {("orders", 1): 1}, generation, member_id)
        status, out, err = text("groups", "describe", "late")
        assert (status, err) == (1, "")
        assert out.splitlines()[2:] == [
            f"  gone-4: member {member_id}, nothing committed, log end unknown: UnknownTopicOrPartition: This broker "
            "knows no such topic or partition.",
            "  orders-1: committed 1, log end 5, lag 4",
        ]
        (gone, _) = run("groups", "describe", "late")[1][0]["partitions"]
        assert (gone["log_end_offset"], gone["lag"]) == (None, None) and "UnknownTopicOrPartition" in gone["problem"]


def test_the_groups_that_read_a_topic_are_described_with_their_partitions_of_it_only(cluster, run, text):
    cluster.create_topic("refunds")
    cluster.create_topic("unread")
    with (
        coordinator(cluster, "of refunds") as (client, number),
        member(client, "of refunds", [0], topic="refunds") as (member_id, generation),
        coordinator(cluster, "of both") as (other, other_number),
    ):
        commit(client, "of refunds", {("orders", 1): 5}, generation, member_id)
        commit(other, "of both", {("orders", 1): 2, ("refunds", 0): 0})
        assert text("groups", "describe", "--topic", "refunds") == (
            0,
            f"of both: Empty, coordinator {other_number}, 0 members\n"
            "  refunds-0: committed 0, log end 0, lag 0\n"
            f"of refunds: Stable, protocol range, coordinator {number}, 1 member\n"
            f"  member {member_id}, client client of of refunds at 127.0.0.1: refunds-0\n"
            f"  refunds-0: member {member_id}, nothing committed, log end 0\n",
            "",
        )
        status, (described,), err = run("groups", "describe", "of both", "--topic", "refunds", "--topic", "unread")
        assert (status, [at["topic"] for at in described["partitions"]]) == (0, ["refunds"])
        assert err == "kcore: no group of these reads unread: none has committed an offset for it, or is assigned it\n"
    status, lines, err = run("groups", "describe", "--topic", "unread")
    assert (status, lines) == (0, []) and err.startswith("kcore: no group reads unread: ")
    status, lines, err = run("groups", "describe", "--topic", "refund")
    assert (status, lines) == (2, []) and err.startswith("kcore: ") and err.endswith("; did you mean refunds?\n")


def test_of_a_topic_that_is_gone_its_groups_are_described_and_the_log_ends_of_others_are_not_looked_for(cluster, run):
    with (
        coordinator(cluster, "behind") as (client, _),
        member(client, "behind", [0], topic="former") as (member_id, generation),
    ):
        commit(client, "behind", {("orders", 1): 1}, generation, member_id)
        status, (described,), err = run("groups", "describe", "--topic", "former")
        assert (status, err) == (1, "")
        assert [(at["topic"], at["log_end_offset"]) for at in described["partitions"]] == [("former", None)]
        status, (described,), err = run("groups", "describe", "behind", "--topic", "orders")
        assert (status, [at["topic"] for at in described["partitions"]], err) == (0, ["orders"], "")


def test_members_that_are_no_consumers_have_no_partitions(cluster, text):
    with coordinator(cluster, "workers") as (client, _), member(client, "workers", [0], protocol_type="connect"):
        _, out, _ = text("groups", "describe", "workers")
        assert out.splitlines()[1].endswith("client client of workers at 127.0.0.1: assignment not known")
        assert len(out.splitlines()) == 2


def test_a_broker_that_cannot_be_asked_for_its_groups_is_named(capsys):
    with kcore.Cluster(2, offsets_topic_num_partitions=1, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("orders")
        with coordinator(cluster, "g") as (client, number):
            commit(client, "g", {("orders", 0): 0})
        with lasting_session(cluster.brokers[1 - number]):
            cluster.kill(1 - number)
            status = main(["groups", "list", "--bootstrap", cluster.brokers[number].bootstrap_servers])
            out, err = capsys.readouterr()
            assert (status, out) == (2, "g\n")
            missing = f"kcore: the groups of broker {1 - number} are missing: "
            assert err.startswith(missing) and "refused" in err
            status = main(["groups", "describe", "--bootstrap", cluster.brokers[number].bootstrap_servers])
            out, err = capsys.readouterr()
            assert (status, out.splitlines()[0]) == (2, f"g: Empty, coordinator {number}, 0 members")
            assert err.startswith(missing) and len(err.splitlines()) == 1


def test_groups_whose_partition_has_no_leader_are_said_to_be_missing(capsys):
    settings = {"offsets_topic_num_partitions": 4, "offsets_topic_replication_factor": 1}
    with kcore.Cluster(2, auto_leader_rebalance_enable=False, **settings) as cluster:
        cluster.create_topic("orders")
        coordinators = {}
        for name in GROUPS:
            with coordinator(cluster, name) as (client, coordinators[name]):
                commit(client, name, {("orders", 0): 0})
        assert set(coordinators.values()) == {0, 1}
        lost = [number for number in range(4) if cluster.leader("__consumer_offsets", number) == 1]
        cluster.kill(1)
        assert lost
        servers = addresses(cluster.brokers[0].bootstrap_servers)
        with AdminClient(servers, client_id="test", timeout_ms=30_000) as admin:

            def leaders():
                return admin.describe_cluster(["__consumer_offsets"]).topics["__consumer_offsets"].partitions

            wait_until(lambda: [number for number, at in leaders().items() if at.leader < 0] == lost)
        left = "".join(f"{name}\n" for name in GROUPS if coordinators[name] == 0)
        for words in (["list"], ["describe"]):
            status = main(["groups", *words, "--bootstrap", cluster.brokers[0].bootstrap_servers])
            out, err = capsys.readouterr()
            names = ", ".join(f"__consumer_offsets-{number}" for number in lost)
            assert status == 1 and f"that no broker leads are missing: {names}; `kcore topics describe" in err
            assert [line.split(":")[0] for line in out.splitlines() if not line.startswith(" ")] == left.split()


def test_CG_51_CG_52_a_group_of_the_consumer_protocol_is_described_reset_and_deleted_like_any_other(cluster, run, text):
    """That of KIP-848: DescribeGroups calls it dead."""
    joining = {"group_id": "new", "member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    with coordinator(cluster, "new") as (client, number):
        request = ConsumerGroupHeartbeatRequest(**joining, subscribed_topic_names=["orders"])
        wait_until(lambda: client.ask(request, 1).error_code == 0)
        status, (group,), err = run("groups", "describe", "new")
        assert (status, err) == (0, "")
        assert {name: group[name] for name in ("state", "protocol_type", "protocol", "coordinator")} == {
            "state": "Stable",
            "protocol_type": "consumer",
            "protocol": "uniform",
            "coordinator": number,
        }
        (member,) = group["members"]
        assert [at["partition"] for at in member["assignment"]] == [0, 1, 2]
        assert {at["member_id"] for at in group["partitions"]} == {"m"}
        assert run("groups", "delete", "new")[0] == 2
        leaving = ConsumerGroupHeartbeatRequest(group_id="new", member_id="m", member_epoch=-1)
        assert client.ask(leaving, 1).error_code == 0
        assert text("groups", "reset", "new", "--topic", "orders", "--to", "latest", "--apply")[0] == 0
        _, (group,), _ = run("groups", "describe", "new")
        assert [at["committed_offset"] for at in group["partitions"]] == [0, 5, 0]
        assert run("groups", "delete", "new")[0] == 0
        assert run("groups", "describe", "new")[0] == 2
