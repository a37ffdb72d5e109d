"""Where a leader sends consumers, by the racks of the brokers that it knows (KIP-392)."""

from __future__ import annotations

from kcore.common.time import Time
from kcore.metadata.metadata_cache import MetadataCache
from kcore.replica.replica_selector import SELECTORS, PreferredReadReplica


def preferred_read_replica(selector: str, metadata: MetadataCache, time: Time) -> PreferredReadReplica:
    """selector: what replica.selector.class names."""

    def rack_of(broker_id: int, listener_name: str) -> str | None:
        broker = metadata.snapshot.broker(broker_id)
        return None if broker is None or listener_name not in broker.endpoints else broker.rack or ""

    return PreferredReadReplica(SELECTORS[selector], rack_of, time)
