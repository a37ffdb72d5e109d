"""A damaged page of a compacted log costs the batches that it touches: the gaps that a cleaner leaves are no sign that
batches after the page are not those of the log."""

import itertools
import random
import shutil
from pathlib import Path

import pytest

from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import plan_repair
from kcore.inspect.verifier import verify
from kcore.log.log_cleaner import Cleaner
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_config import LogConfig
from kcore.log.offset_map import OffsetMap
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.inspect.test_damaged_pages import (
    FILLINGS,
    LONG,
    PAGE,
    UNCOVERED,
    found_in,
    logs_of,
    overwrite,
    unchanged,
    value_with,
)

NOW_MS = 1_700_000_000_000
#: What a log may have beside its segments that helps to find batches.
AIDS = {"index", "cleaner's checkpoint"}


def cleaned(
    directory: Path, rng: random.Random, *, keys: int = 120, a_batch: int = 3, segment_bytes: int = 40_000, codec="none"
) -> Path:
    """A closed data directory with one partition, as the cleaner leaves it, and some new batches after that."""
    directory.mkdir()
    config = LogConfig(segment_bytes=segment_bytes, cleanup_policy=("compact",))

    def append(log, count: int) -> None:
        for _ in range(count):
            made = RecordBatchBuilder(leader_epoch=0, compression=codec)
            for _ in range(rng.randint(1, a_batch)):
                made.append(rng.randbytes(rng.randint(1, 300)), b"%d" % rng.randrange(keys), timestamp=NOW_MS)
            log.append_as_leader(made.build())

    with open_log(str(directory / "orders-0"), "a", config=config) as log:
        append(log, 700)
        log.roll()
        cleanable, _ = find_log_to_clean(log, None, NOW_MS + 1_000_000)
        end, _ = Cleaner(OffsetMap(24 * 2000, 0.5)).clean(cleanable)
        append(log, 10)
    (directory / "cleaner-offset-checkpoint").write_text(f"0\n1\norders 0 {end}\n")
    return directory


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("compacted")
    rng = random.Random(3)
    several = cleaned(directory / "several", rng, keys=500)
    compressed = cleaned(directory / "compressed", rng, keys=400, a_batch=12, codec="lz4")
    one = cleaned(directory / "one", rng, keys=150, segment_bytes=1 << 20)
    return [several, compressed, one]


def without_aids(data: Path, aids: set[str]) -> None:
    if "index" not in aids:
        for index in (data / "orders-0").glob("*.index"):
            index.unlink()
    if "cleaner's checkpoint" not in aids:
        (data / "cleaner-offset-checkpoint").unlink()


def batches_in(data: Path) -> list[bytes]:
    """The bytes of each batch, by the model."""
    contents = [log.read_bytes() for log in logs_of(data)]
    return [content[b.position : b.position + b.size] for content in contents for b in model.decode_batches(content)]


def test_a_cleaner_leaves_gaps_between_batches_and_inside_them(logs):
    for data in logs:
        batches = [batch for log in logs_of(data) for batch in model.decode_batches(log.read_bytes())]
        assert any(b.base_offset > a.last_offset + 1 for a, b in itertools.pairwise(batches))
        assert any(len(batch.records) <= batch.last_offset_delta for batch in batches)


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize(
    "aids", [AIDS, {"index"}, {"cleaner's checkpoint"}, set()], ids=lambda aids: ", ".join(sorted(aids))
)
def test_a_page_costs_exactly_the_batches_that_it_touches(aids, filling, logs, tmp_path):
    rng = random.Random(f"{sorted(aids)} {filling}")
    for note in range(32 if LONG else 24):
        data = Path(shutil.copytree(rng.choice(logs), tmp_path / "data"))
        without_aids(data, aids)
        hit = rng.choice([log for log in logs_of(data) if log.stat().st_size])
        before, content = batches_in(data), hit.read_bytes()
        at = rng.randrange(len(content))
        overwrite(hit, at, filling, rng)
        damaged = hit.read_bytes()
        touched = [
            content[b.position : b.position + b.size]
            for b in model.decode_batches(content)
            if content[b.position : b.position + b.size] != damaged[b.position : b.position + b.size]
        ]
        expected = [batch for batch in before if batch not in touched]
        # What a page does that ends in the first bytes of a batch: test_pages_that_end_in_a_header.py.
        cut = [batch[UNCOVERED:] for batch in touched if batch[UNCOVERED:] in damaged]
        plans = plan_repair(str(data), salvage="keep-after")
        apply_to_copy(str(data), plans, str(tmp_path / "repaired"))
        kept = batches_in(tmp_path / "repaired")
        assert [batch for batch in kept if batch[UNCOVERED:] not in cut] == expected, (note, hit, at)
        assert not [p for p in verify(str(tmp_path / "repaired")) if p.damage and not p.gaps], (note, hit, at)
        assert {(p.path, p.position) for plan in plans for p in plan.problems if p.damage and not p.gaps} == {
            (p.path, p.position) for p in verify(str(data), records=False) if p.damage and not p.gaps
        }, (note, hit, at)
        shutil.rmtree(tmp_path / "repaired")
        shutil.rmtree(data)


