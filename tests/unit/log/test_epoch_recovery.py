"""The leader epochs that an unclean start finds, against Kafka's rule (tests/reference/leader_epochs.py)."""

import errno
import random
from types import SimpleNamespace

import pytest

from kcore.common import file
from kcore.common.time import MockTime
from kcore.log.checkpoints import EpochEntry
from kcore.log.epoch_recovery import BatchEpochs, corrected_epochs
from kcore.log.leader_epoch_file_cache import epoch_at
from kcore.log.log_config import LogConfig
from kcore.log.log_loader import load_log
from tests.reference.epoch_histories import TP, kills
from tests.reference.leader_epochs import epochs_of_kcore
from tests.unit.log.logs import batch, small_segments


@pytest.mark.parametrize("seed", range(24))
def test_EPOCH_02_a_start_after_a_kill_finds_kafkas_epochs(seed, caplog):
    for kill in kills(seed, 5):
        caplog.clear()
        copy_before = kill.copy()
        with load_log(
            str(kill.directory),
            TP,
            LogConfig(),
            time=MockTime(),
            log_start_offset=kill.log_start_offset,
            recovery_point=kill.recovery_point,
        ) as log:
            epochs = list(log.leader_epoch_cache.entries)
            expected = epochs_of_kcore(copy_before, kill.recovery_point, log.log_start_offset, log.log_end_offset)
        assert epochs == expected, kill.description
        assert "leader epochs" not in caplog.text, kill.description  # nothing is wrong with the log


def first_offset_in(batches):
    def first_offset(start, end):
        return next((max(b[0], start) for b in batches if b[1] >= start and b[0] < end), None)

    return first_offset


def corrected(batches, from_file, log_start=0, from_offset=0):
    """batches: (first offset, last offset, epoch); None for an old message."""
    noted = BatchEpochs("t-0", from_offset)
    for first, last, epoch in batches:
        if first >= from_offset:
            noted.note(
                SimpleNamespace(
                    magic=2 if epoch is not None else 1, base_offset=first, last_offset=last, leader_epoch=epoch
                )
            )
    end = max(last for _, last, _ in batches) + 1
    entries = [EpochEntry(*entry) for entry in from_file]
    epochs, contradicted = corrected_epochs(entries, noted, log_start, end, first_offset_in(batches))
    return [tuple(entry) for entry in epochs], contradicted


@pytest.mark.parametrize(
    ("log_start", "from_file"),
    [
        (13, [(5, 13), (7, 20)]),  # 5 has no record, and 3 has none from the log start on
        (12, [(3, 12), (5, 13), (7, 20)]),
        (11, [(3, 11), (4, 14), (5, 16), (7, 20)]),  # two leaders without records, one after the other
        (21, [(7, 21), (9, 25)]),
    ],
)
def test_batches_below_the_log_start_contradict_no_epoch(log_start, from_file):
    batches = [(5, 7, 2), (10, 12, 3), (20, 24, 7), (25, 25, 9)]
    from_file = from_file if from_file[-1][0] == 9 else [*from_file, (9, 25)]
    assert corrected(batches, from_file, log_start) == (from_file, False)


@pytest.mark.parametrize(
    ("from_file", "expected", "contradicted"),
    [
        ([(0, 0)], [(0, 0), (1, 10), (3, 20)], False),  # the file lacks later epochs
        ([(3, 22)], [(0, 0), (1, 10), (3, 20)], False),  # and earlier ones
        ([(0, 0), (2, 10), (3, 20)], [(0, 0), (1, 10), (3, 20)], True),
        ([(0, 0), (3, 10)], [(0, 0), (1, 10), (3, 20)], True),
        ([(0, 0), (1, 5), (3, 20)], [(0, 0), (1, 10), (3, 20)], True),  # 5 to 9 are of epoch 0
        ([(0, 0), (1, 10), (3, 20), (8, 30)], [(0, 0), (1, 10), (3, 20), (8, 30)], False),
        ([(0, 0), (2, 10), (3, 20), (8, 30)], [(0, 0), (1, 10), (3, 20), (8, 30)], True),
    ],
)
def test_epochs_of_another_time_than_the_batches_are_corrected(from_file, expected, contradicted):
    batches = [(0, 4, 0), (5, 9, 0), (10, 19, 1), (20, 29, 3)]
    assert corrected(batches, from_file) == (expected, contradicted)


def test_EPOCH_03_old_messages_end_the_epochs_before_them():
    batches = [(0, 4, 0), (5, 9, None), (10, 12, 2)]
    assert corrected(batches, [(0, 0), (2, 10)]) == ([(2, 10)], True)
    assert corrected(batches, [(2, 10)]) == ([(2, 10)], False)
    assert corrected(batches, [(2, 11)], log_start=11) == ([(2, 11)], False)


