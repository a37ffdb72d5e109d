"""Kafka's error codes, one exception class each, and the errors that never cross the wire.

``code`` and ``retriable`` live on the class; two classes with one code fail at import.
Source: Kafka's Errors table, 3.9 and 4.x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

#: Characters of an error's text, each of four bytes at most.
MAX_TEXT = 8000


class KafkaError(Exception):
    """Anything that kcore raises on purpose."""

    def __str__(self) -> str:
        """Cut where a string of the protocol, of 32767 bytes at most, would have no room for it: names may be long."""
        text = super().__str__()
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


class ApiError(KafkaError):
    """An error with a code that Kafka's protocol can carry."""

    code: ClassVar[int]
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            return
        holder = _BY_CODE.setdefault(cls.code, cls)
        if holder is not cls:
            raise TypeError(f"error code {cls.code} belongs to both {holder.__name__} and {cls.__name__}")


_BY_CODE: dict[int, type[ApiError]] = {}

#: The code of success: not an error, so not a class.
NONE = 0


def for_code(code: int) -> type[ApiError]:
    """The class of an error code; UnknownServerError for a code that is not known here."""
    return _BY_CODE.get(code, UnknownServerError)


def code_of(error: BaseException | None) -> int:
    """The code a response carries for this exception; UNKNOWN_SERVER_ERROR for anything unforeseen, NONE for None."""
    if error is None:
        return NONE
    return error.code if isinstance(error, ApiError) else UnknownServerError.code


class UnknownServerError(ApiError):
    """Something failed on the server that no other code describes; its log says what."""

    code = -1


class OffsetOutOfRange(ApiError):
    """The offset lies outside [log start offset, log end offset]."""

    code = 1


