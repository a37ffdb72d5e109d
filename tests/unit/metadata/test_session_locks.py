"""A session of the embedded store ends with its process, and no earlier."""

import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from kcore.common.time import MockTime
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.store import ConnectionLost
from tests.paused_process import pause

TIMEOUT_MS = 3000

#: A process with a session, which ends when it is killed.
_OWNER = """
import sys
from kcore.metadata.embedded_store import EmbeddedStore
store = EmbeddedStore(sys.argv[1], durable=False, session_timeout_ms=3000)
store.create("/e", ephemeral=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / FILE_NAME)


@pytest.fixture
def opened(path):
    """opened(): a store that polls when the test says so; its clock stands still."""
    clock = MockTime()
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
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


@pytest.fixture
def owner(path):
    """Another process, whose session has made /e."""
    process = subprocess.Popen([sys.executable, "-c", _OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def _lock_files(path):
    folder, name = os.path.split(path)
    return [file for file in os.listdir(folder) if file.startswith(f"{name}-session-")]


def test_the_session_of_a_killed_process_ends_at_the_next_poll_of_another(path, opened, owner):
    observer = opened()
    observer.poll()
    assert observer.get("/e") is not None
    assert len(_lock_files(path)) == 1
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    observer.poll()
    assert observer.get("/e") is None
    assert _lock_files(path) == []


def test_the_session_of_a_process_that_was_killed_while_nobody_looked_ends_at_the_first_poll(path, opened, owner):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    observer = opened()
    observer.poll()
    assert observer.get("/e") is None


def test_the_session_of_a_process_that_stands_still_lasts_for_its_timeout(opened, owner):
    observer = opened()
    pause(owner)
    for _ in range(3):
        observer.poll()
    assert observer.get("/e") is not None


def test_an_abandoned_session_ends_at_the_next_poll_and_a_closed_one_at_once(path, opened):
    abandoned, closed, observer = opened(), opened(), opened()
    abandoned.create("/abandoned", ephemeral=True)
    closed.create("/closed", ephemeral=True)
    observer.poll()
    closed.close()
    assert observer.get("/closed") is None
    abandoned.abandon()
    assert observer.get("/abandoned") is not None
    observer.poll()
    assert observer.get("/abandoned") is None
    assert _lock_files(path) == []


def test_an_abandoned_session_that_could_not_be_ended_for_a_locked_file_ends_at_the_next_poll(path, opened):
    """Not at the observer's next heartbeat, which is a third of its timeout later: 6 s of 18 s."""
    abandoned, observer = opened(), opened()
    abandoned.create("/e", ephemeral=True)
    _ = observer.session_id
    observer.poll()
    abandoned.abandon()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")  # another broker, whose process waits for a processor in its transaction
        observer.poll()
        db.execute("ROLLBACK")
    assert observer.get("/e") is not None
    observer.poll()
    assert observer.get("/e") is None


def test_sessions_of_living_stores_in_one_process_last(opened):
    stores = [opened() for _ in range(3)]
    for number, store in enumerate(stores):
        store.create(f"/{number}", ephemeral=True)
    for store in stores * 2:
        store.poll()
    assert stores[0].children("/") == ["0", "1", "2"]


@pytest.mark.parametrize("step_ms", [86_400_000, -86_400_000])
def test_a_wall_clock_that_steps_by_a_day_ends_no_session(path, step_ms):
    clock = MockTime()
    with contextlib.ExitStack() as stack:
        owner, observer = (
            stack.enter_context(
                contextlib.closing(
                    EmbeddedStore(path, durable=False, session_timeout_ms=TIMEOUT_MS, poll_interval_ms=None, time=clock)
                )
            )
            for _ in range(2)
        )
        owner.create("/e", ephemeral=True)
        observer.poll()
        for _ in range(3):
            clock._now_ms += step_ms
            observer.poll()
        assert observer.get("/e") is not None
        assert owner.is_session_certain
        for _ in range(3):
            clock.sleep(TIMEOUT_MS)
            observer.poll()
        assert observer.get("/e") is None


def test_a_forked_child_does_not_keep_the_session_of_its_killed_parent(path, opened):
    """As the workers of a multiprocessing pool, which may live on."""
    # The child says that it is ready: only it knows when it has let the lock go.
    forking = _OWNER.replace('print("ready"', 'import os\nif os.fork():\n    sys.exit(sys.stdin.read())\nprint("ready"')
    parent = subprocess.Popen([sys.executable, "-c", forking, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent.stdin, parent.stdout:
        assert parent.stdout.readline() == b"ready\n"
        observer = opened()
        observer.poll()
        assert observer.get("/e") is not None
        parent.kill()
        parent.wait()
        observer.poll()
        assert observer.get("/e") is None


def test_a_session_whose_lock_file_was_deleted_lasts_for_its_timeout(path, opened):
    alive, observer = opened(), opened()
    alive.create("/e", ephemeral=True)
    for name in _lock_files(path):
        os.unlink(os.path.join(os.path.dirname(path), name))
    observer.poll()
    assert observer.get("/e") is not None


def test_a_session_for_which_no_lock_file_can_be_made_lasts_for_its_timeout(path, opened, caplog):
    os.mkdir(f"{path}-session-1")
    store, observer = opened(), opened()
    with caplog.at_level(logging.WARNING):
        store.create("/e", ephemeral=True)
    assert "session-1: no lock file: a kill is noticed at the session's timeout" in caplog.text
    observer.poll()
    assert observer.get("/e") is not None


def test_a_session_that_could_not_be_written_leaves_no_lock_file(path, opened, monkeypatch):
    store = opened()
    monkeypatch.setattr(store, "_begin", lambda: (_ for _ in ()).throw(ConnectionLost("locked")))
    with pytest.raises(ConnectionLost):
        _ = store.session_id
    assert _lock_files(path) == []


def _count_open_files(directory):
    """Of this directory: what the process has open besides is closed at any time."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(directory)
    return count


def test_no_file_stays_open_after_sessions_have_come_and_gone(path, opened):
    observer = opened()
    open_files = []
    for number in range(20):
        other = opened()
        other.create(f"/{number}", ephemeral=True)
        observer.poll()
        other.close() if number % 2 else other.abandon()
        observer.poll()
        open_files.append(_count_open_files(os.path.dirname(path)))
    assert open_files[-1] == open_files[1]  # SQLite opens its own files with the first changes
    assert _lock_files(path) == []
