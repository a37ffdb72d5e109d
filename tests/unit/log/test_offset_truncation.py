import pytest

from kcore.errors import OffsetOutOfRange
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.offset_truncation import diverging_epoch, offset_truncation_state, out_of_range


def ends(log_end_offset, *entries):
    """A log's end_offset_for_epoch."""
    cache = LeaderEpochFileCache("orders-0", None, [])
    for entry in entries:
        cache.assign(*entry)
    return lambda epoch: cache.end_offset_for(epoch, log_end_offset)


#: Epoch 2 at [0, 10), epoch 4 at [10, 20), epoch 5 at [20, 25).
OWN = [(2, 0), (4, 10), (5, 20)]


def state(leader_epoch, leader_end_offset, *, log_end_offset=25, initial_offset=7, entries=OWN):
    return offset_truncation_state(
        leader_epoch,
        leader_end_offset,
        initial_offset=initial_offset,
        log_end_offset=log_end_offset,
        end_offset_for_epoch=ends(log_end_offset, *entries),
    )


@pytest.mark.parametrize("leader_epoch", [-1, 4])
def test_EPOCH_06_without_an_offset_of_the_leader_the_follower_truncates_to_its_high_watermark(leader_epoch):
    assert state(leader_epoch, -1) == (7, True)


@pytest.mark.parametrize(("leader_end_offset", "expected"), [(3, 3), (25, 25), (90, 25)])
def test_EPOCH_07_an_offset_without_an_epoch_bounds_the_followers_log(leader_end_offset, expected):
    assert state(-1, leader_end_offset) == (expected, True)


@pytest.mark.parametrize(
    ("leader_epoch", "leader_end_offset", "expected"),
    [
        (5, 22, 22),  # the leader has less of our latest epoch
        (5, 90, 25),  # it has more: our own log end
        (4, 15, 15),
        (4, 90, 20),  # it went on in an epoch that ended here
        (2, 3, 3),
    ],
)
def test_EPOCH_08_of_an_epoch_that_both_know_the_smaller_end_counts(leader_epoch, leader_end_offset, expected):
    assert state(leader_epoch, leader_end_offset) == (expected, True)


def test_EPOCH_08_the_own_log_end_counts_too():
    # The cache may know of an epoch that starts at the log end and has no record.
    own = [*OWN, (6, 25)]
    assert state(5, 90, entries=own) == (25, True)
    assert state(6, 90, entries=own) == (25, True)


@pytest.mark.parametrize(("leader_epoch", "leader_end_offset", "expected"), [(3, 18, 10), (3, 2, 10)])
def test_EPOCH_09_an_epoch_unknown_to_the_follower_cuts_to_its_smaller_one_and_asks_again(
    leader_epoch, leader_end_offset, expected
):
    assert state(leader_epoch, leader_end_offset) == (expected, False)


def test_EPOCH_09_each_lookup_returns_an_older_epoch_until_both_have_it():
    leader = ends(40, (1, 0), (3, 5), (6, 18), (7, 30))
    own, log_end_offset, requested_epochs = [(1, 0), (2, 8), (4, 12), (5, 20)], 25, []
    while True:
        epoch = own[-1][0]
        requested_epochs.append(epoch)
        offset, completed = state(*leader(epoch), log_end_offset=log_end_offset, entries=own)
        assert offset < log_end_offset  # each question makes progress
        own, log_end_offset = [entry for entry in own if entry[1] < offset], offset
        if completed:
            break
    assert requested_epochs == [5, 2]
    assert (own, log_end_offset) == ([(1, 0)], 5)


def test_EPOCH_10_a_follower_without_that_epoch_or_a_smaller_one_takes_the_leaders_offset():
    assert state(3, 18, entries=[]) == (18, True)
    assert state(3, 90, entries=[]) == (25, True)


def test_EPOCH_10_what_the_follower_has_above_the_leaders_epoch_goes_too():
    """Stricter than the sentence, as Kafka is: our records from 10 on are of epoch 4, not of the leader's epoch 3."""
    assert state(3, 18, entries=[(4, 10), (5, 20)]) == (10, True)


LEADER = ends(30, (2, 0), (4, 12), (7, 20))


@pytest.mark.parametrize(
    ("fetch_offset", "last_fetched_epoch", "expected"),
    [
        (25, 7, None),
        (20, 4, None),
        (12, 2, None),
        (0, -1, None),
        (21, 4, (4, 20)),  # the follower has more of epoch 4 than the leader ever had
        (22, 5, (4, 20)),  # epoch 5 never was a record's
        (1, 0, (0, 0)),  # it has records of an epoch before the leader's first
        (31, 7, (7, 30)),
    ],
)
def test_V22_11_a_leader_answers_the_end_of_the_epoch_of_a_fetch_if_the_logs_diverge(
    fetch_offset, last_fetched_epoch, expected
):
    assert diverging_epoch(fetch_offset, last_fetched_epoch, LEADER) == expected


@pytest.mark.parametrize(("leader", "epoch"), [(LEADER, 8), (ends(30), 0)])
def test_V22_11_an_epoch_that_the_leader_cannot_place_is_out_of_range(leader, epoch):
    with pytest.raises(OffsetOutOfRange, match=f"epoch {epoch}"):
        diverging_epoch(5, epoch, leader)


def test_V22_07_out_of_range_is_answered_by_the_ends_of_the_leaders_log():
    assert out_of_range(25, 5, 18) == (18, True, False)
    assert out_of_range(25, 40, 60) == (40, False, True)
    assert out_of_range(25, 5, 60) == (25, False, False)
    assert out_of_range(25, 25, 25) == (25, False, False)
    assert out_of_range(25, 5, 18, 18) == (18, True, False)
    assert out_of_range(25, 5, 18, 19) == (5, False, True)
