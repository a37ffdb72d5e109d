"""What happens to the file of the embedded store: other programs lock it, delete it, replace it, or it is another's."""

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kcore.common.time import SYSTEM_TIME, MockTime
from kcore.metadata import embedded_store, store_schema
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.open_store import open_store
from kcore.metadata.store import (
    ConnectionLost,
    ForeignFile,
    NewerSchema,
    SessionEvent,
    SessionExpired,
    StoreClosed,
    StoreError,
    StoreFileGone,
    StoreLocked,
)
from kcore.metadata.store_schema import check_is_store, write_empty_store
from tests.locked_store import locked_by_a_process
from tests.unit.log.test_index_on_a_full_disk import on_a_small_disk
from tests.unit.metadata.zookeeper_sessions import wait_for_store

TIMEOUT_MS = 3000


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / FILE_NAME)


@pytest.fixture
def opened(path):
    """opened(clock): a store that polls when the test says so, and gives up at once when the file is locked."""
    with contextlib.ExitStack() as stack:
        yield lambda clock: stack.enter_context(
            contextlib.closing(
                EmbeddedStore(
                    path,
                    durable=False,
                    busy_timeout_ms=5,
                    session_timeout_ms=TIMEOUT_MS,
                    poll_interval_ms=None,
                    time=clock,
                )
            )
        )


