"""What a member of a cluster reads of the store when settings change, and on which thread."""

import threading

import pytest

import kcore
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import Create
from kcore.server.quotas.client_quota_manager import QuotaEntity
from tests.unit.server.member.conftest import DEADLINE_S, run_now
from tests.waiting import wait_until

USERS = 10_000


class CountingStore(MemoryStore):
    """reads: the nodes below /config that were read, and those whose children were listed, as PATH/*."""

    def __init__(self, tree):
        self.reads = []
        super().__init__(tree, executor=run_now)

    def get(self, path, watch=None):
        self._note(path)
        return super().get(path, watch)

    def children(self, path, watch=None):
        self._note(f"{path}/*")
        return super().children(path, watch)

    def _note(self, path):
        if path.startswith("/config/"):
            self.reads.append(path)


def quota_of(rate):
    return znodes.encode_config({"consumer_byte_rate": str(rate)})


def change(store, path, data):
    """As another broker does; the path of the notification."""
    store.create_or_set(path, data)
    return store.create(znodes.CONFIG_CHANGE, znodes.encode_config_change(path), sequential=True)


def test_a_change_has_a_member_read_the_entity_that_changed_and_no_other(tree, store):
    """It read every quota at each change of a topic."""
    store.ensure_path(znodes.USER_CONFIGS)
    store.multi([Create(f"{znodes.USER_CONFIGS}/u{number}", quota_of(5)) for number in range(USERS)])
    members_store = CountingStore(tree)
    with kcore.Broker(store=members_store) as broker:
        assert broker.running.services.client_quotas.fetch.limit("u7", "c") == 5
        topic, user, default = znodes.topic_config("t"), f"{znodes.USER_CONFIGS}/u7", znodes.broker_config("<default>")
        for path, data, is_in_force in (
            (topic, {"retention.ms": "7"}, lambda: broker.running.base.logs.config_of("t").retention_ms == 7),
            (
                user,
                {"consumer_byte_rate": "6"},
                lambda: broker.running.services.client_quotas.fetch.limit("u7", "c") == 6,
            ),
            (default, {"log.roll.ms": "99"}, lambda: broker.config.log_config.segment_ms == 99),
        ):
            members_store.reads.clear()
            notification = change(store, path, znodes.encode_config(data))
            wait_until(is_in_force)
            of_this_broker = {znodes.broker_config("1")} if path == default else set()
            assert set(members_store.reads) == {"/config/changes/*", notification, path} | of_this_broker
        assert broker.running.services.client_quotas.fetch.limit("u8", "c") == 5
        assert QuotaEntity("u7", None) in broker.running.services.client_quotas.entities


class SlowStore(MemoryStore):
    """A get() of the slow path waits for `arrives`, once it is set."""

    def __init__(self, tree, slow_path):
        super().__init__(tree, executor=run_now)
        self._slow_path = slow_path
        self.is_slow, self.is_read, self.arrives = False, threading.Event(), threading.Event()

    def get(self, path, watch=None):
        if path == self._slow_path and self.is_slow:
            self.is_read.set()
            assert self.arrives.wait(2 * DEADLINE_S)
        return super().get(path, watch)


@pytest.mark.parametrize("path", [f"{znodes.USER_CONFIGS}/u", znodes.topic_config("t"), znodes.broker_config("1")])
def test_a_slow_reading_of_settings_does_not_delay_a_registration_in_a_new_session(tree, store, path):
    store.create_recursive(path, znodes.encode_config({}))
    slow_store = SlowStore(tree, path)
    with kcore.Broker(store=slow_store) as broker:
        slow_store.is_slow = True
        change(store, path, znodes.encode_config({}))
        assert slow_store.is_read.wait(DEADLINE_S)
        try:
            epoch = broker.cluster_member.broker_epoch
            tree.expire(slow_store.session_id)
            wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
            assert store.get(znodes.broker_id(1)).ephemeral_owner == slow_store.session_id
        finally:
            slow_store.arrives.set()