def test_a_lone_segment_whose_gaps_are_beside_the_page_alone_is_read_whole_if_it_is_said_to_be_compacted(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for n in range(60):
            made = RecordBatchBuilder(base_offset=n + 5 * (n > 20) + 5 * (n > 21), leader_epoch=0)
            made.append(b"v" * 400, b"key", timestamp=NOW_MS)
            log.append_as_follower(made.build())
    (log,) = logs_of(data)
    content = log.read_bytes()
    places = [(b.position, b.position + b.size) for b in model.decode_batches(content)]
    # The page ends inside batch 20.  The gaps before and after batch 21 are the only ones.
    overwrite(log, (at := places[20][1] - 10 - PAGE), "zeros", random.Random(1))
    untouched = [content[start:end] for start, end in places if end <= at or start >= at + PAGE]
    assert content[slice(*places[21])] in untouched
    apply_to_copy(str(data), plan_repair(str(data), salvage="keep-after", compacted=True), str(tmp_path / "repaired"))
    assert batches_in(tmp_path / "repaired") == untouched


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("how", ["value", "between", "before zeros", "with half a batch", "last header"])
def test_a_batch_inside_a_record_of_a_log_with_gaps_is_not_taken_for_one_of_the_log(how, has_index, filling, tmp_path):
    """The batches inside have offsets between those of the batches around them.  As the value of a last header it is
    one: where a page has the length of that value, nothing distinguishes a second one in it from one of the log."""
    data = tmp_path / "data"
    data.mkdir()
    rng = random.Random(f"{how} {has_index} {filling}")
    with open_log(str(data / "orders-0"), "a") as log:
        for _ in range(60):
            start = log.log_end_offset + rng.choice([0, 4, 9])
            outer = RecordBatchBuilder(base_offset=start, leader_epoch=0)
            for n in range(6):
                inner = b""
                for offset in range(start + n, start + n + (1 if how == "last header" else rng.randint(1, 2))):
                    made = RecordBatchBuilder(base_offset=offset, leader_epoch=0)
                    made.append(b"inner" * 40, timestamp=5)
                    inner += bytes(made.build())
                outer.append(key=b"outer", timestamp=NOW_MS, offset=start + 2 * n, **value_with(inner, how))
            log.append_as_follower(outer.build())
    if not has_index:
        for index in (data / "orders-0").glob("*.index"):
            index.unlink()
    (log,) = logs_of(data)
    original = log.read_bytes()
    places = {b.position: b.size for b in model.decode_batches(original)}
    pages = range(PAGE, len(original) - PAGE, PAGE)
    chosen = rng.sample(pages, min(len(pages), 40 if LONG else 20))
    not_all_found = []
    for at in chosen:
        overwrite(log, at, filling, rng)
        changed = log.read_bytes()
        intact = {p for p, size in places.items() if original[p : p + size] == changed[p : p + size]}
        found = found_in(log)
        assert found <= unchanged(original, log, covered=True), at
        if not found >= intact:
            not_all_found.append(at)
        log.write_bytes(original)
    # Without an index the first batches alone may not show that the log has gaps.
    assert len(not_all_found) <= (0 if has_index else len(chosen) // 10), not_all_found
