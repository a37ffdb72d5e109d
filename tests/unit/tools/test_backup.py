"""kcore backup and kcore restore: what comes back is what was there, or nothing comes back."""

import errno
import json
import os
import shutil
import signal

import pytest

import kcore
from kcore.client.acl_client import AclClient, AclFilter
from kcore.client.config_client import ConfigClient, ConfigResource, ConfigSource, ResourceKind
from kcore.client.group_client import EARLIEST, Commit, GroupClient
from kcore.client.quota_client import QuotaClient
from kcore.common.progress import Progress
from kcore.common.topic_partition import TopicPartition
from kcore.log import meta_properties
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.partition_metadata import format_topic_id, read_topic_id
from kcore.mirror.topic_mirror import TopicMirror
from kcore.tools import backup as backup_module
from kcore.tools import restore as restore_module
from kcore.tools.backup_manifest import read_manifest
from kcore.tools.command_line import addresses
from kcore.tools.main import main
from tests import golden_data
from tests.unit.log.logs import batch, idempotent, marker
from tests.unit.tools.command import LOG, contents, flip, run_json

SETTINGS = {
    "authorizer_class_name": "kcore.StoredAclAuthorizer",
    "super_users": "User:ANONYMOUS",
    "offsets_topic_num_partitions": 1,
    "log_retention_check_interval_ms": 1 << 62,
}
ORDERS = TopicPartition("orders", 0)
COMMITS = {ORDERS: Commit(12, 0, "by hand"), TopicPartition("orders", 1): Commit(1)}
#: Of the transaction that orders-1 has after its first record.
OPEN_PRODUCER = 77


def client(kind, broker):
    return kind(addresses(broker.bootstrap_servers), client_id="test", timeout_ms=30_000)


def log_of(directory):
    """(log start offset, log end offset, the bytes of its batches)"""
    with kcore.open_log(directory) as log:
        return log.log_start_offset, log.log_end_offset, [bytes(batch.buffer) for batch in log.batches()]


