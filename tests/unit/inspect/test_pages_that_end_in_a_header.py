"""A damaged page that ends inside the first bytes of a batch, which no CRC covers: the batch keeps its offset where an
index entry or the batches around it prove that, and is never kept at another one without a finding."""

import itertools
import random
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from kcore.inspect.repair import apply_to_copy
from kcore.inspect.repair_plan import Plan, plan_repair
from kcore.inspect.verifier import verify
from kcore.log.log_config import LogConfig
from kcore.log.lost_records import read_mark
from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.inspect.test_damaged_pages import FILLINGS, LONG, UNCOVERED, logs_of, overwrite
from tests.unit.inspect.test_damaged_pages_of_compacted_logs import NOW_MS, cleaned

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-log" / "data"
SIZES = [512, 4096]


class Stored(NamedTuple):
    log: str
    batch: model.Batch
    content: bytes

    @property
    def last_offset(self) -> int:
        return self.batch.base_offset + self.batch.last_offset_delta

    @property
    def covered(self) -> bytes:
        return self.content[UNCOVERED:]

    @property
    def known(self) -> bytes:
        """All but the leader epoch, which the batches do not always prove."""
        return self.content[:12] + self.covered


def stored_in(data: Path) -> list[Stored]:
    stored = []
    for log in logs_of(data):
        content = log.read_bytes()
        batches = model.decode_batches(content)
        stored += [Stored(log.name, b, content[b.position : b.position + b.size]) for b in batches]
    return stored


def plain(directory: Path, rng: random.Random, **config) -> Path:
    """A closed data directory with one partition whose offsets have no gaps."""
    directory.mkdir()
    with open_log(str(directory / "orders-0"), "a", config=LogConfig(**config)) as log:
        for n in range(400):
            made = RecordBatchBuilder(base_offset=log.log_end_offset, leader_epoch=3)
            for _ in range(rng.randint(1, 5)):
                made.append(rng.randbytes(rng.randint(1, 200)), b"key", timestamp=NOW_MS + n)
            log.append_as_follower(made.build())
    return directory


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> dict[str, list[Path]]:
    directory = tmp_path_factory.mktemp("headers")
    rng = random.Random(26)
    compacted = [
        cleaned(directory / "several", rng, keys=500),
        cleaned(directory / "compressed", rng, keys=400, a_batch=12, codec="lz4"),
        cleaned(directory / "one", rng, keys=150, segment_bytes=1 << 20),
    ]
    by_kafka = directory / "golden"
    by_kafka.mkdir()
    shutil.copytree(GOLDEN / "g-compact-0", by_kafka / "orders-0")
    return {
        "plain": [
            plain(directory / "plain", rng),
            plain(directory / "segments", rng, segment_bytes=30_000),
            plain(directory / "entries", rng, segment_bytes=60_000, index_interval_bytes=300),
        ],
        "compacted": [*compacted, by_kafka],
    }


def named_alone(data: Path) -> set[tuple[str, int]]:
    """The log and position of each batch of which an index entry has the position and the last offset."""
    last_offsets = {(each.log, each.batch.position): each.last_offset for each in stored_in(data)}
    named = set()
    for log in logs_of(data):
        for relative, position in struct.iter_unpack(">ii", log.with_suffix(".index").read_bytes()):
            if last_offsets.get((log.name, position)) == int(log.stem) + relative:
                named.add((log.name, position))
    return named


class Outcome(NamedTuple):
    plans: list[Plan]
    #: What keep-after keeps.
    kept: list[Stored]
    #: Where the plan has a finding.
    findings: set[tuple[str, int | None]]
    #: The first lost offset of the mark lost-records.
    mark: int | None

    @property
    def lost_records(self) -> int:
        return sum(loss.records for plan in self.plans for loss in plan.losses)


