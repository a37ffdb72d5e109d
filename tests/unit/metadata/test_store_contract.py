"""The contract of MetadataStore, tested on every store.  The rules are ZooKeeper's."""

import random
import threading

import pytest

from kcore.common.time import MockTime
from kcore.metadata.embedded_store import FILE_NAME, SESSION_TIMEOUT_MS, EmbeddedStore
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.multi_builder import MultiBuilder
from kcore.metadata.open_store import open_store
from kcore.metadata.store import (
    BadVersion,
    Check,
    CheckChildrenCreated,
    Create,
    Delete,
    EventType,
    InvalidPath,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionEvent,
    SessionExpired,
    SetData,
    StoreClosed,
    StoreError,
    WatchEvent,
)
from tests.reference.node_tree import NodeTree
from tests.unit.metadata.zookeeper_sessions import deliver_all, expire

#: In a test here, events of which each is the work of the watch before it; one pass delivers at least one of them.
CONSECUTIVE_EVENTS = 3


class MemoryWorld:
    """Sessions on one tree, and how a test makes their events happen."""

    #: Of a random test.
    steps = 150

    def __init__(self, tmp_path):
        self.tree = MemoryTree()
        self.stores = []

    def open(self):
        self.stores.append(MemoryStore(self.tree))
        return self.stores[-1]

    def deliver(self):
        self.tree.pump()

    def expire(self, store):
        self.tree.expire(store.session_id)

    def close(self):
        for store in self.stores:
            store.close()


class EmbeddedWorld(MemoryWorld):
    """Each store has a connection of its own, as another process would."""

    def __init__(self, tmp_path):
        self.path = str(tmp_path / FILE_NAME)
        self.time = MockTime()
        self.stores = []

    def open(self):
        self.stores.append(EmbeddedStore(self.path, durable=False, poll_interval_ms=None, time=self.time))
        return self.stores[-1]

    def deliver(self):
        for _ in range(CONSECUTIVE_EVENTS):
            for store in self.stores:
                store.poll()

    def expire(self, store):
        _ = store.session_id
        for _ in range(7):
            for other in self.stores:
                if other is not store:
                    other.poll()
            self.time.sleep(SESSION_TIMEOUT_MS / 6)


class ZookeeperWorld(MemoryWorld):
    """Sessions with a real server, each in a connection of its own."""

    steps = 25

    def __init__(self, request):
        self.address = request.getfixturevalue("zookeeper")
        self.stores = []

    def open(self):
        # Long: a machine that stands still must not end a session.
        self.stores.append(open_store(self.address, session_timeout_ms=30_000))
        return self.stores[-1]

    def deliver(self):
        for _ in range(CONSECUTIVE_EVENTS):
            for store in self.stores:
                deliver_all(store)

    def expire(self, store):
        expire(store)


@pytest.fixture(params=[MemoryWorld, EmbeddedWorld, ZookeeperWorld], ids=["memory", "embedded", "zookeeper"])
def world(request, tmp_path):
    world = request.param(request if request.param is ZookeeperWorld else tmp_path)
    yield world
    world.close()


@pytest.fixture
def store(world):
    return world.open()


# -- nodes ----------------------------------------------------------------------------------------------


def test_after_a_sync_a_read_sees_what_another_client_has_changed(world):
    store, other = world.open(), world.open()
    other.create("/a", b"x")
    store.sync()
    assert store.get("/a").data == b"x"
    store.close()
    with pytest.raises(StoreClosed):
        store.sync()


def test_a_node_is_created_once_under_a_parent_that_exists(store):
    with pytest.raises(NoNode):
        store.create("/a/b", b"x")
    assert store.create("/a") == "/a"
    store.create("/a/b", b"x")
    assert store.get("/a/b")[:2] == (b"x", 0)
    assert store.get("/a/c") is None
    with pytest.raises(NodeExists):
        store.create("/a/b", b"y")
    with pytest.raises(NodeExists):
        store.create("/")
    assert store.get("/").data == b""


