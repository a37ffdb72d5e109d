"""MultiBuilder: collects the operations of one multi()."""

from __future__ import annotations

from kcore.metadata.store import Create, Delete, MetadataStore, Operation, SetData, parent_of


class MultiBuilder:
    """Reads the store while operations are added, so that put() creates missing nodes.

    The operations are conditional on what was read: if it has changed meanwhile, commit() raises
    MultiFailed, and nothing has changed.  Not thread-safe.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._created: set[str] = set()
        self._present = {"/"}
        self.operations: list[Operation] = []

    def put(self, path: str, data: bytes) -> None:
        """Leave data at the path, and create its parents where they are missing.  Once for a path."""
        # Below a node that is created here there is nothing yet.
        node = None if parent_of(path) in self._created else self._store.get(path)
        if node is not None:
            self.set(path, data, node.version)
        else:
            self.create(path, data)

    def set(self, path: str, data: bytes, expected_version: int) -> None:
        self.operations.append(SetData(path, data, expected_version))

    def create(self, path: str, data: bytes = b"") -> None:
        """Create a node that is not there, and its parents where they are missing."""
        self._ensure(parent_of(path))
        self.operations.append(Create(path, data))
        self._created.add(path)
        self._present.add(path)

    def delete_recursive(self, path: str) -> None:
        """Delete a node with all that is below it now; nothing if it is not there."""
        if self._store.get(path) is not None:
            self._delete(path)

    def _delete(self, path: str) -> None:
        for name in self._store.children(path):
            self._delete(f"{path.rstrip('/')}/{name}")
        self.operations.append(Delete(path))

    def commit(self) -> None:
        """Raises MultiFailed."""
        if self.operations:
            self._store.multi(self.operations)

    def _ensure(self, path: str) -> None:
        if path not in self._present:
            if parent_of(path) in self._created or self._store.get(path) is None:
                self.create(path)
            self._present.add(path)
