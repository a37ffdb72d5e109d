"""kcore doctor, against clusters and directories with known illnesses."""

import errno
import json
import os
import shutil

import pytest

import kcore
from kcore.client.admin_client import ClusterDescription, Node, PartitionDescription
from kcore.client.group_client import GroupClient
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.lost_records import encode_mark
from kcore.testing import MockTime
from kcore.testing.kafka_fixture import KafkaClusterFixture
from kcore.tools import doctor, findings
from kcore.tools.bootstrap import Bootstrap
from kcore.tools.cluster import ClusterState, PartitionProblem, look_at
from kcore.tools.cluster_command import admin_client
from kcore.tools.command_line import Arguments, addresses
from kcore.tools.findings import TopicSafety
from kcore.tools.main import main
from tests import golden_data
from tests.unit.log.logs import batch, idempotent, marker
from tests.unit.tools.command import LOG, flip, run_json, run_text
from tests.unit.tools.test_diff import plain, replica
from tests.unit.tools.test_groups import coordinator, member
from tests.waiting import wait_until

CHECKPOINT = "replication-offset-checkpoint"
SETTINGS = {"offsets_topic_num_partitions": 1, "log_retention_check_interval_ms": 1 << 62}


@pytest.fixture(autouse=True)
def no_full_disk(monkeypatch):
    """The disk of the machine that runs the tests is none of theirs."""
    monkeypatch.setattr(findings, "_FREE_SHARE", 0.0)


def examine(capsys, *words):
    """(exit status, findings by kind, the summary)."""
    status, lines = run_json(capsys, "doctor", *words)
    *found, summary = lines
    assert (summary["type"], summary["findings"]) == ("summary", len(found))
    assert all(line.keys() == {"type", "kind", "what", "mend", "since_ms"} for line in found)
    kinds = {}
    for line in found:
        kinds.setdefault(line["kind"], []).append(line)
    return status, kinds, summary


def commit(broker, group, offsets):
    with GroupClient(addresses(broker.bootstrap_servers), client_id="test", timeout_ms=30_000) as client:
        assert not any(client.commit_offsets(group, offsets).values())


# -- a cluster --------------------------------------------------------------------------------------------------------


def test_no_line_of_a_log_is_among_the_findings_about_a_directory(tmp_path, caplog, capfd):
    """A segment that the cleaner has emptied is named in the log when it is opened."""
    shutil.copytree(golden_data.data_dir() / "g-compact-0", tmp_path / "g-compact-0")
    shutil.copy(golden_data.data_dir() / "cleaner-offset-checkpoint", tmp_path)
    main(["doctor", str(tmp_path)])
    assert not caplog.records
    with kcore.open_log(tmp_path / "g-compact-0"):
        assert caplog.records  # who opens the log otherwise gets the line


def test_brokers_that_an_acl_keeps_from_copying_are_a_finding_until_they_may_again(capsys):
    """Metadata do not show it: the broker that should hear of a smaller ISR refuses that too."""
    acls = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "allow_everyone_if_no_acl_found": True}
    with kcore.Cluster(2, **SETTINGS, **acls) as cluster:
        cluster.create_topic("orders", min_insync_replicas=1)
        servers = ("--bootstrap", cluster.bootstrap_servers)
        words = ["--principal", "User:alice", "--operation", "alter", "--cluster", "--apply", *servers]
        assert main(["acls", "add", *words]) == 0
        wait_until(lambda: any(broker.running.services.auth.denied_brokers for broker in cluster.brokers.values()))
        capsys.readouterr()

        def denied():
            main(["doctor", *servers])
            return "the authorizer denies CLUSTER_ACTION" in capsys.readouterr().out

        assert denied()
        for broker in cluster.brokers.values():
            broker.running.services.auth.authorizer.is_super_user = lambda context: True
        wait_until(lambda: not denied())


