"""What the commands that ask a running cluster share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import click

from kcore.client.admin_client import (
    Address,
    AdminClient,
    ClusterDescription,
    PartitionDescription,
    Silence,
    silence_text,
)
from kcore.client.broker_process import waiting_in_its_start
from kcore.client.group_client import GroupClient, GroupDescription
from kcore.client.monitor import store_lock_at
from kcore.common.text import counted, printable
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError
from kcore.tools.bootstrap import bootstrap_option
from kcore.tools.cluster_names import nearest_topic, topic_argument, topic_names
from kcore.tools.command_line import (
    MAX_INT32,
    Arguments,
    Decorator,
    UsageError,
    addresses,
    json_option,
    positive,
    protocol_string,
    several,
)

_Client = TypeVar("_Client", bound=AdminClient)

#: A request carries it in ms.
_LONGEST_S = MAX_INT32 // 1000
#: So long the error may follow of a broker whose process stands still.
_HOLD_S = 2.0


def one_topic(args: Arguments) -> str:
    """Raises UsageError unless exactly one is given."""
    names: list[str] = [name for name in (args.topic, args.named_topic) if name is not None]
    if len(names) != 1:
        raise UsageError("expected one TOPIC")
    return names[0]


def cluster_options(json_help: str) -> Decorator:
    """The options of all of them."""
    return several(bootstrap_option(), timeout_option(), json_option(json_help))


def timeout_option(what: str = "for each request", default: int = 30) -> Decorator:
    return click.option("--timeout", type=_seconds, default=default, metavar="S", help=f"{what}; default {default}")


def apply_option() -> Decorator:
    """Of a command that prints what it would do."""
    return click.option("--apply", is_flag=True, help="do it; without, only the plan is printed")


def topic_options(text: str | None = None, *, kafkas_tool: str = "kafka-topics.sh") -> Decorator:
    """TOPIC and --topic, for one_topic()."""
    return several(
        topic_argument(text, required=False),
        click.option(
            "--topic",
            "named_topic",
            type=protocol_string,
            shell_complete=topic_names,
            metavar="TOPIC",
            help=f"the same, as {kafkas_tool} has it",
        ),
    )


class Errors:
    """What a command writes to stderr: each broker that does not answer is named once with the reason, in the error
    that follows from it or in a line of its own.

    It is the on_silence of a client.  One whose silence ends what is asked of it, as that of a process that stands
    still, has its error follow, or the request is repeated and it gets its line; others are waited for, so they are
    named at once.
    """

    def __init__(self) -> None:
        self._named: dict[Address, Silence] = {}
        self._held: dict[Address, Silence] = {}
        self._timers: list[threading.Timer] = []

    def __call__(self, address: Address, silence: Silence) -> None:
        if address in self._named:
            return
        self._held[address] = silence
        if not silence.ends_request:
            self._name(address)
            return
        timer = threading.Timer(_HOLD_S, self._name, (address,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def print(self, error: str) -> None:
        shorter = error
        for address, silence in self._named.items():
            shorter = shorter.replace(silence_text(address, silence), f"{address[0]}:{address[1]} does not answer")
        print(printable(f"kcore: {shorter}"), file=sys.stderr)
        self._take_held(error)

    def flush(self, error: str = "") -> None:
        """Name those that no error has named, `error` neither, which is printed next."""
        for timer in self._timers:
            timer.cancel()
        self._take_held(error)
        for address in list(self._held):
            self._name(address)

    def _name(self, address: Address) -> None:
        silence = self._held.pop(address, None)
        if silence is not None:
            self._named[address] = silence
            print_silence(address, silence)

    def _take_held(self, error: str) -> None:
        # By the reason, which has the process: it may be known under another address too.
        for address, silence in list(self._held.items()):
            if silence.reason in error and self._held.pop(address, None) is not None:
                self._named[address] = silence


@contextmanager
def admin_client(args: Arguments, *, ends_where_locked: bool = False) -> Iterator[AdminClient]:
    """It names brokers that do not answer as Errors does.  ends_where_locked: as AdminClient's, for a command that
    changes nothing.  Raises UsageError."""
    with cluster_client(AdminClient, args, ends_where_locked=ends_where_locked) as client:
        yield client


@contextmanager
def cluster_client(
    kind: type[_Client],
    args: Arguments,
    *,
    ends_where_locked: bool = False,
    silent: Mapping[Address, Silence] = MappingProxyType({}),
) -> Iterator[_Client]:
    """admin_client() of another class.  silent: as AdminClient's."""
    with client_and_errors(kind, args, ends_where_locked=ends_where_locked, silent=silent) as (client, _):
        yield client


@contextmanager
def client_and_errors(
    kind: type[_Client],
    args: Arguments,
    *,
    ends_where_locked: bool = False,
    silent: Mapping[Address, Silence] = MappingProxyType({}),
) -> Iterator[tuple[_Client, Errors]]:
    """cluster_client(), and what names the brokers that do not answer it, for a command that prints errors itself."""
    options = _options(args) | {"ends_where_locked": ends_where_locked, "silent": silent}
    with _named_silence(options["bootstrap"]) as errors, kind(**options, on_silence=errors) as client:
        yield client, errors


