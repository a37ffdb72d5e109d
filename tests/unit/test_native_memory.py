"""Objects of native modules keep what they need and give back what they took, on the paths that fail too.

What is counted is exact: Python's objects, bytes that malloc has given out, descriptors, mappings.  Nothing is timed.
"""

import ctypes
import errno
import gc
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptFile,
    CorruptMessage,
    InvalidRequest,
    KafkaError,
    OffsetOutOfRange,
    UnexpectedAppendOffset,
    UnsupportedVersion,
)
from kcore.log.batch_filter import BatchFilter
from kcore.log.log_segment import LogSegment
from kcore.log.offset_index import OffsetIndex
from kcore.log.offset_map import OffsetMap
from kcore.network.connection import Connection, InvalidReceive
from kcore.network.transport import ConnectionClosed, Transport
from kcore.protocol.messages.fetch import EpochEndOffset, FetchableTopicResponse, FetchResponse, PartitionData
from kcore.record.column_batches import batches_of
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of
from tests.own_process import in_own_process
from tests.unit.log.logs import Logs, batch, idempotent

ROUNDS = 1000


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "top",
        )
    ]


def _malloced():
    """Bytes in use, large blocks included; 0 where the C library cannot tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def held():
    """(Python's blocks, bytes of malloc, descriptors, mappings of files) that this process has now."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
    return sys.getallocatedblocks(), _malloced(), len(os.listdir("/proc/self/fd")), maps.count("/")


def assert_keeps_nothing(operation, rounds=ROUNDS):
    """Not one block, 16 bytes, descriptor or mapping in ten calls; what the first calls set up does not count.

    What is lost with each call is lost in each of three measurements; a table that Python enlarges once, in one.
    """
    for _ in range(rounds):
        operation()
    measured = []
    for _ in range(3):
        before = held()
        for _ in range(rounds):
            operation()
        grown = [(now - then) / rounds for then, now in zip(before, held(), strict=True)]
        if grown[0] < 0.1 and grown[1] < 1.6 and grown[2] < 0.01 and grown[3] < 0.01:
            return
        measured.append(grown)
    raise AssertionError(operation, measured)


def raising(expected, call, *args, **options):
    def operation():
        try:
            call(*args, **options)
        except expected:
            return
        raise AssertionError(f"no {expected}")

    return operation


def failing(system_call, expected, call, *args, **options):
    """The same, with a disk that fails."""

    def operation():
        file.fail_next(system_call, errno.EIO, times=-1)
        try:
            raising(expected, call, *args, **options)()
        finally:
            file.clear_faults()

    return operation


def damaged(data, at=-1):
    changed = bytearray(data)
    changed[at] ^= 1
    return changed


@in_own_process
def test_appends_and_reads_of_a_log_keep_nothing():
    with tempfile.TemporaryDirectory() as directory:
        log = Logs(Path(directory) / "orders-0", segment_bytes=1 << 30, max_message_bytes=10_000).open()
        one, bad, several = bytes(batch()), damaged(batch()), bytes(batch()) * 3
        large = bytearray(batch(size=20_000))
        log.append_as_leader(bytearray(idempotent(1, 0)))

        def follow():
            data = bytearray(several)
            for n in range(3):
                struct.pack_into(">q", data, n * len(one), log.log_end_offset + n)
            log.append_as_follower(data)

        def refuse():
            data = bytearray(bad)
            raising(CorruptMessage, log.append_as_leader, data)()
            data.append(0)  # BufferError if the refused append still had hold of it

        for operation in (
            lambda: log.append_as_leader(bytearray(one)),
            lambda: log.append_as_leader(one),
            follow,
            refuse,
            raising(KafkaError, log.append_as_leader, large),
            raising(KafkaError, log.append_as_leader, b""),
            raising(KafkaError, log.append_as_leader, several),
            raising(KafkaError, log.append_as_leader, bytearray(idempotent(1, 5))),
            raising(UnexpectedAppendOffset, log.append_as_follower, one),
            lambda: log.read(3, 1000).records.read(),
            lambda: list(log.read(3, 300).records.records()),
            lambda: log.read(3, 1000).records.slice(1, 5).mapped(),
            raising(OffsetOutOfRange, log.read, 10**9, 1000),
            lambda: log.fetch_offset_by_timestamp(5),
        ):
            assert_keeps_nothing(operation)
        large.append(0)
        log.close()


@in_own_process
def test_segments_opened_closed_and_refused_keep_nothing():
    with tempfile.TemporaryDirectory() as directory:
        segment = LogSegment(directory, 0)
        segment.append(MemoryRecords(batch(10)))
        segment.close()
        index = f"{directory}/{0:020d}.index"
        Path(index).write_bytes(struct.pack(">ii", 5, 0) * 1000)

        def open_and_read(writable):
            opened = LogSegment(directory, 0, writable=writable)
            opened.translate_offset(3)
            opened.columns()
            opened.scan(lambda table: None)
            opened.close(trim=False)

        def close_on_a_broken_disk():
            opened = LogSegment(directory, 0)
            opened.translate_offset(3)
            opened.time_index.lookup(5)
            opened.resize_indexes(16_000)
            failing("ftruncate", OSError, opened.close)()
            assert opened.size  # the object lives, what it held must not
            kept.append(opened)

        kept = []
        for operation in (
            lambda: open_and_read(True),
            lambda: open_and_read(False),
            raising(FileNotFoundError, LogSegment, directory, 1, writable=False),
            failing("mmap", OSError, open_and_read, True),
            failing("pread", OSError, open_and_read, False),
            failing("pread", OSError, OffsetIndex(index, 0, writable=False).lookup, 5),
        ):
            assert_keeps_nothing(operation, 200)
        for _ in range(5):
            close_on_a_broken_disk()
        maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
        assert directory not in maps
        assert len(kept) == 5


@in_own_process
def test_small_files_and_directories_that_cannot_be_used_keep_no_descriptor():
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/checkpoint"
        file.write_atomically(path, b"0\n0\n")
        huge = f"{directory}/huge"
        Path(huge).touch()
        os.truncate(huge, 1 << 40)
        for operation in (
            lambda: file.read_file(path),
            lambda: file.write_atomically(path, b"0\n", sync=False),
            lambda: file.list_directory(directory),
            raising(CorruptFile, file.read_file, huge),
            raising(CorruptFile, file.read_file, directory),
            failing("pread", OSError, file.read_file, path),
            failing("readdir", OSError, file.list_directory, directory),
            failing("fsync", OSError, file.sync_path, directory),
            failing("fsync", OSError, file.write_atomically, path, b"1"),
            failing("pwrite", OSError, file.write_atomically, path, b"1"),
            failing("rename", OSError, file.write_atomically, path, b"1"),
            failing("pwrite", OSError, file.append_to, path, b"1", 4),
        ):
            assert_keeps_nothing(operation, 200)


@in_own_process
def test_connections_that_end_anyhow_keep_neither_chunks_nor_descriptors():
    with tempfile.TemporaryDirectory() as directory:
        segment = LogSegment(directory, 0)
        segment.append(MemoryRecords(batch(1, size=3_000_000)))
        head, queued = bytearray(b"head"), bytearray(5 << 20)
        scratch = bytearray(65536)

        def connected(end):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            connection = Connection(Transport(ours), SimpleNamespace(client_address="test"), 1 << 20)
            with theirs:
                end(connection, theirs)
            connection.close()
            assert not connection.has_output
            assert ours.fileno() == -1
            return connection

        def send_all(connection, peer):
            assert connection.send([head, segment.slice(0, 1000), b"end"])

        def close_with_queued_chunks(connection, peer):
            assert not connection.send([head, queued, segment.slice(0, segment.size)])

        def send_to_a_closed_peer(connection, peer):
            peer.close()
            raising(ConnectionClosed, connection.send, [head, segment.slice(0, 1000), queued])()

        def receive(connection, peer):
            peer.sendall(struct.pack(">i", 100) + bytes(100) + struct.pack(">i", 1000) + b"part")
            assert connection.receive(scratch) == 1
            assert len(connection.next_frame()) == 100

        def receive_an_invalid_size(connection, peer):
            peer.sendall(struct.pack(">i", 100) + bytes(100) + struct.pack(">i", -1))
            raising(InvalidReceive, connection.receive, scratch)()

        counts = sys.getrefcount(head), sys.getrefcount(queued), sys.getrefcount(segment)
        for end in (send_all, close_with_queued_chunks, send_to_a_closed_peer, receive, receive_an_invalid_size):
            assert_keeps_nothing(lambda end=end: connected(end), 200)
            # Also while somebody still has the connection, as a parked request does.
            closed = connected(end)
            assert (sys.getrefcount(head), sys.getrefcount(queued), sys.getrefcount(segment)) == counts, end
            for buffer in (head, queued, scratch):
                buffer.append(0)  # BufferError while a view of it is held
                buffer.pop()
            del closed
        chunks = [queued, segment.slice(0, 1000)]
        segment.delete()
        descriptors = len(os.listdir("/proc/self/fd"))
        connected(lambda connection, peer: connection.send(chunks))
        chunks.clear()
        assert len(os.listdir("/proc/self/fd")) == descriptors - 1  # that of the .log


@in_own_process
def test_messages_read_and_written_keep_nothing():
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="orders",
                partitions=[
                    PartitionData(
                        partition_index=1,
                        diverging_epoch=EpochEndOffset(epoch=300, end_offset=10**12),
                        aborted_transactions=[],
                        records=bytes(1000),
                    )
                ],
            )
        ]
    )
    version = 12
    data = response.encode(version)
    assert FetchResponse.decode(data, version).responses[0].partitions[0].diverging_epoch.epoch == 300

    def decode_every_part():
        for size in range(0, len(data), 50):
            try:
                FetchResponse.decode(data[:size], version)
            except InvalidRequest:
                pass

    def set_again():
        changed = EpochEndOffset(epoch=10**6)
        changed.__init__(epoch=10**7, end_offset=10**8)

    wrong = FetchResponse(responses=[FetchableTopicResponse(topic="x" * 40_000)])
    for operation in (
        lambda: FetchResponse.decode(data, version),
        lambda: response.encode(version),
        lambda: response.encode_frame(version, b"header"),
        decode_every_part,
        set_again,
        raising(ValueError, wrong.encode, version),
        raising(UnsupportedVersion, response.encode, 99),
    ):
        assert_keeps_nothing(operation, 300)
    records = FetchResponse.decode(bytearray(data), version).responses[0].partitions[0].records
    gc.collect()
    assert bytes(records) == bytes(1000)