def test_a_sound_broker_has_no_findings(capsys):
    with kcore.Broker(**SETTINGS) as broker:
        broker.produce("orders", "a")
        commit(broker, "billing", {TopicPartition("orders", 0): 1})
        status, kinds, summary = examine(capsys, "--bootstrap", broker.bootstrap_servers)
        assert (status, kinds) == (0, {})
        assert summary == {"type": "summary", "findings": 0, "unexamined": 0, "brokers": 1, "topics": 2} | {
            "partitions": 2,
            "groups": 1,
            "directories": 1,
        }
        assert main(["doctor", "--bootstrap", broker.bootstrap_servers]) == 0
        out, err = capsys.readouterr()
        assert (out, err) == ("nothing is wrong: 1 broker, 2 topics, 2 partitions, 1 group, 1 directory examined\n", "")


def test_a_cluster_as_kcore_starts_it_has_no_findings(capsys):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", 3)
        cluster.create_topic("safe", min_insync_replicas=2)
        cluster.produce("orders", "a book")
        commit(cluster, "billing", {TopicPartition("safe", 0): 0})
        status, kinds, summary = examine(capsys, "--bootstrap", cluster.bootstrap_servers)
        assert (status, kinds, summary["topics"]) == (0, {}, 3)


def test_a_group_that_lags_without_members_is_a_finding(capsys):
    with kcore.Broker(**SETTINGS) as broker:
        for number in range(5):
            broker.produce("orders", f"{number}")
        commit(broker, "billing", {TopicPartition("orders", 0): 2})
        assert main(["doctor", "--bootstrap", broker.bootstrap_servers]) == 1
        out, _ = capsys.readouterr()
        assert out.splitlines()[0] == (
            "group billing has no members, and a lag of 3 offsets: start its consumers; if nobody needs it, "
            "`kcore groups delete billing`"
        )
        assert out.splitlines()[1].startswith("1 finding: 1 broker, ")


