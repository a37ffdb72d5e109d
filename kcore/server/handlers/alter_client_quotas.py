"""AlterClientQuotas (49): set and remove quotas of users, client ids and IP addresses (KIP-546)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, InvalidRequest, UnsupportedVersion
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryResult,
)
from kcore.security.acl import canonical_host
from kcore.server.handlers.describe_client_quotas import CLIENT_ID, IP, USER
from kcore.server.quotas.client_quota_manager import DEFAULT, EntityName, QuotaEntity
from kcore.server.quotas.stored_client_quotas import QuotaChange
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.SETTING_CHANGES

    def __init__(self, services: Services) -> None:
        self._quotas = services.stored_client_quotas

    def handle(self, context: RequestContext, body: AlterClientQuotasRequest) -> None:
        context.respond(
            AlterClientQuotasResponse(entries=[self._alter(entry, body.validate_only) for entry in body.entries])
        )

    def _alter(self, entry: EntryData, validate_only: bool) -> EntryResult:
        try:
            entity = _entity(entry.entity)
            changes = [QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops]
            if validate_only:
                self._quotas.check(entity, changes)
            else:
                with store_errors_for_clients("client quotas"):
                    self._quotas.alter(entity, changes)
        except ApiError as error:
            return EntryResult(error_code=error.code, error_message=str(error), entity=entry.entity)
        return EntryResult(error_code=NONE, error_message=None, entity=entry.entity)

    def error_response(
        self, body: AlterClientQuotasRequest, error_code: int, version: int
    ) -> AlterClientQuotasResponse:
        return AlterClientQuotasResponse(
            entries=[
                EntryResult(error_code=error_code, error_message=None, entity=entry.entity) for entry in body.entries
            ]
        )


def _entity(parts: list[EntityData]) -> QuotaEntity:
    """Source: ZkAdminManager.parseAndSanitizeQuotaEntity, Kafka 3.9."""
    names: dict[str, EntityName] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind not in (USER, CLIENT_ID, IP):
            error = InvalidRequest if not kind else UnsupportedVersion
            raise error(f"Unhandled client quota entity type: {kind}")
        if kind in names:
            raise InvalidRequest(f"Duplicate {kind} in the entity")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise InvalidRequest("Invalid empty client quota entity")
    if IP in names and len(names) > 1:
        raise InvalidRequest("An ip must not be combined with a user or a client id")
    ip = names.get(IP)
    if isinstance(ip, str):
        from ipaddress import ip_address  # not at the start of a broker

        try:
            ip_address(ip)
        except ValueError:
            raise InvalidRequest(f"{ip} is not a valid IP address") from None
        ip = canonical_host(ip)
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), ip)
