"""The settings of a broker that its controller follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class ControllerSettings(NamedTuple):
    """The broker's settings that matter to a controller, by Kafka's names; the first can change, and is a function.

    rebalance_interval_ms: leader.imbalance.check.interval.seconds; 0 where auto.leader.rebalance.enable is false.
    """

    unclean_leader_election_enable: Callable[[], bool] = lambda: False
    delete_topic_enable: bool = True
    rebalance_interval_ms: float = 0
    leader_imbalance_per_broker_percentage: int = 10
    inter_broker_listener_name: str = "PLAINTEXT"