def test_a_group_is_stuck_if_it_is_in_a_rebalance_at_both_looks(monkeypatch, capsys):
    with kcore.Cluster(1, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders")
        time = MockTime()
        monkeypatch.setattr(doctor, "SYSTEM_TIME", time)
        monkeypatch.setattr(doctor.ClusterExamination.__init__, "__defaults__", (time,))
        states = iter(["PreparingRebalance", "PreparingRebalance", "CompletingRebalance", "Stable"])
        describe = GroupClient.describe_group
        monkeypatch.setattr(
            GroupClient, "describe_group", lambda self, name: describe(self, name)._replace(state=next(states))
        )
        with coordinator(cluster, "g") as (client, _), member(client, "g", [0]):
            before_ms = time.milliseconds()
            status, kinds, _ = examine(capsys, "--bootstrap", cluster.bootstrap_servers)
            (found,) = kinds["group_rebalancing"]
            assert status == 1 and "group g is in a rebalance (PreparingRebalance, 1 member) for 5 s" in found["what"]
            assert time.milliseconds() - before_ms == 5000
            assert examine(capsys, "--bootstrap", cluster.bootstrap_servers)[:2] == (0, {})


def test_a_transaction_that_is_open_for_longer_than_it_may_be_is_a_finding(tmp_path, capsys):
    directory = tmp_path / "data"
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.create_topic("orders", 2)
    with kcore.open_log(directory / "orders-1", "a") as log:
        log.append_as_leader(batch(1))
        log.append_as_leader(idempotent(77, 0, 2, epoch=3, is_transactional=True, timestamp=1_700_000_000_000))
    status, kinds, _ = examine(capsys, directory)
    (found,) = kinds["transaction_open"]
    assert (status, found["since_ms"]) == (1, 1_700_000_000_000)
    assert f"`kcore explain lso --dir {directory / 'orders-1'}`" in found["mend"]
    with kcore.Broker(directory, **SETTINGS) as broker:
        status, kinds, _ = examine(capsys, "--bootstrap", broker.bootstrap_servers)
        (found,) = kinds["transaction_open"]
        assert (status, found["since_ms"]) == (1, 1_700_000_000_000)
        assert "orders-1: read_committed consumers stop at offset 1: the transaction of producer 77" in found["what"]
        assert "txns abort orders:1 --start-offset 1 " in found["mend"]


def test_a_transaction_that_may_still_end_is_none(tmp_path, capsys):
    directory = tmp_path / "data"
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.create_topic("orders")
        now_ms = SYSTEM_TIME.milliseconds()
    with kcore.open_log(directory / "orders-0", "a") as log:
        log.append_as_leader(idempotent(77, 0, 2, is_transactional=True, timestamp=now_ms))
    assert examine(capsys, directory)[:2] == (0, {})
    with kcore.Broker(directory, **SETTINGS) as broker:
        assert examine(capsys, "--bootstrap", broker.bootstrap_servers)[:2] == (0, {})


def test_a_broker_that_is_away_and_what_follows_from_it(capsys):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", 2, min_insync_replicas=2)
        cluster.create_topic("alone", replication_factor=1)
        only = cluster.leader("alone", 0)
        cluster.create_topic("others", 6, replication_factor=1)
        of_it = [f"others-{number}" for number in range(6) if cluster.leader("others", number) == only]
        cluster.stop(only)
        left = [broker for number, broker in cluster.brokers.items() if number != only]
        status, kinds, _ = examine(capsys, "--bootstrap", left[0].bootstrap_servers)
        assert status == 1
        (away,) = kinds["broker_not_alive"]
        assert away["what"].startswith(f"broker {only} is not alive, and has ")
        (offline,) = kinds["no_leader"]
        assert "--broker" not in offline["what"]
        assert len(of_it) == 2 and offline["mend"] == f"start broker {only}"
        assert offline["what"].startswith(
            f"3 partitions of the same brokers without a leader (alone-0, {', '.join(of_it)}): alone-0 has no leader: "
        )
        lacking = [line["what"] for line in kinds["under_replicated"]]
        assert any(
            "orders-0" in text and f"without broker {only} in the ISR, which is not alive" in text for text in lacking
        )
        (alone,) = kinds["one_replica"]
        assert "topics alone, others: one replica" in alone["what"]


def test_partitions_that_refuse_acks_all_are_a_finding_and_nothing_moves_where_too_few_brokers_live(capsys):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", 2, min_insync_replicas=2)
        cluster.create_topic("any", min_insync_replicas=1)
        servers = cluster.brokers[0].bootstrap_servers
        cluster.kill(1)
        cluster.wait_until_led("orders")
        # Until the metadata say so the dead broker may be one that could not be examined, on stderr.
        wait_until(lambda: "broker_not_alive" in run_text(capsys, "doctor", "--json", "--bootstrap", servers)[1])
        _, kinds, _ = examine(capsys, "--bootstrap", servers)
        assert "acks_all_refused" not in kinds
        assert kinds["broker_not_alive"][0]["mend"].endswith(
            "if it does not come back, `kcore reassign TOPIC --to 0,2`"
        )
        cluster.kill(2)
        cluster.wait_until_led("orders")
        refused = (
            "2 partitions refuse acks=all: ISR 1, min.insync.replicas 2 (orders-0, orders-1)",
            "start broker 1 or start broker 2",
        )
        away = (
            "start it; if it does not come back, another broker must take its place: with 1 broker, "
            "min.insync.replicas=2 of topic orders refuses acks=all"
        )

        def is_found() -> bool:  # the ISRs shrink one after the other, and the metadata follow
            kinds: dict[str, list[dict]] = {}
            for text in run_text(capsys, "doctor", "--json", "--bootstrap", servers)[1].splitlines():
                kinds.setdefault((line := json.loads(text)).get("kind", ""), []).append(line)
            found = [(line["what"], line["mend"]) for line in kinds.get("acks_all_refused", ())]
            return found == [refused] and [line["mend"] for line in kinds.get("broker_not_alive", ())] == [away] * 2

        wait_until(is_found)


def refusal(partition, min_insync, silent=(), to_continue=None):
    nodes = {number: Node(number, "h", 9092 + number, None) for number in range(3)}
    orders = TopicPartition("orders", 0)
    cluster = ClusterDescription("id", 0, nodes, {})
    problem = PartitionProblem(orders, partition, False)
    silent = dict.fromkeys(silent, "no answer")
    state = ClusterState(cluster, {orders: partition}, [0, 1, 2], silent, to_continue or {}, [problem], None)
    return [finding.mend for finding in findings.of_refused_writes(state, min_insync)]


def test_what_mends_a_refusal_of_acks_all_depends_on_what_its_other_replicas_do():
    alone = PartitionDescription(leader=0, leader_epoch=0, replicas=(0, 1, 2), isr=(0,), offline=())
    explain = "`kcore explain isr orders 0`"
    assert refusal(alone, {"orders": 2}) == [explain]
    assert refusal(alone, {"orders": 2}, silent=[1]) == [f"start broker 1 or {explain}"]
    assert refusal(alone, {"orders": 2}, [1], {1: "continue its process"}) == [f"continue its process or {explain}"]
    assert refusal(alone, {"orders": 3}, silent=[1, 2]) == ["start broker 1 and start broker 2"]
    # Enough replicas; a setting that is not known; what no broker can mend, and no leader: those are other findings.
    assert refusal(alone, {"orders": 1}) == refusal(alone, {}) == refusal(alone, {"orders": 4}) == []
    assert refusal(alone._replace(leader=-1), {"orders": 2}) == []


def test_brokers_that_differ_and_unwise_topics_are_findings(capsys):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("never", min_insync_replicas=4)
        cluster.create_topic("all", min_insync_replicas=3)
        cluster.create_topic("unclean", min_insync_replicas=2, unclean_leader_election_enable=True)
        cluster.create_topic("one", min_insync_replicas=1)
        cluster.create_topic("default")
        servers = cluster.bootstrap_servers
        assert main(["configs", "set", "--broker", "1", "log.retention.ms=7", "--apply", "--bootstrap", servers]) == 0
        capsys.readouterr()
        status, kinds, _ = examine(capsys, "--bootstrap", servers)
        (differ,) = kinds["settings_differ"]
        assert status == 1
        assert differ["mend"] == "`kcore configs unset --broker 1 log.retention.ms --apply`"
        assert "the brokers differ in log.retention.ms: " in differ["what"] and "7 on 1" in differ["what"]
        assert {
            kind: [line["what"].split(":")[0] for line in kinds[kind]] for kind in kinds if kind != "settings_differ"
        } == {
            "min_insync_impossible": ["topic never"],
            "min_insync_all": ["topic all"],
            "unclean_elections": ["topic unclean"],
            "min_insync_one": ["topic one"],
        }
        # What it names mends it.
        for line in (line for lines in kinds.values() for line in lines):
            command = line["mend"].split("`")[1].replace("=N", "=2").split()
            assert main([*command[1:], "--bootstrap", servers]) == 0
        capsys.readouterr()
        assert examine(capsys, "--bootstrap", servers)[:2] == (0, {})


def test_the_advice_about_a_setting_that_the_brokers_give_their_topics_mends_the_topic(capsys):
    with kcore.Broker(min_insync_replicas=2, **SETTINGS) as broker:
        broker.create_topic("orders")
        words = ("--bootstrap", broker.bootstrap_servers)
        (found,) = examine(capsys, *words)[1]["min_insync_impossible"]
        command = found["mend"].split("`")[1].replace("=N", "=1").split()
        assert main([*command[1:], *words]) == 0
        capsys.readouterr()
        assert "min_insync_impossible" not in examine(capsys, *words)[1]


def test_topics_whose_elections_the_brokers_have_unclean_are_told_to_set_it():
    topic = TopicSafety(
        "orders", False, replicas=3, min_insync_replicas=2, is_min_insync_own=True, unclean_elections=True
    )
    (found,) = findings.of_topics([topic], [0, 1, 2])
    assert found.mend == "`kcore configs set --topic orders unclean.leader.election.enable=false --apply`"


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_broker_whose_process_stands_still_is_to_be_continued_as_it_has_its_lock(is_registered):
    nodes = {number: Node(number, "127.0.0.1", 9092 + number, None) for number in ([1, 2] if is_registered else [1])}
    orders = TopicPartition("orders", 0)
    partition = PartitionDescription(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,), offline=())
    state = ClusterState(
        ClusterDescription("id", 1, nodes, {}),
        {orders: partition},
        [1, 2],
        {2: "its process 4711 stands still, stopped by SIGSTOP or a terminal"},
        {2: "continue its process: `kill -CONT 4711`"},
        [PartitionProblem(orders, partition, False)],
        None,
    )
    found = [*findings.of_brokers(state, {}), *findings.of_partitions(state, lambda problem, number: None)]
    mend, reassign = (
        "continue its process: `kill -CONT 4711`",
        "; if it does not come back, `kcore reassign TOPIC --to 1`",
    )
    assert [finding.mend for finding in found] == [mend + ("" if is_registered else reassign), mend]


