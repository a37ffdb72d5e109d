"""AdminClient: asks brokers about a cluster and has them change it, over the wire protocol.

Nothing of a broker is needed in this process, so it works with Kafka's brokers too.  Source of the requests: KIP-4,
KIP-195, KIP-339, KIP-455, KIP-460.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self, TypeVar
from uuid import UUID

from kcore.client.blocking_sender import BlockingSender
from kcore.client.broker_process import process_of_address
from kcore.client.first_answer import all_answers, first_answer
from kcore.client.monitor import store_lock
from kcore.client.negotiating_sender import newest_version
from kcore.common import topic_names
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidPartitions,
    InvalidTopicException,
    KafkaError,
    LeaderNotAvailable,
    NotController,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
    for_code,
)
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import alter_partition_reassignments as apr
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import elect_leaders as el
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import init_producer_id as ipi
from kcore.protocol.messages import list_partition_reassignments as lpr
from kcore.protocol.messages import metadata as m
from kcore.protocol.schema import Message

Address = tuple[str, int]
_M = TypeVar("_M", bound=Message)

_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
#: Where a value comes from: the topic itself; settings that one broker was given while it ran.
_TOPIC_SOURCE, _BROKER_SOURCE = 1, 2
#: Before the controller is looked up again.
RETRY_MS = 200
#: A version that is above all others.
NEWEST = 0x7FFF
#: Before another broker is asked too, which may answer as well.
_HEAD_START_S = 0.5
#: After so long without an answer a broker is asked for its versions, over a connection of its own.
_DOUBT_S = 0.75
#: A broker that has not answered that after so long is silent.
_SILENCE_MS = 1500
#: The same for one whose process is stopped: a debugger may stop it only for a moment.
_STOPPED_SILENCE_MS = 300
#: Requests that change a cluster, unless they are validate_only.
_CHANGES = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ELECT_LEADERS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
    ApiKey.WRITE_TXN_MARKERS,
}
#: Changes that are the same when they are made twice: each says what is to be there, or be gone, in the end.
_REPEATABLE = {
    ApiKey.INCREMENTAL_ALTER_CONFIGS,  # which sets and deletes; appending would not be the same
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
}
_MAY_FOLLOW = "the broker may still make the change: look before you give the command again"

#: What an ACL decides.
_DENIALS = (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)


class Node(NamedTuple):
    """A live broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class PartitionDescription(NamedTuple):
    """leader: below 0 for none.  offline: replicas that are not available, as far as the broker says."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicDescription(NamedTuple):
    """topic_id: None from brokers before 2.8.  partitions: by number."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionDescription]


class ClusterDescription(NamedTuple):
    """controller_id: below 0 for none.  topics: by name."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Node]
    topics: Mapping[str, TopicDescription]


class ConfigValue(NamedTuple):
    """A setting of a topic or of a broker.  is_own: the topic has it itself, or this broker was given it while it ran;
    else it has the broker's value, or the default."""

    value: str | None
    is_own: bool


