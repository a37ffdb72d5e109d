"""Every request in every state of a transactional id, as a table."""

from dataclasses import replace

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction import transaction_state as rules
from kcore.coordinator.transaction.transaction_state import MAX_EPOCH, Producer, TransactionMetadata, TransactionState

S = TransactionState
NOW = 1_000_000
PRODUCER = Producer(7, 3)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
STORED = (S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
AT_REST = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


def metadata(state=S.EMPTY, producer_id=7, producer_epoch=3, **changes):
    has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    values = {
        "timeout_ms": 60_000,
        "partitions": frozenset({A} if has_partitions else ()),
        "start_timestamp": NOW - 500 if state is not S.EMPTY else -1,
        "last_update_timestamp": NOW - 400,
    }
    return TransactionMetadata("id", producer_id, producer_epoch, state=state, **{**values, **changes})


def outcome(rule, *args):
    """The next state, or the class of the error."""
    try:
        return rule(*args)
    except errors.ApiError as error:
        return type(error)


def init(current, expected=None, *, pending=False, timeout_ms=30_000):
    return outcome(rules.init_producer_id, current, pending, expected, timeout_ms, lambda: 99, NOW)


def end(current, is_commit, producer=PRODUCER, *, pending=False):
    return outcome(rules.end, current, pending, producer, is_commit, NOW)


def add(current, partitions, producer=PRODUCER, *, pending=False):
    return outcome(rules.add_partitions, current, pending, producer, frozenset(partitions), NOW)


# -- states ------------------------------------------------------------------------------------------------------------


def test_TXN_53_states_have_kafkas_numbers_and_names():
    assert [(int(state), state.shown) for state in S] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


def test_TXN_54_a_state_is_entered_only_from_those_that_may_precede_it():
    allowed = {(before, after) for after, previous in rules.VALID_PREVIOUS_STATES.items() for before in previous}
    rest = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}
    assert allowed == (
        {(before, S.EMPTY) for before in rest}
        | {(before, S.ONGOING) for before in rest | {S.ONGOING}}
        | {(before, S.DEAD) for before in rest}
        | {(S.ONGOING, S.PREPARE_COMMIT), (S.ONGOING, S.PREPARE_ABORT), (S.PREPARE_EPOCH_FENCE, S.PREPARE_ABORT)}
        | {(before, S.PREPARE_ABORT) for before in rest}
        | {(S.PREPARE_COMMIT, S.COMPLETE_COMMIT), (S.PREPARE_ABORT, S.COMPLETE_ABORT)}
        | {(S.ONGOING, S.PREPARE_EPOCH_FENCE)}
    )
    for before in S:
        for after in S:
            if (before, after) in allowed:
                assert metadata(before).entering(after, NOW).state is after
            else:
                with pytest.raises(AssertionError, match=before.name):
                    metadata(before).entering(after, NOW)


# -- InitProducerId ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_TXN_10_a_timeout_outside_the_limits_is_refused(timeout_ms):
    with pytest.raises(errors.InvalidTransactionTimeout, match="900000"):
        rules.check_timeout("x", timeout_ms, 900_000)


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_TXN_10_a_timeout_within_the_limits_is_accepted(timeout_ms):
    rules.check_timeout("x", timeout_ms, 900_000)


@pytest.mark.parametrize("expected", [None, Producer(55, 12)])
def test_TXN_11_a_new_id_begins_with_epoch_0(expected):
    begun = init(TransactionMetadata("id", 42), expected)
    assert begun == TransactionMetadata("id", 42, 0, 30_000, S.EMPTY, frozenset(), -1, NOW)


@pytest.mark.parametrize("state", AT_REST)
def test_TXN_12_a_producer_that_says_nothing_gets_the_next_epoch(state):
    begun = init(metadata(state, last_producer_epoch=2))
    assert begun == metadata(S.EMPTY, producer_epoch=4, timeout_ms=30_000, last_update_timestamp=NOW)


