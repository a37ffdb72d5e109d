"""Settings of the brokers of a cluster on one machine, where they differ from those of a broker alone."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kcore.metadata.embedded_store import FILE_NAME

#: How long a broker may be silent until the others take it for dead.
SESSION_TIMEOUT_MS = 4000
#: A follower's wait after a fetch that failed.  A new partition's first one often does, because its leader has not
#: begun; the first record with acks=all waits for the next.
FETCH_BACKOFF_MS = 100


def cluster_settings(brokers: int) -> dict[str, int]:
    """Of all brokers; brokers: how many there are."""
    replicas = min(3, brokers)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        "replica.fetch.backoff.ms": FETCH_BACKOFF_MS,
        # Brokers of one machine answer at once.
        "controlled.shutdown.retry.backoff.ms": 200,
    }


def rack_settings(racks: Sequence[str | None] | None, brokers: int) -> list[dict[str, str]]:
    """The setting that each broker gets.  Raises TypeError, ValueError."""
    if racks is None:
        return [{}] * brokers
    if isinstance(racks, str) or not all(rack is None or isinstance(rack, str) for rack in racks):
        raise TypeError(f"racks must be a list of a str or None for each broker, not {racks!r}")
    if len(racks) != brokers:
        raise ValueError(f"racks={list(racks)!r}: expected {brokers}, one for each broker")
    return [{} if rack is None else {"broker.rack": rack} for rack in racks]


def store_address(data_dir: str) -> str:
    """The store of a cluster whose brokers have data_dir/0, data_dir/1, …, unless it has another."""
    return f"sqlite:{os.path.join(data_dir, FILE_NAME)}"