@pytest.fixture
def source(tmp_path):
    """A data directory.  orders-0 begins inside a batch and has an aborted transaction, orders-1 has one that is open,
    orders-2 is empty; a group has committed offsets; there are settings of topics, an ACL and a quota."""
    directory = tmp_path / "source"
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.create_topic("orders", 3, segment_bytes=1 << 20)
        broker.create_topic("keyed", 1, cleanup_policy="compact")
    with kcore.open_log(directory / "orders-0", "a") as log:
        for number in range(4):
            log.append_as_leader(batch(10, size=number + 1))
        log.append_as_leader(idempotent(5, 0, 2, is_transactional=True))
        log.append_as_leader(marker(5, commit=False), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(batch(1))
    with kcore.open_log(directory / "orders-1", "a") as log:
        log.append_as_leader(batch(1))
        log.append_as_leader(idempotent(OPEN_PRODUCER, 0, 2, epoch=3, is_transactional=True))
    with kcore.Broker(directory, **SETTINGS) as broker:
        broker.replica_manager.delete_records({ORDERS: 7}, lambda results: None)
        for number in range(5):
            broker.produce("keyed", f"{number}", key="k")
        with client(GroupClient, broker) as groups:
            assert not any(groups.store_commits("billing", COMMITS).values())
        servers = ("--apply", "--bootstrap", broker.bootstrap_servers)
        assert main(["acls", "add", "--principal", "User:a", "--operation", "read", "--topic", "orders", *servers]) == 0
        assert main(["quotas", "set", "--user", "u", "consumer_byte_rate=1000", *servers]) == 0
    return directory


@pytest.fixture
def backup(source, tmp_path):
    """Of the directory."""
    assert main(["backup", str(tmp_path / "backup"), "--data", str(source)]) == 0
    return tmp_path / "backup"


def run(capsys, *words):
    status = main([*map(str, words)])
    return status, *capsys.readouterr()


def assert_restored(source, restored):
    """The logs byte for byte, and what a broker says of the rest."""
    for name in ("orders-0", "orders-2", "keyed-0"):
        assert log_of(restored / name) == log_of(source / name)
        assert read_topic_id(str(restored / name)) == read_topic_id(str(source / name)) is not None
    start, end, batches = log_of(source / "orders-1")
    assert log_of(restored / "orders-1")[:2] == (start, end + 1)
    assert log_of(restored / "orders-1")[2][:-1] == batches
    with kcore.Broker(restored, **SETTINGS) as broker:
        with client(GroupClient, broker) as groups:
            assert groups.commits("billing") == COMMITS
            assert groups.listed_offsets({ORDERS: EARLIEST})[ORDERS].offset == 7
        with client(ConfigClient, broker) as configs:
            own = {
                topic: {
                    name: setting.value
                    for name, setting in configs.settings(ConfigResource(ResourceKind.TOPIC, topic)).items()
                    if setting.source is ConfigSource.TOPIC
                }
                for topic in ("orders", "keyed")
            }
        assert own == {"orders": {"segment.bytes": "1048576"}, "keyed": {"cleanup.policy": "compact"}}
        with client(AclClient, broker) as acls:
            ((_, name, _, principal, *_),) = acls.acls(AclFilter())
            assert (name, principal) == ("orders", "User:a")
        with client(QuotaClient, broker) as quotas:
            assert quotas.quotas(()) == {(("user", "u"),): {"consumer_byte_rate": 1000.0}}
        # The aborted transactions are none of a read_committed consumer's, and hold nothing back.
        committed = [(r.partition, r.offset) for r in broker.consume("orders", isolation="read_committed")]
        assert committed == [(0, offset) for offset in [*range(7, 40), 43]] + [(1, 0)]
        broker.produce("orders", "next", partition=1)
        last = [*broker.consume("orders", partition=1, isolation="read_committed")][-1]
        assert (last.offset, last.value) == (end + 1, b"next")


def test_a_data_directory_comes_back_with_the_same_offsets(source, backup, tmp_path, capsys):
    before = contents(source)
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--apply")
    assert (status, err) == (0, "")
    assert "orders-0: offsets 7 to 44\n" in out
    assert "orders-1: 1 transaction was open and is aborted: 1 marker after the last record\n" in out
    assert f"`kcore serve --data {tmp_path / 'new'}` serves it" in out
    assert_restored(source, tmp_path / "new")
    assert contents(source) == before


def test_a_running_cluster_comes_back_with_the_same_offsets(source, tmp_path, capsys):
    with kcore.Broker(source, **SETTINGS) as broker:
        status, lines = run_json(capsys, "backup", tmp_path / "backup", "--bootstrap", broker.bootstrap_servers)
    assert status == 0
    partitions = {
        f"{line['topic']}-{line['partition']}": (line["log_start_offset"], line["log_end_offset"])
        for line in lines
        if line["type"] == "partition"
    }
    topics = {topic.topic: topic.topic_id for topic in read_manifest(str(tmp_path / "backup")).topics}
    ids = {name: read_topic_id(str(source / f"{name}-0")) for name in ("keyed", "orders")}
    assert topics == {name: format_topic_id(topic_id) for name, topic_id in ids.items()}
    assert partitions == {"keyed-0": (0, 5), "orders-0": (7, 44), "orders-1": (0, 3), "orders-2": (0, 0)}
    assert [line for line in lines if line["type"] == "committed_offset"] == [
        {"type": "committed_offset", "group": "billing", "topic": tp.topic, "partition": tp.partition}
        | commit._asdict()
        for tp, commit in COMMITS.items()
    ]
    summary = lines[-1]
    assert summary["source"].startswith("cluster ") and summary["directory"] == str(tmp_path / "backup")
    assert [summary[name] for name in ("topics", "partitions", "groups", "acls", "quotas")] == [2, 4, 1, 1, 1]
    status, lines = run_json(capsys, "restore", tmp_path / "backup", tmp_path / "new", "--apply")
    assert (status, lines[-1]["applied"]) == (0, True)
    assert {"type": "aborted", "topic": "orders", "partition": 1, "transactions": 1} in lines
    assert_restored(source, tmp_path / "new")


def test_partitions_that_several_brokers_lead_are_in_one_backup(tmp_path, capsys):
    with kcore.Cluster(3, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", 3)
        for number in range(30):
            cluster.produce("orders", f"{number}", partition=number % 3)
        assert len({cluster.leader("orders", number) for number in range(3)}) == 3
        assert main(["backup", str(tmp_path / "backup"), "--bootstrap", cluster.bootstrap_servers]) == 0
        expected = [[(r.offset, r.value) for r in cluster.consume("orders", partition=n)] for n in range(3)]
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--apply"]) == 0
    with kcore.Broker(tmp_path / "new") as broker:
        assert [[(r.offset, r.value) for r in broker.consume("orders", partition=n)] for n in range(3)] == expected


@pytest.mark.parametrize("how", ["directory", "broker"])
def test_what_kafka_wrote_comes_back_byte_for_byte(tmp_path, capsys, how):
    golden = golden_data.data_dir()
    copy = shutil.copytree(golden, tmp_path / "kafka")
    if how == "directory":
        assert main(["backup", str(tmp_path / "backup"), "--data", str(copy)]) == 0
    else:
        with kcore.Broker(copy, **SETTINGS) as broker:
            assert main(["backup", str(tmp_path / "backup"), "--bootstrap", broker.bootstrap_servers]) == 0
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--apply", "--quiet"]) == 0
    capsys.readouterr()
    names = [name for name in os.listdir(golden) if name.startswith("g-")]
    aborted = 0
    for name in names:
        _, end, batches = log_of(golden / name)
        _, new_end, new_batches = log_of(tmp_path / "new" / name)
        assert new_batches[: len(batches)] == batches
        aborted += new_end - end
        kept = (golden / name).glob("*.txnindex")
        assert b"".join(path.read_bytes() for path in sorted((tmp_path / "new" / name).glob("*.txnindex"))).startswith(
            b"".join(path.read_bytes() for path in sorted(kept))
        )
    assert (len(names) > 5, aborted) == (True, 1)
    assert main(["verify", str(tmp_path / "new"), "--compacted"]) == 0


def test_after_a_crash_the_backup_has_what_recovery_would_keep(source, tmp_path, capsys):
    (source / ".kafka_cleanshutdown").unlink()
    whole = log_of(source / "keyed-0")
    with open(source / "keyed-0" / LOG, "ab") as log:
        log.write(b"\0\0\0\0\0\0\0\5\0\0")  # the beginning of a batch
    before = contents(source)
    assert main(["backup", str(tmp_path / "backup"), "--data", str(source)]) == 0
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--apply"]) == 0
    assert log_of(tmp_path / "new" / "keyed-0") == whole
    assert contents(source) == before


def test_only_the_topics_that_are_named(source, backup, tmp_path, capsys):
    assert main(["backup", str(tmp_path / "one"), "orders", "--data", str(source)]) == 0
    manifest = read_manifest(str(tmp_path / "one"))
    assert [topic.topic for topic in manifest.topics] == ["orders"]
    assert (manifest.acls, len(manifest.commits)) == (None, 2)
    assert not (tmp_path / "one" / "data" / "keyed-0").exists()
    capsys.readouterr()
    status, lines = run_json(capsys, "restore", backup, tmp_path / "new", "keyed", "--apply")
    assert status == 0
    assert [line["topic"] for line in lines if line["type"] == "partition"] == ["keyed"]
    assert not (tmp_path / "new" / "orders-0").exists()
    assert main(["verify", str(tmp_path / "new")]) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["__consumer_offsets"], "internal topics are not in a backup"),
        (["ordesr"], "there is no topic 'ordesr'; did you mean orders?"),
    ],
)
def test_a_topic_that_cannot_be_in_a_backup_is_named(source, tmp_path, capsys, words, reason):
    status, out, err = run(capsys, "backup", tmp_path / "backup", *words, "--data", source)
    assert (status, out) == (2, "") and reason in err
    assert not [*tmp_path.glob("backup*")]


