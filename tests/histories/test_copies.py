"""The logs of a copy, judged by the checker: exactly once, in order, of committed records."""

from kcore.record.control_record import ControlRecordType, EndTransactionMarker
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.histories.checker import Anomaly, Kind, Operation, Poll, Send, check
from tests.histories.copies import copies, transactions

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


def log(*entries):
    """(producer id, value...) is a batch, (producer id, COMMIT or ABORT) a marker; offsets from 0 on."""
    offset = 0
    for producer_id, *rest in entries:
        is_marker = isinstance(rest[0], ControlRecordType)
        builder = RecordBatchBuilder(
            base_offset=offset, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=is_marker
        )
        for value in rest:
            if is_marker:
                marker = EndTransactionMarker(value, 0)
                builder.append(marker.value(), marker.key())
            else:
                builder.append(value)
        yield from MemoryRecords(builder.build()).batches
        offset += len(rest)


def test_transactions_are_in_the_order_of_their_first_records_with_the_end_that_their_marker_says():
    entries = [(1, b"a"), (2, b"b"), (2, ABORT), (1, b"c"), (3, b"d"), (1, COMMIT), (1, b"e"), (4, COMMIT)]
    assert transactions(log(*entries)) == [
        (Kind.OK, [(0, b"a"), (3, b"c")]),
        (Kind.FAIL, [(1, b"b")]),
        (Kind.INFO, [(4, b"d")]),
        (Kind.INFO, [(6, b"e")]),
    ]


SOURCE = [(1, b"a", b"b"), (1, COMMIT), (1, b"x"), (1, ABORT), (1, b"c"), (1, COMMIT)]


def found(*target):
    source = transactions(log(*SOURCE))
    written = [
        Operation(number, kind, [Send("s-0", value, offset) for offset, value in records], number - 99, number - 99)
        for number, (kind, records) in enumerate(source)
    ]
    return {finding.anomaly for finding in check([*written, *copies("s-0", source, "t-0", transactions(log(*target)))])}


def test_a_copy_is_an_operation_that_polls_and_sends():
    target = transactions(log((7, b"b", b"a"), (7, ABORT), (8, b"of another source"), (8, COMMIT)))
    (operation,) = copies("s-0", transactions(log(*SOURCE)), "t-0", target)
    assert operation.kind is Kind.FAIL
    assert operation.actions == [Poll({"s-0": [(1, b"b"), (0, b"a")]}), Send("t-0", b"b", 0), Send("t-0", b"a", 1)]


def test_what_a_copy_may_and_may_not_do():
    rest = {Anomaly.UNSEEN}  # nobody reads the target
    whole = [(7, b"a"), (7, COMMIT), (8, b"b", b"c"), (8, COMMIT)]
    assert found(*whole) == rest
    assert found((7, b"a", b"b"), (7, ABORT), *whole) == rest
    assert Anomaly.SKIPPED_POLL in found((7, b"a"), (7, COMMIT), (8, b"c"), (8, COMMIT))
    assert {Anomaly.NONMONOTONIC_POLL, Anomaly.DUPLICATE} <= found((7, b"a"), (7, COMMIT), *whole)
    assert Anomaly.INTERNAL_NONMONOTONIC_POLL in found((7, b"b", b"a"), (7, COMMIT))
    assert Anomaly.ABORTED_READ in found((7, b"a", b"b", b"x"), (7, COMMIT))
