"""What operations do to the tree: rules over values, the same for every store that keeps the tree itself.

Source: ZooKeeper 3.9, PrepRequestProcessor and DataTree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcore.metadata.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    CheckChildrenCreated,
    Create,
    Delete,
    MultiFailed,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Result,
    SetData,
    StoreError,
    check_path,
    parent_of,
)


class NodeRow(NamedTuple):
    """A node with its counters.  zxids are numbers of changes: czxid created it, mzxid set its data last, pzxid created
    or deleted a child last.  children_created is the next sequential child's number."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    pzxid: int
    children_created: int
    num_children: int
    ephemeral_owner: int

    def node(self) -> Node:
        return Node(self.data, self.version, self.czxid, self.ephemeral_owner)


#: The root of a new tree.
ROOT = NodeRow(b"", 0, 0, 0, 0, 0, 0, 0)


class NodeChanges:
    """One change: rows that operations have replaced so far, over a tree that stays as it is.

    row_of reads the tree.  rows is what the store writes in the end: path -> new row, None for a deleted node.
    """

    def __init__(self, row_of: Callable[[str], NodeRow | None], zxid: int, session_id: int) -> None:
        self._row_of = row_of
        self._zxid = zxid
        self._session_id = session_id
        self.rows: dict[str, NodeRow | None] = {}

    def apply(self, operations: Sequence[Operation]) -> list[Result]:
        """Raises MultiFailed; the rows then are of no use."""
        results = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation))
            except StoreError as error:
                raise MultiFailed(index, error) from error
        return results

    def _apply(self, operation: Operation) -> Result:
        match operation:
            case Create():
                return self._create(operation)
            case SetData(path, data, expected_version):
                row = self._checked(path, expected_version)
                self.rows[path] = row._replace(data=data, version=row.version + 1, mzxid=self._zxid)
                return row.version + 1
            case Delete(path, expected_version):
                self._delete(path, expected_version)
                return None
            case Check(path, expected_version):
                self._checked(path, expected_version)
                return None
            case CheckChildrenCreated(path, children_created):
                created = self._checked(path, ANY_VERSION).children_created
                if created != children_created:
                    raise BadVersion(f"{path}: {created} children were created, expected {children_created}")
                return None

    def _create(self, operation: Create) -> str:
        path, data, ephemeral, sequential = operation
        check_path(path + "0" if sequential else path)
        parent = parent_of(path)
        above = self._row(parent)
        if path == "/":
            raise NodeExists(path)
        if above is None:
            raise NoNode(parent)
        if sequential:
            path += f"{above.children_created:010}"
        if (self.rows.get(path) if self._is_new(parent) else self._row(path)) is not None:
            raise NodeExists(path)
        if above.ephemeral_owner:
            raise NoChildrenForEphemerals(parent)
        zxid = self._zxid
        self.rows[path] = NodeRow(data, 0, zxid, zxid, zxid, 0, 0, self._session_id if ephemeral else 0)
        self.rows[parent] = above._replace(
            pzxid=zxid, children_created=above.children_created + 1, num_children=above.num_children + 1
        )
        return path

    def _delete(self, path: str, expected_version: int) -> None:
        if path == "/":
            raise StoreError("the root cannot be deleted")
        if self._checked(path, expected_version).num_children:
            raise NotEmpty(path)
        parent = parent_of(path)
        above = self._row(parent)
        assert above is not None
        self.rows[path] = None
        self.rows[parent] = above._replace(pzxid=self._zxid, num_children=above.num_children - 1)

    def _checked(self, path: str, expected_version: int) -> NodeRow:
        row = self._row(path)
        if row is None:
            raise NoNode(check_path(path))
        if expected_version not in (ANY_VERSION, row.version):
            raise BadVersion(f"{path}: version {row.version}, expected {expected_version}")
        return row

    def _is_new(self, path: str) -> bool:
        """Whether this change created the node: whatever is below it is in self.rows, and the tree need not be read."""
        row = self.rows.get(path)
        return row is not None and row.czxid == self._zxid

    def _row(self, path: str) -> NodeRow | None:
        return self.rows[path] if path in self.rows else self._row_of(path)
