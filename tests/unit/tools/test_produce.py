"""kcore produce, against brokers of this process."""

import collections
import contextlib
import io
import json
import signal
import subprocess
import sys
import threading

import pytest

import kcore
from kcore.client.topic_leaders import TopicGone, TopicLeaders
from kcore.client.topic_producer import Record, TopicProducer
from kcore.common.time import SYSTEM_TIME, MockTime
from kcore.errors import LeaderNotAvailable, NotLeaderOrFollower
from kcore.record.partitioner import partition_for_key
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture
from kcore.tools.cluster_command import group_client, print_silence
from kcore.tools.main import main
from kcore.tools.record_input import lines_of
from tests.waiting import wait_until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        yield broker


@pytest.fixture
def topic(broker, request):
    """A new one with a single partition."""
    name = f"t{abs(hash(request.node.name))}"
    broker.create_topic(name)
    return name


@pytest.fixture
def produce(broker, capfd, tmp_path):
    """(exit status, lines of stderr without the summary of a run in which all went well)."""

    def produce(text, *words, topic="orders", bootstrap=None):
        path = tmp_path / "input"
        path.write_bytes(text)
        status = main(["produce", topic, str(path), "-q", *words, "--bootstrap", bootstrap or broker.bootstrap_servers])
        out, err = capfd.readouterr()
        assert out == ""
        return status, [line.replace(f"{path}, ", "") for line in err.splitlines()]

    return produce


def records(broker, topic="orders"):
    return [(r.partition, r.key, r.value, list(r.headers)) for r in broker.consume(topic)]


def lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


# -- what is written --------------------------------------------------------------------------------------------------


def test_each_line_is_a_value_whatever_its_bytes_are(broker, produce, topic):
    values = [b"a book", b"", b"\xff\0\r", b"x" * 1_000_000, "\u00e9".encode(), b"without a line break"]
    assert produce(b"\n".join(values), topic=topic) == (0, [])
    assert [value for _, _, value, _ in records(broker, topic)] == values


def test_nothing_is_no_record(broker, produce, topic):
    assert produce(b"", topic=topic) == (0, [])
    assert records(broker, topic) == []


@pytest.mark.parametrize("codec", CODECS)
def test_the_batches_are_compressed(broker, produce, topic, codec):
    assert produce(b"same\n" * 500, "--compression", codec, topic=topic) == (0, [])
    assert [value for _, _, value, _ in records(broker, topic)] == [b"same"] * 500
    assert {batch.compression for batch in broker.log(topic).batches()} == {codec}


def test_keys_choose_the_partition_as_in_kafkas_java_producer(broker, produce):
    keys = [b"k%d" % number for number in range(50)]
    text = b"".join(b"%b::v:%b\n" % (key, key) for key in keys)
    assert produce(text, "--key-separator", "::", "--header", "origin=shop", "--header", "n=") == (0, [])
    headers = [("origin", b"shop"), ("n", b"")]
    assert sorted(records(broker)) == sorted((partition_for_key(key, 3), key, b"v:" + key, headers) for key in keys)


@pytest.mark.parametrize("text, separator", [(r"\t", b"\t"), (r"\x01", b"\1"), (r"\\", b"\\"), ("50%", b"50%")])
def test_a_key_separator_has_the_escapes_of_a_format(broker, produce, text, separator):
    broker.create_topic("escapes", 1)
    assert produce(b"k" + separator + b"v\n", "--key-separator", text, topic="escapes") == (0, [])
    assert records(broker, "escapes") == [(0, b"k", b"v", [])]
    broker.delete_topic("escapes")


def test_one_partition_for_all(broker, produce):
    broker.create_topic("fixed", 3)
    assert produce(b"a\nb\n", "--partition", "2", topic="fixed") == (0, [])
    own = lines({"value": "c", "partition": 0}, {"value": "d", "key": "k"})
    assert produce(own, "--json", "--partition", "2", topic="fixed") == (0, [])
    assert [partition for partition, *_ in records(broker, "fixed")] == [2] * 4
    assert produce(own, "--json", topic="fixed") == (0, [])
    assert records(broker, "fixed")[0] == (0, None, b"c", [])
    assert produce(lines({"value": "e", "key": "k", "partition": 9}), "--json", "--repartition", topic="fixed")[0] == 0
    assert (partition_for_key(b"k", 3), b"k", b"e", []) in records(broker, "fixed")


