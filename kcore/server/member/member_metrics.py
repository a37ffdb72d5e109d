"""What only a member of a cluster measures: its session of the store, and its controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcore.common.metrics import Measured, MetricName, Source
from kcore.controller.controller_metrics import controller_metrics
from kcore.controller.kafka_controller import KafkaController
from kcore.metadata.session_meters import SessionMeters
from kcore.metadata.store import MetadataStore
from kcore.server.member.cluster_member import ClusterMember


def member_metrics(member: ClusterMember, store: MetadataStore) -> Iterable[Source]:
    """Call it before the member has joined its cluster: changes of the session are counted from then on."""

    def of_controller() -> Iterator[tuple[MetricName, Measured]]:
        if isinstance(member.controller, KafkaController):
            yield from controller_metrics(member.controller)

    return SessionMeters(store).measured, of_controller
