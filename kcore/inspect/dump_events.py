"""The content of a file as events, one for each batch, record or entry: what `kcore dump` shows in every format.

Keys are those of Kafka's DumpLogSegments where it has one.  Damage is an event too, in the order of positions.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kcore.common.file import read_file
from kcore.common.text import counted
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import Damage, read_batches, without_path
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, LeaderEpochCheckpointFile, OffsetCheckpointFile
from kcore.log.log_file_names import CLEAN_SHUTDOWN_FILE, LOG_SUFFIX, LOST_RECORDS_FILE, PARTITION_METADATA_FILE
from kcore.log.lost_records import meaning_of, read_mark
from kcore.log.partition_metadata import format_topic_id, read_topic_id
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from kcore.log.transaction_index import decode_entries
from kcore.record.control_record import ControlRecordType, control_record_type, parse_end_transaction_marker
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record, RecordBatch

Event = dict[str, Any]
#: Decodes a record of an internal topic: (key, value) -> both as JSON values.  Raises CorruptMessage.
Decoder = Callable[[bytes | None, bytes | None], tuple[Any, Any]]


class Wanted(NamedTuple):
    """Which parts of a file become events: offsets first_offset <= offset < end_offset; of a .log only its first
    max_bytes; records: also the records in batches; decoder: decodes the records of an internal topic.  key, from_ms
    and until_ms: of a .log only records with this key, and with a timestamp of at least from_ms and below until_ms, and
    the batches that hold one; None: with any."""

    first_offset: int = 0
    end_offset: int = 1 << 63
    max_bytes: int | None = None
    records: bool = True
    decoder: Decoder | None = None
    key: bytes | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    @property
    def chooses_records(self) -> bool:
        """Whether it leaves out records for their key or their timestamp."""
        return not (self.key is None and self.from_ms is None and self.until_ms is None)

    def holds(self, record: Record) -> bool:
        return (
            record.offset in self
            and (self.key is None or record.key == self.key)
            and (self.from_ms is None or record.timestamp >= self.from_ms)
            and (self.until_ms is None or 0 <= record.timestamp < self.until_ms)
        )

    def overlaps(self, first: int, last: int) -> bool:
        return last >= self.first_offset and first < self.end_offset

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.first_offset <= offset < self.end_offset


EVERYTHING = Wanted()


def file_event(path: str) -> Event:
    """Raises OSError."""
    kind = log_files.kind_of_named(path)
    assert kind is not None, path
    event = {"type": "file", "file": path, "kind": kind.kind, "size": os.path.getsize(path)}
    return event | {"mark": kind.mark} if kind.mark else event


def events_of(path: str, wanted: Wanted = EVERYTHING) -> Iterator[Event]:
    """One event for the file, then one for each thing in it: type "batch", "record", "entry" or "damage".  Every
    event carries the file.  What cannot be read is damage."""
    try:
        if log_files.kind_of_named(path) is None:
            os.listdir(path)  # files_under() names a directory that cannot be read
        first = file_event(path)
        yield first
        for event in _things_in(path, first["kind"], wanted):
            yield {"type": event.pop("type", "entry"), "file": path, **event}
    except OSError as error:
        yield {"type": "damage", "file": path, **damage_event(f"cannot be read: {error.strerror or error}")}


def _things_in(path: str, kind: str, wanted: Wanted) -> Iterator[Event]:
    if kind == LOG_SUFFIX:
        return _log_events(path, wanted)
    if kind in _INDEX_ENTRY:
        return _index_entries(path, kind, wanted)
    return _small_file_events(path, _SMALL_FILES[kind])


def damage_event(problem: str, position: int | None = None, offset: int | None = None) -> Event:
    return {"type": "damage", "offset": offset, "position": position, "problem": problem}


def log_items(path: str, wanted: Wanted) -> Iterator[MemoryRecords | Event]:
    """The valid batches of a .log, some at a time, and "damage" events between them: bytes that are no batch, and,
    before its batch, a base offset that does not fit.  A yielded item is valid until the next one is read.  Raises
    OSError."""
    segment_base = log_files.base_offset_of(path)
    last_offset = None
    for item in _readable_items(path, wanted.max_bytes if wanted.max_bytes is not None else 1 << 63):
        if not isinstance(item, MemoryRecords):
            yield item
            continue
        start = first = item.batches[0].position
        for batch in item.batches:
            base_offset = batch.base_offset
            if problem := _wrong_base_offset(base_offset, last_offset, segment_base):
                problem += _where_to_look(path)
                if batch.position > start:
                    yield _part(item, path, start, batch.position)
                yield damage_event(problem, batch.position, base_offset)
                start = batch.position
            last_offset = batch.last_offset
        yield item if start == first else _part(item, path, start, first + item.valid_bytes)


def _readable_items(path: str, end: int) -> Iterator[MemoryRecords | Event]:
    """The batches up to position `end`, and where the bytes are no batch damage events."""
    for item in read_batches(path):
        if isinstance(item, MemoryRecords):
            last = item.batches[-1]
            if last.position + last.size <= end:
                yield item
                continue
            start = item.batches[0].position
            whole = [b.position + b.size for b in item.batches if b.position + b.size <= end]
            if whole:
                yield _part(item, path, start, whole[-1])
            return
        if item.position >= end:
            return
        problem = (
            item.problem
            if isinstance(item, Damage)
            else f"the file ends inside a batch: {counted(item.size, 'byte')} of it"
        )
        yield damage_event(problem, item.position, item.offset)


def _part(records: MemoryRecords, path: str, start: int, end: int) -> MemoryRecords:
    """The batches between two positions of the file; the records hold more."""
    first = records.batches[0].position
    return MemoryRecords(records.buffer[start - first : end - first], check_crc=False, source=path, base_position=start)


def _wrong_base_offset(base_offset: int, last_offset: int | None, segment_base: int | None) -> str | None:
    """What is wrong with a batch's base offset, which no CRC covers; None if it can be right.  last_offset: of the
    batch before it, None for the first one; segment_base: the offset in the file's name, None if there is none."""
    if last_offset is not None and base_offset <= last_offset:
        before = f"{last_offset}, the last offset of the batch before it"
        return f"base offset {base_offset} is not above {before}: one of the two is wrong"
    if segment_base is not None and base_offset < segment_base:
        return f"base offset {base_offset} is below {segment_base}, the segment's name"
    return None


