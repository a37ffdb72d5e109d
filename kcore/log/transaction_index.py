"""TransactionIndex: the aborted transactions whose ABORT marker is in one segment (IDX-16).

File: 34-byte big-endian entries {int16 version = 0, int64 producer id, int64 first offset, int64 last offset,
int64 last stable offset}, appended in the order of their last offsets.  There is no file until the first entry.
Source: TransactionIndex and AbortedTxn, Kafka 2.4-4.x.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kcore.common.file import (
    append_to,
    clear_the_way,
    is_file,
    read_file,
    sync_path,
    truncate_file,
    unlink_if_there,
    write_atomically,
)
from kcore.errors import CorruptIndex
from kcore.log.log_offset_metadata import AbortedTxn

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0


def decode_entries(data: bytes, source: str, start_offset: int = 0) -> list[AbortedTxn]:
    """Raises CorruptIndex naming source and position."""
    if len(data) % ENTRY_SIZE:
        raise CorruptIndex(f"{source}: {len(data)} bytes, not a multiple of the entry size {ENTRY_SIZE}")
    entries: list[AbortedTxn] = []
    for number, (version, *values) in enumerate(_ENTRY.iter_unpack(data)):
        txn = AbortedTxn(*values)
        where = f"{source}: position {number * ENTRY_SIZE}"
        if version != _VERSION:
            raise CorruptIndex(f"{where}: version {version}, expected {_VERSION}")
        if txn.last_offset < start_offset:
            raise CorruptIndex(f"{where}: last offset {txn.last_offset} below the segment's base offset {start_offset}")
        if entries and txn.last_offset <= entries[-1].last_offset:
            raise CorruptIndex(f"{where}: last offset {txn.last_offset} not above {entries[-1].last_offset} before it")
        entries.append(txn)
    return entries


def encode_entries(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


class TransactionIndex:
    """One writer, under the log's lock; reads need no lock, they see the entries of one moment.

    All entries are kept in memory: aborted transactions are few, and a fetch looks through them anyway.
    No checksum covers the file: before a reader relies on the first `unproven` entries, they are held to the log.
    """

    def __init__(self, path: str, base_offset: int, *, writable: bool = True) -> None:
        self.path = path
        self.base_offset = base_offset
        self.writable = writable
        self.entries: tuple[AbortedTxn, ...] = ()
        #: How many entries were read from a file and not yet compared with the log; None when they were compared.
        self.unproven: int | None = None

    def load(self) -> None:
        """Read the file, if there is one.  Raises CorruptIndex, OSError."""
        try:
            data = read_file(self.path)
        except FileNotFoundError:
            data = b""
        self.entries = tuple(decode_entries(data, self.path, self.base_offset))
        self.unproven = len(self.entries)

    def append(self, txn: AbortedTxn) -> None:
        """Raises ValueError unless the last offset is above the previous entry's; OSError, and then nothing changed."""
        if self.entries and txn.last_offset <= self.entries[-1].last_offset:
            raise ValueError(
                f"{self.path}: last offset {txn.last_offset} not above {self.entries[-1].last_offset} before it"
            )
        if self.writable:
            # Opened for each entry: aborts are rare, and ten thousand idle descriptors are not free.
            append_to(self.path, encode_entries([txn]), len(self.entries) * ENTRY_SIZE)
        self.entries = (*self.entries, txn)

    def collect_aborted_txns(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Those that overlap [fetch_offset, upper_bound_offset), and whether later segments cannot hold more."""
        txns = []
        for txn in self.entries:
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
                txns.append(txn)
            if txn.last_stable_offset >= upper_bound_offset:
                return txns, True
        return txns, False

    def truncate_to(self, offset: int) -> None:
        """Keep the transactions that ended below offset.  Raises OSError."""
        kept = tuple(txn for txn in self.entries if txn.last_offset < offset)
        if len(kept) < len(self.entries):
            if self.writable:
                truncate_file(self.path, len(kept) * ENTRY_SIZE)
            self.entries = kept
            if self.unproven is not None:
                self.unproven = min(self.unproven, len(kept))

    def replace(self, entries: Iterable[AbortedTxn]) -> None:
        """Replace all entries by these, which were read from the log.  If it raises OSError, nothing has changed."""
        entries = tuple(entries)
        if self.writable and entries != self.entries:
            write_atomically(self.path, encode_entries(entries))
        self.entries = entries
        self.unproven = None

    def reset(self) -> None:
        """Remove all entries and the file.  Raises OSError."""
        self.entries = ()
        self.unproven = None
        if self.writable:
            if is_file(self.path):
                unlink_if_there(self.path)
            else:
                clear_the_way(self.path)

    def flush(self) -> None:
        """Raises OSError."""
        if self.writable and self.entries:
            sync_path(self.path)
