"""The controller's reads and writes of znodes.

Every write is a multi() with a check of the controller epoch's version: what an old controller writes after another
one was elected does not take effect (ControllerMoved).  Source: KafkaZkClient, Kafka 3.9; KIP-380.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

from kcore.common import topic_names
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import LiveBroker, ReplicaAssignment
from kcore.controller.election import LeaderAndIsr
from kcore.errors import InvalidTopicException, KafkaError
from kcore.metadata import znodes
from kcore.metadata.multi_size import MAX_BYTES, operation_size, pieces
from kcore.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    InvalidPath,
    MetadataStore,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    StoreError,
    UnreadableNode,
    Watch,
    parent_of,
)

logger = logging.getLogger(__name__)

#: Topics whose nodes cannot be read of which is remembered what was logged.
_MAX_REMEMBERED = 1000
#: Partitions whose states are written with one multi().
_BATCH = 1000

_T = TypeVar("_T")


class ControllerMoved(KafkaError):
    """Another controller was elected since."""


class ControllerStore:
    """epoch_version: of the controller epoch's node, once this broker is the controller.

    Thread-safe as the store; only the event thread calls it.  Bodies that cannot be read are logged and left out.
    """

    def __init__(self, store: MetadataStore, random: Random = SYSTEM_RANDOM) -> None:
        self._store = store
        self._random = random
        self.epoch_version = -1
        #: Name of a topic that was left out -> why: logged when it changes, not at each change of the list of topics.
        self._left_out: dict[str, str] = {}

    # -- election ---------------------------------------------------------------------------------------

    def ensure_paths(self) -> None:
        """Create the nodes that watches of children need."""
        for path in (
            znodes.BROKER_IDS,
            znodes.TOPICS,
            znodes.TOPIC_CONFIGS,
            znodes.DELETE_TOPICS,
            znodes.ISR_CHANGE_NOTIFICATION,
            znodes.LOG_DIR_EVENT_NOTIFICATION,
            znodes.FULL_DISKS,
        ):
            self._store.ensure_path(path)
        if self._store.get(znodes.CONTROLLER_EPOCH) is None:
            try:
                self._store.create(znodes.CONTROLLER_EPOCH, b"0")
            except NodeExists:
                pass

    def controller_id(self, watch: Watch | None = None) -> int:
        """The active controller, -1 for none.  The watch is called when that changes."""
        node = self._store.get(znodes.CONTROLLER, watch)
        if node is None:
            return -1
        decoded = _decoded(znodes.ControllerZNode.decode, node.data, znodes.CONTROLLER)
        return decoded.broker_id if decoded is not None else -1

    def elect(self, broker_id: int, timestamp: int) -> int:
        """Create /controller and raise the epoch, as one change; the new epoch.

        Raises NodeExists if another broker was faster, ControllerMoved if it has come and gone meanwhile.
        """
        node = self._store.get(znodes.CONTROLLER_EPOCH)
        if node is None:
            raise NoNode(znodes.CONTROLLER_EPOCH)
        try:
            epoch = int(node.data) + 1
        except ValueError as error:
            raise StoreError(f"{znodes.CONTROLLER_EPOCH}: {node.data[:80]!r} is not a number") from error
        if epoch >= 2**31:
            raise StoreError(f"{znodes.CONTROLLER_EPOCH}: no request can have an epoch after {node.data[:80]!r}")
        body = znodes.ControllerZNode(broker_id, timestamp).encode()
        try:
            _, version = self._store.multi(
                [
                    Create(znodes.CONTROLLER, body, ephemeral=True),
                    SetData(znodes.CONTROLLER_EPOCH, str(epoch).encode(), node.version),
                ]
            )
        except MultiFailed as error:
            if isinstance(error.cause, BadVersion):
                raise ControllerMoved("another controller raised the epoch") from error
            raise error.cause from None
        assert isinstance(version, int)
        self.epoch_version = version
        return epoch

    def withdraw(self) -> None:
        """Delete /controller if this session has made it and no other controller was elected since.  Raises
        ControllerMoved."""
        epoch = self._store.get(znodes.CONTROLLER_EPOCH)
        node = self._store.get(znodes.CONTROLLER)
        if epoch is not None and node is not None and node.ephemeral_owner == self._store.session_id:
            self.epoch_version = epoch.version
            self.delete_controller()

    def delete_controller(self) -> None:
        """Let another broker be elected, if this one still is."""
        try:
            self._multi([Delete(znodes.CONTROLLER)])
        except NoNode:
            pass

    # -- watches ----------------------------------------------------------------------------------------

    def watch_children(self, path: str, watch: Watch) -> list[str]:
        """The children's names; the watch is called when one comes or goes."""
        return self._store.children(path, watch)

    def watch_node(self, path: str, watch: Watch) -> bytes | None:
        node = self._store.get(path, watch)
        return node.data if node is not None else None

    # -- reads ------------------------------------------------------------------------------------------

    def live_brokers(self, watch: Watch | None = None) -> dict[int, LiveBroker]:
        brokers = {}
        paths = [f"{znodes.BROKER_IDS}/{name}" for name in self._store.children(znodes.BROKER_IDS, watch)]
        for path, node in zip(paths, self._store.get_many(paths), strict=True):
            broker_id = znodes.broker_id_of(path.rpartition("/")[2])
            if node is None or broker_id is None:
                continue
            decoded = _decoded(znodes.BrokerZNode.decode, node.data, path)
            if decoded is not None:
                brokers[broker_id] = LiveBroker(broker_id, decoded.endpoints, decoded.rack, node.czxid)
        return brokers

    def topics(self, names: Iterable[str], watch_for: Callable[[str], Watch]) -> dict[str, znodes.TopicZNode]:
        """The partitions of those topics that are there; the watch of each is called when partitions are added.

        A topic without an id gets one: tools and brokers before Kafka 2.8 write none.  A node whose name no topic can
        have is left out: no request could carry it.
        """
        valid = []
        for name in names:
            try:
                topic_names.validate(name)
                valid.append(name)
            except InvalidTopicException as error:
                self._leave_out(name, error)
        nodes = self._store.get_many([znodes.topic(name) for name in valid], [watch_for(name) for name in valid])
        topics = {}
        for name, node in zip(valid, nodes, strict=True):
            try:
                topic = znodes.TopicZNode.decode(node.data) if node is not None else None
            except StoreError as error:
                self._leave_out(name, error)
                continue
            self._left_out.pop(name, None)
            if topic is not None:
                topics[name] = topic if topic.topic_id is not None else self._with_id(name, topic)
        return topics

    def left_out(self, names: Iterable[str]) -> set[str]:
        """Of these topics those that are there, but that topics() leaves out."""
        return {name for name in names if self._is_left_out(name)}

    def _is_left_out(self, name: str) -> bool:
        try:
            node = self._store.get(znodes.topic(name))
        except InvalidPath:  # the store has none of this name
            return False
        try:
            if node is not None:
                topic_names.validate(name)
                znodes.TopicZNode.decode(node.data)
        except (InvalidTopicException, StoreError):
            return True
        return False

    def unreadable_topics(self, names: Iterable[str]) -> dict[str, UnreadableNode]:
        """Of these topics those whose nodes cannot be read now, and why."""
        paths = {name: znodes.topic(name) for name in sorted(names)}
        errors = {}
        for (name, path), node in zip(paths.items(), self._store.get_many(list(paths.values())), strict=True):
            try:
                if node is not None:
                    znodes.decode_node(path, node.data, znodes.TopicZNode.decode)
            except UnreadableNode as error:
                errors[name] = error
        return errors

    def _leave_out(self, name: str, error: KafkaError) -> None:
        reason = str(error)
        if self._left_out.get(name) != reason:
            if len(self._left_out) >= _MAX_REMEMBERED:
                self._left_out.clear()
            self._left_out[name] = reason
            logger.error("%s is left out: %s", znodes.topic(name)[:300], reason)

    def _with_id(self, name: str, node: znodes.TopicZNode) -> znodes.TopicZNode:
        topic_id = znodes.random_id(self._random)

        def give_id(stored: znodes.TopicZNode) -> znodes.TopicZNode:
            return stored if stored.topic_id is not None else stored._replace(topic_id=topic_id)

        try:
            given = self._change_topic(znodes.topic(name), give_id)
        except NoNode:
            return node  # deleted meanwhile
        logger.info("topic %s had no id, and gets %s", name, given.topic_id)
        return given

    def topic_config(self, name: str) -> Mapping[str, str]:
        node = self._store.get(znodes.topic_config(name))
        config = _decoded(znodes.decode_config, node.data, znodes.topic_config(name)) if node is not None else None
        return config or {}

    def is_unclean_election_enabled(self, default: Callable[[], bool], topic: str) -> bool:
        value = self.topic_config(topic).get("unclean.leader.election.enable")
        return default() if value is None else value.strip().lower() == "true"

    def states(
        self, topic_partitions: Iterable[TopicPartition], watch_for: Callable[[TopicPartition], Watch] | None = None
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """The stored states; partitions without one are left out.  Each one's watch is called when it changes."""
        states = {}
        paths = {tp: znodes.partition_state(tp.topic, tp.partition) for tp in topic_partitions}
        nodes = self._store.get_many(list(paths.values()), [watch_for(tp) for tp in paths] if watch_for else ())
        for (tp, path), node in zip(paths.items(), nodes, strict=True):
            decoded = _decoded(znodes.PartitionStateZNode.decode, node.data, path) if node is not None else None
            if node is not None and decoded is not None:
                states[tp] = LeaderAndIsr(
                    decoded.leader, decoded.leader_epoch, tuple(decoded.isr), decoded.controller_epoch, node.version
                )
        return states

    def notified_partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Of ISR change notifications, each once."""
        partitions: dict[TopicPartition, None] = {}
        for body in self._bodies(znodes.ISR_CHANGE_NOTIFICATION, names):
            partitions.update(dict.fromkeys(_decoded(znodes.decode_partitions, body, "an ISR change") or ()))
        return list(partitions)

    def notified_brokers(self, names: Iterable[str]) -> set[int]:
        """Brokers whose log directories have failed."""
        bodies = self._bodies(znodes.LOG_DIR_EVENT_NOTIFICATION, names)
        events = (_decoded(znodes.decode_log_dir_event, body, "a log directory's failure") for body in bodies)
        return {broker_id for broker_id in events if broker_id is not None}

    def full_disks(self, watch: Watch) -> dict[int, frozenset[TopicPartition]]:
        """Broker -> partitions to which it cannot append; the watch is called when one of the nodes changes."""
        full: dict[int, frozenset[TopicPartition]] = {}
        paths = [f"{znodes.FULL_DISKS}/{name}" for name in self._store.children(znodes.FULL_DISKS, watch)]
        for path, node in zip(paths, self._store.get_many(paths, [watch] * len(paths)), strict=True):
            broker_id = znodes.broker_id_of(path.rpartition("/")[2])
            decoded = _decoded(znodes.decode_partitions, node.data, path) if node is not None else None
            if broker_id is not None and decoded:
                full[broker_id] = frozenset(decoded)
        return full

    def _bodies(self, parent: str, names: Iterable[str]) -> Iterable[bytes]:
        nodes = self._store.get_many([f"{parent}/{name}" for name in names])
        return [node.data for node in nodes if node is not None]

    # -- writes -----------------------------------------------------------------------------------------

    def create_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> dict[TopicPartition, StoreError | None]:
        """Create the state nodes of new partitions; None for each that was created, or its error."""
        partitions = [znodes.partition(tp.topic, tp.partition) for tp in states]
        missing = self._missing({parent_of(path) for path in partitions})
        # Below a node that is not there is none.
        missing |= {path for path in partitions if parent_of(path) in missing}
        missing |= self._missing([path for path in partitions if path not in missing])

        def operations_for(tp: TopicPartition, state: LeaderAndIsr) -> list[Operation]:
            path = znodes.partition(tp.topic, tp.partition)
            parents: list[Operation] = [Create(parent) for parent in (parent_of(path), path) if parent in missing]
            return [*parents, Create(znodes.partition_state(tp.topic, tp.partition), _body(state))]

        return self._each(states, operations_for)

    def change_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> dict[TopicPartition, StoreError | None]:
        """Replace stored states, each conditional on its partition_epoch; BadVersion says to read it again."""
        return self._each(states, _change_state)

    def change_assignments(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Write the partitions' replicas into the nodes of their topics, each topic at once; partitions of a topic that
        are not in `assignments` stay as they are stored.

        Raises NoNode.
        """
        topics: dict[str, dict[int, ReplicaAssignment]] = {}
        for tp, assignment in assignments.items():
            topics.setdefault(tp.topic, {})[tp.partition] = assignment
        for name, partitions in topics.items():
            self._change_topic(znodes.topic(name), lambda node, new=partitions: node.with_replicas(new))  # type: ignore[misc]

    def _change_topic(self, path: str, change: Callable[[znodes.TopicZNode], znodes.TopicZNode]) -> znodes.TopicZNode:
        while True:
            stored = self._store.get(path)
            if stored is None:
                raise NoNode(path)
            node = change(znodes.decode_node(path, stored.data, znodes.TopicZNode.decode))
            try:
                self._multi([SetData(path, node.encode(), stored.version)])
            except BadVersion:
                continue
            return node

    def remove_reassignment_orders(self, is_removed: Callable[[TopicPartition, Sequence[int]], bool]) -> None:
        """Take partitions out of /admin/reassign_partitions; without any the node is deleted."""
        while operations := self._removal_of_reassignment_orders(is_removed):
            try:
                self._multi(operations)
                return
            except (BadVersion, NoNode, NotEmpty):
                continue  # somebody has changed it

    def _removal_of_reassignment_orders(
        self, is_removed: Callable[[TopicPartition, Sequence[int]], bool]
    ) -> list[Operation]:
        path = znodes.REASSIGN_PARTITIONS
        node = self._store.get(path)
        try:
            orders = znodes.decode_reassignment(node.data) if node is not None else {}
        except StoreError:
            return []  # process_orders() deletes it
        left = {tp: target for tp, target in orders.items() if not is_removed(tp, target)}
        if node is None or len(left) == len(orders):
            return []
        if left:
            return [SetData(path, znodes.encode_reassignment(left), node.version)]
        operations: list[Operation] = []
        for name in self._store.children(path):  # Kafka never puts anything there
            self._delete_recursive(f"{path}/{name}", operations)
        return [*operations, Delete(path, node.version)]

    def delete_topic(self, name: str) -> None:
        """Delete all nodes of a topic, and the orders to delete and to reassign it: as one change unless that is too
        large for one.

        The order to delete it goes last: the broker that becomes the controller in between carries it out.  The orders
        to reassign it go first: the next topic of this name would be reassigned.
        """
        while True:
            operations = self._removal_of_reassignment_orders(lambda tp, target: tp.topic == name)
            for path in (znodes.topic(name), znodes.topic_config(name), znodes.delete_topic(name)):
                self._delete_recursive(path, operations)
            try:
                for piece in pieces([operation] for operation in operations):
                    self._multi(piece)
                return
            except (BadVersion, NoNode, NotEmpty):
                continue  # somebody has changed them

    def delete_children(self, parent: str, names: Iterable[str]) -> None:
        """Nodes that are not there any more are no error."""
        paths = [f"{parent}/{name}" for name in names]
        for path, error in zip(paths, self._multi_many([[Delete(path)] for path in paths]), strict=True):
            if isinstance(error, NotEmpty):
                self.delete_node(path)
            elif error is not None and not isinstance(error, NoNode):
                raise error

    def delete_node(self, path: str) -> None:
        """With what is below it, though Kafka never puts anything there."""
        try:
            self._multi([Delete(path)])
        except NoNode:
            pass
        except NotEmpty:
            logger.error("%s is deleted with nodes below it, which are not Kafka's", path)
            operations: list[Operation] = []
            self._delete_recursive(path, operations)
            try:
                for piece in pieces([operation] for operation in operations):
                    self._multi(piece)
            except (NoNode, NotEmpty) as error:
                logger.error("%s is left, somebody else changes it: %s", path, error)

    def _each(
        self,
        states: Mapping[TopicPartition, LeaderAndIsr],
        operations_for: Callable[[TopicPartition, LeaderAndIsr], list[Operation]],
    ) -> dict[TopicPartition, StoreError | None]:
        """Many partitions in one change; one by one where that fails, so that each gets its own error."""
        errors: dict[TopicPartition, StoreError | None] = {}
        batch: dict[TopicPartition, list[Operation]] = {}
        size = 0
        for tp, state in states.items():
            operations = operations_for(tp, state)
            added = sum(map(operation_size, operations))
            if len(batch) == _BATCH or size + added > MAX_BYTES // 2:
                errors |= self._write(batch)
                batch, size = {}, 0
            batch[tp] = operations
            size += added
        return errors | self._write(batch)

    def _write(self, batch: Mapping[TopicPartition, Sequence[Operation]]) -> dict[TopicPartition, StoreError | None]:
        if not batch:
            return {}
        # The parents of partitions of one topic are the same nodes: each is created once.
        operations = list(dict.fromkeys(operation for part in batch.values() for operation in part))
        try:
            self._multi(operations)
            return dict.fromkeys(batch)
        except (NodeExists, NoNode, BadVersion) as error:
            if len(batch) == 1:
                return dict.fromkeys(batch, error)
        # Each parent by itself: somebody may have created some of them since.
        parents = {o.path: [o] for part in batch.values() for o in part if isinstance(o, Create) and not o.data}
        each = [[o for o in part if o.path not in parents] for part in batch.values()]
        answers = self._multi_many([*parents.values(), *each])
        errors = dict(zip(batch, answers[len(parents) :], strict=True))
        for failure in errors.values():
            if failure is not None and not isinstance(failure, NodeExists | NoNode | BadVersion):
                raise failure
        return errors

    def _multi(self, operations: Sequence[Operation]) -> None:
        """Raises ControllerMoved, or the error of the operation that failed."""
        try:
            self._store.multi([Check(znodes.CONTROLLER_EPOCH, self.epoch_version), *operations])
        except MultiFailed as error:
            if error.index == 0:
                raise ControllerMoved(f"the controller epoch's node has changed: {error.cause}") from error
            raise error.cause from None

    def _multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[StoreError | None]:
        """_multi() of each; the error of each that failed.  Raises ControllerMoved."""
        check = Check(znodes.CONTROLLER_EPOCH, self.epoch_version)
        errors: list[StoreError | None] = []
        for answer in self._store.multi_many([[check, *operations] for operations in changes]):
            if isinstance(answer, MultiFailed) and answer.index == 0:
                raise ControllerMoved(f"the controller epoch's node has changed: {answer.cause}") from answer
            errors.append(answer.cause if isinstance(answer, MultiFailed) else None)
        return errors

    def _missing(self, paths: Collection[str]) -> set[str]:
        """Of these nodes those that are not there."""
        nodes = self._store.get_many(list(paths))
        return {path for path, node in zip(paths, nodes, strict=True) if node is None}

    def _delete_recursive(self, path: str, operations: list[Operation]) -> None:
        try:
            node = self._store.get(path)
        except InvalidPath:  # the order may name what no store takes any more
            return
        if node is not None:
            for name in self._store.children(path):
                self._delete_recursive(f"{path}/{name}", operations)
            operations.append(Delete(path))


def _change_state(tp: TopicPartition, state: LeaderAndIsr) -> list[Operation]:
    return [SetData(znodes.partition_state(tp.topic, tp.partition), _body(state), state.partition_epoch)]


def _body(state: LeaderAndIsr) -> bytes:
    return znodes.PartitionStateZNode(
        state.leader, state.leader_epoch, list(state.isr), state.controller_epoch
    ).encode()


def _decoded(decode: Callable[[bytes], _T], data: bytes, what: str) -> _T | None:
    """None for a body that is half-written or foreign; the controller goes on without it."""
    try:
        return decode(data)
    except StoreError as error:
        logger.error("%s cannot be read: %s", what, error)
        return None