@contextlib.contextmanager
def locked(path):
    """As a backup that takes long does."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def pass_time(clock, ms, *stores):
    """The last store polls first after each half second."""
    for _ in range(ms // 500):
        clock.sleep(500)
        for store in reversed(stores):
            store.poll()


@pytest.mark.parametrize("observer_has_session", [True, False])
@pytest.mark.parametrize("lock_ms", [2000, 15_000])
def test_a_session_is_not_ended_for_the_time_in_which_another_program_had_locked_the_file(
    path, opened, observer_has_session, lock_ms
):
    clock = MockTime()
    alive, dead, observer = (opened(clock) for _ in range(3))
    alive.create("/alive", ephemeral=True)
    dead.create("/dead", ephemeral=True)
    if observer_has_session:
        _ = observer.session_id
    # Just before its next heartbeat.
    pass_time(clock, 500, alive, observer)
    dead.abandon()
    with locked(path):
        pass_time(clock, lock_ms, alive, observer)
        with pytest.raises(ConnectionLost, match=FILE_NAME):
            observer.create("/x")
        assert observer.get("/alive") is not None  # a write-ahead log can be read all the time
    # The observer is the first to run again, and for a while the only one.
    pass_time(clock, TIMEOUT_MS - 500, observer)
    pass_time(clock, 2 * TIMEOUT_MS, alive, observer)
    assert alive.get("/alive") is not None
    assert alive.get("/dead") is None


def test_no_session_is_ended_for_the_time_in_which_the_observer_itself_had_locked_the_file(opened, monkeypatch):
    """As a controller on a slow disk does, with one commit after the other: the next one begins before the other
    broker tries again."""
    clock = MockTime()
    monkeypatch.setattr(embedded_store, "SYSTEM_TIME", clock)
    alive, dead, observer = (opened(clock) for _ in range(3))
    alive.create("/alive", ephemeral=True)
    dead.create("/dead", ephemeral=True)
    observer.poll()
    apply = observer._apply

    def apply_slowly(operations):
        results = apply(operations)
        pass_time(clock, TIMEOUT_MS // 2, alive)
        return results

    monkeypatch.setattr(observer, "_apply", apply_slowly)
    for number in range(5):
        observer.create(f"/{number}")
        observer.poll()
        assert observer.get("/alive") is not None
    monkeypatch.undo()
    pass_time(clock, TIMEOUT_MS + 500, alive, observer)
    assert observer.get("/alive") is not None
    assert observer.get("/dead") is None


def test_a_silent_session_ends_also_beside_an_observer_whose_commits_take_long(opened, monkeypatch):
    clock = MockTime()
    monkeypatch.setattr(embedded_store, "SYSTEM_TIME", clock)
    dead, observer = opened(clock), opened(clock)
    dead.create("/dead", ephemeral=True)
    observer.create("/observer", ephemeral=True)
    observer.poll()
    apply = observer._apply

    def apply_slowly(operations):
        clock.sleep(TIMEOUT_MS // 6)
        return apply(operations)

    monkeypatch.setattr(observer, "_apply", apply_slowly)
    silent_ms = 0
    while silent_ms < TIMEOUT_MS:
        assert observer.get("/dead") is not None
        observer.create("/n", sequential=True)
        observer.poll()  # it does not count the time of the commit
        pass_time(clock, TIMEOUT_MS // 3, observer)
        silent_ms += TIMEOUT_MS // 3
    observer.poll()
    assert observer.get("/dead") is None and observer.get("/observer") is not None


def test_a_poll_that_finds_the_file_locked_calls_the_watches_and_the_next_poll_is_soon(path, opened):
    clock = MockTime()
    store, other = opened(clock), opened(clock)
    store.create("/a", ephemeral=True)
    events = []
    store.get("/b", events.append)
    other.create("/b")
    clock.sleep(TIMEOUT_MS)
    with locked(path):
        store.poll()
        assert [event.path for event in events] == ["/b"]
        store._poll_interval_ms = 100  # as with a thread
        assert store._poll_delay_ms() == embedded_store.QUIET_POLL_MS < TIMEOUT_MS / 3


def test_an_observer_that_stood_still_ends_no_session_with_its_first_poll(opened):
    clock = MockTime()
    alive, observer = opened(clock), opened(clock)
    alive.create("/alive", ephemeral=True)
    pass_time(clock, 500, alive, observer)
    clock.sleep(10 * TIMEOUT_MS)  # the machine was suspended, and the observer wakes up first
    observer.poll()
    alive.poll()
    observer.poll()
    assert alive.get("/alive") is not None


def test_polls_that_failed_count_as_no_silence_of_other_sessions(path, opened):
    """Whether these have beaten meanwhile, the observer could not see."""
    clock = MockTime()
    alive, observer = opened(clock), opened(clock)
    alive.create("/alive", ephemeral=True)
    observer.poll()
    for _ in range(3):
        clock.sleep(TIMEOUT_MS / 2)
        os.rename(path, path + ".aside")
        with pytest.raises(StoreFileGone):
            observer.poll()
        os.rename(path + ".aside", path)
        clock.sleep(TIMEOUT_MS / 2)
        observer.poll()
    assert observer.get("/alive") is not None


def test_a_session_that_was_ended_costs_later_polls_nothing(opened):
    clock = MockTime()
    dead, observer = opened(clock), opened(clock)
    dead.create("/dead", ephemeral=True)
    pass_time(clock, 4 * TIMEOUT_MS, observer)
    assert observer.get("/dead") is None
    statements = []
    observer._db.set_trace_callback(statements.append)
    observer.poll()
    assert statements == ["PRAGMA data_version"]


def test_a_session_that_beats_just_before_it_would_be_ended_lives_on(path, opened):
    """The observer has read the sessions, and gets the lock only after the heartbeat."""
    clock, beats = MockTime(), []
    late, observer = opened(clock), opened(clock)
    late.create("/late", ephemeral=True)
    observer.poll()
    transaction = observer._transaction

    @contextlib.contextmanager
    def after_a_heartbeat():
        late.poll()
        beats.append(clock.hi_res_clock_ms())
        with transaction():
            yield

    observer._transaction = after_a_heartbeat
    for _ in range(8):
        clock.sleep(TIMEOUT_MS / 6)
        observer.poll()
    assert len(beats) == 1 and observer.get("/late") is not None
    assert os.path.exists(f"{path}-session-{late.session_id}")  # by which its end would be noticed
    observer._transaction = transaction
    for _ in range(8):
        clock.sleep(TIMEOUT_MS / 6)
        observer.poll()
    assert observer.get("/late") is None


def test_a_file_that_is_deleted_or_replaced_is_named_and_the_store_is_away_until_it_is_back(path, opened, tmp_path):
    clock, events = MockTime(), []
    store = opened(clock)
    store.add_session_listener(events.append)
    store.create("/a", b"1", ephemeral=True)
    aside = str(tmp_path / "aside.db")
    os.rename(path, aside)
    for call in (lambda: store.get("/a"), lambda: store.children("/"), lambda: store.set("/a", b"2"), store.poll):
        with pytest.raises(StoreFileGone, match=rf"{FILE_NAME}.*not there any more"):
            call()
    assert issubclass(StoreFileGone, ConnectionLost) and events == [SessionEvent.SUSPENDED]
    shutil.copyfile(aside, path)
    with pytest.raises(StoreFileGone, match="another file"):
        store.set("/a", b"2")
    os.rename(aside, path)
    assert store.get("/a").data == b"1"
    clock.sleep(10 * TIMEOUT_MS)
    store.poll()
    assert events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


def test_a_store_that_is_closed_while_it_is_locked_leaves_its_session_to_the_others(path, opened, caplog):
    clock = MockTime()
    store, other = opened(clock), opened(clock)
    store.create("/e", ephemeral=True)
    _ = other.session_id
    with locked(path):
        store.close()
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]
    assert other.get("/e") is not None
    pass_time(clock, 2 * TIMEOUT_MS, other)
    assert other.get("/e") is None


#: Beyond the deadline of a test, and not so long that a failed one does not end.
LONG_MS = 180_000


def ends_within_a_minute(call):
    """What it raises, or None."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).exception(60)


