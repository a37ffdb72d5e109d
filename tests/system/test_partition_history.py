"""A history that is linear has no faults; each way of not being it is one."""

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.histories.checker import Anomaly
from tests.system.partition_history import PartitionHistory, epoch_starts, value_of

A0, A1, A2, B0, B1 = (value_of(name, number) for name, number in [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)])


def history(*events):
    """("send", value, time), ("ack", value, offset, time), ("read", offset, value), ("high watermark", offset)."""
    history = PartitionHistory("p")
    for kind, *rest in events:
        if kind == "send":
            value, now = rest
            assert history.send(value.split(b":")[0].decode(), now) == value
        elif kind == "ack":
            history.acknowledge(*rest)
        elif kind == "read":
            history.read("reader", *rest)
        else:
            history.high_watermark("reader", *rest)
    return history


SENT = (("send", A0, 1.0), ("send", B0, 1.5), ("send", A1, 2.0))
LOG = {0: A0, 1: B0, 2: A1}


def faults(log, *events):
    return found(history(*SENT, *events).faults_beside(log))


def found(faults):
    """The first line of each; what follows are the operations that prove it."""
    return [fault.removeprefix("p: ").splitlines()[0] for fault in faults]


def test_records_in_the_order_of_each_producer_are_a_linear_history():
    acks = [("ack", A0, 0, 3.0), ("ack", B0, 1, 3.0), ("ack", A1, 2, 3.0)]
    reads = [("read", 0, A0), ("read", 1, B0), ("read", 0, A0), ("high watermark", 2), ("high watermark", 3)]
    assert faults(LOG, *acks, *reads) == []


def test_what_was_not_acknowledged_may_be_there_or_not():
    assert faults(LOG) == []
    assert faults({0: A0}) == []


def test_an_acknowledged_record_that_is_not_there_is_a_fault():
    lost = faults({0: A0}, ("ack", B0, 1, 3.0))
    assert lost == [f"{Anomaly.UNSEEN}: p@1, {B0!r}", f"{Anomaly.VANISHED}: p@1"]
    assert faults({0: A0}, ("ack", B0, -1001, 3.0)) == [f"{Anomaly.UNSEEN}: p, offset unknown, {B0!r}"]


def test_an_acknowledged_record_at_another_offset_is_a_fault():
    assert faults(LOG, ("ack", B0, 0, 3.0))[0] == f"{Anomaly.INCONSISTENT_OFFSET}: p@0 is {A0!r}, {B0!r}"


def test_a_duplicate_may_be_acknowledged_without_an_offset():
    assert faults(LOG, ("ack", B0, -1001, 3.0)) == []


def test_a_record_that_is_there_twice_is_a_fault():
    assert faults({0: A0, 1: A0}) == [f"{Anomaly.DUPLICATE}: {A0!r} is at [0, 1] of p"]


def test_a_record_may_be_there_again_under_a_new_epoch_unless_it_was_acknowledged_before():
    log = {0: A0, 1: A0, 2: A1}
    assert history(*SENT).faults_beside(log, {1}) == []
    assert history(*SENT, ("ack", A0, 1, 3.0)).faults_beside(log, {1}) == []
    (fault,) = found(history(*SENT, ("ack", A0, 0, 3.0)).faults_beside(log, {1}))
    assert fault == f"{Anomaly.DUPLICATE}: {A0!r} is at [0, 1] of p"
    (fault,) = found(history(*SENT).faults_beside({0: A0, 1: A0, 2: A0}, {1}))
    assert fault == f"{Anomaly.DUPLICATE}: {A0!r} is at [1, 2] of p"


def test_where_producers_begin_epochs_and_sequences_that_no_broker_may_accept():
    def batches(*places):
        """(producer epoch, base sequence, count); offsets from 0 on."""
        offset = 0
        for epoch, sequence, count in places:
            builder = RecordBatchBuilder(
                base_offset=offset, producer_id=7, producer_epoch=epoch, base_sequence=sequence
            )
            for _ in range(count):
                builder.append(b"v", None, timestamp=0)
            yield from MemoryRecords(builder.build()).batches
            offset += count

    assert epoch_starts(batches((0, 0, 2), (0, 2, 1), (1, 0, 3), (1, 3, 1))) == ({3}, [])
    assert len(epoch_starts(batches((0, 0, 2), (0, 0, 2)))[1]) == 1
    assert len(epoch_starts(batches((0, 0, 2), (0, 3, 2)))[1]) == 1
    assert len(epoch_starts(batches((1, 0, 2), (0, 2, 2)))[1]) == 1
    assert len(epoch_starts(batches((0, 0, 2), (1, 2, 2)))[1]) == 1


def test_a_producers_records_in_another_order_or_with_one_missing_are_a_fault():
    assert faults({0: A1, 1: A0}, ("ack", A0, 1, 3.0), ("ack", A1, 0, 3.0)) == [
        f"{Anomaly.NONMONOTONIC_SEND}: a has sent p@0 after 1"
    ]
    assert faults({0: A1}) == ["a:1 is there, and a:0 is not"]


def test_a_record_that_nobody_has_sent_is_a_fault():
    assert faults({0: A0, 1: A1, 2: A2}) == [f"{Anomaly.UNWRITTEN_READ}: p@2, {A2!r:.60}"]
    assert faults({0: value_of("c", 0)}) == [f"{Anomaly.UNWRITTEN_READ}: p@0, {value_of('c', 0)!r:.60}"]


def test_another_value_at_an_offset_that_was_read_is_a_fault():
    assert len(faults(LOG, ("read", 0, A0), ("read", 0, B0))) == 1
    assert faults({0: A0}, ("read", 0, A0), ("read", 1, B0)) == [f"{Anomaly.VANISHED}: p@1"]
    assert faults({0: B0}, ("read", 0, A0)) == [f"{Anomaly.INCONSISTENT_OFFSET}: p@0 is {A0!r}, {B0!r}"]


def test_a_gap_in_what_is_read_is_a_fault():
    assert faults(LOG, ("read", 1, B0)) == ["reader reads offset 1, and nobody has seen those from 0 on"]


def test_an_offset_without_a_record_is_a_fault():
    assert faults({0: A0, 2: A1}) == ["the log has no offset 1, nor 0 others"]


def test_a_high_watermark_that_goes_back_is_a_fault():
    assert faults(LOG, ("high watermark", 3), ("high watermark", 2)) == ["reader sees the high watermark 2 after 3"]


def test_a_record_acknowledged_before_another_was_sent_comes_before_it():
    late = [("ack", A0, 1, 1.2)]
    assert faults({0: B0, 1: A0}, *late) == [f"{Anomaly.REALTIME_SEND}: p@1"]
    # Both were under way at the same time: either order.
    assert faults({0: B0, 1: A0}, ("ack", A0, 1, 1.6)) == []


def test_two_acknowledgements_of_one_record_are_a_fault():
    assert "twice" in faults(LOG, ("ack", A0, 0, 3.0), ("ack", A0, 0, 4.0))[0]
