"""What copied records from one partition to another, by their logs: operations for the checker of histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.record_batch import RecordBatch
from tests.histories.checker import Kind, Operation, Partition, Poll, Send

_KINDS = {ControlRecordType.COMMIT: Kind.OK, ControlRecordType.ABORT: Kind.FAIL}


class LogTransaction(NamedTuple):
    """One transaction's records in one partition, (offset, value) each.  INFO: it has no marker."""

    kind: Kind
    records: list[tuple[int, bytes | None]]


def transactions(batches: Iterable[RecordBatch]) -> list[LogTransaction]:
    """In the order of their first records; those without a record are left out.  Raises InvalidRecord for a marker that
    is none, ValueError for a record outside of a transaction."""
    found: list[LogTransaction] = []
    is_open: dict[int, int] = {}
    for batch in batches:
        if batch.is_control:
            (marker,) = batch.records()
            kind = _KINDS.get(control_record_type(marker.key))
            at = is_open.pop(batch.producer_id, None)
            if kind is not None and at is not None:
                found[at] = found[at]._replace(kind=kind)
        elif not batch.is_transactional:
            raise ValueError(f"the batch at {batch.base_offset} is of no transaction")
        else:
            if batch.producer_id not in is_open:
                is_open[batch.producer_id] = len(found)
                found.append(LogTransaction(Kind.INFO, []))
            found[is_open[batch.producer_id]].records.extend((r.offset, r.value) for r in batch.records())
    return found


def copies(
    source: Partition, source_log: Iterable[LogTransaction], target: Partition, target_log: Iterable[LogTransaction]
) -> Iterator[Operation]:
    """Each transaction of the target as one that has polled its values in the source.  All are of one process: whoever
    copies goes on where the last committed transaction has ended.  Values that are not in the source are left out:
    others may copy to the target too.

    Of a value that is in the source several times the committed one was polled.
    """
    offsets: dict[bytes | None, int] = {}
    for transaction in sorted(source_log, key=lambda transaction: transaction.kind is Kind.OK):
        offsets |= {value: offset for offset, value in transaction.records}
    for number, (kind, records) in enumerate(target_log):
        copied = [(offset, value) for offset, value in records if value in offsets]
        if copied:
            polled = Poll({source: [(offsets[value], value) for _, value in copied]})
            sends = [Send(target, value, offset) for offset, value in copied]
            # When it was is not in the log: before everything else, and for an unknown time.
            yield Operation(f"from {source} to {target}", kind, [polled, *sends], number * 1e-9)
