"""Features: the level of the feature transaction.version that a broker knows, and the one that its cluster uses."""

from __future__ import annotations

from typing import NamedTuple

from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.releases import apis_of_release
from kcore.server.config.kafka_config import KafkaConfig

TRANSACTION_VERSION = "transaction.version"
#: The first version of EndTxn whose clients use level 2.
_RAISES_EPOCH = 5


class Features(NamedTuple):
    """Levels of transaction.version, 0 for none: the highest that this broker knows, and what the cluster uses.

    epoch: a client takes what has the highest; of one cluster it is higher after each broker that joins.
    """

    supported: int = 0
    finalized: int = 0
    epoch: int = 0


def supported_transaction_version(config: KafkaConfig) -> int:
    """kcore.transaction.version; 0 for a broker that acts like a release without that feature."""
    release = config["kcore.act.like"]
    served = apis_of_release(SUPPORTED, release) if release else SUPPORTED
    knows = served.get(ApiKey.END_TXN, (0, 0))[1] >= _RAISES_EPOCH
    return int(config["kcore.transaction.version"]) if knows else 0
