"""A broker that waits in its start for the store's file, which another program has locked: what the commands say."""

import errno
import os
import re
import socket
import sqlite3
import subprocess
import sys

import pytest

import kcore
from kcore.client import monitor
from kcore.client.blocking_sender import BlockingSender
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until
from tests.zookeeper_server import free_port


@pytest.fixture(scope="module")
def starting(tmp_path_factory):
    """(what the commands say of its store, its process, its address, its directory, the bootstrap servers of another
    broker, which serves)."""
    directory = tmp_path_factory.mktemp("starting")
    file, data_dir, port = directory / "cluster.db", directory / "1", free_port()
    settings = {"store": f"sqlite:{file}", "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Broker(directory / "0", broker_id=0, **settings) as other:
        with kcore.Broker(data_dir, broker_id=1, **settings):  # its second start is the one that waits
            created = ["topics", "create", "orders", "--assign", "0,1", "--bootstrap", other.bootstrap_servers]
            assert main(created) == 0
        lock = sqlite3.connect(file, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        command = [sys.executable, "-m", "kcore", "serve", "--id", "1", "--port", str(port)]
        command += ["--store", settings["store"], "-o", "zookeeper.connection.timeout.ms=3600000"]
        log = directory / "log"
        with open(log, "wb") as err:
            process = subprocess.Popen([*command, "--data", str(data_dir)], stderr=err)
        try:
            wait_until(lambda: "is locked by process" in log.read_text(), log.read_text)
            locked = f"its store {file} is locked by process {os.getpid()} ("
            yield locked, process, f"127.0.0.1:{port}", str(data_dir), other.bootstrap_servers
        finally:
            process.kill()
            process.wait()
            lock.close()


def test_a_command_that_has_its_address_says_what_is_locked_and_by_whom(starting, capsys):
    locked, process, address, _, other = starting
    assert main(["topics", "list", "--bootstrap", f"{address},{other}"]) == 0
    expected = f"kcore: {address} does not answer: no answer within 1.5 s: its process {process.pid} runs, but {locked}"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize("words", ["groups list", "groups describe g", "cluster"])
def test_where_nobody_listens_the_process_is_named_that_waits_in_its_start(starting, words, monkeypatch, capsys):
    locked, process, address, _, _ = starting
    # A start may wait before it listens.
    monkeypatch.setattr(BlockingSender, "_connect", refused)
    assert main([*words.split(), "--bootstrap", address]) == 2
    expected = (
        rf"kcore: {address}: Connection refused \(process {process.pid} \(\S+\), whose command line has the port "
    )
    assert re.match(expected, err := capsys.readouterr().err), err
    assert f"may still be starting; {locked}" in err
    other = f"127.0.0.1:{free_port()}"
    assert main([*words.split(), "--bootstrap", other]) == 2
    assert capsys.readouterr().err == f"kcore: {other}: Connection refused\n"


def refused(sender, deadline_ms):
    raise ConnectionRefusedError(errno.ECONNREFUSED, f"{sender.host}:{sender.port}: Connection refused")


@pytest.mark.parametrize("words", ["cluster", "topics list", "topics describe", "groups list", "groups describe g"])
def test_what_changes_nothing_does_not_wait_for_a_broker_that_waits_for_its_store(starting, words, capsys):
    locked, process, address, _, _ = starting
    # Longer than the deadline of a test.
    assert main([*words.split(), "--bootstrap", address, "--timeout", "600"]) == 2
    err = capsys.readouterr().err
    expected = f"kcore: {address}: no answer within 1.5 s: its process {process.pid} runs, but {locked}"
    assert err.startswith(expected) and len(err.splitlines()) == 1


def test_the_cluster_says_it_of_the_broker_that_is_not_alive_yet(starting, capsys):
    locked, process, _, _, other = starting
    assert main(["cluster", "--bootstrap", other]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  broker 1 not alive: ")]
    assert f"its process {process.pid} runs: it is starting, or" in line and locked in line


def test_questions_about_itself_are_answered_with_what_is_locked(starting, capsys):
    locked, process, address, data_dir, other = starting
    by_id = ["--bootstrap", other, "--broker", "1"]
    for words in (
        ["metrics", "--data", data_dir],
        ["metrics", "--bootstrap", address],
        ["metrics", *by_id],
        ["explain", "isr", "orders", "--data", data_dir],
        ["explain", "fetch", "orders", *by_id],
    ):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"may still be starting; {locked}" in err and f"process {process.pid}" in err


def test_the_socket_that_a_killed_broker_left_is_no_reason_to_say_that_nobody_serves_the_directory(starting, capsys):
    locked, process, address, data_dir, _ = starting
    left = socket.socket(socket.AF_UNIX)
    with monitor.socket_address(data_dir) as path:
        left.bind(path)
    left.close()
    try:
        for which in (["--data", data_dir], ["--bootstrap", address]):
            assert main(["metrics", *which]) == 2
            err = capsys.readouterr().err
            assert f"(process {process.pid}) may still be starting; {locked}" in err
    finally:
        os.unlink(os.path.join(data_dir, monitor.FILE_NAME))