def _where_to_look(path: str) -> str:
    """The command that compares a .log with the other files of its partition; "" for a .log that belongs to none."""
    if log_files.kind_of(path) != log_files.FileKind(LOG_SUFFIX) or log_files.is_kraft_snapshot(path):
        return ""
    return f"; `kcore verify {os.path.dirname(path) or '.'}` says what the other files show"


def _log_events(path: str, wanted: Wanted) -> Iterator[Event]:
    for item in log_items(path, wanted):
        if not isinstance(item, MemoryRecords):
            yield item
            continue
        for batch in item.batches:
            if wanted.overlaps(batch.base_offset, batch.last_offset):
                if wanted.chooses_records:
                    yield from _events_of_chosen_records(batch, wanted)
                    continue
                yield batch_event(batch)
                if wanted.records:
                    yield from _record_events(batch, wanted)


def _events_of_chosen_records(batch: RecordBatch, wanted: Wanted) -> Iterator[Event]:
    """Nothing of a batch that holds none of them."""
    if (wanted.from_ms is not None and batch.max_timestamp < wanted.from_ms) or (
        wanted.key is not None and batch.is_control
    ):
        return
    events = list(_record_events(batch, wanted))
    if events:
        yield batch_event(batch)
        yield from (event for event in events if wanted.records or event["type"] == "damage")


def batch_event(batch: RecordBatch) -> Event:
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


