"""A history that is linear has no faults; each way of not being it is one."""

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
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
    return [fault.removeprefix("p: ") for fault in history(*SENT, *events).faults_beside(log)]


def test_records_in_the_order_of_each_producer_are_a_linear_history():
    acks = [("ack", A0, 0, 3.0), ("ack", B0, 1, 3.0), ("ack", A1, 2, 3.0)]
    reads = [("read", 0, A0), ("read", 1, B0), ("read", 0, A0), ("high watermark", 2), ("high watermark", 3)]
    assert faults(LOG, *acks, *reads) == []


def test_what_was_not_acknowledged_may_be_there_or_not():
    assert faults(LOG) == []
    assert faults({0: A0}) == []


def test_an_acknowledged_record_that_is_not_there_is_a_fault():
    assert faults({0: A0}, ("ack", B0, 1, 3.0)) == ["b:0 was acknowledged at 1, where the log has b'nothing'"]
    assert faults({0: A0}, ("ack", B0, -1001, 3.0)) == ["b:0 was acknowledged, and is not there"]


def test_an_acknowledged_record_at_another_offset_is_a_fault():
    assert "b:0 was acknowledged at 0" in faults(LOG, ("ack", B0, 0, 3.0))[0]


def test_a_duplicate_may_be_acknowledged_without_an_offset():
    assert faults(LOG, ("ack", B0, -1001, 3.0)) == []


def test_a_record_that_is_there_twice_is_a_fault():
    assert faults({0: A0, 1: A0}) == ["a:0 is at 1, after a:0"]


def test_a_record_may_be_there_again_under_a_new_epoch_unless_it_was_acknowledged_before():
    log = {0: A0, 1: A0, 2: A1}
    assert history(*SENT).faults_beside(log, {1}) == []
    assert history(*SENT, ("ack", A0, 1, 3.0)).faults_beside(log, {1}) == []
    (fault,) = history(*SENT, ("ack", A0, 0, 3.0)).faults_beside(log, {1})
    assert fault == "p: a:0 is there again from 1 on, acknowledged at 0"
    assert history(*SENT).faults_beside({0: A0, 1: A0, 2: A0}, {1}) == ["p: a:0 is at 2, after a:0"]


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
    assert faults({0: A1, 1: A0})[0] == "a:1 is at 0, right after a:-1"


def test_a_record_that_nobody_has_sent_is_a_fault():
    assert faults({0: A0, 1: A1, 2: A2}) == ["a:2 is at 2, and was never sent"]
    assert faults({0: value_of("c", 0)}) == ["c:0 is at 0, and was never sent"]


def test_another_value_at_an_offset_that_was_read_is_a_fault():
    assert len(faults(LOG, ("read", 0, A0), ("read", 0, B0))) == 1
    assert "was read at 1, where the log has b'nothing'" in faults({0: A0}, ("read", 0, A0), ("read", 1, B0))[0]


def test_a_gap_in_what_is_read_is_a_fault():
    assert faults(LOG, ("read", 1, B0)) == ["reader reads offset 1, and nobody has seen those from 0 on"]


def test_an_offset_without_a_record_is_a_fault():
    assert faults({0: A0, 2: A1}) == ["the log has no offset 1, nor 0 others"]


def test_a_high_watermark_that_goes_back_is_a_fault():
    assert faults(LOG, ("high watermark", 3), ("high watermark", 2)) == ["reader sees the high watermark 2 after 3"]


def test_a_record_acknowledged_before_another_was_sent_comes_before_it():
    late = [("ack", A0, 1, 1.2)]
    assert faults({0: B0, 1: A0}, *late) == ["a:0 is at 1, after b:0, which was sent later"]
    # Both were under way at the same time: either order.
    assert faults({0: B0, 1: A0}, ("ack", A0, 1, 1.6)) == []


def test_two_acknowledgements_of_one_record_are_a_fault():
    assert "twice" in faults(LOG, ("ack", A0, 0, 3.0), ("ack", A0, 0, 4.0))[0]
