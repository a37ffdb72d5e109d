"""A change whose first attempt was made and whose answer was lost: it is sent again, and counts as made."""

import pytest

import kcore
from kcore.client.admin_client import AdminClient
from kcore.client.group_client import GroupClient
from kcore.common.topic_partition import TopicPartition
from kcore.errors import TopicAlreadyExists
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
        reason in err for reason in ("already exists", "does not exist", "there is no group")
    )


def test_what_another_one_made_or_deleted_is_named_by_a_first_attempt_and_by_one_that_was_never_carried_out(
    kafka, capsys
):
    for api, words, reason in [
        ("CreateTopics", "topics create orders", "Topic 'orders' already exists."),
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


def test_a_group_whose_deletion_is_stored_too_late_is_deleted(capsys):
    with kcore.Cluster(2, **SETTINGS) as cluster:
        cluster.create_topic("orders")
        kafka = KafkaClusterFixture(cluster)
        commit(kafka, "billing")
        with kafka.fault("Fetch", silent=True, topic="__consumer_offsets"):
            assert run(kafka, capsys, "groups delete billing") == (0, "billing is deleted\n", "")