class CorruptMessage(ApiError):
    """Bytes that cannot be a batch or record.

    source: the file or connection they came from; position: bytes from its start, offset: of the batch;
    None where unknown.
    """

    code = 2
    retriable = True

    def __init__(
        self, message: str = "", *, source: str | None = None, position: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.source = source
        self.position = position
        self.offset = offset


class UnknownTopicOrPartition(ApiError):
    """This broker knows no such topic or partition."""

    code = 3
    retriable = True


class InvalidFetchSize(ApiError):
    """A fetch asked for a size that makes no sense."""

    code = 4


class LeaderNotAvailable(ApiError):
    """The partition has no leader at the moment, for instance while it is being created."""

    code = 5
    retriable = True


class NotLeaderOrFollower(ApiError):
    """This broker does not lead (or, for a follower's read, replicate) the partition."""

    code = 6
    retriable = True


class RequestTimedOut(ApiError):
    """The answer did not come within the request's timeout; the work may yet be done."""

    code = 7
    retriable = True


class BrokerNotAvailable(ApiError):
    """The broker is not alive."""

    code = 8


class ReplicaNotAvailable(ApiError):
    """The replica that was asked for is not on this broker."""

    code = 9
    retriable = True


class MessageTooLarge(ApiError):
    """A batch is larger than max.message.bytes."""

    code = 10


class StaleControllerEpoch(ApiError):
    """The sender is a controller that has been replaced."""

    code = 11


class OffsetMetadataTooLarge(ApiError):
    """The text beside a committed offset is longer than offset.metadata.max.bytes."""

    code = 12


class NetworkException(ApiError):
    """The connection broke before the answer came; never sent, clients raise it."""

    code = 13
    retriable = True


class CoordinatorLoadInProgress(ApiError):
    """The coordinator is still reading its partition."""

    code = 14
    retriable = True


class CoordinatorNotAvailable(ApiError):
    """The coordinator's topic is not there yet or it is shutting down."""

    code = 15
    retriable = True


class NotCoordinator(ApiError):
    """Another broker coordinates this group or transactional id."""

    code = 16
    retriable = True


class InvalidTopicException(ApiError):
    """The topic's name is not allowed, or the topic is internal and not for clients."""

    code = 17


class RecordListTooLarge(ApiError):
    """The whole record set of a partition is larger than a segment may be."""

    code = 18


class NotEnoughReplicas(ApiError):
    """acks=-1 and the ISR is below min.insync.replicas; nothing was appended."""

    code = 19
    retriable = True


class NotEnoughReplicasAfterAppend(ApiError):
    """The ISR fell below min.insync.replicas after the append."""

    code = 20
    retriable = True


class InvalidRequiredAcks(ApiError):
    """acks is none of 0, 1 and -1."""

    code = 21


class IllegalGeneration(ApiError):
    """The group has moved on to another generation."""

    code = 22


class InconsistentGroupProtocol(ApiError):
    """The member shares no protocol type or protocol with its group."""

    code = 23


class InvalidGroupId(ApiError):
    """The group id is empty where it may not be."""

    code = 24


class UnknownMemberId(ApiError):
    """The group has no such member."""

    code = 25


class InvalidSessionTimeout(ApiError):
    """The session timeout lies outside the broker's bounds."""

    code = 26


class RebalanceInProgress(ApiError):
    """The group is rebalancing: join again."""

    code = 27


class InvalidCommitOffsetSize(ApiError):
    """The commit would make a record that is too large for the offsets topic."""

    code = 28


class TopicAuthorizationFailed(ApiError):
    """The principal may not do this with the topic."""

    code = 29


class GroupAuthorizationFailed(ApiError):
    """The principal may not do this with the group."""

    code = 30


class ClusterAuthorizationFailed(ApiError):
    """The principal may not do this with the cluster."""

    code = 31


class InvalidTimestamp(ApiError):
    """record_errors: as of InvalidRecord."""

    code = 32

    def __init__(self, message: str = "", *, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = list(record_errors)


class UnsupportedSaslMechanism(ApiError):
    """The broker does not speak this SASL mechanism."""

    code = 33


class IllegalSaslState(ApiError):
    """The request does not fit the state of the SASL exchange."""

    code = 34


class UnsupportedVersion(ApiError):
    """This version of the API is not served, or cannot carry a value."""

    code = 35


class TopicAlreadyExists(ApiError):
    """There is a topic of that name."""

    code = 36


class InvalidPartitions(ApiError):
    """The number of partitions is below 1 or below what the topic has."""

    code = 37


class InvalidReplicationFactor(ApiError):
    """The replication factor is below 1 or above the number of brokers."""

    code = 38


class InvalidReplicaAssignment(ApiError):
    """The explicit assignment of replicas is not possible."""

    code = 39


class InvalidConfig(ApiError):
    """A setting is unknown or has a value that is not allowed."""

    code = 40


class NotController(ApiError):
    """Only the controller can do this, and this broker is not it."""

    code = 41
    retriable = True


class InvalidRequest(ApiError):
    """The request's bytes or its combination of fields cannot be right."""

    code = 42


class UnsupportedForMessageFormat(ApiError):
    """The batch or log format does not know what was asked for."""

    code = 43


class PolicyViolation(ApiError):
    """A create or alter policy refuses the request."""

    code = 44


class OutOfOrderSequenceNumber(ApiError):
    """A producer's batch leaves a gap in its sequence numbers."""

    code = 45


class DuplicateSequenceNumber(ApiError):
    """A producer's batch was appended before, too long ago to answer with its offset."""

    code = 46


class InvalidProducerEpoch(ApiError):
    """The producer's epoch is older than the log has seen."""

    code = 47


class InvalidTxnState(ApiError):
    """The transaction's state does not allow this."""

    code = 48


class InvalidProducerIdMapping(ApiError):
    """The producer id is not the one of this transactional id."""

    code = 49


class InvalidTransactionTimeout(ApiError):
    """The transaction timeout is not positive or above transaction.max.timeout.ms."""

    code = 50


class ConcurrentTransactions(ApiError):
    """The previous step of the same transactional id is not yet complete."""

    code = 51
    retriable = True


class TransactionCoordinatorFenced(ApiError):
    """The marker comes from a coordinator that has been replaced."""

    code = 52


class TransactionalIdAuthorizationFailed(ApiError):
    """The principal may not use the transactional id."""

    code = 53


class SecurityDisabled(ApiError):
    """The broker has no authorizer."""

    code = 54


class OperationNotAttempted(ApiError):
    """The batch of operations ended before this one, which was not tried."""

    code = 55


class KafkaStorageError(ApiError):
    """The disk of the log failed; its directory is offline."""

    code = 56
    retriable = True


class DiskFull(KafkaStorageError):
    """The disk is full: nothing was written, the directory stays online, and the next attempt may succeed."""


class LogDirNotFound(ApiError):
    """The broker has no such log directory."""

    code = 57


class SaslAuthenticationFailed(ApiError):
    """The credentials are wrong."""

    code = 58


class UnknownProducerId(ApiError):
    """The log remembers nothing of this producer id."""

    code = 59


class ReassignmentInProgress(ApiError):
    """The partition is being moved already."""

    code = 60


class DelegationTokenAuthDisabled(ApiError):
    """The broker has no delegation tokens."""

    code = 61


class DelegationTokenNotFound(ApiError):
    """There is no such delegation token."""

    code = 62


class DelegationTokenOwnerMismatch(ApiError):
    """The principal is neither owner nor renewer of the token."""

    code = 63


class DelegationTokenRequestNotAllowed(ApiError):
    """Token requests need an authenticated channel that is not itself a token's."""

    code = 64


class DelegationTokenAuthorizationFailed(ApiError):
    """The principal may not do this with the token."""

    code = 65


class DelegationTokenExpired(ApiError):
    """The token has expired."""

    code = 66


class InvalidPrincipalType(ApiError):
    """The principal is of a type that is not supported here."""

    code = 67


class NonEmptyGroup(ApiError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(ApiError):
    """There is no such group."""

    code = 69


class FetchSessionIdNotFound(ApiError):
    """The broker has dropped this fetch session: begin a new one."""

    code = 70
    retriable = True


class InvalidFetchSessionEpoch(ApiError):
    """A request of the fetch session was lost or came twice."""

    code = 71
    retriable = True


class ListenerNotFound(ApiError):
    """The leader has no listener of the name the request came in by."""

    code = 72
    retriable = True


class TopicDeletionDisabled(ApiError):
    """delete.topic.enable is false."""

    code = 73


class FencedLeaderEpoch(ApiError):
    """The client's leader epoch is older than the broker's."""

    code = 74
    retriable = True


class UnknownLeaderEpoch(ApiError):
    """The client's leader epoch is newer than the broker's."""

    code = 75
    retriable = True


class UnsupportedCompressionType(ApiError):
    """The request's version cannot carry the codec of the batch."""

    code = 76


class StaleBrokerEpoch(ApiError):
    """The broker has registered again since."""

    code = 77


class OffsetNotAvailable(ApiError):
    """The new leader's high watermark has not yet caught up."""

    code = 78
    retriable = True


class MemberIdRequired(ApiError):
    """Join again with the member id in this answer."""

    code = 79


class PreferredLeaderNotAvailable(ApiError):
    """The preferred leader is not alive."""

    code = 80
    retriable = True


class GroupMaxSizeReached(ApiError):
    """The group has group.max.size members."""

    code = 81


class FencedInstanceId(ApiError):
    """Another member has taken over this static instance id."""

    code = 82


class EligibleLeadersNotAvailable(ApiError):
    """No replica may become leader."""

    code = 83
    retriable = True


class ElectionNotNeeded(ApiError):
    """The partition has the leader that the election would choose."""

    #: What brokers answer, and `kcore elect` prints: of a preferred election, and of an unclean one.
    PREFERRED_LEADS = "the preferred leader leads already"
    LEADER_IS_ALIVE = "its leader is alive"

    code = 84
    retriable = True


class NoReassignmentInProgress(ApiError):
    """There is no move to cancel."""

    code = 85


class GroupSubscribedToTopic(ApiError):
    """A member still consumes the topic whose offsets should go."""

    code = 86


class InvalidRecord(ApiError):
    """Records that break a rule.  record_errors: (index in the batch, message) of each bad one, where known."""

    code = 87

    def __init__(self, message: str = "", *, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = list(record_errors)


class NoRecordBatch(InvalidRecord):
    """An append of bytes that hold no whole record batch: none at all, a part of one, or something else."""


class UnstableOffsetCommit(ApiError):
    """An open transaction holds offsets of this partition."""

    code = 88
    retriable = True


class ThrottlingQuotaExceeded(ApiError):
    """The quota for changes is used up for now."""

    code = 89
    retriable = True


class ProducerFenced(ApiError):
    """A newer producer has the same transactional id."""

    code = 90


class ResourceNotFound(ApiError):
    """The request names something that is not there."""

    code = 91


class DuplicateResource(ApiError):
    """The request names the same thing twice."""

    code = 92


class UnacceptableCredential(ApiError):
    """The credential does not meet the requirements."""

    code = 93


class InconsistentVoterSet(ApiError):
    """The sender is not a voter as this node sees it."""

    code = 94


class InvalidUpdateVersion(ApiError):
    """The update's version is not the one it changes."""

    code = 95


class FeatureUpdateFailed(ApiError):
    """The features could not be changed."""

    code = 96


class PrincipalDeserializationFailure(ApiError):
    """A forwarded request's principal could not be read."""

    code = 97


class SnapshotNotFound(ApiError):
    """There is no such snapshot."""

    code = 98


class PositionOutOfRange(ApiError):
    """The position lies outside the snapshot."""

    code = 99


class UnknownTopicId(ApiError):
    """This broker knows no topic of that id."""

    code = 100
    retriable = True


class DuplicateBrokerRegistration(ApiError):
    """Another live broker has this id."""

    code = 101


class BrokerIdNotRegistered(ApiError):
    """No broker of that id has registered."""

    code = 102


class InconsistentTopicId(ApiError):
    """The log has another topic id than the request."""

    code = 103
    retriable = True


class InconsistentClusterId(ApiError):
    """The sender belongs to another cluster."""

    code = 104


class TransactionalIdNotFound(ApiError):
    """There is no such transactional id."""

    code = 105


class FetchSessionTopicIdError(ApiError):
    """The fetch session mixes topic names and topic ids."""

    code = 106
    retriable = True


class IneligibleReplica(ApiError):
    """A new member of the ISR may not be in it, being fenced or shutting down."""

    code = 107


class NewLeaderElected(ApiError):
    """The change of the ISR made another broker the leader."""

    code = 108


class OffsetMovedToTieredStorage(ApiError):
    """The offset is only in remote storage."""

    code = 109


class FencedMemberEpoch(ApiError):
    """The coordinator has fenced this member epoch: join again."""

    code = 110


class UnreleasedInstanceId(ApiError):
    """Another member still uses the static instance id."""

    code = 111


class UnsupportedAssignor(ApiError):
    """No member's assignor is known to all."""

    code = 112


class StaleMemberEpoch(ApiError):
    """The member epoch is an old one: fetch the new and try again."""

    code = 113


class MismatchedEndpointType(ApiError):
    """The request came to an endpoint of the other type."""

    code = 114


class UnsupportedEndpointType(ApiError):
    """There is no such type of endpoint here."""

    code = 115


class UnknownControllerId(ApiError):
    """There is no controller of that id."""

    code = 116


class UnknownSubscriptionId(ApiError):
    """The telemetry subscription has changed."""

    code = 117


class TelemetryTooLarge(ApiError):
    """The pushed metrics are too many bytes."""

    code = 118


class InvalidRegistration(ApiError):
    """The controller sees the broker's registration as not valid."""

    code = 119


class TransactionAbortable(ApiError):
    """The transaction must be aborted, the producer may go on."""

    code = 120


class InvalidRecordState(ApiError):
    """The shared record is not in a state to be acknowledged so."""

    code = 121


class ShareSessionNotFound(ApiError):
    """There is no such share session."""

    code = 122
    retriable = True


class InvalidShareSessionEpoch(ApiError):
    """A request of the share session was lost or came twice."""

    code = 123
    retriable = True


class FencedStateEpoch(ApiError):
    """The share state's epoch is an old one."""

    code = 124


class InvalidVoterKey(ApiError):
    """The voter's key is not the receiver's."""

    code = 125


class DuplicateVoter(ApiError):
    """The voter is in the set already."""

    code = 126


class VoterNotFound(ApiError):
    """The voter is not in the set."""

    code = 127


class InvalidRegularExpression(ApiError):
    """The subscription's pattern cannot be compiled."""

    code = 128


class RebootstrapRequired(ApiError):
    """The client's metadata is too old: begin again at the bootstrap servers."""

    code = 129


class StreamsInvalidTopology(ApiError):
    """The streams topology cannot be right."""

    code = 130


class StreamsInvalidTopologyEpoch(ApiError):
    """The streams topology's epoch is not valid."""

    code = 131


class StreamsTopologyFenced(ApiError):
    """The streams topology's epoch is an old one."""

    code = 132


class ShareSessionLimitReached(ApiError):
    """The broker holds as many share sessions as it may."""

    code = 133
    retriable = True


class GroupDeletionFailed(ApiError):
    """The group could not be deleted."""

    code = 134


class StreamsTopologyDescriptionUpdateFailed(ApiError):
    """The description of the streams topology could not be stored."""

    code = 135


class ControllerIdNotRegistered(ApiError):
    """No controller of that id has registered."""

    code = 136


class LogError(KafkaError):
    """Something wrong with a file or directory of a log; never sent over the wire as such."""


class CorruptFile(LogError):
    """A checkpoint, snapshot, index or other small file whose bytes cannot be right."""


class CorruptIndex(CorruptFile):
    """An index that breaks its own rules; it is rebuilt, never trusted."""


class IndexFull(LogError):
    """An append to an index that has no slot left."""


class InvalidOffset(LogError):
    """An offset that is not above the one before it."""


class LogSegmentOffsetOverflow(LogError):
    """An offset whose distance from the segment's base offset does not fit in 31 bits."""


class OffsetsOutOfOrder(LogError):
    """Offsets do not ascend inside one follower append."""


class UnexpectedAppendOffset(LogError):
    """A follower append that starts below the log end offset."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class StartCancelled(KafkaError):
    """A broker's start that waited was ended by Broker.cancel_start()."""


class DirectoryInUse(LogError):
    """Another process holds the `.lock` of a data directory."""


class ClusterMemberDirectory(LogError):
    """A write to a data directory of a cluster's member by others than its broker."""


class ReadOnlyLog(LogError):
    """A write to a log that was opened with mode "r"."""


class LogIsServed(LogError):
    """An append to the log of a partition that a broker leads, or its truncation, close or deletion, by others."""


class LogClosed(LogError):
    """A call on a log or segment after close()."""


class LogCleaningAborted(LogError):
    """The cleaner stopped cleaning a log that another operation needs."""


class NegativeReadSize(LogError, ValueError):
    """A read of at most a negative number of bytes."""


class NotAPartitionDirectory(LogError, ValueError):
    """A path that names no partition's directory, as a data directory or a name without a partition."""
