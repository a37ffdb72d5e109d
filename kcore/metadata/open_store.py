"""The store that a setting like sqlite:FILE names."""

from __future__ import annotations

import re

from kcore.common.file import exists
from kcore.common.optional_packages import missing_package
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import SESSION_TIMEOUT_MS, EmbeddedStore
from kcore.metadata.store import MetadataStore

#: HOST, HOST:PORT, [ADDRESS]:PORT; separated by commas; then perhaps a path.
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::[0-9]+)?"
_ZOOKEEPER = re.compile(rf"//(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<chroot>(?:/[^\s/]+)*)/?")


def is_new_store(address: str) -> bool:
    """Whether open_store() would make the store, as its file is not there."""
    scheme, _, path = address.partition(":")
    return scheme == "sqlite" and not exists(path)


def open_store(
    address: str,
    *,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    connection_timeout_ms: int | None = None,
    durable: bool = True,
    time: Time = SYSTEM_TIME,
) -> MetadataStore:
    """Open sqlite:FILE, a store for the brokers of one machine (the file is made if it is not there), or
    zookeeper://HOST:PORT,HOST:PORT/CHROOT, which is Kafka's zookeeper.connect after the two slashes.

    connection_timeout_ms: how long a server may take to answer, by default the session's timeout.  durable=False: for
    a file that is thrown away at the end.  Raises InvalidConfig for another address, StoreError for a file that is no
    store or cannot be opened, ConnectionLost if no server answers, ImportError where kazoo is not installed.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and rest:
        return EmbeddedStore(rest, durable=durable, session_timeout_ms=session_timeout_ms, time=time)
    if scheme == "zookeeper" and (match := _ZOOKEEPER.fullmatch(rest)) is not None:
        try:
            from kcore.metadata.zookeeper_store import ZookeeperStore
        except ImportError as error:
            raise missing_package("a store in ZooKeeper", "zookeeper", error) from None
        return ZookeeperStore(
            match["hosts"],
            match["chroot"],
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
        )
    raise InvalidConfig(
        f"store {address}: give sqlite:FILE, for example sqlite:/var/lib/kcore/cluster.db, or "
        "zookeeper://HOST:PORT,HOST:PORT/CHROOT"
    )