def test_settings_that_the_brokers_have_are_the_restored_topics_own(source, tmp_path, capsys):
    with kcore.Broker(source, **SETTINGS, log_retention_ms=86_400_000) as broker:
        assert main(["backup", str(tmp_path / "backup"), "--bootstrap", broker.bootstrap_servers]) == 0
    topics = {topic.topic: topic.settings for topic in read_manifest(str(tmp_path / "backup")).topics}
    assert topics["orders"] == {"retention.ms": "86400000", "segment.bytes": "1048576"}
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "new"), "--apply"]) == 0
    with kcore.Broker(tmp_path / "new", **SETTINGS) as broker, client(ConfigClient, broker) as configs:
        setting = configs.settings(ConfigResource(ResourceKind.TOPIC, "keyed"))["retention.ms"]
    assert (setting.value, setting.source) == ("86400000", ConfigSource.TOPIC)


def test_without_apply_the_backup_is_checked_and_nothing_is_made(backup, tmp_path, capsys):
    status, out, err = run(capsys, "restore", backup, tmp_path / "new")
    assert (status, err) == (0, "")
    assert "the backup is complete: " in out and f"--apply makes {tmp_path / 'new'} of them" in out
    assert not [*tmp_path.glob("new*")]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "a truncated segment": ("data/orders-0/" + LOG, cut, "is truncated: "),
    "a changed byte": ("data/keyed-0/" + LOG, lambda path: flip(path, 70), "was changed: its SHA-256"),
    "a longer file": ("data/keyed-0/" + LOG, lambda path: path.write_bytes(path.read_bytes() + b"x"), "was changed: "),
    "a missing file": ("data/orders-1/" + LOG, lambda path: path.unlink(), "is missing; take another backup"),
    "a missing manifest": ("manifest.json", lambda path: path.unlink(), "is missing: "),
    "an edited manifest": (
        "manifest.json",
        lambda path: path.write_text(path.read_text().replace('"offset": 12,', '"offset": 13,')),
        "was changed: its checksum",
    ),
    "a manifest that was cut": ("manifest.json", cut, "is damaged: "),
}


