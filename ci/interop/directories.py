"""Directories that kcore writes, one partition for each thing that ends up in files.

directories.py DIRECTORY appends to the partition there for ever: somebody will kill it.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import kcore
from ci.interop.oracle import NOW, SMALL
from kcore.bulk.bulk_commit import commit_load, staging_directory
from kcore.bulk.bulk_load import SegmentWriter
from kcore.common import file
from kcore.common.time import MockTime
from kcore.errors import KafkaError
from kcore.log import load_journal
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import LogToClean
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.offset_map import OffsetMap
from kcore.log.partition_counts import PartitionCounts
from kcore.log.unified_log import UnifiedLog
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.record_batch_builder import RecordBatchBuilder

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def open_log(directory: Path, **settings: object) -> UnifiedLog:
    config = SMALL.from_kafka({name.replace("_", "."): value for name, value in settings.items()}, SMALL)
    return kcore.open_log(directory, "a", config=config, time=MockTime(NOW))


def batch(rng: random.Random, count: int, codec: str = "none", keys: int | None = None, **options: Any) -> bytearray:
    """A producer's batch of odd records, offsets from 0; with so many different keys, if told."""
    builder = RecordBatchBuilder(compression=codec, **options)
    old = options.get("magic", 2) < 2
    for n in range(count):
        key = rng.choice([None, b"", f"key-{n}".encode()]) if keys is None else f"key-{rng.randrange(keys)}".encode()
        builder.append(
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 30)), b"abcdef" * rng.randint(1, 80)]),
            key,
            timestamp=-1 if options.get("magic") == 0 else NOW + rng.randint(-3000, 3000),
            headers=() if old else rng.choice([(), (("h", b"v"), ("h", None), ("", b""))]),
        )
    return builder.build()


def marker(kind: ControlRecordType, producer_id: int, epoch: int) -> bytearray:
    builder = RecordBatchBuilder(producer_id=producer_id, producer_epoch=epoch, is_transactional=True, is_control=True)
    end = EndTransactionMarker(kind, 0)
    builder.append(end.value(), end.key(), timestamp=NOW)
    return builder.build()


class Transactions:
    """Two producers whose transactions overlap; every third is aborted."""

    def __init__(self, log: UnifiedLog, rng: random.Random, keys: int | None = None) -> None:
        self._log = log
        self._rng = rng
        self._keys = keys
        self._sequence = [0, 0]

    def records(self, producer_id: int) -> None:
        options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": self._sequence[producer_id]}
        self._log.append_as_leader(batch(self._rng, 4, "lz4", self._keys, is_transactional=True, **options))
        self._sequence[producer_id] += 4

    def write(self, count: int) -> None:
        for n in range(count):
            for producer_id in (0, 1):
                for _ in range(self._rng.randint(1, 3)):
                    self.records(producer_id)
            self._log.append_as_leader(batch(self._rng, 3, keys=self._keys))
            for producer_id in self._rng.sample((0, 1), 2):
                kind = ControlRecordType.ABORT if (n + producer_id) % 3 == 0 else ControlRecordType.COMMIT
                self._log.append_as_leader(marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)


def codecs(data: Path, rng: random.Random) -> None:
    for codec in CODECS:
        with open_log(data / f"codec-{codec}-0") as log:
            for _ in range(250):
                log.append_as_leader(batch(rng, rng.randint(1, 12), codec))
        with open_log(data / f"codec-{codec}-0") as log:
            log.append_as_leader(batch(rng, 5, codec), leader_epoch=3)


def append_time(data: Path, rng: random.Random) -> None:
    with open_log(data / "append-time-0", message_timestamp_type="LogAppendTime") as log:
        for n in range(60):
            log.append_as_leader(batch(rng, 8, CODECS[n % 5]))


def older_index_rule(data: Path, rng: random.Random) -> None:
    """Index entries once an append, as Kafka 2.4 to 3.8 wrote them; several batches in each append."""
    config = replace(SMALL, per_append_index=True)
    with kcore.open_log(data / "per-append-0", "a", config=config, time=MockTime(NOW)) as log:
        for n in range(120):
            end, codec = log.log_end_offset, CODECS[n % 5]
            offsets = {4: end, 3: end + 4, 5: end + 7}
            batches = [batch(rng, n, codec, base_offset=at, leader_epoch=0) for n, at in offsets.items()]
            log.append_as_follower(b"".join(batches))


