"""A change whose first attempt was made and whose answer was lost: it is sent again, and counts as made."""

import pytest

import kcore
from kcore.client.acl_client import Acl, AclClient, AclFilter
from kcore.client.admin_client import AdminClient
from kcore.client.config_client import ConfigClient, ConfigResource, ResourceKind
from kcore.client.group_client import GroupClient
from kcore.client.log_dir_client import LogDirClient
from kcore.client.quota_client import QuotaClient
from kcore.common.topic_partition import TopicPartition
from kcore.errors import InvalidPartitions, TopicAlreadyExists
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture
from kcore.tools.command_line import addresses
from kcore.tools.main import main
from tests.waiting import wait_until

SETTINGS = {"offsets_topic_num_partitions": 1, "offsets_commit_timeout_ms": 500}


@pytest.fixture
def kafka():
    with kcore.Broker(broker_id=0, **SETTINGS) as broker:
        broker.create_topic("orders")
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


def run(kafka, capsys, words):
    """(exit status, stdout, stderr)."""
    capsys.readouterr()
    status = main([*words.split(), "--bootstrap", kafka.bootstrap_servers])
    return status, *capsys.readouterr()


def commit(kafka, group):
    orders = TopicPartition("orders", 0)
    with GroupClient(addresses(kafka.bootstrap_servers), client_id="test", timeout_ms=30_000) as client:
        wait_until(lambda: client.commit_offsets(group, {orders: 0}) == {orders: None})


@pytest.mark.parametrize(
    ("api", "words", "done"),
    [
        ("CreateTopics", "topics create new", "new is created: 1 partition, 1 replica each\n"),
        ("CreateTopics", "topics create new --partitions 3", "new is created: 3 partitions, 1 replica each\n"),
        ("CreateTopics", "topics create new --assign 0:0", "new is created: 2 partitions, 1 replica each\n"),
        ("CreatePartitions", "topics alter orders --partitions 3", "orders is changed\n"),
        ("DeleteTopics", "topics delete orders", "orders is deleted\n"),
        ("DeleteGroups", "groups delete billing", "billing is deleted\n"),
    ],
)
def test_what_was_carried_out_without_an_answer_is_done(kafka, capsys, api, words, done):
    commit(kafka, "billing")
    with kafka.fault(api, cut="after", times=1) as fault:
        assert run(kafka, capsys, words) == (0, done, "")
        assert fault.hits == 1
    # The other way round there is none of it, or one already: a first attempt hears that.
    status, out, err = run(kafka, capsys, words)
    assert (status, out) == (2, "") and any(
        reason in err for reason in ("already exists", "already has 3", "does not exist", "there is no group")
    )


def test_what_another_one_made_or_deleted_is_named_by_a_first_attempt_and_by_one_that_was_never_carried_out(
    kafka, capsys
):
    for api, words, reason in [
        ("CreateTopics", "topics create orders", "Topic 'orders' already exists."),
        ("CreatePartitions", "topics alter orders --partitions 1", "Topic already has 1 partition(s)."),
        ("DeleteTopics", "topics delete missing", "The topic 'missing' does not exist."),
        ("DeleteGroups", "groups delete missing", "there is no group 'missing'"),
    ]:
        assert run(kafka, capsys, words) == (2, "", f"kcore: {reason}\n")
        # Its answer says that nothing was done.
        error = "NOT_COORDINATOR" if api == "DeleteGroups" else "NOT_CONTROLLER"
        with kafka.fault(api, error=error, times=1):
            assert run(kafka, capsys, words) == (2, "", f"kcore: {reason}\n")


def test_a_topic_that_has_another_number_of_partitions_is_not_the_one_that_was_asked_for(kafka):
    with AdminClient(addresses(kafka.bootstrap_servers)) as client:
        for size in [(2, -1, None), (-1, 2, None), (-1, -1, [[0]] * 2)]:
            with kafka.fault("CreateTopics", cut="after", times=1), pytest.raises(TopicAlreadyExists):
                client.create_topic("orders", *size)


def test_a_topic_that_has_more_partitions_than_it_should_get_was_grown_by_another_one(kafka):
    with AdminClient(addresses(kafka.bootstrap_servers)) as client:
        client.create_partitions("orders", 3)
        with kafka.fault("CreatePartitions", cut="after", times=1), pytest.raises(InvalidPartitions):
            client.create_partitions("orders", 2)


