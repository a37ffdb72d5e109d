"""kcore replay, against brokers of this process."""

import os
import signal
import threading

import pytest

import kcore
from kcore.client.topic_producer import TopicProducer
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.testing import MockTime
from kcore.tools import delivery
from kcore.tools import replay as replay_module
from kcore.tools.main import main
from tests.unit.log.logs import batch, idempotent, marker
from tests.unit.tools.command import run_json

T0 = 1_700_000_000_000
#: (partition, ms after T0)
TIMES = [(0, 0), (1, 40), (0, 100), (0, 90), (1, 2500), (2, 10_000)]
VALUES = [b"%d" % number for number in range(len(TIMES))]


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker(log_retention_ms=-1) as broker:
        broker.create_topic("orders", 3)
        for number, (partition, after_ms) in enumerate(TIMES):
            key = None if number == 1 else b"k%d" % (number % 2)
            headers = {"n": b"%d" % number, "none": None}
            broker.produce("orders", VALUES[number], key, headers, T0 + after_ms, partition)
        broker.produce("orders", None, b"gone", None, T0 + 10_000, 2)
        yield broker


@pytest.fixture(scope="module")
def directories(broker, tmp_path_factory):
    """Of the partitions of orders."""
    data = tmp_path_factory.mktemp("mirrored")
    assert main(["mirror", broker.bootstrap_servers, "orders", str(data)]) == 0
    return [data / f"orders-{number}" for number in range(3)]


@pytest.fixture
def target(broker, request):
    name = f"t{abs(hash(request.node.name))}"
    broker.create_topic(name, 3)
    return name


@pytest.fixture
def clock(monkeypatch):
    time = MockTime()
    monkeypatch.setattr(replay_module, "SYSTEM_TIME", time)
    return time


@pytest.fixture
def replay(broker, capfd, clock):
    """(exit status, stderr)"""

    def replay(*words):
        status = main(["replay", *map(str, words), "--bootstrap", broker.bootstrap_servers])
        out, err = capfd.readouterr()
        assert out == ""
        return status, err

    return replay


def records(broker, topic, **options):
    return [(r.partition, r.timestamp, r.key, r.value, list(r.headers)) for r in broker.consume(topic, **options)]


@pytest.fixture
def sent(monkeypatch, clock):
    """(ms after the first one, value) of each record that is given to the producer."""
    times = []
    append = TopicProducer.append

    def noted(producer, partition, record):
        times.append((clock.hi_res_clock_ms(), record.value))
        return append(producer, partition, record)

    monkeypatch.setattr(TopicProducer, "append", noted)
    return times


def after_the_first(sent):
    return [(round(ms - sent[0][0], 6), value) for ms, value in sent]


def test_the_records_of_a_topic_keep_all_that_they_have(broker, replay, target):
    status, err = replay("orders", target, "--speed", "max")
    assert status == 0 and "7 records acknowledged in " in err
    assert records(broker, target) == records(broker, "orders")
    assert len(records(broker, target)) == 7


@pytest.mark.parametrize(("words", "factor"), [([], 1), (["--speed", "10"], 10), (["--speed", "0.5"], 0.5)])
def test_each_record_comes_as_long_after_the_first_as_it_was(replay, target, sent, words, factor):
    assert replay("orders", target, *words, "--quiet") == (0, "")
    # By time over all partitions; the record of partition 0 that is older than the one before it comes with that one.
    order = [(0, 0), (40, 1), (100, 2), (100, 3), (2500, 4), (10_000, 5)]
    assert after_the_first(sent) == [(ms / factor, VALUES[n]) for ms, n in order] + [(10_000 / factor, None)]


def test_speed_max_waits_for_nothing(replay, target, sent, clock):
    assert replay("orders", target, "--speed", "max", "--quiet") == (0, "")
    assert {ms for ms, _ in sent} == {sent[0][0]} and len(sent) == 7


def test_what_is_due_is_there_before_the_next_wait(broker, replay, target, clock, monkeypatch):
    seen = []
    sleep = clock.sleep

    def looked(ms):
        seen.append((round(clock.hi_res_clock_ms()), len(records(broker, target))))
        sleep(ms)

    monkeypatch.setattr(clock, "sleep", looked)
    assert replay("orders", target, "--quiet") == (0, "")
    assert {count for ms, count in seen if ms < 40} == {1}
    assert {count for ms, count in seen if 100 <= ms < 2500} == {4}
    assert {count for ms, count in seen if ms >= 2500} == {5}


def test_partition_directories_are_a_source_without_a_broker(broker, directories, replay, target, sent):
    status, err = replay(*reversed(directories), target)
    assert status == 0 and "7 records acknowledged" in err
    assert records(broker, target) == records(broker, "orders")
    assert after_the_first(sent)[4] == (2500, VALUES[4])


def test_a_part_of_the_source(broker, replay, target):
    places = ("--from", f"@{T0 + 90}", "--until", f"@{T0 + 10_000}")
    assert replay("orders", target, "--speed", "max", *places)[0] == 0
    assert [value for _, _, _, value, _ in records(broker, target)] == [VALUES[2], VALUES[3], VALUES[4]]
    assert replay("orders", target, "--speed", "max", "--partition", "0", "--from", "1", "--max", "1")[0] == 0
    assert [r[3] for r in records(broker, target, partition=0)] == [VALUES[2], VALUES[3], VALUES[2]]


