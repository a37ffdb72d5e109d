"""Where a broker listens, and what is known of each connection from then on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition


class SecurityProtocol(Enum):
    """Source: SecurityProtocol, Kafka."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


class Listener(NamedTuple):
    """An address to listen on, under the name that settings and metadata use for it.  port 0: any free one."""

    name: str
    security_protocol: SecurityProtocol
    host: str
    port: int


class KafkaPrincipal(NamedTuple):
    """Who sends a request, as Kafka's ACLs name him."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")


@dataclass(slots=True)
class ConnectionContext:
    """What all requests of a connection have in common.  client_address: without client_port.  client_software: name
    and version that the client has given (KIP-511).  sent_from: FetchParams.sent_from of its consumer."""

    listener_name: str
    security_protocol: SecurityProtocol
    principal: KafkaPrincipal
    client_address: str
    client_port: int = -1
    client_software: str = ""
    sent_from: dict[TopicPartition, int] = field(default_factory=dict, repr=False)
