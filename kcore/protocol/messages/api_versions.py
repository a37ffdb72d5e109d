"""ApiVersions (18): which versions a broker speaks."""

from __future__ import annotations

from collections.abc import Mapping

from kcore.errors import UnsupportedVersion
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message):
    """Which versions does the broker speak? The first request of most clients."""

    api_key = ApiKey.API_VERSIONS
    min_version, max_version, flexible_version = 0, 5, 3

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    node_id: int = int32("5+", default=-1, ignorable=True)


class ApiVersion(Struct):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


_GROUP_VERSION, _TRANSACTION_VERSION = "group.version", "transaction.version"


class ApiVersionsResponse(Message):
    """The API keys with their version ranges. Its header is version 0 always, so that any client can read it."""

    api_key = ApiKey.API_VERSIONS
    min_version, max_version, flexible_version = 0, 5, 3

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)


def api_versions_response(
    ranges: Mapping[ApiKey, tuple[int, int]],
    error_code: int = 0,
    throttle_time_ms: int = 0,
    version: int = 4,
    transaction_version: tuple[int, int, int] = (0, 0, 0),
) -> ApiVersionsResponse:
    """What this broker speaks: the lowest and the highest version of each API, in this order.

    With the API versions of Kafka 4.0 it has the feature group.version, the groups of KIP-848, as a broker of 4.0 has.
    transaction_version: of that feature the level that this broker knows and the one in use, 0 for none; the epoch.
    version: of the request.  Clients of those before 4 end at a feature that may be off, so they are not told that it
    may be (KIP-1022).
    """
    keys = [ApiVersion(api_key=int(key), min_version=low, max_version=high) for key, (low, high) in ranges.items()]
    response = ApiVersionsResponse(error_code=error_code, api_keys=keys, throttle_time_ms=throttle_time_ms)
    group_version = int(ranges.get(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 0))[1] >= 1)
    supported, finalized, epoch = transaction_version
    levels = ((_GROUP_VERSION, group_version, group_version), (_TRANSACTION_VERSION, supported, finalized))
    if group_version or supported:
        response.finalized_features_epoch = epoch
    response.finalized_features = [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, _, level in levels
        if level
    ]
    if version >= 4:
        response.supported_features = [
            SupportedFeatureKey(name=name, min_version=0, max_version=high) for name, high, _ in levels if high
        ]
    return response


def unsupported_version_response(versions: tuple[int, int]) -> ApiVersionsResponse:
    """The answer to an ApiVersions request of a version that we do not know.

    The request's body must not be decoded, and the answer is to be encoded in version 0, whatever was asked.  The only
    key in it is ApiVersions' own, with the versions that are served; from them the client picks the version of its next
    request.
    Source: KIP-511, and the bytes that a 4.3.1 broker answers.
    """
    low, high = versions
    key = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=low, max_version=high)
    return ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[key])