def test_set_counts_versions_and_checks_the_expected_one(store):
    store.create("/a", b"0")
    assert store.set("/a", b"1") == 1
    assert store.set("/a", b"2", expected_version=1) == 2
    with pytest.raises(BadVersion):
        store.set("/a", b"3", expected_version=1)
    with pytest.raises(NoNode):
        store.set("/b", b"")
    assert store.get("/a")[:2] == (b"2", 2)


def test_children_are_sorted_names_of_direct_children_only(store):
    for path in ("/t/b/x", "/t/a", "/t2/z", "/t/ab"):
        store.create_recursive(path)
    assert store.children("/t") == ["a", "ab", "b"]
    assert store.children("/") == ["t", "t2"]
    assert store.children("/none") == []


def test_delete_wants_the_right_version_and_no_children(store):
    store.create_recursive("/a/b/c")
    with pytest.raises(NotEmpty):
        store.delete("/a/b")
    store.set("/a/b/c", b"1")
    with pytest.raises(BadVersion):
        store.delete("/a/b/c", expected_version=0)
    store.delete("/a/b/c", expected_version=1)
    with pytest.raises(NoNode):
        store.delete("/a/b/c")
    assert store.delete_recursive("/a") is True
    assert store.delete_recursive("/a") is False
    assert store.children("/") == []
    with pytest.raises(StoreError):
        store.delete("/")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\0b"])
def test_a_path_that_zookeeper_would_refuse_is_refused(store, path):
    for call in (store.create, store.get, store.children, store.delete, lambda path: store.set(path, b"")):
        with pytest.raises(InvalidPath):
            call(path)


@pytest.mark.parametrize("name", [".", "..", "x\x01"])
def test_a_node_with_a_path_that_none_may_have_any_more_is_read_changed_and_deleted(tmp_path, monkeypatch, name):
    world = EmbeddedWorld(tmp_path)  # ZooKeeper itself has never taken such a path
    for store in (MemoryStore(), world.open()):
        store.create("/a")
        with monkeypatch.context() as earlier_version:
            earlier_version.setattr("kcore.metadata.node_changes.check_path", lambda path: path)
            odd = store.create(f"/a/{name}", b"1")
        assert store.children("/a") == [name] and store.children(odd) == []
        assert store.get(odd).data == b"1" and store.get(odd, lambda event: None).data == b"1"
        assert [node.data for node in store.get_many([odd, "/a"])] == [b"1", b""]
        assert store.set(odd, b"2") == 1
        for below in (f"{odd}/b", f"{odd}{odd}"):
            for call in (store.create, store.get, store.children, store.delete, lambda path: store.get_many([path])):  # noqa: B023
                with pytest.raises(InvalidPath):
                    call(below)
        assert store.delete_recursive(odd)
        with pytest.raises(InvalidPath):
            store.create(odd)
        store.close()


def test_a_node_that_is_created_later_has_a_greater_czxid(world, store):
    store.create("/a")
    store.create("/b")
    first = store.get("/a").czxid
    assert store.get("/b").czxid > first
    store.set("/a", b"1")
    assert store.get("/a").czxid == first
    store.delete("/a")
    world.open().create("/a")
    assert store.get("/a").czxid > store.get("/b").czxid


