"""Responses with slices of files, over a socket pair."""

import os
import select
import socket
import threading
from types import SimpleNamespace

import pytest

from kcore.log.log_segment import LogSegment
from kcore.network.connection import Connection
from kcore.network.transport import Transport
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def segment(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    for number in range(400):
        builder = RecordBatchBuilder(base_offset=number)
        builder.append(bytes([number % 251]) * 2000, timestamp=1000)
        segment.append(MemoryRecords(bytes(builder.build())))
    return segment


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield Connection(Transport(ours), SimpleNamespace(client_address="test"), 1 << 20), theirs


def send(connection, chunks):
    """All of it, with a reader at the other end that is slow to begin."""
    is_sent = connection.send(chunks)
    while not is_sent:
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(connection.fd, select.POLLOUT)
        poll.poll(5000)
        is_sent = connection.flush()


@pytest.mark.parametrize("size", [1, 100, PAGE, 700_000])
def test_bytes_and_slices_of_a_file_arrive_in_their_order(pair, segment, size):
    connection, peer = pair
    chunks = [b"head", segment.slice(17, size), b"", b"between", segment.slice(3, 5), segment.slice(0, 0), b"end"]
    expected = b"".join(chunk if isinstance(chunk, bytes) else bytes(chunk.read()) for chunk in chunks)
    received = bytearray()

    def receive():
        while len(received) < len(expected) and (data := peer.recv(65536)):
            received.extend(data)

    reader = threading.Thread(target=receive)
    reader.start()
    send(connection, chunks)
    reader.join(60)
    assert received == expected
    assert not connection.has_output


@pytest.mark.parametrize("kept_pages", [0, 1])
def test_a_slice_of_a_file_that_was_cut_is_an_error_after_what_is_left(pair, segment, kept_pages):
    connection, peer = pair
    kept = kept_pages * PAGE
    whole = bytes(segment.slice(0, kept).read())
    chunks = [b"head", segment.slice(0, 3 * PAGE), b"end"]
    os.truncate(segment.log_path, kept)
    with pytest.raises(OSError, match="ends before position"):
        send(connection, chunks)
    received = peer.recv(10 * PAGE)
    assert received == b"head" + whole
