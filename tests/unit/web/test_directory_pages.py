"""Pages about data directories: lists, and maps of segments."""

import re
import shutil

import pytest

import kcore
from kcore.common.progress import Progress
from kcore.inspect import verify
from kcore.web import directory_pages
from kcore.web.directories import Gap, Stretch, describe, log_names, map_of
from tests.unit.tools.command import LOG, flip
from tests.unit.web.pages import TOKEN, cells, opened, plain, words
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Seven segments of orders-0, 60 other logs that have no records, and what a clean stop leaves."""
    data = tmp_path_factory.mktemp("sound") / "data"
    with kcore.Broker(str(data), log_segment_bytes=16384) as broker:
        broker.create_topic("orders", partitions=1)
        broker.create_topic("many", partitions=60)
        for _ in range(7):
            for _ in range(3):
                broker.produce("orders", bytes(5000), partition=0)
    return data


@pytest.fixture
def data(sound, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(sound, copy)
    return copy


def test_a_directory_of_another_broker_beside_the_logs_is_no_log_by_its_name(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "data" / "broker-0")
    shutil.copytree(sound / "orders-0", tmp_path / "data" / "orders-0")
    assert log_names(str(tmp_path / "data")) == ["orders-0"]
    assert describe(str(tmp_path / "data")).logs == 1


def mapped(log):
    return map_of(str(log), Progress("map", 0, quiet=True))


def test_a_map_of_a_sound_log_has_its_segments_and_no_damage(sound):
    found = mapped(sound / "orders-0")
    assert [(segment.base, segment.end_offset, segment.batches) for segment in found.segments] == [
        (base, base + 3, 3) for base in range(0, 21, 3)
    ]
    assert {(tuple(segment.bad), segment.tail, tuple(segment.gaps)) for segment in found.segments} == {((), None, ())}
    assert found.problems == []


def test_a_map_has_damaged_bytes_where_they_are_and_the_problems_of_verify(data):
    log = data / "orders-0"
    segment = f"{3:020}.log"
    size = (log / segment).stat().st_size // 3
    flip(log / segment, size + 200)
    found = mapped(log)
    assert found.segments[1].bad == [Stretch(size, size)]
    assert found.problems == list(verify(str(log), records=False))
    assert [problem.offset for problem in found.problems if problem.damage] == [4]


def test_a_map_has_gaps_where_a_segment_is_missing_and_the_part_of_a_batch_at_the_end(data):
    log = data / "orders-0"
    for file in log.glob(f"{6:020}.*"):
        file.unlink()
    last = log / f"{18:020}.log"
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size - 10)
    found = mapped(log)
    before = found.segments[1]
    assert before.gaps == [Gap(before.size, 6, 8)]
    size = last.stat().st_size + 10
    assert found.segments[-1].tail == Stretch(size // 3 * 2, size // 3 - 10)


def test_the_pages_lead_from_the_directories_to_the_messages(sound):
    with opened(directories=[sound, sound / "orders-0", sound / "nothing"]) as (client, _):
        home = client.get("/").text
        assert [row[:2] for row in cells(home)] == [
            [str(sound), "61"],
            [str(sound / "orders-0"), "1"],
            [f"{sound}/nothing No such file or directory", "0"],
        ]
        assert cells(home)[0][4] == "yes"
        listed = client.get("/directory?dir=0").text
        assert [row[0] for row in cells(listed)] == sorted(f"many-{number}" for number in range(60))[:50]
        found = client.get("/directory?dir=0&q=ORDERS").text
        size = sum(path.stat().st_size for path in (sound / "orders-0").glob("*.log"))
        assert cells(found)[0][:3] == ["orders-0", "7", f"{size / 1024:.1f}KiB"]
        text = client.get("/log?dir=0&log=orders-0").text
        assert [row[0] for row in cells(text)] == [str(base) for base in range(0, 21, 3)]
        assert "No damage" in words(text)
        alone = client.get("/log?dir=1&log=.").text
        assert [row[0] for row in cells(alone)] == [row[0] for row in cells(text)]
        assert client.get("/directory?dir=3").status_code == 404
        assert client.get("/directory?dir=2").status_code == 502


def test_damage_is_red_and_gaps_are_hatched(data):
    flip(data / "orders-0" / LOG, 200)
    for file in (data / "orders-0").glob(f"{6:020}.*"):
        file.unlink()
    with opened(directories=[data]) as (client, _):
        text = client.get("/log?dir=0&log=orders-0").text
    bars = re.findall(r'<svg class="map".*?</svg>', text, re.S)
    marks = [(bar.count('class="bad"'), bar.count('class="gap-back"')) for bar in bars]
    assert marks == [(1, 0), (0, 1)] + [(0, 0)] * 4
    assert "Offsets 6 to 8 are in no batch" in plain(bars[1])
    assert re.search(r"\d damaged places?", words(text))
    assert "CRC-32C" in words(text)


def test_a_large_log_is_read_when_the_reader_says_so(sound, monkeypatch):
    monkeypatch.setattr(directory_pages, "_READ_AT_ONCE_BYTES", 1)
    with opened(directories=[sound]) as (client, _):
        text = client.get("/log?dir=0&log=orders-0").text
        assert "This log is large" in words(text) and "No damage" not in words(text)
        assert len(cells(text)) == 7
        assert client.post("/check", data={"dir": 0, "log": "orders-0"}).status_code == 400
        answer = client.post("/check", data={"dir": 0, "log": "orders-0", "token": TOKEN})
        address = str(answer.url)
        done = wait_until(lambda: (text := client.get(address).text) and "Cancel</button>" not in text and text)
        assert "No damage" in words(done) and len(cells(done)) == 7
        read, total = re.search(r": (\S+) of (\S+)", words(done)).groups()
        assert read == total != "0B"