def test_parents_are_made_with_their_node_in_one_change(store):
    store.create("/t")
    store.create_recursive("/t/a/b/c", b"1")
    assert store.get("/t/a/b/c").data == b"1" and store.get("/t/a").data == b""
    assert len({store.get(path).czxid for path in ("/t/a", "/t/a/b", "/t/a/b/c")}) == 1
    with pytest.raises(NodeExists):
        store.create_recursive("/t/a/b/c")
    store.create("/t/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        store.create_recursive("/t/e/x")
    with pytest.raises(NoChildrenForEphemerals):
        store.create_recursive("/t/e/x/y")


@pytest.mark.parametrize("is_before_the_look", [True, False])
@pytest.mark.parametrize("between", ["made", "deleted", "the node itself made"])
def test_a_parent_that_another_client_makes_or_deletes_meanwhile(
    world, store, monkeypatch, between, is_before_the_look
):
    other = world.open()
    if between == "deleted":
        other.create("/a")
    missing_parents, calls = store._missing_parents, []

    def interrupt():
        if between == "deleted":
            other.delete("/a")
        else:
            other.create_recursive("/a/b" if between == "made" else "/a/b/c")

    def interrupted(path):
        calls.append(path)
        if len(calls) == 1 and is_before_the_look:
            interrupt()
        found = missing_parents(path)
        if len(calls) == 1 and not is_before_the_look:
            interrupt()
        return found

    monkeypatch.setattr(store, "_missing_parents", interrupted)
    if between == "the node itself made":
        with pytest.raises(NodeExists):
            store.create_recursive("/a/b/c", b"1")
    else:
        store.create_recursive("/a/b/c", b"1")
        assert store.get("/a/b/c").data == b"1"
        assert len(calls) == (1 if is_before_the_look else 2)


def test_the_helpers_leave_what_they_say(store):
    store.ensure_path("/a/b")
    store.ensure_path("/a/b")
    store.create_or_set("/a/b/c", b"1")
    store.create_or_set("/a/b/c", b"2")
    assert store.get("/a/b/c")[:2] == (b"2", 1)
    assert store.update("/n", lambda data: (data or b"") + b"x") == b"x"
    assert store.update("/n", lambda data: (data or b"") + b"x") == b"xx"


def test_a_builder_puts_and_deletes_in_one_change(store):
    store.create_recursive("/t/old/x", b"0")
    store.create("/n", b"0")
    builder = MultiBuilder(store)
    builder.put("/n", b"1")
    builder.put("/t/new/y/z", b"2")
    builder.put("/t/new/y/w", b"3")
    builder.create("/t/new/v")
    builder.delete_recursive("/t/old")
    builder.delete_recursive("/none")
    assert store.children("/t") == ["old"]
    builder.commit()
    assert store.get("/n")[:2] == (b"1", 1)
    assert store.children("/t") == ["new"] and store.children("/t/new") == ["v", "y"]
    assert (store.get("/t/new/y/z").data, store.get("/t/new/y/w").data) == (b"2", b"3")
    assert store.get("/n").czxid != store.get("/t/new/v").czxid == store.get("/t/new/y").czxid
    MultiBuilder(store).commit()


@pytest.mark.parametrize("intruder", [SetData("/a", b"x"), Create("/b"), Create("/t/new"), Delete("/t")])
def test_what_a_builder_has_seen_must_still_be_so(store, intruder):
    store.create("/a")
    store.create("/t")
    builder = MultiBuilder(store)
    builder.put("/a", b"1")
    builder.put("/b", b"2")
    builder.delete_recursive("/t")
    store.multi([intruder])
    with pytest.raises(MultiFailed):
        builder.commit()
    assert store.get("/a").data != b"1"


# -- multi ----------------------------------------------------------------------------------------------


def test_a_multi_is_applied_in_order_and_answers_each_operation(store):
    store.create("/old", b"1")
    results = store.multi(
        [
            Create("/a"),
            Create("/a/b", b"x"),
            SetData("/a/b", b"y", expected_version=0),
            Check("/a/b", expected_version=1),
            Delete("/old"),
            Create("/a/s-", sequential=True),
        ]
    )
    assert results == ["/a", "/a/b", 1, None, None, "/a/s-0000000001"]
    assert store.get("/a/b")[:2] == (b"y", 1)
    assert store.get("/a").czxid == store.get("/a/b").czxid  # one change
    assert store.children("/") == ["a"]
    assert store.multi([]) == []


def test_a_child_that_is_deleted_and_created_again_is_noticed_before_the_multi_that_depends_on_it(world, store):
    other = world.open()
    store.create("/p")
    store.create("/p/n", ephemeral=True)
    store.create("/p/gone")
    store.delete("/p/gone")
    for _ in range(2):
        created = store.children_created("/p")
        other.set("/p", b"")  # is no creation, and a deletion is none
        conditions = [Check("/p/n", 0), CheckChildrenCreated("/p", created)]
        assert store.multi([*conditions, SetData("/p", b"done"), Create("/p/s-", sequential=True)])[:2] == [None, None]
        names = store.children("/p")
        assert len(names) == 2 and "n" in names and names[1].startswith("s-")
        created = store.children_created("/p")
        other.delete("/p/n")
        other.create("/p/n", ephemeral=True)  # version 0, as before
        with pytest.raises(MultiFailed) as failed:
            store.multi([Check("/p/n", 0), CheckChildrenCreated("/p", created), SetData("/p", b"too late")])
        assert failed.value.index == 1 and type(failed.value.cause) is BadVersion
        assert (store.get("/p").data, store.children("/p")) == (b"done", names)
        store.delete(f"/p/{names[1]}")
    with pytest.raises(NoNode):
        store.children_created("/none")
    answers = store.multi_many([[CheckChildrenCreated("/p", 0), Delete("/p")], [CheckChildrenCreated("/", 1)]])
    assert isinstance(answers[0], MultiFailed) and answers[0].index == 0 and answers[1] == [None]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Create("/x"), NodeExists),
        (Create("/none/x"), NoNode),
        (SetData("/x", b"", expected_version=7), BadVersion),
        (SetData("/none", b""), NoNode),
        (Delete("/x"), NotEmpty),
        (Delete("/x/y", expected_version=7), BadVersion),
        (Check("/none"), NoNode),
        (Check("/x", expected_version=7), BadVersion),
        (CheckChildrenCreated("/none", 0), NoNode),
        (CheckChildrenCreated("/x", 0), BadVersion),
        (CheckChildrenCreated("/x", 2), BadVersion),
    ],
)
def test_a_multi_that_fails_changes_nothing_and_names_the_operation(world, store, failing, error):
    store.create_recursive("/x/y", b"0")
    events = []
    store.get("/x/y", watch=events.append)
    with pytest.raises(MultiFailed) as failed:
        store.multi([Create("/a"), SetData("/x/y", b"1"), failing, Create("/b")])
    assert failed.value.index == 2 and type(failed.value.cause) is error
    assert store.children("/") == ["x"] and store.get("/x/y")[:2] == (b"0", 0)
    world.deliver()
    assert events == []
    store.create("/x/s-", sequential=True)
    assert store.children("/x") == ["s-0000000001", "y"]


