"""CreateAcls (30; KIP-140, KIP-290)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Message):
    """ACLs, each of which is made or refused."""

    api_key = ApiKey.CREATE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreateAclsResponse(Message):
    """One result for each, in their order."""

    api_key = ApiKey.CREATE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)
