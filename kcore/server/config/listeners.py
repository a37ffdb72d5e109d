"""A broker's listeners: what the settings say, and how clients and other brokers are to find them."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from kcore.errors import InvalidConfig
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint
from kcore.network.channel_builder import SERVED_PROTOCOLS
from kcore.network.listener import Listener, SecurityProtocol

#: Hosts of a listener on all of the machine's addresses.
WILDCARDS = ("", "0.0.0.0", "::")


class Settings(Protocol):
    """Typed values by Kafka's name, as a KafkaConfig has them."""

    def __getitem__(self, name: str, /) -> Any: ...


def advertised(broker_id: int, config: Settings, bound: Sequence[Listener]) -> BrokerInfo:
    """The broker as clients and other brokers are to find it.  bound: its listeners with the ports that they got."""
    ports = {listener.name: listener.port for listener in bound}
    endpoints = {
        listener.name: Endpoint(
            socket.gethostname() if listener.host in WILDCARDS else listener.host,
            listener.port or ports[listener.name],
        )
        for listener in listeners_of(config, "advertised.listeners") or bound
    }
    return BrokerInfo(broker_id, endpoints, config["broker.rack"])


def addresses_elsewhere(info: BrokerInfo, bound: Sequence[Listener]) -> str:
    """What the broker advertises to clients: HOST:PORT, or with several listeners NAME://HOST:PORT,NAME://HOST:PORT.
    Empty where it advertises the addresses that it is bound to."""
    local = {listener.name: authority(listener.host, listener.port) for listener in bound}
    told = {name: bracketed(*endpoint) for name, endpoint in info.endpoints.items()}
    if all(local[name] == address for name, address in told.items()):
        return ""
    return ",".join(f"{name}://{address}" if len(bound) > 1 else address for name, address in told.items())


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of HOST:PORT or [::1]:PORT; None if it is not that.  The host is "" for all addresses."""
    match = re.fullmatch(r"(\[[^\[\]/]+\]|[^\[\]/:]*):(\d{1,5})", text.strip())
    if match is None or int(match[2]) > 65535:
        return None
    return match[1].strip("[]"), int(match[2])


def authority(host: str, port: int) -> str:
    """HOST:PORT as clients on this machine connect to it."""
    return bracketed("127.0.0.1" if host in WILDCARDS else host, port)


def bracketed(host: str, port: int) -> str:
    """HOST:PORT, or [::1]:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listeners_of(values: Settings, setting: str) -> list[Listener]:
    """What a setting like PLAINTEXT://host:port,NAME://[::1]:port says.  Raises InvalidConfig."""
    text = values[setting]
    if text is None:
        return []
    if not text.strip():
        raise InvalidConfig(f"{setting} is empty: give NAME://host:port, or leave it out")
    controllers = {name.strip().upper() for name in (values["controller.listener.names"] or "").split(",")}
    protocols = _protocols(values["listener.security.protocol.map"])
    listeners: list[Listener] = []
    for item in text.split(","):
        if not item.strip():
            raise InvalidConfig(f"{setting}={text}: there is a comma too many")
        match = re.fullmatch(r"\s*([\w.-]+)://(\[[^\[\]/]+\]|[^\[\]/]*):(-?\d+)\s*", item)
        if match is None:
            raise InvalidConfig(f"Invalid value {text} for configuration {setting}: {item!r} is not NAME://host:port")
        name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
        if name in controllers:
            continue
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidConfig(f"{setting}={text}: listener.security.protocol.map has no security protocol for {name}")
        if protocol not in SERVED_PROTOCOLS:
            raise InvalidConfig(f"{setting}={text}: only PLAINTEXT listeners are served, not {protocol.name}")
        if not 0 <= port <= 65535:
            raise InvalidConfig(f"Invalid value {text} for configuration {setting}: no such port")
        if setting == "advertised.listeners" and host == "0.0.0.0":
            raise InvalidConfig(f"{setting}={text}: clients cannot connect to 0.0.0.0, give an address of this machine")
        if any(name == other.name for other in listeners):
            raise InvalidConfig(f"{setting}={text}: each listener must have a different name")
        listeners.append(Listener(name, protocol, host, port))
    if not listeners:
        raise InvalidConfig(f"{setting}={text}: it has only listeners of controllers, which are not served here")
    return listeners


def _protocols(text: str) -> dict[str, SecurityProtocol]:
    """listener.security.protocol.map.  Raises InvalidConfig."""
    protocols = {}
    for item in text.split(","):
        name, _, protocol = item.strip().rpartition(":")
        if not name or protocol.upper() not in SecurityProtocol.__members__:
            raise InvalidConfig(f"listener.security.protocol.map={text}: {item!r} is not NAME:PROTOCOL")
        protocols[name.upper()] = SecurityProtocol[protocol.upper()]
    return protocols


def inter_broker_listener_name(config: Settings) -> str:
    """The listener through which brokers call each other.

    Source: KafkaConfig.interBrokerListenerName, Kafka 3.9; without a name that of security.inter.broker.protocol, which
    is always PLAINTEXT here.
    """
    name: str | None = config["inter.broker.listener.name"]
    return SecurityProtocol.PLAINTEXT.name if name is None else name.upper()


def inter_broker_security_protocol(config: Settings) -> SecurityProtocol:
    """Of the listener through which brokers call each other."""
    return _protocols(config["listener.security.protocol.map"])[inter_broker_listener_name(config)]


def check_listeners(values: Settings, *, is_cluster_member: bool) -> None:
    """Raises InvalidConfig for names that do not go together.  A broker alone may have no listener between brokers.
    Source: KafkaConfig.validateValues, Kafka 3.9."""
    protocols = _protocols(values["listener.security.protocol.map"])
    if values["listeners"] is None and protocols.get("PLAINTEXT") is not SecurityProtocol.PLAINTEXT:
        raise InvalidConfig("without listeners, listener.security.protocol.map needs PLAINTEXT:PLAINTEXT")
    names = [listener.name for listener in listeners_of(values, "listeners")] or ["PLAINTEXT"]
    advertised = [listener.name for listener in listeners_of(values, "advertised.listeners")] or names
    unknown = sorted(set(advertised) - set(names))
    if unknown:
        raise InvalidConfig(f"advertised.listeners has {unknown[0]}, which is none of listeners: {', '.join(names)}")
    between = inter_broker_listener_name(values)
    if between in advertised:
        return
    if values["inter.broker.listener.name"] is not None:
        raise InvalidConfig(
            f"inter.broker.listener.name={between} is none of the advertised listeners: {', '.join(advertised)}"
        )
    if is_cluster_member:
        raise InvalidConfig(
            f"{between}, through which brokers call each other, is none of the advertised listeners: "
            f"{', '.join(advertised)}; set inter.broker.listener.name to one of them"
        )
