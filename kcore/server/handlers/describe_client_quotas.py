"""DescribeClientQuotas (48): which quotas are set (KIP-546)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, InvalidRequest, UnsupportedVersion
from kcore.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kcore.server.quotas.client_quota_manager import DEFAULT, EntityName, QuotaEntity
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._quotas = services.client_quotas

    def handle(self, context: RequestContext, body: DescribeClientQuotasRequest) -> None:
        try:
            components = _checked(body.components)
        except ApiError as error:
            context.respond(DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None))
            return
        context.respond(
            DescribeClientQuotasResponse(
                error_code=NONE,
                error_message=None,
                entries=[
                    EntryData(
                        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in wire_names(entity)],
                        values=[ValueData(key=key, value=value) for key, value in quotas.items()],
                    )
                    for entity, quotas in self._quotas.entities.items()
                    if _fits(entity, components, body.strict)
                ],
            )
        )

    def error_response(
        self, body: DescribeClientQuotasRequest, error_code: int, version: int
    ) -> DescribeClientQuotasResponse:
        return DescribeClientQuotasResponse(error_code=error_code, error_message=None, entries=None)


def wire_names(entity: QuotaEntity) -> list[tuple[str, str | None]]:
    """(type, name) of each part that the entity names; the name is None for the default."""
    parts: list[tuple[str, EntityName | None]] = [
        (USER, entity.user),
        (CLIENT_ID, entity.client_id),
        (IP, entity.ip),
    ]
    return [(kind, name if isinstance(name, str) else None) for kind, name in parts if name is not None]


def _checked(components: list[ComponentData]) -> dict[str, ComponentData]:
    """Components by type.  Source: ZkAdminManager.describeClientQuotas, Kafka 3.9."""
    by_type: dict[str, ComponentData] = {}
    for component in components:
        kind = component.entity_type
        if kind in by_type:
            raise InvalidRequest(f"Duplicate {kind} filter component entity type")
        if kind not in (USER, CLIENT_ID, IP):
            error = InvalidRequest if not kind else UnsupportedVersion
            raise error(f"Custom entity type '{kind}' not supported")
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise InvalidRequest(f"Unexpected match type: {component.match_type}")
        if component.match_type == _EXACT and component.match is None:
            raise InvalidRequest(f"Request specified MATCH_TYPE_EXACT, but no match name for {kind}")
        by_type[kind] = component
    if IP in by_type and len(by_type) > 1:
        raise InvalidRequest("Invalid entity filter component combination: ip with user or client-id")
    return by_type


def _fits(entity: QuotaEntity, components: dict[str, ComponentData], strict: bool) -> bool:
    for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip)):
        component = components.get(kind)
        if component is None:
            if strict and name is not None:
                return False
        elif (
            name is None
            or (component.match_type == _EXACT and name != component.match)
            or (component.match_type == _DEFAULT and name is not DEFAULT)
        ):
            return False
    return True
