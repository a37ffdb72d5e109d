"""The files that both sides of the storage comparison measure: written by kcore once a run, read by everybody.

A *set file* holds record sets, each behind its length (four bytes).  `segment_*/` and `keyed/` are partition
directories.  What is not a multiple of anything is JSON-like text, which the codecs shrink about as they shrink real
records.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from kcore.log.log_segment import LogSegment
from kcore.log.log_validator import assign_offsets
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

KIB, MIB = 1 << 10, 1 << 20
NOW = 1_700_000_000_000
CODECS = ("lz4", "zstd", "snappy", "gzip")
DISTINCT_KEYS = 500_000

_WORDS = ["click", "view", "purchase", "search", "login", "logout", "checkout", "refund", "mobile", "desktop", "tablet"]


def values(size: int, count: int = 8192) -> list[bytes]:
    """Texts of exactly that many bytes."""
    rng = random.Random(size)
    found = []
    for n in range(count):
        text = f'{{"id":{n},"user":"u{rng.randrange(100_000)}","amount":{rng.randrange(10**7) / 100},"tags":['
        while len(text) < size:
            text += f'"{rng.choice(_WORDS)}",'
        found.append(text[: size - 2].encode() + b"]}")
    return found


def batches(size: int, value_size: int, total: int, **options: Any) -> Iterator[bytearray]:
    """Batches of records of value_size bytes, as many as fit into size (before compression), total bytes of them.

    With one record too large for that, its batch has exactly size bytes.
    """
    texts = values(value_size)
    n = 0
    for _ in range(total // size):
        builder = RecordBatchBuilder(leader_epoch=0, **options)
        while not len(builder) or builder.size_in_bytes + value_size + 14 <= size:
            builder.append(texts[n % len(texts)], timestamp=NOW + n // 10)
            n += 1
        yield builder.build()


def message_sets(size: int, value_size: int, total: int) -> Iterator[bytearray]:
    """The same as plain messages of magic 1: record sets of about that size."""
    texts = values(value_size)
    n = 0
    for _ in range(total // size):
        builder = RecordBatchBuilder(magic=1)
        for _ in range(size // (value_size + 34)):
            builder.append(texts[n % len(texts)], timestamp=NOW + n // 10)
            n += 1
        yield builder.build()


def one_record_batches(size: int, total: int) -> Iterator[bytearray]:
    """Batches of exactly size bytes with one record in each."""
    for value_size in range(size - 61 - 16, size):
        builder = RecordBatchBuilder()
        builder.append(bytes(value_size), timestamp=NOW)
        if builder.size_in_bytes == size:
            return batches(size, value_size, total)
    raise AssertionError(size)


def write_sets(path: Path, sets: Iterable[bytes | bytearray]) -> None:
    with open(path, "wb") as file:
        for one in sets:
            file.write(struct.pack(">i", len(one)))
            file.write(one)


def read_sets(path: Path) -> list[bytearray]:
    data = path.read_bytes()
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        found.append(bytearray(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def write_segment(directory: Path, sets: list[bytearray], total: int) -> None:
    directory.mkdir()
    segment = LogSegment(str(directory), 0, max_segment_bytes=2**31 - 1)
    records = MemoryRecords(bytearray().join(sets))
    end = 0
    while segment.size < total:
        end = assign_offsets(records, end, 0) + 1
        segment.append(records)
    segment.flush()
    segment.close()


def write_keyed(directory: Path, total: int) -> None:
    """A closed segment with every key several times over, then an empty active one."""
    directory.mkdir()
    texts = values(100)
    with load_log(str(directory), TopicPartition("keyed", 0), LogConfig(), sole_replica=True) as log:
        n = 0
        while log.size < total:
            builder = RecordBatchBuilder()
            while builder.size_in_bytes + 122 <= 16 * KIB:
                key = struct.pack(">q", n * 2654435761 % min(DISTINCT_KEYS, total // 512))
                builder.append(texts[n % len(texts)], key, timestamp=NOW + n // 10)
                n += 1
            log.append_as_leader(builder.build())
        log.roll()


def write_all(directory: Path, segment_bytes: int, *, keyed_bytes: int = 256 * MIB, pool_bytes: int = 4 * MIB) -> None:
    """pool_bytes, of each set file: by default more than a second-level cache, less than a third-level one."""
    small = list(batches(KIB, 100, pool_bytes))
    large = list(batches(16 * KIB, 100, pool_bytes))
    whole = list(one_record_batches(KIB, pool_bytes))
    write_sets(directory / "1KiB", small)
    write_sets(directory / "16KiB", large)
    write_sets(directory / "1KiB_one", whole)
    write_sets(directory / "1MiB", batches(MIB, 100, pool_bytes))
    write_sets(directory / "16KiB_v1", message_sets(16 * KIB, 100, pool_bytes))
    for codec in CODECS:
        write_sets(directory / f"16KiB_{codec}", batches(16 * KIB, 100, pool_bytes, compression=codec))
        write_sets(directory / f"1MiB_{codec}", batches(MIB, 100, pool_bytes, compression=codec))
    write_segment(directory / "segment_1KiB", whole, segment_bytes)
    write_segment(directory / "segment_16KiB", large, segment_bytes)
    write_keyed(directory / "keyed", keyed_bytes)


def linked(source: Path, target: Path) -> Path:
    """Fill a directory with the .log files of another one (hard links) and copies of everything else."""
    for file in source.iterdir():
        if file.suffix == ".log":
            os.link(file, target / file.name)
        else:
            (target / file.name).write_bytes(file.read_bytes())
    return target
