"""ClientQuotas: the quotas of clients that are in force, and who measures them.

Source: QuotaFactory.QuotaManagers, Kafka 3.9; KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcore.common.time import Time
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.client_quota_manager import ClientQuotaManager, QuotaEntity
from kcore.server.quotas.connection_quotas import ConnectionQuotas
from kcore.server.quotas.controller_mutation_quotas import ControllerMutationQuotas

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
#: Of IP addresses.
CONNECTION_CREATION_RATE = "connection_creation_rate"


class ClientQuotas:
    """Thread-safe but for use(), which one thread calls at a time.

    is_enabled is False while no quota is set at all, so that requests cost nothing but to look at it.
    """

    def __init__(self, config: KafkaConfig, time: Time) -> None:
        samples, seconds = config["quota.window.num"], config["quota.window.size.seconds"]
        self.is_enabled = False
        self.time = time
        self.produce = ClientQuotaManager(samples, seconds, time)
        self.fetch = ClientQuotaManager(samples, seconds, time)
        self.request = ClientQuotaManager(samples, seconds, time, max_throttle_ms=seconds * 1000)
        burst_seconds = config["controller.quota.window.num"] * config["controller.quota.window.size.seconds"]
        self.controller_mutation = ControllerMutationQuotas(burst_seconds, time)
        self.connections = ConnectionQuotas(samples, seconds, time)
        self._entities: Mapping[QuotaEntity, Mapping[str, float]] = {}

    @property
    def entities(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Who has which quotas."""
        return self._entities

    def use(self, entities: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace all quotas: those of each entity, by their names.  An entity without any is left out."""
        self._entities = {entity: quotas for entity, quotas in entities.items() if quotas}
        for key, manager in (
            (PRODUCER_BYTE_RATE, self.produce),
            (CONSUMER_BYTE_RATE, self.fetch),
            (REQUEST_PERCENTAGE, self.request),
            (CONTROLLER_MUTATION_RATE, self.controller_mutation),
            (CONNECTION_CREATION_RATE, self.connections),
        ):
            manager.update({entity: quotas[key] for entity, quotas in self._entities.items() if key in quotas})
        self.is_enabled = bool(self._entities)
