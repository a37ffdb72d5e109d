"""What --json prints is what the command's page says: each field, its type, and snake_case names."""

import errno
import json
import re
import shutil
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import kcore
from kcore.client.admin_client import AdminClient
from kcore.common.text import json_line
from kcore.common.topic_partition import TopicPartition
from kcore.errors import InvalidReplicaAssignment
from kcore.inspect import scan_segment
from kcore.log.log_file_names import CLEAN_SHUTDOWN_FILE
from kcore.log.lost_records import write_mark
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture
from kcore.tools.backup_manifest import read_manifest
from kcore.tools.commands import whole_tree
from kcore.tools.main import kcore as kcore_command
from kcore.tools.main import main
from tests import golden_data
from tests.unit.server.transactions import SETTINGS
from tests.unit.tools.command import LOG, flip
from tests.unit.tools.json_tables import tables, tables_of
from tests.unit.tools.test_diff import plain, replica
from tests.unit.tools.test_groups import commit, coordinator, member
from tests.waiting import wait_until

SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

SERVERS = "--bootstrap {servers}"
#: Of two brokers, one of which was killed.
HALF = "--bootstrap {half}"
#: Of two brokers that are alive; asked of the first one.
PAIR = "--bootstrap {pair}"
#: A broker that has three data directories and an address of its own, of which one directory has failed.
SOLO = "--bootstrap {solo}"

_DIFFERENT = [
    "{data} {damaged}",
    "{data} {unreadable}",
    "{forked_a} {forked_b}",
    "{forked_b} {forked_a}",
    "{one_sided} {data}",
]
#: command -> the command lines with which it is run here, one after the other.  {servers} is a
#: running broker, {new} a directory that is not there; the other names are those of directories_in() and places().
COMMANDS = {
    "dump": ["{damaged}", "--transaction-log-decoder {damaged}/__transaction_state-0", "{left}"],
    "verify": ["{damaged} {left}"],
    "diff": _DIFFERENT,
    "repair": ["{damaged}", "{damaged} --apply --salvage keep-after", "{moved}", "{gap}", "{cut}"],
    "reindex": ["{damaged} --check"],
    "explain isr": [f"orders {SERVERS}", f"orders {HALF}", f"lacking {SOLO}", f"corrupt {SOLO}"],
    "explain fetch": [f"orders {SERVERS}", f"orders --offset 99 {SERVERS}", f"corrupt {SOLO}"],
    "explain lso": ["--dir {data}/g-txn-open-0", f"sold {SERVERS}"],
    "cluster": [SERVERS, HALF],
    "doctor": [SERVERS, "{damaged}", "{left}"],
    "metadata": [SERVERS, f"--apis {SERVERS}", f"--apis {HALF}", SOLO],
    "metrics": [SERVERS],
    "topics list": [f"--internal {SERVERS}"],
    "topics describe": [SERVERS, HALF, f"gone {HALF}"],
    "topics create": [f"other {SERVERS}", f"other --if-not-exists {SERVERS}"],
    "topics alter": [f"orders --config retention.ms=60000 {SERVERS}", f"wide --partitions 3 {SERVERS}"],
    "topics delete": [f"old {SERVERS}", f"old {HALF}"],
    "configs describe": [f"--broker 0 --all {SERVERS}", SERVERS],
    "configs set": [f"--topic orders retention.ms=1 {SERVERS}"],
    "configs unset": [f"--topic orders retention.ms {SERVERS}"],
    "configs explain": ["compression.type", "log.message.downconversion.enable"],
    "acls list": [SERVERS],
    "acls add": [f"--principal User:a --operation all --topic new {SERVERS}"],
    "acls remove": [f"--principal User:b {SERVERS}"],
    "quotas list": [SERVERS],
    "quotas set": [
        f"--client-defaults request_percentage=50.5 {SERVERS}",
        f"--user q --client c consumer_byte_rate=5 {SERVERS}",
    ],
    "quotas unset": [f"--user q --client c consumer_byte_rate {SERVERS}"],
    "groups list": [SERVERS],
    "groups describe": [SERVERS],
    "groups reset": [f"g --topic orders --to latest {SERVERS}", f"g --topic wide --by 1 {SERVERS}"],
    "groups delete": [f"old-group {SERVERS}"],
    "txns list": [SERVERS],
    "txns describe": [f"shop {SERVERS}"],
    "txns open": [SERVERS],
    "txns abort": [f"sold:0 --start-offset 0 {SERVERS}"],
    "reassign": [f"orders --to 0 {SERVERS}", f"--status {HALF}", "orders --to {left_broker} " + HALF],
    "logdirs list": [SERVERS, SOLO],
    "logdirs move": ["orders --to {log_dir} " + SERVERS],
    "elect": [f"orders {SERVERS}", f"led:0 {HALF}"],
    "mirror": ["{servers} orders {new}"],
    "backup": ["{new} " + SERVERS],
    "restore": ["{backup} {new} --apply", "{foreign_backup} {new}-foreign --apply"],
    "replay": [f"orders replayed {SERVERS}"],
    "consume": [f"orders {SERVERS}"],
}
#: command -> the state of the cluster in which a command line is run too, by its name in STATES, and the line.
IN_STATES = {
    "explain isr": [("waiting", f"held {PAIR}"), ("failing", f"held {PAIR}"), ("failing", f"held --broker 1 {PAIR}")],
    "explain fetch": [("waiting", f"held {PAIR}")],
    "explain lso": [("waiting", f"held {PAIR}")],
    "cluster": [("silent", PAIR)],
    "metadata": [("silent", PAIR)],
    "topics describe": [("silent", f"held {PAIR}")],
    "acls add": [("refusing", f"--principal User:a --operation all --topic new --apply {SERVERS}")],
    "acls remove": [("refusing", f"--principal User:b --apply {SERVERS}")],
    "groups describe": [("refusing", f"g {SERVERS}")],
    "reassign": [("refusing", f"orders --to 0 {SERVERS}")],
    "logdirs move": [("refusing", "corrupt --to {other_log_dir} --apply " + SOLO)],
}
#: Those of Spark; tests/unit/tools/test_spark_command.py runs them.
SPARK_COMMANDS = {
    "spark verify": ["-q {damaged}"],
    "spark reindex": ["-q {damaged} --check"],
    "spark recompress": ["-q {data} {new} --codec zstd"],
    "spark compaction": ["-q {data}"],
    "spark diff": [
        "-q {data} {damaged}",
        "-q {data} {unreadable}",
        "-q {one_sided} {data}",
        "-q {forked_a} {forked_b}",
        "-q {forked_b} {forked_a}",
    ],
}
#: `produce` reads what --json names, the FILE of `spark load --json` is a table of measurements (docs/spark.md).
NOT_PRINTED = {"produce", "spark load"}

