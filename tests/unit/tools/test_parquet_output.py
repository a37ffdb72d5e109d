"""kcore consume --format parquet, against a broker of this process."""

import os

import pyarrow.parquet as pq
import pytest

import kcore
from kcore.client.group_client import GroupClient
from kcore.client.topic_fetcher import TopicFetcher
from kcore.common.topic_partition import TopicPartition
from kcore.record.arrow import DEFAULT_COLUMNS, schema
from kcore.tools import parquet_output
from kcore.tools.command_line import addresses
from kcore.tools.main import main

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker(offsets_topic_num_partitions=1, log_retention_ms=-1) as broker:
        broker.create_topic("orders", 2)
        for number in range(10):
            value = None if number == 3 else f"v{number}"
            broker.produce("orders", value, b"k%d" % (number % 2), {"n": b"%d" % number}, T0 + number, number % 2)
        yield broker


@pytest.fixture
def file(tmp_path):
    return tmp_path / "orders.parquet"


@pytest.fixture
def consume(broker, file, capfd):
    """(exit status, stderr); stdout is empty."""

    def consume(*words, topic="orders"):
        words = ("consume", topic, "--format", "parquet", "--output", str(file), *words)
        status = main([*words, "--bootstrap", broker.bootstrap_servers])
        out, err = capfd.readouterr()
        assert out == ""
        return status, err

    return consume


def rows(file):
    return sorted(pq.read_table(file).to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def committed(broker, group):
    with GroupClient(addresses(broker.bootstrap_servers), client_id="test", timeout_ms=30_000) as client:
        return client.committed_offsets(group)


def test_the_file_has_every_record_with_all_that_it_has(broker, consume, file):
    assert consume() == (0, "")
    assert pq.read_schema(file).equals(schema(DEFAULT_COLUMNS), check_metadata=False)
    expected = [
        (partition, offset, T0 + 2 * offset + partition, b"k%d" % partition, 2 * offset + partition)
        for partition in (0, 1)
        for offset in range(5)
    ]
    found = [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            int(row["headers"][0]["value"]),
        )
        for row in rows(file)
    ]
    assert found == expected
    values = {row["offset"]: row["value"] for row in rows(file) if row["partition"] == 1}
    assert values == {0: b"v1", 1: None, 2: b"v5", 3: b"v7", 4: b"v9"}
    assert {row["topic"] for row in rows(file)} == {"orders"}
    assert os.listdir(file.parent) == [file.name]


def test_filters_choose_the_rows(consume, file):
    assert consume("--key", "k1", "--header", "n=5") == (0, "")
    assert [(row["partition"], row["offset"], row["value"]) for row in rows(file)] == [(1, 2, b"v5")]


def test_a_limit_ends_it(consume, file):
    assert consume("--partition", "0", "--max", "2") == (0, "")
    assert [row["offset"] for row in rows(file)] == [0, 1]


def test_a_topic_without_records_is_a_file_without_rows(broker, consume, file):
    broker.create_topic("empty")
    assert consume(topic="empty") == (0, "")
    assert (rows(file), pq.read_schema(file).names) == ([], [*DEFAULT_COLUMNS])


def test_many_records_are_several_row_groups(consume, file, monkeypatch):
    monkeypatch.setattr(parquet_output, "_ROW_GROUP_BYTES", 1)
    assert consume() == (0, "")
    assert pq.read_metadata(file).num_row_groups > 1
    assert len(rows(file)) == 10


def test_a_group_commits_only_what_is_in_a_complete_file(broker, consume, file, monkeypatch):
    monkeypatch.setattr("kcore.tools.consume._COMMIT_MS", 0)

    def full(path):
        raise OSError(28, "No space left on device", path)

    with monkeypatch.context() as patch:
        patch.setattr(parquet_output, "sync_path", full)
        status, err = consume("--group", "exporter")
    assert status == 2 and "No space left on device" in err
    assert os.listdir(file.parent) == []
    assert committed(broker, "exporter") == {}
    assert consume("--group", "exporter") == (0, "")
    assert committed(broker, "exporter") == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 5}
    assert len(rows(file)) == 10


def test_ctrl_c_leaves_no_file(consume, file, monkeypatch):
    def interrupted(printer):
        assert os.listdir(file.parent) == [f"{file.name}.partial"]
        raise KeyboardInterrupt

    monkeypatch.setattr("kcore.tools.consume._Printer.flush", interrupted)
    assert consume() == (130, "")
    assert os.listdir(file.parent) == []


def test_ctrl_c_ends_a_file_that_follows(consume, file, monkeypatch):
    poll = TopicFetcher.poll
    ends = {}

    def interrupted(fetcher):
        if sum(ends.values()) == 10:
            raise KeyboardInterrupt
        came = poll(fetcher)
        ends.update({item.partition: item.next_offset for item in came})
        return came

    monkeypatch.setattr(TopicFetcher, "poll", interrupted)
    assert consume("--follow") == (0, "")
    assert len(rows(file)) == 10


@pytest.mark.parametrize("name", ["orders.parquet", "orders.parquet.partial"])
def test_a_file_that_is_there_stays(consume, file, name):
    (file.parent / name).write_text("mine")
    status, err = consume()
    assert status == 2 and f"{name} is there already: nothing is written" in err
    assert (file.parent / name).read_text() == "mine"


def test_a_topic_that_is_not_there_leaves_no_file(consume, file):
    status, err = consume(topic="none")
    assert status == 2 and "there is no topic 'none'" in err
    assert os.listdir(file.parent) == []


@pytest.mark.parametrize("words", [["--format", "parquet"], ["--output", "x"], ["--format", "%s", "--output", "x"]])
def test_format_parquet_needs_an_output_and_no_other_format_has_one(broker, capsys, words):
    assert main(["consume", "orders", *words, "--bootstrap", broker.bootstrap_servers]) == 2
    assert "--format parquet and --output FILE go together" in capsys.readouterr().err


def test_a_misspelt_parquet_with_an_output_says_which_format_was_meant(broker, capsys, file):
    words = ["consume", "orders", "--format", "Paquet", "--output", str(file)]
    assert main([*words, "--bootstrap", broker.bootstrap_servers]) == 2
    assert "did you mean parquet?" in capsys.readouterr().err


def test_parquet_goes_to_no_standard_output(broker, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["consume", "orders", "--format", "parquet", "--output", "-"]
    assert main([*words, "--bootstrap", broker.bootstrap_servers]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "kcore: --output -: Parquet is written to a file, not to stdout; name one (./- for a file called -)"
    assert os.listdir(tmp_path) == []
