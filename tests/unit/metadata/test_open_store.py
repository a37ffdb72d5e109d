import os
import subprocess
import sys

import pytest

from kcore.common.time import MockTime
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.open_store import open_store, zookeeper_hosts
from kcore.metadata.store import InvalidPath, StoreError, check_path


def test_a_sqlite_file_is_a_store(tmp_path):
    path = tmp_path / "cluster.db"
    with_node = open_store(f"sqlite:{path}", durable=False)
    with_node.create("/a", b"x")
    with_node.close()
    again = open_store(f"sqlite:{path}")
    assert again.get("/a").data == b"x"
    again.close()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "sqlite:",
        "sqlite",
        "/a/file.db",
        "etcd:x",
        "zookeeper:",
        "zookeeper://",
        "zookeeper:///chroot",
        "zookeeper:host:2181",
        "zookeeper://host:port",
        "zookeeper://host:2181,",
        "zookeeper://host:2181//a",
        "zookeeper://[::1:2181",
    ],
)
def test_another_address_is_refused_with_the_form_that_is_expected(address):
    with pytest.raises(InvalidConfig, match="sqlite:FILE"):
        open_store(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("zookeeper:host:2181", "// is missing"),
        ("zookeeper://", "a host is missing"),
        ("zookeeper://a:2181,", "a host is missing"),
        ("zookeeper://:2181", "':2181' has no host"),
        ("zookeeper://a b:2181", "'a b' is not the name of a host"),
        ("zookeeper://a:2181, b:2181", "' b' is not the name of a host"),
        ("zookeeper://a..b:2181", "'a..b' is not the name of a host"),
        ("zookeeper://user@a:2181", "'user@a' is not the name of a host"),
        ("zookeeper://a?:2181", "is not the name of a host"),
        ("zookeeper://" + "a" * 64 + ":2181", "is not the name of a host"),
        ("zookeeper://a:", "'a:' has no port"),
        ("zookeeper://a:port", "'a:port' has no port"),
        ("zookeeper://a:0", "'a:0' has no port"),
        ("zookeeper://a:65536", "'a:65536' has no port"),
        ("zookeeper://a:-1", "'a:-1' has no port"),
        ("zookeeper://a:\u0663", "has no port"),
        ("zookeeper://::1:2181", "an IPv6 address needs brackets"),
        ("zookeeper://[::1:2181", "an IPv6 address needs brackets"),
        ("zookeeper://[]:2181", "'' is not an IPv6 address"),
        ("zookeeper://[1:2]:2181", "'1:2' is not an IPv6 address"),
        ("zookeeper://[127.0.0.1]:2181", "is not an IPv6 address"),
        ("zookeeper://a:2181//b", "not a node's path: '//b'"),
        ("zookeeper://a:2181/b//c", "not a node's path"),
        ("zookeeper://a:2181/b/../c", "not a node's path"),
        ("zookeeper://a:2181/.", "not a node's path"),
        ("zookeeper://a:2181/b c", "has a space"),
        ("zookeeper://a:2181/b\0", "not a node's path"),
    ],
)
def test_an_address_of_zookeeper_that_is_wrong_is_refused_with_what_is_wrong(address, reason):
    with pytest.raises(InvalidConfig, match=r"zookeeper://HOST:PORT") as refused:
        open_store(address)
    assert str(refused.value).startswith(f"store {address}: ") and reason in str(refused.value)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("//a", ("a", "")),
        ("//a/", ("a", "")),
        (
            "//a_b.c-d:2181,[::1]:2182,[fe80::1],10.0.0.1:1/kafka/x/",
            ("a_b.c-d:2181,[::1]:2182,[fe80::1],10.0.0.1:1", "/kafka/x"),
        ),
        ("//bücher.example:65535", ("bücher.example:65535", "")),
    ],
)
def test_addresses_of_zookeeper(rest, expected):
    assert zookeeper_hosts(rest) == expected


@pytest.mark.parametrize("address", ["zookeeper://a:99999/kafka", "zookeeper://[1:2]:2181", "etcd:x"])
def test_kcore_serve_names_a_wrong_address_in_one_line(tmp_path, address):
    arguments = ["--data", str(tmp_path / "data"), "--port", "0", "--id", "0", "--store", address]
    serve = subprocess.run(
        [sys.executable, "-m", "kcore.tools.main", "serve", *arguments], capture_output=True, text=True, timeout=120
    )
    assert serve.returncode == 2
    assert serve.stderr.count("\n") == 1 and f"store {address}: " in serve.stderr


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//a", "/a//b", "/a/.", "/../a", "/a/./b", "/a\0", "/\x1f", "/\U0001f600"]
)
def test_what_zookeeper_does_not_take_is_no_path_of_any_store(path):
    with pytest.raises(InvalidPath):
        check_path(path)


def test_paths_of_nodes():
    for path in ("/", "/a", "/...", "/.a/b.", "/a b", "/config/clients/%2E"):
        assert check_path(path) == path


def test_an_abandoned_session_without_a_lock_file_lives_until_the_others_have_seen_it_silent_for_its_timeout(tmp_path):
    """test_session_locks.py has those with one."""
    time, path = MockTime(), str(tmp_path / "cluster.db")
    dead, other = (
        EmbeddedStore(path, durable=False, poll_interval_ms=None, session_timeout_ms=3000, time=time) for _ in range(2)
    )
    dead.create("/e", ephemeral=True)
    dead.abandon()
    os.unlink(f"{path}-session-1")
    with pytest.raises(StoreError):
        dead.get("/e")
    dead.close()
    _ = other.session_id
    other.poll()
    for _ in range(5):
        time.sleep(500)
        other.poll()
        assert other.get("/e") is not None
    time.sleep(500)
    other.poll()
    assert other.get("/e") is None
    other.close()