def test_once_a_ping_has_failed_no_call_waits_until_the_file_can_be_written_again(path):
    with contextlib.closing(EmbeddedStore(path, durable=False, busy_timeout_ms=LONG_MS)) as store:
        store.create("/e", ephemeral=True)
        store.ping(1)
        with locked(path):
            for call in (
                lambda: store.ping(1),
                lambda: store.ping(LONG_MS),
                lambda: store.create("/a"),
                store.new_session,
            ):
                assert isinstance(ends_within_a_minute(call), StoreError)
            assert isinstance(ends_within_a_minute(lambda: store.delete("/e")), ConnectionLost)
            assert store.get("/e") is not None and store.get("/a") is None
        store.create("/a")
        assert not store._is_away and store_schema.pragma(store._db, "busy_timeout") == LONG_MS == store._wait_ms
        store.ping(1)
    with pytest.raises(StoreClosed):
        store.ping(1)


def test_a_ping_waits_no_longer_for_a_file_that_has_been_locked_as_long_as_that(path, opened):
    store = opened(MockTime())
    store.ping(1)
    with locked(path):
        assert store.lock() is not None
        store._locked_since_ms -= LONG_MS  # as if that had been long ago
        assert isinstance(ends_within_a_minute(lambda: store.ping(LONG_MS)), StoreLocked)
    store.ping(1)


@pytest.mark.parametrize("notice", ["a call that asks", "a poll", "a call that waits"])
def test_a_store_says_which_program_has_it_locked_and_since_when(path, opened, monkeypatch, notice):
    monkeypatch.setattr(embedded_store, "_POLL_BUSY_TIMEOUT_MS", 1)
    clock = MockTime()
    store = opened(clock)
    store.create("/e", ephemeral=True)
    before_ms = SYSTEM_TIME.milliseconds()
    assert store.lock() is None
    executor = ThreadPoolExecutor(1)
    with locked_by_a_process(path) as pid:
        if notice == "a poll":
            clock.sleep(TIMEOUT_MS)
            store.poll()
        if notice == "a call that waits":
            store._busy_timeout_ms = LONG_MS
            store._set_wait(LONG_MS)
            waits = executor.submit(store.create, "/a")
            wait_for_store(lambda: store._locked_since_ms is not None)
        lock = store.lock()
        assert lock.file == path and lock.holder.startswith(f"process {pid} (")
        assert before_ms <= lock.since_ms <= SYSTEM_TIME.milliseconds()
        since_ms = store._locked_since_ms
        assert store.lock() is not None and store._locked_since_ms == since_ms
    if notice == "a call that waits":
        assert waits.result(60) == "/a"
    elif notice == "a poll":
        clock.sleep(TIMEOUT_MS)
        store.poll()
        assert store._locked_since_ms is None
    assert store.lock() is None
    store.close()
    with pytest.raises(StoreClosed):
        store.lock()


