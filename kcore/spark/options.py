"""Options of the source and the sink: the names of Spark's Kafka connector, and some of our own.

Spark passes option names in lower case.  An unknown name is an error, and the message has the most similar valid name:
a misspelt option that is ignored would change results silently.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kcore.common.topic_partition import TopicPartition

Isolation = Literal["read_uncommitted", "read_committed"]

#: Offsets in JSON that stand for the end and the start of a log.
LATEST = -1
EARLIEST = -2

#: The columns of the schema that the user gets without giving one, in the connector's order.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

#: Options of batches and of streams.
_READ = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "columns",
    "pushdown",
    "kafka.isolation.level",
    "kcore.bootstrap.servers",
)
BATCH_OPTIONS = (*_READ, "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
STREAM_OPTIONS = (*_READ, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")

#: Settings of the client of a broker.  After the prefix comes confluent-kafka's name: kcore.client.ssl.ca.location.
CLIENT_PREFIX = "kcore.client."

#: The connector's options that have no meaning without a consumer, and what to use instead.
_REPLACED = {
    "paths": "give load() one path: several directories are separated by commas, or are a JSON list",
    "kafka.bootstrap.servers": "name the data directories with option path; to get high watermarks from a running "
    "broker, name it with kcore.bootstrap.servers",
    "kafka.group.id": "files are read, without a consumer group",
    "groupIdPrefix": "files are read, without a consumer group",
    "kafkaConsumer.pollTimeoutMs": "files are read, nothing is polled",
    "fetchOffset.numRetries": "files are read, nothing is tried again",
    "fetchOffset.retryIntervalMs": "files are read, nothing is tried again",
}
#: Other systems' names for our options, where the names are too different to be matched.
_OTHER_WORDS = {"codec": "compression", "level": "compressionlevel"}
#: After "kafka.": settings of a client.
_CLIENT_SETTINGS = ("security.", "sasl.", "ssl.", "client.", "socket.", "request.", "metadata.")


class OptionError(ValueError):
    """An unknown option, or an option with an invalid value."""


@dataclass(frozen=True)
class Position:
    """Where reading starts or ends.

    offset: EARLIEST or LATEST, for all partitions; offsets: one for each partition; timestamp (for all) and timestamps
    (for each partition), in ms: the first record with this timestamp or a later one.  Exactly one is not None.
    """

    option: str
    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class ReadOptions:
    paths: tuple[str, ...]
    topics: tuple[str, ...] | None
    topic_pattern: re.Pattern[str] | None
    assigned: frozenset[TopicPartition] | None
    starting: Position
    ending: Position
    latest_when_no_timestamp: bool  # startingOffsetsByTimestampStrategy
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    include_headers: bool
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    pushdown: bool | None
    isolation: Isolation
    bootstrap_servers: str | None
    client_settings: Mapping[str, str]


def check_names(options: Iterable[str], valid: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> None:
    """Raises OptionError for a name that is not valid.  Upper and lower case are the same.

    elsewhere: names that are valid in another place -> a text for the error that says where.
    """
    names = {name.lower(): name for name in valid}
    others = {name.lower(): (name, where) for name, where in (elsewhere or {}).items()}
    replaced = {name.lower(): (name, instead) for name, instead in _REPLACED.items()}
    for option in options:
        name = option.lower()
        if name in names or name.startswith(CLIENT_PREFIX):
            continue
        if name in replaced:
            raise OptionError("option {} is not kcore's: {}".format(*replaced[name]))
        if name in others:
            raise OptionError("option {} is not for this: {}".format(*others[name]))
        near = difflib.get_close_matches(_OTHER_WORDS.get(name, name), names, n=1, cutoff=0.6)
        if name.startswith("kafka."):
            if name.removeprefix("kafka.").startswith(_CLIENT_SETTINGS):
                instead = f"settings of the client that asks a broker are named {CLIENT_PREFIX}*"
            elif near and near[0].startswith("kafka."):
                instead = f"did you mean {names[near[0]]}?"
            else:
                instead = "files are read, without a consumer; of its settings only kafka.isolation.level has a meaning"
            raise OptionError(f"option {option} is not kcore's: {instead}")
        if near:
            raise OptionError(f"unknown option {_capitals(option, names[near[0]])}; did you mean {names[near[0]]}?")
        raise OptionError(f"unknown option {option}; valid options are {', '.join(names.values())}")


def _capitals(misspelt: str, correct: str) -> str:
    """A misspelt name as the user probably wrote it.  Spark made it lower case; the capitals are taken from the correct
    name."""
    if misspelt != misspelt.lower():
        return misspelt
    for a, b, size in difflib.SequenceMatcher(None, misspelt, correct.lower()).get_matching_blocks():
        misspelt = misspelt[:a] + correct[b : b + size] + misspelt[a + size :]
    return misspelt


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parses and checks the options of a source.  Raises OptionError."""
    valid = STREAM_OPTIONS if streaming else BATCH_OPTIONS
    elsewhere = dict.fromkeys(
        BATCH_OPTIONS if streaming else STREAM_OPTIONS,
        "a stream has no end" if streaming else "it is for streams, this is a batch",
    )
    check_names(options, valid, elsewhere)
    values = {name.lower(): value for name, value in options.items()}
    topics, pattern, assigned = _topics(values)
    include_headers = flag_option(values, "includeHeaders", False)
    isolation = values.get("kafka.isolation.level", "read_uncommitted")
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level {isolation!r} is neither read_uncommitted nor read_committed")
    strategy = values.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy {strategy!r} is neither error nor latest")
    bootstrap = values.get("kcore.bootstrap.servers", "").strip() or None
    paths = _paths(values.get("path"))
    if not paths:
        raise OptionError(
            "option path is missing: one or several data directories, separated by commas"
            + (" (records are read from files; only high watermarks come from the broker)" if bootstrap else "")
        )
    minimum, maximum = count_option(values, "minOffsetsPerTrigger"), count_option(values, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(f"minOffsetsPerTrigger {minimum} is above maxOffsetsPerTrigger {maximum}")
    return ReadOptions(
        paths=paths,
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        starting=_position(values, "starting", "latest" if streaming else "earliest", streaming),
        ending=_position(values, "ending", "latest", streaming),
        latest_when_no_timestamp=strategy == "latest",
        min_partitions=count_option(values, "minPartitions"),
        max_records_per_partition=count_option(values, "maxRecordsPerPartition"),
        max_bytes_per_partition=size_option(values, "maxBytesPerPartition"),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=_duration_ms(values, "maxTriggerDelay", "15m"),
        include_headers=include_headers,
        fail_on_data_loss=flag_option(values, "failOnDataLoss", True),
        columns=_columns(values.get("columns"), include_headers),
        pushdown=flag_option(values, "pushdown", False) if "pushdown" in values else None,
        isolation=isolation,  # type: ignore[arg-type]
        bootstrap_servers=bootstrap,
        client_settings=client_settings(options),
    )


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are named kcore.client.*, without this prefix."""
    values = {name.lower(): value for name, value in options.items()}
    return {n.removeprefix(CLIENT_PREFIX): value for n, value in values.items() if n.startswith(CLIENT_PREFIX)}


def default_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the schema when the user gives none.  Raises OptionError."""
    values = {name.lower(): value for name, value in options.items()}
    return _columns(values.get("columns"), flag_option(values, "includeHeaders", False))


def _paths(text: str | None) -> tuple[str, ...]:
    """Several paths are separated by commas, or are a JSON list."""
    text = (text or "").strip()
    if text.startswith("["):
        paths = _json("path", text)
        if not all(isinstance(path, str) for path in paths):
            raise OptionError(f"path {text!r} is not a list of strings")
        return tuple(paths)
    return tuple(path.strip() for path in text.split(",") if path.strip())


def _columns(text: str | None, include_headers: bool) -> tuple[str, ...]:
    if text is None:
        return COLUMNS if include_headers else COLUMNS[:-1]
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            raise OptionError(
                f"columns: there is no {name!r}; "
                + (f"did you mean {near[0]}?" if near else f"there are {', '.join(COLUMNS)}")
            )
    if not names or len(set(names)) < len(names):
        raise OptionError(f"columns {text!r}: expected different names, separated by commas")
    return names


_Topics = tuple[tuple[str, ...] | None, re.Pattern[str] | None, frozenset[TopicPartition] | None]


def _topics(values: Mapping[str, str]) -> _Topics:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in values]
    if len(names) > 1:
        raise OptionError(f"options {' and '.join(names)} exclude each other")
    if not names:
        return None, None, None
    text = values[names[0].lower()]
    if names[0] == "subscribe":
        topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise OptionError(f"subscribe {text!r} names no topic")
        return topics, None, None
    if names[0] == "subscribePattern":
        try:
            return None, re.compile(text), None
        except re.error as error:
            raise OptionError(f"subscribePattern {text!r} is no regular expression: {error}") from None
    assigned: set[TopicPartition] = set()
    for topic, partitions in _items("assign", _json("assign", text)):
        if not isinstance(partitions, list):
            raise OptionError(f'assign: expected {{"topic": [0, 1]}}, topic {topic!r} has {partitions!r}')
        assigned.update(TopicPartition(topic, _partition("assign", number)) for number in partitions)
    if not assigned:
        raise OptionError(f"assign {text!r} names no partition")
    return None, None, frozenset(assigned)


