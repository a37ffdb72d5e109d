"""Three broker processes, one or two of which stand still: what the commands of a running cluster say, and how soon.

The timeouts are longer than the test's deadline: a command that waits for the broker that stands still fails the test.
The commands of one test run at the same time: most of what they do is to wait for the broker that stands still.
"""

import json
import re
import sqlite3
import subprocess
import sys

import pytest

from kcore.client.admin_client import AdminClient
from kcore.metadata import znodes
from kcore.tools.cluster import look_at
from tests.system.broker_processes import BrokerProcesses
from tests.waiting import wait_until

DEADLINE_S = 60
TOO_LONG = ["--timeout", "600"]
FROZEN = 0
#: topic -> --assign.  The coordinator of all groups is the broker that stands still.
TOPICS = {"orders": "1,2,0", "__consumer_offsets": "0,1,2", "payments": "1,0", "clicks": "2,1"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    # The session lasts: for the cluster the broker that stands still is alive.
    directory = tmp_path_factory.mktemp("frozen")
    brokers = BrokerProcesses(directory, topic="orders", partitions=1, session_ms=600_000)
    try:
        brokers.start_all()
        for created in kcore_all(
            *(
                ["topics", "create", topic, "--assign", replicas, "--bootstrap", address(brokers, 1)]
                for topic, replicas in TOPICS.items()
            )
        ):
            assert created.returncode == 0, created.stderr
        for number in (1, 2):  # the one that stands still may be the controller, which has to tell them first
            for topic in ("orders", "__consumer_offsets"):
                explain = ["explain", "isr", topic, "--bootstrap", address(brokers, number), "--broker", str(number)]
                wait_until(lambda explain=explain: kcore(*explain).returncode == 0)
        brokers.pause(FROZEN)
        yield brokers
    finally:
        brokers.close()


def kcore(*words):
    return kcore_all(words)[0]


def kcore_all(*commands):
    """The commands, each of which is a list of words, run at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "kcore", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    try:
        ended = [(process, process.communicate(timeout=DEADLINE_S)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [subprocess.CompletedProcess(process.args, process.returncode, *texts) for process, texts in ended]


def address(brokers, number):
    return brokers.bootstrap_servers.split(",")[number]


def stands_still(brokers, number=FROZEN):
    return f"its process {brokers.running[number].pid} stands still, stopped by SIGSTOP or a terminal"


def test_the_cluster_is_described_by_the_brokers_that_answer_and_the_one_that_stands_still_is_named(brokers):
    # Of the second one the frozen broker is not asked for the cluster.
    text, by_json = kcore_all(
        ["cluster", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG],
        ["cluster", "--bootstrap", address(brokers, 1), "--json", *TOO_LONG],
    )
    assert text.returncode == 1
    (line,) = [line for line in text.stdout.splitlines() if line.startswith(f"  broker {FROZEN} ")]
    assert f"it does not answer: no answer within 0.3 s: {stands_still(brokers)}" in line
    assert text.stderr.startswith(f"kcore: {address(brokers, FROZEN)} does not answer: ")
    assert stands_still(brokers) in text.stderr and len(text.stderr.splitlines()) == 1

    assert (by_json.returncode, by_json.stderr) == (1, "")
    events = map(json.loads, by_json.stdout.splitlines())
    silent = {event["broker"]: event["no_answer"] for event in events if event["type"] == "broker"}
    assert stands_still(brokers) in silent.pop(FROZEN)
    assert silent == {1: None, 2: None}


def test_a_topic_is_described_with_the_broker_that_does_not_answer_if_it_has_a_replica(brokers):
    text, by_json, other = kcore_all(
        *(
            ["topics", "describe", *words, "--bootstrap", address(brokers, 1), *TOO_LONG]
            for words in (["orders", "payments"], ["payments", "--json"], ["clicks"])
        )
    )
    assert (text.returncode, text.stderr) == (1, ""), text
    _, orders_0, _, payments_0, silent = text.stdout.splitlines()
    assert orders_0.endswith(", ISR 1,2,0, no answer from 0")
    assert payments_0.endswith(", ISR 1,0, no answer from 0")
    assert silent.startswith(f"broker {FROZEN} at {address(brokers, FROZEN)} does not answer: no answer within ")
    assert silent.count(stands_still(brokers)) == 1

    assert (by_json.returncode, by_json.stderr) == (1, "")
    described = json.loads(by_json.stdout)
    (no_answer,) = described["no_answer"]
    assert no_answer["broker"] == FROZEN and stands_still(brokers) in no_answer["reason"]
    assert described["store_lock"] is None

    assert (other.returncode, other.stderr) == (0, "")
    assert other.stdout.splitlines()[1:] == ["  0: leader 2, replicas 2,1, ISR 2,1"]


def test_where_no_other_broker_is_named_the_command_ends_and_says_why(brokers):
    commands = [
        ["cluster"],
        ["topics", "list"],
        ["topics", "describe", "orders"],
        ["groups", "describe", "g"],
        ["explain", "isr", "orders"],
    ]
    for done in kcore_all(*([*words, "--bootstrap", address(brokers, FROZEN), *TOO_LONG] for words in commands)):
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"kcore: {address(brokers, FROZEN)}: no answer") and stands_still(brokers) in line, done


def test_what_waits_for_a_leader_that_stands_still_names_it_at_once_and_ends_after_the_time_out(brokers, tmp_path):
    to_the_broker = ["--bootstrap", brokers.bootstrap_servers, "--timeout", "6"]
    lines = tmp_path / "lines"
    lines.write_text("{}\n")
    for done in kcore_all(
        ["consume", "__consumer_offsets", *to_the_broker],
        ["produce", "__consumer_offsets", str(lines), *to_the_broker],
    ):
        assert (done.returncode, done.stdout) == (2, ""), done
        (why,) = [line for line in done.stderr.splitlines() if line.startswith("kcore: __consumer_offsets-0: ")]
        assert address(brokers, FROZEN) in why or f"broker {FROZEN}" in why, done
        assert stands_still(brokers) in done.stderr, done
        assert done.stderr.count(" does not answer: ") == 1, done


def test_a_broker_whose_groups_cannot_be_had_is_named_once_with_the_reason(brokers):
    bootstraps = address(brokers, 1), brokers.bootstrap_servers
    commands = ["list"], ["describe", "g", "h"], ["delete", "g"]
    for done in kcore_all(
        *(["groups", *words, "--bootstrap", bootstrap, *TOO_LONG] for bootstrap in bootstraps for words in commands)
    ):
        assert (done.returncode, done.stdout) == (2, ""), done
        # 1.5 s of a broker that was not asked before.
        assert re.search(
            rf"{address(brokers, FROZEN)} does not answer: no answer within (0\.3|1\.5) s: ", done.stderr
        ), done
        assert done.stderr.count(stands_still(brokers)) == 1, done
        assert len(done.stderr.splitlines()) == (2 if "h" in done.args else 1), done  # one for each group


def test_a_broker_whose_transactions_or_directories_cannot_be_had_is_named_once_with_the_reason(brokers):
    bootstraps = address(brokers, 1), brokers.bootstrap_servers
    commands = ["txns", "list"], ["logdirs", "list"]
    for done in kcore_all(
        *([*words, "--bootstrap", bootstrap, *TOO_LONG] for bootstrap in bootstraps for words in commands)
    ):
        assert done.returncode == 2, done
        (line,) = done.stderr.splitlines()
        assert f"broker {FROZEN}" in line and line.count(stands_still(brokers)) == 1, done


def test_a_look_at_the_cluster_leaves_who_is_silent_to_the_next_client(brokers):
    host, port = address(brokers, 1).split(":")
    with AdminClient([(host, int(port))]) as admin:
        look_at(admin)
        ((found, silence),) = admin.silent.items()
    assert "{}:{}".format(*found) == address(brokers, FROZEN) and silence.stands_still


def test_the_doctor_waits_once_for_a_broker_that_stands_still(brokers):
    done = kcore("doctor", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG)
    assert done.returncode == 2
    assert f"\nbroker {FROZEN} does not answer: " in f"\n{done.stdout}" and stands_still(brokers) in done.stdout
    first, groups = done.stderr.splitlines()  # each part of the examination waited for it, and named it
    assert first.startswith(f"kcore: {address(brokers, FROZEN)} does not answer: ")
    assert groups.startswith(f"kcore: the groups of broker {FROZEN}: not examined: ")


def test_a_topic_is_copied_from_brokers_that_answer_and_the_one_that_stands_still_is_named(brokers, tmp_path):
    topics = {"orders": 0, "invoices": 2}
    from_all = [
        ["mirror", brokers.bootstrap_servers, topic, str(tmp_path / f"all-{topic}"), *TOO_LONG] for topic in topics
    ]
    alone = [
        ["mirror", address(brokers, FROZEN), topic, str(tmp_path / f"alone-{topic}"), *TOO_LONG] for topic in topics
    ]
    done = kcore_all(*from_all, *alone)
    for copied, status in zip(done, topics.values(), strict=False):
        assert copied.returncode == status, copied
        assert copied.stderr.startswith(f"kcore: {address(brokers, FROZEN)} does not answer: "), copied
        assert copied.stderr.count(stands_still(brokers)) == 1, copied
    for copied in done[len(topics) :]:
        assert (copied.returncode, copied.stdout) == (2, ""), copied
        assert stands_still(brokers) in copied.stderr, copied


def test_a_broker_that_was_silent_is_not_asked_first_again(brokers):
    done = kcore("topics", "describe", "orders", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG)
    assert "orders: 1 partition, 3 replicas each" in done.stdout
    assert len(done.stderr.splitlines()) == 1 and stands_still(brokers) in done.stderr


def test_a_broker_that_stands_still_is_named_when_it_is_asked_about_itself(brokers):
    data_dir = str(brokers.data_dir(FROZEN))
    by_path, by_id = ["--data", data_dir], ["--bootstrap", address(brokers, 1), "--broker", str(FROZEN)]
    by_address = ["--bootstrap", address(brokers, FROZEN)]
    explain_isr, explain_fetch = ["explain", "isr", "orders"], ["explain", "fetch", "orders"]
    commands = [[*words, *by] for words in (["metrics"], explain_isr, explain_fetch) for by in (by_path, by_id)]
    for done in kcore_all(*([*words, *TOO_LONG] for words in [*commands, ["metrics", *by_address]])):
        assert (done.returncode, done.stdout) == (2, ""), done
        process = f"process {brokers.running[FROZEN].pid}"
        assert done.stderr.startswith(f"kcore: {data_dir}: its broker ({process}) does not"), done
        assert stands_still(brokers) in done.stderr, done
        assert done.stderr.count(" does not answer: ") == 1, done


def test_a_running_broker_is_explained_and_measured_by_its_address(brokers):
    leader, follower, metrics, by_all = kcore_all(
        ["explain", "isr", "orders", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG],
        ["explain", "isr", "orders", "--bootstrap", address(brokers, 1), "--broker", "2", *TOO_LONG],
        ["metrics", "--bootstrap", address(brokers, 2), "--match", "LeaderCount", *TOO_LONG],
        ["metrics", "--bootstrap", brokers.bootstrap_servers, "--match", "LeaderCount", *TOO_LONG],
    )
    assert leader.returncode == 0
    assert leader.stdout.startswith("orders-0 on broker 1: leader with epoch ")
    assert follower.stdout.startswith("orders-0 on broker 2: follower of broker 1")
    for measured in (metrics, by_all):
        assert "name=LeaderCount  Value=" in measured.stdout
    (line,) = by_all.stderr.splitlines()
    assert stands_still(brokers) in line and line.endswith(f".  {address(brokers, 1)} is asked instead")


@pytest.fixture(scope="module")
def expired(brokers):
    """Two of the brokers stand still from here on, and have lost their sessions: its tests are the last ones."""
    brokers.pause(1)
    with sqlite3.connect(brokers.directory / "cluster.db", timeout=DEADLINE_S) as store:
        # Whoever is left ends them by the timeout that stands there.
        owners = "SELECT ephemeral_owner FROM node WHERE path IN (?, ?)"
        paths = znodes.broker_id(FROZEN), znodes.broker_id(1)
        store.execute(f"UPDATE session SET timeout_ms = 300 WHERE id IN ({owners})", paths)
    store.close()
    wait_until(lambda: '"brokers": 1,' in kcore("cluster", "--json", "--bootstrap", address(brokers, 2)).stdout)
    return brokers


def test_each_broker_that_has_lost_its_session_because_it_stands_still_is_named_with_its_process(expired):
    done = kcore("cluster", "--bootstrap", address(expired, 2))
    assert done.returncode == 1
    for number in (0, 1):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"  broker {number} ")]
        assert f"broker {number} not alive: " in line
        assert f"; {stands_still(expired, number)}" in line


def test_a_broker_without_a_session_is_named_by_its_id_too(expired):
    commands = ["metrics"], ["explain", "isr", "orders"]
    for done in kcore_all(*([*words, "--bootstrap", address(expired, 2), "--broker", "0"] for words in commands)):
        assert (done.returncode, done.stdout) == (2, ""), done
        assert stands_still(expired) in done.stderr, done


def test_a_partition_that_nobody_leads_is_explained_by_who_is_alive_and_who_was_in_sync(expired):
    done = kcore("explain", "isr", "payments", "--bootstrap", address(expired, 2))
    assert done.returncode == 2
    assert "payments-0 has no leader: its replicas are on 1,0, in sync were last " in done.stderr
    assert "alive are none.  It is led again once one that was in sync is back\n" in done.stderr