def test_a_ping_ends_the_wait_of_the_call_that_has_the_store(path):
    with contextlib.closing(EmbeddedStore(path, durable=False, busy_timeout_ms=LONG_MS)) as store:
        with locked(path), ThreadPoolExecutor(1) as executor:
            waits = executor.submit(store.create, "/a")
            # Its connection belongs to the call that waits: a query from here would disturb it.
            wait_for_store(lambda: store._locked_since_ms is not None)
            # Between two slices of the call's wait the ping may come to try the file itself.
            with pytest.raises(ConnectionLost, match=r"another call waits|database is locked"):
                store.ping(1)
            assert isinstance(waits.exception(60), ConnectionLost)
        store.create("/a")
        assert store_schema.pragma(store._db, "busy_timeout") == LONG_MS


def test_a_call_waits_for_another_program_as_long_as_its_setting_says(path, monkeypatch):
    """In slices, of which each one alone ends before the file is free."""
    monkeypatch.setattr(embedded_store, "_WAIT_SLICE_MS", 1)
    with contextlib.closing(EmbeddedStore(path, durable=False, busy_timeout_ms=LONG_MS)) as store:
        attempts, execute = [], store._db.execute

        class Counting:
            def __getattr__(self, name):
                return getattr(db, name)

            def execute(self, statement, *arguments):
                attempts.append(statement) if statement == "BEGIN IMMEDIATE" else None
                return execute(statement, *arguments)

        db, store._db = store._db, Counting()
        with ThreadPoolExecutor(1) as executor:
            with locked(path):
                created = executor.submit(store.create, "/a")
                wait_for_store(lambda: len(attempts) > 3)
            assert created.result(60) == "/a"


@pytest.mark.parametrize("busy_timeout_ms", [1, 260, 600])
def test_a_call_gives_up_after_its_time(path, busy_timeout_ms):
    with contextlib.closing(EmbeddedStore(path, durable=False, busy_timeout_ms=busy_timeout_ms)) as store, locked(path):
        begin = time.monotonic()
        with pytest.raises(ConnectionLost, match="locked"):
            store.create("/a")
        assert time.monotonic() - begin >= 0.9 * busy_timeout_ms / 1000
        assert store_schema.pragma(store._db, "busy_timeout") == busy_timeout_ms


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_store_that_is_locked_when_it_is_opened_is_waited_for_and_the_error_names_who_has_it(path, begin, is_new):
    """A new file was not waited for at all: a change of the journal's mode asks once.  No message said for whom."""
    if not is_new:
        EmbeddedStore(path).close()
    with locked_by_a_process(path, begin) as pid:
        started = time.monotonic()
        expected = pytest.raises(ConnectionLost, match=rf"{FILE_NAME}: .* locked by process {pid} \(.+\) \(waited \d")
        with expected, contextlib.closing(EmbeddedStore(path, busy_timeout_ms=600)) as store:
            store.create("/a")  # a store that is there can be read while it is locked
        assert time.monotonic() - started >= 0.5
    with contextlib.closing(EmbeddedStore(path)) as store:
        store.create("/a")


