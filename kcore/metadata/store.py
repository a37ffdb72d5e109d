"""MetadataStore: the small tree of nodes that brokers coordinate through, with ZooKeeper's operations and rules.

One object is one client with one session, as a ZooKeeper handle is.  What a test must know of an implementation is in
tests/unit/metadata/test_store_contract.py.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcore.errors import KafkaError

#: Any version will do, in set(), delete() and check.
ANY_VERSION = -1
#: ping() before a stop, which calls the store several times.
STOP_PING_MS = 3000


class StoreError(KafkaError):
    """Something wrong with a node or with the store itself."""


class NodeExists(StoreError):
    """create() of a path that is there already."""


class NoNode(StoreError):
    """A node, or the parent of a new one, is not there."""


class BadVersion(StoreError):
    """The node has changed since the version that the caller knows."""


class NotEmpty(StoreError):
    """delete() of a node that has children."""


class NoChildrenForEphemerals(StoreError):
    """create() below an ephemeral node."""


class ConnectionLost(StoreError):
    """The store cannot be reached now.  Whether a change took place is not known."""


class StoreLocked(ConnectionLost):
    """Another program has the store's file locked: no broker of the cluster can change anything until it lets go."""


class ChrootGone(ConnectionLost):
    """The node below which the store is kept was deleted, with everything in it.  Lasts as long as the object."""


class StoreFileGone(ConnectionLost):
    """The store's file was deleted or replaced while it was open.  Changes would be lost, so none is made."""


class ForeignFile(StoreError):
    """The file is something else than a metadata store."""


class NewerSchema(StoreError):
    """A later version of kcore has written the store."""


class SessionExpired(StoreError):
    """The session is over, its ephemeral nodes and watches are gone; new_session() begins another."""


class StoreClosed(StoreError):
    """close() or abandon() was called."""


class NotAllowed(StoreError):
    """The store does not let this client do that: its credentials or a node's ACL are wrong."""


class QuotaExceeded(StoreError):
    """The store has a quota for this part of the tree, and it is used up."""


class InvalidPath(StoreError):
    """No store would take a node of this path."""


class UnreadableNode(StoreError):
    """What is in a node is not what belongs there."""

    def __init__(self, path: str, reason: StoreError) -> None:
        super().__init__(f"the node {path} in the metadata store cannot be read: {reason}")


class MultiTooLarge(StoreError):
    """multi(): more bytes than the store takes at once.  None of it took place."""


class MultiFailed(StoreError):
    """multi(): the operation at `index` failed with `cause`, and none took place."""

    def __init__(self, index: int, cause: StoreError) -> None:
        super().__init__(f"operation {index}: {cause}")
        self.index = index
        self.cause = cause


class StoreLock(NamedTuple):
    """A program has the store's file locked.  since_ms: when a call noticed it, in ms since the epoch; it may have been
    locked before.  holder: "process 123 (sqlite3)", None where the system does not say."""

    file: str
    since_ms: int
    holder: str | None


class Node(NamedTuple):
    """version: how often the data were set, 0 after create().  czxid: the number of the change that created the node;
    one created later has a greater one.  ephemeral_owner: the session whose end deletes the node, 0 for none."""

    data: bytes
    version: int
    czxid: int
    ephemeral_owner: int


class Create(NamedTuple):
    """ephemeral: deleted with the session.  sequential: the path gets a suffix of ten digits, the number of children
    that were created below the parent so far."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    expected_version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    expected_version: int = ANY_VERSION


class Check(NamedTuple):
    """The node exists, with this version."""

    path: str
    expected_version: int = ANY_VERSION


class CheckChildrenCreated(NamedTuple):
    """No child of the node was created since children_created() returned this number.

    A node that was deleted and created again meanwhile has version 0 again, and passes a Check; this fails, with
    BadVersion.  ZooKeeper has no such check.  There a node is created and deleted again within the same change: no
    client can read it, but it counts as created, and watches of the children are called.
    """

    path: str
    children_created: int


Operation = Create | SetData | Delete | Check | CheckChildrenCreated
#: Of Create the path, of SetData the new version, of the others None.
Result = str | int | None


class EventType(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN_CHANGED = "children changed"


class WatchEvent(NamedTuple):
    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]


class SessionEvent(enum.Enum):
    """SUSPENDED: calls raise ConnectionLost until CONNECTED or EXPIRED.  EXPIRED: calls raise SessionExpired until
    new_session(), which is followed by CONNECTED."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