def group_client(
    args: Arguments, *, ends_where_locked: bool = False
) -> AbstractContextManager[tuple[GroupClient, Errors]]:
    """client_and_errors() of a GroupClient."""
    return client_and_errors(GroupClient, args, ends_where_locked=ends_where_locked)


def _options(args: Arguments) -> dict[str, Any]:
    return {"bootstrap": addresses(args.bootstrap), "client_id": "kcore", "timeout_ms": args.timeout * 1000}


@contextmanager
def _named_silence(bootstrap: Iterable[Address]) -> Iterator[Errors]:
    errors = Errors()
    try:
        yield errors
    except (OSError, KafkaError) as error:
        errors.flush(str(error))
        if isinstance(error, ConnectionError):
            for host, port in bootstrap:
                if f"{host}:{port}: " in str(error) and (process := waiting_in_its_start(host, port)) is not None:
                    error.add_note(process)
        raise
    errors.flush()


def print_silence(address: Address, silence: Silence) -> None:
    """Name a broker that does not answer, on stderr."""
    print(f"kcore: {silence_text(address, silence)}", file=sys.stderr, flush=True)


def broker_ids(text: str) -> tuple[int, ...]:
    """ "1,2,3"; raises click.BadParameter."""
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        ids = ()
    if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
        raise click.BadParameter(f"{text!r}: expected different broker ids, as 1,2,3")
    if max(ids) > MAX_INT32:
        raise click.BadParameter(f"{text!r}: a broker id is at most {MAX_INT32}")
    return ids


def _seconds(text: str | int) -> int:
    """Raises click.BadParameter."""
    if (number := positive(text)) <= _LONGEST_S:
        return number
    raise click.BadParameter(f"{text!r}: expected 1 to {_LONGEST_S} seconds")


def partitions(words: Iterable[str], cluster: ClusterDescription) -> list[TopicPartition]:
    """Of TOPIC (all of its partitions) and TOPIC:N[,N...].  Raises UsageError for a partition that does not exist."""
    result: dict[TopicPartition, None] = {}
    for word in words:
        name, numbers = split_partitions(word)
        existing = cluster.topics[name].partitions if name in cluster.topics else {}
        for number in numbers or existing:
            result[TopicPartition(name, existing_partition(name, existing, number))] = None
    return list(result)


def existing_partition(topic: str, existing: Collection[int], number: int) -> int:
    """The number.  Raises UsageError."""
    if number not in existing:
        raise UsageError(no_partition_text(topic, existing, number))
    return number


def no_partition_text(topic: str, existing: Collection[int], number: int) -> str:
    """ "orders has no partition 7: it has 2 partitions, 0 to 1"."""
    numbers = f", {_range(existing)}" if existing else ""
    return f"{topic} has no partition {number}: it has {counted(len(existing), 'partition')}{numbers}"


def partitions_word(text: str) -> str:
    """TOPIC or TOPIC:N[,N...], as it is; raises click.BadParameter for a name that no request can carry."""
    protocol_string(text.partition(":")[0])
    return text


def split_partitions(word: str) -> tuple[str, list[int]]:
    """TOPIC or TOPIC:N[,N...]; without numbers for all.  Raises UsageError."""
    name, colon, text = word.partition(":")
    try:
        numbers = [int(part) for part in text.split(",")] if colon else []
    except ValueError:
        numbers = [-1]
    if not name or min(numbers, default=0) < 0:
        raise UsageError(f"{word!r}: expected TOPIC or TOPIC:PARTITION[,PARTITION...]")
    return name, numbers


def topics_of(words: Sequence[str]) -> list[str]:
    """The topics of TOPIC and TOPIC:N."""
    return list(dict.fromkeys(split_partitions(word)[0] for word in words))


def nearest_topic_of(admin: AdminClient, name: str) -> str:
    """nearest_topic() of the cluster's topics."""
    try:
        return nearest_topic(name, admin.describe_cluster().topics)
    except ApiError:  # one of the topics cannot be described, for one
        return ""


def is_in_sync(partition: PartitionDescription) -> bool:
    """Whether the partition has a leader, and all of its replicas are in the ISR and available."""
    return partition.leader >= 0 and len(partition.isr) == len(partition.replicas) and not partition.offline


def store_lock_of(cluster: ClusterDescription, silent: Collection[int]) -> str | None:
    """Who has locked the store of these brokers, as the first one of this machine says that is not silent; None if
    nobody has, or it is not known."""
    nodes = [node for node in cluster.brokers.values() if node.broker_id not in silent]
    return next(filter(None, (store_lock_at(node.host, node.port) for node in nodes)), None)


def error_text(error: ApiError | None) -> str | None:
    """Kafka's name of the error, and the reason."""
    return None if error is None else f"{type(error).__name__}: {error}"


def ids_text(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def leader_text(leader: int) -> str:
    return str(leader) if leader >= 0 else "none"


def members_text(group: GroupDescription) -> str:
    members = ", ".join(f"{member.client_id} at {member.host.lstrip('/')}" for member in group.members)
    return f"the group {group.group_id} has {counted(len(group.members), 'member')}, {members}"


def _range(numbers: Collection[int]) -> str:
    """Of one number at least."""
    return "0" if len(numbers) == 1 else f"0 to {max(numbers)}"
