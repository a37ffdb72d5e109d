"""Pages that change a cluster."""

import pytest

import kcore
from tests.unit.tools.test_groups import commit, coordinator
from tests.unit.web.pages import TOKEN, address_of, opened, opened_after_a_look, words
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(1, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", partitions=2)
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with opened_after_a_look([address_of(cluster)], allows_changes=True) as (client, _):
        yield client


def names(client):
    text = client.get("/topics").text
    return [name for name in ("orders", "new-topic", "old") if f"name={name}" in text]


FORMS = {
    "/change/create-topic": {"name": "new-topic"},
    "/change/delete-topic": {"topic": "orders", "again": "orders"},
    "/change/delete-group": {"group": "billing"},
    "/change/elect": {"topic": "orders"},
}


@pytest.mark.parametrize("address", FORMS)
def test_without_the_permission_nothing_is_changed(cluster, address):
    with opened([address_of(cluster)]) as (client, _):
        answers = client.get(address), client.post(address, data=FORMS[address] | {"token": TOKEN})
        assert [answer.status_code for answer in answers] == [403, 403]
        assert all("kcore web --http-admin does" in answer.text for answer in answers)
        assert "/change/" not in client.get("/topics").text + client.get("/topic?name=orders").text


@pytest.mark.parametrize("address", FORMS)
@pytest.mark.parametrize("token", [None, "", "another", "é"])
def test_a_form_of_another_site_changes_nothing(client, address, token):
    values = FORMS[address] | ({} if token is None else {"token": token})
    answer = client.post(address, data=values)
    assert (answer.status_code, "no page's of this server" in words(answer.text)) == (400, True)
    assert client.get(address).status_code == 200
    assert "orders" in names(client) and "new-topic" not in names(client)


def test_a_change_is_no_link(client):
    for address, values in FORMS.items():
        assert client.get(address, params=values | {"token": TOKEN}).status_code == 200
    assert names(client) == ["orders"]


def test_a_topic_is_created_and_deleted(client):
    form = {"token": TOKEN, "name": "old", "partitions": "3", "replicas": "", "config": "retention.ms=5000\n\n"}
    answer = client.post("/change/create-topic", data=form)
    assert "Topic old is created" in words(answer.text)
    described = words(client.get("/topic?name=old").text)
    assert "Partitions 3" in described and "retention.ms 5000" in described
    again = client.post("/change/create-topic", data=form)
    assert (again.status_code, "already exists" in again.text) == (502, True)
    wrong = client.post("/change/delete-topic", data={"token": TOKEN, "topic": "old", "again": "Old"})
    assert (wrong.status_code, "not deleted" in wrong.text) == (400, True)
    assert "old" in names(client)
    answer = client.post("/change/delete-topic", data={"token": TOKEN, "topic": "old", "again": "old"})
    assert "Topic old is being deleted" in words(answer.text)
    assert "old" not in names(client)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "a b"}, "Topic name is invalid"),
        ({"name": "x", "partitions": "none"}, "partitions: expected a whole number"),
        ({"name": "x", "config": "retention.ms"}, "expected NAME=VALUE"),
        ({"name": "x", "replicas": "7"}, "replication factor"),
    ],
)
def test_a_topic_that_cannot_be_says_why(client, values, reason):
    answer = client.post("/change/create-topic", data={"token": TOKEN} | values)
    assert answer.status_code >= 400
    assert reason.lower() in words(answer.text).lower()


def test_a_group_is_deleted(cluster, client):
    with coordinator(cluster, "billing") as (connection, _):
        commit(connection, "billing", {("orders", 1): 0})
    answer = client.post("/change/delete-group", data={"token": TOKEN, "group": "billing"})
    assert "Group billing is deleted" in words(answer.text)
    assert client.get("/group?id=billing").status_code == 404


def test_an_election_says_how_many_partitions_it_changed(client):
    answer = client.post("/change/elect", data={"token": TOKEN, "topic": "orders"})
    assert "0 partitions got their preferred leader." in words(answer.text)
    wait_until(lambda: "orders" in names(client))
