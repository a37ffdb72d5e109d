"""ChannelBuilder: what stands between the sockets of a listener and its requests."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from kcore.network.authenticator import Authenticator
from kcore.network.listener import ConnectionContext, Listener, SecurityProtocol
from kcore.network.transport import Transport


@dataclass(frozen=True, slots=True)
class ChannelBuilder:
    """Makes the parts of each connection that a listener accepts.  Called on the first network thread; an
    exception ends that connection only.

    new_transport: from a connected, non-blocking socket, which it then owns.
    new_authenticator: for each connection; None where clients do not authenticate, or do so in the handshake.
    Source: ChannelBuilder, Kafka 3.9.
    """

    new_transport: Callable[[socket.socket], Transport]
    new_authenticator: Callable[[ConnectionContext], Authenticator] | None = None


_BUILDERS = {SecurityProtocol.PLAINTEXT: ChannelBuilder(Transport)}

#: What this package can carry.
SERVED_PROTOCOLS = tuple(_BUILDERS)


def channel_builder_of(listener: Listener) -> ChannelBuilder:
    """Source: ChannelBuilders.serverChannelBuilder, Kafka 3.9."""
    return _BUILDERS[listener.security_protocol]