def test_many_nodes_are_read_in_the_order_of_their_paths(store):
    paths = [f"/node-{number:04}" for number in range(700)]
    store.multi([Create(path, path.encode()) for path in paths])
    store.set(paths[3], b"changed")
    asked = [paths[699], "/missing", *paths, paths[3]]
    assert store.get_many(asked) == [store.get(path) for path in asked]
    assert store.get_many([]) == []
    with pytest.raises(StoreError):
        store.get_many(["/node-0000", "bad"])


def test_many_reads_leave_a_watch_each_also_where_there_is_no_node(world, store):
    other, events = world.open(), []
    store.create("/a", b"1")
    store.create("/c", b"2")

    def watch(name):
        return lambda event: events.append((name, event))

    nodes = store.get_many(["/a", "/b", "/c"], [watch("a"), watch("b"), watch("c")])
    assert [node and node.data for node in nodes] == [b"1", None, b"2"]
    other.set("/a", b"3")
    other.create("/b")
    world.deliver()
    other.delete("/c")
    world.deliver()
    assert sorted(events, key=repr) == [
        ("a", WatchEvent(EventType.CHANGED, "/a")),
        ("b", WatchEvent(EventType.CREATED, "/b")),
        ("c", WatchEvent(EventType.DELETED, "/c")),
    ]


