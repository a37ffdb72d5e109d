"""Where Kafka keeps what in ZooKeeper, and how it writes it: paths and JSON bodies.

Field order and spelling are those of a Kafka 3.9 broker, so that it can read what is written here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kcore.common.random_source import random_uuid
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.metadata.store import StoreError, UnreadableNode

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
_CONFIG = "/config"
TOPIC_CONFIGS = f"{_CONFIG}/topics"
BROKER_CONFIGS = f"{_CONFIG}/brokers"
USER_CONFIGS = f"{_CONFIG}/users"
CLIENT_CONFIGS = f"{_CONFIG}/clients"
IP_CONFIGS = f"{_CONFIG}/ips"
#: kcore's own: Kafka has settings of groups, and subscriptions to clients' metrics, with KRaft only.
GROUP_CONFIGS = f"{_CONFIG}/groups"
CLIENT_METRICS_CONFIGS = f"{_CONFIG}/client-metrics"
#: Below these three, the settings of all for which there are no others.
DEFAULT_ENTITY = "<default>"
#: Sequential nodes: each says whose settings below /config have changed.
CONFIG_CHANGES = f"{_CONFIG}/changes"
#: Of a sequential node that says whose settings have changed, with encode_config_change().
CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
#: Ephemeral: the active controller, a ControllerZNode.  Its epoch outlives it.
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
#: Kafka's orders to the controller, each with a body for several partitions.
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
#: News for the controller in sequential nodes: partitions whose leader has changed the ISR; brokers whose log
#: directories failed.
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
#: A path that Kafka does not have: deletions of topics that have begun, by topic id.
TOPIC_DELETIONS = "/kcore/topic_deletions"
#: Another one: ephemeral nodes of brokers, with the partitions to which they cannot append because a disk is full.
FULL_DISKS = "/kcore/full_disks"
#: Kafka's orders to delete a topic, by its name; their bodies are empty.  Before TOPIC_DELETIONS, brokers noted here
#: what they were deleting, with the topic id as the body.
DELETE_TOPICS = "/admin/delete_topics"

_MAX_INT16 = 2**15 - 1
_MAX_INT32 = 2**31 - 1
_MAX_PORT = 2**16 - 1

_T = TypeVar("_T")


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def partition_state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def sanitized(name: str) -> str:
    """A name in a path.  Source: Sanitizer, Kafka, but for "." and "..", which Kafka writes as they are and ZooKeeper
    refuses; as they are written here, Kafka reads them."""
    from urllib.parse import quote  # not at the top: few brokers have such names

    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="-._").replace("~", "%7E")


def desanitized(node: str) -> str:
    from urllib.parse import unquote

    return unquote(node)


def broker_config(entity: str) -> str:
    """entity: a broker's id, or DEFAULT_ENTITY for all brokers."""
    return f"{BROKER_CONFIGS}/{entity}"


def topic_deletion(topic_id: UUID) -> str:
    """Here from the deletion of a topic's nodes until its directories are deleted too; with encode_deletion()."""
    return f"{TOPIC_DELETIONS}/{id_to_string(topic_id)}"


def full_disk(broker: int) -> str:
    """With encode_partitions()."""
    return f"{FULL_DISKS}/{broker}"


def broker_id(number: int) -> str:
    return f"{BROKER_IDS}/{number}"


def broker_id_of(name: str) -> int | None:
    """The broker whose node has this name below BROKER_IDS; None for a name that is not a broker's."""
    is_number = name.isascii() and name.isdecimal() and len(name) <= 10
    return int(name) if is_number and int(name) <= _MAX_INT32 and str(int(name)) == name else None


def delete_topic(name: str) -> str:
    """Kafka's order to the controller to delete a topic; its body is empty."""
    return f"{DELETE_TOPICS}/{name}"


