import errno
import random

import pytest

from kcore.common import file
from kcore.log.checkpoints import LeaderEpochCheckpointFile
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "leader-epoch-checkpoint")


def cache_of(path, *entries):
    cache = LeaderEpochFileCache("orders-0", LeaderEpochCheckpointFile(path), [])
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    return cache


def test_EPOCH_01_entries_ascend_and_are_in_the_file_at_once(path):
    cache = cache_of(path, (1, 0), (3, 10), (7, 25))
    assert cache.entries == ((1, 0), (3, 10), (7, 25))
    assert LeaderEpochCheckpointFile(path).read() == [(1, 0), (3, 10), (7, 25)]
    assert (cache.latest_epoch, cache.latest_entry) == (7, (7, 25))


def test_EPOCH_02_the_latest_epoch_again_is_nothing_new(path):
    cache = cache_of(path, (1, 0))
    assert not cache.assign(1, 5)
    assert cache.assign(2, 5)
    assert cache.entries == ((1, 0), (2, 5))


@pytest.mark.parametrize(
    ("added", "left"),
    [
        ((3, 12), ((1, 0), (3, 12))),
        ((2, 30), ((1, 0), (2, 30))),
        ((9, 10), ((1, 0), (9, 10))),
        ((9, 5), ((1, 0), (9, 5))),
        ((9, 0), ((9, 0),)),
        ((0, 99), ((0, 99),)),
        ((7, 20), ((1, 0), (3, 10), (7, 20))),
    ],
)
def test_EPOCH_04_a_smaller_epoch_or_offset_removes_what_contradicts_it(path, added, left):
    cache = cache_of(path, (1, 0), (3, 10), (7, 25))
    cache.assign(*added)
    assert cache.entries == left


@pytest.mark.parametrize(
    ("requested", "answer"),
    [(-1, (-1, -1)), (7, (7, 40)), (8, (-1, -1)), (0, (0, 5)), (1, (1, 10)), (2, (1, 10)), (3, (3, 25)), (6, (3, 25))],
)
def test_EPOCH_05_end_offset_for(path, requested, answer):
    assert cache_of(path, (1, 5), (3, 10), (7, 25)).end_offset_for(requested, 40) == answer


def test_EPOCH_05_an_empty_cache_returns_no_epoch(path):
    assert cache_of(path).end_offset_for(0, 40) == (-1, -1)


def test_the_epoch_of_an_offset_is_that_of_the_last_start_at_or_below_it(path):
    cache = cache_of(path, (1, 5), (3, 10))
    assert [cache.epoch_for_offset(o) for o in (4, 5, 9, 10, 99)] == [-1, 1, 1, 3, 3]


def test_truncation_from_either_end(path):
    cache = cache_of(path, (1, 0), (3, 10), (7, 25))
    cache.truncate_from_end(25)
    assert cache.entries == ((1, 0), (3, 10)) and cache.latest_epoch == 3
    cache.truncate_from_start(12)
    assert cache.entries == ((3, 12),)
    cache.truncate_from_start(5)
    assert cache.entries == ((3, 12),)
    assert LeaderEpochCheckpointFile(path).read() == [(1, 0), (3, 10)]
    cache.clear_and_flush()
    assert LeaderEpochCheckpointFile(path).read() == []


def test_the_file_keeps_epochs_below_the_log_start_until_that_log_start_is_on_the_disk(path):
    cache = cache_of(path, (1, 0), (3, 10), (7, 25))
    cache.truncate_from_start(12)
    cache.truncate_from_start(14)
    cache.assign(8, 30)
    assert cache.entries == ((3, 14), (7, 25), (8, 30))
    assert LeaderEpochCheckpointFile(path).read() == [(1, 0), (3, 10), (7, 25), (8, 30)]
    cache.forget_below(12)  # an older log start than the last one: a crash would bring back 12 and 13
    cache.assign(9, 40)
    assert LeaderEpochCheckpointFile(path).read() == [(1, 0), (3, 10), (7, 25), (8, 30), (9, 40)]
    cache.forget_below(14)
    cache.flush()
    assert LeaderEpochCheckpointFile(path).read() == [(3, 14), (7, 25), (8, 30), (9, 40)]
    assert cache.entries == ((3, 14), (7, 25), (8, 30), (9, 40))


@pytest.mark.parametrize("seed", range(50))
def test_what_the_file_keeps_changes_no_answer(path, seed):
    """The same changes to a cache that never had the epochs below the log start."""
    rng = random.Random(seed)
    cache, plain = cache_of(path), []
    start = end = epoch = 0
    for _ in range(40):
        kind = rng.choice(["lead", "append", "append", "delete", "cut", "forget", "flush"])
        if kind == "lead":
            epoch += rng.randint(1, 3)
            cache.assign(epoch, end)
            plain = [e for e in plain if e[1] < end] + [(epoch, end)]
        elif kind == "append":
            end += rng.randint(1, 5)
        elif kind == "delete":
            start = rng.randint(start, end)
            cache.truncate_from_start(start)
            below = [e for e in plain if e[1] <= start]
            plain = ([(below[-1][0], start)] if below else []) + [e for e in plain if e[1] > start]
        elif kind == "cut":
            end = rng.randint(start, end)
            cache.truncate_from_end(end)
            plain = [e for e in plain if e[1] < end]
        elif kind == "forget":
            cache.forget_below(rng.randint(0, start))
        else:
            cache.flush()
        assert list(cache.entries) == plain, f"seed={seed}"
        assert cache.latest_epoch == (plain[-1][0] if plain else -1)
        again = LeaderEpochFileCache("again", None, LeaderEpochCheckpointFile(path).read())
        again.truncate_from_start(start)
        if end > start and kind not in ("forget",):
            assert list(again.entries) == plain, f"seed={seed}: after a restart"


def test_negative_values_are_an_error(path):
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="leader epoch"):
            cache_of(path).assign(epoch, offset)


def test_a_write_that_fails_leaves_the_cache_as_it_was(path):
    cache = cache_of(path, (1, 0))
    file.fail_next("rename", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        cache.assign(2, 10)
    assert cache.entries == ((1, 0),) and cache.latest_epoch == 1
