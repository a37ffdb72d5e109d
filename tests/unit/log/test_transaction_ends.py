"""Whether the transaction of a record is committed, by what a log knows of its markers."""

from kcore.log.log_offset_metadata import AppendOrigin
from tests.unit.log.logs import Logs, idempotent, marker


def begin(log, producer_id):
    log.append_as_leader(idempotent(producer_id, 0, is_transactional=True))


def end(log, producer_id, *, commit):
    log.append_as_leader(marker(producer_id, commit=commit), origin=AppendOrigin.COORDINATOR)


def test_each_producers_transaction_ends_by_its_own_marker(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    for producer_id in (5, 9, 7):  # at offsets 0, 1, 2
        begin(log, producer_id)
    end(log, 7, commit=True)
    end(log, 9, commit=False)
    ends = [log.is_transaction_committed(producer_id, offset) for offset, producer_id in enumerate((5, 9, 7))]
    assert ends == [None, False, True], "the one that is open, or aborted, says nothing of the others"


def test_a_transaction_that_has_ended_is_committed_before_its_marker_is_replicated(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    begin(log, 7)
    end(log, 7, commit=True)
    assert log.last_stable_offset == 0
    assert log.is_transaction_committed(7, 0) is True


def test_an_open_transaction_says_nothing_of_the_producers_last_one(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    begin(log, 7)
    end(log, 7, commit=True)
    log.append_as_leader(idempotent(7, 1, is_transactional=True))
    assert [log.is_transaction_committed(7, offset) for offset in (0, 2)] == [True, None]
