"""Whether a client may see or change the settings of a topic, a group or a broker.

Source: ConfigHelper, KafkaApis.processIncrementalAlterConfigsRequest, Kafka 4.3.
"""

from __future__ import annotations

from typing import Protocol

from kcore.errors import ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.auth_helper import AuthHelper
from kcore.server.requests.request_context import RequestContext

#: ConfigResource.Type, Kafka.
_TOPIC, _GROUP = 2, 32


class ConfigResource(Protocol):
    resource_type: int
    resource_name: str


def check_config_access(
    auth: AuthHelper, context: RequestContext, operation: AclOperation, resource: ConfigResource
) -> None:
    """operation: DESCRIBE_CONFIGS or ALTER_CONFIGS.  What is not a topic's or a group's belongs to the cluster.

    Raises TopicAuthorizationFailed, GroupAuthorizationFailed, ClusterAuthorizationFailed.
    """
    if resource.resource_type == _TOPIC:
        if not auth.authorize(context, operation, ResourceType.TOPIC, resource.resource_name):
            raise TopicAuthorizationFailed("Topic authorization failed.")
    elif resource.resource_type == _GROUP:
        if not auth.authorize(context, operation, ResourceType.GROUP, resource.resource_name):
            raise GroupAuthorizationFailed("Group authorization failed.")
    elif not auth.authorize_cluster(context, operation):
        raise ClusterAuthorizationFailed("Cluster authorization failed.")