@pytest.mark.parametrize("state", AT_REST)
def test_TXN_13_a_producer_that_names_its_present_epoch_gets_the_next_one(state):
    begun = init(metadata(state), Producer(7, 3))
    assert (begun.producer_id, begun.producer_epoch, begun.last_producer_epoch) == (7, 4, 3)


@pytest.mark.parametrize("state", AT_REST)
def test_TXN_13_a_repeated_request_gets_the_same_epoch_again(state):
    begun = init(metadata(state, last_producer_epoch=2), Producer(7, 2))
    assert (begun.producer_id, begun.producer_epoch, begun.last_producer_epoch) == (7, 3, 2)


@pytest.mark.parametrize("state", STORED)
def test_TXN_14_another_producer_id_is_fenced_in_every_state(state):
    assert init(metadata(state), Producer(8, 3)) is errors.ProducerFenced


@pytest.mark.parametrize("state", AT_REST)
@pytest.mark.parametrize("epoch", [0, 1, 4, MAX_EPOCH])
def test_TXN_14_another_epoch_is_fenced(state, epoch):
    assert init(metadata(state, last_producer_epoch=2), Producer(7, epoch)) is errors.ProducerFenced


@pytest.mark.parametrize("expected", [None, Producer(7, MAX_EPOCH - 1)])
def test_TXN_15_an_exhausted_epoch_brings_a_new_producer_id(expected):
    begun = init(metadata(producer_epoch=MAX_EPOCH - 1), expected)
    last = -1 if expected is None else MAX_EPOCH - 1
    assert (begun.producer_id, begun.producer_epoch) == (99, 0)
    assert (begun.previous_producer_id, begun.last_producer_epoch) == (7, last)


def test_TXN_15_after_a_fence_took_the_last_epoch_a_new_producer_gets_a_new_id():
    begun = init(metadata(S.COMPLETE_ABORT, producer_epoch=MAX_EPOCH))
    assert (begun.producer_id, begun.producer_epoch) == (99, 0)


def test_TXN_15_a_repeated_request_after_a_change_of_the_producer_id_gets_the_new_one_again():
    begun = init(metadata(producer_epoch=MAX_EPOCH - 1), Producer(7, MAX_EPOCH - 1))
    again = init(begun, Producer(7, MAX_EPOCH - 1))
    assert (again.producer_id, again.producer_epoch) == (99, 0)
    assert init(begun, Producer(7, MAX_EPOCH - 2)) is errors.ProducerFenced


@pytest.mark.parametrize("expected", [None, Producer(7, 3)])
def test_TXN_16_an_open_transaction_is_fenced_and_aborted_first(expected):
    fenced = init(metadata(S.ONGOING), expected)
    assert (fenced.state, fenced.producer_epoch, fenced.partitions) == (S.PREPARE_EPOCH_FENCE, 4, {A})
    aborted = rules.abort_fenced(fenced, NOW)
    assert (aborted.state, aborted.producer_epoch, aborted.partitions) == (S.PREPARE_ABORT, 4, {A})
    assert not aborted.has_failed_epoch_fence


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("expected", [None, Producer(7, 3)])
def test_TXN_17_a_transaction_that_is_ending_has_to_end_first(state, expected):
    assert init(metadata(state), expected) is errors.ConcurrentTransactions


@pytest.mark.parametrize("state", STORED)
def test_TXN_17_nothing_begins_while_a_change_is_being_written(state):
    assert init(metadata(state), pending=True) is errors.ConcurrentTransactions


def test_TXN_18_a_fence_that_could_not_be_written_is_not_raised_again():
    failed = rules.fence_in_force(init(metadata(S.ONGOING)))
    assert (failed.state, failed.producer_epoch) == (S.ONGOING, 4)
    assert add(failed, [B]) is errors.ProducerFenced
    fenced = init(failed)
    assert (fenced.state, fenced.producer_epoch) == (S.PREPARE_EPOCH_FENCE, 4)
    completed = rules.complete(rules.abort_fenced(fenced, NOW), NOW)
    assert init(completed).producer_epoch == 5


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", AT_REST)
def test_TXN_42_the_first_partition_begins_a_transaction(state):
    begun = add(metadata(state), [B])
    assert begun == metadata(S.ONGOING, partitions={B}, start_timestamp=NOW, last_update_timestamp=NOW)


