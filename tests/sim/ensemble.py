"""The store of a simulated cluster with the product's controller: one tree, and a session for each life of a broker.

The tree is MemoryStore's.  What is added are the faults that ZooKeeper's contract allows, and a look at each write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost, Create, Node, Operation, Result, SetData, Watch, parent_of

#: on_state(session id, partition, its new state, version of its node).
OnState = Callable[[int, TopicPartition, znodes.PartitionStateZNode, int], None]
#: on_topic(session id, name, its new node).
OnTopic = Callable[[int, str, znodes.TopicZNode], None]


class Killed(BaseException):
    """A broker is dead from this line of its code on.  No `except Exception` of the product catches it."""

    def __init__(self, broker: int) -> None:
        super().__init__(f"broker {broker}")
        self.broker = broker


class Tree(MemoryTree):
    """on_state is called for each write of a partition's state, once it has taken place; on_topic for each change of a
    topic's partitions."""

    def __init__(self, on_state: OnState, on_topic: OnTopic) -> None:
        super().__init__()
        self._on_state = on_state
        self._on_topic = on_topic

    @property
    def changes(self) -> int:
        """How many there were so far."""
        return self._zxid

    @property
    def controller_epoch(self) -> int:
        row = self._row(znodes.CONTROLLER_EPOCH)
        return int(row.data) if row is not None else 0

    def _apply(self, operations: Sequence[Operation], session_id: int) -> list[Result]:
        results = super()._apply(operations, session_id)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Create | SetData):
                tp = _partition_of(operation.path)
                if tp is not None:
                    version = result if isinstance(result, int) else 0
                    self._on_state(session_id, tp, znodes.PartitionStateZNode.decode(operation.data), version)
            if isinstance(operation, SetData) and parent_of(operation.path) == znodes.TOPICS:
                name = operation.path.removeprefix(f"{znodes.TOPICS}/")
                self._on_topic(session_id, name, znodes.TopicZNode.decode(operation.data))
        return results


class Session(MemoryStore):
    """A broker's store.

    dies_after: after so many further writes the broker is killed, before it can do anything else, as soon as may_die()
    says so.  loses_answer_after: after so many further writes the connection is gone before the answer to the last one
    comes: on_lost() is called.
    """

    def __init__(self, tree: Tree, broker: int, may_die: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        super().__init__(tree)
        self.broker = broker
        self._may_die = may_die
        self._on_lost = on_lost
        self.dies_after = self.loses_answer_after = 0
        #: After so many further reads of several nodes or of children, on_read() is called once.
        self.reads_left = 0
        self.on_read: Callable[[], None] = lambda: None
        #: The last registration of this broker that it has read.
        self.known_registration = -1

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        node = super().get(path, watch)
        if node is not None and path == znodes.broker_id(self.broker) and node.ephemeral_owner == self.session_id:
            self.known_registration = node.czxid
        return node

    def _note_read(self) -> None:
        if self.reads_left:
            self.reads_left -= 1
            if not self.reads_left:
                self.on_read()

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = super().children(path, watch)
        self._note_read()
        return names

    def get_many(self, paths: Sequence[str], watches: Sequence[Watch] = ()) -> list[Node | None]:
        nodes = super().get_many(paths, watches)
        self._note_read()
        return nodes

    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        results = super().multi(operations)
        if self.dies_after > 1:
            self.dies_after -= 1
        elif self.dies_after and self._may_die():
            raise Killed(self.broker)
        if self.loses_answer_after > 1:
            self.loses_answer_after -= 1
        elif self.loses_answer_after:
            self.loses_answer_after = 0
            self._on_lost()
            raise ConnectionLost("the answer to a write is lost")
        return results


def _partition_of(path: str) -> TopicPartition | None:
    parts = path.split("/")
    if len(parts) == 7 and path.startswith(znodes.TOPICS) and parts[6] == "state":
        return TopicPartition(parts[3], int(parts[5]))
    return None
