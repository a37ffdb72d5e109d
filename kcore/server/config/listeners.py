"""A broker's listeners, as clients and other brokers are to find them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from kcore.metadata.metadata_cache import BrokerInfo, Endpoint
from kcore.network.listener import Listener
from kcore.server.config.kafka_config import KafkaConfig

#: Hosts of a listener on all of the machine's addresses.
WILDCARDS = ("", "0.0.0.0", "::")


def advertised(broker_id: int, config: KafkaConfig, bound: Sequence[Listener]) -> BrokerInfo:
    """The broker as clients and other brokers are to find it.  bound: its listeners with the ports that they got."""
    ports = {listener.name: listener.port for listener in bound}
    endpoints = {
        listener.name: Endpoint(
            socket.gethostname() if listener.host in WILDCARDS else listener.host,
            listener.port or ports[listener.name],
        )
        for listener in config.advertised_listeners or bound
    }
    return BrokerInfo(broker_id, endpoints, config["broker.rack"])