def test_without_keys_all_partitions_get_some(broker, produce):
    broker.create_topic("spread", 3)
    assert produce((b"x" * 99 + b"\n") * 30_000, topic="spread") == (0, [])
    assert {partition for partition, *_ in records(broker, "spread")} == {0, 1, 2}
    assert len(records(broker, "spread")) == 30_000


def test_several_files_are_read_one_after_the_other(broker, topic, tmp_path, capfd):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    words = [str(tmp_path / "a"), str(tmp_path / "b"), "--bootstrap-server", broker.bootstrap_servers]
    assert main(["produce", topic, *words]) == 0
    assert [value for _, _, value, _ in records(broker, topic)] == [b"1", b"2", b"3"]
    summary = capfd.readouterr().err
    assert main(["produce", topic, "-q", str(tmp_path / "a"), "--partition", "0", str(tmp_path / "b"), *words[2:]]) == 0
    assert [value for _, _, value, _ in records(broker, topic)] == [b"1", b"2", b"3"] * 2
    assert summary.startswith("kcore: 3 records acknowledged in ") and summary.endswith(
        f": {topic}-0 3 (offsets 0 to 2)\n"
    )


def test_the_topic_as_kafkas_console_producer_has_it(broker, topic, tmp_path, capfd):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    files, at = [str(tmp_path / "a"), str(tmp_path / "b")], ["-q", "--bootstrap-server", broker.bootstrap_servers]
    assert main(["produce", *at, "--topic", topic, *files]) == 0
    assert [value for _, _, value, _ in records(broker, topic)] == [b"a", b"b"]
    assert main(["produce", *at, *files[:1], "--topic", topic]) == 0
    assert len(records(broker, topic)) == 3
    assert main(["produce", *at]) == 2
    assert capfd.readouterr() == ("", "kcore: expected one TOPIC\n")


ODD = [None, b"", b"\xff\x00", b"text", b'{"hex": "00"}', '\u2028 \0 \n " \\ \U0001f600'.encode(), b"\xed\xa0\x80"]
ODD_HEADERS = [("", None), ("empty", b""), ("raw", b"\xfe"), ("raw", b"again"), ("\udcff", b"name"), ("\u00e9", b"")]


