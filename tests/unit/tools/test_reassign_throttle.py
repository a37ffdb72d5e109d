"""`kcore reassign --throttle` and `--unthrottle`."""

import pytest

import kcore
from kcore.client.admin_client import AdminClient, ClusterDescription, ConfigValue, Reassignment
from kcore.common.topic_partition import TopicPartition
from kcore.errors import InvalidReplicaAssignment, TopicAuthorizationFailed
from kcore.metadata import znodes
from kcore.tools.main import main
from kcore.tools.reassign_throttle import FOLLOWER_LIST, LEADER_LIST, LISTS, remove_throttle, throttled_replicas
from tests.waiting import wait_until

UNBOUNDED = 2**63 - 1


def test_present_replicas_are_throttled_as_leaders_and_added_ones_as_followers():
    t0, t1, u0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    targets = {t0: (1, 2), t1: (2, 1), u0: (3,)}
    present = {t0: (0, 1), t1: (1, 0), u0: (3, 4)}
    assert throttled_replicas(targets, present) == {
        "t": {LEADER_LIST: ["0:0", "0:1", "1:1", "1:0"], FOLLOWER_LIST: ["0:2", "1:2"]},
        "u": {LEADER_LIST: ["0:3", "0:4"], FOLLOWER_LIST: []},
    }


@pytest.fixture(scope="module")
def cluster():
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": 30_000}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, **settings) as cluster:
        yield cluster


@pytest.fixture
def reassign(cluster, capsys):
    def reassign(*words):
        """(exit status, stdout)."""
        status = main(["reassign", *words, "--bootstrap", cluster.bootstrap_servers])
        out, err = capsys.readouterr()
        assert not err
        return status, out

    return reassign


def rates(cluster):
    """(leader's, follower's) by broker."""
    quotas = [cluster.brokers[number].running.services.replication_quotas for number in range(3)]
    return [(of.leader.bytes_per_second, of.follower.bytes_per_second) for of in quotas]


def own_config(cluster, topic):
    """As the store has it: the brokers follow a moment later."""
    return znodes.decode_config(cluster.brokers[0].store.get(znodes.topic_config(topic)).data)


def create(cluster, topic, broker):
    reference = main(["topics", "create", topic, "--assign", str(broker), "--bootstrap", cluster.bootstrap_servers])
    assert reference == 0
    wait_until(lambda: all(b.metadata_cache.topic(topic) is not None for b in cluster.brokers.values()))


def test_a_throttle_stays_until_it_is_removed(cluster, reassign, capsys):
    create(cluster, "t", 0)
    capsys.readouterr()
    status, out = reassign("t", "--to", "1", "--throttle", "1000")
    assert (status, out.splitlines()) == (
        0,
        ["t-0 moves to 1", "throttled; when all is moved: kcore reassign t --unthrottle"],
    )
    assert rates(cluster) == [(1000, 1000), (1000, 1000), (UNBOUNDED, UNBOUNDED)]
    assert own_config(cluster, "t") == {LEADER_LIST: "0:0", FOLLOWER_LIST: "0:1"}
    wait_until(lambda: reassign("--status")[1] == "nothing is being moved\n")
    assert reassign("t", "--unthrottle") == (0, "the throttle is removed\n")
    assert rates(cluster) == [(UNBOUNDED, UNBOUNDED)] * 3
    assert own_config(cluster, "t") == {}


def test_who_waits_for_the_end_of_a_move_has_the_throttle_removed(cluster, reassign, capsys):
    create(cluster, "w", 0)
    capsys.readouterr()
    status, out = reassign("w", "--to", "2", "--throttle", "1000000", "--wait")
    assert (status, out.splitlines()) == (0, ["w-0 moves to 2", "the throttle is removed", "1 partition moved"])
    assert rates(cluster) == [(UNBOUNDED, UNBOUNDED)] * 3
    assert own_config(cluster, "w") == {}


def test_a_move_without_a_throttle_says_that_an_earlier_one_still_holds(cluster, capsys):
    create(cluster, "e", 0)
    words = ["reassign", "e", "--to", "1", "--bootstrap", cluster.bootstrap_servers]
    for extra, is_said in (["--throttle", "1000", "--dry-run"], False), (["--dry-run"], True), ([], True):
        main(["topics", "alter", "e", "--config", f"{LEADER_LIST}=0:0", "--bootstrap", cluster.bootstrap_servers])
        wait_until(lambda: all(dict(b.admin_manager.topic_config("e")) for b in cluster.brokers.values()))
        capsys.readouterr()
        assert main([*words, *extra]) == 0
        note = "e: the throttle of an earlier move is still there"
        assert (note in capsys.readouterr().err) == is_said
    # Whichever broker is asked.
    wait_until(
        lambda: all(b.metadata_cache.topic("e").partitions[0].replicas == (1,) for b in cluster.brokers.values())
    )
    assert main(words) == 0 and not capsys.readouterr().err, "it is there already"


def settings(cluster, topic):
    return rates(cluster), own_config(cluster, topic)


def with_older_throttle(cluster, reassign, topic):
    """Its settings: of partition 0, which has been moved from broker 0 to 1, and is not unthrottled yet."""
    assert main(["topics", "create", topic, "--assign", "0:0", "--bootstrap", cluster.bootstrap_servers]) == 0
    wait_until(lambda: all(b.metadata_cache.topic(topic) is not None for b in cluster.brokers.values()))
    assert reassign(f"{topic}:0", "--to", "1", "--throttle", "1000")[0] == 0
    wait_until(lambda: reassign("--status")[1] == "nothing is being moved\n")
    await_known(cluster, topic)
    older = ([(1000, 1000), (1000, 1000), (UNBOUNDED, UNBOUNDED)], {LEADER_LIST: "0:0", FOLLOWER_LIST: "0:1"})
    assert settings(cluster, topic) == older
    return older


def await_known(cluster, topic):
    """Every broker has the topic's settings and leaders: any of them may be asked."""
    stored = own_config(cluster, topic)
    wait_until(lambda: all(b.admin_manager.topic_config(topic) == stored for b in cluster.brokers.values()))
    leader = cluster.leader(topic)
    brokers = cluster.brokers.values()
    wait_until(lambda: all(b.metadata_cache.topic(topic).partitions[0].leader == leader for b in brokers))


def test_a_move_of_nothing_leaves_the_throttle_of_an_older_one(cluster, reassign):
    older = with_older_throttle(cluster, reassign, "n")
    assert reassign("n:0", "--to", "1", "--throttle", "5000") == (0, "n-0 is on 1 already: nothing to do\n")
    assert settings(cluster, "n") == older
    assert reassign("n", "--unthrottle") == (0, "the throttle is removed\n")


def test_a_refused_move_takes_back_its_own_throttle_alone(cluster, reassign, monkeypatch):
    older = with_older_throttle(cluster, reassign, "f")
    during = []

    def refuse(admin, targets):
        during.append(settings(cluster, "f"))
        return {tp: InvalidReplicaAssignment("no") for tp in targets}

    monkeypatch.setattr(AdminClient, "alter_reassignments", refuse)
    status, out = reassign("f", "--to", "2", "--throttle", "5000")
    assert (status, out.splitlines()) == (
        1,
        [
            "f-0: InvalidReplicaAssignment: no",
            "f-1: InvalidReplicaAssignment: no",
            "nothing moves: the throttles are as they were before",
        ],
    )
    assert during == [([(5000, 5000)] * 3, {LEADER_LIST: "0:0,0:1,1:0", FOLLOWER_LIST: "0:1,0:2,1:2"})]
    assert settings(cluster, "f") == older
    monkeypatch.undo()
    assert reassign("f", "--unthrottle") == (0, "the throttle is removed\n")


def test_of_a_move_that_is_refused_in_part_the_rest_is_throttled(cluster, reassign, monkeypatch):
    older = with_older_throttle(cluster, reassign, "p")
    monkeypatch.setattr(
        AdminClient,
        "alter_reassignments",
        lambda _, targets: {tp: InvalidReplicaAssignment("no") if tp.partition == 0 else None for tp in targets},
    )
    assert reassign("p", "--to", "2", "--throttle", "5000")[0] == 1
    await_known(cluster, "p")
    assert older[1] == {LEADER_LIST: "0:0", FOLLOWER_LIST: "0:1"}
    assert settings(cluster, "p") == ([(5000, 5000)] * 3, {LEADER_LIST: "0:0,1:0", FOLLOWER_LIST: "0:1,1:2"})
    monkeypatch.undo()
    assert reassign("p", "--unthrottle") == (0, "the throttle is removed\n")


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["z:0"], {LEADER_LIST: "1:0,2:0", FOLLOWER_LIST: "1:1"}),
        (["z:0", "z:2"], {LEADER_LIST: "1:0", FOLLOWER_LIST: "1:1"}),
        (["z:0,1", "z"], {}),
        (["z", "z:1"], {}),
    ],
)
def test_of_the_partitions_that_are_named_alone_the_throttle_is_removed(cluster, reassign, capsys, words, left):
    if cluster.brokers[0].metadata_cache.topic("z") is None:
        create(cluster, "z", "0:0:0")
    settings = [f"{LEADER_LIST}=0:0,1:0,2:0", "--config", f"{FOLLOWER_LIST}=0:1,1:1"]
    main(["topics", "alter", "z", "--config", *settings, "--bootstrap", cluster.bootstrap_servers])
    await_known(cluster, "z")
    capsys.readouterr()
    assert reassign(*words, "--unthrottle") == (0, "the throttle is removed\n")
    assert own_config(cluster, "z") == left


