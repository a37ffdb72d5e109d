"""The settings of topics reach the logs of a cluster's members from the store."""

import json
import threading
import time

import pytest

import kcore
from kcore.metadata import change_notifications, znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import (
    ConnectionLost,
)
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS
from tests.unit.server.controller_client import ControllerClient
from tests.unit.server.member.conftest import DEADLINE_S, run_now
from tests.waiting import wait_until


def follow_all_changes(broker, store):
    """Returns when the broker has read all that was announced before."""
    last = znodes.topic_config("last")
    number = len(store.children(znodes.CONFIG_CHANGES))
    store.create_or_set(last, znodes.encode_config({"segment.bytes": str(5000 + number)}))
    store.create(znodes.CONFIG_CHANGE, znodes.encode_config_change(last), sequential=True)
    wait_until(lambda: broker.admin_manager.topic_config("last") == {"segment.bytes": str(5000 + number)})


def test_a_topics_settings_are_read_from_the_store_when_its_first_partition_comes(broker, controller, store):
    store.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "4096", "foreign": "x"}))
    controller.leader_and_isr({"t": [controller.state()]})
    assert broker.log("t").config.segment_bytes == 4096


def test_settings_that_the_store_did_not_give_are_read_until_it_does(broker, controller, store, monkeypatch):
    """Until then the topic keeps all records; it had the broker's retention, which deleted some."""
    monkeypatch.setattr(change_notifications, "RETRY_MS", 1)
    settings = znodes.topic_config("t")
    store.create_recursive(settings, znodes.encode_config({"retention.ms": "12345"}))
    get, tries = store.get, []

    def get_but_not_the_settings(path, *args):
        if path == settings:
            tries.append(path)
            raise ConnectionLost("away")
        return get(path, *args)

    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(store, "get", get_but_not_the_settings)
        controller.update_metadata()
        controller.leader_and_isr({"t": [controller.state(0)]})
        assert broker.log("t").config.retention_ms == -1
        wait_until(lambda: len(tries) > 3)
    wait_until(lambda: broker.log("t").config.retention_ms == 12345)


def test_changed_settings_reach_the_logs(broker, controller, store):
    controller.leader_and_isr({"t": [controller.state()], "u": [controller.state()]})
    for number, (body, size) in enumerate(
        [
            ({"version": 2, "entity_path": "topics/t"}, 2048),
            ({"version": 1, "entity_type": "topics", "entity_name": "t"}, 1024),
        ]
    ):
        store.create_or_set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": str(size)}))
        for change in (b"not JSON", b'{"version":2,"entity_path":"clients/c"}', json.dumps(body).encode()):
            store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
        wait_until(lambda size=size: broker.log("t").config.segment_bytes == size)
        assert broker.admin_manager.topic_config("t") == {"segment.bytes": str(size)}, number
    assert broker.log("u").config.segment_bytes == 1 << 30


class SlowStore(MemoryStore):
    """Its first answer about the settings of topic t is on its way until `arrives` is set."""

    def __init__(self, tree):
        super().__init__(tree, executor=run_now)
        self.is_read, self.arrives = threading.Event(), threading.Event()

    def get(self, path, watch=None):
        node = super().get(path, watch)
        if path == znodes.topic_config("t") and not self.is_read.is_set():
            self.is_read.set()
            assert self.arrives.wait(DEADLINE_S)
        return node


def test_settings_that_are_read_while_they_change_end_as_the_new_ones(tree, store):
    slow_store = SlowStore(tree)
    with kcore.Broker(store=slow_store) as broker, ControllerClient(broker) as controller:
        store.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "1024"}))
        controller.client.send(controller.leader_and_isr_request({"t": [controller.state()]}), 7)
        assert slow_store.is_read.wait(DEADLINE_S)
        store.set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "2048"}))
        change = b'{"version":2,"entity_path":"topics/t"}'
        store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
        time.sleep(0.2)  # by now the change is read, or waits for the first answer
        slow_store.arrives.set()
        assert controller.client.receive(ApiKey.LEADER_AND_ISR, 7).error_code == 0
        wait_until(lambda: broker.admin_manager.topic_config("t") == {"segment.bytes": "2048"})
        wait_until(lambda: broker.log("t").config.segment_bytes == 2048)