def test_a_data_directory_that_is_offline_or_full_is_a_finding(tmp_path, capsys, monkeypatch):
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kcore.Broker(log_dirs=",".join(map(str, dirs)), **SETTINGS) as broker:
        monkeypatch.setattr(findings, "_FREE_SHARE", 1.1)
        status, kinds, _ = examine(capsys, "--bootstrap", broker.bootstrap_servers)
        assert status == 1 and len(kinds["disk_full"]) == 2
        assert f"`kcore logdirs list --broker {broker.broker_id}`" in kinds["disk_full"][0]["mend"]
        monkeypatch.setattr(findings, "_FREE_SHARE", 0.0)
        channel = broker.replica_manager.log_manager.log_dir_failure_channel
        channel.maybe_add_offline_log_dir(str(dirs[1]), OSError(errno.EIO, "broken"))
        status, kinds, _ = examine(capsys, "--bootstrap", broker.bootstrap_servers)
        (offline,) = kinds["log_dir_offline"]
        assert status == 1 and f"{dirs[1]} is offline: KafkaStorageError" in offline["what"]


def test_the_leader_says_why_a_live_replica_is_not_in_sync_or_that_it_is_by_now(capsys):
    settings = {"replica_lag_time_max_ms": 500, "replica_fetch_wait_max_ms": 100}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, **settings) as cluster:
        kafka = KafkaClusterFixture(cluster)
        cluster.create_topic("orders")
        leader = cluster.leader("orders", 0)
        follower, other = sorted({0, 1, 2} - {leader})
        args = Arguments(bootstrap=Bootstrap(cluster.bootstrap_servers), timeout=30)
        examination = doctor.ClusterExamination(args)
        orders = TopicPartition("orders", 0)
        with kafka.fault("Fetch", silent=True, from_broker=follower, broker=leader) as fault:
            fault.wait_for_hits()
            cluster.produce("orders", "a")
            kafka.wait_for_isr("orders", [leader, other])
            with admin_client(args) as admin:
                state = look_at(admin)
            lacking = state.partitions[orders]._replace(isr=(leader, other))
            state = state._replace(problems=[PartitionProblem(orders, lacking, False)])
            (finding,) = findings.of_partitions(
                state, lambda problem, number: examination._cause(state, problem, number)
            )
            assert finding.mend == "`kcore explain isr orders 0`"
            assert finding.what.startswith(
                f"1 partition led by broker {leader} without broker {follower} in the ISR (orders-0): "
            )
            assert "it stays: " not in finding.what
            assert finding.since_ms is not None
            (silent,) = findings.of_partitions(state, lambda problem, number: None)
            assert silent == finding._replace(what=finding.what.split(" (orders-0)")[0] + " (orders-0)", since_ms=None)
        # The metadata of that time are older than what the leader says.
        kafka.wait_for_isr("orders", [0, 1, 2])
        assert not [*findings.of_partitions(state, lambda problem, number: examination._cause(state, problem, number))]


