"""The kinds of coordinators that clients look for: the internal topic of each, and how it is made when first needed.

Source: FindCoordinatorRequest.CoordinatorType, AutoTopicCreationManager, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kcore.common.topic_names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from kcore.errors import ApiError, GroupAuthorizationFailed, TransactionalIdAuthorizationFailed
from kcore.security.acl import ResourceType
from kcore.server.config.kafka_config import KafkaConfig

GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True, slots=True)
class CoordinatorType:
    """num_partitions, replication_factor: names of settings of the broker.  configs: settings of the topic;
    configs_from_broker: its settings that a setting of the broker has, by the name of that.

    resource_type: of a key.  Who may not describe it gets authorization_error.
    """

    topic: str
    num_partitions: str
    replication_factor: str
    configs: Mapping[str, str]
    configs_from_broker: Mapping[str, str]
    resource_type: ResourceType
    authorization_error: ApiError

    def topic_configs(self, config: KafkaConfig) -> dict[str, str]:
        return {**self.configs, **{name: str(config[other]) for name, other in self.configs_from_broker.items()}}


#: By FindCoordinator's key type, those that this broker has a coordinator for.
COORDINATOR_TYPES: Mapping[int, CoordinatorType] = {
    GROUP: CoordinatorType(
        GROUP_METADATA_TOPIC,
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"cleanup.policy": "compact", "compression.type": "producer"},
        {"segment.bytes": "offsets.topic.segment.bytes"},
        ResourceType.GROUP,
        GroupAuthorizationFailed("Group authorization failed."),
    ),
    TRANSACTION: CoordinatorType(
        TRANSACTION_STATE_TOPIC,
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
        },
        {
            "min.insync.replicas": "transaction.state.log.min.isr",
            "segment.bytes": "transaction.state.log.segment.bytes",
        },
        ResourceType.TRANSACTIONAL_ID,
        TransactionalIdAuthorizationFailed("Transactional Id authorization failed."),
    ),
}


def coordinator_type_of(topic: str) -> CoordinatorType | None:
    """Of the coordinator whose internal topic this is."""
    return next((kind for kind in COORDINATOR_TYPES.values() if kind.topic == topic), None)


def is_auto_created(topic: str) -> bool:
    """Whether the topic may be created because a client names it: not an internal one that no coordinator here uses."""
    is_internal = topic in INTERNAL_TOPICS or topic == CLUSTER_METADATA_TOPIC
    return not is_internal or coordinator_type_of(topic) is not None