@pytest.mark.parametrize("command", ["consume", "dump"])
def test_what_is_printed_as_json_is_taken_back(command, tmp_path, capfdbinary):
    with kcore.Broker(tmp_path / "data", log_retention_ms=-1) as broker:
        for topic in ("source", "copied"):
            broker.create_topic(topic, 2)
        for number, (key, value) in enumerate((key, value) for key in ODD for value in ODD):
            broker.produce("source", value, key, ODD_HEADERS[: number % 7], T0 + number, number % 2)
        at = ["--bootstrap", broker.bootstrap_servers]
        where = ["source", *at] if command == "consume" else [str(tmp_path / "data" / "source-1")]
        assert main([command, "--json", *where]) == 0
        (tmp_path / "printed").write_bytes(capfdbinary.readouterr().out)
        chosen = [] if command == "consume" else ["--partition", "1"]
        assert main(["produce", "copied", str(tmp_path / "printed"), "--json", *chosen, *at]) == 0
        original, copy = (
            [(r.partition, r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in broker.consume(topic)]
            for topic in ("source", "copied")
        )
    assert copy == [record for record in original if command == "consume" or record[0] == 1]
    assert len(copy) == (49 if command == "consume" else 24)


# -- lines that are no records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"{", "no JSON: Expecting property name"),
        (b"\xff", "no JSON: "),
        (b"[" * 100_000, "no JSON: "),
        (b"[]", "a list, expected an object with key and value"),
        (b"1", "a number, expected an object"),
        (b'{"key": "k"}', "no value: give null for a tombstone"),
        (b'{"valeu": "v"}', "a record has no 'valeu'; did you mean value?"),
        (b'{"value": 1}', 'value: a number, expected text, {"hex": "..."} or null'),
        (b'{"value": true}', "value: true or false, expected"),
        (b'{"value": {"hex": "f"}}', "value: 'f' is not hexadecimal"),
        (b'{"value": {"hex": "ff", "x": 1}}', "value: an object, expected"),
        (rb'{"value": "\ud800"}', "value: half of a surrogate pair is no text"),
        (b'{"value": "", "headers": [["a"]]}', "headers: expected a list of [name, value]"),
        (b'{"value": "", "headers": "a"}', "headers: a text, expected a list"),
        (b'{"value": "", "headers": [[null, ""]]}', "a header's name is null"),
        (b'{"value": "", "partition": "1"}', 'partition: "1", expected a whole number from 0'),
        (b'{"value": "", "timestamp": -2}', "timestamp: -2, expected a whole number from -1"),
        (b'{"value": "", "timestamp": "now"}', 'timestamp: "now", expected a whole number'),
        (b'{"value": "", "partition": 3}', "orders has no partition 3: it has 3 partitions, 0 to 2"),
        (b'{"value": "", "partition": true}', "partition: true, expected a whole number"),
        (b'{"type": "damage", "value": ""}', "of type 'damage', expected a record"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_line_that_is_no_record_is_named_and_the_others_are_written(broker, produce, line, reason):
    before = len(records(broker))
    status, errors = produce(b'{"value": "a"}\n' + line + b'\n\n{"value": null, "key": "k"}\n', "--json")
    assert status == 1
    assert errors[0].startswith(f"kcore: line 2: {reason}")
    assert errors[1].startswith("kcore: 2 records acknowledged in ") and errors[2:] == ["kcore: 1 line not written"]
    assert len(records(broker)) == before + 2


def test_what_the_command_line_cannot_mean_is_refused(produce):
    assert produce(b"a", "--key-separator", ":", "--json")[0] == 2
    assert produce(b"a", "--partition", "3") == (2, ["kcore: orders has no partition 3: it has 3 partitions, 0 to 2"])
    assert produce(b"a", topic="ordres") == (2, ["kcore: there is no topic 'ordres'; did you mean orders?"])
    nothing = "kcore: there is no topic 'nothing-like-it': `kcore topics create nothing-like-it` makes it"
    assert produce(b"a", topic="nothing-like-it") == (2, [nothing])
    assert r"'\\q' of the format means nothing" in produce(b"a", "--key-separator", r"\q")[1][0]
    assert "expected NAME=VALUE" in produce(b"a", "--header", "k")[1][0]


def test_records_that_the_leader_refuses_are_named_and_the_others_are_written_in_order(broker, produce):
    broker.create_topic("small", max_message_bytes=1000, cleanup_policy="compact")
    text = b"".join(b"k%d:%b\n" % (n, b"x" * (2000 if n % 100 == 42 else 1)) for n in range(1000))
    status, errors = produce(text, "--key-separator", ":", topic="small")
    assert status == 1
    refused = [line for line in errors if "MessageTooLarge" in line]
    assert [line.split(":")[1] for line in refused] == [f" line {n + 1}" for n in range(1000) if n % 100 == 42]
    assert "small-0: batch of 20" in refused[0] and "max.message.bytes is 1000" in refused[0]
    assert errors[-2].startswith("kcore: 990 records acknowledged") and errors[-1] == "kcore: 10 lines not written"
    assert [key for _, key, _, _ in records(broker, "small")] == [b"k%d" % n for n in range(1000) if n % 100 != 42]
    status, errors = produce(
        lines({"value": "", "key": "k"}, {"value": "no key"}, {"value": "", "key": "l"}), "--json", topic="small"
    )
    assert status == 1 and "line 2: InvalidRecord: " in errors[0]
    assert [key for _, key, _, _ in records(broker, "small")][-2:] == [b"k", b"l"]


# -- stdin ------------------------------------------------------------------------------------------------------------


def producing(broker, topic, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "kcore", "produce", topic, *words, "--bootstrap", broker.bootstrap_servers],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )


def test_a_line_is_sent_when_no_other_comes(broker, topic):
    process = producing(broker, topic)
    try:
        for number in range(3):
            process.stdin.write(b"v%d\n" % number)
            wait_until(lambda number=number: broker.log(topic).high_watermark == number + 1)
        process.stdin.write(b"half a line")
    finally:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err.startswith(b"kcore: 4 records acknowledged")
    assert [value for _, _, value, _ in records(broker, topic)] == [b"v0", b"v1", b"v2", b"half a line"]


def test_ctrl_c_says_how_many_are_acknowledged(broker, topic):
    process = producing(broker, topic)
    try:
        process.stdin.write(b"a\nb\n")
        wait_until(lambda: broker.log(topic).high_watermark == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        err = process.stderr.read().decode().splitlines()
    finally:
        process.kill()
        process.communicate()
    assert err[0].startswith("kcore: 2 records acknowledged in ") and err[1:] == [
        "kcore: all that was read is acknowledged"
    ]


def test_ctrl_c_names_the_first_line_that_is_not_acknowledged(broker, topic):
    kafka = KafkaFixture(broker)
    process = producing(broker, topic)
    try:
        process.stdin.write(b"a\nb\n")
        wait_until(lambda: broker.log(topic).high_watermark == 2)
        with kafka.fault("Produce", error="LEADER_NOT_AVAILABLE", topic=topic) as fault:
            process.stdin.write(b"c\nd\n")
            fault.wait_for_hits()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        err = process.stderr.read().decode().splitlines()
    finally:
        kafka.end_faults()
        process.kill()
        process.communicate()
    assert err[0].startswith("kcore: 2 records acknowledged in ")
    assert err[1] == "kcore: line 3 is the first that is not acknowledged; later ones may be written"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_lines_are_cut_out_of_any_pieces(size, tmp_path, monkeypatch):
    monkeypatch.setattr("kcore.tools.record_input._CHUNK_BYTES", size)
    text = b"one\n\nthree\n" + b"x" * 100 + b"\nlast"
    (tmp_path / "f").write_bytes(text)
    with open(tmp_path / "f", "rb") as file:
        assert list(lines_of(file.fileno(), lambda: None)) == [*io.BytesIO(text).read().split(b"\n")]


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka(broker):
    kafka = KafkaFixture(broker)
    yield kafka
    kafka.end_faults()


@pytest.mark.parametrize(
    "fault",
    [
        {"error": "NOT_LEADER_OR_FOLLOWER"},
        {"error": "UNKNOWN_TOPIC_OR_PARTITION"},
        {"error": "NOT_ENOUGH_REPLICAS"},
        {"cut": "before"},
        {"cut": "after"},
    ],
    ids=str,
)
def test_a_batch_that_is_sent_again_is_there_once_and_in_order(broker, kafka, produce, topic, fault):
    with kafka.fault("Produce", topic=topic, times=3, **fault) as made:
        assert produce(b"".join(b"%d\n" % n for n in range(100_000)), topic=topic) == (0, [])
    assert made.hits == 3
    assert [int(value) for _, _, value, _ in records(broker, topic)] == list(range(100_000))


def test_without_permission_for_a_producer_id_it_says_that_records_may_be_there_twice(broker, kafka, produce, topic):
    with (
        kafka.fault("InitProducerId", error="CLUSTER_AUTHORIZATION_FAILED"),
        kafka.fault("Produce", topic=topic, times=1, cut="after"),
    ):
        status, errors = produce(b"a\nb\n", topic=topic)
    assert status == 0
    assert [value for _, _, value, _ in records(broker, topic)] == [b"a", b"b"] * 2
    assert errors[-1] == "kcore: some batches were sent again without a producer id: their records may be there twice"


def test_what_does_not_pass_ends_it_with_the_lines_that_are_left(broker, kafka, produce, topic):
    with kafka.fault("Produce", topic=topic, error="TOPIC_AUTHORIZATION_FAILED"):
        status, errors = produce(b"a\nb\n", topic=topic)
    address = broker.bootstrap_servers
    assert status == 2
    assert errors[0].startswith(f"kcore: {topic}-0 of {address}: TopicAuthorizationFailed: ")
    assert errors[1].startswith("kcore: 0 records acknowledged in ")
    assert errors[2:] == ["kcore: line 1 is the first that is not acknowledged; later ones may be written"]


def test_the_first_line_that_is_left_is_named_also_where_another_partition_fails_first(broker, kafka):
    broker.create_topic("two", 2)
    process = producing(broker, "two", "--json")
    try:
        process.stdin.write(lines({"value": "a", "partition": 1}))
        wait_until(lambda: broker.log("two", 1).high_watermark == 1)
        with kafka.fault("Produce", topic="two", error="TOPIC_AUTHORIZATION_FAILED"):
            process.stdin.write(lines({"value": "b", "partition": 0}, {"value": "c", "partition": 1}))
            assert process.wait(60) == 2
        err = process.stderr.read().decode().splitlines()
    finally:
        process.kill()
        process.communicate()
    assert err[-1] == "kcore: line 2 is the first that is not acknowledged; later ones may be written"


def test_the_variable_that_names_the_broker_is_named_too(broker, kafka, produce, topic, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("KCORE_BOOTSTRAP", broker.bootstrap_servers)
    (tmp_path / "lines").write_bytes(b"a\n")
    with kafka.fault("Produce", topic=topic, silent=True):
        assert main(["produce", topic, str(tmp_path / "lines"), "--timeout", "1"]) == 2
    assert capfd.readouterr().err.splitlines()[0].endswith(" (the address comes from KCORE_BOOTSTRAP)")


def test_a_closed_stdin_is_named(broker, topic):
    command = f"{sys.executable} -m kcore produce {topic} --bootstrap {broker.bootstrap_servers} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(b"kcore: stdin is closed: there is nothing to read\n")


def test_after_the_time_out_the_broker_is_named(broker, kafka, produce, topic):
    with kafka.fault("Produce", topic=topic, silent=True):
        status, errors = produce(b"a\n", "--timeout", "1", topic=topic)
    assert status == 2
    assert (
        errors[0] == f"kcore: {topic}-0: not acknowledged for 1 s: {broker.bootstrap_servers}: no answer (timeout 1 s)"
    )


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_that_is_deleted_meanwhile_ends_it(broker, topic, is_made_again):
    process = producing(broker, topic)
    try:
        process.stdin.write(b"a\n")
        wait_until(lambda: broker.log(topic).high_watermark == 1)
        broker.delete_topic(topic)
        if is_made_again:
            broker.create_topic(topic)
        process.stdin.write(b"b\n")
        assert process.wait(60) == 2
        err = process.stderr.read().decode().splitlines()
    finally:
        process.kill()
        process.communicate()
    assert err[0] == f"kcore: the topic {topic} was deleted{' and made again' if is_made_again else ''}"
    assert err[1].startswith("kcore: 1 record acknowledged")
    assert err[2] == "kcore: line 2 is the first that is not acknowledged"
    assert err[3].startswith(
        "kcore: what was written is gone with the topic that was deleted; nothing is in a new one "
    )
    assert not is_made_again or records(broker, topic) == []


@pytest.mark.parametrize("is_by_id", [True, False])
def test_nothing_is_written_to_a_topic_that_was_made_again_a_second_after_the_last_look_at_it(
    broker, topic, monkeypatch, is_by_id
):
    if not is_by_id:  # a leader before version 13
        monkeypatch.setattr("kcore.client.topic_producer._NEWEST", 12)
    with writing(broker, topic, time=MockTime()) as (producer, time):
        producer.append(0, Record((0, 1), None, b"a", (), -1))
        producer.close_batches()
        wait_until(lambda: producer.poll(10) or not producer.pending_bytes)
        assert producer.is_by_id is is_by_id
        broker.delete_topic(topic)
        broker.create_topic(topic)
        if not is_by_id:
            time.sleep(1000)
        producer.append(0, Record((0, 2), None, b"b", (), -1))
        producer.close_batches()
        with pytest.raises(TopicGone, match=f"^the topic {topic} was deleted and made again$"):
            wait_until(lambda: producer.poll(10) or time.sleep(10))
        assert producer.first_pending() == (0, 2)
    assert records(broker, topic) == []


class Writing:
    """Lines 0, 1, 2, ... into `kcore produce` until the block ends; then every line was acknowledged once."""

    def __init__(self, cluster, topic):
        self.cluster = cluster
        self.topic = topic
        self.count = 0
        self.stopped = threading.Event()

    def __enter__(self):
        self.process = producing(self.cluster, self.topic)
        self.thread = threading.Thread(target=self._write)
        self.thread.start()
        return self

    def _write(self):
        while not self.stopped.is_set():
            self.process.stdin.write(b"".join(b"%d:%d\n" % (n % 10, n) for n in range(self.count, self.count + 100)))
            self.count += 100
            self.stopped.wait(0.002)

    def wait_for_more(self):
        """Until records arrive that were written after the call."""
        wanted = self.count
        wait_until(lambda: self.count > wanted)
        wait_until(lambda: max(self._written(), default=0) > wanted, ignoring=(LeaderNotAvailable, NotLeaderOrFollower))

    def _written(self):
        return [int(record.value.split(b":")[1]) for record in self.cluster.consume(self.topic)]

    def __exit__(self, kind, *_):
        self.stopped.set()
        self.thread.join()
        _, err = self.process.communicate(timeout=100)
        if kind is None:
            assert self.process.returncode == 0, err
            assert err.decode().splitlines()[-1].startswith(f"kcore: {self.count} records acknowledged"), err


def assert_there_once_and_in_order(cluster, topic, count):
    values = [record.value for record in cluster.consume(topic)]
    assert collections.Counter(values) == collections.Counter(b"%d:%d" % (n % 10, n) for n in range(count))
    by_partition = {}
    for record in cluster.consume(topic):
        by_partition.setdefault(record.partition, []).append(int(record.value.split(b":")[1]))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


def test_leaders_that_move_cost_no_record_and_double_none():
    with kcore.Cluster(3) as cluster:
        cluster.create_topic("orders", 2, replication_factor=3)
        cluster.wait_until_in_sync("orders")
        with Writing(cluster, "orders") as writing:
            for _ in range(3):
                for number in range(2):
                    cluster.wait_until_in_sync("orders")
                    cluster.move_leader("orders", number, to=(cluster.leader("orders", number) + 1) % 3)
                    writing.wait_for_more()
        assert_there_once_and_in_order(cluster, "orders", writing.count)


def test_a_broker_that_is_killed_costs_no_record_and_doubles_none():
    with kcore.Cluster(3) as cluster:
        cluster.create_topic("orders", 3, replication_factor=3, min_insync_replicas=2)
        cluster.wait_until_in_sync("orders")
        with Writing(cluster, "orders") as writing:
            writing.wait_for_more()
            cluster.kill(cluster.leader("orders", 0))
            writing.wait_for_more()
        assert_there_once_and_in_order(cluster, "orders", writing.count)


def test_answers_of_a_cluster_that_are_lost_double_no_record():
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders", 2, replication_factor=2)
        cluster.wait_until_in_sync("orders")
        kafka = KafkaClusterFixture(cluster)
        try:
            with Writing(cluster, "orders") as writing, kafka.fault("Produce", cut="after", times=5) as fault:
                fault.wait_for_hits(5)
                writing.wait_for_more()
        finally:
            kafka.end_faults()
        assert_there_once_and_in_order(cluster, "orders", writing.count)


def test_a_record_that_no_request_can_carry_is_refused_without_one(broker):
    refused = []
    with writing(broker, "orders", refused) as (producer, _):
        assert not producer.append(0, Record((0, 1), None, bytes(99 << 20), (), -1))
        assert producer.pending_bytes == 0 and producer.first_pending() is None
    assert refused == [((0, 1), "MessageTooLarge")]


@contextlib.contextmanager
def writing(broker, topic, refused=None, time=SYSTEM_TIME):
    """(A producer, its clock)."""
    arguments = type("Arguments", (), {"bootstrap": broker.bootstrap_servers, "timeout": 30})
    settings = {"request_timeout_ms": 10_000, "time": time}
    with group_client(arguments) as (client, _):
        leaders = TopicLeaders(client, topic, client_id="test", on_silence=print_silence, **settings)
        try:
            yield (
                TopicProducer(
                    leaders,
                    timeout_ms=10_000,
                    on_acknowledged=lambda *_: None,
                    on_refused=lambda record, error: refused.append((record.tag, type(error).__name__)),
                    **settings,
                ),
                time,
            )
        finally:
            leaders.close()
