"""The store that a setting like sqlite:FILE names."""

from __future__ import annotations

from kcore.common.file import exists
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import SESSION_TIMEOUT_MS, EmbeddedStore


def is_new_store(address: str) -> bool:
    """Whether open_store() would make the store, as its file is not there."""
    scheme, _, path = address.partition(":")
    return scheme == "sqlite" and not exists(path)


def open_store(
    address: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    durable: bool = True,
    time: Time = SYSTEM_TIME,
) -> EmbeddedStore:
    """Open sqlite:FILE, a store for the brokers of one machine; the file is made if it is not there.

    durable=False: for a file that is thrown away at the end.  Raises InvalidConfig for another address, StoreError
    for a file that is no store or cannot be opened.
    """
    scheme, _, path = address.partition(":")
    if scheme == "sqlite" and path:
        return EmbeddedStore(path, durable=durable, session_timeout_ms=session_timeout_ms, time=time)
    if scheme == "zookeeper":
        raise InvalidConfig(f"store {address}: ZooKeeper is not supported yet; give sqlite:FILE")
    raise InvalidConfig(f"store {address}: give sqlite:FILE, for example sqlite:/var/lib/kcore/cluster.db")
