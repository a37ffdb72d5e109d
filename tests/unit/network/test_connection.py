"""Responses with slices of files, over a socket pair."""

import ctypes
import os
import select
import signal
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from kcore.log.log_segment import LogSegment
from kcore.network.connection import Connection
from kcore.network.transport import Transport
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.own_process import in_own_process

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


class MappedSlice:
    """A slice of a mapped file.  Its mapping adds to `ends`, when let go of, whether anything was sent by then."""

    def __init__(self, data, peer, ends):
        self.data, self.peer, self.ends, self.size_in_bytes = data, peer, ends, len(data)

    def send_to(self, sock_fd, offset=0):
        raise AssertionError("it is mapped")

    def mapped(self):
        mapping = self.Mapping(self)
        return ctypes.addressof(mapping.data), mapping

    class Mapping:
        def __init__(self, piece):
            self.data = ctypes.create_string_buffer(piece.data)
            self.piece = piece

        def __del__(self):
            try:
                self.piece.ends.append(len(self.piece.peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 0)
            except BlockingIOError:
                self.piece.ends.append(False)


def test_the_mappings_of_all_slices_live_until_they_are_sent(pair):
    """sendmsg runs without the GIL: another thread may replace the mapping of a file that has grown meanwhile."""
    connection, peer = pair
    ends = []
    slices = [MappedSlice(bytes([ord("a") + n]) * 1000, peer, ends) for n in range(3)]
    assert connection.send([b"head", *slices])
    assert ends == [True, True, True]
    assert peer.recv(10_000) == b"head" + b"".join(piece.data for piece in slices)


def test_a_large_slice_leaves_in_a_call_of_its_own_between_the_others(pair):
    """1 MiB in one sendmsg with the bytes around it costs the kernel a fifth more."""
    connection, peer = pair

    class LargeSlice:
        size_in_bytes = 65537

        def send_to(self, sock_fd, offset=0):
            return os.write(sock_fd, b"x" * (self.size_in_bytes - offset))

        def mapped(self):
            raise AssertionError("it is large")

    small, received = MappedSlice(b"small", peer, []), b""
    done = connection.send([b"head", small, LargeSlice(), b"tail"])
    while not done or len(received) < 4 + 5 + 65537 + 4:
        received += peer.recv(1 << 20)
        done = done or connection.flush()
    assert received == b"headsmall" + b"x" * 65537 + b"tail"


@in_own_process
def test_a_read_that_a_signal_interrupts_goes_on():
    """A blocking socket stands for the rare case that a non-blocking one is interrupted too."""
    ours, theirs = socket.socketpair()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    connection = Connection(Transport(ours), SimpleNamespace(client_address="test"), 1 << 20)
    reader = threading.main_thread().ident

    def interrupt():
        for _ in range(100):
            signal.pthread_kill(reader, signal.SIGUSR1)
            woken.recv(1)  # written by the signal's handler
        theirs.sendall(struct.pack(">i", 3) + b"abc")

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    # A read of more than 64 KiB lets other threads run.
    assert connection.receive(bytearray(100_000)) == 1
    interrupter.join()
    assert connection.next_frame() == b"abc"
