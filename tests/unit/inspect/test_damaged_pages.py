"""A damaged page of a .log costs the batches that it touches, and no batch inside a record is taken for one of the
log."""

import functools
import os
import random
import shutil
import struct
import time
from pathlib import Path

import pytest

from kcore.inspect.batch_reader import Damage, read_batches
from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import verify
from kcore.log.log_config import LogConfig
from kcore.log.open_log import open_log
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model

PAGE = 4096
LONG = "KCORE_LONG" in os.environ
FILLINGS = ["zeros", "ones", "garbage"]
#: Of a batch's header the base offset, the length and the leader epoch, none of which its CRC covers.
UNCOVERED = 16


def make_log(directory: Path, *, records=5000, a_batch=20, segment_bytes=1 << 20, size=30, **builder) -> Path:
    """A closed data directory with one partition: batches of so many records each."""
    directory.mkdir()
    config = LogConfig(segment_bytes=segment_bytes)
    with open_log(str(directory / "orders-0"), "a", config=config) as log:
        while log.log_end_offset < records:
            made = RecordBatchBuilder(base_offset=log.log_end_offset, leader_epoch=3, **builder)
            for n in range(a_batch):
                made.append(b"%0*d" % (size, log.log_end_offset + n), b"key", timestamp=1_700_000_000_000)
            log.append_as_follower(made.build())
    return directory


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("pages") / "sound")


@pytest.fixture(scope="module")
def segments(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("pages") / "segments", segment_bytes=50_000)


def logs_of(data: Path) -> list[Path]:
    return sorted((data / "orders-0").glob("*.log"))


def overwrite(log: Path, position: int, filling: str, rng: random.Random, size: int = PAGE) -> None:
    size = min(size, log.stat().st_size - position)
    content = {"zeros": bytes(size), "ones": b"\xff" * size, "garbage": rng.randbytes(size)}[filling]
    with open(log, "r+b") as file:
        file.seek(position)
        file.write(content)


def offsets_of(log: Path) -> list[int]:
    return [record.offset for batch in model.decode_batches(log.read_bytes()) for record in batch.records]


def repaired(data: Path, result: Path) -> list[int]:
    """The offsets that keep-after keeps, read by the model."""
    apply_to_copy(str(data), plan_repair(str(data), salvage="keep-after"), str(result))
    offsets = [offset for log in logs_of(result) for offset in offsets_of(log)]
    shutil.rmtree(result)
    return offsets


def untouched(before: list[tuple[Path, model.Batch]], pages: list[tuple[Path, int]]) -> list[int]:
    """The offsets of the batches that no page touches, or one that ends in what its CRC does not cover."""
    return [
        record.offset
        for log, batch in before
        if not any(
            log.name == hit.name and batch.position + UNCOVERED < at + PAGE and at < batch.position + batch.size
            for hit, at in pages
        )
        for record in batch.records
    ]


def found_in(log: Path, end_offset: int | None = None) -> set[int]:
    """The positions of the batches that the reader finds."""
    found: set[int] = set()
    for item in read_batches(str(log), end_offset=end_offset):
        if isinstance(item, MemoryRecords):
            found |= {batch.position for batch in item.batches}
    return found


@functools.cache
def places_in(content: bytes) -> list[tuple[int, int]]:
    """(start, end) of each batch."""
    return [(batch.position, batch.position + batch.size) for batch in model.decode_batches(content)]


def unchanged(original: bytes, log: Path, *, covered: bool = False) -> set[int]:
    """The positions of the batches whose bytes are as they were; covered: but for those that no CRC covers.  (A page of
    zeros may touch bytes that are zeros.)"""
    changed = log.read_bytes()

    def bytes_of(content: bytes, start: int, end: int) -> bytes:
        return content[start + UNCOVERED * covered : end]

    ends = dict(places_in(original))
    return {start for start, end in ends.items() if bytes_of(original, start, end) == bytes_of(changed, start, end)}