@pytest.mark.parametrize("words", [[], ["--apply"]], ids=["plan", "apply"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused_and_names_the_file(backup, tmp_path, capsys, damage, words):
    name, change, reason = DAMAGES[damage]
    change(backup / name)
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and str(backup / name) in err and reason in err
    assert not [*tmp_path.glob("new*")]


def test_a_manifest_that_names_a_file_elsewhere_is_refused(backup, tmp_path, capsys):
    manifest = read_manifest(str(backup))
    shutil.copy(backup / "manifest.json", tmp_path / "outside")
    bad = backup_module.replace(manifest, files=[backup_module.replace(manifest.files[0], file="../../outside")])
    bad.write(str(backup))
    status, _, err = run(capsys, "restore", backup, tmp_path / "new", "--apply")
    assert status == 2 and "names a file outside of the backup" in err
    assert not [*tmp_path.glob("new*")]


def test_what_is_there_is_never_written_to(source, backup, tmp_path, capsys):
    before = contents(backup)
    for words in (
        ["backup", backup, "--data", source],
        ["restore", backup, source, "--apply"],
        ["restore", backup, source],
    ):
        status, _, err = run(capsys, *words)
        assert status == 2 and "is there already: nothing is changed" in err
    (tmp_path / "new.partial").mkdir()
    for words in ([], ["--apply"]):
        status, _, err = run(capsys, "restore", backup, tmp_path / "new", *words)
        assert status == 2 and "a run that did not end has left it" in err
    assert contents(backup) == before


def test_a_running_cluster_is_not_restored_into(backup, tmp_path, capsys, monkeypatch):
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--apply", "--bootstrap", "localhost:1")
    assert (status, out) == (2, "")
    assert "a running cluster cannot be restored into: its leaders would give the records new offsets" in err
    (tmp_path / "config.toml").write_text('bootstrap = "localhost:1"\n')
    monkeypatch.setenv("KCORE_CONFIG", str(tmp_path / "config.toml"))
    assert run(capsys, "restore", backup, tmp_path / "new")[0] == 0


def test_a_damaged_log_is_not_backed_up(source, tmp_path, capsys):
    flip(source / "orders-0" / LOG, 200)
    status, out, err = run(capsys, "backup", tmp_path / "backup", "--data", source)
    assert (status, out) == (2, "")
    assert str(source / "orders-0" / LOG) in err and f"`kcore repair {source / 'orders-0'}`" in err
    assert not [*tmp_path.glob("backup*")]


def test_a_directory_that_is_in_use_or_a_members_is_refused(source, tmp_path, capsys):
    with kcore.Broker(source, **SETTINGS):
        status, _, err = run(capsys, "backup", tmp_path / "backup", "--data", source)
        assert status == 2 and "stop it first" in err
    meta_properties.mark_as_member(str(source))
    status, _, err = run(capsys, "backup", tmp_path / "backup", "--data", source)
    assert status == 2 and "start the cluster, and use --bootstrap" in err
    assert not [*tmp_path.glob("backup*")]


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES])
def test_a_snapshot_that_is_mounted_for_reading_only_is_backed_up(source, tmp_path, monkeypatch, reason):
    def refuse(directory):
        raise OSError(reason, os.strerror(reason), os.path.join(directory, ".lock"))

    monkeypatch.setattr("kcore.inspect.directories.DirectoryLock", refuse)
    before = contents(source)
    assert main(["backup", str(tmp_path / "b"), "orders", "--data", str(source)]) == 0
    assert contents(source) == before
    assert [topic.topic for topic in read_manifest(str(tmp_path / "b")).topics] == ["orders"]