class Admin:
    """Of an AdminClient what remove_throttle() uses: one topic with lists, and partitions that are being moved."""

    def __init__(self, lists, moving):
        self.lists, self.moving = dict(lists), moving

    def reassignments(self):
        return {TopicPartition(*tp): Reassignment((), (), ()) for tp in self.moving}

    def topic_configs(self, names):
        return {name: {key: ConfigValue(self.lists.get(key), key in self.lists) for key in LISTS} for name in names}

    def alter_topic_config(self, topic, changes):
        for key, value in changes.items():
            if value is None:
                self.lists.pop(key, None)
            else:
                self.lists[key] = value


@pytest.mark.parametrize(
    ("lists", "moving", "named", "left"),
    [
        ({LEADER_LIST: "0:0,1:0,10:0", FOLLOWER_LIST: "0:1"}, [("t", 1)], [0], {LEADER_LIST: "1:0,10:0"}),
        ({LEADER_LIST: "0:0,1:0", FOLLOWER_LIST: "0:1,1:2"}, [("t", 1)], [0, 1], {}),
        (
            {LEADER_LIST: "0:0,1:0", FOLLOWER_LIST: "0:1, 1:2"},
            [],
            [0],
            {LEADER_LIST: "1:0", FOLLOWER_LIST: "1:2"},
        ),
        ({LEADER_LIST: "0:0,1:0", FOLLOWER_LIST: "0:1,1:2"}, [("u", 1)], None, {}),
        ({LEADER_LIST: "0:0,1:0", FOLLOWER_LIST: "0:1,1:2"}, [("t", 1)], None, {}),
        ({LEADER_LIST: "*"}, [("t", 1)], [0], {LEADER_LIST: "*"}),
        ({LEADER_LIST: "*"}, [], [0], {LEADER_LIST: "*"}),
        ({LEADER_LIST: "*"}, [], None, {}),
    ],
)
def test_the_end_of_a_throttle_keeps_what_the_lists_have_of_other_partitions(lists, moving, named, left):
    admin = Admin(lists, moving)
    cluster = ClusterDescription("c", 0, {}, {})
    is_all_moved = remove_throttle(admin, cluster, {"t": named})
    assert (admin.lists, is_all_moved) == (left, not moving)


def test_settings_that_a_topic_refuses_leave_the_older_rates(cluster, capsys, reassign, monkeypatch):
    older = with_older_throttle(cluster, reassign, "s")

    def refuse(admin, topic, changes):
        assert rates(cluster) == [(5000, 5000)] * 3
        raise TopicAuthorizationFailed("no")

    monkeypatch.setattr(AdminClient, "alter_topic_config", refuse)
    words = ["reassign", "s", "--to", "2", "--throttle", "5000", "--bootstrap", cluster.bootstrap_servers]
    assert main(words) == 2
    assert "no" in capsys.readouterr().err
    assert settings(cluster, "s") == older
    monkeypatch.undo()
    assert reassign("s", "--unthrottle") == (0, "the throttle is removed\n")


def test_a_rate_that_brokers_refuse_moves_nothing(cluster, capsys):
    create(cluster, "r", 0)
    capsys.readouterr()
    words = ["reassign", "r", "--to", "1", "--throttle", str(2**63), "--bootstrap", cluster.bootstrap_servers]
    assert main(words) == 2
    assert "leader.replication.throttled.rate" in capsys.readouterr().err
    assert own_config(cluster, "r") == {}
    assert cluster.leader("r") == 0
