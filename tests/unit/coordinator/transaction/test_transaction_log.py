import pytest

from kcore.coordinator.transaction import transaction_load, transaction_log
from kcore.coordinator.transaction.transaction_log import TransactionLogValue
from kcore.coordinator.transaction.transaction_state import TransactionMetadata, TransactionState
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


def test_TXN_25_TXN_71_a_value_is_written_in_version_1_field_by_field():
    value = TransactionLogValue(1, 7, 3, 60_000, 2, [("t", [0, 2]), ("u", [])], 1000, 900, 5, 9, 2)
    assert transaction_log.transaction_log_value(value).hex(" ", 1) == (
        "00 01 "  # version
        "00 00 00 00 00 00 00 07 00 03 "  # producer id, epoch
        "00 00 ea 60 02 "  # timeout, status
        "03 "
        "02 74 03 00 00 00 00 00 00 00 02 00 "
        "02 75 01 00 "
        "00 00 00 00 00 00 03 e8 00 00 00 00 00 00 03 84 "
        "03 "  # tagged fields: previous and next producer id, client's transaction version
        "00 08 00 00 00 00 00 00 00 05 "
        "01 08 00 00 00 00 00 00 00 09 "
        "02 02 00 02"
    )


def test_TXN_71_a_long_name_in_version_1_has_a_length_of_two_bytes():
    value = TransactionLogValue(1, 7, 3, 1, 1, [("t" * 200, [*range(130)])], 0, 0)
    data = transaction_log.transaction_log_value(value)
    assert data[18:20].hex() == "c901" and transaction_log.read_value(data) == value


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("partitions", [None, [], [("t", [5])]])
def test_TXN_71_what_is_written_is_read_and_a_cut_value_is_refused(partitions, version):
    value = TransactionLogValue(version, 2**62, 32767, 1, 5, partitions, -1, -1)
    if version:
        value = value._replace(previous_producer_id=2**61, next_producer_id=1, client_transaction_version=2)
    data = transaction_log.transaction_log_value(value)
    assert transaction_log.read_value(data) == value
    for size in range(2, len(data)):
        with pytest.raises(CorruptMessage):
            transaction_log.read_value(data[:size])


def test_TXN_71_values_of_a_real_broker_are_written_back_byte_for_byte():
    values = [record.value for record in golden_records() if record.value is not None]
    assert len(values) > 10
    for data in values:
        assert transaction_log.transaction_log_value(transaction_log.read_value(data)) == data


def test_TXN_71_values_of_a_real_broker_keep_their_fields_when_written_in_version_0():
    for record in golden_records():
        if record.value is None:
            continue
        value = transaction_log.read_value(record.value)
        assert value.version == 1
        written = transaction_log.read_value(transaction_log.transaction_log_value(value._replace(version=0)))
        assert written == value._replace(
            version=0, previous_producer_id=None, next_producer_id=None, client_transaction_version=None
        )


def state(**changes):
    return TransactionMetadata("x", 7, 3, 60_000, TransactionState.PREPARE_COMMIT, **changes)


@pytest.mark.parametrize(
    ("cluster", "changes", "version"),
    [(0, {}, 0), (1, {}, 1), (2, {}, 1), (0, {"client_transaction_version": 2, "next_producer_id": 9}, 1)],
)
def test_TXN_25_the_level_of_the_cluster_decides_about_the_version_unless_only_one_can_say_it(
    cluster, changes, version
):
    before = state(**changes, previous_producer_id=5 if version else -1)
    value = transaction_load.value_of(before, cluster)
    assert value.version == version
    read = transaction_log.read_value(transaction_log.transaction_log_value(value))
    assert transaction_load.metadata_of("x", read) == before