class Reassignment(NamedTuple):
    """replicas: all current ones, including those that are being added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)


class Silence(NamedTuple):
    """Why a broker does not answer.  stands_still: its process is stopped, so that no answer will come.  is_locked: it
    waits for a metadata store that a program has locked, and the client does not (ends_where_locked)."""

    reason: str
    stands_still: bool
    is_locked: bool = False

    @property
    def ends_request(self) -> bool:
        return self.stands_still or self.is_locked


def silence_text(address: Address, silence: Silence) -> str:
    return f"{address[0]}:{address[1]} does not answer: {silence.reason}"


class AdminClient:
    """For one thread.  Lifetime: a with block, or close().

    timeout_ms: for each call, whatever it has to ask.  Every method raises OSError where no broker can be reached or
    none answers in time, UnsupportedVersion where the broker does not serve the request, and the error of the whole
    request.  What goes to the controller is sent again, within the timeout, as long as there is none, it cannot be
    reached or another broker has become it.

    What any broker can answer is asked of one; when it has not answered after half a second the next one is asked too,
    and the first answer counts.  Those of `bootstrap` come first, then those that a cluster's description named; one
    that was silent comes last from then on.

    A broker that cannot be reached while another one answers, or that has not answered for a while and then does not
    answer a request for its versions within 1.5 s either (0.3 s if its process is stopped), is silent:
    on_silence(address, silence) is called once, on any thread.  If its process is one of this machine and stands still,
    the request ends at once.

    The error of a change that was sent and not answered has a note: a broker may still make it.  Where such a change is
    sent again, and the answer is that it is made already (TopicAlreadyExists, InvalidPartitions of a topic that has as
    many as it should get, UnknownTopicOrPartition of a deletion, GroupIdNotFound), it counts as made.  Settings, ACLs,
    quotas and moves between data directories are sent to a broker once more where the connection broke.

    ends_where_locked: so does one that a broker of this machine does not answer while a program has its store locked.
    silent: the brokers that another client has found to be so; `silent` has those of this one.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "kcore-admin",
        timeout_ms: int = 30_000,
        on_silence: Callable[[Address, Silence], None] = lambda address, silence: None,
        ends_where_locked: bool = False,
        silent: Mapping[Address, Silence] = MappingProxyType({}),
        time: Time = SYSTEM_TIME,
    ) -> None:
        self._ends_where_locked = ends_where_locked
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._time = time
        # A broker that waits for the controller answers so early that the answer is here in time.
        self._broker_timeout_ms = timeout_ms - min(1000, timeout_ms // 4)
        self._deadline_ms: float | None = None
        #: Whether a request of this call may have changed something: it was sent, and what became of it is not known.
        self._is_change_open = False
        self._senders: dict[Address, BlockingSender] = {}
        #: Of the cluster's last description.
        self._brokers: list[Address] = []
        self._coordinators_topics: set[str] = set()  # that were seen
        self._on_silence = on_silence
        self._silence_lock = threading.Lock()
        self._silent = dict(silent)
        #: What was known of a broker's process when a request to it had waited for a while: why it may not answer.
        self._doubts: dict[Address, str] = {}
        #: Those that have answered a request.
        self._answered: set[Address] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()

    # -- what there is ----------------------------------------------------------------------------------

    @property
    def silent(self) -> Mapping[Address, Silence]:
        with self._silence_lock:
            return dict(self._silent)

    def describe_cluster(self, topics: Iterable[str] | None = None) -> ClusterDescription:
        """Brokers, controller, and these topics, all for None.  Raises UnknownTopicOrPartition, and the error
        of a topic that may not be described or cannot exist."""
        named = None if topics is None else [m.MetadataRequestTopic(name=name) for name in topics]
        response = self._ask_any(m.MetadataRequest(topics=named, allow_auto_topic_creation=False), m.MetadataResponse)
        raise_error(response.error_code, None)
        described = {}
        for topic in response.topics:
            if topic.error_code not in (NONE, LeaderNotAvailable.code):
                kind = for_code(topic.error_code)
                raise kind(_why_not_described(topic.name or "", kind))
            partitions = {
                partition.partition_index: PartitionDescription(
                    partition.leader_id,
                    partition.leader_epoch,
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                    tuple(partition.offline_replicas),
                )
                for partition in topic.partitions
            }
            name = topic.name or ""
            topic_id = topic.topic_id if topic.topic_id.int else None
            described[name] = TopicDescription(name, topic_id, topic.is_internal, dict(sorted(partitions.items())))
        brokers = {broker.node_id: Node(*_node(broker)) for broker in response.brokers}
        self._brokers = [(node.host, node.port) for node in brokers.values()]
        return ClusterDescription(
            response.cluster_id, response.controller_id, dict(sorted(brokers.items())), dict(sorted(described.items()))
        )

    def _has_topic(self, name: str) -> bool:
        """Before FindCoordinator, which makes the coordinators' topic: who only looks makes none.  True also where the
        topic may not be described."""
        if name not in self._coordinators_topics:
            try:
                self.describe_cluster([name])
            except UnknownTopicOrPartition:
                return False
            except ApiError:
                return True
            self._coordinators_topics.add(name)
        return True

    def silent_brokers(self, brokers: Iterable[Node]) -> dict[int, Silence]:
        """By broker id, those that cannot be reached or do not answer within 1.5 s: the cluster may not know it yet.
        All are asked at the same time; of one that is silent already the reason is known."""
        addresses = {node.broker_id: (node.host, node.port) for node in brokers}
        answers = all_answers(set(addresses.values()) - self._silent.keys(), self._silence_of) | self._silent
        silent = {broker_id: answers[address] for broker_id, address in addresses.items()}
        return {broker_id: silence for broker_id, silence in silent.items() if isinstance(silence, Silence)}

    def note_silent_brokers(self, brokers: Collection[Node]) -> dict[int, Silence]:
        """As silent_brokers(); from now on they are known to be silent, without a call of on_silence."""
        silent = self.silent_brokers(brokers)
        addresses = {node.broker_id: (node.host, node.port) for node in brokers}
        with self._silence_lock:
            self._silent |= {addresses[broker_id]: silence for broker_id, silence in silent.items()}
        return silent

    def _silence_of(self, address: Address) -> Silence | None:
        """None for a broker that answers a request for its versions."""
        return self._silence_within(_SILENCE_MS, address)

    def _silence_in_doubt(self, address: Address) -> Silence | None:
        """The same of one that has not answered another request for a while: one whose process is stopped has less
        time."""
        process = process_of_address(*address)
        if process is None or process.stopped_reason() is None:
            return self._silence_of(address)
        return self._silence_within(_STOPPED_SILENCE_MS, address)

    def _silence_within(self, timeout_ms: int, address: Address) -> Silence | None:
        known = self._silence_elsewhere(address)
        if known is not None:
            return known
        sender = BlockingSender(*address, self._client_id, request_timeout_ms=timeout_ms, time=self._time)
        try:
            sender.api_versions()
        except TimeoutError:
            process = process_of_address(*address)
            stands_still = process is not None and process.stopped_reason() is not None
            why = None if process is None else process.silence_reason()
            return Silence(f"no answer within {timeout_ms / 1000:g} s{f': {why}' if why else ''}", stands_still)
        except OSError as error:
            return Silence(plain_error(error).removeprefix(f"{address[0]}:{address[1]}: "), False)
        except KafkaError as error:
            return Silence(f"it does not answer as a broker does: {error}", False)
        finally:
            sender.close()
        return None

    def _silence_elsewhere(self, address: Address) -> Silence | None:
        """That of a broker which was silent at another address, as localhost for 127.0.0.1, if its process listens here
        too, and still stands still."""
        with self._silence_lock:
            others = {other: silence for other, silence in self._silent.items() if silence.stands_still}
        if not others or address in others:
            return None
        process = process_of_address(*address)
        if process is None or process.stopped_reason() is None:
            return None
        for other, silence in others.items():
            its_process = process_of_address(*other)
            if its_process is not None and its_process.pid == process.pid:
                return silence
        return None

    def _note_silence(self, address: Address, silence: Silence) -> None:
        with self._silence_lock:
            is_new = address not in self._silent
            self._silent[address] = silence
        if is_new:
            self._on_silence(address, silence)

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """Topic -> setting -> value.  Raises UnknownTopicOrPartition."""
        request = _describe_request(_TOPIC, names)
        return _configs(self._ask_any(request, dc.DescribeConfigsResponse), _TOPIC_SOURCE)

    def broker_config(self, broker: Node) -> dict[str, ConfigValue]:
        """Setting -> value of a running broker."""
        request = _describe_request(_BROKER, [str(broker.broker_id)])
        with self._timed():
            response = self._send((broker.host, broker.port), request, dc.DescribeConfigsResponse)
        (config,) = _configs(response, _BROKER_SOURCE).values()
        return config

    def reassignments(
        self, topic_partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Those that run, of these partitions or of all."""
        topics = None
        if topic_partitions is not None:
            topics = [
                lpr.ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in _by_topic(topic_partitions).items()
            ]
        request = lpr.ListPartitionReassignmentsRequest(timeout_ms=self._broker_timeout_ms, topics=topics)
        response = self._ask_controller(
            request, lpr.ListPartitionReassignmentsResponse, lambda response: [response.error_code]
        )
        raise_error(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, partition.partition_index): Reassignment(
                tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
            )
            for topic in response.topics
            for partition in topic.partitions
        }

    # -- changes ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> tuple[int, int]:
        """How many partitions and replicas it got, each -1 from brokers before 2.4.

        -1: the broker's default.  assignment: the brokers of each partition, instead of both numbers.

        Raises what CreateTopics answers: TopicAlreadyExists, InvalidReplicationFactor and so on.
        """
        topic = ct.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[
                ct.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
                for number, replicas in enumerate(assignment or ())
            ],
            configs=[ct.CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()],
        )
        request = ct.CreateTopicsRequest(topics=[topic], timeout_ms=self._broker_timeout_ms)
        with self._timed() as deadline_ms:
            response = self._ask_controller(
                request, ct.CreateTopicsResponse, lambda response: [topic.error_code for topic in response.topics]
            )
            (result,) = response.topics
            if self._is_made_already(result.error_code, TopicAlreadyExists):
                size = self._await_size(name, deadline_ms, 1)
                wanted = (partitions, replication_factor)
                if assignment:
                    wanted = len(assignment), max(map(len, assignment))
                if size is not None and all(want in (-1, has) for want, has in zip(wanted, size, strict=True)):
                    return size
        raise_error(result.error_code, result.error_message)
        return result.num_partitions, result.replication_factor

    def _await_size(self, name: str, deadline_ms: float, least: int) -> tuple[int, int] | None:
        """How many partitions, at least so many, and replicas a topic has that was just created or has grown: the
        brokers may not know it yet.  None where they do not until the deadline: it is being deleted."""
        while True:
            try:
                partitions = self.describe_cluster([name]).topics[name].partitions
            except (OSError, ApiError):
                partitions = {}
            if len(partitions) >= least:
                return len(partitions), max(len(partition.replicas) for partition in partitions.values())
            if self._time.hi_res_clock_ms() + RETRY_MS > deadline_ms:
                return None
            self._time.sleep(RETRY_MS)

    def create_partitions(self, name: str, count: int) -> None:
        """Grow a topic to this many partitions.  Raises UnknownTopicOrPartition, InvalidPartitions and so on."""
        topic = cp.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = cp.CreatePartitionsRequest(topics=[topic], timeout_ms=self._broker_timeout_ms)
        with self._timed() as deadline_ms:
            response = self._ask_controller(
                request, cp.CreatePartitionsResponse, lambda response: [topic.error_code for topic in response.results]
            )
            (result,) = response.results
            if self._is_made_already(result.error_code, InvalidPartitions):
                size = self._await_size(name, deadline_ms, count)
                if size is not None and size[0] == count:
                    return
        raise_error(result.error_code, result.error_message)

    def delete_topic(self, name: str) -> None:
        """Raises UnknownTopicOrPartition, TopicDeletionDisabled and so on."""
        request = dt.DeleteTopicsRequest(
            topics=[dt.DeleteTopicState(name=name)], topic_names=[name], timeout_ms=self._broker_timeout_ms
        )
        response = self._ask_controller(
            request, dt.DeleteTopicsResponse, lambda response: [topic.error_code for topic in response.responses]
        )
        for result in response.responses:
            if not self._is_made_already(result.error_code, UnknownTopicOrPartition):
                raise_error(result.error_code, result.error_message)

    def waiting_deletion(self, name: str) -> str | None:
        """Of a topic that a cluster's description does not have: what is known of its deletion if its name is still
        taken, None if a topic of this name could be created now.

        Raises TopicAlreadyExists if it is the name of a topic that is not being deleted: its node cannot be read, or
        all of its replicas are on dead brokers; and what CreateTopics answers: TopicAuthorizationFailed and so on.
        """
        topic = ct.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = ct.CreateTopicsRequest(topics=[topic], timeout_ms=self._broker_timeout_ms, validate_only=True)
        response = self._ask_controller(
            request, ct.CreateTopicsResponse, lambda response: [topic.error_code for topic in response.topics]
        )
        (result,) = response.topics
        if result.error_code != TopicAlreadyExists.code:
            raise_error(result.error_code, result.error_message)
            return None
        # Kafka's brokers say only that the topic exists.
        message = result.error_message or ""
        if "exists, but" in message:
            raise TopicAlreadyExists(message)
        return message if "delet" in message else f"Topic '{name}' is being deleted."

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set settings of a topic; None deletes one.  Raises UnknownTopicOrPartition, InvalidConfig."""
        request = _alter_request(_TOPIC, name, changes)
        response = self._ask_any(request, iac.IncrementalAlterConfigsResponse)
        for result in response.responses:
            raise_error(result.error_code, result.error_message)

    def alter_broker_config(self, broker: Node, changes: Mapping[str, str | None]) -> None:
        """Set settings of a running broker; None deletes one.  Raises InvalidRequest for a setting that a running
        broker cannot change, InvalidConfig."""
        request = _alter_request(_BROKER, str(broker.broker_id), changes)
        with self._timed():
            response = self._send_repeatable((broker.host, broker.port), request, iac.IncrementalAlterConfigsResponse)
        for result in response.responses:
            raise_error(result.error_code, result.error_message)

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, ApiError | None]:
        """Begin to move partitions to these replicas, None cancels; the error of each, None where it was accepted."""
        topics = [
            apr.ReassignableTopic(
                name=name,
                partitions=[
                    apr.ReassignablePartition(
                        partition_index=number, replicas=None if replicas is None else list(replicas)
                    )
                    for number in numbers
                    for replicas in [targets[TopicPartition(name, number)]]
                ],
            )
            for name, numbers in _by_topic(targets).items()
        ]
        response = self._ask_controller(
            apr.AlterPartitionReassignmentsRequest(timeout_ms=self._broker_timeout_ms, topics=topics),
            apr.AlterPartitionReassignmentsResponse,
            lambda response: [response.error_code],
            lambda response: response.error_message,
        )
        raise_error(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, partition.partition_index): error_of(
                partition.error_code, partition.error_message
            )
            for topic in response.responses
            for partition in topic.partitions
        }

    def elect_leaders(
        self, topic_partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, ApiError | None]:
        """Elect the preferred leaders; with unclean, a leader for partitions that have none, if need be one that is not
        in sync.  The error of each, ElectionNotNeeded too; of all partitions (None) those without it."""
        named = None
        if topic_partitions is not None:
            named = [el.TopicPartitions(topic=t, partitions=n) for t, n in _by_topic(topic_partitions).items()]
        request = el.ElectLeadersRequest(
            election_type=int(unclean), topic_partitions=named, timeout_ms=self._broker_timeout_ms
        )
        response = self._ask_controller(
            request,
            el.ElectLeadersResponse,
            # Kafka's brokers answer NOT_CONTROLLER for each partition.
            lambda response: [p.error_code for p in _partition_results(response)] or [response.error_code],
            lambda response: next((p.error_message for p in _partition_results(response)), None),
        )
        raise_error(response.error_code, None)
        return {
            TopicPartition(topic.topic, partition.partition_id): error_of(partition.error_code, partition.error_message)
            for topic in response.replica_election_results
            for partition in topic.partition_result
        }

    def new_producer_id(self) -> tuple[int, int]:
        """A producer id and its epoch, for a producer without transactions (KIP-98).

        Raises ClusterAuthorizationFailed, CoordinatorLoadInProgress and so on.
        """
        response = self._ask_any(ipi.InitProducerIdRequest(transactional_id=None), ipi.InitProducerIdResponse)
        raise_error(response.error_code, None)
        return response.producer_id, response.producer_epoch

    # -- requests ---------------------------------------------------------------------------------------

    def _ask_any(self, request: Message, response_class: type[_M], max_version: int = NEWEST) -> _M:
        """The first answer of any broker."""
        addresses = list(dict.fromkeys([*self._bootstrap, *self._brokers]))
        addresses.sort(key=self._silent.__contains__)
        senders = {address: self._sender(address) for address in addresses}
        with self._timed():

            def ask(address: Address) -> _M:
                send = self._send_repeatable if request.api_key in _REPEATABLE else self._send
                return send(address, request, response_class, max_version, senders[address])

            first = first_answer(addresses, ask, head_start_s=_HEAD_START_S)
        for address in first.waiting:
            # Its answer would be that to another request.
            self._senders.pop(address, senders[address]).close()
        for address, error in first.failed.items():
            if address not in self._silent:
                reason = plain_error(error).removeprefix(f"{address[0]}:{address[1]}: ")
                self._note_silence(address, Silence(reason, False))
        in_doubt = [address for address in first.waiting if address not in self._silent]
        for address, silence in all_answers(in_doubt, self._silence_in_doubt).items():
            if isinstance(silence, Silence):
                self._note_silence(address, silence)
        return first.answer

    def _ask_controller(
        self,
        request: Message,
        response_class: type[_M],
        error_codes: Callable[[_M], list[int]],
        reason: Callable[[_M], str | None] = lambda response: None,
    ) -> _M:
        """reason: what a broker that is not the controller says about that."""
        with self._timed() as deadline_ms:
            return self._ask_controller_until(deadline_ms, request, response_class, error_codes, reason)

    def _ask_controller_until(
        self,
        deadline_ms: float,
        request: Message,
        response_class: type[_M],
        error_codes: Callable[[_M], list[int]],
        reason: Callable[[_M], str | None],
    ) -> _M:
        while True:
            response = failure = node = None
            try:
                described = self.describe_cluster(())
                node = described.brokers.get(described.controller_id)
                if node is not None:
                    response = self._send((node.host, node.port), request, response_class)
                    if NotController.code not in error_codes(response):
                        return response
            except OSError as error:
                if not self._brokers:  # no broker has ever answered
                    raise
                failure = error
            if self._time.hi_res_clock_ms() + RETRY_MS > deadline_ms:
                if failure is not None:
                    raise failure
                if response is None or node is None:
                    raise BrokerNotAvailable("the cluster has no controller")
                if any(code != NotController.code for code in error_codes(response)):
                    return response
                said = reason(response)
                raise NotController(
                    f"no broker is the controller: {node.host}:{node.port} (broker {node.broker_id}) was the last, "
                    f"and none was elected within {self._timeout_ms / 1000:g} s"
                    + (f"; it says: {said}" if said else "")
                    + ". Can the brokers reach their metadata store (ZooKeeper, or the SQLite file that they share)? "
                    "Their logs say what is wrong"
                )
            self._time.sleep(RETRY_MS)

    def _is_made_already(self, code: int, kind: type[ApiError]) -> bool:
        """Whether the last answer of a change has this error, and an earlier attempt may be why."""
        return code == kind.code and self._is_change_open

    def _sender(self, address: Address) -> BlockingSender:
        sender = self._senders.get(address)
        if sender is None:
            sender = BlockingSender(*address, self._client_id, request_timeout_ms=0, time=self._time)
            self._senders[address] = sender
        return sender

    def _send_repeatable(
        self,
        address: Address,
        request: Message,
        response_class: type[_M],
        max_version: int = NEWEST,
        sender: BlockingSender | None = None,
    ) -> _M:
        """_send(), once more where the connection broke.  For what may be carried out twice."""
        try:
            return self._send(address, request, response_class, max_version, sender)
        except (ConnectionResetError, BrokenPipeError):
            self._time.sleep(RETRY_MS)
        return self._send(address, request, response_class, max_version, sender)

    def _send(
        self,
        address: Address,
        request: Message,
        response_class: type[_M],
        max_version: int = NEWEST,
        sender: BlockingSender | None = None,
    ) -> _M:
        """In the newest version that both sides have, up to max_version.  Raises TimeoutError at the deadline of the
        innermost _timed(), and earlier if the broker's process stands still."""
        deadline_ms = self._deadline_ms
        assert deadline_ms is not None
        self._check_runs(address)
        sender = sender or self._sender(address)
        doubt = threading.Timer(_DOUBT_S, self._doubt, (address, sender))
        doubt.daemon = True
        doubt.start()
        is_sent = False
        try:
            sender.request_timeout_ms = self._left_ms(deadline_ms)
            highest = min(request.max_version, max_version)
            version = newest_version(sender, request.api_key, request.min_version, highest)
            sender.request_timeout_ms = self._left_ms(deadline_ms)
            is_sent = True
            response = sender.send(request, version)
        except TimeoutError as error:
            self._is_change_open |= is_sent and is_change(request)
            process = process_of_address(*address)
            why = None if process is None else process.silence_reason()
            reason = f"{address[0]}:{address[1]}: no answer (timeout {self._timeout_ms / 1000:g} s)"
            raise TimeoutError(errno.ETIMEDOUT, f"{reason}{f': {why}' if why else ''}") from error
        except OSError as error:
            is_refused = isinstance(error, ConnectionRefusedError)
            self._is_change_open |= is_sent and is_change(request) and not is_refused
            silence = self._silent.get(address)
            if silence is not None and isinstance(error, ConnectionAbortedError):
                if self._senders.get(address) is sender:
                    del self._senders[address]
                raise TimeoutError(errno.ETIMEDOUT, f"{address[0]}:{address[1]}: {silence.reason}") from error
            text, at = str(error.strerror or error), f"{address[0]}:{address[1]}"
            if (doubt_text := self._doubts.get(address)) is not None:  # its process may have ended since
                text += f"; before that {doubt_text}"
            raise type(error)(error.errno, text if at in text else f"{at}: {text}") from error
        finally:
            doubt.cancel()
        self._silent.pop(address, None)
        self._doubts.pop(address, None)
        self._answered.add(address)
        assert isinstance(response, response_class)
        return response

    def _check_runs(self, address: Address) -> None:
        """Raises TimeoutError if the broker's process was seen to stand still, and still does."""
        silence = self._silent.get(address)
        if silence is None or not silence.stands_still:
            return
        process = process_of_address(*address)
        if process is not None and process.stopped_reason() is not None:
            raise TimeoutError(errno.ETIMEDOUT, f"{address[0]}:{address[1]}: {silence.reason}")

    def _doubt(self, address: Address, sender: BlockingSender) -> None:
        """Called on a thread of its own when a request has waited for a while."""
        process = process_of_address(*address)
        if process is not None and (reason := process.silence_reason()) is not None:
            self._doubts[address] = reason
        silence = self._silence_in_doubt(address)
        if silence is not None:
            is_locked = self._ends_where_locked and process is not None and process.locked_reason() is not None
            silence = silence._replace(is_locked=is_locked)
            self._note_silence(address, silence)
            if silence.ends_request:
                sender.close()
        elif process is not None and self._ends_where_locked and (lock := store_lock(process)) is not None:
            with self._silence_lock:  # without a call of on_silence: it answers other requests
                self._silent[address] = Silence(f"no answer: {lock}", False, is_locked=True)
            sender.close()

    @contextmanager
    def _timed(self, share: int = 1) -> Iterator[float]:
        """Within it requests end by a deadline, which is yielded: the timeout from now; within another one, its share
        of the time that is left (1: all, 2: half of it)."""
        outer_ms, now_ms = self._deadline_ms, self._time.hi_res_clock_ms()
        left_ms = self._timeout_ms if outer_ms is None else outer_ms - now_ms
        self._deadline_ms = now_ms + left_ms / share
        if outer_ms is None:
            self._is_change_open = False
        try:
            yield self._deadline_ms
        except (OSError, KafkaError) as error:
            if outer_ms is None and self._is_change_open:
                error.add_note(_MAY_FOLLOW)
            raise
        finally:
            self._deadline_ms = outer_ms

    def _left_ms(self, deadline_ms: float) -> float:
        """Above 0.  Raises TimeoutError."""
        left_ms = deadline_ms - self._time.hi_res_clock_ms()
        if left_ms <= 0:
            raise TimeoutError
        return left_ms


