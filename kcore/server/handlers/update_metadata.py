"""UpdateMetadata (6): the controller says who is alive, and who leads what, for this broker's metadata cache."""

from __future__ import annotations

from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import NONE, ApiError, code_of
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint, PartitionInfo
from kcore.network.listener import SecurityProtocol
from kcore.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: The leader of a partition that is being deleted.
_LEADER_DURING_DELETE = -2


class Handler:
    runs_on = RunsOn.CONTROLLER_REQUESTS

    def __init__(self, services: Services) -> None:
        self._member = services.member

    def handle(self, context: RequestContext, body: UpdateMetadataRequest) -> None:
        try:
            self._member.registration.check_broker_epoch(body.broker_epoch)
            topics: dict[str, tuple[UUID, dict[int, PartitionInfo | None]]] = {}
            for state in body.ungrouped_partition_states:  # of old versions
                topics.setdefault(state.topic_name, (ZERO_UUID, {}))[1][state.partition_index] = _partition_info(state)
            for topic in body.topic_states:
                partitions = topics.setdefault(topic.topic_name, (topic.topic_id, {}))[1]
                partitions.update((state.partition_index, _partition_info(state)) for state in topic.partition_states)
            brokers = [_broker_info(broker, context.api_version) for broker in body.live_brokers]
            self._member.orders.update_metadata(body.controller_id, body.controller_epoch, brokers, topics)
        except ApiError as error:
            context.respond(UpdateMetadataResponse(error_code=code_of(error)))
            return
        context.respond(UpdateMetadataResponse(error_code=NONE))

    def error_response(self, body: UpdateMetadataRequest, error_code: int, version: int) -> UpdateMetadataResponse:
        return UpdateMetadataResponse(error_code=error_code)


def _partition_info(state: UpdateMetadataPartitionState) -> PartitionInfo | None:
    if state.leader == _LEADER_DURING_DELETE:
        return None
    return PartitionInfo(
        state.leader, state.leader_epoch, tuple(state.replicas), tuple(state.isr), tuple(state.offline_replicas)
    )


def _broker_info(broker: UpdateMetadataBroker, version: int) -> BrokerInfo:
    """Below version 3 listeners have no names but their protocol's, below version 1 there is only PLAINTEXT."""
    if version == 0:
        return BrokerInfo(broker.id, {"PLAINTEXT": Endpoint(broker.v0_host, broker.v0_port)})
    endpoints = {}
    for endpoint in broker.endpoints:
        if version >= 3:
            name = endpoint.listener
        else:
            name = _PROTOCOL_NAMES.get(endpoint.security_protocol, "")
        endpoints[name] = Endpoint(endpoint.host, endpoint.port)
    return BrokerInfo(broker.id, endpoints, broker.rack)


_PROTOCOL_NAMES = {protocol.value: protocol.name for protocol in SecurityProtocol}