def test_many_multis_take_place_each_by_itself_and_in_order(world, store):
    other = world.open()
    store.create("/a")
    store.create("/b")
    answers = store.multi_many(
        [
            [SetData("/a", b"1", 0), SetData("/b", b"1", 0)],
            [SetData("/a", b"2", 1), SetData("/b", b"2", 7)],
            [],
            [Check("/missing"), Create("/c")],
            [Create("//")],
            [SetData("/a", b"3", 1), Create("/d-", sequential=True)],
        ]
    )
    first, conflict, empty, missing, bad, last = answers
    assert (first, empty) == ([1, 1], []) and last[0] == 2 and last[1].startswith("/d-")
    assert (conflict.index, type(conflict.cause)) == (1, BadVersion)
    assert (missing.index, type(missing.cause)) == (0, NoNode)
    assert bad.index == 0
    assert other.get("/a")[:2] == (b"3", 2) and other.get("/b")[:2] == (b"1", 1) and other.get("/c") is None
    assert store.multi_many([]) == []


def test_many_multis_are_many(store):
    paths = [f"/node-{number:03}" for number in range(300)]
    assert store.multi_many([[Create(path)] for path in paths]) == [[path] for path in paths]
    again = store.multi_many([[SetData(path, b"1", number % 2)] for number, path in enumerate(paths)])
    assert again[::2] == [[1]] * 150
    assert {type(error.cause) for error in again[1::2]} == {BadVersion}


def test_an_ephemeral_node_of_many_multis_ends_with_the_session(world, store):
    other = world.open()
    assert store.multi_many([[Create("/e", ephemeral=True)]]) == [["/e"]]
    assert other.get("/e").ephemeral_owner == store.session_id
    store.close()
    assert other.get("/e") is None


def test_a_multi_sees_its_own_changes(store):
    store.multi([Create("/a"), Delete("/a"), Create("/a", b"2")])
    assert store.get("/a")[:2] == (b"2", 0)
    with pytest.raises(MultiFailed) as failed:
        store.multi([Delete("/a"), SetData("/a", b"")])
    assert failed.value.index == 1 and store.get("/a").data == b"2"


# -- sequential and ephemeral nodes ---------------------------------------------------------------------


def test_a_sequential_name_ends_with_ten_digits_that_count_creations(store):
    store.create("/q")
    assert store.create("/q/n-", sequential=True) == "/q/n-0000000000"
    assert store.create("/q/n-", sequential=True) == "/q/n-0000000001"
    store.create("/q/other")
    store.delete("/q/n-0000000001")
    assert store.create("/q/", sequential=True) == "/q/0000000003"
    assert store.create("/top-", sequential=True) == "/top-0000000001"
    with pytest.raises(NoNode):
        store.create("/none/n-", sequential=True)


def test_ephemeral_nodes_live_as_long_as_their_session(world, store):
    other = world.open()
    store.create("/p")
    store.create("/p/e", b"x", ephemeral=True)
    store.create("/p/f-", ephemeral=True, sequential=True)
    assert other.get("/p/e").ephemeral_owner == store.session_id != other.session_id
    assert other.get("/p").ephemeral_owner == 0
    store.close()
    assert other.children("/p") == []
    assert other.get("/p") is not None
    with pytest.raises(StoreError):
        store.get("/p")


def test_an_ephemeral_node_has_no_children_and_anybody_may_delete_it(world, store):
    other = world.open()
    store.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        store.create("/e/x")
    other.set("/e", b"1")
    other.delete("/e")
    assert store.get("/e") is None
    store.create("/e")
    store.close()
    assert other.get("/e") is not None


# -- watches --------------------------------------------------------------------------------------------


def test_a_data_watch_is_called_once_for_the_first_change(world, store):
    other, events = world.open(), []
    store.create("/a")
    store.get("/a", watch=events.append)
    world.deliver()
    assert events == []
    other.set("/a", b"1")
    world.deliver()
    other.set("/a", b"2")
    world.deliver()
    assert events == [WatchEvent(EventType.CHANGED, "/a")]
    store.get("/a", watch=events.append)
    other.delete("/a")
    world.deliver()
    assert events[1:] == [WatchEvent(EventType.DELETED, "/a")]