def preferred_assignment(brokers: Sequence[int], number: int) -> tuple[int, ...]:
    """The brokers for one partition of a topic that moves to them: each is the preferred leader of as many partitions
    as the others."""
    start = number % len(brokers)
    return (*brokers[start:], *brokers[:start])


def is_change(request: Message) -> bool:
    """Whether it is one that changes a cluster."""
    return request.api_key in _CHANGES and not getattr(request, "validate_only", False)


def _describe_request(resource_type: int, names: Iterable[str]) -> dc.DescribeConfigsRequest:
    return dc.DescribeConfigsRequest(
        resources=[
            dc.DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
            for name in names
        ]
    )


def _configs(response: dc.DescribeConfigsResponse, own_source: int) -> dict[str, dict[str, ConfigValue]]:
    """Resource -> setting -> value."""
    configs = {}
    for result in response.results:
        raise_error(result.error_code, result.error_message)
        configs[result.resource_name] = {
            config.name: ConfigValue(
                config.value,
                # Version 0 says only what is a default.
                config.config_source == own_source or (config.config_source == -1 and not config.is_default),
            )
            for config in result.configs
        }
    return configs


def _alter_request(
    resource_type: int, name: str, changes: Mapping[str, str | None]
) -> iac.IncrementalAlterConfigsRequest:
    configs = [
        iac.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    resource = iac.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    return iac.IncrementalAlterConfigsRequest(resources=[resource])


def _why_not_described(name: str, kind: type[ApiError]) -> str:
    """Metadata has no place for a reason."""
    if kind is UnknownTopicOrPartition:
        return f"there is no topic {name!r}"
    if kind is InvalidTopicException:
        try:
            topic_names.validate(name)
        except InvalidTopicException as error:
            return str(error)
    return f"{name!r}: {kind.__name__}: {explanation(kind)}"


def _node(broker: m.MetadataResponseBroker) -> tuple[int, str, int, str | None]:
    return broker.node_id, broker.host, broker.port, broker.rack


def _by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, number in topic_partitions:
        topics.setdefault(name, []).append(number)
    return topics


def _partition_results(response: el.ElectLeadersResponse) -> list[el.PartitionResult]:
    return [result for topic in response.replica_election_results for result in topic.partition_result]


def error_of(code: int, message: str | None) -> ApiError | None:
    """The error that a broker answered, None for none."""
    if code == NONE:
        return None
    kind = for_code(code)
    return kind(explanation(kind, message))


def explanation(kind: type[ApiError], reason: str | None = None) -> str:
    """What is wrong: the broker's reason, or that of the error for brokers that give none; and for what an ACL decides,
    where to look."""
    text = reason or (kind.__doc__ or kind.__name__).partition("\n")[0]
    if kind in _DENIALS and "kcore acls list" not in text:
        return f"{text.removesuffix('.')}; `kcore acls list` shows who may"
    return text


def raise_error(code: int, message: str | None) -> None:
    """Raises the error that a broker answered, if there is one."""
    if code != NONE:
        kind = for_code(code)
        raise kind(explanation(kind, message or f"{kind.__name__}: {explanation(kind)}"))
