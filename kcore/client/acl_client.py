"""AclClient: lists, creates and deletes the ACLs of a cluster.  Source of the requests: KIP-140, KIP-290."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kcore.client.admin_client import AdminClient, error_of, raise_error
from kcore.errors import ApiError
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import describe_acls as de

#: The code that stands for all in a filter.
ANY = 1


class Acl(NamedTuple):
    """The types, the operation and the permission are Kafka's codes."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which ACLs: None and ANY stand for all."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY


class AclClient(AdminClient):
    """For one thread.  Every method raises SecurityDisabled where the brokers have no authorizer, and
    ClusterAuthorizationFailed."""

    def acls(self, wanted: AclFilter) -> list[Acl]:
        """In the order of their fields."""
        request = de.DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        response = self._ask_any(request, de.DescribeAclsResponse)
        raise_error(response.error_code, response.error_message)
        return sorted(
            Acl(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in response.resources
            for acl in resource.acls
        )

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, ApiError | None]:
        """The error of each, None for one that is made or was there already."""
        creations = [
            ca.AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
        response = self._ask_any(ca.CreateAclsRequest(creations=creations), ca.CreateAclsResponse)
        results = zip(acls, response.results, strict=True)
        return {acl: error_of(result.error_code, result.error_message) for acl, result in results}

    def delete_acls(self, acls: Iterable[Acl]) -> dict[Acl, ApiError | None]:
        """The error of each, None for one that is deleted or was gone already."""
        wanted = list(acls)
        filters = [
            da.DeleteAclsFilter(
                resource_type_filter=acl.resource_type,
                resource_name_filter=acl.resource_name,
                pattern_type_filter=acl.pattern_type,
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in wanted
        ]
        response = self._ask_any(da.DeleteAclsRequest(filters=filters), da.DeleteAclsResponse)
        errors = {}
        for acl, result in zip(wanted, response.filter_results, strict=True):
            errors[acl] = error_of(result.error_code, result.error_message)
            for matching in result.matching_acls:
                errors[acl] = errors[acl] or error_of(matching.error_code, matching.error_message)
        return errors
