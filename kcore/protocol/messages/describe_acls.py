"""DescribeAcls (29; KIP-140, KIP-290)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class DescribeAclsRequest(Message):
    """A filter; None and the code 1 (ANY) match everything."""

    api_key = ApiKey.DESCRIBE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Message):
    """The ACLs, by what they are about."""

    api_key = ApiKey.DESCRIBE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
