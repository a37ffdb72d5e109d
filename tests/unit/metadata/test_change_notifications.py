"""ChangeNotifications: what its consumers are called with, and when."""

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.metadata.change_notifications import CHANGE_EXPIRATION_MS, RETRY_MS, ChangeNotifications
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import ConnectionLost, InvalidPath, NotAllowed, StoreError

ALL = "all"
PREFIXES = ["/changes/of_words_", "/more-changes/of_words_"]


def decode(path, data):
    if not data:
        raise StoreError(f"{path} says nothing")
    return None if data == b"foreign" else data.decode()


class Recorder:
    """read: what it was called with since the last taken()."""

    def __init__(self):
        self.read = []
        #: Entity, or ALL -> what its reading raises.
        self.errors = {}

    def read_all(self):
        self._read([ALL])

    def read_changed(self, entities):
        self._read(entities)

    def _read(self, entities):
        for entity in entities:
            if entity in self.errors:
                raise self.errors[entity]
        self.read.extend(entities)

    def taken(self):
        read, self.read = sorted(self.read), []
        return read


class Broker:
    def __init__(self):
        self.store, self.time = MemoryStore(), MockTime()
        self.scheduler = MockScheduler(self.time)
        self.consumers = [Recorder(), Recorder()]
        self.changes = ChangeNotifications("words", PREFIXES, decode, self.store, self.scheduler, self.time)
        self.changes.start(self.consumers)
        self.others_store = MemoryStore(self.store.tree)

    def announce(self, *bodies, prefix=PREFIXES[0]):
        for body in bodies:
            self.others_store.create(prefix, body, sequential=True)

    def follow(self):
        """What each consumer was called with then."""
        self.store.tree.pump()
        self.scheduler.tick()
        return self.taken()

    def taken(self):
        one, other = (consumer.taken() for consumer in self.consumers)
        assert one == other
        return one


@pytest.fixture
def broker():
    broker = Broker()
    assert broker.taken() == [ALL], "at the start everything is read"
    return broker


def test_each_consumer_gets_what_changed_once_for_several_events(broker):
    broker.announce(b"a", b"b", b"a", b"foreign")
    broker.announce(b"c", prefix=PREFIXES[1])
    assert broker.follow() == ["a", "b", "c"]
    assert broker.follow() == []
    broker.announce(b"a")
    assert broker.follow() == ["a"]


def test_what_was_announced_before_the_start_is_not_read_again(broker):
    broker.announce(b"a", b"")
    late = Broker.__new__(Broker)
    late.store, late.consumers = broker.others_store, [Recorder()]
    changes = ChangeNotifications("words", PREFIXES, decode, late.store, broker.scheduler, broker.time)
    changes.start(late.consumers)
    changes.read()
    assert late.consumers[0].taken() == [ALL]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_everything_is_read_after_a_notification_that_cannot_be_read_or_is_gone(broker, is_deleted, monkeypatch):
    if is_deleted:
        get = broker.store.get
        monkeypatch.setattr(broker.store, "get", lambda path, *args: None if path.endswith("1") else get(path, *args))
    broker.announce(b"a", b"b" if is_deleted else b"", b"c")
    assert broker.follow() == [ALL]
    broker.announce(b"d")
    assert broker.follow() == ["d"], "it is not read again and again"


def test_nodes_that_are_no_notifications_are_passed_over_and_stay(broker):
    for name in ("foreign", "of_words_", "of_words_x1"):
        broker.others_store.create(f"/changes/{name}")
    assert broker.follow() == []
    broker.time.sleep(2 * CHANGE_EXPIRATION_MS)
    broker.announce(b"a")
    assert broker.follow() == ["a"]
    assert len(broker.store.children("/changes")) == 4


def test_a_lost_session_has_everything_read_and_a_lost_connection_what_was_announced(broker):
    broker.store.disconnect()
    broker.announce(b"a")
    assert broker.follow() == []
    broker.store.reconnect()
    assert broker.follow() == ["a"]
    broker.store.tree.expire(broker.store.session_id)
    broker.announce(b"b")
    assert broker.follow() == []
    broker.store.new_session()
    assert broker.follow() == [ALL]
    broker.announce(b"c")
    assert broker.follow() == ["c"], "the new session has no watch"


def test_a_session_that_is_lost_while_everything_is_read_has_it_read_once_more(broker, monkeypatch):
    expired = []

    def read_all_while_the_session_ends():
        if not expired:
            expired.append(broker.store.session_id)
            broker.store.tree.expire(broker.store.session_id)
            broker.store.pump()
            broker.store.new_session()
        read_all()

    read_all = broker.consumers[0].read_all
    monkeypatch.setattr(broker.consumers[0], "read_all", read_all_while_the_session_ends)
    broker.announce(b"")
    for _ in range(2):
        broker.store.pump()
        broker.scheduler.tick()
    assert [consumer.taken() for consumer in broker.consumers] == [[ALL, ALL], [ALL]]


@pytest.mark.parametrize("what", ["b", ALL])
@pytest.mark.parametrize("error", [ConnectionLost("away"), NotAllowed("b")])
def test_what_could_not_be_read_is_read_after_a_pause_and_keeps_nothing_else_from_being_read(broker, what, error):
    one, other = broker.consumers
    one.errors[what] = error
    broker.announce(b"") if what == ALL else broker.announce(b"a", b"b", b"c")
    broker.store.pump()
    broker.scheduler.tick()
    assert other.taken() == ([ALL] if what == ALL else ["a", "b", "c"])
    # The store could not be reached: no more calls of it.
    assert one.taken() == (["a", "c"] if what == "b" and isinstance(error, NotAllowed) else [])
    one.errors.clear()
    broker.time.sleep(RETRY_MS - 1)
    broker.scheduler.tick()
    assert one.taken() == []
    broker.time.sleep(1)
    broker.scheduler.tick()
    assert one.taken() == ([ALL] if what == ALL else ["b"] if isinstance(error, NotAllowed) else ["a", "b", "c"])
    assert other.taken() == []


@pytest.mark.parametrize("error", [InvalidPath("/b//"), ValueError("b")])
def test_an_entity_that_can_never_be_read_is_named_in_the_log_and_not_tried_again(broker, error, caplog):
    for consumer in broker.consumers:
        consumer.errors["b"] = error
    broker.announce(b"a", b"b", b"c")
    assert broker.follow() == ["a", "c"]
    broker.time.sleep(RETRY_MS)
    assert broker.follow() == []
    assert "a change of ['b'] is passed over" in caplog.text


def test_while_the_store_is_away_it_is_asked_once_in_a_pause_however_much_is_to_be_read(broker):
    broker.store.disconnect()
    for entity in "abc":
        broker.changes.read_later(entity)
        assert broker.follow() == []
    for _ in range(3):
        broker.time.sleep(RETRY_MS)
        assert broker.scheduler.tick() == 1
    broker.store.reconnect()
    assert broker.follow() == ["a", "b", "c"]


def test_read_later_reads_an_entity_that_nobody_announces(broker):
    broker.changes.read_later("a")
    assert broker.follow() == ["a"]


def test_what_the_broker_itself_has_announced_and_noted_is_not_read(broker):
    broker.changes.note(broker.store.create(PREFIXES[0], b"a", sequential=True))
    assert broker.follow() == []