def test_a_disk_that_fails_is_not_taken_for_one_that_is_mounted_for_reading_only(source, tmp_path, monkeypatch, capsys):
    def fail(directory):
        raise OSError(errno.EIO, os.strerror(errno.EIO), os.path.join(directory, ".lock"))

    monkeypatch.setattr("kcore.inspect.directories.DirectoryLock", fail)
    assert main(["backup", str(tmp_path / "b"), "--data", str(source)]) == 2
    assert "Input/output error" in capsys.readouterr().err


def test_a_backup_that_ends_early_leaves_nothing(source, tmp_path, capsys, monkeypatch):
    with kcore.Broker(source, **SETTINGS) as broker:
        words = ["backup", str(tmp_path / "backup"), "--bootstrap", broker.bootstrap_servers]
        wait = TopicMirror.wait_until_caught_up

        signals = []

        def signalled(mirror, timeout_ms):
            if not signals:
                signals.append(os.kill(os.getpid(), signal.SIGINT))
                assert mirror._stopped.wait(60)
            wait(mirror, timeout_ms)

        with monkeypatch.context() as patch:
            patch.setattr(TopicMirror, "wait_until_caught_up", signalled)
            assert main(words) == 130
        assert not [*tmp_path.glob("backup*")]

        def full(path, data, **options):
            raise OSError(28, "No space left on device", path)

        with monkeypatch.context() as patch:
            patch.setattr("kcore.tools.backup_manifest.write_atomically", full)
            assert main(words) == 2
        assert "No space left" in capsys.readouterr().err
        assert not [*tmp_path.glob("backup*")]


@pytest.mark.parametrize("step", ["_copy", "_serve", "_compare"])
def test_a_restore_that_is_interrupted_leaves_nothing(backup, tmp_path, monkeypatch, step):
    original = getattr(restore_module, step)

    def stopped(*args):
        original(*args)
        raise restore_module.Stopped

    monkeypatch.setattr(restore_module, step, stopped)
    assert main(["restore", str(backup), str(tmp_path / "new"), "--apply"]) == 130
    assert not [*tmp_path.glob("new*")]


def test_a_restored_log_that_differs_from_the_backup_is_not_kept(backup, tmp_path, capsys, monkeypatch):
    serve = restore_module._serve

    def spoiled(manifest, data_dir, number, outcome):
        serve(manifest, data_dir, number, outcome)
        with kcore.open_log(os.path.join(data_dir, "keyed-0"), "a") as log:
            log.append_as_leader(batch(1))

    monkeypatch.setattr(restore_module, "_serve", spoiled)
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--apply")
    assert (status, out) == (2, "")
    assert "keyed-0 is not what " in err and "nothing is restored" in err
    assert not [*tmp_path.glob("new*")]


