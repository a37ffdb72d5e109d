"""ConsumerGroupDescribe (69): consumer groups of KIP-848, with their members' assignments and targets."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kcore.coordinator.group.consumer_assignors import Partitions
from kcore.coordinator.group.consumer_group import ConsumerGroup
from kcore.coordinator.group.consumer_group_records import by_topic
from kcore.errors import ApiError, GroupAuthorizationFailed, TopicAuthorizationFailed
from kcore.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeTopicPartitions,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.auth_helper import NOT_ASKED
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class Handler:
    runs_on = RunsOn.POOL  # as many members as the groups have

    def __init__(self, services: Services) -> None:
        self._coordinator = services.group_coordinator.consumer_groups
        self._cache = services.metadata_cache
        self._auth = services.auth

    def handle(self, context: RequestContext, body: ConsumerGroupDescribeRequest) -> None:
        groups = []
        # Each group once: many times one with many members would make a very large response.
        group_ids = list(dict.fromkeys(body.group_ids))
        permitted = self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_ids)
        for group_id in group_ids:
            if group_id not in permitted:
                groups.append(ConsumerGroupDescribedGroup(error_code=GroupAuthorizationFailed.code, group_id=group_id))
                continue
            try:
                described = self._described(context, self._coordinator.describe(group_id))
            except ApiError as error:
                groups.append(
                    ConsumerGroupDescribedGroup(error_code=error.code, error_message=str(error), group_id=group_id)
                )
                continue
            if body.include_authorized_operations:
                described.authorized_operations = self._auth.authorized_operations(
                    context, ResourceType.GROUP, group_id
                )
            groups.append(described)
        context.respond(ConsumerGroupDescribeResponse(groups=groups))

    def _described(self, context: RequestContext, group: ConsumerGroup) -> ConsumerGroupDescribedGroup:
        """Raises TopicAuthorizationFailed."""
        cache = self._cache.snapshot
        ids = {
            topic_id
            for member in group.members.values()
            for topic_id, _ in member.assigned | group.targets.get(member.member_id, frozenset())
        }
        names = {topic_id: name for topic_id in ids if (name := cache.topic_name(topic_id)) is not None}
        topics = group.subscribed_topics.union(names.values())
        if len(self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topics)) < len(
            topics
        ):
            raise TopicAuthorizationFailed(
                f"The group {group.group_id} has topics that the client is not authorized to describe."
            )
        return ConsumerGroupDescribedGroup(
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor_name(self._coordinator.default_assignor),
            authorized_operations=NOT_ASKED,
            members=[
                ConsumerGroupDescribeMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=list(member.topics),
                    subscribed_topic_regex=member.regex,
                    assignment=_assignment(member.assigned, names),
                    target_assignment=_assignment(group.targets.get(member.member_id, frozenset()), names),
                    member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
                )
                for member in group.members.values()
            ],
        )

    def error_response(
        self, body: ConsumerGroupDescribeRequest, error_code: int, version: int
    ) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(
            groups=[
                ConsumerGroupDescribedGroup(error_code=error_code, group_id=group_id) for group_id in body.group_ids
            ]
        )


def _assignment(partitions: Partitions, names: Mapping[UUID, str]) -> ConsumerGroupDescribeAssignment:
    """Of topics that still exist."""
    return ConsumerGroupDescribeAssignment(
        topic_partitions=[
            ConsumerGroupDescribeTopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=numbers)
            for topic_id, numbers in by_topic(partitions)
            if topic_id in names
        ]
    )