def test_partitions_count_as_made_once_the_brokers_know_of_them(kafka):
    """The controller refuses the second attempt before the metadata of each broker has what the first one made."""
    with AdminClient(addresses(kafka.bootstrap_servers)) as client:
        describe_cluster, seen = client.describe_cluster, []

        def describe(topics=None):
            described = describe_cluster(topics)
            if topics == ["orders"]:
                seen.append(len(described.topics["orders"].partitions))
                if len(seen) == 1:
                    partitions = {0: described.topics["orders"].partitions[0]}
                    old = described.topics["orders"]._replace(partitions=partitions)
                    described = described._replace(topics={"orders": old})
            return described

        client.describe_cluster = describe
        with kafka.fault("CreatePartitions", cut="after", times=1):
            client.create_partitions("orders", 3)
        assert seen == [3, 3]


def own_settings(kafka, resource):
    with ConfigClient(addresses(kafka.bootstrap_servers)) as client:
        settings = client.settings(resource).items()
        return {name: setting.value for name, setting in settings if setting.source is resource.own_source}


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("kind", [ResourceKind.TOPIC, ResourceKind.BROKER])
def test_a_setting_whose_connection_broke_is_set_again(cut, kind, kafka):
    """Made twice it is the same, as in the next two tests."""
    resource = ConfigResource(kind, "orders" if kind is ResourceKind.TOPIC else "0")
    changes = {"max.message.bytes" if kind is ResourceKind.TOPIC else "message.max.bytes": "7000"}
    with ConfigClient(addresses(kafka.bootstrap_servers)) as client:
        with kafka.fault("IncrementalAlterConfigs", cut=cut, times=1) as fault:
            client.alter_settings(resource, changes)
        assert fault.hits == 1 and own_settings(kafka, resource) == changes
        with kafka.fault("IncrementalAlterConfigs", cut=cut, times=1) as fault:
            if kind is ResourceKind.TOPIC:
                client.alter_topic_config("orders", dict.fromkeys(changes))
            else:
                client.alter_broker_config(client.describe_cluster(()).brokers[0], dict.fromkeys(changes))
        assert fault.hits == 1 and own_settings(kafka, resource) == {}


@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_acl_or_a_quota_whose_connection_broke_is_sent_again(cut):
    acl = Acl(2, "orders", 3, "User:a", "*", 3, 3)
    entity = (("user", "q"),)
    with kcore.Broker(
        broker_id=0, authorizer_class_name="kcore.StoredAclAuthorizer", super_users="User:ANONYMOUS"
    ) as broker:
        kafka = KafkaFixture(broker)
        with AclClient(addresses(kafka.bootstrap_servers)) as acls:
            for api, change, after in [
                ("CreateAcls", acls.create_acls, [acl]),
                ("DeleteAcls", acls.delete_acls, []),
            ]:
                with kafka.fault(api, cut=cut, times=1) as fault:
                    assert change([acl]) == {acl: None}
                assert fault.hits == 1 and acls.acls(AclFilter()) == after
        with QuotaClient(addresses(kafka.bootstrap_servers)) as quotas:
            for value, after_quotas in [(5.0, {entity: {"consumer_byte_rate": 5.0}}), (None, {})]:
                with kafka.fault("AlterClientQuotas", cut=cut, times=1) as fault:
                    quotas.alter_quotas(entity, {"consumer_byte_rate": value})
                assert fault.hits == 1 and quotas.quotas(entity) == after_quotas


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_move_between_data_directories_whose_connection_broke_is_sent_again(cut, tmp_path):
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    with kcore.Broker(broker_id=0, log_dirs=",".join(dirs)) as broker:
        broker.create_topic("orders")
        kafka = KafkaFixture(broker)
        (other,) = set(dirs) - {broker.log("orders", 0).parent_dir}
        orders = TopicPartition("orders", 0)
        with LogDirClient(addresses(kafka.bootstrap_servers)) as client:
            with kafka.fault("AlterReplicaLogDirs", cut=cut, times=1) as fault:
                assert client.move_logs(client.describe_cluster(()).brokers[0], [orders], other) == {orders: None}
            assert fault.hits == 1
        wait_until(lambda: broker.log("orders", 0).parent_dir == other)


def test_a_connection_that_breaks_each_time_ends_the_command_and_the_change_may_be_made(kafka, capsys):
    with kafka.fault("IncrementalAlterConfigs", cut="after") as fault:
        status, out, err = run(kafka, capsys, "topics alter orders --config retention.ms=5")
    assert (status, out, fault.hits) == (2, "", 2)
    assert "the broker may still make the change" in err


def test_a_group_whose_deletion_is_stored_too_late_is_deleted(capsys):
    with kcore.Cluster(2, **SETTINGS) as cluster:
        cluster.create_topic("orders")
        kafka = KafkaClusterFixture(cluster)
        commit(kafka, "billing")
        with kafka.fault("Fetch", silent=True, topic="__consumer_offsets"):
            assert run(kafka, capsys, "groups delete billing") == (0, "billing is deleted\n", "")
