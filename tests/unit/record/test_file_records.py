import os
import random
import select
import socket
import threading

import pytest

from kcore.log.log_segment import LogSegment
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords
from tests.unit.log.segments import batch


def segment_of(directory, batches):
    segment = LogSegment(str(directory), 0)
    for one in batches:
        segment.append(MemoryRecords(one))
    return segment


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    left.setblocking(False)
    with left, right:
        yield left, right


def send_all(records, sock):
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    sent = 0
    while sent < len(records):
        n = records.send_to(sock.fileno(), sent)
        sent += n
        if n == 0:
            poll.poll(5000)
    return sent


def receive_all(sock, size, received):
    while len(received) < size:
        received += sock.recv(65536)


def test_a_slice_reads_exactly_its_bytes(tmp_path):
    whole = batch(0, 3) + batch(3, 2)
    segment = segment_of(tmp_path, [whole])
    records = segment.slice(10, 50)
    assert (records.path, records.position, records.size_in_bytes, len(records)) == (segment.log_path, 10, 50, 50)
    assert records.read() == whole[10:60]
    assert records.slice(5, 10).read() == whole[15:25]
    assert records.slice(5, 1000).read() == whole[15:60]
    assert segment.slice(segment.size, 10).read() == b""
    for position, size in ((-1, 1), (51, 1), (0, -1)):
        with pytest.raises(ValueError):
            records.slice(position, size)
    buffer = bytearray(20)
    assert (records.read_into(buffer, 45), buffer[:5]) == (5, whole[55:60])
    assert records.read_into(memoryview(buffer)) == 20
    with pytest.raises(ValueError):
        records.read_into(buffer, 51)
    with pytest.raises(TypeError):
        FileRecords()


def test_memory_records_know_their_place_in_the_file(tmp_path):
    first, second = batch(0, 3), batch(3, 2)
    segment = segment_of(tmp_path, [first, second])
    memory = segment.slice(len(first), len(second)).memory_records()
    assert [(b.position, b.base_offset) for b in memory.batches] == [(len(first), 3)]
    assert memory.source == segment.log_path


@pytest.mark.parametrize("size", [1, 1000, 100_000, 3_000_000])
def test_records_come_out_one_by_one_also_from_batches_larger_than_a_piece(tmp_path, size):
    count = max(3, 4_000_000 // size // 20)
    segment = segment_of(tmp_path, [batch(n * count, count, size=size) for n in range(3)])
    records = segment.slice(0, segment.size - 1).records()
    assert [record.offset for record in records] == list(range(2 * count))


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_send_to_brings_every_byte_to_the_socket(tmp_path, pair, size):
    segment = segment_of(tmp_path, [batch(0, size=6_000_000)])
    records = segment.slice(61, size)
    received = bytearray()
    thread = threading.Thread(target=receive_all, args=(pair[1], size, received))
    thread.start()
    assert send_all(records, pair[0]) == size
    thread.join()
    assert received == records.read()


def test_send_to_returns_zero_when_the_socket_is_full_and_raises_when_it_is_closed(tmp_path, pair):
    records = segment_of(tmp_path, [batch(0, size=6_000_000)]).slice(0, 6_000_000)
    sent = 0
    while n := records.send_to(pair[0].fileno(), sent):
        sent += n
    assert 0 < sent < 6_000_000
    with pytest.raises(ValueError):
        records.send_to(pair[0].fileno(), 6_000_001)
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        records.send_to(pair[0].fileno(), sent)


def test_a_slice_outlives_its_segment_and_its_file(tmp_path, pair):
    whole = batch(0, 3)
    segment = segment_of(tmp_path, [whole])
    read_before, fresh = segment.slice(0, 100), segment.slice(0, 100)
    assert read_before.read() == whole[:100]
    segment.delete()
    assert os.listdir(tmp_path) == []
    assert read_before.read() == whole[:100]
    assert send_all(fresh, pair[0]) == 100
    assert pair[1].recv(200) == whole[:100]


@pytest.mark.parametrize("mapped_before", [True, False])
def test_a_file_that_is_cut_meanwhile_is_an_error_and_not_a_crash(tmp_path, pair, mapped_before):
    segment = segment_of(tmp_path, [batch(0, size=200_000)])
    records = segment.slice(0, segment.size)
    if mapped_before:
        assert segment.translate_offset(0).position == 0
        assert records.send_to(pair[0].fileno()) > 0
    os.truncate(segment.log_path, 5000)
    assert len(records.read()) == 5000
    with pytest.raises(OSError, match="ends before"):
        records.send_to(pair[0].fileno(), 150_000)


@pytest.mark.parametrize("seed", range(5))
def test_random_slices_of_slices_read_what_the_file_holds(tmp_path, seed):
    rng = random.Random(seed)
    segment = segment_of(tmp_path, [batch(n * 5, 5, size=rng.randint(1, 400)) for n in range(20)])
    with open(segment.log_path, "rb") as opened:
        whole = opened.read()
    for _ in range(100):
        records, start = segment.slice(0, segment.size), 0
        for _ in range(3):
            position, size = rng.randint(0, len(records)), rng.randint(0, len(records))
            records, start = records.slice(position, size), start + position
        assert records.read() == whole[start : start + len(records)], f"seed={seed}"