def test_a_log_start_offset_that_is_another_one_is_noticed(backup, tmp_path, capsys, monkeypatch):
    kept = [name for name in restore_module.CHECKPOINTS if not name.startswith("log-start")]
    monkeypatch.setattr(restore_module, "CHECKPOINTS", kept)
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--apply")
    assert (status, out) == (2, "")
    assert "orders-0 would have the offsets 0 to 44, the backup has 7 to 44: nothing is restored" in err
    assert not [*tmp_path.glob("new*")]


def test_committed_offsets_that_are_others_are_noticed(backup, tmp_path, capsys, monkeypatch):
    store = GroupClient.store_commits
    monkeypatch.setattr(
        GroupClient,
        "store_commits",
        lambda self, group, commits: store(self, group, dict.fromkeys(commits, Commit(1))),
    )
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--apply")
    assert (status, out) == (2, "")
    assert "group billing has other committed offsets than the backup: nothing is restored" in err
    assert not [*tmp_path.glob("new*")]


@pytest.mark.parametrize("options", [[], ["--apply"]])
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("retention.msx=5", "--config: Unknown topic config name: retention.msx; did you mean retention.ms?"),
        ("retention.ms=long", "--config: Invalid value long for configuration retention.ms"),
    ],
)
def test_a_wrong_setting_on_the_command_line_is_refused_before_anything_is_restored(
    backup, tmp_path, capsys, setting, expected, options
):
    status, out, err = run(capsys, "restore", backup, tmp_path / "new", "--config", setting, *options)
    assert (status, out) == (2, "") and expected in err
    assert not [*tmp_path.glob("new*")]


def test_what_kcore_cannot_store_is_named_and_the_rest_is_restored(backup, tmp_path, capsys):
    manifest = read_manifest(str(backup))
    orders = next(topic for topic in manifest.topics if topic.topic == "orders")
    changed = backup_module.replace(orders, settings={**orders.settings, "confluent.tier.enable": "true"})
    quota = backup_module.BackupQuota((("ip", "a.example"),), "connection_creation_rate", 5.0)
    topics = [changed if topic is orders else topic for topic in manifest.topics]
    backup_module.replace(manifest, topics=topics, quotas=[*manifest.quotas, quota]).write(str(backup))
    status, lines = run_json(capsys, "restore", backup, tmp_path / "new", "--apply")
    problems = [line["problem"] for line in lines if line["type"] == "problem"]
    assert status == 1
    assert any("setting confluent.tier.enable=true is not restored" in text for text in problems)
    assert any("quota connection_creation_rate of ip a.example is not restored" in text for text in problems)
    with kcore.Broker(tmp_path / "new", **SETTINGS) as broker, client(QuotaClient, broker) as quotas:
        assert quotas.quotas(()) == {(("user", "u"),): {"consumer_byte_rate": 1000.0}}


def test_a_setting_of_the_command_line_replaces_that_of_the_backup(backup, tmp_path, capsys):
    words = ["--config", "segment.bytes=2097152", "--config", "retention.ms=-1"]
    assert main(["restore", str(backup), str(tmp_path / "new"), *words, "--apply"]) == 0
    with kcore.Broker(tmp_path / "new", **SETTINGS) as broker, client(ConfigClient, broker) as configs:
        for topic in ("orders", "keyed"):
            settings = configs.settings(ConfigResource(ResourceKind.TOPIC, topic))
            assert (settings["segment.bytes"].value, settings["retention.ms"].value) == ("2097152", "-1")


def test_a_topic_that_needs_more_replicas_than_one_is_named(source, tmp_path, capsys):
    with kcore.Broker(source, **SETTINGS) as broker:
        words = ["--topic", "orders", "min.insync.replicas=2", "--apply", "--bootstrap", broker.bootstrap_servers]
        assert main(["configs", "set", *words]) == 0
    assert main(["backup", str(tmp_path / "backup"), "--data", str(source)]) == 0
    capsys.readouterr()
    status, lines = run_json(capsys, "restore", tmp_path / "backup", tmp_path / "new")
    (warning,) = [line["problem"] for line in lines if line["type"] == "warning"]
    assert (status, warning.split(":")[0]) == (0, "topic orders")
    status, lines = run_json(
        capsys, "restore", tmp_path / "backup", tmp_path / "new", "--config", "min.insync.replicas=1"
    )
    assert (status, [line for line in lines if line["type"] == "warning"]) == (0, [])


