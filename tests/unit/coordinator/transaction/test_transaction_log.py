import pytest

from kcore.coordinator.transaction import transaction_log
from kcore.coordinator.transaction.transaction_log import TransactionLogValue
from kcore.errors import CorruptMessage
from kcore.record.memory_records import MemoryRecords
from tests import golden_data


def golden_records():
    for partition in golden_data.data_dir().glob("__transaction_state-*"):
        for log in sorted(partition.glob("*.log")):
            for batch in MemoryRecords(log.read_bytes()).batches:
                yield from batch


def test_TXN_71_keys_of_a_real_broker_are_written_back_byte_for_byte():
    keys = [record.key for record in golden_records()]
    assert len(keys) > 10
    for key in keys:
        assert transaction_log.transaction_log_key(transaction_log.read_key(key)) == key


def test_TXN_25_TXN_71_a_value_is_written_in_version_0_field_by_field():
    value = TransactionLogValue(0, 7, 3, 60_000, 1, [("t", [0, 2]), ("u", [])], 1000, 900)
    assert transaction_log.transaction_log_value(value).hex(" ", 1) == (
        "00 00 "  # version
        "00 00 00 00 00 00 00 07 00 03 "  # producer id, epoch
        "00 00 ea 60 01 "  # timeout, status
        "00 00 00 02 "
        "00 01 74 00 00 00 02 00 00 00 00 00 00 00 02 "
        "00 01 75 00 00 00 00 "
        "00 00 00 00 00 00 03 e8 00 00 00 00 00 00 03 84"
    )


@pytest.mark.parametrize("partitions", [None, [], [("t", [5])]])
def test_TXN_71_what_is_written_is_read_and_a_cut_value_is_refused(partitions):
    value = TransactionLogValue(0, 2**62, 32767, 1, 5, partitions, -1, -1)
    data = transaction_log.transaction_log_value(value)
    assert transaction_log.read_value(data) == value
    for size in range(2, len(data)):
        with pytest.raises(CorruptMessage):
            transaction_log.read_value(data[:size])


def test_TXN_71_values_of_a_real_broker_keep_their_fields_when_written_in_version_0():
    for record in golden_records():
        if record.value is None:
            continue
        value = transaction_log.read_value(record.value)
        assert value.version == 1
        written = transaction_log.read_value(transaction_log.transaction_log_value(value))
        assert written == value._replace(
            version=0, previous_producer_id=None, next_producer_id=None, client_transaction_version=None
        )