def _position(values: Mapping[str, str], side: str, default: str, streaming: bool) -> Position:
    """The option that counts is the connector's choice: a timestamp for all, else timestamps, else offsets."""
    for option in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"):
        text = values.get(option.lower())
        if text is None:
            continue
        text = text.strip()
        if option.endswith("Offsets"):
            return _offsets(option, text, streaming)
        if not option.endswith("ByTimestamp"):
            return Position(option, timestamp=number_option(option, text, 0))
        timestamps = _by_partition(option, text)
        for tp, timestamp in timestamps.items():
            if timestamp < 0:
                raise OptionError(f"{option}: timestamp {timestamp} of {tp} is negative")
        return Position(option, timestamps=timestamps)
    return Position(f"{side}Offsets", offset=EARLIEST if default == "earliest" else LATEST)


def _offsets(option: str, text: str, streaming: bool) -> Position:
    starting = option == "startingOffsets"
    word = text.lower()
    if word in ("earliest", "latest"):
        if not starting and word == "earliest":
            raise OptionError("endingOffsets must not be earliest")
        if starting and word == "latest" and not streaming:
            raise OptionError("startingOffsets must not be latest in a batch")
        return Position(option, offset=EARLIEST if word == "earliest" else LATEST)
    offsets = _by_partition(option, text)
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option}: offset {offset} of {tp}: expected one from 0 on, -1 for latest, -2 for earliest"
            )
        if offset == EARLIEST and not starting:
            raise OptionError(f"endingOffsets: -2 (earliest) for {tp} is not allowed")
        if offset == LATEST and starting and not streaming:
            raise OptionError(f"startingOffsets: -1 (latest) for {tp} is not allowed in a batch")
    return Position(option, offsets=offsets)


