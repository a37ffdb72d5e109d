"""MetadataClient: what each broker of a cluster speaks, and the features of the cluster.

Source of the requests: KIP-35 (ApiVersions), KIP-584 (features).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kcore.client.admin_client import Node, raise_error
from kcore.client.config_client import ConfigClient
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


class VersionRange(NamedTuple):
    lowest: int
    highest: int


class BrokerVersions(NamedTuple):
    """apis: by API key.  supported_features: by name, what the broker could do; finalized_features: what its cluster
    does, as far as this broker knows."""

    apis: Mapping[int, VersionRange]
    supported_features: Mapping[str, VersionRange]
    finalized_features: Mapping[str, VersionRange]


class MetadataClient(ConfigClient):
    """For one thread."""

    def versions(self, broker: Node) -> BrokerVersions:
        """What a broker says of itself.  Raises OSError, ApiError."""
        request = ApiVersionsRequest(client_software_name="kcore", client_software_version="1")
        with self._timed():
            response = self._send((broker.host, broker.port), request, ApiVersionsResponse)
        raise_error(response.error_code, None)
        return BrokerVersions(
            {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys},
            {item.name: VersionRange(item.min_version, item.max_version) for item in response.supported_features},
            {
                item.name: VersionRange(item.min_version_level, item.max_version_level)
                for item in response.finalized_features
            },
        )


def api_name(api_key: int) -> str | None:
    """ "ListOffsets"; None for an API of later versions."""
    try:
        return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
    except ValueError:
        return None
