"""The store that a setting like sqlite:FILE names."""

from __future__ import annotations

import re
from collections.abc import Callable

from kcore.common.file import exists
from kcore.common.optional_packages import missing_package
from kcore.common.time import SYSTEM_TIME, Time
from kcore.errors import InvalidConfig
from kcore.metadata.embedded_store import SESSION_TIMEOUT_MS, EmbeddedStore
from kcore.metadata.store import InvalidPath, MetadataStore, check_path

_FORMS = "give sqlite:FILE, for example sqlite:/var/lib/kcore/cluster.db, or zookeeper://HOST:PORT,HOST:PORT/CHROOT"
#: HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT.
_SERVER = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[^:]*))?")


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
    is_start_cancelled: Callable[[], bool] = lambda: False,
) -> MetadataStore:
    """Open sqlite:FILE, a store for the brokers of one machine (the file is made if it is not there), or
    zookeeper://HOST:PORT,HOST:PORT/CHROOT, which is Kafka's zookeeper.connect after the two slashes.

    connection_timeout_ms: how long a server may take to answer, or another program may have the file locked, until
    end_start(); by default the session's timeout.  durable=False: for a file that is thrown away at the end.
    is_start_cancelled: asked while the file is locked, until end_start(), and until the first connection to a server.
    Raises InvalidConfig for another address, StoreError for a file that is no store or cannot be opened, ConnectionLost
    if no server answers or the file stays locked, StartCancelled, ImportError where kazoo is not installed.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and rest:
        return EmbeddedStore(
            rest,
            durable=durable,
            connection_timeout_ms=connection_timeout_ms or session_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            time=time,
            is_start_cancelled=is_start_cancelled,
        )
    if scheme == "zookeeper":
        try:
            hosts, chroot = zookeeper_hosts(rest)
        except ValueError as error:
            raise InvalidConfig(f"store {address}: {error}; {_FORMS}") from None
        try:
            from kcore.metadata.zookeeper_store import ZookeeperStore
        except ImportError as error:
            raise missing_package("a store in ZooKeeper", "zookeeper", error) from None
        return ZookeeperStore(
            hosts,
            chroot,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
            is_start_cancelled=is_start_cancelled,
        )
    raise InvalidConfig(f"store {address}: {_FORMS}")


def zookeeper_hosts(rest: str) -> tuple[str, str]:
    """(servers separated by commas, chroot or "") of what follows `zookeeper:`.  Raises ValueError with what is wrong.

    Stricter than kazoo, which takes some mistakes for names of hosts that it then looks up for ever.
    """
    if not rest.startswith("//"):
        raise ValueError("// is missing after zookeeper:")
    servers, _, chroot = rest[2:].partition("/")
    for server in servers.split(","):
        _check_server(server)
    chroot = f"/{chroot.removesuffix('/')}" if chroot else ""
    if chroot:
        if any(character.isspace() for character in chroot):
            raise ValueError(f"the path {chroot!r} has a space in it")
        try:
            check_path(chroot)
        except InvalidPath as error:
            raise ValueError(str(error)) from None
    return servers, chroot


def _check_server(server: str) -> None:
    match = _SERVER.fullmatch(server)
    if match is None:
        raise ValueError(f"{server!r} is not HOST:PORT (an IPv6 address needs brackets: [::1]:2181)")
    address, name, port = match["address"], match["name"], match["port"]
    if port is not None and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ValueError(f"{server!r} has no port between 1 and 65535")
    if address is not None:
        import ipaddress  # a millisecond, which most brokers need not spend

        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            raise ValueError(f"{server!r}: {address!r} is not an IPv6 address") from None
    elif not name:
        raise ValueError(f"{server!r} has no host" if server else "a host is missing")
    else:
        try:
            if re.fullmatch(r"[\w.-]+", name) is None:
                raise ValueError
            name.encode("idna")  # as the resolver does
        except ValueError:
            raise ValueError(f"{name!r} is not the name of a host") from None
