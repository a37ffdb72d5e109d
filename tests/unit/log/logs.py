"""What the tests of logs share: a log in a directory, and batches to put into it."""

import os
import struct
import zlib

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_loader import load_log
from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests import batches
from tests.reference.disk import calls

TP = TopicPartition("orders", 0)
NO_FILES = ["fifo", "directory", "dangling link", "looping link"]


class Logs:
    """Opens the log of one directory again and again, on one clock."""

    def __init__(self, directory, **config):
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.config = LogConfig(**config)
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.log_dir = LogDir(str(directory.parent))

    @property
    def failures(self):
        """What took the data directory offline."""
        error = self.log_dir.failure
        return [] if error is None else [error]

    def open(self, *, clean=True, **options):
        options.setdefault("sole_replica", True)
        return load_log(
            str(self.directory),
            TP,
            self.config,
            time=self.time,
            scheduler=self.scheduler,
            had_clean_shutdown=clean,
            log_dir=self.log_dir,
            **options,
        )


def batch(count=1, *, size=20, timestamp=1_700_000_000_000, key=b"k", **builder):
    """A producer's batch: base offset 0."""
    return batches.batch(*[b"v" * size] * count, key=key, timestamp=timestamp, **builder)


def idempotent(producer_id, sequence, count=1, *, epoch=0, **options):
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **options)


def marker(producer_id, *, commit, epoch=0, coordinator_epoch=0, timestamp=1_700_000_000_000):
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    end = EndTransactionMarker(kind, coordinator_epoch)
    made = RecordBatchBuilder(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=-1, is_transactional=True, is_control=True
    )
    made.append(end.value(), end.key(), timestamp=timestamp)
    return made.build()


SIZE = len(batch())


def small_segments(tmp_path, batches_each=3, **config):
    return Logs(tmp_path / "orders-0", segment_bytes=batches_each * SIZE, index_interval_bytes=0, **config)


def file_names(logs, suffix):
    return sorted(path.name for path in logs.directory.iterdir() if path.name.endswith(suffix))


def offsets(log, **options):
    return [record.offset for record in log.records(**options)]


def renamed_and_synced(record, directory):
    """The recorded renames and fsyncs of .log files and of the directory itself, in order."""
    return [line for line in calls(record, directory, "rename", "fsync") if ".log" in line or line == "fsync ."]


def removed(*base_offsets):
    """The recorded renames that mark the segments with these base offsets as deleted."""
    return [f"rename {base:020d}.log {base:020d}.log.deleted" for base in base_offsets]


def old_message(offset, value=b"v", *, key=None, magic=1, timestamp=1_700_000_000_000, codec=0):
    """A message of magic 0 or 1.  With a codec a wrapper: value its compressed messages, offset the last one's."""
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">i", -1 if key is None else len(key)) + (key or b"")
    body += struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def old_wrapper(first_offset, count, *, magic=1):
    """A gzip wrapper of count messages; magic 1 numbers them from 0."""
    inner = [old_message(i if magic else first_offset + i, magic=magic) for i in range(count)]
    packer = zlib.compressobj(wbits=31)
    return old_message(
        first_offset + count - 1, packer.compress(b"".join(inner)) + packer.flush(), magic=magic, codec=1
    )


def seen_by_a_committed_consumer(data, aborted):
    """Offsets of the records that a client makes of a fetch: Kafka's own rule."""
    waiting = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
    dropped, offsets = set(), []
    for batch in MemoryRecords(data).batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            dropped.add(waiting.pop().producer_id)
        if batch.is_control:
            (record,) = batch.records()
            if record.key == EndTransactionMarker(ControlRecordType.ABORT, 0).key():
                dropped.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in dropped):
            offsets += [record.offset for record in batch.records()]
    return offsets


def no_file(path, kind):
    """Put something that is no file where a file was or would be."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
        (path / "dear").write_text("to somebody")
    else:
        path.symlink_to(path.name if kind == "looping link" else path.parent / "not" / "mounted")
