"""The settings the group coordinator takes from the broker's configuration."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class ConsumerGroupSettings(NamedTuple):
    """Of one group of KIP-848."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int = 0


class MigrationPolicy(enum.Enum):
    """group.consumer.migration.policy: which way groups with members may change."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Field names are Kafka's setting names without their prefix, e.g. group.min.session.timeout.ms."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    #: Of the groups of KIP-848, whose members cannot choose.  The assignors by name, the default first.
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 0
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    consumer_regex_refresh_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_commit_timeout_ms: int = 5_000
    offsets_load_buffer_size: int = 5_242_880

    def settings(self, group_id: str) -> ConsumerGroupSettings:
        """Of a group that has none of its own."""
        return ConsumerGroupSettings(
            self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms, self.consumer_assignment_interval_ms
        )