@pytest.mark.parametrize(
    ("joined", "what"),
    [
        ([], "4 partitions led by broker 0 without broker 1 in the ISR (t-0, t-1, t-2, t-3): slow 0"),
        ([0], "3 partitions led by broker 0 without broker 1 in the ISR (t-1, t-2, t-3): slow 1"),
        ([0, 1, 3], "1 partition led by broker 0 without broker 1 in the ISR (t-2): slow 2"),
        ([0, 1, 2, 3], None),
    ],
)
def test_the_partitions_that_a_replica_has_joined_by_now_are_left_out(joined, what):
    partition = PartitionDescription(leader=0, leader_epoch=0, replicas=(0, 1), isr=(0,), offline=())
    problems = [PartitionProblem(TopicPartition("t", number), partition, False) for number in range(4)]
    nodes = {number: Node(number, "h", 9092 + number, None) for number in range(2)}
    state = ClusterState(ClusterDescription("id", 0, nodes, {}), {}, [0, 1], {}, {}, problems, None)
    asked = []

    def cause_of(problem, number):
        asked.append(problem)
        partition = problem.topic_partition.partition
        return findings.Cause(f"slow {partition}", None, partition in joined)

    found = [*findings.of_partitions(state, cause_of)]
    assert [finding.what for finding in found] == ([] if what is None else [what])
    assert len(asked) == (4 if joined else 1)


