"""InterBrokerConnections: where the other brokers of the cluster are, and connections to them."""

from __future__ import annotations

from kcore.client.blocking_sender import DEFAULT_MAX_RESPONSE_BYTES, BlockingSender
from kcore.client.socket_connection import ConnectionFactory, SocketConnection
from kcore.common.time import Time
from kcore.controller.controller_context import LiveBroker
from kcore.metadata.metadata_cache import Endpoint, MetadataCache
from kcore.network.listener import SecurityProtocol
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.listeners import inter_broker_listener_name, inter_broker_security_protocol

_CONNECTION_FACTORIES: dict[SecurityProtocol, ConnectionFactory] = {SecurityProtocol.PLAINTEXT: SocketConnection}


class InterBrokerConnections:
    """A broker calls the others through the listener between brokers only, and over connections that are made here.

    time: real time, in which other brokers answer.  Thread-safe.
    """

    def __init__(self, config: KafkaConfig, metadata_cache: MetadataCache, time: Time) -> None:
        self.listener_name = inter_broker_listener_name(config)
        self.time = time
        self._connection_factory = _CONNECTION_FACTORIES[inter_broker_security_protocol(config)]
        self._metadata_cache = metadata_cache

    def address_of(self, broker_id: int) -> Endpoint | None:
        """Where the metadata say that a broker is; None if it is not alive, or has no address on the listener."""
        return self._metadata_cache.snapshot.endpoint(broker_id, self.listener_name)

    def registered_address(self, broker: LiveBroker) -> Endpoint:
        """Where a broker's registration in the store says that it is: the metadata come from the controller, which
        calls the broker first.  Raises ConnectionError if it has no address on the listener."""
        address = broker.endpoints.get(self.listener_name)
        if address is None:
            raise ConnectionError(
                f"broker {broker.broker_id} has no address on the listener {self.listener_name}, through which brokers "
                f"call each other; it has {', '.join(broker.endpoints)}"
            )
        return Endpoint(*address)

    def sender(
        self,
        address: tuple[str, int],
        client_id: str,
        *,
        request_timeout_ms: float,
        max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES,
        receive_buffer_bytes: int = -1,
    ) -> BlockingSender:
        """A connection to a broker, made when it is needed first.  See BlockingSender."""
        return BlockingSender(
            *address,
            client_id,
            request_timeout_ms=request_timeout_ms,
            time=self.time,
            max_response_bytes=max_response_bytes,
            receive_buffer_bytes=receive_buffer_bytes,
            connection_factory=self._connection_factory,
        )
