"""MetadataStore: the small tree of nodes that brokers coordinate through, with ZooKeeper's verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kcore.errors import KafkaError

#: Any version will do, in set() and delete().
ANY_VERSION = -1


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


class Node(NamedTuple):
    """data, and how often it was set: 0 after create()."""

    data: bytes
    version: int


class MetadataStore(ABC):
    """Paths as in ZooKeeper: "/brokers/topics/orders"; the root is there from the start.

    Every method may be called from any thread.  A change has reached the disk when its method returns.
    """

    @abstractmethod
    def create(self, path: str, data: bytes = b"") -> None:
        """Raises NodeExists, or NoNode if the parent is missing."""

    @abstractmethod
    def get(self, path: str) -> Node | None:
        """The node, or None if there is none."""

    @abstractmethod
    def set(self, path: str, data: bytes, expected_version: int = ANY_VERSION) -> int:
        """The new version.  Raises NoNode, BadVersion."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Names of the children, sorted; empty for a node that is not there."""

    @abstractmethod
    def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread does inside happens whole or not at all, and nobody sees half of it.

        A store that cannot do it applies each call by itself.
        """
        yield

    def create_recursive(self, path: str, data: bytes = b"") -> None:
        """create() that also makes the parents that are missing."""
        try:
            self.create(path, data)
        except NoNode:
            parent = parent_of(path)
            try:
                self.create_recursive(parent)
            except NodeExists:
                pass  # somebody else just made it
            self.create(path, data)

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
        """Apply `change` to the node's data, None if it is not there, until nobody interferes; the new data."""
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


def check_path(path: str) -> str:
    """Raises StoreError for a path that no store would take."""
    if path == "/":
        return path
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise StoreError(f"not a node's path: {path!r}")
    return path