def test_an_open_transaction_of_a_topic_that_needs_more_replicas_than_one_is_aborted(source, tmp_path, capsys):
    with kcore.Broker(source, **SETTINGS) as broker:
        words = ["--topic", "orders", "min.insync.replicas=2", "--apply", "--bootstrap", broker.bootstrap_servers]
        assert main(["configs", "set", *words]) == 0
    assert main(["backup", str(tmp_path / "backup"), "--data", str(source)]) == 0
    capsys.readouterr()
    status, out, err = run(capsys, "restore", tmp_path / "backup", tmp_path / "new", "--apply")
    assert (status, err) == (0, "")
    assert "orders-1: 1 transaction was open and is aborted: 1 marker after the last record\n" in out
    with kcore.Broker(tmp_path / "new", **SETTINGS) as broker, client(ConfigClient, broker) as configs:
        settings = configs.settings(ConfigResource(ResourceKind.TOPIC, "orders"))
        assert settings["min.insync.replicas"].value == "2"


def test_a_group_goes_on_where_it_was(backup, tmp_path, capfd):
    assert main(["restore", str(backup), str(tmp_path / "new"), "--apply"]) == 0
    with kcore.Broker(tmp_path / "new", **SETTINGS) as broker:
        capfd.readouterr()
        words = ["--group", "billing", "--format", r"%p@%o\n", "--bootstrap", broker.bootstrap_servers]
        assert main(["consume", "orders", *words, "--isolation-level", "read_committed"]) == 0
    assert capfd.readouterr().out.split() == [f"0@{offset}" for offset in [*range(12, 40), 43]]


def test_a_restored_directory_may_be_another_brokers(backup, tmp_path, capsys):
    assert main(["restore", str(backup), str(tmp_path / "new"), "--id", "4", "--apply"]) == 0
    with kcore.Broker(tmp_path / "new", broker_id=4) as broker:
        assert [record.value for record in broker.consume("keyed")] == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_every_file_and_its_name_are_durable(source, backup, tmp_path, monkeypatch, verb):
    synced = set()
    sync_path = backup_module.sync_path
    monkeypatch.setattr(backup_module, "sync_path", lambda path: (synced.add(path), sync_path(path)))
    target = tmp_path / "made"
    words = [str(target), "--data", str(source)] if verb == "backup" else [str(backup), str(target), "--apply"]
    assert main([verb, *words]) == 0
    made = [path for path in target.rglob("*") if path.name not in ("manifest.json", ".lock")]
    expected = {str(path).replace("/made", "/made.partial", 1) for path in made} | {str(tmp_path)}
    assert len(made) > 10 and expected <= synced


def test_the_text_says_what_is_in_the_backup(source, tmp_path, capsys):
    target = tmp_path / "backup"
    status, out, err = run(capsys, "backup", target, "--data", source)
    assert (status, err) == (0, "")
    assert out.splitlines()[:5] == [
        "keyed-0: offsets 0 to 5",
        "orders-0: offsets 7 to 44",
        "orders-1: offsets 0 to 3",
        "orders-2: offsets 0 to 0",
        "group billing: 2 committed offsets",
    ]
    size = read_manifest(str(target)).size
    assert out.splitlines()[5].startswith(f"{target}: complete, 2 topics, 4 partitions, 1 group, 1 ACL, 1 quota, ")
    assert size == sum(
        path.stat().st_size for path in (target / "data").rglob("*") if path.name != ".lock" and path.is_file()
    )


def test_progress_is_shown_and_quiet_shows_none(backup, tmp_path, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self: shown.append(self._stream is not None))
    assert main(["restore", str(backup), str(tmp_path / "new")]) == 0
    assert any(shown)
    shown.clear()
    assert main(["restore", str(backup), str(tmp_path / "new"), "--quiet"]) == 0
    assert shown and not any(shown)
    assert json.loads((backup / "manifest.json").read_text())["version"] == 1