def test_TXN_42_further_partitions_do_not_change_the_start():
    grown = add(metadata(S.ONGOING), [B])
    assert grown == metadata(S.ONGOING, partitions={A, B}, last_update_timestamp=NOW)


def test_TXN_41_partitions_that_are_in_need_no_record():
    current = metadata(S.ONGOING)
    assert add(current, [A]) is current


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_TXN_41_nothing_is_added_to_a_transaction_that_is_ending(state):
    assert add(metadata(state), [A]) is errors.ConcurrentTransactions


@pytest.mark.parametrize("state", STORED)
@pytest.mark.parametrize(
    "rule", [lambda *a, **k: add(a[0], [A], *a[1:], **k), lambda *a, **k: end(a[0], True, *a[1:], **k)]
)
def test_TXN_41_TXN_56_the_producer_has_to_be_the_present_one_in_every_state(state, rule):
    assert rule(metadata(state), Producer(8, 3)) is errors.InvalidProducerIdMapping
    assert rule(metadata(state), Producer(7, 2)) is errors.ProducerFenced
    assert rule(metadata(state), Producer(7, 4)) is errors.ProducerFenced
    # A change that is being written comes before the producer.
    assert rule(metadata(state), Producer(8, 3), pending=True) is errors.ConcurrentTransactions


# -- EndTxn ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.EMPTY, errors.InvalidTxnState, errors.InvalidTxnState),
        (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT),
        (S.PREPARE_COMMIT, errors.ConcurrentTransactions, errors.InvalidTxnState),
        (S.PREPARE_ABORT, errors.InvalidTxnState, errors.ConcurrentTransactions),
        (S.COMPLETE_COMMIT, S.COMPLETE_COMMIT, errors.InvalidTxnState),
        (S.COMPLETE_ABORT, errors.InvalidTxnState, S.COMPLETE_ABORT),
    ],
)
def test_TXN_55_the_end_of_a_transaction_in_every_state(state, commit, abort):
    current = metadata(state)
    for is_commit, wanted in ((True, commit), (False, abort)):
        result = end(current, is_commit)
        if wanted is state:
            assert result is current
        elif isinstance(wanted, TransactionState):
            assert result == replace(current, state=wanted, last_update_timestamp=NOW)
        else:
            assert result is wanted


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_67_when_all_markers_are_written_no_partitions_are_left(is_commit):
    completed = rules.complete(end(metadata(S.ONGOING), is_commit), NOW + 5)
    wanted = S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT
    assert completed == metadata(wanted, last_update_timestamp=NOW + 5)
    assert completed.is_commit is is_commit


# -- EndTxn of transaction version 2 -----------------------------------------------------------------------------------

BEFORE, LATER = Producer(7, 2), Producer(7, 4)
LAST = MAX_EPOCH - 1
Concurrent, Fenced = errors.ConcurrentTransactions, errors.ProducerFenced
Invalid, OtherId = errors.InvalidTxnState, errors.InvalidProducerIdMapping


def metadata_2(state=S.EMPTY, **changes):
    """Of a producer of transaction version 2."""
    return metadata(state, **{"client_transaction_version": 2, **changes})


def end_2(current, is_commit, producer=PRODUCER, *, pending=False, new_producer_id=lambda: 99):
    return outcome(rules.end_raising_epoch, current, pending, producer, is_commit, new_producer_id, NOW)


@pytest.mark.parametrize("begun_in_version", [0, 2])
@pytest.mark.parametrize(("is_commit", "wanted"), [(True, S.PREPARE_COMMIT), (False, S.PREPARE_ABORT)])
def test_TXN_37_TXN_57_the_end_of_an_open_transaction_raises_the_epoch(is_commit, wanted, begun_in_version):
    current = metadata(S.ONGOING, client_transaction_version=begun_in_version)
    prepared = end_2(current, is_commit)
    assert prepared == metadata_2(wanted, producer_epoch=4, last_producer_epoch=3, last_update_timestamp=NOW)
    assert prepared.next_producer == LATER
    completed = rules.complete(prepared, NOW)
    assert (completed.next_producer, completed.last_producer_epoch) == (LATER, 3)
    # The next transaction, and its end.
    begun = rules.add_partitions(completed, False, LATER, {B}, NOW, 2)
    assert (begun.partitions, begun.producer_epoch, begun.client_transaction_version) == ({B}, 4, 2)
    assert end_2(begun, is_commit, LATER).producer_epoch == 5


