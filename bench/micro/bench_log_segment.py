"""LogSegment beside the system call it cannot do without, and searches and scans of one GiB."""

import os
import struct

import numpy as np
import pytest

from bench.conftest import record_role
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

KIB = 1024
APPENDS = 1000


def batch_of_size(size):
    """One record whose batch has exactly this many bytes."""
    for value_size in range(size - 61 - 16, size):
        builder = RecordBatchBuilder()
        builder.append(bytes(value_size), timestamp=1_700_000_000_000)
        if builder.size_in_bytes == size:
            return bytearray(builder.build())
    raise AssertionError(size)


def batches_from(batch, base_offset, count):
    out = bytearray(bytes(batch) * count)
    for n in range(count):
        struct.pack_into(">q", out, n * len(batch), base_offset + n)
    return bytes(out)


def append_case(size, group):
    """Record sets for APPENDS // group appends of `group` batches each, and the batches one by one."""
    batch = batch_of_size(size)
    sets = [MemoryRecords(batches_from(batch, n, group)) for n in range(0, APPENDS // group * group, group)]
    single = [bytes(one.buffer[at : at + size]) for one in sets for at in range(0, group * size, size)]
    return sets, single


CASES = [(KIB, 1), (16 * KIB, 1), (KIB, 64), (16 * KIB, 16)]


def cases(name):
    for size, group in CASES:
        label = f"{size // KIB} KiB" if group == 1 else f"{group} x {size // KIB} KiB"
        yield pytest.param(size, group, id=label, marks=pytest.mark.benchmark(group=f"{name}, {label}"))


@pytest.mark.parametrize("size,group", cases("segment append"))
def bench_append(benchmark, bench_dir, size, group):
    sets, single = append_case(size, group)

    def fresh():
        bench_append.segment = LogSegment(str(bench_dir), 0)
        bench_append.segment.truncate_to(0)
        bench_append.segment.append(sets[0])  # maps the indexes
        bench_append.segment.truncate_to(0)
        return (bench_append.segment.append,), {}

    def append_all(append):
        for records in sets:
            append(records)

    goal = {"vs": "limit", "at_most": {(KIB, 64): 0.35, (16 * KIB, 16): 0.7}.get((size, group), 1.10)}
    record_role(benchmark, "ours", per_round=len(single), goal=goal)
    benchmark.pedantic(append_all, setup=fresh, rounds=30, warmup_rounds=2)
    bench_append.segment.delete()


@pytest.mark.parametrize("size,group", cases("segment append"))
def bench_pwrite_of_each_batch(benchmark, bench_dir, size, group):
    _, single = append_case(size, group)
    path = str(bench_dir / "pwrite")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def fresh():
        os.ftruncate(fd, 0)
        os.pwrite(fd, single[0], 0)
        os.ftruncate(fd, 0)

    def write_all(pwrite=os.pwrite):
        position = 0
        for data in single:
            pwrite(fd, data, position)
            position += len(data)

    record_role(benchmark, "limit", per_round=len(single), label="os.pwrite a batch")
    benchmark.pedantic(write_all, setup=fresh, rounds=30, warmup_rounds=2)
    os.close(fd)
    os.unlink(path)


BATCHES = KIB * KIB


@pytest.fixture(scope="module")
def gibibyte(bench_dir):
    """1 GiB of 1 KiB batches, its pages cached, its page table filled."""
    directory = bench_dir / "gibibyte"
    directory.mkdir()
    segment = LogSegment(str(directory), 0, max_segment_bytes=2**31 - 1)
    batch = batch_of_size(KIB)
    for base_offset in range(0, BATCHES, 1024):
        segment.append(MemoryRecords(batches_from(batch, base_offset, 1024), check_crc=False))
    segment.scan(None)
    yield segment
    segment.delete()
    directory.rmdir()


@pytest.fixture
def targets(rng):
    return [rng.randrange(BATCHES) for _ in range(10_000)]


@pytest.mark.benchmark(group="translate_offset, random in 1 GiB of 1 KiB batches")
def bench_translate_offset(benchmark, gibibyte, targets):
    def translate_all(translate_offset=gibibyte.translate_offset):
        for target in targets:
            translate_offset(target)

    record_role(benchmark, "ours", per_round=len(targets), goal={"at_most_ns": 600})
    benchmark(translate_all)


@pytest.mark.benchmark(group="translate_offset, random in 1 GiB of 1 KiB batches")
def bench_preads_of_a_header(benchmark, gibibyte, targets):
    """One pread a search: what a translation without a mapping costs at the very least."""
    fd = os.open(gibibyte.log_path, os.O_RDONLY)

    def pread_all(pread=os.pread):
        for target in targets:
            pread(fd, 61, KIB * target)

    record_role(benchmark, "limit", per_round=len(targets), label="one os.pread")
    benchmark(pread_all)
    os.close(fd)


@pytest.mark.benchmark(group="segment read, random in 1 GiB of 1 KiB batches")
def bench_read(benchmark, gibibyte, targets):
    def read_all(read=gibibyte.read):
        for target in targets:
            read(target, 1 << 20, 1 << 40, True)

    record_role(benchmark, "ours", per_round=len(targets), goal={"at_most_ns": 1300})
    benchmark(read_all)


@pytest.mark.benchmark(group="recover 1 GiB of 1 KiB batches")
def bench_recover(benchmark, gibibyte):
    record_role(benchmark, "ours", per_round=gibibyte.size, unit="byte", goal={"vs": "limit", "at_most": 1 / 0.7})
    result = benchmark.pedantic(gibibyte.recover, rounds=5, warmup_rounds=1)
    assert result == (BATCHES * KIB, 0, None, BATCHES - 1)


@pytest.mark.benchmark(group="recover 1 GiB of 1 KiB batches")
def bench_memory_read_stream(benchmark, gibibyte):
    words = np.memmap(gibibyte.log_path, np.int64, "r")
    record_role(benchmark, "limit", per_round=words.nbytes, unit="byte", label="numpy sum of the mapping")
    benchmark.pedantic(words.sum, rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="verify 1 GiB of 1 KiB batches, headers only")
def bench_scan_headers(benchmark, gibibyte):
    record_role(benchmark, "ours", per_round=BATCHES, unit="batch", goal={"at_least_per_s": 40e6})
    result = benchmark.pedantic(lambda: gibibyte.scan(None, check_crc=False), rounds=5, warmup_rounds=1)
    assert result.last_offset == BATCHES - 1