def test_a_part_of_a_directory(broker, directories, replay, target):
    places = ("--from", f"@{T0 + 90}", "--until", f"@{T0 + 10_000}")
    assert replay(*directories, target, "--speed", "max", *places)[0] == 0
    assert [value for _, _, _, value, _ in records(broker, target)] == [VALUES[2], VALUES[3], VALUES[4]]
    assert replay(*directories, target, "--speed", "max", "--partition", "0", "--until", "1")[0] == 0
    assert [r[3] for r in records(broker, target, partition=0)] == [VALUES[2], VALUES[3], VALUES[0]]


def test_fewer_partitions_need_repartition(broker, replay):
    broker.create_topic("narrow")
    status, err = replay("orders", "narrow")
    assert status == 2 and "narrow has no partition 2" in err and "`kcore topics alter narrow --partitions 3`" in err
    assert records(broker, "narrow") == []
    assert replay("orders", "narrow", "--repartition", "--speed", "max")[0] == 0
    assert len(records(broker, "narrow")) == 7


def test_records_of_aborted_and_open_transactions_stay_away(replay, broker, target, tmp_path):
    directory = tmp_path / "txn-0"
    with kcore.open_log(directory, "a") as log:
        log.append_as_leader(batch(1, timestamp=T0))
        log.append_as_leader(idempotent(5, 0, 2, is_transactional=True))
        log.append_as_leader(marker(5, commit=False), origin=AppendOrigin.COORDINATOR)
        log.append_as_leader(batch(1, timestamp=T0))
        log.append_as_leader(idempotent(6, 0, 3, is_transactional=True))
        log.append_as_leader(batch(1, timestamp=T0))
    assert replay(directory, target)[0] == 0
    assert len(records(broker, target)) == 2
    assert replay(directory, target, "--isolation-level", "read_uncommitted")[0] == 0
    assert len(records(broker, target)) == 2 + 8


def test_another_cluster_is_the_source(broker, target, clock, tmp_path, capfd):
    with kcore.Broker(tmp_path / "other", log_retention_ms=-1) as other:
        for number in range(3):
            other.produce(target, b"%d" % number, timestamp=T0 + number)
        words = ["--source-bootstrap", other.bootstrap_servers, "--bootstrap", broker.bootstrap_servers]
        assert main(["replay", target, target, *words]) == 0
    assert [value for _, _, _, value, _ in records(broker, target)] == [b"0", b"1", b"2"]


def test_json_has_what_each_partition_got(broker, target, clock, capsys):
    words = ("orders", target, "--speed", "max", "--bootstrap", broker.bootstrap_servers)
    status, lines = run_json(capsys, "replay", *words)
    assert status == 0
    assert lines == [
        {"topic": target, "partition": number, "records": count, "first_offset": 0, "last_offset": count - 1}
        for number, count in enumerate((3, 2, 2))
    ]


def test_a_record_that_is_refused_is_named_and_the_others_are_written(broker, replay):
    broker.create_topic("compacted", 3, cleanup_policy="compact")
    status, err = replay("orders", "compacted", "--speed", "max")
    assert status == 1
    assert "kcore: partition 1, offset 0: InvalidRecord: " in err and "1 record not written" in err
    assert len(records(broker, "compacted")) == 6


def test_timestamps_that_leaders_replace_are_said(broker, replay):
    broker.create_topic("arrival", 3, message_timestamp_type="LogAppendTime")
    status, err = replay("orders", "arrival", "--speed", "max", "--quiet")
    assert (status, err) == (
        0,
        "kcore: arrival has message.timestamp.type=LogAppendTime: its leaders replace the timestamps\n",
    )


def test_ctrl_c_ends_it_and_says_what_is_acknowledged(broker, replay, target, clock, monkeypatch):
    stopped = threading.Event()
    stop_on_signal = delivery.stop_on_signal
    monkeypatch.setattr(delivery, "stop_on_signal", lambda stop: stop_on_signal(lambda: (stop(), stopped.set())))

    def interrupted(ms):
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(60)

    monkeypatch.setattr(clock, "sleep", interrupted)
    status, err = replay("orders", target)
    assert status == 130
    assert "1 record acknowledged in " in err and "all that was read is acknowledged" in err
    assert len(records(broker, target)) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["orders", "orders"], "orders would get its own records again"),
        (["ordesr", "{target}"], "did you mean orders?"),
        (["orders", "none-such"], "there is no topic 'none-such': `kcore topics create none-such` makes it"),
        (["none-such", "{target}"], "there is no topic 'none-such'; `kcore topics list` shows those that are there"),
        (["tests", "{target}"], "there is no topic 'tests'; a directory has a slash in its name, as ./tests"),
        (["orders", "other", "{target}"], "expected one SOURCE topic"),
        (["orders", "./orders-0", "{target}"], "expected one topic, or directories of partitions"),
        (["/no/such/orders-0", "{target}"], "/no/such/orders-0: No such file or directory"),
        (["/tmp/", "{target}"], "/tmp/ is no directory of a partition"),
        (["orders", "{target}", "--speed", "0"], "expected a factor, as 1, 10 or 0.5, or max"),
        (["orders", "{target}", "--speed", "nan"], "expected a factor"),
        (["orders", "{target}", "--partition", "7"], "orders has no partition 7"),
    ],
)
def test_what_cannot_be_replayed_is_named_and_nothing_is_written(
    broker, replay, target, words, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    status, err = replay(*(word.format(target=target) for word in words))
    assert status == 2 and reason in err
    assert records(broker, target) == []