#: What these command lines do not show, or show as null only: it needs a store that another program has locked
#: (test_locked_store.py), or one that answers late.
NOT_SHOWN = {
    "explain isr": {"pending_isr"},
    "cluster": {"store_lock"},
    "topics describe": {"store_lock"},
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return directories_in(tmp_path_factory.mktemp("json"))


def directories_in(top):
    """Data directories that have something to show, by the names that the command lines have for them."""
    names = ("data", "damaged", "moved", "left", "one_sided", "unreadable", "gap", "cut")
    found = {name: top / name for name in names}
    for name in ("data", "damaged", "moved"):
        shutil.copytree(golden_data.data_dir(), found[name])
    flip(found["damaged"] / "g-none-0" / LOG, 3541 + 20)
    (found["damaged"] / "g-txn-0" / f"{0:020}.index").unlink()
    (found["damaged"] / "g-lz4-0" / f"{0:020}.timeindex").write_bytes(b"\0" * 24)
    flip(found["moved"] / "g-none-0" / LOG, 8 + 3)  # a length
    left = shutil.copytree(golden_data.partition_dir("g-txn-0"), found["left"] / "g-txn-0")
    (left / f"{0:020}.log.deleted").touch()
    write_mark(str(left), 2)
    (found["left"] / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":-1}')
    shutil.copytree(golden_data.partition_dir("g-none-0"), found["one_sided"] / "g-none-0")
    shutil.copytree(golden_data.partition_dir("g-txn-0"), found["one_sided"] / "other-0")
    shutil.copytree(golden_data.partition_dir("g-none-0"), found["unreadable"] / "g-none-0")
    (found["unreadable"] / "g-none-0" / LOG).unlink()
    (found["unreadable"] / "g-none-0" / LOG).mkdir()
    shutil.copytree(golden_data.partition_dir("g-segments-0"), found["gap"] / "g-segments-0")
    (found["gap"] / "g-segments-0" / f"{30:020}.log").unlink()
    end = replica(found["cut"] / "t-0", plain(0, 40, 1), segment_bytes=1 << 20) / LOG
    (found["cut"] / CLEAN_SHUTDOWN_FILE).unlink()
    (found["cut"] / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 40\n")
    position = int(scan_segment(str(end)).batches[-2]["position"])
    end.write_bytes(end.read_bytes()[:position].ljust(end.stat().st_size, b"\0"))
    histories = {"a": plain(0, 40, 1) + plain(40, 60, 2), "b": plain(10, 40, 1) + plain(40, 50, 3, "w")}
    for side, batches in histories.items():
        found[f"forked_{side}"] = top / f"forked_{side}"
        skip = {20} if side == "a" else {30}
        replica(found[f"forked_{side}"] / "t-0", batches, skip=skip)
    return found


@pytest.fixture(scope="module")
def places(directories, tmp_path_factory):
    """And the addresses of a cluster of one broker, which is in order, of one that has lost one of two, of one of two
    that are alive, and of a broker with damage."""
    top = tmp_path_factory.mktemp("clusters")
    acls = {"authorizer_class_name": "kcore.StoredAclAuthorizer", "super_users": "User:ANONYMOUS"}
    one_replica = {"offsets_topic_replication_factor": 1, "transaction_state_log_replication_factor": 1}
    with (
        kcore.Cluster(1, **SETTINGS, **acls, racks=["west"]) as cluster,
        kcore.Cluster(2, **SETTINGS) as half,
        kcore.Cluster(2, **SETTINGS, **one_replica) as pair,
        broker_with_damage(top) as (solo, other_log_dir),
    ):
        for topic in ("old", "orders", "replayed", "sold", "wide"):
            cluster.create_topic(topic)
        cluster.create_topic("safe", min_insync_replicas=2)
        cluster.produce("orders", "value", "key", {"aName": b"\xff"})
        servers = ("--bootstrap", cluster.bootstrap_servers)
        with coordinator(cluster, "g") as (client, _):
            commit(client, "g", {("orders", 0): 0})
            commit(client, "old-group", {("orders", 0): 0})
        cluster.transaction("shop").produce("sold", "a book")
        quota = ("--user", "q", "--client", "c", "consumer_byte_rate=1000")
        assert main(["quotas", "set", *quota, "--apply", *servers]) == 0
        acl = ("--principal", "User:b", "--operation", "read", "--topic", "orders")
        assert main(["acls", "add", *acl, "--apply", *servers]) == 0
        assert main(["backup", str(top / "backup"), *servers]) == 0
        left_broker = lose_a_broker(half)
        assert main(["topics", "create", "held", "--assign", "0,1", "--bootstrap", pair.bootstrap_servers]) == 0
        pair.wait_until_led("held")
        kafkas = {"servers": cluster, "pair": pair, "solo": solo}
        with coordinator(cluster, "busy") as (client, _), member(client, "busy", [0], "static"):
            yield directories | {
                "backup": top / "backup",
                "foreign_backup": with_unknown_settings(top / "backup", top / "foreign"),
                "new": top / "new",
                "log_dir": cluster.brokers[0].log("orders", 0).parent_dir,
                "servers": cluster.bootstrap_servers,
                "half": half.bootstrap_servers,
                "left_broker": left_broker,
                "pair": pair.brokers[0].bootstrap_servers,
                "solo": solo.bootstrap_servers,
                "other_log_dir": other_log_dir,
                "kafkas": kafkas,
            }


def with_unknown_settings(backup, changed):
    """A copy of a backup, with a setting of a topic that kcore does not know."""
    shutil.copytree(backup, changed)
    manifest = read_manifest(str(changed))
    topics = [replace(topic, settings={"confluent.tier.enable": "true"}) for topic in manifest.topics]
    replace(manifest, topics=topics).write(str(changed))
    return changed


@contextmanager
def broker_with_damage(top):
    """And one of its directories that hold no log of the topic corrupt.  The log of lacking has lost records, a batch
    of corrupt is damaged, and one of the directories has failed."""
    dirs = [str(top / name) for name in "abc"]
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    with kcore.Broker(log_dirs=",".join(dirs), broker_id=0, **listeners, **SETTINGS) as broker:
        for topic in ("lacking", "corrupt"):
            broker.create_topic(topic)
            for _ in range(2):
                broker.produce(topic, "value")
        broker.log("lacking").mark_lost_records(1)
        used = {topic: broker.log(topic).parent_dir for topic in ("lacking", "corrupt")}
        flip(Path(broker.log("corrupt").directory, LOG), 68)
        (failed,) = set(dirs) - {*used.values()}
        channel = broker.replica_manager.log_manager.log_dir_failure_channel
        channel.maybe_add_offline_log_dir(failed, OSError(errno.EIO, "broken"))
        partition = broker.replica_manager.get_partition(TopicPartition("corrupt", 0))
        broker.replica_manager.damage_checks.suspect(partition, 0, "the test says so")
        wait_until(lambda: broker.explain_isr("corrupt").damage is not None)
        yield broker, used["lacking"]


@contextmanager
def waiting(kafkas):
    """The follower of held gets no answer: a producer waits for it, and so does the end of a transaction."""
    pair = kafkas["pair"]
    leader = pair.brokers[0]
    transaction = pair.transaction("shop")
    transaction.produce("held", "a book")
    with KafkaClusterFixture(pair).fault("Fetch", silent=True, broker=0, from_broker=1):
        threads = [
            threading.Thread(target=action)
            for action in (lambda: pair.produce("held", "value"), lambda: transaction.commit())
        ]
        end = leader.log("held").log_end_offset
        for thread in threads:
            thread.start()
        wait_until(lambda: leader.log("held").log_end_offset == end + 2 and leader.explain_isr("held").waiting)
        yield
    for thread in threads:
        thread.join()


@contextmanager
def failing(kafkas):
    """The follower of held gets an error for an answer; for the leader its log is offline."""
    pair = kafkas["pair"]
    leader, follower = pair.brokers[0], pair.brokers[1]
    with (
        KafkaClusterFixture(pair).fault("Fetch", error="KAFKA_STORAGE_ERROR", broker=0, from_broker=1),
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(leader.metadata_cache, "offline", lambda tp: (1,))
        wait_until(lambda: follower.explain_isr("held").held_back_by)
        yield


@contextmanager
def silent(kafkas):
    """Broker 1 takes connections, and does not answer a command."""
    with KafkaClusterFixture(kafkas["pair"]).fault("ApiVersions", silent=True, broker=1):
        yield


@contextmanager
def refusing(kafkas):
    """Each item of a request is refused."""
    apis = {"servers": ("CreateAcls", "DeleteAcls", "ListOffsets"), "solo": ("AlterReplicaLogDirs",)}
    error = InvalidReplicaAssignment("no")
    with pytest.MonkeyPatch.context() as patched, ExitStack() as faults:
        # A fault of this request would be one of all its partitions.
        patched.setattr(AdminClient, "alter_reassignments", lambda _, targets: dict.fromkeys(targets, error))
        for name, refused in apis.items():
            fixture = (KafkaFixture if name == "solo" else KafkaClusterFixture)(kafkas[name])
            for api in refused:
                faults.enter_context(fixture.fault(api, error="KAFKA_STORAGE_ERROR"))
        yield


STATES = {"waiting": waiting, "failing": failing, "silent": silent, "refusing": refusing}


def lose_a_broker(cluster):
    """The one that does not lead orders; slow is being moved to it, the deletion of gone waits for it,
    and led has no other replica.  Returns the id of the other one."""
    for topic in ("orders", "old", "gone"):
        cluster.create_topic(topic, replication_factor=2)
    cluster.produce("orders", "value")
    left = cluster.leader("orders")
    servers = ("--bootstrap", cluster.bootstrap_servers)
    cluster.brokers[1 - left].config.reconfigure({"follower.replication.throttled.rate": 1})
    throttled = ("--config", "follower.replication.throttled.replicas=*", "--config", "max.message.bytes=20000")
    assert main(["topics", "create", "slow", "--assign", str(left), *throttled, *servers]) == 0
    assert main(["topics", "create", "led", "--assign", str(1 - left), *servers]) == 0
    cluster.wait_until_led("slow")
    for _ in range(20):  # a fetch brings one of the batches, and uses the throttle up for 10 s
        cluster.produce("slow", "x" * 15_000)
    assert main(["reassign", "slow", "--to", str(1 - left), *servers]) == 0
    cluster.kill(1 - left)
    cluster.wait_until_led("orders")
    assert main(["topics", "delete", "gone", "--bootstrap", cluster.bootstrap_servers]) == 1
    return left


def outcome(command, arguments, capsys):
    """The objects that a command line prints."""
    assert main([*command.split(), "--json", *arguments.split()]) in (0, 1)
    out = capsys.readouterr().out
    is_one_object = command.startswith(("explain", "metrics"))
    return [json.loads(out)] if is_one_object else [*map(json.loads, out.splitlines())]


def check(command, shown):
    """That the objects have exactly the fields of the command's tables, and together all of them, but for those of
    NOT_SHOWN with a value that is not null."""
    of_command = [table for table in tables() if command in table.commands]
    assert of_command, f"no page has a table of kcore {command} --json"
    seen = [set() for _ in of_command]
    for value in shown:
        faults = []
        for table, types in zip(of_command, seen, strict=True):
            met = set()
            if not table.types or value.get("type") in table.types:
                faults.append([*table.faults(value, met)])
                if not faults[-1]:
                    types |= met
                    break
        else:
            pytest.fail(f"{value}: {min(faults, key=len, default=['no table of this type'])}")
    missing = {
        ": ".join([table.page, *table.types, path])
        for table, types in zip(of_command, seen, strict=True)
        for path in table.not_seen(types) - NOT_SHOWN.get(command, set())
    }
    assert not missing, f"on the page, and not printed: {'; '.join(sorted(missing))}"


def test_each_command_with_json_is_in_the_table():
    commands = dict(whole_tree(kcore_command))
    with_json = {name for name in commands if any("--json" in param.opts for param in commands[name].params)}
    assert with_json == COMMANDS.keys() | SPARK_COMMANDS.keys() | NOT_PRINTED


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_page_lists_the_fields_that_it_prints_with_their_types(command, places, tmp_path, capsys):
    names = places | {"new": tmp_path / "new"}
    shown = [value for line in COMMANDS[command] for value in outcome(command, line.format(**names), capsys)]
    for state, line in IN_STATES.get(command, ()):
        with STATES[state](places["kafkas"]):
            shown += outcome(command, line.format(**names), capsys)
    check(command, shown)


def test_the_names_of_fields_are_snake_case():
    # Those of metrics are Kafka's, and those below "*" a record's or a topic's own.
    names = {name for table in tables() for path in table.fields for name in re.split(r"[.\[\]]+", path)} - {"", "*"}
    assert {name for name in names if not SNAKE_CASE.fullmatch(name)} == set()


def test_a_table_that_lacks_a_field_or_has_another_type_is_found():
    text = "`kcore x --json`:\n\n| field | type | meaning |\n| --- | --- | --- |\n"
    text += "| a | integer | a |\n| b | list of objects | b |\n| b[].c | string or null | c |\n"
    (table,) = tables_of(text, "x.md")

    def faults(value):
        return [*table.faults(value, set())]

    assert faults({"a": 1, "b": [{"c": "x"}, {"c": None}]}) == faults({"a": 1, "b": []}) == []
    assert faults({"a": True, "b": []}) == ["a: True is not: integer"]
    assert faults({"a": 1}) == ["b: not in the object"]
    assert faults({"a": 1, "b": [], "d": 1}) == ["d: not in the table"]
    assert faults({"a": 1, "b": [{"c": 1}]}) == ["b[].c: 1 is not: string or null"]
    seen = set()
    assert not [*table.faults({"a": 1, "b": [{"c": None}]}, seen)]
    assert table.not_seen(seen) == {"b[].c"}


def test_what_a_record_or_a_topics_settings_have_keeps_its_names():
    event = {
        "keySize": 1,
        "key": {"groupId": 1},
        "value": {"data": {"leaderEpoch": 2}},
        "headers": [["aName", b"\xff"]],
        "config": {"myPlugin.x": "1"},
        "steps": [{"endOffset": 3, "ifAFollowsB": None}],
        "batchFields": ["partitionLeaderEpoch", "crc"],
    }
    assert json.loads(json_line(event)) == {
        "key_size": 1,
        "key": {"groupId": 1},
        "value": {"data": {"leaderEpoch": 2}},
        "headers": [["aName", {"hex": "ff"}]],
        "config": {"myPlugin.x": "1"},
        "steps": [{"end_offset": 3, "if_a_follows_b": None}],
        "batch_fields": ["partition_leader_epoch", "crc"],
    }