@in_own_process
def test_batches_and_columns_keep_nothing():
    data = bytes(batch(50, size=30)) + bytes(batch(50, compression="gzip"))
    second = struct.pack(">q", 50) + bytes(batch(50, compression="gzip"))[8:]
    data = bytes(batch(50, size=30)) + second
    bad = bytes(damaged(data))
    key, offset_map = bytearray(b"key"), OffsetMap(1 << 20)
    offset_map.clear()

    def build(finish):
        builder = RecordBatchBuilder(compression="gzip")
        builder.append(bytes(1000), b"k", headers=[("h", b"v")])
        raising(TypeError, builder.append, 5)()
        raising(ValueError, builder.append, b"", timestamp=-5)()
        if finish:
            builder.build()

    def look_up():
        offset_map.put(key, offset_map.latest_offset + 1)
        assert offset_map.get(key) == offset_map.latest_offset
        offset_map.get(b"absent")
        key.append(0)  # BufferError if a view of it were still held
        key.pop()

    def clean():
        cleaned = OffsetMap(1 << 16)
        cleaned.clear()
        cleaned.put(b"k", 70)
        kept = BatchFilter(cleaned, lambda one: 0, lambda one: None, stops=(3, 99), now_ms=1, delete_retention_ms=0)
        kept.filter(MemoryRecords(data))

    for operation in (
        lambda: MemoryRecords(data),
        raising(CorruptMessage, MemoryRecords, bad),
        lambda: [record.value for record in MemoryRecords(data).records()],
        lambda: MemoryRecords(data).batches.to_numpy(),
        lambda: columns_of(MemoryRecords(data)).value[3],
        lambda: bytes(batches_of(columns_of(MemoryRecords(data)), compression="gzip")),
        lambda: build(True),
        lambda: build(False),
        look_up,
        clean,
    ):
        assert_keeps_nothing(operation, 300)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_was_handed_out_outlives_what_it_came_from(tmp_path, compression):
    values = [bytes([n]) * 5000 for n in range(50)]
    builder = RecordBatchBuilder(compression=compression)
    for value in values:
        builder.append(value, timestamp=5)
    segment = LogSegment(str(tmp_path), 0)
    segment.append(MemoryRecords(bytes(builder.build())))
    columns = segment.columns()
    records = segment.read(0, 10**6).records
    one = next(iter(MemoryRecords(bytearray(records.read())).batches))
    address, mapping = records.mapped()
    size = records.size_in_bytes
    segment.delete()
    del segment
    gc.collect()
    _ = [bytearray(b"\xee" * 300_000) for _ in range(20)]  # in the place of what was given back
    assert list(columns.value) == values
    assert [record.value for record in one.records()] == values
    assert ctypes.string_at(address, size) == bytes(records.read())
    assert [record.value for record in records.records()] == values
    del mapping
