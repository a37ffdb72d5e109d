"""Three broker processes, one of which stands still: what the commands of a running cluster say, and how soon.

The timeouts are longer than the test's deadline: a command that waits for the broker that stands still fails the test.
"""

import json
import subprocess
import sys
from functools import partial

import pytest

from tests.system.broker_processes import BrokerProcesses
from tests.waiting import wait_until

DEADLINE_S = 60
TOO_LONG = ["--timeout", "600"]
FROZEN = 0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    # The session lasts: for the cluster the broker that stands still is alive.
    directory = tmp_path_factory.mktemp("frozen")
    brokers = BrokerProcesses(directory, topic="orders", partitions=1, session_ms=600_000)
    try:
        brokers.start_all()
        others = [number for number in brokers.running if number != FROZEN]
        assignment = ",".join(map(str, [*others, FROZEN]))
        # The coordinator of all groups is the one that stands still.
        for topic, brokers_of_it in (("orders", assignment), ("__consumer_offsets", "0,1,2")):
            created = kcore(
                "topics", "create", topic, "--assign", brokers_of_it, "--bootstrap", address(brokers, others[0])
            )
            assert created.returncode == 0, created.stderr
        for number in others:  # the one that stands still may be the controller, which has to tell them first
            explained = partial(kcore, "explain", "isr", "orders", "--bootstrap", address(brokers, number))
            wait_until(lambda explained=explained: explained().returncode == 0)
        brokers.pause(FROZEN)
        yield brokers
    finally:
        for process in brokers.running.values():
            process.kill()
            process.wait()


def kcore(*words):
    command = [sys.executable, "-m", "kcore", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def address(brokers, number):
    return brokers.bootstrap_servers.split(",")[number]


def stands_still(brokers):
    return f"its process {brokers.running[FROZEN].pid} stands still, stopped by SIGSTOP or a terminal"


def test_the_cluster_is_described_by_the_brokers_that_answer_and_the_one_that_stands_still_is_named(brokers):
    done = kcore("cluster", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"  broker {FROZEN} ")]
    assert f"it does not answer: no answer within 1.5 s: {stands_still(brokers)}" in line
    assert done.stderr.startswith(f"kcore: {address(brokers, FROZEN)} does not answer: ")
    assert stands_still(brokers) in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_broker_that_is_not_asked_for_the_cluster_is_named_too(brokers):
    done = kcore("cluster", "--bootstrap", address(brokers, 1), "--json", *TOO_LONG)
    assert (done.returncode, done.stderr) == (1, "")
    silent = {e["broker"]: e["no_answer"] for e in map(json.loads, done.stdout.splitlines()) if e["type"] == "broker"}
    assert stands_still(brokers) in silent.pop(FROZEN)
    assert silent == {1: None, 2: None}


@pytest.mark.parametrize(
    "words",
    [
        ["cluster"],
        ["topics", "list"],
        ["topics", "describe", "orders"],
        ["groups", "describe", "g"],
        ["explain", "isr", "orders"],
    ],
    ids=" ".join,
)
def test_where_no_other_broker_is_named_the_command_ends_and_says_why(brokers, words):
    done = kcore(*words, "--bootstrap", address(brokers, FROZEN), *TOO_LONG)
    assert (done.returncode, done.stdout) == (2, "")
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"kcore: {address(brokers, FROZEN)}: no answer") and stands_still(brokers) in last


@pytest.mark.parametrize("words", [["list"], ["describe", "g", "h"], ["delete", "g"]], ids=" ".join)
def test_a_broker_whose_groups_cannot_be_had_is_named_once_with_the_reason(brokers, words):
    for bootstrap in (address(brokers, 1), brokers.bootstrap_servers):
        done = kcore("groups", *words, "--bootstrap", bootstrap, *TOO_LONG)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{address(brokers, FROZEN)} does not answer: no answer within 1.5 s: " in done.stderr
        assert done.stderr.count(stands_still(brokers)) == 1
        assert len(done.stderr.splitlines()) == (2 if "h" in words else 1)  # one for each group


