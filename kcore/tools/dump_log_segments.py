"""`kcore dump`: what log files hold, for people or as JSON lines.

Keys are those of Kafka's DumpLogSegments where it has one.  Everything up to damage is shown, then the damage where it
lies, then what can be found behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, LeaderEpochCheckpointFile, OffsetCheckpointFile
from kcore.log.log_file_names import PARTITION_METADATA_FILE
from kcore.log.partition_metadata import format_topic_id, read_topic_id
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from kcore.log.transaction_index import decode_entries
from kcore.record.control_record import ControlRecordType, control_record_type, parse_end_transaction_marker
from kcore.record.record_batch import Record, RecordBatch
from kcore.tools import log_files

Event = dict[str, Any]
#: First and last-but-one offset to show.
OffsetRange = tuple[int, int]

_EVERYTHING: OffsetRange = (0, 1 << 63)
_SHOWN_CHARACTERS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a partition directory or a data directory")
    parser.add_argument("--json", action="store_true", help="one JSON object a line; byte strings are complete")
    parser.add_argument(
        "--records", action=argparse.BooleanOptionalAction, default=True, help="show the records inside batches"
    )
    parser.add_argument(
        "--offsets",
        type=offset_range,
        default=_EVERYTHING,
        metavar="A:B",
        help="only what holds offsets from A up to, not including, B; either may be left out",
    )


def offset_range(text: str) -> OffsetRange:
    """ "A:B" -> (A, B).  Raises ArgumentTypeError."""
    first, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        wanted = (int(first) if first else 0, int(end) if end else 1 << 63)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, A: or :B") from None
    if not 0 <= wanted[0] < wanted[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: there is no offset in it")
    return wanted


def run(args: argparse.Namespace) -> int:
    """0, or 1 when damage was shown.  Raises OSError, CorruptFile for a path that cannot be examined at all."""
    show: Callable[[Event], str] = _as_json if args.json else _as_text
    damaged = False
    for path in args.paths:
        for file in log_files.files_under(path):
            for event in dump_file(file, records=args.records, offsets=args.offsets):
                damaged |= event["type"] == "damage"
                print(show(event))
    return 1 if damaged else 0


def dump_file(path: str, *, records: bool = True, offsets: OffsetRange = _EVERYTHING) -> Iterator[Event]:
    """One event for the file, then one for each thing in it: type "batch", "record", "entry" or "damage".  Every
    event carries the file.  Raises OSError."""
    kind = log_files.kind_of_named(path)
    assert kind is not None, path
    yield {"type": "file", "file": path, "kind": kind, "size": os.path.getsize(path)}
    if kind == ".log":
        found = _dump_log(path, records, offsets)
    elif kind in (".index", ".timeindex"):
        found = _dump_index(path, kind, offsets)
    else:
        found = _dump_small_file(path, _SMALL_FILES[kind])
    for event in found:
        yield {"type": event.pop("type", "entry"), "file": path, **event}


def _damage(problem: str, position: int | None = None, offset: int | None = None) -> Event:
    return {"type": "damage", "offset": offset, "position": position, "problem": problem}


def _dump_log(path: str, deep: bool, offsets: OffsetRange) -> Iterator[Event]:
    for item in log_files.read_batches(path):
        if isinstance(item, log_files.Damage):
            yield _damage(item.problem, item.position, item.offset)
        elif isinstance(item, log_files.Tail):
            yield _damage(f"the file ends inside a batch: {item.size} bytes of it", item.position, item.offset)
        else:
            for batch in item.batches:
                if batch.last_offset >= offsets[0] and batch.base_offset < offsets[1]:
                    yield _batch_event(batch)
                    if deep:
                        yield from _record_events(batch, offsets)


def _batch_event(batch: RecordBatch) -> Event:
    return {
        "type": "batch",
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": batch.position,
        "timestampType": batch.timestamp_type,
        "maxTimestamp": batch.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": batch.compression,
        "crc": batch.crc,
        "isvalid": True,  # a batch whose CRC is wrong is shown as damage
    }


def _record_events(batch: RecordBatch, offsets: OffsetRange) -> Iterator[Event]:
    try:
        records = batch.records()
    except KafkaError as error:
        yield _damage(str(error), batch.position, batch.base_offset)
        return
    for record in records:
        if offsets[0] <= record.offset < offsets[1]:
            yield _record_event(batch, record)


def _record_event(batch: RecordBatch, record: Record) -> Event:
    sequence = -1
    if batch.base_sequence >= 0:
        sequence = (batch.base_sequence + record.offset - batch.base_offset) & 0x7FFFFFFF
    event: Event = {
        "type": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
    }
    if batch.is_control:
        return event | _control_fields(record)
    headers = [[_header_name(name), value] for name, value in record.headers]
    return event | {"key": record.key, "value": record.value, "headers": headers}


def _header_name(name: str) -> str | bytes:
    """Bytes for a name that is not UTF-8; Record holds such bytes as surrogates."""
    return name if name.isprintable() else name.encode("utf-8", "surrogateescape")


def _control_fields(record: Record) -> Event:
    try:
        kind = control_record_type(record.key)
        if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
            marker = parse_end_transaction_marker(record.key, record.value)
            return {"endTxnMarker": marker.type.name, "coordinatorEpoch": marker.coordinator_epoch}
    except KafkaError as error:
        return {"controlType": f"unreadable: {error}", "key": record.key, "value": record.value}
    return {"controlType": kind.name, "key": record.key, "value": record.value}


_INDEX_ENTRY = {".index": struct.Struct(">ii"), ".timeindex": struct.Struct(">qi")}


def _dump_index(path: str, kind: str, offsets: OffsetRange) -> Iterator[Event]:
    base = log_files.base_offset_of(path) or 0
    entry = _INDEX_ENTRY[kind]
    size = os.path.getsize(path)
    if size > log_files.MAX_INDEX_SIZE:
        yield _damage(f"{size} bytes are more than an index can have, {log_files.MAX_INDEX_SIZE}")
        return
    with open(path, "rb") as file:
        data = file.read()
    # The index of a log that is open, or was not closed, keeps its full size: zeros behind the last entry.
    end = len(data.rstrip(b"\0")) + entry.size - 1
    end = min(end - end % entry.size, len(data) - len(data) % entry.size)
    last: tuple[int, int] | None = None
    for n, fields in enumerate(entry.iter_unpack(data[:end])):
        if last is not None and fields <= last:
            yield _damage("the entry is not above the one before it", n * entry.size)
        last = fields
        if kind == ".index":
            event = {"offset": base + fields[0], "position": fields[1]}
        else:
            event = {"timestamp": fields[0], "offset": base + fields[1]}
        if offsets[0] <= event["offset"] < offsets[1] or event["offset"] < 0:
            yield event
    if rest := len(data) % entry.size:
        yield _damage(f"{rest} bytes behind the last whole entry", len(data) - rest)


def _txn_index_entries(path: str) -> Iterator[Event]:
    with open(path, "rb") as file:
        data = file.read()
    for position in range(0, len(data), TXN_ENTRY_SIZE):
        try:
            (txn,) = decode_entries(data[position : position + TXN_ENTRY_SIZE], path)
        except KafkaError as error:
            yield _damage(str(error).removeprefix(f"{path}: "), position)
            continue
        yield {
            "version": 0,
            "producerId": txn.producer_id,
            "firstOffset": txn.first_offset,
            "lastOffset": txn.last_offset,
            "lastStableOffset": txn.last_stable_offset,
        }


def _snapshot_entries(path: str) -> Iterator[Event]:
    with open(path, "rb") as file:
        entries = decode_snapshot(file.read(), path)
    for e in entries:
        event: Event = {
            "producerId": e.producer_id,
            "producerEpoch": e.producer_epoch,
            "coordinatorEpoch": e.coordinator_epoch,
            "currentTxnFirstOffset": e.current_txn_first_offset,
            "lastTimestamp": e.last_timestamp,
        }
        for batch in e.batches:
            event |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.offset_delta,
                "timestamp": batch.timestamp,
            }
        yield event


def _epoch_entries(path: str) -> Iterator[Event]:
    for entry in LeaderEpochCheckpointFile(path).read():
        yield {"epoch": entry.epoch, "startOffset": entry.start_offset}


def _offset_entries(path: str) -> Iterator[Event]:
    tp: TopicPartition
    for tp, offset in OffsetCheckpointFile(path).read().items():
        yield {"topic": tp.topic, "partition": tp.partition, "offset": offset}


def _metadata_entries(path: str) -> Iterator[Event]:
    topic_id = read_topic_id(os.path.dirname(path))
    if topic_id is not None:
        yield {"version": 0, "topicId": format_topic_id(topic_id)}


def _property_entries(path: str) -> Iterator[Event]:
    for name, value in log_files.read_properties(path).items():
        yield {"name": name, "value": value}


_SMALL_FILES: dict[str, Callable[[str], Iterator[Event]]] = {
    ".txnindex": _txn_index_entries,
    ".snapshot": _snapshot_entries,
    "offset-checkpoint": _offset_entries,
    LEADER_EPOCH_CHECKPOINT: _epoch_entries,
    PARTITION_METADATA_FILE: _metadata_entries,
    log_files.META_PROPERTIES_FILE: _property_entries,
}


def _dump_small_file(path: str, entries: Callable[[str], Iterator[Event]]) -> Iterator[Event]:
    try:
        yield from entries(path)
    except KafkaError as error:
        yield _damage(str(error).removeprefix(f"{path}: "))


def _as_json(event: Event) -> str:
    """Byte strings become text where they are UTF-8, else {"hex": ...}."""
    return json.dumps(event, default=_json_bytes, ensure_ascii=(sys.stdout.encoding or "").lower() != "utf-8")


def _json_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _as_text(event: Event) -> str:
    match event["type"]:
        case "file":
            return f"{event['file']}: {event['size']} bytes"
        case "damage":
            places = [f"{name} {event[name]}" for name in ("offset", "position") if event[name] is not None]
            return f"  DAMAGE {', '.join(places)}{': ' if places else ''}{event['problem']}"
        case "batch":
            return "  " + _batch_text(event)
        case "record":
            return "    " + _record_text(event)
    return "  " + " ".join(f"{name} {value}" for name, value in event.items() if name not in ("type", "file"))


def _batch_text(event: Event) -> str:
    parts = [
        f"batch {event['baseOffset']}..{event['lastOffset']}",
        f"position {event['position']} size {event['size']}",
        f"records {event['count']}",
        f"{event['timestampType']} {event['maxTimestamp']}",
        event["compresscodec"],
        f"epoch {event['partitionLeaderEpoch']}",
    ]
    if event["producerId"] >= 0:
        parts.append(f"producer {event['producerId']}/{event['producerEpoch']}")
    if event["baseSequence"] >= 0:
        parts.append(f"sequence {event['baseSequence']}..{event['lastSequence']}")
    parts += [word for name, word in (("isTransactional", "transactional"), ("isControl", "control")) if event[name]]
    if event["deleteHorizonMs"] is not None:
        parts.append(f"delete horizon {event['deleteHorizonMs']}")
    return ", ".join([*parts, f"crc {event['crc']:#010x}"])


def _record_text(event: Event) -> str:
    parts = [f"{event['offset']}: {event['timestamp']}"]
    if event["sequence"] >= 0:
        parts.append(f"sequence {event['sequence']}")
    for name in ("endTxnMarker", "coordinatorEpoch", "controlType"):
        if name in event:
            parts.append(f"{name} {event[name]}")
    parts += [f"{name} {_bytes_text(event[name])}" for name in ("key", "value") if name in event]
    if event.get("headers"):
        names = [name if isinstance(name, str) else _bytes_text(name) for name, _ in event["headers"]]
        values = [_bytes_text(value) for _, value in event["headers"]]
        parts.append("headers " + " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)))
    return ", ".join(parts)


def _bytes_text(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode()
        shown = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False) if text.isprintable() else None
        cut = len(text) > _SHOWN_CHARACTERS
    except UnicodeDecodeError:
        shown = None
    if shown is None:
        shown = "0x" + data[: _SHOWN_CHARACTERS // 2].hex()
        cut = len(data) > _SHOWN_CHARACTERS // 2
    return f"{shown}... ({len(data)} bytes)" if cut else shown
