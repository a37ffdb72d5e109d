"""DeleteAcls (31; KIP-140, KIP-290)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class DeleteAclsFilter(Struct):
    """As DescribeAclsRequest."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsRequest(Message):
    """Delete what these filters match."""

    api_key = ApiKey.DELETE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8("1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsFilterResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Message):
    """What each filter has deleted."""

    api_key = ApiKey.DELETE_ACLS
    min_version, max_version, flexible_version = 0, 3, 2

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
