"""SCRAM credentials of users in the store, as Java brokers keep them there: which there are.

kcore does not authenticate with them yet.  Source: ScramCredentialUtils, ZkAdminManager, Kafka 3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError

logger = logging.getLogger(__name__)

#: A request has them in 32 bits.
_MAX_ITERATIONS = 2**31 - 1
#: ScramMechanism's numbers in requests.
_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def stored_iterations(store: MetadataStore, users: Collection[str] | None = None) -> dict[str, dict[int, int]]:
    """User -> mechanism -> iterations, of those of these users that have credentials, None for all.

    What cannot be read is logged and left out.  Waits for the store.  Raises StoreError.
    """
    if users is None:
        nodes = [node for node in store.children(znodes.USER_CONFIGS) if node != znodes.DEFAULT_ENTITY]
    else:
        nodes = [znodes.sanitized(user) for user in users]
    stored = store.get_many([f"{znodes.USER_CONFIGS}/{node}" for node in nodes])
    found = {}
    for node, entry in zip(nodes, stored, strict=True):
        iterations = _iterations_in(node, entry.data) if entry is not None and entry.data else {}
        if iterations:
            found[znodes.desanitized(node)] = iterations
    return found


def _iterations_in(node: str, data: bytes) -> dict[int, int]:
    try:
        config = znodes.decode_config(data)
        return {number: _iterations(config[name]) for name, number in _MECHANISMS.items() if name in config}
    except (StoreError, KeyError, TypeError, ValueError, AttributeError):
        # Without the body: it is secret.
        logger.error("the SCRAM credentials of user %s in the store cannot be read", node)
        return {}


def _iterations(credential: str) -> int:
    """Of salt=...,stored_key=...,server_key=...,iterations=N.  Raises KeyError, ValueError."""
    fields = dict(field.split("=", 1) for field in credential.split(","))
    iterations = int(fields["iterations"])
    if not 0 < iterations <= _MAX_ITERATIONS:
        raise ValueError(f"{iterations} iterations")
    return iterations
