"""Kafka's error codes, one exception class each, and the errors that never cross the wire.

``code`` and ``retriable`` live on the class; two classes with one code fail at import.
Source: Kafka's Errors table, 3.9 and 4.x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class KafkaError(Exception):
    """Anything that kcore raises on purpose."""


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


def code_of(error: BaseException) -> int:
    """The code a response carries for this exception; UNKNOWN_SERVER_ERROR for anything unforeseen."""
    return error.code if isinstance(error, ApiError) else UnknownServerError.code


class UnknownServerError(ApiError):
    code = -1


class OffsetOutOfRange(ApiError):
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
    code = 3
    retriable = True


class InvalidFetchSize(ApiError):
    code = 4


class LeaderNotAvailable(ApiError):
    code = 5
    retriable = True


class NotLeaderOrFollower(ApiError):
    code = 6
    retriable = True


class RequestTimedOut(ApiError):
    code = 7
    retriable = True


class BrokerNotAvailable(ApiError):
    code = 8


class ReplicaNotAvailable(ApiError):
    code = 9
    retriable = True


class MessageTooLarge(ApiError):
    code = 10


class StaleControllerEpoch(ApiError):
    code = 11


class OffsetMetadataTooLarge(ApiError):
    code = 12


class NetworkException(ApiError):
    code = 13
    retriable = True


class CoordinatorLoadInProgress(ApiError):
    code = 14
    retriable = True


class CoordinatorNotAvailable(ApiError):
    code = 15
    retriable = True


class NotCoordinator(ApiError):
    code = 16
    retriable = True


class InvalidTopicException(ApiError):
    code = 17


class RecordListTooLarge(ApiError):
    code = 18


class NotEnoughReplicas(ApiError):
    code = 19
    retriable = True


class NotEnoughReplicasAfterAppend(ApiError):
    code = 20
    retriable = True


class InvalidRequiredAcks(ApiError):
    code = 21


class IllegalGeneration(ApiError):
    code = 22


class InconsistentGroupProtocol(ApiError):
    code = 23


class InvalidGroupId(ApiError):
    code = 24


class UnknownMemberId(ApiError):
    code = 25


class InvalidSessionTimeout(ApiError):
    code = 26


class RebalanceInProgress(ApiError):
    code = 27


class InvalidCommitOffsetSize(ApiError):
    code = 28


class TopicAuthorizationFailed(ApiError):
    code = 29


class GroupAuthorizationFailed(ApiError):
    code = 30


class ClusterAuthorizationFailed(ApiError):
    code = 31


class InvalidTimestamp(ApiError):
    """record_errors: as of InvalidRecord."""

    code = 32

    def __init__(self, message: str = "", *, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = list(record_errors)


class UnsupportedSaslMechanism(ApiError):
    code = 33


class IllegalSaslState(ApiError):
    code = 34


class UnsupportedVersion(ApiError):
    code = 35


class TopicAlreadyExists(ApiError):
    code = 36


class InvalidPartitions(ApiError):
    code = 37


class InvalidReplicationFactor(ApiError):
    code = 38


class InvalidReplicaAssignment(ApiError):
    code = 39


class InvalidConfig(ApiError):
    code = 40


class NotController(ApiError):
    code = 41
    retriable = True


class InvalidRequest(ApiError):
    code = 42


class UnsupportedForMessageFormat(ApiError):
    code = 43


class PolicyViolation(ApiError):
    code = 44


class OutOfOrderSequenceNumber(ApiError):
    code = 45


class DuplicateSequenceNumber(ApiError):
    code = 46


class InvalidProducerEpoch(ApiError):
    code = 47


class InvalidTxnState(ApiError):
    code = 48


class InvalidProducerIdMapping(ApiError):
    code = 49


class InvalidTransactionTimeout(ApiError):
    code = 50


class ConcurrentTransactions(ApiError):
    code = 51
    retriable = True


class TransactionCoordinatorFenced(ApiError):
    code = 52


class TransactionalIdAuthorizationFailed(ApiError):
    code = 53


class SecurityDisabled(ApiError):
    code = 54


class OperationNotAttempted(ApiError):
    code = 55


class KafkaStorageError(ApiError):
    code = 56
    retriable = True


class LogDirNotFound(ApiError):
    code = 57


class SaslAuthenticationFailed(ApiError):
    code = 58


class UnknownProducerId(ApiError):
    code = 59


class ReassignmentInProgress(ApiError):
    code = 60


class DelegationTokenAuthDisabled(ApiError):
    code = 61


class DelegationTokenNotFound(ApiError):
    code = 62


class DelegationTokenOwnerMismatch(ApiError):
    code = 63


class DelegationTokenRequestNotAllowed(ApiError):
    code = 64


class DelegationTokenAuthorizationFailed(ApiError):
    code = 65


class DelegationTokenExpired(ApiError):
    code = 66


class InvalidPrincipalType(ApiError):
    code = 67


class NonEmptyGroup(ApiError):
    code = 68


class GroupIdNotFound(ApiError):
    code = 69


class FetchSessionIdNotFound(ApiError):
    code = 70
    retriable = True


class InvalidFetchSessionEpoch(ApiError):
    code = 71
    retriable = True


class ListenerNotFound(ApiError):
    code = 72
    retriable = True


class TopicDeletionDisabled(ApiError):
    code = 73


class FencedLeaderEpoch(ApiError):
    code = 74
    retriable = True


class UnknownLeaderEpoch(ApiError):
    code = 75
    retriable = True


class UnsupportedCompressionType(ApiError):
    code = 76


class StaleBrokerEpoch(ApiError):
    code = 77


class OffsetNotAvailable(ApiError):
    code = 78
    retriable = True


class MemberIdRequired(ApiError):
    code = 79


class PreferredLeaderNotAvailable(ApiError):
    code = 80
    retriable = True


class GroupMaxSizeReached(ApiError):
    code = 81


class FencedInstanceId(ApiError):
    code = 82


class EligibleLeadersNotAvailable(ApiError):
    code = 83
    retriable = True


class ElectionNotNeeded(ApiError):
    code = 84
    retriable = True


class NoReassignmentInProgress(ApiError):
    code = 85


class GroupSubscribedToTopic(ApiError):
    code = 86


class InvalidRecord(ApiError):
    """Records that break a rule.  record_errors: (index in the batch, message) of each bad one, where known."""

    code = 87

    def __init__(self, message: str = "", *, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.record_errors = list(record_errors)


class UnstableOffsetCommit(ApiError):
    code = 88
    retriable = True


class ThrottlingQuotaExceeded(ApiError):
    code = 89
    retriable = True


class ProducerFenced(ApiError):
    code = 90


class ResourceNotFound(ApiError):
    code = 91


class DuplicateResource(ApiError):
    code = 92


class UnacceptableCredential(ApiError):
    code = 93


class InconsistentVoterSet(ApiError):
    code = 94


class InvalidUpdateVersion(ApiError):
    code = 95


class FeatureUpdateFailed(ApiError):
    code = 96


class PrincipalDeserializationFailure(ApiError):
    code = 97


class SnapshotNotFound(ApiError):
    code = 98


class PositionOutOfRange(ApiError):
    code = 99


class UnknownTopicId(ApiError):
    code = 100
    retriable = True


class DuplicateBrokerRegistration(ApiError):
    code = 101


class BrokerIdNotRegistered(ApiError):
    code = 102


class InconsistentTopicId(ApiError):
    code = 103
    retriable = True


class InconsistentClusterId(ApiError):
    code = 104


class TransactionalIdNotFound(ApiError):
    code = 105


class FetchSessionTopicIdError(ApiError):
    code = 106
    retriable = True


class IneligibleReplica(ApiError):
    code = 107


class NewLeaderElected(ApiError):
    code = 108


class OffsetMovedToTieredStorage(ApiError):
    code = 109


class FencedMemberEpoch(ApiError):
    code = 110


class UnreleasedInstanceId(ApiError):
    code = 111


class UnsupportedAssignor(ApiError):
    code = 112


class StaleMemberEpoch(ApiError):
    code = 113


class MismatchedEndpointType(ApiError):
    code = 114


class UnsupportedEndpointType(ApiError):
    code = 115


class UnknownControllerId(ApiError):
    code = 116


class UnknownSubscriptionId(ApiError):
    code = 117


class TelemetryTooLarge(ApiError):
    code = 118


class InvalidRegistration(ApiError):
    code = 119


class TransactionAbortable(ApiError):
    code = 120


class InvalidRecordState(ApiError):
    code = 121


class ShareSessionNotFound(ApiError):
    code = 122
    retriable = True


class InvalidShareSessionEpoch(ApiError):
    code = 123
    retriable = True


class FencedStateEpoch(ApiError):
    code = 124


class InvalidVoterKey(ApiError):
    code = 125


class DuplicateVoter(ApiError):
    code = 126


class VoterNotFound(ApiError):
    code = 127


class InvalidRegularExpression(ApiError):
    code = 128


class RebootstrapRequired(ApiError):
    code = 129


class StreamsInvalidTopology(ApiError):
    code = 130


class StreamsInvalidTopologyEpoch(ApiError):
    code = 131


class StreamsTopologyFenced(ApiError):
    code = 132


class ShareSessionLimitReached(ApiError):
    code = 133
    retriable = True


class GroupDeletionFailed(ApiError):
    code = 134


class StreamsTopologyDescriptionUpdateFailed(ApiError):
    code = 135


class ControllerIdNotRegistered(ApiError):
    code = 136


class LogError(KafkaError):
    """Something wrong with a file or directory of a log; never sent over the wire as such."""


class CorruptFile(LogError):
    """A checkpoint, snapshot, index or other small file whose bytes cannot be right."""


class CorruptIndex(CorruptFile):
    """An index that breaks its own rules (IDX-12); it is rebuilt, never trusted."""


class IndexFull(LogError):
    """An append to an index that has no slot left."""


class InvalidOffset(LogError):
    """An offset that is not above the one before it (IDX-06, LOG-23)."""


class LogSegmentOffsetOverflow(LogError):
    """An offset whose distance from the segment's base offset does not fit in 31 bits (SEG-04)."""


class OffsetsOutOfOrder(LogError):
    """Offsets do not ascend inside one follower append (LOG-08)."""


class UnexpectedAppendOffset(LogError):
    """A follower append that starts below the log end offset (LOG-08)."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class DirectoryInUse(LogError):
    """Another process holds the `.lock` of a data directory."""


class ReadOnlyLog(LogError):
    """A write to a log that was opened with mode "r"."""


class LogClosed(LogError):
    """A call on a log or segment after close()."""
