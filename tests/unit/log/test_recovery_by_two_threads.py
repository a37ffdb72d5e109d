"""SEG-11 with a thread that checks the second part of a large file meanwhile: the result is that of one thread."""

import random
import shutil
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

RECORD = 30_000
COUNT = 600  # batches: 18 MB, more than two steps of a scan


class AtOnce(Executor):
    """Runs each task at once, and after it what the test wants to happen meanwhile."""

    def __init__(self, then=lambda: None):
        self.then = then
        self.runs = 0

    def submit(self, run):
        self.runs += 1
        run()
        self.then()


class Busy(Executor):
    """Has no free thread, ever."""

    def __init__(self):
        self.waiting = []

    def submit(self, run):
        self.waiting.append(run)


class Ended(Executor):
    def submit(self, run):
        raise RuntimeError("cannot schedule new futures after shutdown")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("written")
    segment = LogSegment(str(directory), 0)
    rng = random.Random(5)
    for n in range(COUNT):
        builder = RecordBatchBuilder(base_offset=n, leader_epoch=n // 100)
        builder.append(bytes([n % 251]) * (RECORD + rng.randrange(2000)), timestamp=rng.randrange(10_000))
        segment.append(MemoryRecords(bytes(builder.build())))
    segment.close()
    return directory


@pytest.fixture
def copy(written, tmp_path):
    def copy():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(written, tmp_path / "copy")

    return copy


def positions(written):
    """Of all batches."""
    positions = []
    segment = LogSegment(str(written), 0, writable=False)
    segment.scan(lambda table: positions.extend(batch.position for batch in table))
    return positions


def recovered(directory, threads):
    """Everything that a recovery logs and writes."""
    segment = LogSegment(str(directory), 0)
    seen = []
    result = segment.recover(lambda table: seen.extend(b.base_offset for b in table), threads=threads)
    segment.close()
    return result, seen, {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".log"}


def overwritten(path, position, data):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def log_of(directory):
    return directory / f"{0:020d}.log"


def index_of(directory):
    return directory / f"{0:020d}.index"


def test_SEG_11_recovery_by_two_threads_is_that_of_one(written, copy):
    alone = recovered(copy(), None)
    assert alone[0][1:] == (0, None, COUNT - 1) and alone[1] == list(range(COUNT))
    with ThreadPoolExecutor(1) as pool:
        for threads in (AtOnce(), Busy(), Ended(), pool, pool, pool):
            assert recovered(copy(), threads) == alone
        assert recovered(copy(), pool) == alone  # it is free again


def test_SEG_11_damage_is_found_at_every_position_and_by_either_thread(written, copy):
    starts = positions(written)
    rng = random.Random(1)
    with ThreadPoolExecutor(1) as pool:
        for n in [0, 1, 200, 270, 275, 276, 277, 278, 279, 280, 350, 450, 598, 599, *rng.sample(range(COUNT), 10)]:
            # The second number is where in the batch: length, magic, CRC, last offset delta, and the record.
            for at in (9, 16, 18, 25, 1000):
                results = []
                for threads in (None, AtOnce(), pool):
                    directory = copy()
                    position = starts[n] + at
                    byte = log_of(directory).read_bytes()[position]
                    overwritten(log_of(directory), position, bytes([byte ^ 0x40]))
                    results.append(recovered(directory, threads))
                    assert log_of(directory).stat().st_size == starts[n]
                assert results[0] == results[1] == results[2], f"batch {n}, byte {at}"
                assert results[0][0].valid_bytes == starts[n] and results[0][1] == list(range(n))


def test_SEG_11_a_batch_checked_by_the_other_thread_is_not_checked_again(written, copy):
    directory = copy()
    starts = positions(written)
    threads = AtOnce(then=lambda: overwritten(log_of(directory), starts[400] + 1000, b"??"))
    assert recovered(directory, threads)[0].truncated_bytes == 0
    assert threads.runs == 1
    assert recovered(directory, None)[0].valid_bytes == starts[400]


def test_SEG_11_what_the_other_thread_did_not_get_to_is_checked_by_this_one(written, copy):
    directory = copy()
    starts = positions(written)
    with open(log_of(directory), "rb") as file:
        file.seek(starts[400])
        good = file.read(100)
    overwritten(log_of(directory), starts[400], bytes(100))

    def repaired():
        overwritten(log_of(directory), starts[400], good)
        overwritten(log_of(directory), starts[500] + 1000, b"??")

    assert recovered(directory, AtOnce(repaired))[0].valid_bytes == starts[500]


@pytest.mark.parametrize("shift", [-1, 1, 61, 20_000])
def test_SEG_11_a_wrong_index_does_not_mislead_two_threads(written, copy, shift):
    alone = recovered(copy(), None)
    directory = copy()
    index = index_of(directory).read_bytes()
    lying = b"".join(
        index[at : at + 4] + (int.from_bytes(index[at + 4 : at + 8], "big") + shift).to_bytes(4, "big")
        for at in range(0, len(index), 8)
    )
    index_of(directory).write_bytes(lying)
    assert recovered(directory, AtOnce()) == alone


@pytest.mark.parametrize("index", [b"", bytes(80), b"\xff" * 800, bytes(7)], ids=["empty", "zeros", "ones", "cut"])
def test_SEG_11_garbage_in_the_place_of_an_index_does_not_mislead_two_threads(written, copy, index):
    alone = recovered(copy(), None)
    directory = copy()
    index_of(directory).write_bytes(index)
    assert recovered(directory, AtOnce()) == alone


def test_SEG_11_a_preallocated_index_gives_the_start_of_the_second_part(written, copy):
    directory = copy()
    segment = LogSegment(str(directory), 0)
    segment.close(trim=False)
    with open(index_of(directory), "r+b") as file:
        file.truncate(10 << 20)
    threads = AtOnce()
    assert recovered(directory, threads)[0].truncated_bytes == 0 and threads.runs == 1


def test_an_invalid_batch_ends_the_other_threads_scan_too(written, copy):
    segment = LogSegment(str(copy()), 0)

    def refuse(table):
        raise RuntimeError("no")

    threads = Busy()
    with pytest.raises(RuntimeError, match="no"):
        segment.recover(refuse, threads=threads)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no"):
        segment.recover(refuse, threads=pool)
    segment.close()
    (late,) = threads.waiting
    late()  # a thread that comes free now finds nothing to do: no LogClosed


def test_a_small_file_is_scanned_by_one_thread(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    builder = RecordBatchBuilder()
    builder.append(bytes(RECORD))
    segment.append(MemoryRecords(bytes(builder.build())))
    threads = AtOnce()
    segment.recover(threads=threads)
    assert threads.runs == 0
