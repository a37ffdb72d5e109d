"""Segments that Kafka wrote before KAFKA-6264, with offsets that no index can name."""

import errno
import os
import shutil

import pytest

from kcore.common import file
from kcore.log.log_offset_metadata import FetchIsolation
from tests.unit.log.logs import Logs, batch, idempotent, marker, offsets, old_message, old_wrapper

FAR = 2**31


def at(offset, records):
    records[0:8] = offset.to_bytes(8, "big")
    return records


def directory_with(tmp_path, segments):
    logs = Logs(tmp_path / "orders-0", index_interval_bytes=0, retention_ms=-1)
    for base_offset, batches in segments.items():
        (logs.directory / f"{base_offset:020d}.log").write_bytes(b"".join(bytes(b) for b in batches))
    return logs


def logs_in(logs):
    return sorted(int(path.name[:20]) for path in logs.directory.glob("*.log"))


def marked(logs):
    return [name for name in os.listdir(logs.directory) if name.count(".") > 1]


OVERFLOWED = [batch(2), batch(base_offset=5), batch(2, base_offset=FAR - 1), batch(base_offset=FAR + 7)]
THREE = [batch(), batch(base_offset=FAR), batch(base_offset=FAR + 9), batch(2, base_offset=2 * FAR)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("following", [{}, {3 * FAR: [batch(base_offset=3 * FAR)]}])
@pytest.mark.parametrize(
    ("batches", "bases"),
    [(OVERFLOWED, [0, FAR - 1]), (THREE, [0, FAR, 2 * FAR]), ([batch(base_offset=FAR)], [0, FAR])],
)
def test_a_segment_with_offsets_that_do_not_fit_is_split_when_its_log_is_loaded(
    tmp_path, clean, following, batches, bases
):
    logs = directory_with(tmp_path, {0: batches} | following)
    wanted = [o for b in batches for o in range(int.from_bytes(b[:8], "big"), 1 + int.from_bytes(b[:8], "big") + b[26])]
    wanted += [3 * FAR] * len(following)
    log = logs.open(clean=clean)
    assert offsets(log) == wanted
    assert [s.base_offset for s in log.segments] == [*bases, *following] == logs_in(logs)
    assert marked(logs) == []
    for segment in log.segments:
        segment.sanity_check()
    for offset in wanted:
        assert [r.offset for r in log.records(offset, offset + 1)] == [offset]
    assert log.append_as_leader(batch()).first_offset == wanted[-1] + 1
    log.close()
    assert offsets(logs.open()) == [*wanted, wanted[-1] + 1]


def test_a_segment_that_fits_is_left_alone(tmp_path):
    logs = directory_with(tmp_path, {0: [batch(), batch(base_offset=FAR - 1)], 2 * FAR: [batch(base_offset=2 * FAR)]})
    before = os.stat(logs.directory / f"{0:020d}.log").st_ino
    log = logs.open(clean=False)
    assert offsets(log) == [0, FAR - 1, 2 * FAR]
    assert os.stat(logs.directory / f"{0:020d}.log").st_ino == before


def test_old_wrappers_are_split_where_their_first_message_is(tmp_path):
    logs = directory_with(tmp_path, {0: [old_message(0), old_wrapper(FAR - 5, 20), old_message(FAR + 40)]})
    log = logs.open(clean=False)
    assert [s.base_offset for s in log.segments] == [0, FAR - 5]
    assert offsets(log) == [0, *range(FAR - 5, FAR + 15), FAR + 40]


def test_a_transaction_that_reaches_over_the_split_keeps_its_index(tmp_path):
    batches = [
        at(3, idempotent(1, 0, is_transactional=True)),
        at(FAR + 5, idempotent(1, 1, is_transactional=True)),
        at(FAR + 6, marker(1, commit=False)),
        at(FAR + 7, batch()),
    ]
    log = directory_with(tmp_path, {0: batches}).open(clean=False)
    assert offsets(log, isolation="read_committed") == [FAR + 7]
    assert log.read(3, 10, FetchIsolation.TXN_COMMITTED).aborted_transactions == [(1, 3, FAR + 6, FAR + 7)]


@pytest.mark.parametrize("clean", [True, False])
def test_garbage_after_a_segment_is_no_overflow(tmp_path, clean):
    broken = bytearray(batch(base_offset=FAR + 1))
    broken[-1] ^= 1
    logs = directory_with(tmp_path, {0: [batch(3), broken]})
    log = logs.open(clean=False)
    assert [s.base_offset for s in log.segments] == [0]
    assert offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("bit", [31, 32, 40, 62])
def test_a_base_offset_with_a_flipped_bit_is_no_overflow_while_the_log_goes_on_below_it(tmp_path, clean, bit):
    batches = [
        batch(2),
        batch(2, base_offset=2),
        batch(base_offset=4 | 1 << bit),
        batch(base_offset=5),
        batch(2, base_offset=6),
    ]
    logs = directory_with(tmp_path, {0: batches})
    for _ in range(2):
        log = logs.open(clean=clean)
        assert offsets(log) == [0, 1, 2, 3] and logs_in(logs) == [0] and marked(logs) == []
        log.close()


def test_a_damaged_batch_after_an_overflow_does_not_make_the_batch_before_it_wrong(tmp_path):
    broken = bytearray(batch(base_offset=5))
    broken[-1] ^= 1
    log = directory_with(tmp_path, {0: [batch(2), batch(base_offset=FAR + 1), broken]}).open(clean=False)
    assert offsets(log) == [0, 1, FAR + 1] and [s.base_offset for s in log.segments] == [0, FAR + 1]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["zeros", "magic", "size"])
