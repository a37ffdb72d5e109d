"""kcore topics, reassign, elect and cluster, against a cluster of three brokers."""

import json
import re
import socket

import pytest

import kcore
from kcore.client.admin_client import error_of, preferred_assignment, raise_error
from kcore.errors import NotController
from kcore.metadata import znodes
from kcore.tools.cluster_command import error_text
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    # No leader moves by itself; a fetch of a follower brings one batch.
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, replica_fetch_max_bytes=1000, **settings) as cluster:
        yield cluster


@pytest.fixture
def run(cluster, capsys):
    """(exit status, JSON lines) of a command that asks the broker which is not the controller."""

    def run(*words):
        others = [number for number in cluster.brokers if number != cluster.controller()]
        # --json stands after the subcommand.
        status = main([*words, "--json", "--bootstrap", cluster.brokers[others[0]].bootstrap_servers])
        out, err = capsys.readouterr()
        assert all("the throttle" in line and "--unthrottle" in line for line in err.splitlines()), err
        return status, [json.loads(line) for line in out.splitlines()]

    return run


@pytest.fixture
def text(cluster, capsys):
    """(exit status, stdout, stderr)."""

    def text(*words):
        status = main([*words, "--bootstrap", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        return status, out, err

    return text


def known_everywhere(cluster, name, replicas=None):
    """Wait until every broker has the topic in its metadata, with these replicas of partition 0."""
    for broker in cluster.brokers.values():
        wait_until(
            lambda b=broker: (
                (topic := b.metadata_cache.topic(name)) is not None
                and (replicas is None or topic.partitions[0].replicas == replicas)
            )
        )


def test_the_options_of_kafka_topics_sh_are_understood(cluster, text):
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    create = ("topics", "create", "--topic", "as-in-kafka", *at, "--partitions", "2", "--replication-factor", "2")
    done = "2 partitions, 2 replicas each\n"
    assert text(*create, "--config", "retention.ms=5") == (0, f"as-in-kafka is created: {done}", "")
    assert text(*create) == (2, "", "kcore: Topic 'as-in-kafka' already exists.\n")
    assert text(*create, "--if-not-exists") == (0, f"as-in-kafka exists already: {done}", "")
    known_everywhere(cluster, "as-in-kafka")
    status, out, _ = text("topics", "describe", "--topic", "as-in-kafka", *at)
    assert status == 0 and out.startswith("as-in-kafka: 2 partitions, 2 replicas each, retention.ms=5\n")
    assert text("topics", "alter", "--topic", "as-in-kafka", "--partitions", "3", *at)[0] == 0
    assert text("topics", "delete", "--topic", "as-in-kafka", *at) == (0, "as-in-kafka is deleted\n", "")
    for words in ((), ("a", "--topic", "b")):
        assert text("topics", "delete", *words) == (2, "", "kcore: expected one TOPIC\n")


def test_a_topic_is_created_listed_described_grown_and_deleted(cluster, run, text):
    words = ("--partitions", "2", "--replicas", "2", "--config", "retention.ms=60000")
    assert run("topics", "create", "life", *words) == (
        0,
        [{"topic": "life", "partitions": 2, "replication_factor": 2}],
    )
    known_everywhere(cluster, "life")
    assert "life" in [line["topic"] for line in run("topics", "list")[1]]
    status, (described,) = run("topics", "describe", "life")
    assert (status, described["config"]) == (0, {"retention.ms": "60000"})
    assert described["topic_id"] == str(cluster.brokers[0].metadata_cache.topic_id("life"))
    assert [len(partition["replicas"]) for partition in described["partitions"]] == [2, 2]
    assert all(partition["leader"] == partition["replicas"][0] for partition in described["partitions"])
    status, out, _ = text("topics", "describe", "life")
    assert out.startswith("life: 2 partitions, 2 replicas each, retention.ms=60000\n  0: leader ")
    assert run("topics", "alter", "life", "--partitions", "3")[0] == 0
    assert all(replicas for replicas in [cluster.isr("life", n) for n in range(3)])
    changes = ("--config", "segment.bytes=2000000", "--delete-config", "retention.ms")
    assert text("topics", "alter", "life", *changes)[:2] == (0, "life is changed\n")
    for broker in cluster.brokers.values():
        wait_until(lambda b=broker: dict(b.admin_manager.topic_config("life")) == {"segment.bytes": "2000000"})
    assert run("topics", "describe", "life")[1][0]["config"] == {"segment.bytes": "2000000"}
    unset = "life has no value of its own for retention.ms: nothing to delete\n"
    assert text("topics", "alter", "life", "--delete-config", "retention.ms")[:2] == (0, unset)
    assert run("topics", "alter", "life", "--delete-config", "retention.ms")[1][0]["config"] == {}
    both = ("--delete-config", "retention.ms", "--config", "segment.bytes=2000000")
    assert text("topics", "alter", "life", *both)[:2] == (0, unset + "life is changed\n")
    assert "did you mean segment.bytes" in text("topics", "alter", "life", "--config", "segment.byte=1")[2]
    assert text("topics", "create", "life") == (2, "", "kcore: Topic 'life' already exists.\n")
    assert text("topics", "delete", "life")[:2] == (0, "life is deleted\n")
    assert text("topics", "delete", "life") == (2, "", "kcore: The topic 'life' does not exist.\n")
    wait_until(lambda: "life" not in text("topics", "list")[1])
    assert text("topics", "describe", "life") == (
        2,
        "",
        "kcore: there is no topic 'life'; `kcore topics list` shows those that are there\n",
    )


def test_a_topic_is_created_with_the_brokers_of_each_partition(cluster, run):
    assert run("topics", "create", "placed", "--assign", "2,0:1,2")[0] == 0
    known_everywhere(cluster, "placed")
    _, (described,) = run("topics", "describe", "placed")
    assert [partition["replicas"] for partition in described["partitions"]] == [[2, 0], [1, 2]]


def test_an_internal_topic_is_not_deleted_and_the_error_says_why(cluster, run, text):
    run("topics", "create", "__consumer_offsets", "--assign", "0,1")
    known_everywhere(cluster, "__consumer_offsets")
    status, out, err = text("topics", "delete", "__consumer_offsets")
    assert (status, out) == (2, "") and "'__consumer_offsets' is internal" in err
    assert "__consumer_offsets" in text("topics", "list", "--internal")[1]


def test_partitions_with_different_numbers_of_replicas_are_described_with_both(cluster, run, text):
    run("topics", "create", "uneven", "--assign", "0,1:1,2")
    known_everywhere(cluster, "uneven")
    assert run("reassign", "uneven:1", "--to", "1", "--wait")[0] == 0
    wait_until(lambda: text("topics", "describe", "uneven")[1].startswith("uneven: 2 partitions, 1 to 2 replicas\n"))


def test_the_brokers_of_a_topic_take_turns_as_preferred_leaders():
    assert [preferred_assignment((4, 5, 6), number) for number in range(4)] == [
        (4, 5, 6),
        (5, 6, 4),
        (6, 4, 5),
        (4, 5, 6),
    ]


def test_partitions_move_and_their_preferred_leaders_are_elected(cluster, run, text):
    run("topics", "create", "m", "--assign", "0,1:1,0:0,1")
    known_everywhere(cluster, "m")
    planned = [
        {"topic": "m", "partition": number, "replicas": replicas, "error": None}
        for number, replicas in enumerate([[1, 2], [2, 1], [1, 2]])
    ]
    assert run("reassign", "m", "--to", "1,2", "--dry-run") == (0, planned)
    assert cluster.brokers[0].metadata_cache.topic("m").partitions[0].replicas == (0, 1)
    assert run("reassign", "m", "--to", "1,2", "--wait") == (0, planned)
    assert [sorted(cluster.isr("m", number)) for number in range(3)] == [[1, 2]] * 3
    assert run("reassign", "--status") == (0, [])
    known_everywhere(cluster, "m", (1, 2))
    status, out, _ = text("reassign", "m:0", "--to", "2,1", "--wait")
    assert (status, out) == (0, "m-0 moves to 2,1\n1 partition moved\n")
    assert cluster.leader("m", 0) == 1
    known_everywhere(cluster, "m", (2, 1))
    assert run("elect", "m:0") == (0, [{"topic": "m", "partition": 0, "is_elected": True, "error": None}])
    assert cluster.leader("m", 0) == 2
    assert text("elect", "m:0")[1] == "m-0: the preferred leader leads already\n"
    assert text("elect", "m:0", "--unclean")[:2] == (0, "m-0: its leader is alive\n")


def test_a_move_begins_with_and_without_apply_but_not_with_a_dry_run(cluster, run, text):
    run("topics", "create", "applied", "--assign", "1")
    status, _, err = text("reassign", "applied", "--to", "2", "--dry-run", "--apply")
    assert status == 2 and "--dry-run" in err
    for number, option in ((2, "--apply"), (1, "--execute")):
        assert text("reassign", "applied", "--to", str(number), option, "--wait")[0] == 0
    run("topics", "delete", "applied")


def test_a_move_is_shown_and_cancelled(cluster, run, text):
    for broker in cluster.brokers.values():
        broker.config.reconfigure({"follower.replication.throttled.rate": 1})
    try:
        throttled = ("--config", "follower.replication.throttled.replicas=*", "--config", "max.message.bytes=20000")
        run("topics", "create", "slow", "--assign", "0", *throttled)
        known_everywhere(cluster, "slow")
        # A fetch brings one of the batches, and uses the throttle up for the 10 s over which it is measured.
        for _ in range(20):
            cluster.brokers[0].produce("slow", "x" * 15_000)
        assert run("reassign", "slow", "--to", "1") == (
            0,
            [{"topic": "slow", "partition": 0, "replicas": [1], "error": None}],
        )
        assert run("reassign", "slow", "--status") == (
            0,
            [{"topic": "slow", "partition": 0, "replicas": [1, 0], "adding": [1], "removing": [0]}],
        )
        assert text("reassign", "--status")[1] == "slow-0 moves to 1: adding 1, removing 0\n"
        assert text("reassign", "slow", "--cancel") == (
            0,
            "slow-0 goes back to 0\n",
            "slow: the throttle stays; this removes it: kcore reassign slow --unthrottle\n",
        )
    finally:
        for broker in cluster.brokers.values():
            broker.config.reconfigure({"follower.replication.throttled.rate": None})
    assert text("reassign", "--status")[1] == "nothing is being moved\n"
    assert text("reassign", "--cancel")[:2] == (0, "nothing is being moved\n")
    # A leader that has not heard of the end may have taken the new replica in; it takes it out again.
    wait_until(lambda: (cluster.leader("slow"), cluster.isr("slow")) == (0, [0]))


def test_the_cluster_is_shown_and_partitions_that_miss_a_replica_end_it_with_status_1(cluster, run, text):
    run("topics", "create", "c-of-two", "--assign", "0,1")
    run("topics", "create", "c-of-one", "--assign", "2")
    known_everywhere(cluster, "c-of-two")
    known_everywhere(cluster, "c-of-one")

    def problems(number):
        status, lines = run("cluster")
        found = [(line["problem"], line["replicas"]) for line in lines if line.get("topic", "").startswith("c-of")]
        assert status == (1 if any(line["type"] == "partition" or line.get("no_answer") for line in lines) else 0)
        return found if len([b for b in lines if b["type"] == "broker" and b["is_alive"]]) == number else None

    wait_until(lambda: problems(3) == [])
    summary, *brokers = [line for line in run("cluster")[1] if line["type"] != "partition"]
    assert (summary["brokers"], summary["controller"]) == (3, cluster.controller())
    assert [broker["broker"] for broker in brokers] == [0, 1, 2]
    assert sum(broker["leaders"] for broker in brokers) == summary["partitions"]
    # The others stay: the controller does not move, and each command finds it.
    stopped = next(number for number in (1, 2) if number != cluster.controller())
    cluster.stop(stopped)
    try:
        expected = [("under replicated", [0, 1])] if stopped == 1 else [("offline", [2])]
        wait_until(lambda: problems(2) == expected)
        # Perhaps from another broker, which may hear of it later.
        shown = "c-of-one-0: replicas 2, ISR" if stopped == 2 else "c-of-two-0: leader 0, replicas 0,1, ISR 0"
        for line in (f"broker {stopped} not alive", shown):
            wait_until(lambda line=line: line in text("cluster")[1])
    finally:
        cluster.start(stopped)


def test_a_deletion_that_waits_for_a_dead_broker_says_so_wherever_the_topic_is_asked_for(cluster, run, text):
    run("topics", "create", "waits", "--partitions", "2", "--replicas", "3")
    run("topics", "create", "lives")
    for name in ("waits", "lives"):
        known_everywhere(cluster, name)
    stopped = next(number for number in (1, 2) if number != cluster.controller())
    cluster.stop(stopped)
    try:
        sentence = f"waits for broker {stopped}, not alive now, to delete its replicas"
        status, out, _ = text("topics", "delete", "waits")
        assert status == 1 and out.startswith("waits is being deleted: ") and sentence in out
        status, out, _ = text("topics", "describe", "waits", "lives")
        assert status == 1 and sentence in out.splitlines()[0] and "lives: 1 partition" in out
        marked, described = run("topics", "describe", "waits", "lives")[1]
        assert (marked["topic"], marked["is_being_deleted"], described["topic"]) == ("waits", True, "lives")
        assert sentence in marked["reason"]
        for words in (
            ("create", "waits", "--replicas", "2"),
            ("create", "waits", "--replicas", "3"),
            ("create", "waits", "--assign", "0,1,2"),
            ("delete", "waits"),
        ):
            status, out, err = text("topics", *words)
            assert (status, out) == (2, "") and sentence in err
        assert "there is no topic 'no'" in text("topics", "describe", "waits", "no")[2]
    finally:
        cluster.start(stopped)
    wait_until(lambda: text("topics", "create", "waits")[0] == 0)
    known_everywhere(cluster, "waits")
    assert run("topics", "delete", "waits") == (0, [{"topic": "waits", "deleted": True, "waits_for_brokers": []}])


def test_a_topic_that_the_controller_has_left_out_is_deleted_with_its_logs(cluster, run):
    """Its node cannot be read, and the brokers serve it as before."""
    run("topics", "create", "sound")
    run("topics", "create", "broken", "--partitions", "2", "--replicas", "3")
    known_everywhere(cluster, "broken")
    brokers = list(cluster.brokers.values())

    def has_logs(broker):
        return any(log.topic_partition.topic == "broken" for log in broker.replica_manager.log_manager.all_logs())

    def has_left_it_out():
        """Whether another controller is elected: with what it reads, once it has read it."""
        controllers = [broker.cluster_member.controller for broker in brokers]
        return any(c.is_active and c.context.topics and "broken" not in c.context.topics for c in controllers)

    for broker in brokers:
        wait_until(lambda b=broker: has_logs(b))
    store = brokers[0].store
    store.set(znodes.topic("broken"), b"garb")
    store.delete(znodes.CONTROLLER)
    wait_until(has_left_it_out)
    assert run("topics", "delete", "broken") == (0, [{"topic": "broken", "deleted": True, "waits_for_brokers": []}])
    for broker in brokers:
        wait_until(lambda b=broker: not has_logs(b))


def test_a_topic_whose_replicas_are_all_on_brokers_that_are_not_there_is_described_and_deleted(cluster, run, text):
    store = cluster.brokers[0].store
    store.create_recursive(znodes.topic("elsewhere"), znodes.TopicZNode({0: [77]}).encode())
    sentence = "Topic 'elsewhere' exists, but has no leader yet: its replicas are all on broker 77, not alive now."
    assert text("topics", "describe", "elsewhere") == (2, "", f"kcore: {sentence}\n")
    status, out, err = text("topics", "create", "elsewhere")
    assert (status, out) == (2, "") and sentence in err
    status, out, err = text("topics", "delete", "elsewhere")
    waiting = "Topic 'elsewhere' is being deleted; that waits for broker 77, not alive now, to delete its replicas."
    assert (status, out, err) == (1, f"{waiting}\n", "")
    assert text("topics", "describe", "elsewhere") == (1, f"elsewhere: {waiting}\n", "")
    store.create_recursive(znodes.topic("empty"), znodes.TopicZNode({}).encode())
    sentence = "kcore: Topic 'empty' exists, but has no partitions.\n"
    assert text("topics", "describe", "empty") == (2, "", sentence)
    assert run("topics", "delete", "empty") == (0, [{"topic": "empty", "deleted": True, "waits_for_brokers": []}])
    assert store.get(znodes.topic("empty")) is None


@pytest.mark.parametrize(
    "words, reason",
    [
        (("reassign", "x", "--to", "1,1"), "different broker ids"),
        (("reassign", "--to", "1"), "needs a TOPIC"),
        (("reassign", "x"), "--to, --status, --cancel"),
        (("reassign", "x", "--status", "--wait"), "go with --to"),
        (("reassign", "x:-1", "--to", "1"), "TOPIC:PARTITION"),
        (("reassign", "nothing", "--to", "1"), "there is no topic 'nothing'"),
        (("topics", "describe", "."), "kcore: Topic name is invalid: '.' is not allowed"),
        (("topics", "describe", "no/way"), "kcore: Topic name is invalid: 'no/way' contains"),
        (("reassign", ".", "--to", "1"), "kcore: Topic name is invalid: '.' is not allowed"),
        (("elect", "..:0"), "kcore: Topic name is invalid: '..' is not allowed"),
        (("elect",), "either TOPIC or --all"),
        (("elect", "x", "--all"), "either TOPIC or --all"),
        (("elect", "x:y"), "TOPIC:PARTITION"),
        (("topics", "alter", "x"), "nothing to change"),
        (("topics", "create", "x", "--config", "y"), "NAME=VALUE"),
        (("topics", "create", "x", "--assign", "0", "--replicas", "1"), "goes without"),
        (("topics", "create", "x", "--replicas", "9"), "only 3 broker(s)"),
        (("topics", "lst"), "did you mean list"),
        (("topics", "alter", "x", "--config", "retention.ms=1", "--delete-config", "retention.ms"), "more than once"),
        (("topics", "create", "x", "--config", "retention.ms=1", "--config", "retention.ms=2"), "more than once"),
        (("cluster", "--timeout", "0"), "above 0"),
        (("cluster", "--timeout", "3000000"), "seconds"),
        (("topics", "create", "x", "--replicas", "40000"), "from 1 to 32767"),
        (("topics", "create", "x", "--partitions", "3000000000"), "from 1 to 2147483647"),
        (("topics", "create", "x", "--assign", "0:99999999999"), "at most 2147483647"),
        (("topics", "alter", "x", "--partitions", "3000000000"), "from 1 to 2147483647"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(text, words, reason):
    status, out, err = text(*words)
    assert (status, out) == (2, "") and reason in err


@pytest.mark.parametrize(
    "name, reason", [("bad\udcff", r"'bad\xff' is not UTF-8"), ("n" * 32768, "at most 32767 bytes")]
)
@pytest.mark.parametrize(
    "words, argument",
    [
        (("topics", "describe", "NAME"), "TOPIC"),
        (("topics", "create", "NAME"), "TOPIC"),
        (("topics", "alter", "NAME", "--partitions", "2"), "TOPIC"),
        (("topics", "delete", "NAME"), "TOPIC"),
        (("topics", "create", "x", "--config", "retention.ms=NAME"), "--config"),
        (("topics", "alter", "x", "--delete-config", "NAME"), "--delete-config"),
        (("groups", "describe", "good", "NAME"), "GROUP"),
        (("groups", "delete", "NAME"), "GROUP"),
        (("elect", "NAME:0"), "TOPIC[:N[,N...]]"),
        (("reassign", "NAME", "--to", "1"), "TOPIC[:N[,N...]]"),
    ],
)
def test_a_name_that_no_request_can_carry_is_refused_before_a_broker_is_asked(words, argument, name, reason, capsys):
    assert main([*(word.replace("NAME", name) for word in words), "--bootstrap", "127.0.0.1:1"]) == 2
    out, err = capsys.readouterr()
    message, hint = err.splitlines()
    assert out == "" and len(message) < 300 and hint.endswith("--help` says more")
    assert re.search(rf"value for '\[?{re.escape(argument)}\]?(\.\.\.)?': ", message) and reason in message


@pytest.mark.parametrize("host, shown", [("bad\udcff", r"bad\xff"), ("n" * 64, "n" * 64), ("a..b:9092", "a..b:9092")])
def test_a_host_name_that_cannot_be_looked_up_is_refused(host, shown, capsys):
    assert main(["groups", "list", "--bootstrap", host]) == 2
    assert capsys.readouterr() == ("", f"kcore: '{shown}' is no HOST:PORT\n")


def test_the_partition_numbers_of_a_topic_may_be_longer_than_a_name(text):
    numbers = ",".join(map(str, range(10_000)))
    status, out, err = text("elect", f"nothing:{numbers}")
    assert (status, out) == (2, "") and "there is no topic 'nothing'" in err


def test_brokers_and_partitions_that_do_not_exist_are_named(cluster, text):
    text("topics", "create", "here", "--assign", "0")
    known_everywhere(cluster, "here")
    assert text("reassign", "here", "--to", "7")[2] == "kcore: broker 7 is not alive; alive: 0,1,2\n"
    deleted = text("topics", "alter", "here", "--delete-config", "retention.mss")
    assert deleted == (2, "", "kcore: topics have no setting 'retention.mss'; did you mean retention.ms?\n")
    assert text("topics", "alter", "here", "--delete-config", "retention.ms")[0] == 0
    for words in (("elect", "here:3"), ("reassign", "here:3", "--to", "0")):
        assert text(*words)[2] == "kcore: here has no partition 3: it has 1 partition, 0\n"


def test_a_partition_that_is_where_it_is_to_be_needs_no_move(cluster, text):
    text("topics", "create", "stays", "--assign", "2")
    known_everywhere(cluster, "stays")
    nothing = (0, "stays-0 is on 2 already: nothing to do\n", "")
    assert text("reassign", "stays", "--to", "2", "--wait") == nothing
    assert text("reassign", "stays", "--to", "2", "--dry-run") == nothing


def test_of_a_topic_that_is_not_there_the_nearest_name_is_said(cluster, text):
    text("topics", "create", "payments", "--assign", "0")
    known_everywhere(cluster, "payments")
    missing = "kcore: there is no topic 'paymnets'; did you mean payments?\n"
    assert text("topics", "describe", "paymnets") == (2, "", missing)
    missing = "kcore: there is no topic 'zzz'; `kcore topics list` shows those that are there\n"
    assert text("topics", "describe", "zzz") == (2, "", missing)
    assert text("cluster", "zzz") == (2, "", missing)


def test_of_several_topics_those_that_are_there_are_described_and_the_others_named(cluster, text):
    text("topics", "create", "there", "--assign", "0")
    known_everywhere(cluster, "there")
    cluster.brokers[0].store.create_recursive(znodes.topic("broken"), b'{"version":1,"partit')
    asked = ("nosuch", "there", "broken", "a b", "nosuch")
    status, out, err = text("topics", "describe", *asked)
    assert status == 2 and out.startswith("there: 1 partition, 1 replica each\n")
    nosuch, broken, invalid = err.splitlines()
    assert nosuch.startswith("kcore: there is no topic 'nosuch'") and "'a b'" in invalid
    assert broken.startswith("kcore: Topic 'broken' exists, but its node /brokers/topics/broken in the metadata store")
    status, out, json_err = text("topics", "describe", *asked, "--json")
    assert (status, json_err) == (2, err)
    assert [json.loads(line)["topic"] for line in out.splitlines()] == ["there"]
    cluster.brokers[0].store.delete(znodes.topic("broken"))


def test_all_topics_are_described_where_none_is_named(cluster, run):
    run("topics", "create", "all-1", "--assign", "0")
    run("topics", "create", "all-2", "--assign", "0")
    known_everywhere(cluster, "all-1")
    known_everywhere(cluster, "all-2")
    assert {"all-1", "all-2"} <= {line["topic"] for line in run("topics", "describe")[1]}


def test_an_error_without_a_reason_is_explained_and_keeps_its_name():
    with pytest.raises(NotController) as raised:
        raise_error(NotController.code, None)
    assert str(raised.value) == f"NotController: {NotController.__doc__.splitlines()[0]}"
    explained = error_text(error_of(NotController.code, None))
    assert explained == str(raised.value)
    assert error_text(error_of(NotController.code, "It moved.")) == "NotController: It moved."


def test_an_address_that_does_not_answer_is_named_and_the_next_one_asked(cluster, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert main(["cluster", "--bootstrap", address]) == 2
        assert capsys.readouterr().err == f"kcore: {address}: Connection refused\n"
        assert main(["topics", "list", "--bootstrap", f"{address},{cluster.bootstrap_servers}"]) == 0
        assert capsys.readouterr().err == f"kcore: {address} does not answer: Connection refused\n"


@pytest.mark.parametrize(
    "words", [("cluster",), ("elect",), ("reassign",), *(("topics", w) for w in ("list", "describe", "create"))]
)
def test_the_help_has_an_example(words, capsys):
    assert main([*words, "--help"]) == 0
    assert f"Example: kcore {' '.join(words)}" in capsys.readouterr().out
