"""What a notebook shows of a broker, a cluster, a topic, a log, a segment and a batch."""

import re
from html.parser import HTMLParser

import kcore
from kcore.common.html_table import MOST_ROWS, html_table
from kcore.log.log_config import LogConfig
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.log.logs import batch, idempotent


class _Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.title, self.rows, self._open = "", [], ""

    def handle_starttag(self, tag, attributes):
        self._open = tag
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "strong":
            self.title += data
        elif self._open in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            assert not data.strip()


def shown(thing):
    """(title, rows with the head) of what a notebook shows."""
    html = thing if isinstance(thing, str) else thing._repr_html_()
    cells = _Cells()
    cells.feed(html)
    assert set(re.findall(r"<(\w+)", html)) <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    return cells.title, cells.rows


def test_a_table_escapes_its_text_and_ends_after_some_rows():
    title, rows = shown(html_table("<script>", ["a & b"], [("<img src=x>\x1b[2J",)] * 25))
    assert title == "<script>" and rows[0] == ["a & b"] and len(rows) == MOST_ROWS + 2
    assert rows[1] == ["<img src=x>\\x1b[2J"] and rows[-1] == ["and 5 more"]
    assert "<img" not in html_table("", ["x"], [("<img src=x>",)])
    assert shown(html_table("t", ["x"], [(1234567,), (None,), (True,)]))[1][1:] == [["1,234,567"], [""], ["True"]]


def test_a_log_is_shown_with_its_segments_and_a_segment_with_its_files(tmp_path):
    with kcore.open_log(tmp_path / "orders-0", "a", config=LogConfig(segment_bytes=1000)) as log:
        for n in range(60):
            log.append_as_leader(batch(10, timestamp=1_700_000_000_000 + 1000 * n))
        title, rows = shown(log)
        assert (
            title.startswith("orders-0: offsets 0 to 600, high watermark 600, ") and f"{len(log.segments)} seg" in title
        )
        assert rows[0] == ["first offset", "last offset", "size", "first timestamp", "latest timestamp"]
        second = log.segments[1].base_offset
        assert rows[1] == ["0", str(second - 1), *rows[1][2:3], "2023-11-14T22:13:20.000Z", rows[1][4]]
        assert rows[2][0] == str(second) and rows[-1] == [f"and {len(log.segments) - MOST_ROWS} more"]
        fields = dict(shown(log.segments[1])[1][1:])
        assert fields["base offset"] == str(second) and fields["file"] == log.segments[1].log_path
        assert fields["latest timestamp"] == rows[2][4] == fields["latest timestamp"] != ""


def test_an_empty_log_is_shown(tmp_path):
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        title, rows = shown(log)
        assert title == "orders-0: offsets 0 to 0, high watermark 0, 0 bytes in 1 segment"
        assert rows[1] == ["0", "-1", "0 bytes", "", ""]


def test_a_batch_is_shown_with_its_records_and_hostile_bytes_are_text():
    builder = RecordBatchBuilder(compression="lz4")
    builder.append(b"<b>bold</b>", b"k1", timestamp=1_700_000_000_000, headers=[("h", b"\xff")])
    builder.append(None, None, timestamp=-1)
    (made,) = MemoryRecords(builder.build()).batches
    title, rows = shown(made)
    assert title.startswith("batch: offsets 0 to 1, ") and "compression" in title and "lz4" in title.lower()
    assert rows[1] == ["0", "2023-11-14T22:13:20.000Z", '"k1"', '"<b>bold</b>"', "h=0xff"]
    assert rows[2] == ["1", "", "null", "null", ""]
    (many,) = MemoryRecords(batch(50)).batches
    assert shown(many)[1][-1] == ["and 30 more"]
    (own,) = MemoryRecords(idempotent(7, 3, is_transactional=True)).batches
    assert "transactional batch" in shown(own)[0] and "producer 7 epoch 0 sequence 3" in shown(own)[0]


def test_a_batch_with_a_wrong_crc_is_shown_without_records():
    data = batch(3)
    data[-1] ^= 1
    (bad,) = MemoryRecords(bytes(data), check_crc=False).batches
    title, rows = shown(bad)
    assert "the CRC does not match" in title and rows == [[]]


def test_a_topic_is_shown_with_its_partitions(tmp_path):
    for number in range(2):
        with kcore.open_log(tmp_path / f"orders-{number}", "a") as log:
            log.append_as_leader(batch(5 + number))
    with kcore.open_topic(tmp_path, "orders") as topic:
        title, rows = shown(topic)
        assert title == "Topic orders: 11 offsets in 2 partitions"
        assert [row[:3] for row in rows[1:]] == [["0", "0", "5"], ["1", "0", "6"]]


def test_a_broker_is_shown_with_its_topics_and_a_stopped_one_as_such():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        broker.produce("orders", b"value", partition=1)
        title, rows = shown(broker)
        assert broker.bootstrap_servers in title
        assert [row[:3] for row in rows[1:] if row[0] == "orders"] == [["orders", "3", "1"]]
    assert "stopped" in shown(broker)[0]


def test_a_cluster_is_shown_with_its_brokers():
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        cluster.wait_until_in_sync("orders")
        title, rows = shown(cluster)
        assert title.startswith("Cluster of 2 brokers") and [row[0] for row in rows[1:]] == ["0", "1"]
        assert [row[2] for row in rows[1:]] == ["2", "2"] and sum(int(row[3]) for row in rows[1:]) == 2
        cluster.stop(1)
        assert shown(cluster)[1][2][:2] == ["1", "does not run"]
    assert "Cluster of 2 brokers" in shown(cluster)[0]


def test_what_is_temporary_or_one_of_its_kind_is_shown_as_that(tmp_path):
    assert shown(kcore.Cluster(2))[0] == "Cluster of 2 brokers, temporary"
    assert repr(kcore.Cluster(1)) == "Cluster(1 broker, running [], temporary)"
    assert shown(kcore.Broker())[0] == "Broker(temporary, new)"
    with kcore.open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(batch(1))
        assert "high watermark 1, 1 segment, mode 'a'" in repr(log)
    with kcore.open_topic(tmp_path, "orders") as topic:
        assert repr(topic) == "Topic('orders', 1 partition, 1 offset)"
