"""Messages of a cluster and of a directory, and search in both."""

import json
import os
import re
import shutil
import struct
import sys
from html import unescape

import pytest

import kcore
from kcore.inspect import batch_reader, scan_segment
from kcore.tools.main import main
from kcore.web import log_records, search
from tests.unit.tools.command import LOG, flip
from tests.unit.web.pages import TOKEN, address_of, opened, words
from tests.waiting import wait_until

START_MS = 1_700_000_000_000
#: As a message may be.
HOSTILE = [b"<script>alert(1)</script>", b"\xff\xfe\0\x1b[31m", "a\u202eb\u200f".encode(), b'{"a": "</pre>"}']


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Partition 0 of orders has 300 records, a second apart; partition 1 the hostile ones, as keys, values, headers."""
    data = tmp_path_factory.mktemp("data")
    with kcore.Broker(str(data), log_segment_bytes=16384) as broker:
        broker.create_topic("orders", partitions=2)
        for number in range(300):
            broker.produce(
                "orders", f"value {number}", key=f"key {number}", partition=0, timestamp=START_MS + 1000 * number,
                headers={"trace": f"{number:03}".encode()},
            )  # fmt: skip
        for data in HOSTILE:
            broker.produce("orders", data, key=data, partition=1, headers={"<b>\u202e": data, "none": None})
        yield broker


@pytest.fixture(scope="module")
def directory(broker, tmp_path_factory):
    """A copy of the files, as a dead broker leaves them."""
    path = tmp_path_factory.mktemp("copy") / "data"
    shutil.copytree(broker.data_dir, path, ignore=shutil.ignore_patterns("*.sock", ".lock"))
    return path


@pytest.fixture(scope="module")
def client(broker, directory):
    with opened([address_of(broker)], [directory]) as (client, _):
        yield client


@pytest.fixture(params=["cluster", "directory"])
def place(request):
    """partition -> the parameters that name it."""
    if request.param == "cluster":
        return lambda partition: {"topic": "orders", "partition": partition}
    return lambda partition: {"dir": 0, "log": f"orders-{partition}"}


def offsets(text):
    return [int(number) for number in re.findall(r'aria-label="Offset (\d+)"', text.replace("\u202f", ""))]


def links(text):
    return {plain: unescape(address) for address, plain in re.findall(r'<a[^>]* href="([^"]*)">(\w+)</a>', text)}


def test_messages_begin_with_the_newest_and_lead_through_the_log(client, place):
    newest = client.get("/messages", params=place(0))
    assert newest.status_code == 200, newest.text
    assert offsets(newest.text) == list(range(250, 300))
    assert "The log has offsets 0 to 299" in words(newest.text)
    older = client.get(links(newest.text)["Older"]).text
    assert offsets(older) == list(range(200, 250))
    assert offsets(client.get(links(older)["Newer"]).text) == list(range(250, 300))
    oldest = client.get(links(newest.text)["Oldest"]).text
    assert offsets(oldest) == list(range(50))
    assert "Older" not in links(oldest) and "Newer" not in links(newest.text)


@pytest.mark.parametrize(
    ("second", "first"), [(0, 0), (0.001, 1), (123, 123), (122.5, 123), (299, 299), (299.001, None), (-5, 0)]
)
def test_messages_begin_at_a_time(client, place, second, first):
    at = START_MS + round(1000 * second)
    shown = offsets(client.get("/messages", params=place(0) | {"time": f"@{at}"}).text)
    assert shown[:1] == ([] if first is None else [first])


def test_an_offset_beyond_the_end_shows_no_record_and_one_before_the_start_the_first(client, place):
    text = client.get("/messages", params=place(0) | {"offset": 300}).text
    assert "No record from offset 300 on" in words(text)
    assert offsets(client.get(links(text)["Older"]).text) == list(range(250, 300))


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_hostile_messages_stay_text(client, place, form):
    text = client.get("/messages", params=place(1) | {"form": form}).text
    assert offsets(text) == [0, 1, 2, 3]
    assert not re.search(r"<script(?! src=\"/static/)|<b>|\u202e|\u200f|\0|\x1b", text)
    if form == "hex":
        assert "00000000  ff fe 00 1b 5b 33 31 6d" in text
    else:
        assert text.count("\\xff\\xfe\\x00\\x1b[31m") == 3
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert ("{\n  &#34;a&#34;: &#34;&lt;/pre&gt;&#34;\n}" in text) == (form == "json")
    assert "Header &lt;b&gt;\\u202e" in re.sub("</?bdi>", "", text)


def test_one_message_is_shown_whole(client, place):
    text = client.get("/message", params=place(0) | {"offset": 7}).text
    assert offsets(text) == [7] and "value 7" in text and "key 7" in text
    assert client.get("/message", params=place(0) | {"offset": 300}).status_code == 404


@pytest.mark.parametrize(
    ("parameters", "status", "reason"),
    [
        ({"offset": "x"}, 400, "offset: expected a whole number"),
        ({"offset": "-1"}, 400, "offset: expected a whole number"),
        ({"time": "yesterday"}, 400, "time: expected a time as 2026-11-24T03:00"),
        ({"partition": "5"}, 404, "has no partition 5"),
        ({"partition": "99999999999"}, 400, "partition: expected"),
        ({"topic": "nothing"}, 404, "there is no topic 'nothing'"),
        ({"dir": "7", "log": "orders-0"}, 404, "there is no directory number 7"),
        ({"dir": "0", "log": "../data/orders-0"}, 404, "has no log"),
        ({"dir": "0", "log": "/etc"}, 404, "has no log"),
        ({"dir": "0", "log": "orders-9"}, 404, "has no log"),
        ({"dir": "0", "log": "orders-0\0"}, 404, "has no log"),
    ],
)
def test_what_cannot_be_shown_is_named(client, parameters, status, reason):
    answer = client.get("/messages", params={"topic": "orders", "partition": 0} | parameters)
    assert (answer.status_code, reason in words(answer.text)) == (status, True), words(answer.text)


def test_a_damaged_batch_is_named_and_the_records_around_it_are_shown(directory, tmp_path):
    damaged = tmp_path / "data"
    shutil.copytree(directory, damaged)
    log = damaged / "orders-1" / LOG
    flip(log, log.read_bytes().index(b"\xff\xfe") + 1)
    with opened(directories=[damaged]) as (client, _):
        text = client.get("/messages", params={"dir": 0, "log": "orders-1"}).text
        assert offsets(text) == [0, 2, 3]
        assert f"Offset 1: {LOG}, position" in words(text) and "CRC-32C" in words(text)
        job = finished(client, {"dir": 0, "log": "orders-1"})
        assert "3 records" in words(job) and "CRC-32C" in words(job)


@pytest.fixture
def copy(directory, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(directory, copy)
    return copy


def offsets_from(client, **parameters):
    text = client.get("/messages", params={"dir": 0, "log": "orders-0"} | parameters).text
    assert "CRC" not in text and "position" not in text
    return offsets(text)


@pytest.mark.parametrize("change", ["removed", "leads too far", "leads into a batch", "empty"])
def test_records_are_found_without_a_right_index_too(copy, change):
    for log in (copy / "orders-0").glob("*.log"):
        batches = scan_segment(str(log)).batches
        wrong = {"leads too far": int(batches["position"][-1]), "leads into a batch": int(batches["position"][1]) + 7}
        log.with_suffix(".index").write_bytes(struct.pack(">ii", 1, wrong[change]) if change in wrong else b"")
        if change == "removed":
            log.with_suffix(".index").unlink()
            log.with_suffix(".timeindex").unlink()
    with opened(directories=[copy]) as (client, _):
        assert offsets_from(client, offset=123) == list(range(123, 173))
        assert offsets_from(client, offset=1) == list(range(1, 51))
        assert offsets_from(client) == list(range(250, 300))
        assert offsets_from(client, time=f"@{START_MS + 123_000}")[0] == 123


def test_a_right_index_leads_past_what_is_before_the_offset(copy, monkeypatch):
    log, starts = copy / "orders-0" / LOG, []
    last = len(scan_segment(str(log)).batches)

    def read_batches(path, start=0, **options):
        if path == str(log):
            starts.append(start)
        return batch_reader.read_batches(path, start, **options)

    monkeypatch.setattr(log_records, "read_batches", read_batches)
    with opened(directories=[copy]) as (client, _):
        assert offsets_from(client, offset=last - 1)[0] == last - 1
        assert offsets_from(client, time=f"@{START_MS + 1000 * (last - 1)}")[0] == last - 1
    assert len(starts) >= 2 and min(starts) > 4096


# -- search -----------------------------------------------------------------------------------------------------------


def finished(client, form):
    """The page of a search that has ended."""
    answer = client.post("/search", data=form | {"token": TOKEN})
    assert answer.status_code == 200, words(answer.text)
    address = str(answer.url)
    return wait_until(lambda: (text := client.get(address).text) and "Cancel</button>" not in text and text)


@pytest.fixture(params=["cluster", "directory"])
def everywhere(request):
    return {"topic": "orders"} if request.param == "cluster" else {"topic": "", "dir": 0}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"text": "value 29"}, [29, *range(290, 300)]),
        ({"text": "key 299"}, [299]),
        ({"text": "key 299", "field": "key"}, [299]),
        ({"text": "key 299", "field": "value"}, []),
        ({"text": "007", "field": "headers"}, [7]),
        ({"text": "trace", "field": "value"}, []),
        ({"text": "ff fe", "as": "hex"}, [1]),
        ({"text": "value", "from": f"@{START_MS + 200_000}", "to": f"@{START_MS + 203_000}"}, [200, 201, 202]),
        ({"text": "<script>", "partition": "1"}, [0]),
    ],
)
def test_a_search_finds_the_records_that_have_the_bytes(client, everywhere, form, expected):
    if "dir" in everywhere and "partition" in form:
        form = form | {"log": "orders-1"}
    text = finished(client, everywhere | form)
    found = re.findall(r'aria-label="orders-\d, offset (\d+)"', text)
    assert [int(number) for number in found] == expected
    assert f"{len(expected)} record" in words(text)


def test_a_search_is_exported_as_the_lines_that_kcore_consume_prints(client, broker, everywhere, capsys):
    assert main(["consume", "orders", "--json", "--bootstrap", broker.bootstrap_servers]) == 0
    expected = sorted(capsys.readouterr().out.splitlines())
    text = finished(client, everywhere | {"text": ""})
    exported = client.get(links(text.replace("Export as JSON lines", "Export"))["Export"])
    assert exported.headers["content-disposition"].endswith('.jsonl"')
    assert sorted(exported.text.splitlines()) == expected
    assert len(expected) == 304 and json.loads(expected[0])["topic"] == "orders"
    assert "304 records, the first 200 are here" in words(text)


@pytest.mark.parametrize(
    ("form", "status", "reason"),
    [
        ({"topic": "orders", "token": "another"}, 400, "is no page's of this server"),
        ({"topic": "orders", "token": ""}, 400, "is no page's of this server"),
        ({"topic": "orders", "text": "xyz", "as": "hex"}, 400, "are no bytes in hex"),
        ({"topic": "orders", "field": "<b>"}, 400, "no part"),
        ({"topic": "orders", "from": "x"}, 400, "from: expected a time"),
        ({"topic": "nothing"}, 404, "there is no topic"),
        ({"topic": "orders", "partition": "9"}, 404, "has no partition 9"),
        ({"topic": "", "dir": "1"}, 400, "search in what?"),
        ({"dir": "0", "log": ".."}, 404, "has no log"),
        ({"topic": "orders", "text": "x" * 70_000}, 400, "a form of more than 65536 bytes"),
    ],
)
def test_a_search_that_cannot_begin_says_why(client, form, status, reason):
    answer = client.post("/search", data={"token": TOKEN} | form)
    assert (answer.status_code, reason in words(answer.text)) == (status, True), words(answer.text)


def test_a_search_is_cancelled_and_keeps_what_it_has_found(broker):
    with opened([address_of(broker)]) as (client, site):
        found = []

        def work(job):
            job.total = 1 << 40
            found.append(job)
            while True:
                job.advance(1)

        site.jobs.start("search", "everything", work)
        wait_until(lambda: found)
        assert "Running" in client.get("/job?id=1").text
        assert client.post("/cancel", data={"id": 1}).status_code == 400  # without the token
        client.post("/cancel", data={"id": 1, "token": TOKEN})
        text = wait_until(lambda: (text := client.get("/job?id=1").text) and "Cancelled" in text and text)
        assert "Cancel</button>" not in text
        assert client.get("/job?id=2").status_code == 404


@pytest.mark.skipif(sys.platform != "linux", reason="a priority of each thread")
def test_a_search_gives_way_to_all_other_threads(directory):
    with opened(directories=[directory]) as (_, site):
        found = []
        site.jobs.start("search", "everything", lambda job: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
        assert wait_until(lambda: found) == [19]


def test_the_search_of_a_page_that_is_closed_ends(directory):
    with opened(directories=[directory]) as (_, site):

        def work(job):
            while True:
                job.advance(1)

        job = site.jobs.start("search", "everything", work)
        wait_until(lambda: job.state == "running")
    assert job.state == "cancelled"
    assert os.listdir(directory)


def test_a_record_with_very_many_headers_is_shown_with_some_of_them(tmp_path):
    with kcore.Broker(str(tmp_path)) as broker:
        broker.create_topic("orders")
        broker.produce("orders", "x", headers=[(f"name {number}", b"y") for number in range(1234)])
        with opened([address_of(broker)]) as (client, _):
            text = client.get("/messages?topic=orders").text
            assert text.count("<dt>Header") == 100
            assert "And 1134 more headers" in words(text)


def test_what_a_search_keeps_of_large_records_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "MOST_SHOWN_BYTES", 25_000)
    with kcore.Broker(str(tmp_path)) as broker:
        broker.create_topic("orders")
        for _ in range(5):
            broker.produce("orders", bytes(10_000))
        with opened([address_of(broker)]) as (client, _):
            text = finished(client, {"topic": "orders"})
            assert "5 records, the first 3 are here" in words(text)


def test_a_search_ends_where_its_export_is_as_large_as_it_may_be(directory, monkeypatch):
    monkeypatch.setattr(search, "MOST_EXPORTED_BYTES", 5000)
    with opened(directories=[directory]) as (client, _):
        text = finished(client, {"dir": 0, "log": "orders-0"})
        assert "the search ended at the most that it exports" in words(text)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_reading_begins_and_ends_inside_a_batch(tmp_path, compression):
    with kcore.open_log(str(tmp_path / "orders-0"), "a") as log:
        builder = kcore.RecordBatchBuilder(compression=compression)
        for number in range(200):
            builder.append(b"%d" % number, timestamp=START_MS + number)
        log.append_as_leader(builder.build())
    with kcore.Broker(str(tmp_path)) as broker, opened([address_of(broker)], [tmp_path]) as (client, _):
        for place in ({"topic": "orders"}, {"dir": 0, "log": "orders-0"}):
            for parameters in ({"offset": 70}, {"time": f"@{START_MS + 70}"}):
                shown = offsets(client.get("/messages", params=place | parameters).text)
                assert shown == list(range(70, 120))