def test_a_watch_of_a_node_that_is_not_there_is_called_when_it_is_created(world, store):
    events = []
    assert store.get("/controller", watch=events.append) is None
    world.open().create("/controller")
    world.deliver()
    assert events == [WatchEvent(EventType.CREATED, "/controller")]


def test_a_data_watch_is_not_called_for_children_nor_a_child_watch_for_data(world, store):
    store.create("/a")
    data, children = [], []
    store.get("/a", watch=data.append)
    store.children("/a", watch=children.append)
    store.create("/a/b")
    world.deliver()
    assert (data, children) == ([], [WatchEvent(EventType.CHILDREN_CHANGED, "/a")])
    children.clear()
    store.children("/a", watch=children.append)
    store.set("/a", b"1")
    store.set("/a/b", b"1")
    store.create("/a/b/c")
    world.deliver()
    assert (data, children) == ([WatchEvent(EventType.CHANGED, "/a")], [])
    store.multi([Delete("/a/b/c"), Delete("/a/b")])
    world.deliver()
    assert children == [WatchEvent(EventType.CHILDREN_CHANGED, "/a")]


def test_a_child_watch_is_called_when_the_node_itself_goes(world, store):
    events = []
    with pytest.raises(NoNode):
        store.children("/a", watch=events.append)
    store.create("/a")
    store.get("/a", watch=events.append)
    store.children("/a", watch=events.append)
    store.delete("/a")
    store.create("/a")
    world.deliver()
    # The same watch on both: once, as in ZooKeeper.
    assert events == [WatchEvent(EventType.DELETED, "/a")]


def test_a_watch_left_twice_is_called_once_and_different_ones_each(world, store):
    store.create("/a")
    same, other = [], []
    for _ in range(2):
        store.get("/a", watch=same.append)
    store.get("/a", watch=other.append)
    store.set("/a", b"1")
    world.deliver()
    world.deliver()
    assert len(same) == len(other) == 1


def test_a_watch_may_read_change_and_watch_again(world, store):
    store.create("/n", b"0")
    seen = []

    def watch(event):
        node = store.get("/n", watch=watch)
        seen.append(node.data)
        if node.version < 3:
            store.set("/n", str(node.version + 1).encode())

    store.get("/n", watch=watch)
    world.open().set("/n", b"1")
    world.deliver()
    assert seen == [b"1", b"2", b"3"]


def test_a_watch_that_raises_keeps_no_other_from_its_event(world, store):
    events = []

    def broken(event):
        raise ZeroDivisionError

    store.get("/a", watch=broken)
    store.get("/a", watch=events.append)
    store.create("/a")
    world.deliver()
    assert len(events) == 1


def test_no_lock_is_held_while_a_watch_runs(world, store):
    done = []

    def watch(event):
        thread = threading.Thread(target=lambda: done.append(store.get("/a")), daemon=True)
        thread.start()
        thread.join(60)

    store.get("/a", watch=watch)
    store.create("/a")
    world.deliver()
    assert len(done) == 1


# -- sessions -------------------------------------------------------------------------------------------


def test_an_expired_session_loses_its_nodes_and_watches_and_its_listeners_are_called(world, store):
    other, events, session_events, seen_by_other = world.open(), [], [], []

    def note(event):
        if event is not SessionEvent.SUSPENDED:  # a client that was away learns of the end when it comes back
            session_events.append(event)

    store.add_session_listener(note)
    store.create("/kept")
    store.create("/e", ephemeral=True)
    other.create("/mine", ephemeral=True)
    store.get("/kept", watch=events.append)
    other.get("/e", watch=seen_by_other.append)
    expired = store.session_id
    world.expire(store)
    assert other.children("/") == ["kept", "mine"]
    for call in (
        lambda: store.get("/kept"),
        lambda: store.children("/"),
        lambda: store.create("/x"),
        lambda: store.multi([Check("/kept")]),
        lambda: store.create("/x", ephemeral=True),
    ):
        with pytest.raises(SessionExpired):
            call()
    other.set("/kept", b"1")
    world.deliver()
    assert seen_by_other == [WatchEvent(EventType.DELETED, "/e")]
    assert (events, session_events) == ([], [SessionEvent.EXPIRED])
    assert other.is_session_certain and not store.is_session_certain
    assert store.new_session() != expired
    assert store.is_session_certain
    store.create("/e", ephemeral=True)
    assert other.get("/e").ephemeral_owner == store.session_id
    world.deliver()
    assert session_events == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    with pytest.raises(StoreError):
        store.new_session()