def test_a_store_that_is_locked_when_it_is_opened_is_opened_once_it_is_free(path, monkeypatch, caplog):
    monkeypatch.setattr(embedded_store, "_LOGGED_WAIT_MS", 0)
    with ThreadPoolExecutor(1) as executor:
        with locked_by_a_process(path, "BEGIN IMMEDIATE") as pid:
            opened = executor.submit(EmbeddedStore, path, busy_timeout_ms=LONG_MS)
            wait_for_store(lambda: caplog.records)
        store = opened.result(60)
    with contextlib.closing(store):
        store.create("/a")
        assert store_schema.pragma(store._db, "busy_timeout") == LONG_MS == store._wait_ms
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{path} is locked by process {pid} (") and message.endswith(" 180 s in all")


def test_a_call_that_waits_long_for_another_program_says_so_once(path, monkeypatch, caplog):
    monkeypatch.setattr(embedded_store, "_WAIT_SLICE_MS", 1)
    monkeypatch.setattr(embedded_store, "_LOGGED_WAIT_MS", 2)
    expected = pytest.raises(ConnectionLost, match=rf"locked by process {os.getpid()} .*waited 0\.1 s")
    with contextlib.closing(EmbeddedStore(path, durable=False, busy_timeout_ms=100)) as store, locked(path), expected:
        store.create("/a")
    assert len([record for record in caplog.records if "waiting for it" in record.getMessage()]) == 1


@pytest.mark.parametrize("is_new", [True, False])
def test_a_start_waits_for_a_locked_file_as_long_as_for_a_connection(path, is_new):
    """A broker gave up after 10 s, whatever zookeeper.connection.timeout.ms said."""
    if not is_new:
        EmbeddedStore(path, durable=False).close()
    with locked_by_a_process(path) as pid:
        expected = pytest.raises(ConnectionLost, match=rf"{FILE_NAME}: .* locked by process {pid} \(.+\) \(waited ")
        timeouts_ms = {"busy_timeout_ms": 1, "connection_timeout_ms": 600}
        with expected as raised, contextlib.closing(EmbeddedStore(path, durable=False, **timeouts_ms)) as store:
            store.create("/a")
    assert float(re.search(r"\(waited ([\d.]+) s\)", str(raised.value))[1]) >= 0.6


def test_after_the_start_a_call_waits_no_longer_than_clients_can(path):
    timeouts_ms = {"busy_timeout_ms": 1, "connection_timeout_ms": LONG_MS}
    with contextlib.closing(EmbeddedStore(path, durable=False, **timeouts_ms)) as store:
        store.end_start()
        with locked(path), pytest.raises(ConnectionLost, match="locked"):
            store.create("/a")
        assert store_schema.pragma(store._db, "busy_timeout") == 1 == store._wait_ms


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR | 12 << 8])
def test_an_error_of_the_disk_says_how_much_is_free(path, opened, code):
    """With SQLite's "disk I/O error" alone, which comes from a full disk too, nobody knew where to look."""
    store = opened(MockTime())
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    assert re.fullmatch(rf"{path}: disk I/O error \([\d.]+ (bytes|[kMG]B) free\)", str(store._store_error(error)))


def test_a_new_session_waits_for_a_file_that_is_locked(path, opened):
    clock, events = MockTime(), []
    store, other = opened(clock), opened(clock)
    store.add_session_listener(events.append)
    store.create("/e", ephemeral=True)
    other.poll()
    pass_time(clock, 2 * TIMEOUT_MS, other)  # the process stands still
    store.poll()
    with locked(path):
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="locked"):
                store.new_session()
        with pytest.raises(SessionExpired):
            store.get("/")
    assert events == [SessionEvent.EXPIRED]
    session_id = store.new_session()
    store.create("/e", ephemeral=True)
    assert other.get("/e").ephemeral_owner == session_id == store.session_id
    store.poll()
    assert events == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    with pytest.raises(StoreError, match="has not expired"):
        store.new_session()


def test_the_poller_says_once_that_the_store_is_away(opened, path, caplog):
    """A line per poll would be ten a second."""
    store = opened(MockTime())
    poller = embedded_store._Poller(store)
    os.rename(path, path + ".aside")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            poller.wake_up()
            store._watches.watch_data("/a", None, print)
            store._poll_interval_ms = 1
            poller.do_work()
        os.rename(path + ".aside", path)
        poller.do_work()
    store._poll_interval_ms = None
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert all(record.exc_info is None and FILE_NAME in record.getMessage() for record in caplog.records)


def _foreign(path, statements):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(statements)


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE bookmarks (url TEXT)",
        "CREATE TABLE node (id INTEGER); CREATE TABLE edge (a, b); PRAGMA user_version=1",
        "CREATE TABLE bookmarks (url TEXT); PRAGMA user_version=2",
        "PRAGMA application_id=7",
        "PRAGMA user_version=77",
        "CREATE TABLE node (x); CREATE TABLE session (x); CREATE TABLE counter (x); "
        "PRAGMA user_version=2; PRAGMA application_id=7",
    ],
)
def test_another_programs_database_is_refused_and_left_as_it_is(path, tmp_path, statements):
    _foreign(path, statements)
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(ForeignFile, match=rf"{FILE_NAME}: not a metadata store"):
        open_store(f"sqlite:{path}")
    with open(path, "rb") as file:
        assert file.read() == before
    assert os.listdir(tmp_path) == [FILE_NAME]


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_store_of_a_later_version_is_refused_with_both_versions(path, is_marked):
    EmbeddedStore(path).close()
    _foreign(path, f"PRAGMA user_version=3; PRAGMA application_id={store_schema.APPLICATION_ID if is_marked else 0}")
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(NewerSchema, match=rf"{FILE_NAME}: .*schema version 3.* up to 2"):
        EmbeddedStore(path)
    with open(path, "rb") as file:
        assert file.read() == before