@pytest.mark.parametrize("state", AT_REST)
def test_TXN_57_an_abort_without_a_transaction_raises_the_epoch_and_a_commit_is_invalid(state):
    aborting = end_2(metadata_2(state), False)
    assert aborting == metadata_2(
        S.PREPARE_ABORT,
        producer_epoch=4,
        last_producer_epoch=3,
        partitions=frozenset(),
        start_timestamp=NOW,
        last_update_timestamp=NOW,
    )
    assert rules.complete(aborting, NOW).state is S.COMPLETE_ABORT
    assert end_2(metadata_2(state), True) is Invalid


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.EMPTY, Fenced, Fenced),
        (S.ONGOING, Fenced, Fenced),
        (S.PREPARE_COMMIT, Concurrent, Invalid),
        (S.PREPARE_ABORT, Invalid, Concurrent),
        (S.COMPLETE_COMMIT, "the same", Invalid),
        (S.COMPLETE_ABORT, Invalid, "the same"),
    ],
)
def test_TXN_58_a_repeated_end_is_known_by_the_epoch_before_in_every_state(state, commit, abort):
    current = metadata_2(state, last_producer_epoch=2)
    for is_commit, wanted in ((True, commit), (False, abort)):
        # Also where the record, which has no last epoch, was loaded.
        for at_hand in (current, replace(current, last_producer_epoch=-1)):
            result = end_2(at_hand, is_commit, BEFORE)
            assert result is (at_hand if wanted == "the same" else wanted)


@pytest.mark.parametrize("state", [S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_TXN_58_the_epoch_before_an_end_that_raised_none_is_a_fenced_one(state):
    """It is that of a producer before the last InitProducerId, and must not learn the present epoch."""
    for is_commit in (True, False):
        assert end_2(metadata(state), is_commit, BEFORE) is Fenced


@pytest.mark.parametrize("state", STORED)
@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_59_any_other_epoch_or_id_is_refused_in_every_state(state, is_commit):
    current = metadata_2(state)
    for epoch in (-1, 0, 1, 4, 5, LAST, MAX_EPOCH):
        assert end_2(current, is_commit, Producer(7, epoch)) is Fenced, epoch
    for epoch in (2, 3, 4):
        assert end_2(current, is_commit, Producer(8, epoch)) is OtherId
    assert end_2(current, is_commit, pending=True) is Concurrent
    assert end_2(current, is_commit, Producer(8, 3), pending=True) is Concurrent


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_59_the_next_epoch_may_end_nothing_while_the_last_transaction_is_ending(state, is_commit):
    assert end_2(metadata_2(state), is_commit) is Fenced


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH])
@pytest.mark.parametrize("state", AT_REST)
def test_TXN_59_an_epoch_that_no_producer_was_given_ends_nothing(state, epoch):
    current = metadata_2(state, producer_epoch=epoch)
    assert end_2(current, False, Producer(7, epoch)) is Fenced


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_60_the_last_epoch_brings_a_new_producer_id_which_counts_after_the_end(is_commit):
    prepared = end_2(metadata_2(S.ONGOING, producer_epoch=LAST), is_commit, Producer(7, LAST))
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (7, MAX_EPOCH, 99)
    assert prepared.next_producer == Producer(99, 0)
    # It is used while the markers are written: it has to wait, and the old one is known by its repeated request.
    assert add(prepared, [B], Producer(99, 0)) is Concurrent
    assert init(prepared, Producer(99, 0)) is Concurrent
    assert end_2(prepared, is_commit, Producer(7, LAST)) is Concurrent
    assert end_2(prepared, not is_commit, Producer(7, LAST)) is Invalid
    assert add(prepared, [B], Producer(98, 0)) is OtherId
    completed = rules.complete(prepared, NOW)
    assert (completed.producer_id, completed.producer_epoch, completed.next_producer_id) == (99, 0, -1)
    assert (completed.previous_producer_id, completed.last_producer_epoch) == (7, LAST)
    assert end_2(completed, is_commit, Producer(7, LAST)) is completed
    assert end_2(completed, not is_commit, Producer(7, LAST)) is Invalid
    assert end_2(completed, is_commit, Producer(7, LAST - 1)) is OtherId
    begun = add(completed, [B], Producer(99, 0))
    assert (begun.state, begun.producer_id) == (S.ONGOING, 99)
    assert end_2(begun, is_commit, Producer(7, LAST)) is OtherId