def outcome_of(data: Path) -> Outcome:
    plans = plan_repair(str(data), salvage="keep-after")
    result = data.with_name("repaired")
    apply_to_copy(str(data), plans, str(result))
    kept, mark = stored_in(result), read_mark(str(result / "orders-0"))
    assert not [p for p in verify(str(result)) if p.damage and not p.gaps]
    shutil.rmtree(result)
    findings = {(Path(p.path).name, p.position) for plan in plans for p in plan.problems}
    return Outcome(plans, kept, findings, mark)


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["plain", "compacted"])
def test_a_batch_whose_offset_is_proved_survives_a_page_that_ends_in_its_header(kind, size, filling, logs, tmp_path):
    rng = random.Random(f"{kind} {size} {filling}")
    for note in range(24 if LONG else 15):
        data = Path(shutil.copytree(rng.choice(logs[kind]), tmp_path / "data"))
        if rng.random() < 0.3:
            for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
                (data / name).unlink(missing_ok=True)
        before, named = stored_in(data), named_alone(data)
        chosen = [each for each in before if each.batch.position]
        if note % 5 == 0:
            chosen = chosen[-1:]
        elif note % 2:
            chosen = [each for each in chosen if (each.log, each.batch.position) in named]
        hit = rng.choice(chosen)
        log = data / "orders-0" / hit.log
        end = hit.batch.position + rng.randint(1, UNCOVERED)
        start = max(end - size, 0)
        overwrite(log, start, filling, rng, end - start)
        damaged = log.read_bytes()
        context = (note, hit.log, hit.batch.position, end - hit.batch.position)

        outcome = outcome_of(data)
        intact = [
            each
            for each in before
            if each.log != hit.log or damaged[each.batch.position :][: each.batch.size] == each.content
        ]
        n = before.index(hit)
        has_neighbour = n + 1 < len(before) and before[n + 1].log == hit.log
        is_proved = (hit.log, hit.batch.position) in named or (kind == "plain" and has_neighbour)
        must_stay = [each.known for each in before if each in intact or (each is hit and is_proved)]
        kept = [each.known for each in outcome.kept]
        assert [each for each in kept if each in must_stay] == must_stay, context
        for each in outcome.kept:
            if each.known not in must_stay:
                assert each.covered == hit.covered, context
                assert each.known == hit.known or (hit.log, hit.batch.position) in outcome.findings, context
        if hit.covered not in [each.covered for each in outcome.kept]:
            assert outcome.lost_records == len(hit.batch.records), context
            assert (hit.log, hit.batch.position) in outcome.findings, context
        elif hit not in intact:
            assert (hit.log, hit.batch.position) in outcome.findings, context
        left = {each.covered for each in outcome.kept}
        gone = [each.batch.base_offset for each in before if each.covered not in left]
        assert not gone or (outcome.mark is not None and outcome.mark <= gone[0]), (context, gone, outcome.mark)
        ends = [loss.last_offset for plan in outcome.plans for loss in plan.losses if loss.last_offset is not None]
        assert max(ends, default=-1) <= before[-1].last_offset, (context, ends)
        shutil.rmtree(data)


def test_a_lost_page_before_a_batch_of_a_log_that_kafka_compacted_costs_not_that_batch(logs, tmp_path):
    data = Path(shutil.copytree(logs["compacted"][-1], tmp_path / "data"))
    (log,) = (log for log in logs_of(data) if log.stem.endswith("192"))
    overwrite(log, 512, "zeros", random.Random(1), 512)
    (hit,) = (each for each in stored_in(logs["compacted"][-1]) if (each.log, each.batch.position) == (log.name, 1016))
    outcome = outcome_of(data)
    assert (hit.batch.base_offset, hit.last_offset) == (204, 209)
    assert hit.content in [each.content for each in outcome.kept]


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("kind", ["plain", "compacted"])
def test_a_batch_after_a_page_at_the_start_of_a_log_does_not_move_to_offset_0(kind, is_named, logs, tmp_path):
    source = logs[kind][2]
    named = named_alone(source)
    log = logs_of(source)[0]
    hit = next(
        each
        for each in stored_in(source)
        if each.log == log.name and each.batch.position and ((each.log, each.batch.position) in named) == is_named
    )
    data = Path(shutil.copytree(source, tmp_path / "data"))
    overwrite(data / "orders-0" / log.name, 0, "zeros", random.Random(1), hit.batch.position + 8)
    outcome = outcome_of(data)
    is_proved = is_named or kind == "plain"
    assert [each.content for each in outcome.kept if each.covered == hit.covered] == [hit.content] * is_proved
    assert outcome.lost_records == (0 if is_proved else len(hit.batch.records))
    assert (log.name, hit.batch.position) in outcome.findings