def _by_partition(option: str, text: str) -> dict[TopicPartition, int]:
    """{"topic": {"0": 23, "1": -2}}"""
    result = {}
    for topic, partitions in _items(option, _json(option, text)):
        if not isinstance(partitions, dict):
            raise OptionError(f'{option}: expected {{"topic": {{"0": 23}}}}, topic {topic!r} has {partitions!r}')
        for partition, value in partitions.items():
            tp = TopicPartition(topic, _partition(option, partition))
            if tp in result:
                raise OptionError(f"{option}: {tp} appears twice in {text!r}")
            if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
                raise OptionError(f"{option}: {value!r} of {tp} is not a whole number of 64 bits")
            result[tp] = value
    return result


def _json(option: str, text: str) -> Any:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise OptionError(f"{option}: a name appears twice in {text!r}")
        return members

    try:
        return json.loads(text, object_pairs_hook=no_twins)
    except json.JSONDecodeError as error:
        raise OptionError(f"{option}: {text!r} is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise OptionError(f"{option}: {text[:100]!r}... is nested too deeply") from None


def _items(option: str, topics: object) -> Iterable[tuple[str, object]]:
    if not isinstance(topics, dict):
        raise OptionError(f"{option}: expected a JSON object with topics, found {topics!r}")
    return topics.items()


def _partition(option: str, value: object) -> int:
    try:
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31:
            return number
    except ValueError:
        pass
    raise OptionError(f"{option}: {value!r} is no partition's number")


def flag_option(values: Mapping[str, str], option: str, default: bool) -> bool:
    """Raises OptionError for a value that is neither true nor false."""
    text = values.get(option.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{option} {text!r} is neither true nor false")
    return text.strip().lower() == "true"


def number_option(option: str, text: str, least: int) -> int:
    """A whole number, at least `least`.  Raises OptionError."""
    text = text.strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and least <= int(text) < 2**63):
        raise OptionError(f"{option} {text!r} is not a whole number from {least} on")
    return int(text)


def count_option(values: Mapping[str, str], option: str) -> int | None:
    """A number, at least 1; None without the option.  Raises OptionError."""
    text = values.get(option.lower())
    return None if text is None else number_option(option, text, 1)


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_TIMES_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _with_unit(option: str, text: str, units: Mapping[str, int]) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in units:
        raise OptionError(
            f"{option} {text!r}: expected a number with one of the units {', '.join(filter(None, units))}"
        )
    return int(match[1]) * units[match[2].lower()]


def size_option(values: Mapping[str, str], option: str) -> int | None:
    """Bytes, with a unit or without; None without the option.  Raises OptionError."""
    text = values.get(option.lower())
    if text is None:
        return None
    size = _with_unit(option, text, _UNITS)
    if size < 1:
        raise OptionError(f"{option} {text!r} is not positive")
    return size


def _duration_ms(values: Mapping[str, str], option: str, default: str) -> int:
    return _with_unit(option, values.get(option.lower(), default), _TIMES_MS)