@pytest.mark.parametrize("topic", ["orders", "invoices"])
def test_a_topic_is_copied_from_brokers_that_answer_and_the_one_that_stands_still_is_named(brokers, topic, tmp_path):
    done = kcore("mirror", brokers.bootstrap_servers, topic, str(tmp_path), *TOO_LONG)
    assert done.returncode == (0 if topic == "orders" else 2)
    assert done.stderr.startswith(f"kcore: {address(brokers, FROZEN)} does not answer: ")
    assert done.stderr.count(stands_still(brokers)) == 1
    alone = kcore("mirror", address(brokers, FROZEN), topic, str(tmp_path), *TOO_LONG)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert stands_still(brokers) in alone.stderr


def test_a_broker_that_was_silent_is_not_asked_first_again(brokers):
    done = kcore("topics", "describe", "orders", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG)
    assert "orders: 1 partition, 3 replicas each" in done.stdout
    assert len(done.stderr.splitlines()) == 1 and stands_still(brokers) in done.stderr


@pytest.mark.parametrize(
    "words", [["metrics"], ["explain", "isr", "orders"], ["explain", "fetch", "orders"]], ids=" ".join
)
def test_a_broker_that_stands_still_is_named_when_it_is_asked_about_itself(brokers, words):
    data_dir = str(brokers.data_dir(FROZEN))
    by_path = kcore(*words, "--data", data_dir, *TOO_LONG)
    # By its own address, and through the others.
    by_address = [] if words[0] == "explain" else [kcore(*words, "--bootstrap", address(brokers, FROZEN), *TOO_LONG)]
    by_id = kcore(*words, "--bootstrap", address(brokers, 1), "--broker", str(FROZEN), *TOO_LONG)
    for done in (by_path, *by_address, by_id):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"kcore: {data_dir}: its broker (process {brokers.running[FROZEN].pid}) does not")
        assert stands_still(brokers) in done.stderr


def test_a_running_broker_is_explained_and_measured_by_its_address(brokers):
    leader = kcore("explain", "isr", "orders", "--bootstrap", brokers.bootstrap_servers, *TOO_LONG)
    assert leader.returncode == 0
    assert leader.stdout.startswith("orders-0 on broker 1: leader with epoch ")
    follower = kcore("explain", "isr", "orders", "--bootstrap", address(brokers, 1), "--broker", "2", *TOO_LONG)
    assert follower.stdout.startswith("orders-0 on broker 2: follower of broker 1")
    metrics = kcore("metrics", "--bootstrap", address(brokers, 2), "--match", "LeaderCount", *TOO_LONG)
    assert "name=LeaderCount  Value=" in metrics.stdout


@pytest.fixture(scope="module")
def expired(tmp_path_factory):
    """Three brokers, of which two stand still and have lost their sessions."""
    brokers = BrokerProcesses(tmp_path_factory.mktemp("expired"), topic="orders", partitions=1, session_ms=3000)
    try:
        brokers.start_all()
        created = kcore("topics", "create", "orders", "--assign", "1,0", "--bootstrap", address(brokers, 2))
        assert created.returncode == 0, created.stderr
        for number in (0, 1):
            brokers.pause(number)
        alive = partial(kcore, "cluster", "--json", "--bootstrap", address(brokers, 2))
        wait_until(lambda: '"brokers": 1,' in alive().stdout, pause_s=0.5)
        yield brokers
    finally:
        for process in brokers.running.values():
            process.kill()
            process.wait()


def test_each_broker_that_has_lost_its_session_because_it_stands_still_is_named_with_its_process(expired):
    done = kcore("cluster", "--bootstrap", address(expired, 2))
    assert done.returncode == 1
    for number in (0, 1):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"  broker {number} ")]
        pid = expired.running[number].pid
        assert f"broker {number} not alive: " in line
        assert f"; its process {pid} stands still, stopped by SIGSTOP or a terminal" in line


@pytest.mark.parametrize("words", [["metrics"], ["explain", "isr", "orders"]], ids=" ".join)
def test_a_broker_without_a_session_is_named_by_its_id_too(expired, words):
    done = kcore(*words, "--bootstrap", address(expired, 2), "--broker", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"its process {expired.running[0].pid} stands still, stopped by SIGSTOP" in done.stderr


def test_a_partition_that_nobody_leads_is_explained_by_who_is_alive_and_who_was_in_sync(expired):
    done = kcore("explain", "isr", "orders", "--bootstrap", address(expired, 2))
    assert done.returncode == 2
    assert "orders-0 has no leader: its replicas are on 1,0, in sync were last " in done.stderr
    assert "alive are none.  It is led again once one that was in sync is back\n" in done.stderr
