"""A slow model of ZooKeeper's tree: nested dictionaries, copied whole before each change."""

import copy

from kcore.metadata.store import (
    BadVersion,
    Check,
    CheckChildrenCreated,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    WatchEvent,
)


class NodeTree:
    def __init__(self):
        self.root = _new(b"", 0)
        self.watches = []  # (kind, path, tag)
        self.called = []

    def multi(self, operations, session):
        """The answers, or (index, error class) and no change."""
        before = copy.deepcopy((self.root, self.watches, self.called))
        answers = []
        for index, operation in enumerate(operations):
            try:
                answers.append(self._one(operation, session))
            except Exception as error:
                self.root, self.watches, self.called = before
                return index, type(error)
        return answers

    def _one(self, operation, session):
        path = operation.path
        above, name = path.rsplit("/", 1)
        parent, node = self._find(above), self._find(path)
        if isinstance(operation, Create):
            if parent is None:
                raise NoNode
            if operation.sequential:
                name += str(parent["created"]).rjust(10, "0")
                path = f"{above}/{name}"
                node = parent["children"].get(name)
            if node is not None:
                raise NodeExists
            if parent["owner"]:
                raise NoChildrenForEphemerals
            parent["children"][name] = _new(operation.data, session if operation.ephemeral else 0)
            parent["created"] += 1
            self._call("data", path, EventType.CREATED)
            self._call("children", above or "/", EventType.CHILDREN_CHANGED)
            return path
        if node is None:
            raise NoNode
        if isinstance(operation, CheckChildrenCreated):
            if operation.children_created != node["created"]:
                raise BadVersion
            return None
        if operation.expected_version not in (-1, node["version"]):
            raise BadVersion
        if isinstance(operation, SetData):
            node["data"] = operation.data
            node["version"] += 1
            self._call("data", path, EventType.CHANGED)
            return node["version"]
        if isinstance(operation, Delete):
            if node["children"]:
                raise NotEmpty
            del parent["children"][name]
            self._call("data", path, EventType.DELETED)
            self._call("children", path, EventType.DELETED)
            self._call("children", above or "/", EventType.CHILDREN_CHANGED)
        else:
            assert isinstance(operation, Check)
        return None

    def get(self, path):
        node = self._find(path)
        return None if node is None else (node["data"], node["version"], node["owner"])

    def exists(self, path):
        return self._find(path) is not None

    def children(self, path):
        node = self._find(path)
        return sorted(node["children"]) if node else []

    def watch_data(self, path, tag):
        self.watches.append(("data", path, tag))

    def watch_children(self, path, tag):
        self.watches.append(("children", path, tag))

    def take_called(self):
        """(tag, event) of each watch that was called since the last time."""
        called, self.called = self.called, []
        self._last = called
        return [(tag, event) for _, tag, event in called]

    def leave_again(self, tags):
        """Take back that these watches were called: what called them was undone in the same change."""
        for kind, tag, event in self._last:
            if tag in tags:
                self.watches.append((kind, event.path, tag))

    def end_session(self, session):
        def prune(node):
            node["children"] = {k: v for k, v in node["children"].items() if v["owner"] != session}
            for child in node["children"].values():
                prune(child)

        prune(self.root)

    def _call(self, kind, path, event):
        for watch in list(self.watches):
            if watch[:2] == (kind, path):
                self.watches.remove(watch)
                self.called.append((kind, watch[2], WatchEvent(event, path)))

    def _find(self, path):
        node = self.root
        for name in path.split("/")[1:]:
            node = node and node["children"].get(name)
        return node


def _new(data, owner):
    return {"data": data, "version": 0, "owner": owner, "created": 0, "children": {}}
