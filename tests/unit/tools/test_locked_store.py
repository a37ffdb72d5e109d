"""Changes of a cluster whose store another program has locked: the commands name it when their time is over."""

import json
import re

import pytest

import kcore
from kcore.client.group_client import GroupClient
from kcore.errors import CoordinatorNotAvailable, NotCoordinator
from kcore.protocol.messages.offset_fetch import OffsetFetchResponse
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS
from tests.locked_store import locked_by_a_process

MAY_FOLLOW = " (the broker may still make the change: look before you give the command again)\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """(--bootstrap and the controller, what the commands say of it)."""
    directory = tmp_path_factory.mktemp("locked")
    file = directory / "cluster.db"
    settings = {"store": f"sqlite:{file}", "zookeeper_session_timeout_ms": LONG_MS}
    settings |= {"auto_leader_rebalance_enable": False}  # `elect` is to have something to do
    with kcore.Cluster(2, directory, **settings) as cluster:
        controller = cluster.brokers[cluster.controller()]
        bootstrap = ["--bootstrap", controller.bootstrap_servers]
        assert main(["topics", "create", "orders", "--assign", "0", *bootstrap]) == 0
        assert main(["topics", "create", "payments", "--assign", "0,1", *bootstrap]) == 0
        assert main(["reassign", "payments:0", "--to", "1,0", *bootstrap]) == 0  # 0 leads on
        with locked_by_a_process(file) as pid:
            yield bootstrap, f"{controller.bootstrap_servers}: no answer (timeout 1 s)", f"locked by process {pid} ("


@pytest.mark.parametrize(
    "words",
    [
        "topics create new",
        "topics alter orders --config retention.ms=70000",
        "topics alter orders --partitions 2",
        "topics delete orders",
        "reassign orders:0 --to 1",
        "elect payments",
    ],
)
def test_a_change_whose_time_is_over_names_who_has_locked_the_store_and_that_it_may_be_made_later(
    locked, words, capsys
):
    bootstrap, no_answer, by = locked
    assert main([*words.split(), "--timeout", "1", *bootstrap]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"kcore: {no_answer}: its process ") and by in err
    assert err.endswith(MAY_FOLLOW)


@pytest.mark.parametrize(
    "words", ["configs set --topic orders retention.ms=80000", "quotas set --user alice producer_byte_rate=1000"]
)
def test_settings_that_are_sent_to_a_broker_whose_store_is_locked_may_be_changed_later(words, tmp_path, capsys):
    # A broker of its own: while another change waits there, not even the plan is answered, and nothing is sent.
    with kcore.Broker(tmp_path) as broker:
        bootstrap = ["--bootstrap", broker.bootstrap_servers]
        assert main(["topics", "create", "orders", *bootstrap]) == 0
        with locked_by_a_process(tmp_path / "kcore-metadata.db"):
            assert main([*words.split(), "--timeout", "1", *bootstrap]) == 0
            assert main([*words.split(), "--apply", "--timeout", "1", *bootstrap]) == 2
            assert capsys.readouterr().err.endswith(MAY_FOLLOW)


def test_a_question_whose_time_is_over_says_nothing_of_a_change(locked, capsys):
    bootstrap, no_answer, by = locked
    # A change, behind which the question waits.
    assert main(["reassign", "orders:0", "--to", "1", "--timeout", "1", *bootstrap]) == 2
    capsys.readouterr()
    assert main(["reassign", "--status", "--timeout", "1", *bootstrap]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"kcore: {no_answer}: its process ") and by in err and "change" not in err


def test_the_cluster_is_described_with_the_process_that_has_locked_the_store(locked, capsys):
    bootstrap, _, by = locked
    assert main(["cluster", *bootstrap]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cluster ") and lines[1].startswith("  the metadata store ")
    assert by in lines[1] and "at the latest" in lines[1]
    assert main(["cluster", "--json", *bootstrap]) == 1
    assert by in json.loads(capsys.readouterr().out.splitlines()[0])["store_lock"]


def test_a_topic_is_described_with_the_process_that_has_locked_the_store(locked, capsys):
    bootstrap, _, by = locked
    assert main(["topics", "describe", "orders", *bootstrap]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("the metadata store ") and by in last and "at the latest" in last
    assert main(["topics", "describe", "orders", "--json", *bootstrap]) == 1
    assert by in json.loads(capsys.readouterr().out)["store_lock"]


def test_groups_without_a_coordinator_are_not_waited_for_while_the_store_is_locked(locked, capsys):
    bootstrap, _, by = locked
    for words in ("groups delete g", "consume orders --group g"):
        # Longer than the deadline of a test.
        assert main([*words.split(), "--timeout", "20", *bootstrap]) == 2
        err = capsys.readouterr().err
        # The first request has the broker make __consumer_offsets, which waits for the store.
        assert err.startswith(f"kcore: {bootstrap[1]}: no answer: the metadata store ") and by in err
    # Who only looks has no topic made, and needs no store.
    assert main(["groups", "describe", "g", *bootstrap]) == 2
    assert capsys.readouterr().err == "kcore: there is no group 'g'\n"


def test_a_group_whose_coordinator_changes_while_the_store_is_locked_is_refused_with_who_has_locked_it(
    locked, monkeypatch
):
    """Also for a command that waits, as one that commits what it has printed."""
    bootstrap, _, by = locked
    host, port = bootstrap[1].split(":")
    with GroupClient([(host, int(port))], client_id="test", timeout_ms=500) as client:
        monkeypatch.setattr(client, "_coordinator_address", lambda group_id: (host, int(port)))
        monkeypatch.setattr(client, "_send", lambda *_: OffsetFetchResponse(topics=[], error_code=NotCoordinator.code))
        with pytest.raises(CoordinatorNotAvailable, match=f"does not answer as a coordinator now: .*{re.escape(by)}"):
            client.committed_offsets("g")