def _record_events(batch: RecordBatch, wanted: Wanted) -> Iterator[Event]:
    try:
        records = batch.records()
    except KafkaError as error:
        yield damage_event(str(error), batch.position, batch.base_offset)
        return
    for record in records:
        if wanted.holds(record):
            event = record_event(batch, record)
            if wanted.decoder is not None and not batch.is_control:
                try:
                    event["key"], event["value"] = wanted.decoder(record.key, record.value)
                except KafkaError as error:
                    yield event
                    yield damage_event(str(error), batch.position, record.offset)
                    continue
            yield event


def record_event(batch: RecordBatch, record: Record) -> Event:
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


def _index_entries(path: str, kind: str, wanted: Wanted) -> Iterator[Event]:
    base = log_files.base_offset_of(path) or 0
    entry = _INDEX_ENTRY[kind]
    size = os.path.getsize(path)
    if size > log_files.MAX_INDEX_SIZE:
        yield damage_event(f"{size} bytes are more than an index can have, {log_files.MAX_INDEX_SIZE}")
        return
    with log_files.open_file(path) as file:
        data = file.read()
    # The index of a log that is open, or was not closed, keeps its full size: zeros after the last entry.
    end = len(data.rstrip(b"\0")) + entry.size - 1
    end = min(end - end % entry.size, len(data) - len(data) % entry.size)
    last: tuple[int, int] | None = None
    for n, fields in enumerate(entry.iter_unpack(data[:end])):
        if last is not None and fields <= last:
            yield damage_event("the entry is not above the one before it", n * entry.size)
        last = fields
        if kind == ".index":
            event = {"offset": base + fields[0], "position": fields[1]}
        else:
            event = {"timestamp": fields[0], "offset": base + fields[1]}
        if event["offset"] in wanted or event["offset"] < 0:
            yield event
    if rest := len(data) % entry.size:
        yield damage_event(f"{counted(rest, 'byte')} after the last whole entry", len(data) - rest)


def _txn_index_entries(path: str) -> Iterator[Event]:
    data = read_file(path)
    for position in range(0, len(data), TXN_ENTRY_SIZE):
        try:
            (txn,) = decode_entries(data[position : position + TXN_ENTRY_SIZE], path)
        except KafkaError as error:
            yield damage_event(without_path(error, path), position)
            continue
        yield {
            "version": 0,
            "producerId": txn.producer_id,
            "firstOffset": txn.first_offset,
            "lastOffset": txn.last_offset,
            "lastStableOffset": txn.last_stable_offset,
        }


def _snapshot_entries(path: str) -> Iterator[Event]:
    entries = decode_snapshot(read_file(path), path)
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


def _lost_records_entries(path: str) -> Iterator[Event]:
    first_offset = read_mark(os.path.dirname(path))
    if first_offset is not None:
        yield {"version": 0, "firstLostOffset": first_offset, "meaning": meaning_of(first_offset)}


def _property_entries(path: str) -> Iterator[Event]:
    for name, value in log_files.read_properties(path).items():
        yield {"name": name, "value": value}


def _shutdown_entries(path: str) -> Iterator[Event]:
    """The file counts by being there; it may be empty."""
    data = read_file(path)
    if data:
        try:
            fields = json.loads(data)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise CorruptFile(f"{path}: not JSON")
        yield {name: fields[name] for name in ("version", "brokerEpoch") if name in fields}


_SMALL_FILES: dict[str, Callable[[str], Iterator[Event]]] = {
    ".txnindex": _txn_index_entries,
    ".snapshot": _snapshot_entries,
    log_files.OFFSET_CHECKPOINT: _offset_entries,
    CLEAN_SHUTDOWN_FILE: _shutdown_entries,
    LEADER_EPOCH_CHECKPOINT: _epoch_entries,
    PARTITION_METADATA_FILE: _metadata_entries,
    LOST_RECORDS_FILE: _lost_records_entries,
    log_files.META_PROPERTIES_FILE: _property_entries,
}


def _small_file_events(path: str, entries: Callable[[str], Iterator[Event]]) -> Iterator[Event]:
    try:
        yield from entries(path)
    except KafkaError as error:
        yield damage_event(without_path(error, path))
