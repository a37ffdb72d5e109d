"""Where a leader sends consumers: the broker's setting, over what it knows of the other brokers (KIP-392)."""

from __future__ import annotations

from kcore.common.time import Time
from kcore.replica.replica_selector import SELECTORS, PreferredReadReplica
from kcore.server.kafka_config import KafkaConfig
from kcore.server.metadata_cache import MetadataCache


def preferred_read_replica(config: KafkaConfig, metadata: MetadataCache, time: Time) -> PreferredReadReplica | None:
    """replica.selector.class; None if it is not set: every consumer reads from the leader."""
    name = config["replica.selector.class"]
    if name is None:
        return None

    def rack_of(broker_id: int, listener_name: str) -> str | None:
        broker = metadata.snapshot.broker(broker_id)
        return None if broker is None or listener_name not in broker.endpoints else broker.rack or ""

    return PreferredReadReplica(SELECTORS[name], rack_of, time)
