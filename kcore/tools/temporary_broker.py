"""A broker of this process that serves a data directory for a moment, so that backups need no second reader or writer
of what brokers store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kcore.server.broker import Broker

#: In ms: nothing is removed because of its age while the broker runs.
_NEVER_MS = (1 << 63) - 1


@contextmanager
def temporary_broker(data_dir: str, broker_id: int | None = None) -> Iterator[Broker]:
    """On a free port of 127.0.0.1.  It deletes and compacts nothing, and closes the logs cleanly.

    broker_id: None for what the directory says, else 1.  Raises DirectoryInUse, OSError, KafkaError."""
    config: dict[str, Any] = {
        "auto_create_topics_enable": False,
        "log_cleaner_enable": False,
        "log_retention_check_interval_ms": _NEVER_MS,
        "offsets_retention_check_interval_ms": _NEVER_MS,
        # ACLs can be listed and made; who asks may do everything.
        "authorizer_class_name": "kcore.StoredAclAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    if broker_id is not None:
        config["broker_id"] = broker_id
    with Broker(data_dir, **config) as broker:
        yield broker