@pytest.mark.parametrize("seed", range(300))
def test_after_the_correction_each_batch_has_its_epoch_and_entries_ascend(seed):
    rng = random.Random(seed)
    offset, epoch, batches = 0, 0, []
    for _ in range(rng.randint(1, 12)):
        offset += rng.choice([0, 0, 0, 4])
        epoch += rng.choice([0, 0, 1, 2])
        batches.append((offset, offset + rng.randint(0, 3), epoch))
        offset = batches[-1][1] + 1
    starts = sorted(rng.sample(range(offset + 10), min(rng.randint(1, 6), offset + 10)))
    from_file = list(zip(sorted(rng.sample(range(epoch + 8), min(len(starts), epoch + 8))), starts, strict=False))
    log_start = rng.randint(0, offset - 1)
    epochs, _ = corrected(batches, from_file, log_start)
    assert epochs == sorted(epochs) and sorted(start for _, start in epochs) == [start for _, start in epochs], seed
    assert len(dict(epochs)) == len(epochs), seed
    for first, last, its_epoch in batches:
        for at in range(max(first, log_start), last + 1):
            assert epoch_at([EpochEntry(*entry) for entry in epochs], at) == its_epoch, f"seed {seed}, offset {at}"


def test_a_log_that_starts_anew_after_its_end_has_no_epochs(tmp_path):
    logs = small_segments(tmp_path)
    with logs.open(sole_replica=False) as log:
        for epoch in (3, 28):
            log.append_as_leader(batch(2), leader_epoch=epoch)
    for _ in range(2):
        with logs.open(clean=False, log_start_offset=420, sole_replica=False) as log:
            assert (log.log_start_offset, log.log_end_offset) == (420, 420)
            assert log.leader_epoch_cache.entries == ()


@pytest.mark.parametrize("clean", [True, False])
def test_EPOCH_05_a_log_whose_records_were_all_deleted_still_answers_where_their_last_epoch_ended(tmp_path, clean):
    logs = small_segments(tmp_path)
    with logs.open(sole_replica=False) as log:
        for epoch in (3, 28):
            log.append_as_leader(batch(2), leader_epoch=epoch)
        log.update_high_watermark(4)
        log.maybe_increment_log_start_offset(4)
    with logs.open(clean=clean, log_start_offset=4, sole_replica=False) as log:
        assert (log.log_start_offset, log.log_end_offset) == (4, 4)
        assert log.leader_epoch_cache.end_offset_for(28, log.log_end_offset) == (28, 4)


def test_the_epochs_of_a_log_that_starts_anew_are_cleared_before_its_segments_are_moved(tmp_path):
    logs = small_segments(tmp_path)
    with logs.open(sole_replica=False) as log:
        log.append_as_leader(batch(2), leader_epoch=28)
    file.fail_next("rename", errno.EIO, under=str(logs.directory / "0"))
    with pytest.raises(OSError, match="rename"):
        logs.open(clean=False, log_start_offset=420, sole_replica=False)
    assert (logs.directory / "leader-epoch-checkpoint").read_text() == "0\n0\n"
    file.clear_faults()
    for _ in range(2):
        with logs.open(clean=False, log_start_offset=420, sole_replica=False) as log:
            assert log.leader_epoch_cache.entries == ()


def test_indexes_that_are_rebuilt_after_a_clean_stop_leave_the_epochs_as_they_are(tmp_path):
    """A segment of old messages among those that are read again does not end the epochs after it."""
    logs = small_segments(tmp_path, batches_each=2)
    with logs.open(sole_replica=False) as log:
        for offset in range(6):
            old = {"magic": 1} if offset < 3 else {"leader_epoch": 4}
            log.append_as_follower(bytes(batch(base_offset=offset, **old)))
        assert log.leader_epoch_cache.entries == ((4, 3),)
    (logs.directory / f"{0:020}.index").unlink()
    with logs.open(sole_replica=False) as log:
        assert log.leader_epoch_cache.entries == ((4, 3),)


def test_epochs_below_the_recovery_point_stay_where_a_later_one_is_corrected(tmp_path):
    """Also where a segment below it is read again, because its index is missing."""
    logs = small_segments(tmp_path)
    with logs.open(sole_replica=False) as log:
        for offset, epoch in enumerate((0, 0, 0, 1, 2, 2, 3, 3)):
            log.append_as_follower(bytes(batch(base_offset=offset, leader_epoch=epoch)))
    (logs.directory / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n1 3\n2 4\n5 6\n")
    (logs.directory / f"{0:020}.index").unlink()
    with logs.open(clean=False, recovery_point=6, sole_replica=False) as log:
        assert log.leader_epoch_cache.entries == ((0, 0), (1, 3), (2, 4), (3, 6))
