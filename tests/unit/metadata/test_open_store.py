import pytest

from kcore.common.time import MockTime
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.open_store import open_store
from kcore.metadata.store import StoreError


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


def test_an_abandoned_session_lives_until_the_others_have_seen_it_silent_for_its_timeout(tmp_path):
    time, path = MockTime(), str(tmp_path / "cluster.db")
    dead, other = (
        EmbeddedStore(path, durable=False, poll_interval_ms=None, session_timeout_ms=3000, time=time) for _ in range(2)
    )
    dead.create("/e", ephemeral=True)
    dead.abandon()
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