def idempotent(data: Path, rng: random.Random) -> None:
    with open_log(data / "idempotent-0") as log:
        for n in range(200):
            records = batch(rng, 5, producer_id=7, producer_epoch=1, base_sequence=5 * n)
            log.append_as_leader(records, leader_epoch=n // 50)


def transactions(data: Path, rng: random.Random) -> None:
    with open_log(data / "transactions-0") as log:
        Transactions(log, rng).write(40)
    with open_log(data / "open-transaction-0") as log:
        both = Transactions(log, rng)
        both.write(25)
        both.records(1)
        for _ in range(60):
            log.append_as_leader(batch(rng, 3))


def truncated(data: Path, rng: random.Random) -> None:
    with open_log(data / "truncated-0") as log:
        for epoch in range(4):
            Transactions(log, rng).write(1) if epoch == 0 else None
            for _ in range(60):
                log.append_as_leader(batch(rng, 5, CODECS[epoch]), leader_epoch=epoch)
        log.truncate_to(log.log_end_offset * 2 // 3)
        for _ in range(20):
            log.append_as_leader(batch(rng, 5), leader_epoch=7)


def log_start(data: Path, rng: random.Random) -> None:
    with open_log(data / "log-start-0", file_delete_delay_ms=0) as log:
        Transactions(log, rng).write(40)
        log.maybe_increment_log_start_offset(log.log_end_offset // 2 + 1)
        log.delete_old_segments()


def follower(data: Path, rng: random.Random) -> None:
    """A follower's appends of several batches, in which a compacted leader may have left gaps."""
    with kcore.open_log(data / "codec-zstd-0") as leader:
        batches = [bytes(found.buffer) for found in leader.batches()]
    batches = [found for found in batches if rng.randrange(10)]
    with open_log(data / "follower-0") as log:
        for start in range(0, len(batches), 7):
            log.append_as_follower(b"".join(batches[start : start + 7]))


def old_formats(data: Path, rng: random.Random) -> None:
    """A follower's appends of magic 0 and 1, and of all three in one log."""
    for name, magics in {"magic-0": [0], "magic-1": [1], "magic-mixed": [0, 1, 2]}.items():
        with open_log(data / f"{name}-0") as log:
            for n in range(200):
                codec = rng.choice(CODECS[:4])
                options: dict[str, Any] = {"magic": magics[n * len(magics) // 200], "base_offset": log.log_end_offset}
                if options["magic"] == 2:
                    options["leader_epoch"] = 1
                log.append_as_follower(batch(rng, rng.randint(1, 6), codec, **options))


def compacted(data: Path, rng: random.Random) -> None:
    """By kcore's cleaner, twice, the second time behind tombstones that have had their time; transactions, all codecs,
    and messages of magic 1 among them."""
    settings = {"cleanup_policy": "compact", "delete_retention_ms": 0, "file_delete_delay_ms": 0}
    with open_log(data / "compacted-0", **settings) as log:
        both = Transactions(log, rng, keys=60)
        first_dirty = 0
        for epoch in range(2):
            both.write(20)
            for n in range(120):
                log.append_as_leader(batch(rng, rng.randint(1, 8), CODECS[n % 5], keys=60), leader_epoch=epoch)
            log.roll()
            clean_up_to = log.active_segment.base_offset
            first_dirty, _ = Cleaner(OffsetMap(1 << 20)).clean(LogToClean(log, first_dirty, clean_up_to, 0, log.size))
            assert first_dirty == clean_up_to
        both.write(5)
    with open_log(data / "compacted-old-0", **settings) as log:
        for n in range(300):
            options: dict[str, Any] = {"magic": 1, "base_offset": log.log_end_offset}
            log.append_as_follower(batch(rng, rng.randint(1, 6), CODECS[n % 4], keys=80, **options))
        log.roll()
        clean_up_to = log.active_segment.base_offset
        Cleaner(OffsetMap(1 << 20)).clean(LogToClean(log, 0, clean_up_to, 0, log.size))
        log.append_as_leader(batch(rng, 5, keys=60))


def crashed(data: Path, rng: random.Random) -> None:
    """Files as they are while the log is open, and half a batch at the end; then opened by kcore again."""
    with open_log(data / "open-0") as log:
        for _ in range(90):
            log.append_as_leader(batch(rng, 6, "snappy"))
        shutil.copytree(data / "open-0", data / "crashed-0")
    last = max((data / "crashed-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + bytes(batch(rng, 6))[:-10])
    (data / ".kafka_cleanshutdown").unlink()
    with open_log(data / "crashed-0") as log:
        log.append_as_leader(batch(rng, 6))


def bulk_loaded(data: Path, rng: random.Random) -> None:
    """Two loads into new partitions and behind what is there."""
    for codec in ("none", "zstd"):
        load(data, rng, codec)


def load(data: Path, rng: random.Random, codec: Any) -> None:
    """By two tasks, whose segments follow each other."""
    staging = staging_directory(str(data), codec)
    logs = []
    for task in range(2):
        writer = SegmentWriter(
            f"{staging}/{task}",
            PartitionCounts({"bulk": 3, "codec-lz4": 1}),
            config=SMALL,
            compression=codec,
            batch_bytes=2000,
            turn=task,
        )
        for _ in range(12):
            writer.append(arrow_batch(rng, 80))
        logs += writer.finish()
    commit_load(str(data), staging, logs, partitions={"bulk": 4}, config=SMALL)


def interrupted_loads(work: Path) -> list[Path]:
    """Data directories with a load that was decided and then got so many steps far."""
    apply = load_journal.apply_journal
    found = []
    for steps in (0, 5, 6, 16, 30):

        def die(data_dir: str, journal: Any, steps: int = steps) -> None:
            file.fail_next(file.CHANGES, errno.EIO, times=-1, skip=steps)
            apply(data_dir, journal)

        data = work / f"steps-{steps}"
        data.mkdir(parents=True)
        load(data, random.Random(0), "none")
        with patch.object(load_journal, "apply_journal", die), suppress(OSError, KafkaError):
            load(data, random.Random(1), "none")
        file.clear_faults()
        found.append(data)
    return found


def arrow_batch(rng: random.Random, count: int) -> pa.RecordBatch:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    choices = ([], [{"key": "h", "value": b"v"}, {"key": "", "value": None}])
    return pa.record_batch(
        {
            "topic": rng.choices(["bulk", "codec-lz4"], [4, 1], k=count),
            "key": pa.array(
                [rng.choice([None, b"", b"key-%d" % rng.randrange(50)]) for _ in range(count)], pa.binary()
            ),
            "value": pa.array([rng.choice([None, b"", rng.randbytes(60)]) for _ in range(count)], pa.binary()),
            "timestamp": pa.array([NOW + rng.randint(-3000, 3000) for _ in range(count)], pa.timestamp("ms", "UTC")),
            "headers": pa.array(rng.choices(choices, k=count), headers),
        }
    )


WRITERS: list[Callable[[Path, random.Random], None]] = [
    crashed,
    codecs,
    append_time,
    older_index_rule,
    idempotent,
    transactions,
    truncated,
    log_start,
    follower,
    old_formats,
    compacted,
    bulk_loaded,
]


def write(data: Path) -> None:
    for writer in WRITERS:
        writer(data, random.Random(writer.__name__))


def write_and_kill(directory: Path) -> None:
    """A process appends, rolls and ends transactions; SIGKILL ends it somewhere."""
    directory.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-m", "ci.interop.directories", str(directory)])
    try:
        deadline = time.monotonic() + 60
        while len(list(directory.glob("*.log"))) < 12:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{directory}: the process that was to be killed wrote too little")
            time.sleep(0.002)
        time.sleep(random.random() * 0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def main() -> None:
    rng = random.Random(9)
    with open_log(Path(sys.argv[1])) as log:
        both = Transactions(log, rng)
        while True:
            both.write(1)
            for codec in CODECS:
                log.append_as_leader(batch(rng, 7, codec))


if __name__ == "__main__":
    main()