def test_a_bad_header_after_a_batch_does_not_make_the_batch_wrong(tmp_path, clean, damage, caplog):
    bad = bytearray(batch(base_offset=FAR + 6))
    if damage == "magic":
        bad[16] = 9
    elif damage == "size":
        bad[8:12] = (1).to_bytes(4, "big")
    else:
        bad = bytes(500)
    for name in ("overflow", "flip"):
        (tmp_path / name).mkdir()
    overflowed = directory_with(tmp_path / "overflow", {0: [batch(2), batch(base_offset=FAR + 5), bad]})
    assert offsets(overflowed.open(clean=clean)) == [0, 1, FAR + 5] and logs_in(overflowed) == [0, FAR + 5]
    assert f"{len(bad)} bytes at position 206 are no batches" in caplog.text
    flipped = [batch(2), batch(base_offset=2 | 1 << 40), batch(base_offset=3), bad]
    damaged = directory_with(tmp_path / "flip", {0: flipped})
    assert offsets(damaged.open(clean=False)) == [0, 1] and logs_in(damaged) == [0]


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_base_offset_above_the_next_segment_is_no_overflow(tmp_path, clean, caplog):
    second_segment = FAR + 100
    flipped = [batch(2), batch(base_offset=2 | 1 << 40)]
    logs = directory_with(tmp_path, {0: flipped, second_segment: [batch(2, base_offset=second_segment)]})
    # After a clean stop the second segment was flushed, so it is kept.
    kept = [second_segment, second_segment + 1] if clean else []
    assert offsets(logs.open(clean=clean)) == [0, 1, *kept] and marked(logs) == []
    assert f"cut {len(flipped[1])} bytes off segment 0 from offset 2 on" in caplog.text
    assert (f"removing segment {second_segment} after the cut" in caplog.text) is not clean


def test_damage_in_a_part_of_a_split_is_cut_off_there_and_logged(tmp_path, caplog):
    lower = batch(base_offset=FAR - 3)
    logs = directory_with(
        tmp_path, {0: [batch(2), batch(base_offset=FAR + 1), batch(base_offset=FAR + 2), lower, lower]}
    )
    assert offsets(logs.open(clean=False)) == [0, 1, FAR + 1, FAR + 2]
    assert logs_in(logs) == [0, FAR + 1] and marked(logs) == []
    assert f"cut {2 * len(lower)} bytes off segment {FAR + 1}" in caplog.text


def test_a_split_that_a_crash_interrupts_anywhere_begins_anew_or_is_completed(tmp_path):
    """From each call that changes something on the disk on, none does any more."""
    step = 0
    while True:
        home = tmp_path / str(step)
        home.mkdir()
        logs = directory_with(home, {0: THREE})
        file.fail_next(file.CHANGES, errno.EIO, skip=step, times=-1)
        try:
            logs.open(clean=False)
            crashed = False
        except OSError:
            crashed = True
        file.clear_faults()
        again = logs.open(clean=False)
        assert offsets(again) == [0, FAR, FAR + 9, 2 * FAR, 2 * FAR + 1], f"step {step}"
        assert [s.base_offset for s in again.segments] == [0, FAR, 2 * FAR], f"step {step}"
        assert marked(logs) == []
        shutil.rmtree(home)
        if not crashed:
            assert step > 8
            return
        step += 1