def test_a_member_replaces_all_settings_of_a_topic_in_the_store_and_has_every_broker_read_them(controller, store):
    controller.update_metadata({"t": {0: {}}})
    store.ensure_path(znodes.topic("t"))
    store.create_or_set(znodes.topic_config("t"), znodes.encode_config({"retention.ms": "5", "of.java": "1"}))
    setting = ac.AlterableConfig(name="segment.bytes", value="4000")
    resource = ac.AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    (response,) = controller.client.ask(ac.AlterConfigsRequest(resources=[resource]), 1).responses
    assert (response.error_code, response.error_message) == (0, None)
    assert znodes.decode_config(store.get(znodes.topic_config("t")).data) == {"segment.bytes": "4000"}
    (change,) = store.children(znodes.CONFIG_CHANGES)
    assert znodes.decode_config_change(store.get(f"{znodes.CONFIG_CHANGES}/{change}").data) == znodes.topic_config("t")


@pytest.mark.parametrize("is_known", [True, False])
def test_settings_that_cannot_be_read_are_replaced_by_those_in_force_and_what_a_client_changes(
    broker, controller, store, caplog, is_known
):
    """The client was answered that the store had failed.  In force is what the broker has read before, or that all
    records are kept."""
    path = znodes.topic_config("t")
    store.create_recursive(path, znodes.encode_config({"retention.ms": "12345"}) if is_known else b"garbage")
    store.ensure_path(znodes.topic("t"))
    controller.update_metadata({"t": {0: {}}})
    controller.leader_and_isr({"t": [controller.state()]})
    store.set(path, b"garbage")
    setting = AlterableConfig(name="segment.bytes", config_operation=0, value="4000")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    (response,) = controller.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert (response.error_code, response.error_message) == (0, None)
    in_force = {"retention.ms": "12345"} if is_known else KEEP_ALL_RECORDS
    assert znodes.decode_config(store.get(path).data) == {**in_force, "segment.bytes": "4000"}
    assert any(f"{path} in the metadata store cannot be read" in r.getMessage() for r in caplog.records)
    wait_until(lambda: broker.log("t").config.segment_bytes == 4000)
    assert broker.log("t").config.retention_ms == int(in_force["retention.ms"])


def test_settings_of_something_else_than_topics_and_brokers_are_refused_by_its_name(controller):
    resource = AlterConfigsResource(resource_type=64, resource_name="m", configs=[])
    (response,) = controller.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    expected = (
        "Only settings of topics, brokers, loggers, client metrics and groups can be changed, not of resource type 64"
    )
    assert response.error_message == expected


def test_the_settings_of_a_topic_that_is_created_again_are_the_new_ones(broker, controller, store):
    def create(size):
        store.create_or_set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": str(size)}))

    create(1024)
    controller.leader_and_isr({"t": [controller.state(is_new=True)]})
    controller.update_metadata({"t": {0: {}}})
    assert broker.log("t").config.segment_bytes == 1024
    controller.stop_replica("t", delete=True)
    create(2048)
    # Its deletion was not reported to this broker.
    controller.leader_and_isr({"t": [controller.state(is_new=True)]})
    assert broker.log("t").config.segment_bytes == 2048
    controller.update_metadata({"t": {0: {"leader": -2}}})
    assert broker.admin_manager.topic_config("t") == {}
    create(4096)
    controller.update_metadata({"t": {0: {"leader": 2}}})
    assert broker.admin_manager.topic_config("t") == {"segment.bytes": "4096"}


def test_settings_that_cannot_be_read_keep_all_records_and_stop_nothing_else(store, caplog):
    combination = {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "5"}
    bodies = {
        "cut": b'{"version":1,"config":{"reten',
        "foreign": b'{"version":1,"config":["a"]}',
        "combination": znodes.encode_config(combination),
        "partly": znodes.encode_config({"segment.bytes": "2048", "retention.ms": "soon"}),
    }
    for name, body in bodies.items():
        store.create_recursive(znodes.topic_config(name), body)
    with kcore.Broker(store=store) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({name: [controller.state(is_new=True)] for name in bodies})
        configs = {name: broker.log(name).config for name in bodies}
        assert [configs[name].retention_ms for name in ("cut", "foreign", "combination")] == [-1] * 3
        assert configs["partly"].segment_bytes == 2048 and configs["partly"].retention_ms > 0
        assert "cut cannot be read" in caplog.text
        # Once they are right, they hold; once they are not, the last right ones do.
        for body in (znodes.encode_config({"segment.bytes": "4096"}), b"not JSON"):
            store.set(znodes.topic_config("cut"), body)
            change = b'{"version":2,"entity_path":"topics/cut"}'
            store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
            follow_all_changes(broker, store)
            assert broker.admin_manager.topic_config("cut") == {"segment.bytes": "4096"}
