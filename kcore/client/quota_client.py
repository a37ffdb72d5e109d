"""QuotaClient: reads and changes the quotas of users, client ids and IP addresses.  Source of the requests: KIP-546."""

from __future__ import annotations

from collections.abc import Mapping

from kcore.client.admin_client import AdminClient, raise_error
from kcore.protocol.messages import alter_client_quotas as ac
from kcore.protocol.messages import describe_client_quotas as dc

#: The types of what has quotas, in the order in which they are named.
USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

#: (type, name) of each part; the name is None for the default of the type.
Entity = tuple[tuple[str, str | None], ...]

_EXACT, _DEFAULT = 0, 1


class QuotaClient(AdminClient):
    """For one thread."""

    def quotas(self, named: Entity, *, is_whole: bool = False) -> dict[Entity, dict[str, float]]:
        """Entity -> quota -> value, of the entities that have all these parts; is_whole: and no others."""
        components = [
            dc.ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
            for kind, name in named
        ]
        request = dc.DescribeClientQuotasRequest(components=components, strict=is_whole)
        response = self._ask_any(request, dc.DescribeClientQuotasResponse)
        raise_error(response.error_code, response.error_message)
        found = {
            entity_of({part.entity_type: part.entity_name for part in entry.entity}): {
                value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)
            }
            for entry in response.entries or ()
        }
        return {entity: found[entity] for entity in sorted(found, key=_order)}

    def alter_quotas(self, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Set quotas, None removes one; with validate_only only say whether that is allowed.  Raises InvalidRequest,
        ClusterAuthorizationFailed, UnsupportedVersion for a type of entity that the broker does not limit."""
        ops = [ac.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()]
        parts = [ac.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        request = ac.AlterClientQuotasRequest(
            entries=[ac.EntryData(entity=parts, ops=ops)], validate_only=validate_only
        )
        response = self._ask_any(request, ac.AlterClientQuotasResponse)
        for result in response.entries:
            raise_error(result.error_code, result.error_message)


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """Its parts in one order."""
    return tuple(sorted(names.items(), key=_type_order))


def _type_order(part: tuple[str, str | None]) -> tuple[int, str]:
    kind = part[0]
    return (ENTITY_TYPES.index(kind) if kind in ENTITY_TYPES else len(ENTITY_TYPES), kind)


def _order(entity: Entity) -> list[tuple[int, str, bool, str]]:
    """By type; defaults come last."""
    return [(*_type_order(part), part[1] is None, part[1] or "") for part in entity]
