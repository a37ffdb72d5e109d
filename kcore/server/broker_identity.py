"""Whose data directories a broker has: they, the store and the settings must agree on broker id and cluster id."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from kcore.common.file import is_directory, is_file, list_directory, make_directory
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.text import plain_error
from kcore.errors import InconsistentClusterId, InvalidConfig
from kcore.log import meta_properties
from kcore.log.directory_lock import DirectoryLock
from kcore.log.log_file_names import parse_partition_directory, parse_segment_file
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME as STORE_FILE_NAME
from kcore.metadata.open_store import is_new_store
from kcore.metadata.store import MetadataStore, NodeExists

logger = logging.getLogger(__name__)

#: The id of a broker whose settings have none.
DEFAULT_BROKER_ID = 1


class Identity(NamedTuple):
    broker_id: int
    cluster_id: str


def working_dirs(data_dirs: Iterable[str], *, is_member: bool) -> list[str]:
    """The data directories that can be had; the log manager takes the others offline.

    Raises DirectoryInUse, InvalidConfig for a partition's directory or, if this is a broker alone, for one of a
    cluster's member, OSError if none works, or not the first, where the metadata are.
    """
    working: list[str] = []
    for path in data_dirs:
        try:
            check_is_no_file(path)
            make_directory(path)
            if any(parse_segment_file(name) for name in list_directory(path)):
                raise InvalidConfig(
                    f"data_dir {path} holds segment files, so it is a partition's directory: give "
                    f"{os.path.dirname(path)}, the data directory around it"
                )
            # Getting the lock shows that no other process writes the files that are read next.  The log manager
            # takes it again, and keeps it.
            DirectoryLock(path).release()
            meta_properties.set_aside_if_damaged(path)
            if not is_member:
                _refuse_members_directory(path)
        except OSError as error:
            if not working:
                raise
            logger.error("%s: the data directory cannot be had: %s", path, plain_error(error))
        else:
            working.append(path)
    return working


def check_is_no_file(path: str) -> None:
    """Raises NotADirectoryError for a data directory that is a file."""
    if is_file(path):
        text = "this is a file, give a directory as data_dir (in Kafka's settings log.dirs, on the command line --data)"
        raise NotADirectoryError(errno.ENOTDIR, text, path)


def _refuse_members_directory(path: str) -> None:
    """A broker alone gives out leader epochs of its own.  The cluster's controller gives out the same for other
    records, and the logs of two replicas could differ below the same epoch."""
    properties = meta_properties.read_member(path)
    if properties is not None:
        raise InvalidConfig(
            f"{path} belongs to broker {properties.node_id} of cluster {properties.cluster_id}: start it with the "
            "cluster's metadata store (--store, or store=). To take it out of the cluster for good, delete "
            f"{meta_properties.FILE_NAME} and {STORE_FILE_NAME} (unless that is the cluster's store) in its data "
            "directories first"
        )


def _refuse_clusters_store(data_dirs: Iterable[str], store: MetadataStore, cluster_id: str | None) -> None:
    """A broker alone changes topics in its store without asking a controller, and would make empty logs of the
    cluster's topics.  Only a cluster's controller stores an epoch."""
    if store.get(znodes.CONTROLLER_EPOCH) is not None:
        path = next(iter(data_dirs))
        raise InvalidConfig(
            f"{path} has the metadata store of cluster {cluster_id}, {STORE_FILE_NAME}: give a broker of the cluster "
            f"this store (--store, or store=) and its own directory; `kcore serve --brokers N --data {path}` starts "
            "all of a cluster that it has made"
        )


def check_store_exists(address: str, data_dirs: Iterable[str]) -> None:
    """Raises InconsistentClusterId if the store would be made, and one of the directories is a member's: its cluster
    has a store, so the name is wrong.  Called before the store is opened, which would leave an empty file behind."""
    if not is_new_store(address):
        return
    for path in data_dirs:
        properties = meta_properties.read_member(path)
        if properties is not None:
            raise InconsistentClusterId(
                f"{path} belongs to a member of cluster {properties.cluster_id}, and there is no store {address} yet: "
                "is its name right?"
            )


def topics_on_disk(data_dirs: Iterable[str]) -> set[str]:
    topics = set()
    for path in data_dirs:
        for name in list_directory(path):
            parsed = parse_partition_directory(name)
            if parsed is not None and not parsed.mark and is_directory(os.path.join(path, name)):
                topics.add(parsed.topic_partition.topic)
    return topics


def read_identity(
    data_dirs: Iterable[str], store: MetadataStore, configured_broker_id: int | None, *, is_member: bool
) -> Identity:
    """What the directories and the store say, else what the settings say, else, for a broker alone, whose the replicas
    in its store are, else new.

    A new cluster id is stored at once if other brokers share the store: all must start with the same.
    Raises InvalidConfig or InconsistentClusterId if two of them disagree, InconsistentClusterId also if a directory is
    a member's and the store has no cluster id: it is not the cluster's.  InvalidConfig if this is a broker alone, and
    the store is a cluster's.
    """
    broker_id = configured_broker_id
    node = store.get(znodes.CLUSTER_ID)
    cluster_id = _decoded(node.data) if node is not None else None
    if not is_member:
        _refuse_clusters_store(data_dirs, store, cluster_id)
    for path in data_dirs:
        properties = meta_properties.read(path)
        if properties is None:
            continue
        if properties.node_id is not None:
            if broker_id is not None and broker_id != properties.node_id:
                raise InvalidConfig(f"{path} belongs to broker {properties.node_id}, this is broker {broker_id}")
            broker_id = properties.node_id
        if properties.cluster_id is not None:
            if cluster_id is not None and cluster_id != properties.cluster_id:
                raise InconsistentClusterId(f"{path} belongs to cluster {properties.cluster_id}, this is {cluster_id}")
            if properties.is_member and node is None:
                raise InconsistentClusterId(
                    f"{path} belongs to a member of cluster {properties.cluster_id}, and the metadata store is new: "
                    "is its name right?"
                )
            cluster_id = properties.cluster_id
    if cluster_id is None:
        cluster_id = znodes.id_to_string(znodes.random_id(SYSTEM_RANDOM))
        if is_member:
            cluster_id = _store_cluster_id(store, cluster_id)
    if broker_id is None and node is not None and not is_member:
        broker_id = _id_of_replicas(store)
    return Identity(DEFAULT_BROKER_ID if broker_id is None else broker_id, cluster_id)


def _id_of_replicas(store: MetadataStore) -> int | None:
    """Who the replicas in the store of a broker alone are: its id, where meta.properties is lost.  None where there are
    none, or of several brokers."""
    paths = [znodes.topic(name) for name in store.children(znodes.TOPICS)]
    ids = {
        broker_id
        for path, node in zip(paths, store.get_many(paths), strict=True)
        if node is not None
        for replicas in znodes.decode_node(path, node.data, znodes.TopicZNode.decode).assignment.values()
        for broker_id in replicas
    }
    return ids.pop() if len(ids) == 1 else None


def write_identity(
    data_dirs: Iterable[str], store: MetadataStore, identity: Identity, *, is_member: bool, is_temporary: bool
) -> None:
    """Leave it where it is missing, and mark the directories of a cluster's member.  is_temporary: the directories
    are removed at the end, so that nothing need survive the machine's failure.

    Raises InconsistentClusterId if another broker has stored another cluster id.
    """
    stored = _store_cluster_id(store, identity.cluster_id)
    if stored != identity.cluster_id:
        raise InconsistentClusterId(f"this broker belongs to cluster {identity.cluster_id}, the store to {stored}")
    for path in data_dirs:
        try:
            properties = meta_properties.read(path)
            if properties is None:
                meta_properties.write(path, identity.cluster_id, identity.broker_id, sync=not is_temporary)
            if is_member and (properties is None or not properties.is_member):
                meta_properties.mark_as_member(path)
        except OSError as error:
            logger.error("%s: the next start will not know whose directory it is: %s", path, plain_error(error))


def _decoded(data: bytes) -> str:
    return znodes.decode_node(znodes.CLUSTER_ID, data, znodes.decode_cluster_id)


def _store_cluster_id(store: MetadataStore, cluster_id: str) -> str:
    """The stored cluster id: this one, unless there is one already."""
    try:
        store.create_recursive(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
    except NodeExists:
        node = store.get(znodes.CLUSTER_ID)
        return _decoded(node.data) if node is not None else cluster_id
    return cluster_id
