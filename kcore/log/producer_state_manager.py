"""ProducerStateManager: what a log knows about its producers, for idempotence and transactions (LOG-14, LSO).

Per producer id: the epoch, the last five batches (sequence numbers and offsets), the transaction that is open.  Saved
in <offset>.snapshot, which describes the log up to that offset: int16 version = 1, uint32 CRC-32C of what follows,
int32 count, then 46-byte big-endian entries {int64 producer id, int16 epoch, int32 last sequence, int64 last offset,
int32 offset delta, int64 timestamp, int32 coordinator epoch, int64 first offset of the open transaction or -1}.  Only
the last batch of a producer is saved; last sequence and last offset are -1 when there is none.
Source: ProducerStateManager, ProducerStateEntry, ProducerAppendInfo, Kafka 2.4-4.x; KIP-98.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.file import list_directory, read_file, sync_path, unlink_if_there, write_atomically
from kcore.errors import (
    CorruptFile,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.log_file_names import SNAPSHOT_SUFFIX, parse_segment_file, segment_file
from kcore.log.log_offset_metadata import AbortedTxn, AppendOrigin, LogOffsetMetadata
from kcore.log.producer_runs import take_runs
from kcore.log.producer_state_entry import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    BatchMetadata,
    ProducerStateEntry,
    ProducerStates,
)
from kcore.record.control_record import ControlRecordType, control_record_type, parse_end_transaction_marker
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import BatchTable
from kcore.record.record_batch import RecordBatch

if TYPE_CHECKING:
    from kcore.log.log_segment import LogSegment
    from kcore.log.log_segments import LogSegments

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000

_HEADER = struct.Struct(">hIi")
_CRC_STARTS = 6
_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
#: No producer writes in it: a marker in it is that of a fence.
_MAX_EPOCH = 2**15 - 1


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    is_aborted: bool


@dataclass(slots=True)
class TxnMetadata:
    """A transaction that holds back the last stable offset: open, or ended above the high watermark."""

    producer_id: int
    first_offset: LogOffsetMetadata
    last_offset: int | None = None


@dataclass(slots=True)
class TransactionVerification:
    """That a producer is about to begin a transaction in a log, and the coordinator is asked whether it has added the
    partition.  In force until the transaction begins, or until a marker of the producer is written: what the
    coordinator answers after that is out of date.

    lowest_sequence: of the batches that wait for the answer, in this epoch; no later one may be the first.
    is_confirmed: the coordinator has said yes.
    raises_epoch: each transaction of the producer has an epoch of its own (transaction version 2), so that a marker in
    this epoch ends the transaction before, and leaves the question in force.
    Source: VerificationStateEntry, Kafka 3.9 and 4.x (KIP-890).
    """

    producer_epoch: int
    lowest_sequence: int
    started_ms: int
    is_confirmed: bool = False
    raises_epoch: bool = False


class ProducerAppendInfo:
    """The new state of one producer while an append is checked; becomes the state only in update().

    needs_verification: a transaction begins only with a confirmed one.
    """

    __slots__ = (
        "_name",
        "_needs_verification",
        "_origin",
        "_verification",
        "ends_verification",
        "entry",
        "started_txns",
    )

    def __init__(
        self,
        name: str,
        current: ProducerStateEntry,
        origin: AppendOrigin,
        verification: TransactionVerification | None = None,
        *,
        needs_verification: bool = False,
    ) -> None:
        self._name = name
        self._origin = origin
        self._verification = verification
        self._needs_verification = needs_verification
        self.entry = current
        self.started_txns: list[TxnMetadata] = []
        self.ends_verification = False

    def append(self, batch: RecordBatch, first_offset: LogOffsetMetadata) -> CompletedTxn | None:
        """Check one batch and take it over; the transaction it ends, if it is a marker.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, TransactionCoordinatorFenced, InvalidTxnState.
        """
        if batch.is_control:
            return self._append_control(batch)
        self._append_data(batch, first_offset)
        return None

    def append_run(
        self,
        producer_epoch: int,
        batches: Sequence[tuple[int, int, int, int]],
        first_transactional: LogOffsetMetadata | None,
    ) -> None:
        """Take over replicated data batches of one epoch at once, as append() does one by one.

        batches: the last five at least, fields as those of BatchMetadata.  first_transactional: the offset of the first
        batch of all that is transactional.  Raises nothing: what the leader has accepted, a follower accepts.
        """
        _, last_offset, offset_delta, _ = batches[0]
        self._check_producer_epoch(producer_epoch, last_offset - offset_delta)
        entry = self.entry
        open_txn = entry.current_txn_first_offset
        if first_transactional is not None and open_txn is None:
            open_txn = first_transactional.message_offset
            self.started_txns.append(TxnMetadata(entry.producer_id, first_transactional))
        kept = entry.batches if producer_epoch == entry.producer_epoch else ()
        self.entry = ProducerStateEntry(
            entry.producer_id,
            producer_epoch,
            (*kept, *batches),
            batches[-1][3],
            entry.coordinator_epoch,
            open_txn,
        )

    def _append_control(self, batch: RecordBatch) -> CompletedTxn | None:
        for record in batch.records():
            kind = control_record_type(record.key)
            if kind is ControlRecordType.ABORT or kind is ControlRecordType.COMMIT:
                marker = parse_end_transaction_marker(record.key, record.value)
                is_aborted = kind is ControlRecordType.ABORT
                return self._end_txn(batch, marker.coordinator_epoch, is_aborted, record.offset, record.timestamp)
            # A batch of another type (of KRaft, or of the future) says nothing about transactions.
            return None
        # Emptied by the cleaner: its transaction is gone from the log, but its epoch still fences older producers.
        if batch.producer_epoch > self.entry.producer_epoch:
            entry = self.entry
            self.entry = ProducerStateEntry(
                entry.producer_id,
                batch.producer_epoch,
                (),
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        return None

    def _append_data(self, batch: RecordBatch, first_offset: LogOffsetMetadata) -> None:
        self._check_producer_epoch(batch.producer_epoch, batch.base_offset)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        entry = self.entry
        open_txn = entry.current_txn_first_offset
        if batch.is_transactional and open_txn is None:
            if self._needs_verification and (self._verification is None or not self._verification.is_confirmed):
                raise InvalidTxnState(
                    f"{self._name}: the transaction of producer {entry.producer_id} has ended: a batch at offset "
                    f"{batch.base_offset} would begin one that its coordinator does not know"
                )
            self.ends_verification = True
            open_txn = batch.base_offset
            self.started_txns.append(TxnMetadata(entry.producer_id, first_offset))
        elif not batch.is_transactional and open_txn is not None and self._origin is not AppendOrigin.REPLICATION:
            raise InvalidTxnState(
                f"{self._name}: producer {entry.producer_id} wrote a plain batch at offset {batch.base_offset} while "
                f"its transaction from {open_txn} is open"
            )
        self.entry = entry.with_batch(batch, open_txn)

    def _check_producer_epoch(self, producer_epoch: int, offset: int) -> None:
        if producer_epoch >= self.entry.producer_epoch:
            return
        text = (
            f"{self._name}: epoch {producer_epoch} of producer {self.entry.producer_id} at offset {offset} is older "
            f"than {self.entry.producer_epoch}, the last seen"
        )
        # What the leader has accepted, a follower accepts.
        if self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(text)
        logger.warning("%s", text)

    def _check_sequence(self, batch: RecordBatch) -> None:
        entry, first = self.entry, batch.base_sequence
        verification = self._verification
        if verification is not None and not self.ends_verification and first > verification.lowest_sequence:
            raise OutOfOrderSequenceNumber(
                f"{self._name}: producer {entry.producer_id} at offset {batch.base_offset} sent sequence {first}, but "
                f"{verification.lowest_sequence} before, which is not written"
            )
        if (
            verification is not None
            and verification.raises_epoch
            and first
            and entry.producer_epoch == NO_PRODUCER_EPOCH
        ):
            # Each epoch begins with 0, and is too young for retention to have removed what went before.
            raise OutOfOrderSequenceNumber(
                f"{self._name}: producer {entry.producer_id} at offset {batch.base_offset} begins with sequence "
                f"{first}, expected 0"
            )
        if batch.producer_epoch != entry.producer_epoch:
            if first != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
                # (Of an unknown producer any sequence may come first: retention may have removed what went before.)
                raise OutOfOrderSequenceNumber(
                    f"{self._name}: producer {entry.producer_id} starts epoch {batch.producer_epoch} at offset "
                    f"{batch.base_offset} with sequence {first}, expected 0"
                )
            return
        if first != entry.expected_sequence:
            raise OutOfOrderSequenceNumber(
                f"{self._name}: producer {entry.producer_id} at offset {batch.base_offset} sent sequence {first}, "
                f"expected {entry.expected_sequence} after {entry.last_sequence}"
            )

    def _end_txn(
        self, batch: RecordBatch, coordinator_epoch: int, is_aborted: bool, offset: int, timestamp: int
    ) -> CompletedTxn | None:
        self._check_producer_epoch(batch.producer_epoch, offset)
        entry, verification = self.entry, self._verification
        if (
            self._origin is AppendOrigin.COORDINATOR_RAISING_EPOCH
            and batch.producer_epoch == entry.producer_epoch < _MAX_EPOCH
            and entry.current_txn_first_offset is not None
        ):
            raise InvalidProducerEpoch(
                f"{self._name}: the marker for producer {entry.producer_id} at offset {offset} is of the transaction "
                f"before epoch {batch.producer_epoch}, in which one is open from {entry.current_txn_first_offset}"
            )
        if verification is None or not verification.raises_epoch or batch.producer_epoch > verification.producer_epoch:
            self.ends_verification = True
        if coordinator_epoch < entry.coordinator_epoch:
            text = (
                f"{self._name}: coordinator epoch {coordinator_epoch} of the marker for producer {entry.producer_id} "
                f"at offset {offset} is older than {entry.coordinator_epoch}, the last seen"
            )
            if self._origin is not AppendOrigin.REPLICATION:
                raise TransactionCoordinatorFenced(text)
            logger.info("%s", text)
        # A marker without data changes nothing for readers, so it completes nothing.
        completed = None
        if entry.current_txn_first_offset is not None:
            completed = CompletedTxn(entry.producer_id, entry.current_txn_first_offset, offset, is_aborted)
        self.entry = ProducerStateEntry(
            entry.producer_id,
            batch.producer_epoch,
            entry.batches if batch.producer_epoch == entry.producer_epoch else (),
            timestamp,
            coordinator_epoch,
            None,
        )
        return completed


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    body = []
    for e in entries:
        last = e.last_batch or BatchMetadata(NO_SEQUENCE, -1, 0, e.last_timestamp)
        open_txn = -1 if e.current_txn_first_offset is None else e.current_txn_first_offset
        body.append(
            _ENTRY.pack(
                e.producer_id,
                e.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                e.last_timestamp,
                e.coordinator_epoch,
                open_txn,
            )
        )
    data = bytearray(_HEADER.pack(_SNAPSHOT_VERSION, 0, len(body)) + b"".join(body))
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_STARTS:]))
    return bytes(data)


def decode_snapshot(data: bytes, source: str) -> list[ProducerStateEntry]:
    """Raises CorruptFile naming source, and both values of what does not match."""
    if len(data) < _HEADER.size:
        raise CorruptFile(f"{source}: {len(data)} bytes, too short for a producer snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptFile(f"{source}: version {version}, expected {_SNAPSHOT_VERSION}")
    computed = crc32c(memoryview(data)[_CRC_STARTS:])
    if crc != computed:
        raise CorruptFile(f"{source}: CRC {crc:#010x} stored, {computed:#010x} computed")
    if count < 0 or len(data) - _HEADER.size != count * _ENTRY.size:
        raise CorruptFile(f"{source}: {count} entries announced, {len(data) - _HEADER.size} bytes of them found")
    entries = []
    for pid, epoch, sequence, offset, delta, timestamp, coordinator, open_txn in _ENTRY.iter_unpack(
        memoryview(data)[_HEADER.size :]
    ):
        batches = (BatchMetadata(sequence, offset, delta, timestamp),) if offset >= 0 else ()
        entries.append(
            ProducerStateEntry(pid, epoch, batches, timestamp, coordinator, open_txn if open_txn >= 0 else None)
        )
    return entries


class ProducerStateManager(ProducerStates):
    """State of all producers of one log, and its snapshots.  Not thread-safe: the log's lock guards it.

    writable=False neither writes nor deletes a snapshot.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        *,
        producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        verifies_transactions: bool = False,
        writable: bool = True,
        snapshots: Iterable[int] = (),
    ) -> None:
        super().__init__()
        self._name = name
        self._directory = directory
        self.producer_id_expiration_ms = producer_id_expiration_ms
        #: Whether a leader's transactions begin only once start_verification() was called and its answer confirmed.
        self.verifies_transactions = verifies_transactions
        self._verifications: dict[int, TransactionVerification] = {}
        self._writable = writable
        # By first offset, ascending.
        self._ongoing: dict[int, TxnMetadata] = {}
        # Ended, but with a marker at or above the high watermark.
        self._unreplicated: dict[int, TxnMetadata] = {}
        self.snapshot_offsets: list[int] = sorted(snapshots)
        self._unsynced: set[int] = set()
        self.last_snapshot_offset = 0
        #: The state describes the log up to here, exclusive.
        self.map_end_offset = 0

    # -- for an append ------------------------------------------------------------------------------------------

    def prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        current = self.producers.get(producer_id) or ProducerStateEntry(producer_id)
        return ProducerAppendInfo(
            self._name,
            current,
            origin,
            self._verifications.get(producer_id),
            needs_verification=self.verifies_transactions and origin is not AppendOrigin.REPLICATION,
        )

    def start_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, raises_epoch: bool = False
    ) -> TransactionVerification:
        """Of a producer without an open transaction.  sequence: of the batch that waits for it."""
        new = TransactionVerification(producer_epoch, sequence, now_ms)
        verification = self._verifications.setdefault(producer_id, new)
        verification.raises_epoch = raises_epoch
        if producer_epoch > verification.producer_epoch:
            verification.producer_epoch, verification.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == verification.producer_epoch:
            verification.lowest_sequence = min(verification.lowest_sequence, sequence)
        return verification

    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        entry = self.producers.get(batch.producer_id)
        return entry.find_duplicate(batch) if entry is not None else None

    def update(self, info: ProducerAppendInfo) -> None:
        """Take over the producer's new state, after its batches were appended to the log."""
        self.producers[info.entry.producer_id] = info.entry
        if info.ends_verification:
            self._verifications.pop(info.entry.producer_id, None)
        for txn in info.started_txns:
            self._start_txn(txn)

    def _start_txn(self, txn: TxnMetadata) -> None:
        ongoing, first_offset = self._ongoing, txn.first_offset.message_offset
        in_order = not ongoing or next(reversed(ongoing)) < first_offset
        ongoing[first_offset] = txn
        if not in_order:
            # An append adds the transactions producer by producer, so their offsets may interleave.
            self._ongoing = dict(sorted(ongoing.items()))

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """The LSO after the end of this transaction, for its transaction index entry.

        It is the LSO at the marker's place in the log.  Transactions that start later in the same append may already be
        in _ongoing, but a reader relies on the transaction of the next index entry starting at or above it.
        """
        for first_offset, txn in self._ongoing.items():
            if txn.producer_id != completed.producer_id:
                return min(first_offset, completed.last_offset + 1)
        return completed.last_offset + 1

    def complete_txn(self, completed: CompletedTxn) -> None:
        """End the transaction; it still limits the LSO until its marker is below the high watermark."""
        txn = self._ongoing.pop(completed.first_offset, None)
        if txn is None:
            raise InvalidTxnState(f"{self._name}: {completed} ends a transaction that did not start")
        txn.last_offset = completed.last_offset
        self._unreplicated[completed.first_offset] = txn

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        if self._unreplicated:
            self._unreplicated = {
                first: txn
                for first, txn in self._unreplicated.items()
                if txn.last_offset is None or txn.last_offset >= high_watermark
            }

    @property
    def first_unstable_offset(self) -> LogOffsetMetadata | None:
        """The start of the oldest transaction that is open or not fully replicated; None if there is none."""
        candidates = []
        if self._ongoing:
            candidates.append(next(iter(self._ongoing.values())).first_offset)
        if self._unreplicated:
            candidates.append(self._unreplicated[min(self._unreplicated)].first_offset)
        return min(candidates) if candidates else None

    def unfinished_txns(self) -> list[TxnMetadata]:
        """The transactions that are open or not fully replicated, by first offset."""
        txns = [*self._ongoing.values(), *self._unreplicated.values()]
        return sorted(txns, key=lambda txn: txn.first_offset.message_offset)

    def has_silent_txn(self, since_ms: int) -> bool:
        """Whether the producer of the oldest open transaction has written nothing since then, by its timestamps."""
        for txn in tuple(self._ongoing.values())[:1]:
            entry = self.producers.get(txn.producer_id)
            return entry is not None and 0 < entry.last_timestamp < since_ms
        return False

    # -- expiry ---------------------------------------------------------------------------------------------------

    def remove_expired_producers(self, now_ms: int) -> None:
        """Remove producers that wrote nothing for producer.id.expiration.ms and have no transaction open."""
        expired = [pid for pid, entry in self.producers.items() if self._is_expired(entry, now_ms)]
        for pid in expired:
            del self.producers[pid]
        oldest_ms = now_ms - self.producer_id_expiration_ms
        self._verifications = {pid: v for pid, v in self._verifications.items() if v.started_ms > oldest_ms}

    def _is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return (
            entry.current_txn_first_offset is None and now_ms - entry.last_timestamp >= self.producer_id_expiration_ms
        )

    # -- snapshots ------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> int | None:
        """Save the state at map_end_offset, unless it was saved.  Returns the offset or None.  Raises OSError.

        Not synced here: flush_snapshots() does that before the log's recovery point passes it.
        """
        offset = self.map_end_offset
        if not self._writable or offset <= self.last_snapshot_offset:
            return None
        write_atomically(self._path(offset), encode_snapshot(self.producers.values()), sync=False)
        if offset not in self.snapshot_offsets:
            self.snapshot_offsets = sorted([*self.snapshot_offsets, offset])
        self._unsynced.add(offset)
        self.last_snapshot_offset = offset
        return offset

    def flush_snapshots(self, up_to_offset: int) -> None:
        """Make the snapshots at or below an offset durable.  Raises OSError."""
        for offset in sorted(self._unsynced):
            if offset <= up_to_offset:
                try:
                    sync_path(self._path(offset))
                except FileNotFoundError:
                    pass  # removed meanwhile
                self._unsynced.discard(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest snapshot in (log_start_offset, log_end_offset], or the empty state if there is none.

        Snapshots outside this range are deleted.  Afterwards the state describes the log up to map_end_offset; the
        caller replays the batches from there.
        """
        for offset in list(self.snapshot_offsets):
            if offset > log_end_offset or offset <= log_start_offset:
                self.delete_snapshot(offset)
        if log_end_offset != self.map_end_offset:
            self._clear()
            self._load_newest_snapshot(log_start_offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._clear()
        for snapshot in list(self.snapshot_offsets):
            self.delete_snapshot(snapshot)
        self.last_snapshot_offset = 0
        self.map_end_offset = offset

    def _clear(self) -> None:
        self.producers.clear()
        self._verifications.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    def _load_newest_snapshot(self, log_start_offset: int, now_ms: int) -> None:
        usable = [offset for offset in self.snapshot_offsets if log_start_offset < offset]
        while usable:
            offset = usable.pop()
            entries = self._read_snapshot(offset)
            if entries is None:
                continue
            for entry in entries:
                if entry.current_txn_first_offset is not None:
                    self._start_txn(TxnMetadata(entry.producer_id, LogOffsetMetadata(entry.current_txn_first_offset)))
            self.producers = {e.producer_id: e for e in entries if not self._is_expired(e, now_ms)}
            self.last_snapshot_offset = self.map_end_offset = offset
            return
        self.last_snapshot_offset = self.map_end_offset = log_start_offset

    def _read_snapshot(self, offset: int) -> list[ProducerStateEntry] | None:
        """The entries of a snapshot; None if it is missing or damaged.  A damaged one is deleted.  Raises OSError."""
        path = self._path(offset)
        try:
            return decode_snapshot(read_file(path), path)
        except FileNotFoundError:
            self._forget_snapshot(offset)
        except CorruptFile as error:
            logger.warning("%s: the state is rebuilt from an older snapshot or the log: %s", self._name, error)
            self.delete_snapshot(offset)
        return None

    def remove_damaged_snapshots(self) -> None:
        """Delete the snapshots that cannot be read, before a truncation needs one.  Raises OSError."""
        for offset in list(self.snapshot_offsets):
            self._read_snapshot(offset)

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Forget the transactions that ended below the log start offset."""
        self._unreplicated = {
            first: txn
            for first, txn in self._unreplicated.items()
            if txn.last_offset is None or txn.last_offset >= log_start_offset
        }
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    def remove_stray_snapshots(self, segment_base_offsets: Iterable[int]) -> None:
        """Keep the snapshots at segments' base offsets, and the newest.  Raises OSError."""
        keep = set(segment_base_offsets)
        for offset in self.snapshot_offsets[:-1]:
            if offset not in keep:
                self.delete_snapshot(offset)

    def delete_snapshot(self, offset: int) -> None:
        """Remove the file and its offset.  Raises OSError."""
        if self._writable:
            unlink_if_there(self._path(offset))
        self._forget_snapshot(offset)

    def _forget_snapshot(self, offset: int) -> None:
        self.snapshot_offsets = [other for other in self.snapshot_offsets if other != offset]
        self._unsynced.discard(offset)

    def _path(self, offset: int) -> str:
        return segment_file(self._directory, offset, SNAPSHOT_SUFFIX)


def snapshot_offsets_in(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots among a directory's file names."""
    parsed = (parse_segment_file(name) for name in names)
    return [p.base_offset for p in parsed if p is not None and p.kind == SNAPSHOT_SUFFIX and not p.mark]


def rebuild_producer_state(
    state: ProducerStateManager, segments: LogSegments, log_start_offset: int, log_end_offset: int, now_ms: int
) -> None:
    """Bring the state to log_end_offset: from the newest usable snapshot, then from the batches after it.

    Of batches without a producer it reads only the headers.  Raises CorruptMessage for damaged batches, OSError.
    Source: UnifiedLog.rebuildProducerState.
    """
    state.truncate_and_reload(log_start_offset, log_end_offset, now_ms)
    start = state.map_end_offset
    if start < log_end_offset:
        for segment in segments.from_floor(start):
            if segment.base_offset >= log_end_offset:
                break  # not checked yet, so it may end in a torn batch
            place = segment.translate_offset(max(start, segment.base_offset))
            if place is not None:
                replay = ProducerReplay(state, segment, log_end_offset)
                segment.scan(replay, start_position=place.position, check_crc=False, only_noteworthy=True)
    state.map_end_offset = log_end_offset


class ProducerReplay:
    """Adds the batches of a segment below end_offset to the state, as a follower's append would.

    epochs: if not None, the leader epochs of the batches are added to it.  aborted_txns: if not None, the entries of
    the segment's transaction index are appended to it.
    """

    def __init__(
        self,
        state: ProducerStateManager,
        segment: LogSegment,
        end_offset: int,
        *,
        epochs: LeaderEpochFileCache | None = None,
        aborted_txns: list[AbortedTxn] | None = None,
    ) -> None:
        self._state = state
        self._segment = segment
        self._end_offset = end_offset
        self._epochs = epochs
        self._aborted_txns = aborted_txns

    def __call__(self, table: BatchTable) -> None:
        at = 0
        while at < len(table):
            latest_epoch = self._epochs.latest_epoch if self._epochs is not None else 2**31 - 1
            at, runs = take_runs(table, at, self._end_offset, latest_epoch)
            for producer_id, epoch, batches, txn_offset, txn_position in runs:
                first_offset = LogOffsetMetadata(txn_offset, self._segment.base_offset, txn_position)
                info = self._state.prepare(producer_id, AppendOrigin.REPLICATION)
                info.append_run(epoch, batches, first_offset if txn_offset >= 0 else None)
                self._state.update(info)
            if at < len(table):
                self._take_one(table[at])
                at += 1

    def _take_one(self, batch: RecordBatch) -> None:
        if self._epochs is not None:
            self._epochs.note(batch)
        if batch.producer_id >= 0 and batch.base_offset < self._end_offset:
            ended = replay_batch(self._state, batch, self._segment)
            if ended is not None and ended[0].is_aborted and self._aborted_txns is not None:
                txn, last_stable_offset = ended
                self._aborted_txns.append(
                    AbortedTxn(txn.producer_id, txn.first_offset, txn.last_offset, last_stable_offset)
                )


def replay_batch(
    state: ProducerStateManager, batch: RecordBatch, segment: LogSegment
) -> tuple[CompletedTxn, int] | None:
    """Add a batch of the log to the state.  Returns the transaction that it ends, and the LSO of its index entry."""
    position = LogOffsetMetadata(batch.base_offset, segment.base_offset, batch.position)
    if batch.is_control:
        # A scan passes headers only; the type of a marker is in its record.
        batch = segment.slice(batch.position, batch.size).memory_records(check_crc=False).batches[0]
    info = state.prepare(batch.producer_id, AppendOrigin.REPLICATION)
    try:
        completed = info.append(batch, position)
    except InvalidRecord as error:
        # Its CRC is right, so it was written like this.  The transaction stays open: whether the marker commits or
        # aborts it cannot be read.
        logger.error("%s: offset %d: a marker that cannot be read: %s", segment.log_path, batch.base_offset, error)
        return None
    state.update(info)
    if completed is None:
        return None
    last_stable_offset = state.last_stable_offset(completed)
    state.complete_txn(completed)
    return completed, last_stable_offset


def aborted_txns_in(
    segment: LogSegment,
    segments: LogSegments,
    directory: str,
    name: str,
    end_offset: int,
    now_ms: int,
    *,
    check_crc: bool = False,
) -> tuple[list[AbortedTxn], int]:
    """The transaction index entries of one segment, from its batches below end_offset; changes nothing on disk.

    Also returns the offset below which these entries are complete: where the segment is damaged, otherwise 2**63 - 1.
    Reads the segment and the log before it back to a snapshot; of batches without a producer only the headers, unless
    check_crc.  Raises OSError, CorruptMessage.
    """
    first = segments.first
    assert first is not None
    snapshots = snapshot_offsets_in(list_directory(directory))
    state = ProducerStateManager(name, directory, writable=False, snapshots=snapshots)
    rebuild_producer_state(state, segments, first.base_offset, segment.base_offset, now_ms)
    aborted: list[AbortedTxn] = []
    replay = ProducerReplay(state, segment, end_offset, aborted_txns=aborted)
    result = segment.scan(replay, check_crc=check_crc, only_noteworthy=True)
    return aborted, result.last_offset + 1 if result.truncated_bytes else 2**63 - 1