SessionListener = Callable[[SessionEvent], None]


class MetadataStore(ABC):
    """Paths as in ZooKeeper: "/brokers/topics/orders"; the root is there from the start.

    Every method may be called from any thread, may block, and raises ConnectionLost and SessionExpired beside what it
    names.  A change has reached the disk when its method returns, unless the store is one that keeps nothing.

    Watches are one-shot: get() and children() leave one together with what they read, and a change after that calls
    it once, without any lock held, on a thread of the store or of its executor.  It means that something has
    changed, not what is there now: a watch that must not miss anything reads again and so leaves the next one.
    Changes that cancel each other out before the delivery need not be reported.  The same watch left twice at
    one state of one node is called once.  The end of a session takes its watches along.
    """

    # -- reading ----------------------------------------------------------------------------------------

    @abstractmethod
    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """The node, or None if there is none.  The watch is called when it is created, changed or deleted."""

    @abstractmethod
    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted; empty for a node that is not there.

        The watch is called when a child is created or deleted, or the node itself is deleted.  A node that is not
        there takes no watch of its children: with one, NoNode is raised.
        """

    def get_many(self, paths: Sequence[str], watches: Sequence[Watch] = ()) -> list[Node | None]:
        """get() of each path, in the same order; watches: none, or one for each path.

        A store over a network does not wait for one answer before it asks the next.  Each node is read at a moment of
        its own: a change in between may be seen in a later one and not in an earlier one.
        """
        if not watches:
            return [self.get(path) for path in paths]
        return [self.get(path, watch) for path, watch in zip(paths, watches, strict=True)]

    @abstractmethod
    def children_created(self, path: str) -> int:
        """How many children of the node were created so far, for CheckChildrenCreated.  Raises NoNode."""

    # -- changes ----------------------------------------------------------------------------------------

    @abstractmethod
    def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """All of them, in order, as one change, or none.  Raises MultiFailed, with the first that failed and why.

        Raises MultiTooLarge for more than the store takes at once: with ZooKeeper multi_size.MAX_BYTES.  A store does
        not cut it, for all or nothing is what it promises; a caller that may have more does (multi_size.pieces()).
        """

    def multi_many(self, changes: Sequence[Sequence[Operation]]) -> list[list[Result] | MultiFailed]:
        """multi() of each change, in order, also after one that failed; what each returns, or its MultiFailed.

        A store over a network does not wait for one answer before it sends the next.  Raises MultiTooLarge before any
        took place.  After ConnectionLost and SessionExpired the first ones may have taken place.
        """
        answers: list[list[Result] | MultiFailed] = []
        for operations in changes:
            try:
                answers.append(self.multi(operations))
            except MultiFailed as error:
                answers.append(error)
        return answers

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """The path, which a sequential node's suffix is part of.

        Raises NodeExists, NoNode if the parent is missing, NoChildrenForEphemerals.
        """
        path = self._single(Create(path, data, ephemeral, sequential))  # type: ignore[assignment]
        return path

    def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """The new version.  Raises NoNode, BadVersion."""
        version: int = self._single(SetData(path, data, expected_version))  # type: ignore[assignment]
        return version

    def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""
        self._single(Delete(path, expected_version))

    def _single(self, operation: Operation) -> Result:
        try:
            return self.multi([operation])[0]
        except MultiFailed as error:
            raise error.cause from None

    # -- session ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The ephemeral_owner of what this session creates; never 0."""

    @property
    def is_session_certain(self) -> bool:
        """False once the store may have ended the session: it has expired, or this client's clock says that its last
        heartbeat is older than its timeout, because the process stood still, say.  Asks nobody and does not wait."""
        return True

    @abstractmethod
    def add_session_listener(self, listener: SessionListener) -> None:
        """Have listener(event) called for each change of the session's state, as watches are called."""

    @abstractmethod
    def new_session(self) -> int:
        """Begin another session after one that has expired, without watches and nodes; its id.

        Raises StoreError if the session has not expired.
        """

    def sync(self) -> None:
        """Have later reads see what any client has changed before this call.  Raises StoreError.

        Where one server has all nodes, every read does.
        """
        self.get("/")

    def end_start(self) -> None:
        """Who opened the store answers clients now: no later call waits for longer than they do for a store that cannot
        be reached.  Before that each may wait as long as for the first connection.  Does nothing in a store that waits
        the same time always."""
        return

    def ping(self, timeout_ms: float) -> None:
        """Ask the store for an answer.  Raises ConnectionLost if none comes in this time, and for every call from then
        on until it does: no caller has to wait, call after call, until the connection counts as lost by itself."""
        self.get("/")

    def lock(self) -> StoreLock | None:
        """What keeps all brokers from changing the store, None for nothing; tries it for a second at most.  Raises
        StoreError.  A store that is no file has no lock."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the session: its ephemeral nodes are deleted, or once its timeout has passed if the store cannot be
        reached.

        Called again it does nothing.  Raises nothing for a store that cannot be reached.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Stop as a killed process does: the session lives on until it has been silent for its timeout.

        Every later call but close() raises StoreError.
        """

    # -- several calls, each by itself ------------------------------------------------------------------

    def create_recursive(self, path: str, data: bytes = b"") -> None:
        """create() that also makes the parents that are missing: all of it, or nothing."""
        parents: list[str] = []
        while True:
            try:
                self.multi([*map(Create, parents), Create(path, data)])
                return
            except MultiFailed as error:
                is_parent = error.index < len(parents)
                # Another client may have made a parent since, or deleted one: again, with what is missing now.
                if not isinstance(error.cause, (NoNode, NodeExists) if is_parent else NoNode):
                    raise error.cause from None
                parents = self._missing_parents(path)

    def _missing_parents(self, path: str) -> list[str]:
        """The first one first.  Raises NoNode for a store without a root, as a ZooKeeper's chroot that is not there."""
        missing: list[str] = []
        parent = parent_of(path)
        while self.get(parent) is None:
            if parent == "/":
                raise NoNode(parent)
            missing.insert(0, parent)
            parent = parent_of(parent)
        return missing

    def ensure_path(self, path: str) -> None:
        """Create the node and its parents where they are missing."""
        if self.get(path) is None:
            try:
                self.create_recursive(path)
            except NodeExists:
                pass  # another client has just made it

    def create_or_set(self, path: str, data: bytes) -> None:
        """Leave `data` at the path, whatever was there."""
        try:
            self.set(path, data)
        except NoNode:
            try:
                self.create_recursive(path, data)
            except NodeExists:
                self.set(path, data)

    def delete_recursive(self, path: str) -> bool:
        """Delete a node with all below it; whether it was there."""
        for name in self.children(path):
            self.delete_recursive(f"{path.rstrip('/')}/{name}")
        try:
            self.delete(path)
        except NoNode:
            return False
        return True

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Apply `change` to the node's data (None if it is not there), again after each conflict; the new data."""
        while True:
            node = self.get(path)
            data = change(node.data if node else None)
            try:
                if node is None:
                    self.create_recursive(path, data)
                else:
                    self.set(path, data, node.version)
                return data
            except (NodeExists, BadVersion, NoNode):
                continue


def parent_of(path: str) -> str:
    """The parent's path; "/" is its own parent."""
    return path.rpartition("/")[0] or "/"


#: Source: PathUtils.validatePath, ZooKeeper 3.9.
_NO_PATH = re.compile(r"^(?!/)|/(\.\.?)?(/|$)|[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def check_path(path: str) -> str:
    """Raises InvalidPath for a path that ZooKeeper would not take."""
    if path != "/" and _NO_PATH.search(path) is not None:
        raise InvalidPath(f"not a node's path: {path!r}")
    return path