def test_TXN_60_without_a_producer_id_the_transaction_stays_open():
    def no_id():
        raise errors.CoordinatorLoadInProgress("no block of ids")

    current = metadata_2(S.ONGOING, producer_epoch=LAST)
    assert end_2(current, True, Producer(7, LAST), new_producer_id=no_id) is errors.CoordinatorLoadInProgress
    # None is taken where none is needed.
    assert end_2(metadata_2(S.ONGOING), True, new_producer_id=no_id).state is S.PREPARE_COMMIT


@pytest.mark.parametrize(("epoch", "after"), [(3, 5), (LAST - 1, MAX_EPOCH), (LAST, MAX_EPOCH)])
def test_TXN_69_the_abort_after_a_fence_raises_the_epoch_too_so_that_the_fenced_one_repeats_nothing(epoch, after):
    fenced = rules.fence(metadata_2(S.ONGOING, producer_epoch=epoch))
    assert fenced.producer_epoch == epoch + 1
    aborting = rules.abort_fenced(fenced, NOW)
    aborted = rules.complete(aborting, NOW)
    assert aborting.producer_epoch == aborted.producer_epoch == after
    for current in (aborting, aborted):
        for is_commit in (True, False):
            assert end_2(current, is_commit, Producer(7, epoch)) is Fenced
    assert init(aborted, Producer(7, epoch)) is Fenced
    begun = init(aborted)
    assert (begun.producer_id, begun.producer_epoch) == ((7, after + 1) if after < LAST else (99, 0))


def test_TXN_23_a_late_end_ends_the_next_transaction_with_version_0_and_is_refused_with_version_2():
    """What Jepsen found in 2024: the second of two EndTxn for one transaction arrives in the next one."""
    completed = rules.complete(end(metadata(S.ONGOING), True), NOW)
    next_one = add(completed, [B])
    assert end(next_one, True).state is S.PREPARE_COMMIT
    completed = rules.complete(end_2(metadata_2(S.ONGOING), True), NOW)
    next_one = rules.add_partitions(completed, False, LATER, {B}, NOW, 2)
    assert end_2(next_one, True) is end_2(next_one, False) is Fenced
    assert end(next_one, True) is Fenced  # in whatever version it comes


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STORED)
def test_TXN_69_only_an_open_transaction_times_out_after_its_timeout(state):
    current = metadata(state, start_timestamp=NOW, timeout_ms=100)
    assert not rules.is_timed_out(current, False, NOW + 100)
    assert rules.is_timed_out(current, False, NOW + 101) is (state is S.ONGOING)
    assert not rules.is_timed_out(current, True, NOW + 101)


def test_TXN_20_a_transaction_of_a_two_phase_commit_never_times_out():
    current = metadata(S.ONGOING, start_timestamp=NOW, timeout_ms=2147483647)
    assert not rules.is_timed_out(current, False, NOW + 2**31)


@pytest.mark.parametrize("state", STORED)
def test_TXN_70_only_an_id_without_a_transaction_expires(state):
    current = metadata(state, last_update_timestamp=NOW)
    assert not rules.is_expired(current, False, NOW + 999, 1000)
    assert rules.is_expired(current, False, NOW + 1000, 1000) is (state in AT_REST)
    assert not rules.is_expired(current, True, NOW + 1000, 1000)