def test_a_session_that_goes_on_is_not_ended(world, store):
    other = world.open()
    store.create("/e", ephemeral=True)
    victim = world.open()
    victim.create("/v", ephemeral=True)
    world.expire(victim)
    assert other.children("/") == ["e"]
    store.close()
    store.close()
    assert other.children("/") == []


# -- against a slow model -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_agree_with_the_model(world, seed):
    """The model, tests/reference/node_tree.py, has the answer to each operation and the watches that it calls."""
    rng = random.Random(seed)
    model, stores, events = NodeTree(), [world.open() for _ in range(3)], []
    sessions = [store.session_id for store in stores]
    names = ["a", "b", "c"]
    paths = [f"/{x}" for x in names] + [f"/{x}/{y}" for x in names for y in names] + ["/a/b/c", "/a/b/s-0000000001"]

    def operation():
        path = rng.choice(paths)
        version = rng.choice([-1, -1, 0, 1])
        return rng.choice(
            [
                Create(path, rng.randbytes(2), ephemeral=rng.random() < 0.2),
                Create(path + "/s-", b"", sequential=True, ephemeral=rng.random() < 0.5),
                SetData(path, rng.randbytes(2), version),
                Delete(path, version),
                Check(path, version),
            ]
        )

    for step in range(world.steps):
        who = rng.randrange(len(stores))
        watched = rng.choice(paths)
        context = f"seed={seed} step={step}"
        if rng.random() < 0.5:
            tag = (who, step)
            stores[who].get(watched, watch=lambda event, tag=tag: events.append((tag, event)))
            model.watch_data(watched, tag)
        elif model.exists(watched):
            tag = (who, step)
            stores[who].children(watched, watch=lambda event, tag=tag: events.append((tag, event)))
            model.watch_children(watched, tag)
        operations = [operation() for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        expected = model.multi(operations, sessions[who])
        try:
            answer = stores[who].multi(operations)
        except MultiFailed as error:
            answer = (error.index, type(error.cause))
        assert answer == expected, f"{context} {operations}"
        world.deliver()
        # Of several operations in one change a store may report the outcome only.
        called = model.take_called()
        if len(operations) == 1:
            assert sorted(events, key=repr) == sorted(called, key=repr), f"{context} {operations}"
        else:
            fired = {tag for tag, _ in events}
            assert fired <= {tag for tag, _ in called}, context
            model.leave_again({tag for tag, _ in called} - fired)
        events.clear()
        for path in paths:
            node = stores[0].get(path)
            seen = None if node is None else (node.data, node.version, node.ephemeral_owner)
            assert seen == model.get(path), f"{context} {path}"
            assert stores[1].children(path) == model.children(path), f"{context} {path}"
    stores[1].close()
    model.end_session(sessions[1])
    assert [stores[0].get(path) is not None for path in paths] == [model.exists(path) for path in paths]


def test_a_memory_store_says_once_that_its_session_has_expired():
    """Also if the client is cut off and comes back before it has heard of it."""
    tree = MemoryTree()
    store, session_events = MemoryStore(tree), []
    store.add_session_listener(session_events.append)
    tree.expire(store.session_id)
    store.disconnect()
    store.reconnect()
    tree.pump()
    assert session_events.count(SessionEvent.EXPIRED) == 1
    store.new_session()
    store.disconnect()
    tree.expire(store.session_id)
    store.reconnect()
    tree.pump()
    assert session_events.count(SessionEvent.EXPIRED) == 2
