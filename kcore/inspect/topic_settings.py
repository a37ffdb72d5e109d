"""The settings of a topic in the metadata of a kcore broker, read from a copy of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import lru_cache

from kcore.errors import KafkaError
from kcore.metadata.embedded_store import FILE_NAME as METADATA_FILE
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.store import StoreError
from kcore.metadata.znodes import TOPIC_CONFIGS, decode_config, topic_config

#: SQLite's write-ahead log: there while a broker runs, and after a kill.
_WAL_SUFFIX = "-wal"


def cleanup_policy(data_dir: str, topic: str) -> tuple[str, ...] | None:
    """The cleanup.policy that the metadata in a data directory has for a topic: "compact", "delete" or both.  None
    where there is no such setting, no metadata (only a broker's first data directory has it), or none that can be
    read."""
    path = os.path.join(data_dir, METADATA_FILE)
    state = tuple(_state_of(name) for name in (path, path + _WAL_SUFFIX))
    policy = _topic_settings(path, state).get(topic, {}).get("cleanup.policy") if state[0] else None
    return None if policy is None else tuple(word.strip() for word in policy.split(","))


def copy_metadata(data_dir: str, target: str) -> None:
    """Copy the metadata of a data directory, if there is any, into another directory.  Raises OSError."""
    for suffix in ("", _WAL_SUFFIX):
        name = METADATA_FILE + suffix
        if os.path.isfile(os.path.join(data_dir, name)):
            shutil.copyfile(os.path.join(data_dir, name), os.path.join(target, name))


def _state_of(path: str) -> tuple[int, ...]:
    """Inode, size and modification time of a file; () if it is not there."""
    try:
        now = os.stat(path)
    except OSError:
        return ()
    return now.st_ino, now.st_size, now.st_mtime_ns


@lru_cache(maxsize=16)
def _topic_settings(path: str, state: tuple[tuple[int, ...], ...]) -> dict[str, dict[str, str]]:
    """Topic -> settings.  Reads a copy: opening the SQLite file itself would make files beside it and wait for a
    broker that has it locked."""
    try:
        with tempfile.TemporaryDirectory(prefix="kcore-") as alone:
            copy_metadata(os.path.dirname(path), alone)
            store = EmbeddedStore(os.path.join(alone, METADATA_FILE), durable=False)
            try:
                nodes = {topic: store.get(topic_config(topic)) for topic in store.children(TOPIC_CONFIGS)}
                return {topic: decode_config(node.data) for topic, node in nodes.items() if node is not None}
            finally:
                store.close()
    except (OSError, KafkaError, StoreError, KeyError):
        return {}
