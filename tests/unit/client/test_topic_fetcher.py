"""TopicFetcher: what a request at a time brings, and which transactions are left out of it."""

import shutil

import pytest

import kcore
from kcore.client.admin_client import AdminClient
from kcore.client.topic_fetcher import READ_COMMITTED, READ_UNCOMMITTED, FetchSizes, TopicFetcher, aborted_transactions
from kcore.client.topic_leaders import TopicLeaders
from kcore.errors import UnknownTopicOrPartition
from kcore.protocol.messages.fetch import AbortedTransaction
from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_columns import columns_of
from tests import golden_data

TIMEOUT_MS = 30_000
NO_END = (1 << 63) - 1


@pytest.fixture
def broker(tmp_path):
    shutil.copytree(golden_data.data_dir(), tmp_path, dirs_exist_ok=True)
    with kcore.Broker(tmp_path) as broker:
        yield broker


def read_all(broker, topic, sizes, isolation_level):
    """(offset, value) of every record, and how many answers brought them."""
    end = (
        broker.log(topic).high_watermark
        if isolation_level == READ_UNCOMMITTED
        else broker.log(topic).last_stable_offset
    )
    with AdminClient([("127.0.0.1", broker.port)]) as client:
        leaders = TopicLeaders(
            client, topic, client_id="test", request_timeout_ms=TIMEOUT_MS, on_silence=lambda *_: None
        )
        try:
            fetcher = TopicFetcher(
                leaders,
                {0: broker.log(topic).log_start_offset},
                {0: end},
                timeout_ms=TIMEOUT_MS,
                earliest=lambda _: broker.log(topic).log_start_offset,
                isolation_level=isolation_level,
                sizes=sizes,
            )
            found, answers = [], 0
            while not fetcher.is_done:
                for item in fetcher.poll():
                    answers += 1
                    columns = columns_of(
                        item.records, start_offset=item.first_offset, end_offset=item.end_offset, aborted=item.aborted
                    )
                    found += zip(columns.offset.tolist(), columns.value, strict=True)
        finally:
            leaders.close()
    return found, answers


@pytest.mark.parametrize("topic", ["g-txn", "g-txn-zstd", "g-none", "g-compact"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_pieces_of_any_size_give_the_records_that_the_broker_reads(broker, topic, isolation):
    level = READ_COMMITTED if isolation == "read_committed" else READ_UNCOMMITTED
    expected = [(record.offset, record.value) for record in broker.consume(topic, isolation=isolation)]
    whole, few = read_all(broker, topic, FetchSizes(), level)
    pieces, many = read_all(broker, topic, FetchSizes(500, 1, 1), level)  # a batch at a time
    assert whole == pieces == expected
    assert few < many


def test_a_transaction_ends_at_its_marker_or_goes_on_after_the_records():
    data = b"".join(path.read_bytes() for path in sorted(golden_data.partition_dir("g-txn-0").glob("*.log")))
    records = MemoryRecords(data)
    markers = [
        (batch.producer_id, batch.base_offset)
        for batch in records.batches
        if batch.is_control and control_record_type(next(batch.records()).key) is ControlRecordType.ABORT
    ]
    producer, marker = markers[0]
    first = max(b.base_offset for b in records.batches if b.producer_id == producer and b.base_offset < marker)
    transactions = [AbortedTransaction(producer_id=producer, first_offset=first)]
    assert aborted_transactions(records, transactions) == [(producer, first, marker)]
    (batch,) = [batch for batch in records.batches if batch.base_offset == marker]
    before = MemoryRecords(data[: batch.position])
    assert aborted_transactions(before, transactions) == [(producer, first, NO_END)]
    assert aborted_transactions(records, ()) == []


def test_a_topic_that_is_not_there_is_named_with_the_nearest_one(broker):
    with (
        AdminClient([("127.0.0.1", broker.port)]) as client,
        pytest.raises(UnknownTopicOrPartition, match=r"there is no topic 'g-nome'; did you mean g-none\?"),
    ):
        TopicLeaders(client, "g-nome", client_id="test", request_timeout_ms=1000, on_silence=lambda *_: None)
