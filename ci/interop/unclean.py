"""Directories that Kafka wrote and did not close, damaged in the ways that crashes and disks damage: Kafka and kcore,
each on a copy of its own, must recover to the same log.

The same means: log start and end, last stable offset, segments and their sizes, leader epochs, producers with their
last batch and open transaction, aborted transactions, every record, and what a read_committed consumer gets.

In a few cases kcore saves more than Kafka does (docs/compatibility.md).  There it is held to what Kafka found before
the damage: all of it, or every record up to where the log ends now.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ci.interop import oracle
from ci.interop.oracle import Oracle
from tests.reference.epoch_histories import kills
from tests.reference.leader_epochs import epochs_of_kafka, epochs_of_kcore

KINDS = ("plain", "append-time", "epochs", "idempotent", "transactions", "truncated", "log-start", "compacted")

Damage = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Case:
    """One kind of damage.

    recovery_point: the checkpoint says that all segments but the last are on disk.
    expected: "Kafka": what Kafka finds; "all": what Kafka found before the damage; "prefix": the records that Kafka
    found before, up to some offset.
    but_for: (kind of log, word): there, lines that begin with the word may differ.
    """

    name: str
    damage: Damage
    clean: bool = False
    recovery_point: bool = False
    expected: Literal["Kafka", "all", "prefix"] = "Kafka"
    but_for: frozenset[tuple[str, str]] = frozenset()


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def _last(directory: Path) -> Path:
    return _logs(directory)[-1]


def _middle(directory: Path) -> Path:
    """A segment before the last that is not empty."""
    found = [path for path in _logs(directory)[:-1] if path.stat().st_size > 500]
    return found[len(found) // 2]


def _positions(path: Path) -> list[int]:
    """Where the batches of a segment begin."""
    data = path.read_bytes()
    found, at = [], 0
    while at + 12 <= len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def _flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def nothing(directory: Path, rng: random.Random) -> None:
    pass


def torn_tail(directory: Path, rng: random.Random) -> None:
    path = _last(directory)
    start = _positions(path)[-1]
    path.write_bytes(path.read_bytes()[: rng.randrange(start + 1, path.stat().st_size)])


def torn_header(directory: Path, rng: random.Random) -> None:
    path = _last(directory)
    path.write_bytes(path.read_bytes()[: _positions(path)[-1] + rng.randrange(1, 17)])


def lost_batches(directory: Path, rng: random.Random) -> None:
    path = _last(directory)
    path.write_bytes(path.read_bytes()[: rng.choice(_positions(path)[1:])])


def emptied_last_segment(directory: Path, rng: random.Random) -> None:
    _last(directory).write_bytes(b"")


def zero_tail(directory: Path, rng: random.Random) -> None:
    with open(_last(directory), "ab") as file:
        file.write(bytes(rng.randrange(1, 5000)))


def garbage_tail(directory: Path, rng: random.Random) -> None:
    with open(_last(directory), "ab") as file:
        file.write(rng.randbytes(rng.randrange(100, 5000)))


def flipped_in_batch(field: int) -> Damage:
    """A byte of a batch's header (or of its records, from 61 on) in the last segment, but not of its last batch: what
    no CRC covers shows only in what comes behind."""

    def damage(directory: Path, rng: random.Random) -> None:
        path = _last(directory)
        positions = _positions(path)
        _flip(path, positions[rng.randrange(len(positions) // 2, len(positions) - 1)] + field)

    return damage


def flipped_in_middle_segment(directory: Path, rng: random.Random) -> None:
    path = _middle(directory)
    _flip(path, rng.choice(_positions(path)) + 62)


def bad_index_and_bad_batch(directory: Path, rng: random.Random) -> None:
    """In a segment before the last: it is cut, and the segments after it are kept."""
    path = _middle(directory)
    path.with_suffix(".index").unlink()
    _flip(path, rng.choice(_positions(path)) + 62)


def short_middle_segment_without_index(directory: Path, rng: random.Random) -> None:
    """Cut inside a batch, most probably.  Kafka does not look at such a segment if its index is there."""
    path = _middle(directory)
    path.with_suffix(".index").unlink()
    path.write_bytes(path.read_bytes()[: path.stat().st_size * rng.randrange(20, 60) // 100])


def with_last_index_missing(damage: Damage) -> Damage:
    """The last segment is recovered too, as it is without the mark of a clean stop.  (It was not closed, so its index
    ends with zeros, by which kcore knows after a clean stop that it must be made anew.  Kafka believes it.)"""

    def both(directory: Path, rng: random.Random) -> None:
        damage(directory, rng)
        _last(directory).with_suffix(".index").unlink()

    return both


def removed(suffix: str, which: Callable[[Path], Path] = _last) -> Damage:
    def damage(directory: Path, rng: random.Random) -> None:
        which(directory).with_suffix(suffix).unlink(missing_ok=True)

    return damage


def removed_all(suffix: str) -> Damage:
    def damage(directory: Path, rng: random.Random) -> None:
        for path in directory.glob(f"*{suffix}"):
            path.unlink()

    return damage


def garbled(suffix: str, which: Callable[[Path], Path] = _last) -> Damage:
    """Random bytes of the same length."""

    def damage(directory: Path, rng: random.Random) -> None:
        path = which(directory).with_suffix(suffix)
        if path.exists():
            path.write_bytes(rng.randbytes(path.stat().st_size))

    return damage


def garbled_all(suffix: str) -> Damage:
    def damage(directory: Path, rng: random.Random) -> None:
        for path in directory.glob(f"*{suffix}"):
            path.write_bytes(rng.randbytes(path.stat().st_size))

    return damage


def odd_length(suffix: str) -> Damage:
    def damage(directory: Path, rng: random.Random) -> None:
        path = _middle(directory).with_suffix(suffix)
        with open(path, "ab") as file:
            file.write(b"\0\0\0")

    return damage


def leftovers(mark: str) -> Damage:
    """What an interrupted cleaning or deletion leaves: a copy of a segment under another name."""

    def damage(directory: Path, rng: random.Random) -> None:
        source = _middle(directory)
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            path = source.with_suffix(suffix)
            if path.exists():
                shutil.copy(path, path.with_name(path.name + mark))

    return damage


def swap_of_two_segments(directory: Path, rng: random.Random) -> None:
    """The cleaner made one segment of two and renamed it to .swap; the old ones are still there."""
    logs = [path for path in _logs(directory)[:-1] if path.stat().st_size > 0]
    first, second = logs[0], logs[1]
    merged = first.with_name(first.name + ".swap")
    merged.write_bytes(first.read_bytes() + second.read_bytes())
    for suffix in (".index", ".timeindex"):
        shutil.copy(first.with_suffix(suffix), directory / (first.stem + suffix + ".swap"))


def orphan_indexes(directory: Path, rng: random.Random) -> None:
    source = _middle(directory)
    for suffix in (".index", ".timeindex"):
        shutil.copy(source.with_suffix(suffix), directory / f"{int(source.stem) + 1:020}{suffix}")


def stray_snapshot(directory: Path, rng: random.Random) -> None:
    found = sorted(directory.glob("*.snapshot"))
    if found:
        shutil.copy(found[0], directory / f"{int(_last(directory).stem) + 100_000:020}.snapshot")


def no_epochs(directory: Path, rng: random.Random) -> None:
    (directory / "leader-epoch-checkpoint").unlink()


#: A transaction index that is rebuilt lacks aborted transactions of which no record is left.
REBUILT = frozenset({("compacted", "aborted"), ("log-start", "aborted")})
#: The first epoch of a rebuilt cache starts at the first batch that the cleaner has left.
EPOCHS_REBUILT = frozenset({("compacted", "epoch")})

CASES = [
    Case("stopped cleanly, unindexed space left", nothing, clean=True),
    Case("as a crash leaves it", nothing),
    Case("as a crash leaves it, last segment alone in doubt", nothing, recovery_point=True),
    Case("torn in the last batch", torn_tail),
    Case("torn in the last batch, last segment alone in doubt", torn_tail, recovery_point=True),
    Case("torn in the last header", torn_header),
    Case("last batches lost", lost_batches, recovery_point=True),
    Case("last segment empty", emptied_last_segment),
    Case("zeros behind the end", zero_tail),
    Case("garbage behind the end", garbage_tail),
    Case("base offset flipped", flipped_in_batch(6), expected="prefix"),
    Case("length flipped, low byte", flipped_in_batch(11)),
    Case("length flipped, high byte", flipped_in_batch(8)),
    Case("leader epoch flipped", flipped_in_batch(15)),
    Case("magic flipped", flipped_in_batch(16), expected="prefix"),
    Case("CRC flipped", flipped_in_batch(18)),
    Case("attributes flipped", flipped_in_batch(22)),
    Case("last offset delta flipped", flipped_in_batch(26)),
    Case("producer id flipped", flipped_in_batch(50)),
    Case("record flipped", flipped_in_batch(63)),
    Case("record flipped, last segment alone in doubt", flipped_in_batch(63), recovery_point=True),
    Case("record flipped in a segment before the last", flipped_in_middle_segment),
    Case("offset index missing", removed(".index"), recovery_point=True),
    Case("offset index missing before the recovery point", removed(".index", _middle), recovery_point=True),
    Case("time index missing", removed(".timeindex"), recovery_point=True),
    Case(
        "time index missing before the recovery point",
        removed(".timeindex", _middle),
        recovery_point=True,
        but_for=REBUILT,
    ),
    Case("no index at all", removed_all("index")),
    Case("no index at all after a clean stop", removed_all("index"), clean=True),
    Case("bad index and bad batch below the recovery point", bad_index_and_bad_batch, recovery_point=True),
    Case("bad index and bad batch after a clean stop", with_last_index_missing(bad_index_and_bad_batch), clean=True),
    Case("short segment below the recovery point", short_middle_segment_without_index, recovery_point=True),
    Case("short segment after a clean stop", with_last_index_missing(short_middle_segment_without_index), clean=True),
    Case("offset index garbled", garbled(".index")),
    Case("time index garbled", garbled(".timeindex")),
    Case("offset index of odd length", odd_length(".index"), recovery_point=True, but_for=REBUILT),
    Case("time index of odd length", odd_length(".timeindex"), recovery_point=True, but_for=REBUILT),
    Case("transaction index missing", removed(".txnindex")),
    Case("transaction indexes garbled", garbled_all(".txnindex"), expected="all"),
    Case(
        "transaction indexes garbled, last segment alone in doubt",
        garbled_all(".txnindex"),
        recovery_point=True,
        expected="all",
        but_for=REBUILT,
    ),
    Case("newest snapshot missing", removed(".snapshot")),
    Case("no snapshot", removed_all(".snapshot")),
    Case("no snapshot, last segment alone in doubt", removed_all(".snapshot"), recovery_point=True),
    Case("newest snapshot garbled", garbled(".snapshot"), recovery_point=True),
    Case("snapshots garbled", garbled_all(".snapshot"), recovery_point=True),
    Case("a snapshot beyond the end", stray_snapshot),
    Case("no leader epochs", no_epochs),
    Case(
        "no leader epochs, last segment alone in doubt",
        no_epochs,
        recovery_point=True,
        expected="all",
        but_for=EPOCHS_REBUILT,
    ),
    Case("leftovers .deleted", leftovers(".deleted")),
    Case("leftovers .cleaned", leftovers(".cleaned")),
    Case("leftovers .swap", leftovers(".swap")),
    Case("a .swap in the place of two segments", swap_of_two_segments),
    Case("indexes without a log", orphan_indexes),
]


VERDICTS = {"Kafka": "alike", "all": "all saved, unlike Kafka", "prefix": "nothing wrong, unlike Kafka"}


def prove(kafka: Oracle, work: Path) -> list[str]:
    """Every case on every kind of log; the differences.  Prints a line for each case."""
    made = {kind: kafka.write(work / "made" / f"{kind}-0", kind) for kind in KINDS}
    differences = []
    for case in CASES:
        wrong, records = [], 0
        for kind in KINDS:
            theirs, ours = recover_both(kafka, work, case, kind, made[kind])
            records += sum(line.startswith("record") for line in ours)
            difference = oracle.first_difference(theirs, ours)
            if difference:
                wrong.append(f"{case.name}, {kind}:\n      {difference}")
        verdict = "DIFFERS" if wrong else VERDICTS[case.expected]
        print(f"  {case.name:<58} {len(KINDS)} logs, {records:>5} records: {verdict}", flush=True)
        differences += wrong
    return differences


def recover_both(kafka: Oracle, work: Path, case: Case, kind: str, made: dict[str, int]) -> tuple[list[str], list[str]]:
    """The lines to compare."""
    source, damaged = work / "made" / f"{kind}-0", work / "damaged" / f"{kind}-0"
    shutil.rmtree(damaged.parent, ignore_errors=True)
    shutil.copytree(source, damaged)
    case.damage(damaged, random.Random(f"{case.name} {kind}"))
    recovery_point = made["recovery"] if case.recovery_point else 0

    def loaded(load: Callable[..., list[str]], directory: Path) -> list[str]:
        copy = work / "copy" / directory.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(directory, copy)
        lines = load(copy, clean=case.clean, recovery_point=recovery_point, log_start_offset=made["start"])
        return [line for line in lines if (kind, line.split()[0]) not in case.but_for]

    theirs = loaded(kafka.load, damaged if case.expected == "Kafka" else source)
    ours = loaded(oracle.load, damaged)
    if case.expected == "prefix":
        ours = [line for line in ours if line.startswith(("record", "control"))] or ours[:1]
        theirs = [line for line in theirs if line.startswith(("record", "control"))][: len(ours)]
    return theirs, ours


def prove_epochs(kafka: Oracle, seeds: range = range(42), kills_each: int = 5) -> list[str]:
    """The leader epochs that Kafka and kcore find after random kills of a kcore log (epoch_histories.py);
    the differences that docs/compatibility.md does not have.  Prints how many kills of each sort there were."""
    differences = []
    counts = dict.fromkeys(("alike", "an empty log, without epochs", "older epochs of batches, too"), 0)
    for seed in seeds:
        for kill in kills(seed, kills_each):
            checkpointed = {"recovery_point": kill.recovery_point, "log_start_offset": kill.log_start_offset}
            theirs = _bounds_and_epochs(kafka.load(kill.copy(), clean=False, **checkpointed))
            ours = _bounds_and_epochs(oracle.load(kill.copy(), clean=False, **checkpointed))
            start, end = ours.bounds
            expected = (
                Found(ours.bounds, epochs_of_kafka(kill.directory, kill.recovery_point, kill.log_start_offset, end)),
                Found(ours.bounds, epochs_of_kcore(kill.directory, kill.recovery_point, start, end)),
            )
            if (theirs, ours) != expected:
                differences.append(
                    f"{kill.description}:\n      Kafka {theirs}\n      kcore {ours}\n      of {expected}"
                )
            elif theirs == ours:
                counts["alike"] += 1
            else:
                counts["an empty log, without epochs" if start == end else "older epochs of batches, too"] += 1
    found = ", ".join(f"{count} {sort}" for sort, count in counts.items())
    verdict = f"{len(differences)} DIFFER" if differences else "none differs"
    print(f"  leader epochs after {sum(counts.values()) + len(differences)} kills: {found}: {verdict}", flush=True)
    return differences


class Found(NamedTuple):
    bounds: tuple[int, int]  # log start offset, log end offset
    epochs: list[tuple[int, int]]


def _bounds_and_epochs(lines: list[str]) -> Found:
    if lines[-1].startswith("error"):
        return Found((-1, -1), [])
    values = [line.split() for line in lines]
    start, end = (int(value) for word, value in values[:2])
    return Found((start, end), [(int(words[1]), int(words[2])) for words in values if words[0] == "epoch"])
