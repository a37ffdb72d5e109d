"""Compaction as lists of batches: the slow, obvious model that the cleaner is held against.

It knows which transactions were aborted from the markers themselves, and looks at whole logs at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcore.record.control_record import ControlRecordType, control_record_type


@dataclass(frozen=True)
class ReferenceRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple = ()


@dataclass(frozen=True)
class ReferenceCleanedBatch:
    base_offset: int
    last_offset: int
    records: tuple[ReferenceRecord, ...]
    max_timestamp: int
    delete_horizon_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = 0
    compression: str = "none"
    timestamp_type: str = "CreateTime"
    is_transactional: bool = False
    is_control: bool = False


def batches_of(log):
    """What a log holds, markers included."""
    return [
        ReferenceCleanedBatch(
            b.base_offset,
            b.last_offset,
            tuple(ReferenceRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in b.records()),
            b.max_timestamp,
            b.delete_horizon_ms,
            b.producer_id,
            b.producer_epoch,
            b.base_sequence,
            b.leader_epoch,
            b.compression,
            b.timestamp_type,
            b.is_transactional,
            b.is_control,
        )
        for b in log.batches()
    ]


def aborted_offsets(batches):
    """Last offsets of the data batches of transactions that ended with an ABORT marker."""
    transactions, open_batches = set(), {}
    for batch in batches:
        if batch.is_control:
            inside = open_batches.pop(batch.producer_id, [])
            if batch.records and control_record_type(batch.records[0].key) is ControlRecordType.ABORT:
                transactions.update(inside)
        elif batch.is_transactional:
            open_batches.setdefault(batch.producer_id, []).append(batch.last_offset)
    return transactions


def clean(batches, first_dirty, end, active_producers, now_ms, retention_ms):
    """batches after a cleaning of [0, end) whose keys come from [first_dirty, end).

    active_producers: id -> (last offset of its last data batch or None, epoch).
    """
    aborted = aborted_offsets(batches)
    latest = {}
    for batch in batches:
        if not batch.is_control and batch.last_offset not in aborted:
            for record in batch.records:
                if record.key is not None and first_dirty <= record.offset < end:
                    latest[record.key] = record.offset
    result, data_since_marker = [], {}
    for batch in batches:
        if batch.base_offset >= end:
            result.append(batch)
            continue
        cleaned, may_go = batch, False
        horizon = batch.delete_horizon_ms
        if batch.is_control:
            may_go = not batch.records or not data_since_marker.pop(batch.producer_id, False)
            records = () if may_go and horizon is not None and horizon <= now_ms else batch.records
        else:
            if batch.is_transactional:
                data_since_marker[batch.producer_id] = True
            records = tuple(
                r
                for r in batch.records
                if batch.last_offset not in aborted
                and r.key is not None
                and r.offset >= latest.get(r.key, -1)
                and (r.value is not None or horizon is None or now_ms < horizon)
            )
        needs_horizon = may_go or any(r.value is None for r in records)
        if needs_horizon and horizon is None and records:
            cleaned = replace(cleaned, delete_horizon_ms=now_ms + retention_ms)
        if records != batch.records:
            cleaned = replace(cleaned, records=records)
        if records and cleaned != batch and batch.timestamp_type == "CreateTime":
            cleaned = replace(cleaned, max_timestamp=max(r.timestamp for r in records))
        if not records:
            offset, epoch = active_producers.get(batch.producer_id, (None, None))
            if batch.producer_id < 0 or batch.producer_id not in active_producers:
                is_last = False
            elif offset is not None:
                is_last = batch.last_offset == offset
            else:
                is_last = batch.is_control and batch.producer_epoch == epoch
            if not is_last and batch.last_offset != end - 1:
                continue
            if batch.records:
                cleaned = replace(cleaned, delete_horizon_ms=None, compression="none")
        result.append(cleaned)
    return result
