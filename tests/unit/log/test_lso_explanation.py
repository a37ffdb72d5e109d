"""Which transactions hold back the last stable offset of a log."""

import pytest

from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.lso_explanation import explain_lso
from kcore.log.open_log import open_log
from tests.unit.log.logs import Logs, batch, idempotent, marker

FIRST, SECOND = 1_700_000_000_000, 1_700_000_005_000


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0")


def held(explained):
    """Producer, first offset and marker of each transaction."""
    return [(txn.producer_id, txn.first_offset, txn.marker_offset) for txn in explained.transactions]


def test_the_open_transaction_with_the_lowest_offset_holds_it(logs):
    log = logs.open(sole_replica=False)
    log.append_as_leader(batch(3))
    log.append_as_leader(idempotent(9, 0, 2, epoch=4, is_transactional=True, timestamp=FIRST))
    log.append_as_leader(idempotent(7, 0, is_transactional=True, timestamp=SECOND))
    log.append_as_leader(idempotent(9, 2, 2, epoch=4, is_transactional=True, timestamp=SECOND))
    log.update_high_watermark(8)
    explained = explain_lso(log)
    assert (explained.last_stable_offset, explained.high_watermark, explained.log_end_offset) == (3, 8, 8)
    first, other = explained.transactions
    assert (first.producer_id, first.producer_epoch, first.first_offset, first.last_offset) == (9, 4, 3, 7)
    assert (first.first_timestamp, first.last_timestamp, first.marker_offset) == (FIRST, SECOND, None)
    assert (other.producer_id, other.first_offset) == (7, 5)
    lines = str(explained).splitlines()
    assert lines[0] == "orders-0: last stable offset 3, high watermark 8, log [0, 8)"
    assert lines[1] == (
        "  held at offset 3 since 2023-11-14T22:13:20.000Z: producer 9, epoch 4; it is open; its last record is "
        "at offset 7, 2023-11-14T22:13:25.000Z"
    )
    assert lines[2].startswith("  then at offset 5 since ")
    assert any("kcore txns abort orders:0 --start-offset 3 --apply" in line for line in lines)


def test_a_transaction_that_has_ended_holds_it_until_its_marker_is_below_the_high_watermark(logs):
    log = logs.open(sole_replica=False)
    log.append_as_leader(idempotent(9, 0, is_transactional=True))
    log.append_as_leader(marker(9, commit=True), origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(1)
    explained = explain_lso(log)
    assert held(explained) == [(9, 0, 1)]
    assert "it has ended, but its marker at offset 1 is not below the high watermark" in str(explained)
    assert "abort" not in str(explained)
    log.update_high_watermark(2)
    assert held(explain_lso(log)) == []
    assert str(explain_lso(log)).endswith("\n  nothing holds it: it is the log end offset")


def test_below_a_high_watermark_that_does_not_rise_no_transaction_is_to_blame(logs):
    log = logs.open(sole_replica=False)
    log.append_as_leader(batch(3))
    log.append_as_leader(idempotent(9, 0, is_transactional=True))
    log.update_high_watermark(2)
    text = str(explain_lso(log))
    assert "no transaction holds it: it is the high watermark, which kcore explain isr orders 0 explains" in text
    assert "\n  later at offset 3 since " in text


def test_the_files_say_the_same_from_the_snapshot_and_the_batches_after_it(logs):
    log = logs.open(sole_replica=False)
    log.append_as_leader(idempotent(9, 0, is_transactional=True, timestamp=FIRST))
    log.roll()  # with a snapshot
    log.append_as_leader(idempotent(7, 0, is_transactional=True, timestamp=SECOND))
    log.append_as_leader(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(idempotent(5, 0, is_transactional=True, timestamp=SECOND))
    log.flush()
    with open_log(log.directory) as read:
        explained = explain_lso(read)
    assert held(explained) == [(9, 0, None), (5, 3, None)]
    assert explained.transactions[0].first_timestamp == FIRST
    assert explained.last_stable_offset == 0
