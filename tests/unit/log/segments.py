"""What the tests of segments share: batches, a segment made of them, and the model that it is compared with."""

import os

from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from tests import batches
from tests.reference import record_batch as model


def batch(base_offset, count=1, *, size=100, timestamp=1_000, epoch=0, **options):
    """count records of `size` bytes; record i has timestamp + i."""
    values = [bytes([base_offset % 251]) * size] * count
    made = batches.batch(
        *values, timestamp=timestamp, step_ms=1, base_offset=base_offset, leader_epoch=epoch, **options
    )
    return bytes(made)


def records(*batches):
    return MemoryRecords(b"".join(batches))


def filled(directory, batches, base_offset=0, **options):
    """A segment with one append per batch."""
    segment = LogSegment(str(directory), base_offset, **options)
    for one in batches:
        segment.append(records(one))
    return segment


def filled_with_a_hole(directory, batches, **options):
    """The same, closed and opened again.  The zeros in its .log have no blocks on the disk, so it is read instead of
    mapped; batch(0, size=20_000) has enough of them."""
    segment = filled(directory, batches, **options)
    segment.close()
    block = os.statvfs(directory).f_frsize
    with open(segment.log_path, "r+b") as log:
        data = log.read()
        log.truncate(0)
        for at in range(0, len(data), block):
            if any(data[at : at + block]):
                log.seek(at)
                log.write(data[at : at + block])
        log.truncate(len(data))
    return LogSegment(str(directory), segment.base_offset, **options)


def random_batches(rng, count, base_offset=0):
    """Batches as a log may hold them: gaps between offsets, timestamps up and down, sizes from 80 bytes to 6 KiB."""
    batches = []
    offset = base_offset
    for _ in range(count):
        offset += rng.choice([0, 0, 0, 1, 5])
        n = rng.randint(1, 6)
        batches.append(batch(offset, n, size=rng.choice([1, 50, 1000]), timestamp=rng.randint(0, 5_000)))
        offset += n
    return batches


class Model:
    """A segment as a list: (position, size, batch) of each batch, and the rule for index entries, batch by batch."""

    def __init__(self, batches, base_offset=0, interval=4096):
        self.base_offset = base_offset
        self.rows = []
        position = 0
        for one in batches:
            self.rows.append((position, len(one), model.decode_batch(one)))
            position += len(one)
        self.size = position
        self.index, self.time_index = [], []
        since, self.max_timestamp, self.offset_of_max = 0, -1, base_offset
        for position, size, one in self.rows:
            last = one.base_offset + one.last_offset_delta
            if one.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max = one.max_timestamp, last
            if since > interval:
                self.index.append((last, position))
                self.note_time()
                since = 0
            since += size

    def note_time(self):
        if self.max_timestamp > (self.time_index[-1][0] if self.time_index else -1):
            self.time_index.append((self.max_timestamp, self.offset_of_max))

    def translate(self, offset):
        for position, size, one in self.rows:
            if one.base_offset + one.last_offset_delta >= offset:
                return (one.base_offset + one.last_offset_delta, position, size)
        return None

    def by_timestamp(self, timestamp, starting_offset):
        for _, _, one in self.rows:
            for record in one.records:
                if record.timestamp >= timestamp and record.offset >= starting_offset:
                    return (record.timestamp, record.offset, one.leader_epoch)
        return None


def entries(index):
    return [index.entry(n) for n in range(len(index))]


def file_bytes(segment, extension="log"):
    with open(segment.log_path.replace(".log", f".{extension}"), "rb") as opened:
        return opened.read()


def files_of(directory):
    return sorted(os.listdir(directory))


def flip_a_bit(path):
    """Of the last value in the middle batch of a .log file, in place."""
    with open(path, "r+b") as out:
        data = out.read()
        ends = [0]
        while ends[-1] + 12 <= len(data) and (size := int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big")):
            ends.append(ends[-1] + 12 + size)
        end = ends[len(ends) // 2]
        assert 0 < end < len(data), f"{path} has too few batches"
        out.seek(end - 2)
        out.write(bytes([data[end - 2] ^ 4]))
