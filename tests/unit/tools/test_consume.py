"""kcore consume, against brokers of this process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.testing.kafka_fixture import KafkaFixture
from kcore.tools.cluster_command import group_client
from kcore.tools.command_line import Arguments
from kcore.tools.main import main
from tests import golden_data
from tests.unit.tools.command import LOG
from tests.unit.tools.test_groups import coordinator, member
from tests.waiting import wait_until

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000
#: (key, value, headers) that --json must tell apart.
ODD_RECORDS = [
    (b"\xff\x00", None, {}),
    (None, b"", {}),
    (b"", b"\xc3\x28 is not UTF-8", {"": None, "empty": b"", "raw": b"\xfe"}),
    (b'{"hex": "00"}', '\u2028 \0 \n " \\ \U0001f600'.encode(), {"\u00e9": b"x"}),
]


@pytest.fixture(scope="module")
def broker():
    # The timestamps are old: retention would delete the records after 30 s.
    with kcore.Broker(offsets_topic_num_partitions=1, log_retention_ms=-1) as broker:
        broker.create_topic("orders", 3)
        for number in range(9):
            headers = {"origin": b"shop", "n": b"%d" % number} if number % 2 else {"flag": None}
            broker.produce("orders", f"v{number}", b"k%d" % (number % 2), headers, T0 + number * HOUR_MS, number // 3)
        yield broker


@pytest.fixture
def consume(broker, capfdbinary):
    """stdout, as bytes; the exit status must be 0 and stderr empty."""

    def consume(*words, topic="orders"):
        status = main(["consume", topic, *words, "--bootstrap", broker.bootstrap_servers])
        out, err = capfdbinary.readouterr()
        assert (status, err) == (0, b"")
        return out

    return consume


@pytest.fixture
def refused(broker, capfdbinary):
    """stderr; the exit status must be 2 and stdout empty."""

    def refused(*words, topic="orders"):
        status = main(["consume", topic, *words, "--bootstrap", broker.bootstrap_servers])
        out, err = capfdbinary.readouterr()
        assert (status, out) == (2, b"")
        return err.decode()

    return refused


def values(out):
    return sorted(out.decode().split())


def all_values(*numbers):
    return sorted(f"v{number}" for number in numbers)


def test_a_line_for_each_value_of_all_partitions_up_to_the_end(consume):
    assert values(consume()) == all_values(*range(9))
    assert consume("--partition", "1") == b"v3\nv4\nv5\n"
    assert values(consume("--partition", "0", "--partition", "2")) == all_values(0, 1, 2, 6, 7, 8)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--from", "earliest"], range(9)),
        (["--from", "latest"], []),
        (["--from", "1"], [1, 2, 4, 5, 7, 8]),
        (["--offset", "2"], [2, 5, 8]),
        (["-o", "2"], [2, 5, 8]),
        (["-o", "-1h"], []),
        (["--from-beginning"], range(9)),
        (["--from", f"@{T0 + 4 * HOUR_MS}"], [4, 5, 6, 7, 8]),
        (["--from", "2023-11-15T02:13:21Z"], [5, 6, 7, 8]),
        (["--from", "2023-11-15T02:13:20"], [4, 5, 6, 7, 8]),
        (["--from", "-1h"], []),
        (["--until", "end"], range(9)),
        (["--until", "1"], [0, 3, 6]),
        (["--until", "100"], range(9)),
        (["--until", f"@{T0 + 4 * HOUR_MS}"], [0, 1, 2, 3]),
        (["--until", "-1h"], range(9)),
        (["--from", "1", "--until", "2"], [1, 4, 7]),
        (["--tail", "1"], [2, 5, 8]),
        (["--tail", "100"], range(9)),
        (["--from", "@1", "--partition", "1"], [3, 4, 5]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and isinstance(value[0], str) else None,
)
def test_where_it_begins_and_ends(consume, words, expected):
    assert values(consume(*words)) == all_values(*expected)


def test_it_ends_after_so_many_records(consume):
    assert consume("--partition", "1", "--max", "2") == b"v3\nv4\n"
    assert consume("--partition", "1", "--max-messages", "3") == b"v3\nv4\nv5\n"
    assert len(values(consume("--max", "4"))) == 4


def test_only_records_with_a_key_and_with_headers(consume):
    assert values(consume("--key", "k1")) == all_values(1, 3, 5, 7)
    assert values(consume("--key", "k")) == []
    assert values(consume("--header", "origin")) == all_values(1, 3, 5, 7)
    assert values(consume("--header", "flag")) == all_values(0, 2, 4, 6, 8)
    assert values(consume("--header", "flag=")) == []
    assert values(consume("--header", "n=5")) == all_values(5)
    assert values(consume("--header", "origin=shop", "--header", "n=3", "--key", "k1")) == all_values(3)
    assert consume("--partition", "1", "--key", "k1", "--max", "1") == b"v3\n"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("offset == 1", [1, 4, 7]),
        ("partition == 2 and key == 'k1'", [7]),
        ("value in ('v3', 'v8')", [3, 8]),
        (f"timestamp >= {T0 + 7 * HOUR_MS}", [7, 8]),
        ("headers.get('n') == '5'", [5]),
        ("'flag' in headers", [0, 2, 4, 6, 8]),
        ("topic == 'orders' and re.search('[67]$', value)", [6, 7]),
        ("any(number == int(value[1:]) for number in (2, 3))", [2, 3]),
        ("(n := int(value[1:])) > 6 and n < 8", [7]),
        ("key == 'k1' and any(key == 'n' for key in headers)", [1, 3, 5, 7]),
        ("json is None", range(9)),
        ("True", range(9)),
        ("False", []),
    ],
)
def test_only_records_for_which_an_expression_is_true(consume, expression, expected):
    assert values(consume("--where", expression)) == all_values(*expected)


def test_an_expression_sees_what_the_other_filters_have_left_and_counts_before_max(consume):
    assert values(consume("--where", "int(value[1:]) > 2", "--key", "k1")) == all_values(3, 5, 7)
    assert consume("--partition", "1", "--where", "offset > 0", "--max", "1") == b"v4\n"


def test_an_expression_of_json_null_and_bytes_that_are_no_text(broker, consume):
    broker.create_topic("events", 1)
    for value in (b'{"price": 3}', b'{"price": 12}', b"no json", b"\xff", None):
        broker.produce("events", value)
    assert consume("--where", "json and json['price'] > 9", topic="events") == b'{"price": 12}\n'
    assert consume("--where", "value == b'\\xff'", topic="events") == b"\xff\n"
    assert consume("--where", "value is None", "--format", "%o", topic="events") == b"4"


def test_an_expression_that_is_none_or_fails_is_refused(refused):
    assert "--where 'offset >' is no Python expression: invalid syntax" in refused("--where", "offset >")
    line = refused("--where", "ofset > 1")
    assert "ofset is not known; a record has topic, partition, offset" in line and "did you mean offset?" in line
    line = refused("--where", "(f := lambda n: f(n)) and f(offset)", "--partition", "1")
    assert line.startswith("kcore: --where fails at offset 0 of orders-1: RecursionError: ")


@pytest.fixture
def noted(broker, capfdbinary):
    """stdout and stderr; the exit status must be 0."""

    def noted(*words, topic="orders"):
        status = main(["consume", topic, *words, "--bootstrap", broker.bootstrap_servers])
        out, err = capfdbinary.readouterr()
        assert status == 0
        return out, err.decode()

    return noted


def test_a_record_whose_values_an_expression_cannot_compare_does_not_match(broker, consume):
    broker.create_topic("prices", 1)
    prices = [b'{"price": 12}', b'{"price": "12"}', b'{"price": null}', b"{}", b"[]", b"no json", b"7", None]
    for value in (*prices, b'{"price": 99}', b'{"price": 1}', b'{"price": 0}'):
        broker.produce("prices", value)
    above = b'{"price": 12}\n{"price": 99}\n'
    assert consume("--where", "json['price'] > 9", topic="prices") == above
    assert consume("--where", "json['price'] > 9", "--max", "2", topic="prices") == above
    assert consume("--where", "int(json['price']) == 12", topic="prices") == b'{"price": 12}\n{"price": "12"}\n'
    assert consume("--where", "json.get('price') > 9", topic="prices") == above
    assert consume("--where", "100 / json['price'] == 100", topic="prices") == b'{"price": 1}\n'
    assert consume("--where", "json['price'] > 100", topic="prices") == b""


def test_an_expression_that_fails_for_each_record_is_named_at_the_end(noted, tmp_path):
    none = "'NoneType' object is not subscriptable"
    out, err = noted("--where", "json['price'] > 9", "--partition", "1")
    assert out == b"" and err == (
        f"kcore: --where fails for each of 3 records, so none matches: TypeError: {none} at offset 0 of orders-1\n"
    )
    words = ("--partition", "1", "--key", "k0", "--format", "parquet", "--output", str(tmp_path / "x.parquet"))
    assert noted("--where", "json['price'] > 9", *words)[1] == (
        f"kcore: --where fails for the only record, so none matches: TypeError: {none} at offset 1 of orders-1\n"
    )
    assert noted("--where", "json['price'] > 9", "--partition", "1", "--key", "no")[1] == ""
    assert noted("--where", "offset < 2 or json['price']", "--partition", "1") == (b"v3\nv4\n", "")


def test_for_a_group_an_expression_that_fails_for_each_record_commits_nothing(noted):
    """It may be misspelt, and the group would miss what it should have chosen."""
    words = ("--group", "where", "--partition", "1", "--where")
    assert noted(*words, "json['price'] > 9")[1].endswith("; what group where has committed stays as it is\n")
    assert noted(*words, "offset != 1") == (b"v3\nv5\n", "")
    assert noted(*words, "json['price'] > 9") == (b"", "")  # all is committed now


def test_json_has_the_fields_that_dump_has(tmp_path, capfdbinary):
    with kcore.Broker(tmp_path, log_retention_ms=-1) as broker:
        broker.create_topic("odd")
        for number, (key, value, headers) in enumerate(ODD_RECORDS):
            broker.produce("odd", value, key, headers, T0 + number)
        assert main(["consume", "odd", "--json", "--bootstrap", broker.bootstrap_servers]) == 0
    consumed = [json.loads(line) for line in capfdbinary.readouterr().out.split(b"\n")[:-1]]
    assert main(["dump", "--json", str(tmp_path / "odd-0")]) == 0
    dumped = [json.loads(line) for line in capfdbinary.readouterr().out.split(b"\n")[:-1]]
    dumped = [event for event in dumped if event["type"] == "record"]
    assert len(consumed) == len(dumped) == len(ODD_RECORDS)
    for printed, event in zip(consumed, dumped, strict=True):
        assert (printed.pop("topic"), printed.pop("partition")) == ("odd", 0)
        assert printed == {name: event[name] for name in printed}
        assert event.keys() - printed.keys() == {"type", "file", "key_size", "value_size", "sequence"}


def test_a_format_as_that_of_kcat(consume):
    out = consume("--partition", "0", "--max", "2", "--format", r"%t/%p/%o %k(%K)=%s(%S) %h %T%%\x21\t\\|\n")
    assert out == (
        b"orders/0/0 k0(2)=v0(2) flag=NULL %d%%!\t\\|\n" % T0
        + b"orders/0/1 k1(2)=v1(2) origin=shop,n=1 %d%%!\t\\|\n" % (T0 + HOUR_MS)
    )
    assert consume("--partition", "0", "--max", "1", "--format", "%R") == b"\0\0\0\2"
    assert consume("--partition", "0", "--max", "2", "--format", "") == b""


def test_the_topic_as_kafkas_console_consumer_has_it(broker, capfdbinary):
    at = ["--bootstrap-server", broker.bootstrap_servers]
    assert main(["consume", *at, "--topic", "orders", "--from-beginning", "--partition", "1"]) == 0
    assert capfdbinary.readouterr() == (b"v3\nv4\nv5\n", b"")
    for words in (["orders", "--topic", "orders"], []):
        assert main(["consume", *at, *words]) == 2
        assert capfdbinary.readouterr() == (b"", b"kcore: expected one TOPIC\n")


def test_the_format_json_is_json_as_that_of_produce_and_dump(consume):
    assert consume("--partition", "0", "--format", "json") == consume("--partition", "0", "--json")
    assert consume("--partition", "0", "--format", r".\n") == b".\n" * 3


def test_what_the_command_line_cannot_mean_is_refused(refused):
    assert "the format 'jsn' has no %letter" in (line := refused("--format", "jsn")) and "did you mean json?" in line
    assert "did you mean parquet?" in refused("--format", "paquet")
    assert "did you mean" not in refused("--format", "one by one")
    assert "'%q' of the format means nothing" in refused("--format", "%q")
    assert "'%' of the format means nothing" in refused("--format", "50%")
    assert "expected earliest, latest, an offset or a time" in refused("--from", "yesterday")
    assert "orders has no partition 3: it has 3 partitions, 0 to 2" in refused("--partition", "3")
    assert "--until can only be an offset" in refused("--follow", "--until", "-1h")
    assert refused(topic="ordres") == "kcore: there is no topic 'ordres'; did you mean orders?\n"
    assert "there is no topic" in refused(topic="nothing-like-it") and "or/ders" in refused(topic="or/ders")


def test_a_group_goes_on_where_it_has_committed(broker, consume):
    broker.create_topic("clicks", 2)
    for number in range(4):
        broker.produce("clicks", f"v{number}", partition=number % 2)
    words = ["--group", "reader"]
    assert consume(*words, "--partition", "0", "--max", "1", topic="clicks") == b"v0\n"
    assert values(consume(*words, topic="clicks")) == all_values(1, 2, 3)
    assert consume(*words, topic="clicks") == b""
    broker.produce("clicks", "v4", partition=0)
    assert consume(*words, topic="clicks") == b"v4\n"
    # What is not committed begins at --from.
    assert values(consume("--group", "other", "--from", "1", topic="clicks")) == all_values(2, 3, 4)


def test_for_a_group_with_members_nothing_is_printed(capfdbinary):
    with kcore.Cluster(1, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders")
        cluster.produce("orders", "v")
        with coordinator(cluster, "busy") as (client, _), member(client, "busy", [0]):
            status = main(["consume", "orders", "--group", "busy", "--bootstrap", cluster.bootstrap_servers])
    out, err = capfdbinary.readouterr()
    assert (status, out) == (2, b"")
    assert b"kcore: nothing is printed: the group busy has 1 member, " in err and b"Stop them first" in err


def test_an_offset_of_a_group_that_is_after_the_end_of_the_log_is_no_silent_end(broker, consume, refused):
    broker.create_topic("anew")
    for _ in range(3):
        broker.produce("anew", "v")
    with group_client(Arguments(bootstrap=broker.bootstrap_servers, timeout=30)) as (client, _):
        assert client.commit_offsets("g", {TopicPartition("anew", 0): 4}) == {TopicPartition("anew", 0): None}
    assert "anew-0: the group g has committed offset 4, the log ends at 3" in refused("--group", "g", topic="anew")


def test_a_first_offset_that_is_after_the_end_of_the_log_is_no_silent_end(broker, consume, refused):
    end = "offset 4 is after the end of the log: orders-0 ends at 3, orders-1 ends at 3, orders-2 ends at 3"
    assert end in refused("--from", "4")
    assert end in refused("--from", "4", "--follow")
    assert consume("--from", "3") == b""
    broker.create_topic("uneven", 2)
    for _ in range(3):
        broker.produce("uneven", "v", partition=0)
    assert consume("--from", "2", topic="uneven") == b"v\n"
    assert "uneven-1 ends at 0\n" in refused("--from", "2", "--follow", topic="uneven")


def test_a_first_offset_that_an_open_transaction_holds_back_is_not_after_the_end(broker, consume):
    broker.create_topic("held")
    with broker.transaction("holds") as transaction:
        for _ in range(3):
            transaction.produce("held", "v")
        assert consume("--from", "2", "--isolation-level", "read_committed", topic="held") == b""


def test_it_ends_though_records_come_all_the_time(broker, consume):
    broker.create_topic("busy")
    stopped = threading.Event()

    def produce():
        while not stopped.is_set():
            broker.produce("busy", "v")

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(lambda: broker.log("busy").log_end_offset > 10)
        before = broker.log("busy").log_end_offset
        count = len(consume(topic="busy").splitlines())
        assert before <= count <= broker.log("busy").log_end_offset
    finally:
        stopped.set()
        thread.join()


class Following:
    """`kcore consume --follow` in a process of its own."""

    def __init__(self, *words):
        command = [sys.executable, "-m", "kcore", "consume", *words]
        # A shell that runs the tests in the background may have them ignore SIGINT.
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def lines(self, count):
        return [self.process.stdout.readline() for _ in range(count)]

    def ended(self):
        """(exit status, stderr)."""
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_it_follows_until_ctrl_c_and_commits_what_it_has_printed(broker, consume):
    broker.create_topic("news", 2)
    broker.produce("news", "v0", partition=0)
    words = "news", "--group", "follower", "--bootstrap", broker.bootstrap_servers
    with Following(*words, "--follow") as following:
        assert following.lines(1) == [b"v0\n"]
        broker.produce("news", "v1", partition=1)
        assert following.lines(1) == [b"v1\n"]
        broker.produce("news", "v2", partition=1)
        assert following.lines(1) == [b"v2\n"]
        with group_client(Arguments(bootstrap=broker.bootstrap_servers, timeout=30)) as (client, _):
            wait_until(lambda: set(client.committed_offsets("follower").values()) == {1, 2})
        following.process.send_signal(signal.SIGINT)
        assert following.ended() == (0, b"")
    assert consume("--group", "follower", topic="news") == b""


def test_it_follows_from_the_end_up_to_an_offset(broker):
    broker.create_topic("ticks")
    broker.produce("ticks", "v0")
    words = "ticks", "--follow", "--tail", "1", "--until", "3", "--bootstrap", broker.bootstrap_servers
    with Following(*words) as following:
        assert following.lines(1) == [b"v0\n"]
        for number in range(1, 5):
            broker.produce("ticks", f"v{number}")
        assert following.lines(3) == [b"v1\n", b"v2\n", b""]
        assert following.ended() == (0, b"")


def test_a_reader_that_leaves_ends_it_quietly(broker):
    broker.create_topic("large")
    for _ in range(20):
        broker.produce("large", b"x" * 100_000)
    command = f"{sys.executable} -m kcore consume large --bootstrap {broker.bootstrap_servers}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 10; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, b"x" * 10, b"")


def assert_read_as_the_broker_reads_it(broker, topic, isolation, capfdbinary):
    """The records that the command printed."""
    words = ["--format", r"%p %o %T %k|%s\n", "--isolation-level", isolation]
    assert main(["consume", topic, *words, "--bootstrap", broker.bootstrap_servers]) == 0
    printed = capfdbinary.readouterr().out
    expected = [
        b"%d %d %d %b|%b\n" % (r.partition, r.offset, r.timestamp, r.key or b"", r.value or b"")
        for r in broker.consume(topic, isolation=isolation)
    ]
    assert sorted(printed.split(b"\n")) == sorted(b"".join(expected).split(b"\n")), topic
    return len(expected)


def test_an_unbuffered_stdout_gets_all_of_it(broker):
    broker.create_topic("wide")
    for _ in range(20):
        broker.produce("wide", b"x" * 100_000)
    done = subprocess.run(
        [sys.executable, "-u", "-m", "kcore", "consume", "wide", "--bootstrap", broker.bootstrap_servers],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, (b"x" * 100_000 + b"\n") * 20, b"")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_all_codecs_and_transactions_are_read_as_the_broker_itself_reads_them(isolation, tmp_path, capfdbinary):
    shutil.copytree(golden_data.data_dir(), tmp_path, dirs_exist_ok=True)
    topics = {partition.rpartition("-")[0] for partition in golden_data.partitions()}
    with kcore.Broker(tmp_path) as broker:
        counts = {
            topic: assert_read_as_the_broker_reads_it(broker, topic, isolation, capfdbinary) for topic in sorted(topics)
        }
    assert (counts["g-txn-open"] == 0) == (isolation == "read_committed")
    assert all(counts[f"g-{codec}"] for codec in ("gzip", "snappy", "lz4", "zstd"))


def test_messages_of_magic_0_and_1_are_read_as_the_broker_itself_reads_them(tmp_path, capfdbinary):
    files = sorted(golden_data.golden_file("old-formats/README.md").parent.glob("*.log"))
    for path in files:
        (tmp_path / f"{path.stem}-0").mkdir()
        shutil.copy(path, tmp_path / f"{path.stem}-0" / LOG)
    with kcore.Broker(tmp_path, log_retention_ms=-1) as broker:
        for path in files:
            assert assert_read_as_the_broker_reads_it(broker, path.stem, "read_uncommitted", capfdbinary)


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka(broker):
    kafka = KafkaFixture(broker)
    yield kafka
    kafka.end_faults()


@pytest.mark.parametrize(
    "fault", [{"error": "NOT_LEADER_OR_FOLLOWER"}, {"error": "UNKNOWN_TOPIC_OR_PARTITION"}, {"cut": "before"}]
)
@pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
def test_what_passes_is_tried_again(kafka, consume, api, fault):
    with kafka.fault(api, client_id="kcore*", times=2, **fault) as made:
        assert values(consume()) == all_values(*range(9))
    assert made.hits == 2


def test_what_does_not_pass_ends_it_with_the_partition_and_the_offset(kafka, refused):
    with kafka.fault("Fetch", error="TOPIC_AUTHORIZATION_FAILED", client_id="kcore-consume"):
        error = refused("--partition", "1")
    assert error.startswith(f"kcore: {kafka.broker.bootstrap_servers}: TopicAuthorizationFailed: ")


def test_after_the_time_out_the_partition_and_the_reason_are_named(kafka, refused):
    with kafka.fault("Fetch", error="LEADER_NOT_AVAILABLE", client_id="kcore-consume"):
        error = refused("--partition", "1", "--timeout", "1")
    assert error.startswith(
        f"kcore: orders-1: no records for 1 s: {kafka.broker.bootstrap_servers}: LeaderNotAvailable"
    )
    with kafka.fault("Fetch", silent=True, client_id="kcore-consume"):
        error = refused("--partition", "1", "--timeout", "1")
    assert f"orders-1: no records for 1 s: {kafka.broker.bootstrap_servers}: no answer (timeout 1 s)" in error


def test_records_that_retention_takes_while_they_are_read_are_named(broker, kafka, capfdbinary):
    broker.create_topic("short")
    for number in range(5):
        broker.produce("short", f"v{number}")
    words = ["consume", "short", "--from", "1", "--bootstrap", broker.bootstrap_servers]
    assert main([*words, "--follow", "--from", "6"]) == 2
    assert capfdbinary.readouterr().err == b"kcore: offset 6 is after the end of the log: short-0 ends at 5\n"
    broker.log("short").maybe_increment_log_start_offset(3)
    assert main(words) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"v3\nv4\n"
    assert err == b"kcore: short-0: offsets 1 to 2 are not in the log any more; going on at 3\n"


@pytest.mark.parametrize("words", [[], ["--group", "heirs"]], ids=["", "group"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read_ends_it(broker, is_made_again, words):
    broker.create_topic("doomed")
    broker.produce("doomed", "v0")
    with Following("doomed", "--follow", *words, "--bootstrap", broker.bootstrap_servers) as following:
        assert following.lines(1) == [b"v0\n"]
        broker.delete_topic("doomed")
        if is_made_again:
            broker.create_topic("doomed")
        status, err = following.ended()
    again = " and made again" if is_made_again else ""
    assert (status, err.decode()) == (2, f"kcore: the topic doomed was deleted{again}\n")
    if is_made_again:
        broker.delete_topic("doomed")


def test_leaders_that_move_are_followed():
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders", 2, replication_factor=2)
        cluster.wait_until_led("orders")
        words = "orders", "--follow", "--bootstrap", cluster.bootstrap_servers
        with Following(*words) as following:
            expected = []
            for number in range(4):
                expected.append(b"v%d\n" % number)
                cluster.produce("orders", f"v{number}", partition=0)
                assert following.lines(1) == expected[-1:]
                if number < 3:
                    cluster.wait_until_in_sync("orders")
                    cluster.move_leader("orders", 0, to=1 - cluster.leader("orders", 0))
            following.process.send_signal(signal.SIGINT)
            assert following.ended() == (0, b"")


def test_a_broker_that_is_killed_costs_no_record():
    with kcore.Cluster(2, offsets_topic_num_partitions=1) as cluster:
        cluster.create_topic("orders", 2, replication_factor=2)
        cluster.wait_until_in_sync("orders")
        with Following("orders", "--follow", "--bootstrap", cluster.bootstrap_servers) as following:
            for number in range(2):
                cluster.produce("orders", f"v{number}", partition=number)
            assert sorted(following.lines(2)) == [b"v0\n", b"v1\n"]
            killed = cluster.leader("orders", 0)
            cluster.kill(killed)
            for number in range(2):
                cluster.produce("orders", f"after {number}", partition=number)
            assert sorted(following.lines(2)) == [b"after 0\n", b"after 1\n"]


def test_the_environment_is_the_default(broker, capfdbinary, monkeypatch):
    monkeypatch.setenv("KCORE_BOOTSTRAP", broker.bootstrap_servers)
    assert main(["consume", "orders", "--max", "1", "--partition", "2"]) == 0
    assert capfdbinary.readouterr().out == b"v6\n"
    assert os.environ["KCORE_BOOTSTRAP"]
