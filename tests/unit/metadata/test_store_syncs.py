"""Which calls of the embedded store wait for the disk: its calls of fdatasync(), counted."""

import ctypes
import os
import subprocess
import sys
import sysconfig

import pytest

from kcore.common.time import MockTime
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from tests.pages import ROOT

TIMEOUT_MS = 3000
#: SQLite moves the write-ahead log into the file when it has so many pages; a heartbeat writes one.
PAGES_OF_LOG = 1000
COUNTER = """
#include <sys/syscall.h>
#include <unistd.h>
int synced;
int fdatasync(int fd) { synced++; return (int)syscall(SYS_fdatasync, fd); }
"""


def synced_by(call):
    synced = ctypes.c_int.in_dll(ctypes.CDLL(None), "synced")
    before = synced.value
    call()
    return synced.value - before


def beats(clock, store, count):
    for _ in range(count):
        clock.sleep(TIMEOUT_MS / 3)
        store.poll()


def opened(directory, clock):
    path = os.path.join(directory, FILE_NAME)
    return EmbeddedStore(path, poll_interval_ms=None, time=clock, session_timeout_ms=TIMEOUT_MS)


def heartbeats(directory):
    clock = MockTime()
    store = opened(directory, clock)
    assert synced_by(lambda: store.create("/a", ephemeral=True)) == 2  # the session, and the node
    assert synced_by(lambda: beats(clock, store, 100)) == 0
    # Each time the log, the file, and the log's new beginning.
    assert 3 <= synced_by(lambda: beats(clock, store, PAGES_OF_LOG)) <= 6
    assert synced_by(lambda: store.create("/b")) == 1


def end_of_a_session(directory):
    clock = MockTime()
    dead, observer = opened(directory, clock), opened(directory, clock)
    dead.create("/dead", ephemeral=True)
    observer.create("/a")  # a connection's first one syncs the directory too
    observer.poll()
    assert synced_by(lambda: beats(clock, observer, 4)) == 0
    assert observer.get("/dead") is None
    assert synced_by(lambda: observer.create("/b")) == 1


@pytest.mark.parametrize("scenario", [heartbeats, end_of_a_session])
def test_heartbeats_and_the_end_of_a_session_wait_for_no_disk_and_leave_what_was_committed_on_it(tmp_path, scenario):
    source, library = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER)
    compiler = sysconfig.get_config_var("CC").split()
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code = f"from {__name__} import {scenario.__name__} as scenario; scenario({str(tmp_path)!r})"
    env = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
