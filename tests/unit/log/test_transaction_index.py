import pytest

from kcore.errors import CorruptIndex
from kcore.log.log_offset_metadata import AbortedTxn
from kcore.log.transaction_index import ENTRY_SIZE, TransactionIndex, encode_entries

ENTRIES = [AbortedTxn(1, 10, 15, 8), AbortedTxn(2, 16, 20, 16), AbortedTxn(3, 12, 30, 31)]


@pytest.fixture
def index(tmp_path):
    index = TransactionIndex(str(tmp_path / f"{8:020d}.txnindex"), 8)
    for entry in ENTRIES:
        index.append(entry)
    return index


def reopened(index):
    again = TransactionIndex(index.path, index.base_offset)
    again.load()
    return again


def test_IDX_16_entries_have_34_bytes_and_survive_reopening(index):
    with open(index.path, "rb") as file:
        data = file.read()
    assert ENTRY_SIZE == 34 and data == encode_entries(ENTRIES)
    assert data[:34] == b"\0\0" + b"".join(v.to_bytes(8, "big") for v in (1, 10, 15, 8))
    assert reopened(index).entries == tuple(ENTRIES)


def test_IDX_16_there_is_no_file_until_the_first_entry(tmp_path):
    index = TransactionIndex(str(tmp_path / "x.txnindex"), 0)
    index.load()
    index.flush()
    index.truncate_to(0)
    assert list(tmp_path.iterdir()) == []


def test_IDX_16_last_offsets_ascend(index):
    with pytest.raises(ValueError, match="last offset 30 not above 30"):
        index.append(AbortedTxn(4, 29, 30, 31))


def test_the_transactions_of_a_range_and_whether_they_are_all(index):
    assert index.collect_aborted_txns(0, 100) == (ENTRIES, False)
    assert index.collect_aborted_txns(16, 20) == (ENTRIES[1:], True)
    assert index.collect_aborted_txns(0, 11) == ([ENTRIES[0]], True)
    assert index.collect_aborted_txns(0, 8) == ([], True)
    assert index.collect_aborted_txns(31, 40) == ([], False)


def test_an_entry_whose_last_stable_offset_is_the_end_of_the_range_is_the_last_that_matters(tmp_path):
    """Later entries begin at that offset or above, so no later segment is searched."""
    index = TransactionIndex(str(tmp_path / "x.txnindex"), 0)
    index.append(AbortedTxn(1, 3, 5, 6))
    index.append(AbortedTxn(2, 6, 8, 9))
    assert index.collect_aborted_txns(0, 6) == ([AbortedTxn(1, 3, 5, 6)], True)
    assert index.collect_aborted_txns(0, 7) == ([*index.entries], True)
    assert index.collect_aborted_txns(0, 9) == ([*index.entries], True)
    assert index.collect_aborted_txns(0, 10) == ([*index.entries], False)


def test_truncation_keeps_transactions_that_ended_before(index):
    index.truncate_to(20)
    assert index.entries == tuple(ENTRIES[:1]) == reopened(index).entries
    index.reset()
    assert reopened(index).entries == ()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "101 bytes"),
        (lambda data: b"\0\1" + data[2:], "position 0: version 1"),
        (lambda data: encode_entries([AbortedTxn(1, 0, 7, 8)]), "below the segment's base offset 8"),
        (lambda data: data + data[-34:], "position 102: last offset 30 not above 30"),
    ],
)
def test_a_damaged_file_is_refused_naming_the_place(index, damage, message):
    with open(index.path, "rb") as file:
        data = file.read()
    with open(index.path, "wb") as file:
        file.write(damage(data))
    with pytest.raises(CorruptIndex, match=message):
        reopened(index)