class TopicZNode(NamedTuple):
    """/brokers/topics/T: the replicas of each partition, the preferred leader first."""

    assignment: dict[int, list[int]]
    topic_id: UUID | None = None
    adding: dict[int, list[int]] = {}
    removing: dict[int, list[int]] = {}

    def with_replicas(self, partitions: Mapping[int, tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> TopicZNode:
        """With other replicas of some partitions: (replicas, adding, removing) of each; the last two are empty while it
        is not reassigned."""
        adding = {number: of_partition[1] for number, of_partition in partitions.items()}
        removing = {number: of_partition[2] for number, of_partition in partitions.items()}
        return self._replace(
            assignment=self.assignment | {number: list(part[0]) for number, part in partitions.items()},
            adding=_with(self.adding, adding),
            removing=_with(self.removing, removing),
        )

    def encode(self) -> bytes:
        return _encode(
            {
                "partitions": _keyed(self.assignment),
                "topic_id": id_to_string(self.topic_id) if self.topic_id else None,
                "adding_replicas": _keyed(self.adding),
                "removing_replicas": _keyed(self.removing),
                "version": 3,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> TopicZNode:
        with _decoding(data, "a topic's node") as body:
            topic_id = body.get("topic_id")
            return cls(
                _unkeyed(body["partitions"]),
                id_from_string(topic_id) if topic_id else None,
                _unkeyed(body.get("adding_replicas") or {}),
                _unkeyed(body.get("removing_replicas") or {}),
            )


class PartitionStateZNode(NamedTuple):
    """/brokers/topics/T/partitions/P/state: the leader and the ISR."""

    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int

    def encode(self) -> bytes:
        return _encode(
            {
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "version": 1,
                "leader_epoch": self.leader_epoch,
                "isr": self.isr,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PartitionStateZNode:
        with _decoding(data, "a partition's state") as body:
            return cls(
                _number(body["leader"], low=-1),
                # The epoch after it must fit too.
                _number(body["leader_epoch"], high=_MAX_INT32 - 1),
                [_number(replica) for replica in body["isr"]],
                _number(body["controller_epoch"], low=-1),
            )


class BrokerZNode(NamedTuple):
    """/brokers/ids/N: where a live broker listens.

    endpoints: listener name -> (host, port).  security_protocols: listener name -> "PLAINTEXT", "SSL", …
    timestamp: of the registration, ms.  features: name -> the lowest level that the broker knows, and the highest.
    """

    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None
    timestamp: int
    security_protocols: Mapping[str, str]
    features: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def encode(self) -> bytes:
        # host and port are for readers of version 1, which knew no other protocol.
        plaintext = (at for name, at in self.endpoints.items() if self.security_protocols[name] == "PLAINTEXT")
        host, port = next(plaintext, (None, -1))
        body: dict[str, Any] = {
            "features": {
                name: {"min_version": low, "max_version": high} for name, (low, high) in self.features.items()
            },
            "listener_security_protocol_map": dict(self.security_protocols),
            "endpoints": [_endpoint_to_string(name, *at) for name, at in self.endpoints.items()],
            "jmx_port": -1,
            "port": port,
            "host": host,
            "version": 5,
            "timestamp": str(self.timestamp),
        }
        if self.rack is not None:
            body["rack"] = self.rack
        return _encode(body)

    @classmethod
    def decode(cls, data: bytes) -> BrokerZNode:
        """Versions 1 to 5.  Raises StoreError."""
        with _decoding(data, "a broker's node") as body:
            if int(body["version"]) < 2:
                endpoints = {"PLAINTEXT": (_text(body["host"]), _number(body["port"], high=_MAX_PORT))}
            else:
                endpoints = dict(_endpoint_from_string(_text(text)) for text in body["endpoints"])
            if not endpoints:
                raise ValueError("no endpoints")
            protocols = body.get("listener_security_protocol_map") or {}
            rack, timestamp = body.get("rack"), int(body.get("timestamp", -1))
            return cls(
                endpoints,
                _text(rack) if rack is not None else None,
                timestamp,
                {name: _text(protocols.get(name, name)) for name in endpoints},
                {
                    _text(name): (_number(levels["min_version"]), _number(levels["max_version"]))
                    for name, levels in (body.get("features") or {}).items()
                },
            )


class ControllerZNode(NamedTuple):
    """/controller: the active controller."""

    broker_id: int
    timestamp: int

    def encode(self) -> bytes:
        return _encode(
            {"version": 2, "brokerid": self.broker_id, "timestamp": str(self.timestamp), "kraftControllerEpoch": -1}
        )

    @classmethod
    def decode(cls, data: bytes) -> ControllerZNode:
        with _decoding(data, "the controller's node") as body:
            return cls(_number(body["brokerid"]), int(body["timestamp"]))


class ProducerIdBlock(NamedTuple):
    """/latest_producer_id_block: the last block of producer ids that was given to a broker, both ends included."""

    broker: int
    block_start: int
    block_end: int

    def encode(self) -> bytes:
        return _encode(
            {
                "version": 1,
                "broker": self.broker,
                "block_start": str(self.block_start),
                "block_end": str(self.block_end),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        with _decoding(data, "the producer id block") as body:
            return cls(int(body["broker"]), int(body["block_start"]), int(body["block_end"]))


def decode_node(path: str, data: bytes, decode: Callable[[bytes], _T]) -> _T:
    """What decode() makes of the data of the node at `path`.  Raises UnreadableNode, which names it."""
    try:
        return decode(data)
    except StoreError as error:
        raise UnreadableNode(path, error) from error


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    with _decoding(data, "the cluster's id") as body:
        return str(body["id"])


def encode_config(config: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(config)})


def decode_config(data: bytes) -> dict[str, str]:
    with _decoding(data, "a config") as body:
        return {str(k): str(v) for k, v in body["config"].items()}


def encode_partitions(topic_partitions: Iterable[TopicPartition]) -> bytes:
    """The body of an ISR change notification, an order to elect the preferred leaders, and a node of FULL_DISKS."""
    return _encode({"version": 1, "partitions": [{"topic": t, "partition": number} for t, number in topic_partitions]})


def decode_partitions(data: bytes) -> list[TopicPartition]:
    """Raises StoreError, as all decoders do."""
    with _decoding(data, "a list of partitions") as body:
        return [TopicPartition(str(item["topic"]), _number(item["partition"])) for item in body["partitions"]]


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """The body of REASSIGN_PARTITIONS: the replicas that each partition is to have."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas)}
        for (topic, number), replicas in targets.items()
    ]
    return _encode({"version": 1, "partitions": partitions})


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    with _decoding(data, "a reassignment") as body:
        # Below zero is refused for each partition, with an error of its own.
        return {
            TopicPartition(str(item["topic"]), _number(item["partition"])): tuple(
                _number(replica, low=-_MAX_INT32) for replica in item["replicas"]
            )
            for item in body["partitions"]
        }


def encode_log_dir_event(broker: int) -> bytes:
    """A log directory of the broker has failed: event 1, the only one."""
    return _encode({"version": 1, "broker": broker, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """The broker."""
    with _decoding(data, "a log directory's failure") as body:
        return _number(body["broker"])


def decode_config_change(data: bytes) -> str:
    """The path of the node that one below CONFIG_CHANGES is about, as /config/topics/T."""
    with _decoding(data, "a change of settings") as body:
        path = body["entity_path"] if "entity_path" in body else f"{body['entity_type']}/{body['entity_name']}"
        return f"{_CONFIG}/{_text(path)}"


def encode_config_change(path: str) -> bytes:
    """path: of the node that has changed, as /config/users/U/clients/C."""
    return _encode({"version": 2, "entity_path": path.removeprefix(f"{_CONFIG}/")})


def encode_deletion(topic: str) -> bytes:
    return _encode({"version": 1, "topic": topic})


def decode_deletion(data: bytes) -> str:
    """The topic's name."""
    with _decoding(data, "a topic's deletion") as body:
        return str(body["topic"])


def decode_old_deletion(data: bytes) -> UUID | None:
    """The topic id in a node of DELETE_TOPICS from an older kcore; None for Kafka's order to a controller."""
    try:
        return id_from_string(data.decode())
    except (StoreError, UnicodeDecodeError):
        return None


def id_to_string(value: UUID) -> str:
    """22 characters of URL-safe base64: how Kafka writes topic and cluster ids."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def id_from_string(text: str) -> UUID:
    """Raises StoreError for anything but a written UUID."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise StoreError(f"not an id: {text!r}") from error


def random_id(random: Random) -> UUID:
    """A UUID that is not reserved and whose text does not begin with a dash, which tools would take for an option."""
    while True:
        value = random_uuid(random)
        if value not in (ZERO_UUID, UUID(int=1)) and not id_to_string(value).startswith("-"):
            return value


def _endpoint_to_string(listener_name: str, host: str, port: int) -> str:
    return f"{listener_name}://[{host}]:{port}" if ":" in host else f"{listener_name}://{host}:{port}"


def _endpoint_from_string(text: str) -> tuple[str, tuple[str, int]]:
    """NAME://host:port or NAME://[host]:port.  Raises ValueError."""
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon:
        raise ValueError(f"not an endpoint: {text!r}")
    return name, (host.removeprefix("[").removesuffix("]"), _number(int(port), high=_MAX_PORT))


def _with(assignment: Mapping[int, list[int]], changed: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Partitions without replicas are left out."""
    others = {number: listed for number, listed in assignment.items() if number not in changed}
    return others | {number: list(replicas) for number, replicas in changed.items() if replicas}


def _keyed(assignment: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(number): list(replicas) for number, replicas in sorted(assignment.items())}


def _unkeyed(body: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
    return {_number(int(number)): _replicas(replicas) for number, replicas in body.items()}


def _replicas(body: Sequence[int]) -> list[int]:
    replicas = [_number(replica) for replica in body]
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"a replica more than once: {str(replicas)[:80]}")
    return replicas


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


@contextmanager
def _decoding(data: bytes, what: str) -> Iterator[dict[str, Any]]:
    """The JSON object in a body.  Whatever is wrong with it, or with what the caller finds in it, is a StoreError."""
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise ValueError("not a JSON object")
        yield body
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise StoreError(f"not {what}: {data[:200]!r}: {type(error).__name__}: {error}") from error


def _number(value: Any, low: int = 0, high: int = _MAX_INT32) -> int:
    """A number that fits into a request to a broker.  Raises TypeError, ValueError."""
    if type(value) is not int:
        raise TypeError(f"not a whole number: {str(value)[:80]}")
    if not low <= value <= high:
        raise ValueError(f"not between {low} and {high}")
    return value


def _text(value: Any) -> str:
    """A string that fits into a request to a broker.  Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"not a string: {str(value)[:80]}")
    if len(value.encode()) > _MAX_INT16:
        raise ValueError("too long")
    return value