def batches_of(data: Path) -> list[tuple[Path, model.Batch]]:
    return [(log, batch) for log in logs_of(data) for batch in model.decode_batches(log.read_bytes())]


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("log", ["sound", "segments"])
def test_a_page_costs_the_batches_that_it_touches_and_the_loss_names_exactly_their_offsets(
    log, filling, tmp_path, request
):
    source = request.getfixturevalue(log)
    before = batches_of(source)
    everything = untouched(before, [])
    rng = random.Random(f"{log} {filling}")
    for note in range(16 if LONG else 8):
        data = Path(shutil.copytree(source, tmp_path / "data"))
        hit = rng.choice(logs_of(data))
        at = rng.randrange(hit.stat().st_size // PAGE) * PAGE
        overwrite(hit, at, filling, rng)
        expected = untouched(before, [(hit, at)])
        assert repaired(data, tmp_path / "repaired") == expected, (note, hit, at)
        lost = sorted(set(everything) - set(expected))
        losses = [loss for plan in plan_repair(str(data), salvage="keep-after") for loss in plan.losses]
        assert [(loss.first_offset, loss.last_offset) for loss in losses] == [(lost[0], lost[-1])], (note, hit, at)
        assert [loss.unreadable_offsets for loss in losses] == [len(lost)], (note, hit, at)
        shutil.rmtree(data)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("seed", range(20 if LONG else 6))
def test_several_pages_cost_the_batches_that_they_touch(seed, is_clean, segments, tmp_path):
    rng = random.Random(f"{seed} {is_clean}")
    data = Path(shutil.copytree(segments, tmp_path / "data"))
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    before = batches_of(data)
    pages = []
    for _ in range(rng.randint(2, 5)):
        hit = rng.choice(logs_of(data))
        # At least four pages apart: between them is an index entry, or the end of the file.
        at = rng.randrange(hit.stat().st_size // PAGE // 6 + 1) * 6 * PAGE
        overwrite(hit, at, rng.choice(FILLINGS), rng)
        pages.append((hit, at))
    assert repaired(data, tmp_path / "repaired") == untouched(before, pages), pages


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("has_index", [True, False])
def test_any_span_of_bytes_costs_the_batches_that_it_touches(has_index, codec, tmp_path):
    source = make_log(tmp_path / "source", records=900, a_batch=30, size=90, compression=codec)
    if not has_index:
        for index in (source / "orders-0").glob("*.index"):
            index.unlink()
    rng = random.Random(f"{codec} {has_index}")
    (log,) = logs_of(source)
    original = log.read_bytes()
    for note in range(60 if LONG else 40):
        size = rng.choice([70, 512, 700, 5000])
        at = rng.randrange(len(original))
        overwrite(log, at, rng.choice(FILLINGS), rng, size)
        found = found_in(log)
        assert unchanged(original, log) <= found <= unchanged(original, log, covered=True), (note, at, size)
        log.write_bytes(original)


def value_with(batches: bytes, how: str) -> dict:
    match how:
        case "value":
            return {"value": batches}
        case "between":
            return {"value": b"x" * 100 + batches + b"y" * 100}
        case "before zeros":
            return {"value": batches + bytes(1500)}
        case "with half a batch":
            return {"value": batches + batches[: len(batches) // 2]}
        case _:
            return {"value": b"short", "headers": [("copy", batches)]}


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("how", ["value", "between", "before zeros", "with half a batch", "last header"])
def test_a_batch_inside_a_record_is_never_taken_for_one_of_the_log(how, has_index, filling, tmp_path):
    """Records hold batches with the right CRC, and with the very offsets that the record has, or that come next."""
    data = tmp_path / "data"
    data.mkdir()
    rng = random.Random(f"{how} {has_index} {filling}")
    with open_log(str(data / "orders-0"), "a") as log:
        for _ in range(60):
            start = log.log_end_offset
            outer = RecordBatchBuilder(base_offset=start, leader_epoch=0)
            for n in range(6):
                inner = b""
                for offset in range(start + n, start + n + rng.randint(1, 2)):
                    # For "last header" with another offset: with this one it would look like the log's next batch.
                    made = RecordBatchBuilder(base_offset=start if how == "last header" else offset, leader_epoch=0)
                    made.append(b"inner" * 40, timestamp=5)
                    inner += bytes(made.build())
                outer.append(key=b"outer", timestamp=1_700_000_000_000, **value_with(inner, how))
            log.append_as_follower(outer.build())
    if not has_index:
        for index in (data / "orders-0").glob("*.index"):
            index.unlink()
    (log,) = logs_of(data)
    original = log.read_bytes()
    real = {batch.position for batch in model.decode_batches(original)}
    pages = list(range(0, len(original) - PAGE, PAGE))
    for at in rng.sample(pages, min(len(pages), 40 if LONG else 20)):
        overwrite(log, at, filling, rng)
        found = found_in(log, end_offset=360)
        assert found <= real, (at, sorted(found - real))
        assert unchanged(original, log) <= found <= unchanged(original, log, covered=True), at
        log.write_bytes(original)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("filling", FILLINGS)
def test_messages_of_old_formats_after_a_damaged_page_are_found_through_the_index(filling, magic, tmp_path):
    (log := tmp_path / f"{0:020}.log").touch()
    content, entries, places = b"", [], []
    for offset in range(2000):
        inner = RecordBatchBuilder(magic=magic, base_offset=offset)
        inner.append(b"inner", b"key", timestamp=5)
        made = RecordBatchBuilder(magic=magic, base_offset=offset)
        made.append(bytes(inner.build()) if offset % 3 else b"value", b"key", timestamp=5)
        message = bytes(made.build())
        places.append((len(content), len(message)))
        if not entries or len(content) - entries[-1][1] > PAGE:
            entries.append((offset, len(content)))
        content += message
    log.with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    rng = random.Random(magic)
    for at in range(0, len(content) - PAGE, 3 * PAGE):
        log.write_bytes(content)
        overwrite(log, at, filling, rng)
        found = found_in(log)
        assert found <= {position for position, _ in places}, at
        again = next((position for _, position in entries if position >= at + PAGE), len(content))
        kept = {p for p, size in places if p + size <= at or p >= again}
        assert found >= kept, at


def test_the_plan_and_verify_say_where_the_batches_go_on(sound, tmp_path):
    data = Path(shutil.copytree(sound, tmp_path / "data"))
    (log,) = logs_of(data)
    overwrite(log, 20 * PAGE, "zeros", random.Random(1))
    problems = [problem for problem in verify(str(data)) if problem.damage]
    assert all(problem.path == str(log) and problem.position < 21 * PAGE for problem in problems)
    assert any(f"position {problem.position}" in problem.text or "located" in problem.text for problem in problems)
    assert len(problems) <= 2


@pytest.mark.parametrize("kind", ["garbage", "headers with a wrong CRC", "overlapping headers with a wrong CRC"])
def test_the_time_for_garbage_grows_with_its_size_and_not_with_its_square(kind, tmp_path):
    def seconds(size: int) -> float:
        log = tmp_path / f"{0:020}.log"
        content = bytearray(random.Random(5).randbytes(size))
        made = RecordBatchBuilder(base_offset=0, leader_epoch=0)
        made.append(b"value" * 20, timestamp=5)
        batch = bytearray(made.build())
        batch[-1] ^= 1
        if kind != "garbage":
            for at in range(100, size - len(batch), len(batch)):
                if kind.startswith("overlapping"):
                    struct.pack_into(">i", batch, 8, size - at - 12)
                content[at : at + len(batch)] = batch
        log.write_bytes(content)
        start = time.process_time()
        assert all(isinstance(item, Damage) for item in read_batches(str(log)))
        return time.process_time() - start

    small, large = min(seconds(1 << 20) for _ in range(3)), seconds(1 << 23)
    # Eight times the bytes; with the square of the size it would be 64 times.
    assert large < 40 * small, (small, large)