def test_a_store_without_the_mark_is_opened_and_gets_it(path):
    with contextlib.closing(EmbeddedStore(path)) as store:
        store.create("/a")
    _foreign(path, "PRAGMA application_id=0; ANALYZE")
    for _ in range(2):
        with contextlib.closing(EmbeddedStore(path)) as store:
            assert store.get("/a") is not None
            assert store_schema.pragma(store._db, "application_id") == store_schema.APPLICATION_ID


def test_a_marked_file_with_other_tables_is_refused():
    with pytest.raises(ForeignFile):
        check_is_store("f.db", store_schema.APPLICATION_ID, 2, {"node"})
    check_is_store("f.db", 0, 0, set())


def test_kcore_serve_names_the_database_of_another_program_in_one_line(path, tmp_path):
    _foreign(path, "CREATE TABLE bookmarks (url TEXT)")
    arguments = ["--data", str(tmp_path / "data"), "--port", "0", "--id", "0", "--store", f"sqlite:{path}"]
    serve = subprocess.run(
        [sys.executable, "-m", "kcore.tools.main", "serve", *arguments], capture_output=True, text=True, timeout=120
    )
    assert serve.returncode == 2
    assert serve.stderr.count("\n") == 1 and f"{path}: not a metadata store" in serve.stderr


def test_a_file_that_cannot_be_opened_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="no-such-directory"):
        EmbeddedStore(str(tmp_path / "no-such-directory" / FILE_NAME))


def contents(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        marks = [db.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "application_id", "user_version")]
        tables = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows = [db.execute(f"SELECT * FROM {name}").fetchall() for name in ("node", "session", "counter")]
        return marks, tables, rows, db.execute("PRAGMA integrity_check").fetchall()


def test_an_empty_store_that_is_written_at_once_is_the_one_that_sqlite_makes(tmp_path):
    made, written = str(tmp_path / "made.db"), str(tmp_path / "written.db")
    EmbeddedStore(made, durable=False).close()
    write_empty_store(written)
    assert contents(written) == contents(made)
    with contextlib.closing(EmbeddedStore(written, durable=False)) as store:
        store.create_recursive("/brokers/topics/orders", b"{}")
    with contextlib.closing(EmbeddedStore(written)) as store:
        assert store.get("/brokers/topics/orders").data == b"{}"
    assert sorted(os.listdir(tmp_path)) == ["made.db", "written.db"]
    with pytest.raises(FileExistsError):
        write_empty_store(made)


def test_where_sqlite_cannot_serialize_no_empty_store_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(store_schema.sqlite3, "Connection", object)
    write_empty_store(str(tmp_path / FILE_NAME))
    assert os.listdir(tmp_path) == []


STORE_ON_A_FULL_DISK = """
    import os, sys
    from kcore.metadata.embedded_store import EmbeddedStore
    from kcore.metadata.store import StoreError
    from kcore.metadata.store_schema import write_empty_store

    path = sys.argv[1] + "/store.db"
    with open(sys.argv[1] + "/ballast", "wb", 0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
        ballast.truncate(ballast.tell() - int(sys.argv[2]) * 4096)
    write_empty_store(path)
    print(os.path.exists(path))
    try:
        EmbeddedStore(path, durable=False)
    except StoreError as error:
        print(str(error).startswith(path))
"""


@pytest.mark.parametrize("free_pages", ["0", "1", "3"])
def test_on_a_full_disk_no_half_of_an_empty_store_is_written_and_sqlite_says_what_is_wrong(tmp_path, free_pages):
    assert on_a_small_disk(tmp_path, STORE_ON_A_FULL_DISK, free_pages) == "False\nTrue\n"