def test_a_leader_that_does_not_answer_is_not_asked_why_a_replica_is_not_in_sync(monkeypatch):
    monkeypatch.setattr(doctor, "directory_of_address", None)  # not to be called
    brokers = {number: Node(number, "h", 9092 + number, None) for number in range(2)}
    partition = PartitionDescription(0, 0, (0, 1), (0,), ())
    problem = PartitionProblem(TopicPartition("orders", 0), partition, False)
    state = ClusterState(ClusterDescription(None, 0, brokers, {}), {}, [0, 1], {0: "no answer"}, {}, [problem], None)
    assert doctor.ClusterExamination(Arguments(timeout=30))._cause(state, problem, 1) is None


def test_what_cannot_be_examined_is_named(capsys, monkeypatch):
    with kcore.Broker(**SETTINGS) as broker:
        broker.produce("orders", "a")

        def refused(self, node):
            raise ConnectionRefusedError("refused")

        monkeypatch.setattr(doctor.LogDirClient, "log_dirs", refused)
        assert main(["doctor", "--bootstrap", broker.bootstrap_servers]) == 2
        assert "the data directories of broker 1: not examined: refused" in capsys.readouterr().err


# -- directories ------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    directory = tmp_path / "data"
    with kcore.Broker(directory, **SETTINGS) as broker:
        for partition in (0, 1):
            broker.create_topic(f"t{partition}")
            for number in range(3):
                broker.produce(f"t{partition}", f"{number}")
    return directory


