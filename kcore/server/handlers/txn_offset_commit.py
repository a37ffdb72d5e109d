"""TxnOffsetCommit (28): offsets of a group that count once the transaction is committed."""

from __future__ import annotations

from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.member_metadata import GroupMember
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    NetworkException,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.log.producer_state_entry import NO_SEQUENCE
from kcore.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import (
    TXN_OFFSET_COMMIT_THAT_ADDS,
    may_write_transactions,
    verification_error,
)


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._group_coordinator = services.group_coordinator
        self._transaction_verifier = services.transaction_verifier
        self._time = services.time
        self._auth = services.auth

    def handle(self, context: RequestContext, body: TxnOffsetCommitRequest) -> None:
        if not may_write_transactions(self._auth, context, body.transactional_id):
            code = TransactionalIdAuthorizationFailed.code
            context.respond(self.error_response(body, code, context.api_version))
            return
        if not self._auth.authorize(context, AclOperation.READ, ResourceType.GROUP, body.group_id):
            context.respond(self.error_response(body, GroupAuthorizationFailed.code, context.api_version))
            return
        cache, now_ms = self._cache.snapshot, self._time.milliseconds()
        names = {topic.name for topic in body.topics}
        permitted = self._auth.filter_by_authorized(context, AclOperation.READ, ResourceType.TOPIC, names)
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        codes: dict[TopicPartition, int] = {}
        for topic in body.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if topic.name not in permitted:
                    codes[topic_partition] = TopicAuthorizationFailed.code
                elif not cache.contains(topic_partition):
                    codes[topic_partition] = UnknownTopicOrPartition.code
                else:
                    offsets[topic_partition] = OffsetAndMetadata(
                        partition.committed_offset,
                        partition.committed_metadata or "",
                        partition.committed_leader_epoch,
                        now_ms,
                    )

        def respond(results: dict[TopicPartition, int]) -> None:
            codes.update((tp, _code_for_version(code, context.api_version)) for tp, code in results.items())
            context.respond(_response(body, codes))

        if not offsets:
            respond({})
            return
        producer = Producer(body.producer_id, body.producer_epoch)
        groups_partition = TopicPartition(GROUP_METADATA_TOPIC, self._group_coordinator.partition_for(body.group_id))

        def commit(errors: dict[TopicPartition, ApiError]) -> None:
            error = errors.get(groups_partition)
            if error is not None:
                code = _verification_code(error, context.api_version)
                respond(dict.fromkeys(offsets, code))
                return
            member = GroupMember(body.member_id, body.group_instance_id, body.generation_id)
            self._group_coordinator.offsets.commit_in_transaction(body.group_id, member, producer, offsets, respond)

        try:
            self._group_coordinator.manager.check_group_status(body.group_id)
        except ApiError as error:
            respond(dict.fromkeys(offsets, error.code))
            return
        asked, adds = {groups_partition: NO_SEQUENCE}, context.api_version >= TXN_OFFSET_COMMIT_THAT_ADDS
        self._transaction_verifier.verify(body.transactional_id, producer, asked, commit, adds=adds)

    def error_response(self, body: TxnOffsetCommitRequest, error_code: int, version: int) -> TxnOffsetCommitResponse:
        partitions = [TopicPartition(topic.name, p.partition_index) for topic in body.topics for p in topic.partitions]
        return _response(body, dict.fromkeys(partitions, error_code))


def _verification_code(error: ApiError, version: int) -> int:
    """Why the partition of the group's offsets is not known to be in the transaction (TXN-29 to 31)."""
    if isinstance(error, NetworkException):
        return CoordinatorLoadInProgress.code
    return verification_error(error, abortable_known=version >= 4).code


def _code_for_version(error_code: int, version: int) -> int:
    """The first clients do not know COORDINATOR_LOAD_IN_PROGRESS here (TXN-46)."""
    if error_code == CoordinatorLoadInProgress.code and version < 2:
        return CoordinatorNotAvailable.code
    return error_code


def _response(body: TxnOffsetCommitRequest, codes: dict[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=codes[TopicPartition(topic.name, p.partition_index)],
                    )
                    for p in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )
