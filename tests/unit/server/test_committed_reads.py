"""What a consumer with isolation.level=read_committed gets over the wire from directories that Kafka wrote."""

import shutil

import pytest

import kcore
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import list_offsets as lo
from kcore.record.memory_records import MemoryRecords
from tests import golden_data
from tests.unit.log.logs import seen_by_a_committed_consumer
from tests.unit.server.client import Client

COMMITTED, UNCOMMITTED = 1, 0
PARTITIONS = ["g-txn", "g-txn-zstd", "g-txn-open"]
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    data = tmp_path_factory.mktemp("committed") / "data"
    for topic in PARTITIONS:
        shutil.copytree(golden_data.partition_dir(f"{topic}-0"), data / f"{topic}-0")
    with kcore.Broker(data, producer_id_expiration_ms=2**31 - 1) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def consumer(topic, isolation):
    return golden_data.expected()["partitions"][f"{topic}-0"]["consumer"][isolation]


def fetch(client, broker, topic, offset, *, isolation=COMMITTED, version=11, max_bytes=1 << 20):
    topic_request = f.FetchTopic(
        topic=topic if version < 13 else "",
        topic_id=broker.metadata_cache.topic_id(topic),
        partitions=[f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)],
    )
    request = f.FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=[topic_request])
    (topic_answer,) = client.ask(request, version).responses
    (answer,) = topic_answer.partitions
    assert answer.error_code == 0
    return answer


@pytest.mark.parametrize("version", [4, 5, 7, 10, 11, 12, 13, 17])
@pytest.mark.parametrize("topic", ["g-txn", "g-txn-zstd"])
def test_RD_05_a_fetch_names_the_aborted_transactions_that_its_records_need(broker, client, topic, version):
    wanted = [record.offset for record in broker.log(topic).records(isolation="read_committed")]
    assert len(wanted) < len([record.offset for record in broker.log(topic).records()])
    for start in (0, 8, 20, 33, 52, 70, 78):
        offset, seen = start, []
        while offset < 78:
            answer = fetch(client, broker, topic, offset, version=version, max_bytes=1500)
            assert answer.last_stable_offset == 78
            data = bytes(answer.records)
            seen += seen_by_a_committed_consumer(data, answer.aborted_transactions)
            offset = MemoryRecords(data).last_offset + 1
        assert [o for o in seen if o >= start] == [o for o in wanted if o >= start]


def test_RD_06_an_uncommitted_fetch_gets_everything_and_no_list(broker, client):
    answer = fetch(client, broker, "g-txn", 0, isolation=UNCOMMITTED)
    assert not answer.aborted_transactions
    assert MemoryRecords(bytes(answer.records)).first_offset == 0


def test_HW_06_RD_05_an_open_transaction_ends_a_committed_fetch_and_not_another(broker, client):
    committed = fetch(client, broker, "g-txn-open", 0)
    assert (bytes(committed.records or b""), committed.aborted_transactions) == (b"", [])
    assert (committed.last_stable_offset, committed.high_watermark) == (0, 8)
    plain = fetch(client, broker, "g-txn-open", 0, isolation=UNCOMMITTED)
    assert MemoryRecords(bytes(plain.records)).last_offset == 7


@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize("topic", PARTITIONS)
def test_the_latest_offset_is_the_last_stable_one_for_a_committed_reader(client, topic, version):
    def ask(timestamp, isolation):
        partition_request = lo.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [lo.ListOffsetsTopic(name=topic, partitions=[partition_request])]
        request = lo.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        (answer,) = client.ask(request, version).topics[0].partitions
        assert answer.error_code == 0
        return answer.offset

    assert ask(LATEST, COMMITTED) == consumer(topic, "read_committed")["end_offset"]
    assert ask(LATEST, UNCOMMITTED) == consumer(topic, "read_uncommitted")["end_offset"]
    assert ask(EARLIEST, COMMITTED) == consumer(topic, "read_committed")["beginning_offset"]
    # A record that the reader may not see is not returned by a lookup of its timestamp either.
    assert ask(0, UNCOMMITTED) == 0
    assert ask(0, COMMITTED) == (-1 if topic == "g-txn-open" else 0)