def test_a_sound_directory_has_no_findings(data, capsys):
    status, kinds, summary = examine(capsys, data)
    assert (status, kinds, summary["directories"]) == (0, {}, 2)
    assert main(["doctor", str(data), "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("nothing is wrong: 2 directories, ")


def test_each_damaged_partition_is_one_line_with_its_repair(data, capsys):
    for position in (70, 140):
        flip(data / "t0-0" / LOG, position)
    flip(data / "t1-0" / LOG, 70)
    status, kinds, _ = examine(capsys, data)
    assert status == 1 and [*kinds] == ["damage"]
    assert [line["mend"] for line in kinds["damage"]] == [f"`kcore repair {data / name}`" for name in ("t0-0", "t1-0")]
    first = kinds["damage"][0]["what"]
    assert first.startswith(f"{data / 't0-0' / LOG}: ") and first.endswith("1 damaged place more")


def test_for_a_gap_that_no_repair_fills_another_copy_is_named(tmp_path, capsys):
    directory = replica(tmp_path / "data" / "t-0", plain(0, 200, 1))
    segments = sorted(directory.glob("*.log"))
    for path in directory.glob(f"{segments[1].stem}.*"):
        path.unlink()
    _, kinds, _ = examine(capsys, directory)
    (finding,) = kinds["damage"]
    assert "kcore repair" not in finding["mend"] and "copy the segment from a backup" in finding["mend"]
    flip(segments[0], 70)
    _, kinds, _ = examine(capsys, directory)
    assert kinds["damage"][0]["mend"] == f"`kcore repair {directory}`"


def test_for_a_file_that_repair_leaves_alone_no_repair_is_named(tmp_path, capsys):
    directory = replica(tmp_path / "data" / "t-0", plain(0, 50, 1))
    base = int(sorted(directory.glob("*.log"))[1].stem)
    os.rename(directory / f"{base:020}.log", directory / f"{base - 3:020}.log")
    _, kinds, _ = examine(capsys, directory)
    (finding,) = kinds["damage"]
    assert finding["what"].startswith(f"{directory / f'{base - 3:020}.log'}: ")
    assert "kcore repair" not in finding["mend"] and finding["mend"].endswith(f"`kcore verify {directory}`")
    assert main(["repair", str(directory)]) == 1
    assert "nothing can be repaired" in capsys.readouterr().out


@pytest.mark.parametrize("base", [25, 900])
def test_for_a_copy_of_a_segment_under_another_name_the_repair_is_named(base, tmp_path, capsys):
    directory = replica(tmp_path / "data" / "t-0", plain(0, 50, 1))
    shutil.copy(sorted(directory.glob("*.log"))[0], directory / f"{base:020}.log")
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    _, kinds, _ = examine(capsys, directory)
    (finding,) = kinds["damage"]
    assert finding["what"].startswith(f"{directory / f'{base:020}.log'}: not a segment of this log: ")
    assert finding["mend"] == f"`kcore repair {directory}`, before a broker starts on it"
    # What a start would mend comes after it.
    assert [*kinds].index("damage") < [*kinds].index("unclean_stop")


@pytest.mark.parametrize("name", ["orders-0/00000000000000099999.log", "orders-0/partition.metadata", CHECKPOINT])
def test_for_a_directory_under_the_name_of_a_file_the_repair_of_its_partition_is_named(name, tmp_path, capsys):
    directory = tmp_path / "data"
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.produce("orders", "a")
    path = directory / name
    path.unlink(missing_ok=True)
    path.mkdir()
    status, kinds, _ = examine(capsys, str(directory))
    (found,) = kinds["damage"]
    assert (status, kinds.keys()) == (1, {"damage"})
    assert found["mend"].startswith(f"`kcore repair {path.parent}`")
    assert main([*found["mend"].split("`")[1].split()[1:], "--apply", "--in-place"]) == 0
    capsys.readouterr()
    assert "damage" not in examine(capsys, str(directory))[1]


def test_a_transaction_whose_marker_is_damaged_is_not_called_open(tmp_path, capsys):
    directory = tmp_path / "data"
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.create_topic("orders")
    with kcore.open_log(directory / "orders-0", "a") as log:
        log.append_as_leader(idempotent(77, 0, 2, is_transactional=True))
        at = (directory / "orders-0" / LOG).stat().st_size
        log.append_as_leader(marker(77, commit=True), origin=AppendOrigin.COORDINATOR)
    for snapshot in (directory / "orders-0").glob("*.snapshot"):
        snapshot.unlink()
    flip(directory / "orders-0" / LOG, at + 16)
    status, kinds, _ = examine(capsys, directory)
    assert (status, [*kinds]) == (1, ["damage"])


def test_an_unclean_stop_and_lost_records_are_findings(data, capsys):
    (data / ".kafka_cleanshutdown").unlink()
    (data / "t1-0" / "lost-records").write_bytes(encode_mark(2))
    status, kinds, _ = examine(capsys, data)
    assert status == 1 and kinds.keys() == {"unclean_stop", "lost_records"}
    (stop,) = kinds["unclean_stop"]
    checkpoints = [path.stat().st_mtime for path in data.glob("*-checkpoint")]
    assert stop["since_ms"] == int(max(checkpoints) * 1000)
    assert stop["mend"] == f"`kcore serve --data {data}` recovers them at its start"
    (lost,) = kinds["lost_records"]
    assert lost["what"].startswith(f"{data / 't1-0'}: records from offset 2 on are missing")
    kcore.Broker(data, **SETTINGS).start().stop()
    assert "unclean_stop" not in examine(capsys, data)[1]


def test_kcore_is_not_named_to_recover_a_directory_of_kafka_or_a_part_of_one(data, tmp_path, capsys):
    (tmp_path / "part").mkdir()
    shutil.copytree(data / "t0-0", tmp_path / "part" / "t0-0")
    kafkas = shutil.copytree(golden_data.data_dir(), tmp_path / "kafka")
    (kafkas / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for directory in (tmp_path / "part", kafkas):
        (stop,) = examine(capsys, directory)[1]["unclean_stop"]
        assert stop["mend"] == "the broker that it belongs to recovers them at its start"
        assert "or this is a copy of a part of a directory" in stop["what"]


def test_a_directory_without_partitions_is_named_with_what_was_looked_for(data, tmp_path, capsys):
    with kcore.Broker(tmp_path / "fresh", **SETTINGS):
        pass
    for option in ("--json", "--quiet"):
        assert main(["doctor", str(tmp_path / "fresh"), str(data), option]) == 0
        err = capsys.readouterr().err
        assert f"{tmp_path / 'fresh'}: no partitions here: no directory has a name as orders-0" in err
        assert "log.dirs" in err and f"{data}: " not in err


def test_a_missing_meta_properties_is_a_finding_and_a_start_mends_it(data, tmp_path, capsys):
    kafkas = shutil.copytree(golden_data.data_dir(), tmp_path / "kafka")
    for directory in (data, kafkas):
        assert "no_meta_properties" not in examine(capsys, directory)[1]
        (directory / "meta.properties").unlink()
    for path in (kafkas, kafkas / "g-none-0"):
        (finding,) = examine(capsys, path)[1]["no_meta_properties"]
        assert finding["what"].startswith(f"{kafkas} has no meta.properties")
        assert finding["mend"].startswith("the broker that it belongs to writes it anew at its start")
        assert "kafka-storage.sh format" in finding["mend"]
    (finding,) = examine(capsys, data)[1]["no_meta_properties"]
    assert finding["mend"] == f"`kcore serve --data {data}` writes it anew at its start"
    kcore.Broker(data, **SETTINGS).start().stop()
    assert "no_meta_properties" not in examine(capsys, data)[1]


@pytest.mark.parametrize("content", [b"", b"junk\n", b"version=0\nbroker.id=\xff\n"])
def test_no_repair_is_named_for_a_damaged_meta_properties_and_a_start_mends_it(data, tmp_path, capsys, content):
    kafkas = shutil.copytree(golden_data.data_dir(), tmp_path / "kafka")
    for directory in (data, kafkas):
        (directory / "meta.properties").write_bytes(content)
    (finding,) = examine(capsys, kafkas)[1]["damage"]
    assert finding["mend"].startswith("the broker that it belongs to, if it is one of kcore")
    (data / "recovery-point-offset-checkpoint").write_text("junk")
    properties, checkpoint = examine(capsys, data)[1]["damage"]
    assert properties["what"].startswith(f"{data / 'meta.properties'}: ")
    assert properties["mend"].startswith(f"`kcore serve --data {data}` keeps it under another name")
    assert checkpoint["mend"] == f"`kcore repair {data}`"
    kcore.Broker(data, **SETTINGS).start().stop()
    assert "damage" not in examine(capsys, data)[1]


def test_a_directory_in_use_is_no_unclean_stop(data, capsys):
    with kcore.Broker(data, **SETTINGS):
        assert not (data / ".kafka_cleanshutdown").exists()
        assert examine(capsys, data)[:2] == (0, {})


def test_a_directory_that_kafka_wrote_has_its_open_transaction(tmp_path, capsys):
    copy = shutil.copytree(golden_data.data_dir(), tmp_path / "kafka")
    status, kinds, _ = examine(capsys, copy)
    assert status == 1 and [*kinds] == ["transaction_open"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["/no/such/path"], "/no/such/path: No such file or directory"),
        (["{data}", "--bootstrap", "localhost:1"], "give one of them"),
        (["--bootstrap", "127.0.0.1:1"], "127.0.0.1:1: "),
    ],
)
def test_what_cannot_be_examined_at_all_is_status_2(data, capsys, words, reason):
    assert main(["doctor", *(word.format(data=data) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and reason in err