@pytest.mark.parametrize("kind", ["plain", "compacted"])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_changed_base_offset_beside_a_destroyed_batch_is_corrected_or_a_finding(is_before, kind, logs, tmp_path):
    rng = random.Random(f"{kind} {is_before}")
    corrected = 0
    for note in range(24 if LONG else 20):
        data = Path(shutil.copytree(rng.choice(logs[kind]), tmp_path / "data"))
        before, named = stored_in(data), named_alone(data)
        n = rng.randrange(2, len(before) - 2)
        hit, other = before[n], before[n + 1 if is_before else n - 1]
        if hit.log == other.log:
            at = hit.batch.position
            wrong = hit.batch.base_offset ^ 1 << rng.randrange(40)
            log = data / "orders-0" / hit.log
            overwrite(log, other.batch.position, "garbage", rng, 61)
            with open(log, "r+b") as file:
                file.seek(at)
                file.write(wrong.to_bytes(8, "big"))
            outcome = outcome_of(data)
            kept = [each for each in outcome.kept if each.covered == hit.covered]
            is_corrected = [each.content for each in kept] == [hit.content]
            corrected += is_corrected
            context = (note, hit.log, at, hit.batch.base_offset, wrong)
            # Of a batch before bytes that cannot be read an entry may name one that is among them.
            if kind == "plain" or ((hit.log, at) in named and not is_before):
                about = {(hit.log, at), *(f for f in outcome.findings if f[0].endswith(".index"))}
                assert not kept or is_corrected or outcome.findings & about, context
        shutil.rmtree(data)
    assert corrected or (kind == "compacted" and is_before)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_index_entry_of_an_append_proves_no_offset_of_a_batch_if_the_last_batch_of_the_append_is_lost(
    is_first, tmp_path
):
    """The entry has the position of the first batch of the append, and the offset of the last one; gaps before each
    batch leave room for others.  is_first: the cut batch is the one that the entry names, else it is the next one
    after the lost batch."""
    (data := tmp_path / "data").mkdir()
    with open_log(str(data / "orders-0"), "a") as log:
        for n in range(24):
            made = RecordBatchBuilder(base_offset=10 * n + 5, leader_epoch=0)
            made.append(b"value %d" % n, b"key", timestamp=NOW_MS)
            log.append_as_follower(made.build())
    (log,) = logs_of(data)
    stored = stored_in(data)
    appends = [(b.last_offset, a.batch.position) for a, b in itertools.pairwise(stored)][::2]
    lost, cut = (stored[9], stored[8]) if is_first else (stored[9], stored[10])
    if not is_first:
        appends.remove((stored[11].last_offset, cut.batch.position))
    log.with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *entry) for entry in appends))
    overwrite(log, lost.batch.position, "zeros", random.Random(1), lost.batch.size)
    overwrite(log, cut.batch.position, "zeros", random.Random(1), 8)
    plans = plan_repair(str(data), salvage="keep-after", compacted=True)
    assert not any(action.corrections for plan in plans for action in plan.actions)
    assert any(p.position == cut.batch.position for plan in plans for p in plan.problems)
