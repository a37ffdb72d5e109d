"""A leader whose followers do not get past an offset checks its records there, and gives the partition up if they are
damaged."""

import errno
import logging
from pathlib import Path

import pytest

from kcore import errors
from kcore.common import file
from kcore.common.text import date_of
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.log.lost_records import LostRecords, read_mark
from kcore.replica import damage_checks, local_reads
from kcore.replica.damage_checks import CHECK_INTERVAL_MS, REPEATS, REPEATS_MS
from kcore.replica.explain import explain_fetch, explain_isr
from kcore.replica.fetch_params import ClientMetadata, FetchParams, FetchPartitionData
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.partition_state_store import StoredIsr
from tests.batches import batch

from .conftest import TP, Node, update


@pytest.fixture
def alive():
    return {0, 1, 2}


@pytest.fixture
def node(tmp_path, alive):
    node = Node(tmp_path, is_alive=alive.__contains__)
    node.given_up = []
    node.replica_manager.damage_checks.on_given_up = node.given_up.append
    node.lead(isr=(0, 1), replicas=(0, 1, 2))
    for _ in range(5):
        node.produce(batch(), acks=1)
    yield node
    file.clear_faults()
    node.shutdown()


def log_of(node):
    return node.log_manager.get_log(TP)


def damage(node, n, position=-1, bits=1):
    """A byte of the batch number n."""
    log = log_of(node)
    size = log.size // 5
    path = Path(log.active_segment.log_path)
    data = bytearray(path.read_bytes())
    data[n * size + position % size] ^= bits
    with open(path, "r+b") as out:
        out.write(data)


def fetch(node, offset, *, replica_id=2, times=1, every_ms=REPEATS_MS):
    for _ in range(times):
        node.fetch(offset, FetchIsolation.LOG_END, replica_id=replica_id, max_wait_ms=0)
        node.advance(every_ms)


@pytest.mark.parametrize("position", [-1, 8, 16, 23, 40])
def test_a_leader_gives_up_a_partition_whose_damaged_records_a_follower_asks_for_again_and_again(
    node, position, caplog
):
    damage(node, 3, position)
    fetch(node, 2, times=REPEATS + 1)
    hosted = node.replica_manager.get_partition(TP)
    assert isinstance(hosted, OfflinePartition) and "damaged from offset 3" in hosted.reason
    assert node.given_up == [TP] and read_mark(log_of(node).directory) == 3
    assert "0.log position" in caplog.text and "It goes offline, another of [1] is to lead" in caplog.text
    answer = node.produce(batch(), acks=1)
    assert isinstance(answer.result[TP].error, errors.KafkaStorageError)


@pytest.mark.parametrize(
    ("position", "bits", "reason"),
    [(1, 1, "below the next batch"), (13, 1, "its leader epoch is"), (12, 0x80, "its leader epoch is -")],
)
def test_a_wrong_offset_or_epoch_that_no_crc_covers_is_damage_too(node, caplog, position, bits, reason):
    damage(node, 3, position, bits)
    fetch(node, 2, times=REPEATS + 1)
    hosted = node.replica_manager.get_partition(TP)
    assert isinstance(hosted, OfflinePartition) and reason in hosted.reason
    assert read_mark(log_of(node).directory) == 3


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", [1, 2])
def test_a_base_offset_that_is_too_low_or_too_high_is_damage_where_a_fetch_begins_with_its_batch(node, bits, n):
    """A follower refuses such a batch: it begins below the follower's log end, or reaches into the next batch."""
    for _ in range(3):
        node.produce(batch(*[b"value"] * 10), acks=1)  # offsets 5 to 34
    first = 5 + 10 * n
    log = log_of(node)
    position = log.active_segment.translate_offset(first).position
    with open(log.active_segment.log_path, "r+b") as out:
        out.seek(position)
        out.write((first ^ bits).to_bytes(8))
    fetch(node, first, times=REPEATS + 1)
    assert node.given_up == [TP] and read_mark(log.directory) == first
    assert node.become(update(TP, 1, 1, (1,), (0, 1, 2))) == {TP: None}
    assert [record.offset for record in log.records()] == list(range(first)) and log.log_end_offset == first


def test_what_is_lost_begins_below_the_log_end_where_a_wrong_base_offset_comes_before_a_wrong_crc(node):
    damage(node, 3, 5)  # 2 ** 16 too high
    damage(node, 4)
    fetch(node, 2, times=REPEATS + 1)
    assert node.given_up == [TP] and read_mark(log_of(node).directory) < 5
    assert node.become(update(TP, 1, 1, (1,), (0, 1, 2))) == {TP: None}
    assert log_of(node).log_end_offset <= 4
    assert [record.offset for record in log_of(node).records()] == [0, 1, 2]


def test_a_fetch_that_waits_for_the_partition_is_answered(node):
    damage(node, 3)
    waiting = node.fetch(5, FetchIsolation.LOG_END, replica_id=1, max_wait_ms=10 * REPEATS_MS, min_bytes=1)
    fetch(node, 2, times=REPEATS + 1, every_ms=REPEATS_MS // 2)
    assert isinstance(dict(waiting.result)[TP].error, errors.KafkaStorageError)


def test_the_log_is_checked_only_after_a_while(node):
    damage(node, 3)
    fetch(node, 2, times=10, every_ms=REPEATS_MS // 20)
    assert isinstance(node.replica_manager.get_partition(TP), Partition)
    fetch(node, 2, times=2)
    assert node.given_up == [TP]


def test_a_follower_that_goes_on_is_no_reason_for_a_check(node):
    damage(node, 0)
    for offset in (1, 2, 3, 4, 1, 2, 3, 4):
        fetch(node, offset)
    assert not node.given_up


def test_damage_before_the_offset_that_a_follower_asks_for_is_not_looked_for(node, caplog):
    caplog.set_level(logging.WARNING)
    damage(node, 0)
    fetch(node, 2, times=REPEATS + 1)
    assert not node.given_up and "its records from offset 2 on are sound here" not in caplog.text


def test_a_leader_without_another_replica_in_sync_leads_on(node, alive, caplog):
    damage(node, 3)
    alive.discard(1)
    fetch(node, 2, times=REPEATS + 1)
    assert not node.given_up and "No other replica is in sync: it leads on" in caplog.text
    assert read_mark(log_of(node).directory) is None
    alive.add(1)
    node.advance(CHECK_INTERVAL_MS)
    fetch(node, 2, times=REPEATS + 1)
    assert node.given_up == [TP]


def test_a_read_that_fails_has_the_log_checked_too(node):
    damage(node, 3, 8, bits=0x80)  # a negative length
    for _ in range(2):
        answer = node.fetch({TP: 4}, FetchIsolation.LOG_END, replica_id=-1, max_wait_ms=0)
        assert isinstance(dict(answer.result)[TP].error, errors.CorruptMessage)
    node.advance(1)
    assert node.given_up == [TP] and log_of(node).lost_records == LostRecords(3)


def test_a_follower_that_gets_nothing_although_there_are_records_is_a_reason_for_a_check(node):
    damage(node, 3, 8)  # as if the batch had 16 MiB, more than there is
    fetch(node, 4, times=REPEATS + 1)
    assert node.given_up == [TP] and log_of(node).lost_records == LostRecords(3)


def test_a_consumer_that_gets_nothing_although_there_are_records_is_a_reason_for_a_check(node, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    fetch(node, 5, replica_id=1, every_ms=1)  # the high watermark is 5
    for offset, max_bytes in ((5, 1000), (4, 1000), (4, 0)):
        node.fetch(offset, partition_max_bytes=max_bytes, replica_id=-1, max_wait_ms=0)
        node.advance(1)
    assert not checks
    damage(node, 3, 8)  # as if the batch had 16 MiB, more than there is
    for _ in range(10):
        answer = node.fetch(4, replica_id=-1, max_wait_ms=0)
        assert dict(answer.result)[TP].records.size_in_bytes == 0
    node.advance(1)
    assert checks == [4] and node.given_up == [TP] and log_of(node).lost_records == LostRecords(3)


@pytest.fixture
def committed(node):
    """All five records, so that consumers read them."""
    fetch(node, 5, replica_id=1, every_ms=1)
    return node


def consume(node, offset, sent_from, *, times=1, every_ms=REPEATS_MS, **params):
    for _ in range(times):
        node.fetch(offset, replica_id=-1, sent_from=sent_from, **{"max_wait_ms": 0, **params})
        node.advance(every_ms)


@pytest.mark.parametrize("is_one_connection", [True, False])
def test_a_leader_gives_up_a_partition_whose_damaged_records_a_consumer_asks_for_again_and_again(
    committed, caplog, is_one_connection
):
    """A consumer that ends at a wrong CRC, and is started again, has another connection."""
    damage(committed, 3)
    connection = {}
    for _ in range(REPEATS + 1):
        consume(committed, 2, connection if is_one_connection else {})
    assert committed.given_up == [TP] and read_mark(log_of(committed).directory) == 3
    assert "It goes offline, another of [1] is to lead" in caplog.text


def test_a_consumer_that_comes_to_damaged_records_asks_again_and_again_from_there_on(committed):
    damage(committed, 3)
    connection = {}
    consume(committed, 0, connection)
    consume(committed, 2, connection, times=REPEATS + 1)
    assert committed.given_up == [TP] and read_mark(log_of(committed).directory) == 3


def test_two_consumers_that_stand_still_at_two_offsets_and_one_that_goes_on_are_distinguished(committed, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    standing, other, reading = {}, {}, {}
    for number in range(REPEATS):
        consume(committed, 2, standing, every_ms=1)
        consume(committed, 1, other, every_ms=1)
        consume(committed, number, reading)
    committed.advance(1)
    assert checks == [2], "each segment is checked once in a minute"


def test_a_consumer_that_begins_at_the_start_again_and_again_has_what_it_read_last_checked(committed):
    damage(committed, 3)
    connection = {}
    for _ in range(REPEATS):
        assert committed.given_up == []
        for offset in (0, 3):
            consume(committed, offset, connection)
    consume(committed, 0, connection)
    assert committed.given_up == [TP] and read_mark(log_of(committed).directory) == 3


def test_where_a_consumer_asks_for_an_offset_after_the_end_what_it_read_last_is_checked(committed):
    """librdkafka cannot read the damaged batch, and takes an offset from bytes that are none."""
    damage(committed, 3)
    connection = {}
    for offset in (0, 3, 1 << 60):
        assert committed.given_up == []
        consume(committed, offset, connection)
    assert committed.given_up == [TP] and read_mark(log_of(committed).directory) == 3


@pytest.mark.parametrize("offset", [-1, 5, 1 << 60])
def test_a_consumer_that_was_sent_nothing_or_asks_for_no_offset_after_the_end_is_no_reason_for_a_check(
    committed, monkeypatch, offset
):
    checks = during_a_check(monkeypatch, lambda: None)
    consume(committed, offset, {} if offset > 5 else {TP: 3})
    assert not checks


def test_a_consumer_that_reads_the_same_records_again_is_no_reason_for_a_check(committed, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    connection = {}
    for _ in range(2):
        for offset in (0, 1, 2, 3, 4):
            consume(committed, offset, connection)
    assert not checks


def test_a_consumer_that_reads_the_same_sound_records_anew_costs_a_check_a_minute(committed, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    connection = {}
    for _ in range(20):
        for offset in (0, 1, 2, 3, 4):
            consume(committed, offset, connection)
    assert len(checks) <= 20 * 5 * REPEATS_MS // CHECK_INTERVAL_MS and set(checks) == {4}, "of what it read last"


def test_a_consumer_that_asks_quickly_for_the_same_records_is_no_reason_for_a_check(committed, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    consume(committed, 2, {}, times=50, every_ms=REPEATS_MS // 60)
    assert not checks


def test_a_consumer_that_asks_for_the_same_sound_records_costs_a_check_a_minute(committed, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    checks = during_a_check(monkeypatch, lambda: None)
    consume(committed, 2, {}, times=500, every_ms=CHECK_INTERVAL_MS // 100)
    assert 4 <= len(checks) <= 5 and set(checks) == {2} and not committed.given_up
    assert caplog.text == "" and isinstance(committed.replica_manager.get_partition(TP), Partition)


def test_a_read_that_was_not_enough_is_not_counted_again_at_the_end_of_its_wait(committed, monkeypatch):
    noted = []
    monkeypatch.setattr(committed.replica_manager.damage_checks, "note_read", lambda *read: noted.append(read[1]))
    connection = {}
    for offset in (2, 3):
        consume(committed, offset, connection, min_bytes=1 << 20, max_wait_ms=100)
    assert noted == [2] and connection == {TP: 3}


def test_a_follower_that_serves_consumers_checks_nothing(committed, monkeypatch):
    checks = during_a_check(monkeypatch, lambda: None)
    committed.become(update(TP, 1, 1, isr=(0, 1), replicas=(0, 1, 2)))
    consume(committed, 2, {}, times=REPEATS + 1, client=ClientMetadata("", ""))
    assert not checks


def test_of_consumers_reads_only_the_last_ones_are_remembered(committed, monkeypatch):
    monkeypatch.setattr(damage_checks, "MAX_CONSUMER_READS", 2)
    monkeypatch.setattr(local_reads, "_MAX_REMEMBERED", 1)
    checks = during_a_check(monkeypatch, lambda: None)
    for _ in range(REPEATS):  # always new: the one before the last is forgotten
        for offset in (0, 1, 2):
            consume(committed, offset, {})
    assert not checks
    other = TopicPartition("t", 9)
    committed.lead(other)
    committed.produce({other: batch()}, acks=1)
    connection = {}
    consume(committed, 0, connection)
    consume(committed, {other: 0}, connection)
    assert connection == {other: 0}
    for _ in range(REPEATS):
        consume(committed, 0, {})
    assert checks == [0]


def test_a_leader_alone_with_damaged_records_says_so_once_and_explains_it(node, alive, caplog):
    node.become(update(TP, 0, 1, isr=(0,), replicas=(0, 1, 2)))
    alive -= {1, 2}
    path = log_of(node).active_segment.log_path
    position = log_of(node).active_segment.translate_offset(3).position
    damage(node, 3)
    found_at = date_of(node.time.milliseconds() + REPEATS_MS * REPEATS)
    consume(node, 2, {}, times=50)
    where = f"from offset 3, {path} position {position}: CRC-32C at position {position}: "
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert line.startswith(f"t-0: damaged {where}") and line.endswith("No other replica is in sync: it leads on")

    def explained():
        manager = node.replica_manager
        params = FetchParams(isolation=FetchIsolation.HIGH_WATERMARK)
        return explain_isr(manager, TP), explain_fetch(manager, TP, params, FetchPartitionData(2, 1000))

    for explanation in explained():
        assert explanation.damage.startswith(where) and f"; found at {found_at}." in explanation.damage
        assert "No other replica was in sync; once one is, it leads" in explanation.damage
        assert f"\n  damaged: {explanation.damage}\n" in str(explanation)
    damage(node, 3)  # the bit flips back
    consume(node, 2, {}, times=CHECK_INTERVAL_MS // REPEATS_MS + REPEATS)
    assert [explanation.damage for explanation in explained()] == [None, None]


def test_damage_that_is_not_in_the_log_any_more_is_not_explained(node, alive):
    node.become(update(TP, 0, 1, isr=(0,), replicas=(0,)))
    damage(node, 3)
    consume(node, 2, {}, times=REPEATS + 1)
    assert "There is no other replica: `kcore repair`" in explain_isr(node.replica_manager, TP).damage
    node.replica_manager.delete_records({TP: 4}, lambda results: None)
    assert explain_isr(node.replica_manager, TP).damage is None


def test_a_follower_that_has_everything_is_no_reason_for_a_check(node, monkeypatch):
    monkeypatch.setattr(node.replica_manager.damage_checks, "note_repeat", lambda *args: 1 / 0)
    fetch(node, 5, times=REPEATS + 1)
    fetch(node, 5, replica_id=1, times=REPEATS + 1)


def test_a_log_that_cannot_be_marked_is_not_given_up(node):
    damage(node, 3)
    file.fail_next("open_write", errno.ENOSPC, under=f"{log_of(node).directory}/lost-records")
    fetch(node, 2, times=REPEATS + 1)
    assert not node.given_up and isinstance(node.replica_manager.get_partition(TP), Partition)


def during_a_check(monkeypatch, happens):
    """Call happens() while a log is checked; the list of the offsets that were checked."""
    checks, find_damage = [], damage_checks.find_damage

    def find(log, offset):
        checks.append(offset)
        found = find_damage(log, offset)
        happens()
        return found

    monkeypatch.setattr(damage_checks, "find_damage", find)
    return checks


@pytest.mark.parametrize("leader", [0, 1])
def test_who_leads_no_more_in_the_epoch_of_the_check_gives_nothing_up(node, monkeypatch, leader):
    """The log may have been cut and copied since."""
    damage(node, 3)
    partition = node.replica_manager.get_partition(TP)
    checks = during_a_check(
        monkeypatch, lambda: node.become(update(TP, leader, 1, isr=(0, 1), replicas=(0, 1, 2))) == {TP: None}
    )
    fetch(node, 2, times=REPEATS + 1)
    assert checks == [2] and not node.given_up and read_mark(log_of(node).directory) is None
    assert node.replica_manager.get_partition(TP) is partition and partition.leader_epoch == 1


def test_a_partition_is_given_up_once_however_many_reads_fail(node, monkeypatch):
    damage(node, 3, 8, bits=0x80)  # a negative length

    def fail_reads():
        for _ in range(10):
            node.fetch({TP: 4}, FetchIsolation.LOG_END, replica_id=-1, max_wait_ms=0)

    checks = during_a_check(monkeypatch, fail_reads)
    fail_reads()
    node.advance(1)
    fail_reads()
    node.advance(CHECK_INTERVAL_MS)
    assert checks == [4] and node.given_up == [TP]


def given_up(node):
    damage(node, 3)
    fetch(node, 2, times=REPEATS + 1)
    assert node.given_up == [TP]


def test_what_was_given_up_says_where_it_is_damaged_since_when_and_what_heals_it(node):
    position, path = log_of(node).active_segment.translate_offset(3).position, log_of(node).active_segment.log_path
    damage(node, 3)
    since = date_of(node.time.milliseconds() + REPEATS_MS * (REPEATS + 1))
    fetch(node, 2, times=REPEATS + 1)
    with pytest.raises(errors.KafkaStorageError) as raised:
        explain_isr(node.replica_manager, TP)
    message = str(raised.value)
    assert f"damaged from offset 3, {path} position {position}: CRC-32C" in message
    assert f"it was taken offline at {since}" in message
    assert "Once another broker leads, it is cut at offset 3 and copies the rest from that leader" in message
    # A controller that is answered KAFKA_STORAGE_ERROR orders the broker to stop the replica.
    assert node.stop(TP) == {TP: None}
    with pytest.raises(errors.KafkaStorageError) as raised:
        explain_isr(node.replica_manager, TP)
    assert str(raised.value) == message
    assert node.become(update(TP, 1, 1, (1,), (0, 1, 2))) == {TP: None}
    assert explain_isr(node.replica_manager, TP).leader_id == 1
    assert node.stop(TP, delete=True) == {TP: None}
    with pytest.raises(errors.UnknownTopicOrPartition):
        explain_isr(node.replica_manager, TP)


@pytest.mark.parametrize(
    ("leader", "epoch", "isr"),
    [
        (0, 0, (0, 1)),  # sent again: the controller has not elected another yet
        (1, 0, (0, 1)),
        (0, 1, (0, 1)),
    ],
)
def test_what_was_given_up_is_not_led_again(node, leader, epoch, isr):
    given_up(node)
    assert node.become(update(TP, leader, epoch, isr, (0, 1, 2))) == {TP: errors.KafkaStorageError}
    assert log_of(node).log_end_offset == 5


def test_what_was_given_up_is_copied_from_the_next_leader_without_what_was_damaged(node):
    given_up(node)
    assert node.become(update(TP, 1, 1, (1,), (0, 1, 2))) == {TP: None}
    assert log_of(node).log_end_offset == 3
    assert [record.offset for record in log_of(node).records()] == [0, 1, 2]


def test_what_was_given_up_is_led_by_the_last_member_of_the_isr(node):
    given_up(node)
    assert node.become(update(TP, 0, 1, (0,), (0, 1, 2))) == {TP: None}
    assert log_of(node).log_end_offset == 5


def test_a_follower_that_is_throttled_or_has_diverged_is_no_reason_for_a_check(node, monkeypatch):
    monkeypatch.setattr(node.replica_manager.damage_checks, "note_repeat", lambda *args: 1 / 0)
    node.become(update(TP, 0, 1, isr=(0, 1), replicas=(0, 1, 2)))
    for _ in range(2):
        node.produce(batch(), acks=1)
    for _ in range(3):
        data = FetchPartitionData(6, 1000, last_fetched_epoch=0)  # which ends at 5 here
        params = FetchParams(2, -1, 0, 1, 1000, FetchIsolation.LOG_END)
        ((_, result),) = node.replica_manager.fetch_now(params, [(TP, data)])
        assert result.diverging_epoch is not None and result.error is None
    monkeypatch.setattr(local_reads, "leader_throttles", lambda *question: True)
    for _ in range(3):
        answer = node.fetch(2, FetchIsolation.LOG_END, replica_id=2, max_wait_ms=0, quota=object())
        assert dict(answer.result)[TP].records.size_in_bytes == 0


def test_a_segment_is_checked_once_in_a_while_however_often_it_is_suspected(node, monkeypatch):
    checks = []
    monkeypatch.setattr(damage_checks, "find_damage", lambda log, offset: checks.append(offset))
    partition = node.replica_manager.get_partition(TP)
    for _ in range(10):
        node.replica_manager.damage_checks.suspect(partition, 2, "a test says so")
        node.advance(CHECK_INTERVAL_MS // 5)
    assert checks == [2, 2]


def test_a_check_that_takes_long_is_not_begun_again_meanwhile(node, monkeypatch):
    partition = node.replica_manager.get_partition(TP)

    def suspect():
        node.replica_manager.damage_checks.suspect(partition, 2, "a test says so")

    def take_long():
        node.time.sleep(2 * CHECK_INTERVAL_MS)
        suspect()

    checks = during_a_check(monkeypatch, take_long)
    suspect()
    node.advance(1)
    suspect()
    node.advance(CHECK_INTERVAL_MS - 2)
    assert checks == [2]
    suspect()
    node.advance(2)
    suspect()
    node.advance(1)
    assert checks == [2, 2]


def test_a_suspicion_in_one_segment_does_not_put_off_the_check_of_another(node):
    log_of(node).roll()
    node.produce(batch(), acks=1)
    partition = node.replica_manager.get_partition(TP)
    with open(log_of(node).active_segment.log_path, "r+b") as out:
        out.seek(40)
        out.write(b"\xff")
    node.replica_manager.damage_checks.suspect(partition, 2, "a test says so")
    node.advance(1)
    assert not node.given_up
    node.replica_manager.damage_checks.suspect(partition, 5, "a test says so")
    node.advance(1)
    assert node.given_up == [TP] and read_mark(log_of(node).directory) == 5


def test_a_follower_checks_nothing(node, monkeypatch):
    """So it begins at once when it leads."""
    checks = during_a_check(monkeypatch, lambda: None)
    partition = node.replica_manager.get_partition(TP)
    node.become(update(TP, 1, 1, isr=(0, 1), replicas=(0, 1, 2)))
    node.replica_manager.damage_checks.suspect(partition, 2, "a test says so")
    node.advance(1)
    node.become(update(TP, 0, 2, isr=(0, 1), replicas=(0, 1, 2)))
    node.replica_manager.damage_checks.suspect(partition, 2, "a test says so")
    node.advance(1)
    assert checks == [2]


class Store:
    """Stores each ISR that is proposed."""

    def change_isr(self, topic_partition, isr, expected_version, on_done, **epochs):
        on_done(StoredIsr(isr, expected_version + 1))


def test_damage_is_considered_again_when_another_replica_joins_the_isr(tmp_path, caplog):
    node = Node(tmp_path, partition_state_store=Store())
    node.given_up = []
    node.replica_manager.damage_checks.on_given_up = node.given_up.append
    node.lead(isr=(0,), replicas=(0, 1))
    for _ in range(5):
        node.produce(batch(), acks=1)
    damage(node, 3, 8, bits=0x80)  # a negative length
    node.fetch({TP: 4}, replica_id=-1, max_wait_ms=0)
    node.advance(1)
    assert not node.given_up and "No other replica is in sync: it leads on" in caplog.text
    fetch(node, 5, replica_id=1, every_ms=1)
    assert node.given_up == [TP] and read_mark(log_of(node).directory) == 3
    node.shutdown()


def test_damage_is_considered_again_when_a_member_of_the_isr_is_alive_or_comes_by_a_controllers_word(node, alive):
    node.become(update(TP, 0, 1, isr=(0,), replicas=(0, 1, 2)))
    alive.discard(1)
    damage(node, 3)
    fetch(node, 2, times=REPEATS + 1)
    assert not node.given_up
    assert node.become(update(TP, 0, 2, isr=(0, 1), replicas=(0, 1, 2))) == {TP: None}
    node.advance(CHECK_INTERVAL_MS)
    assert not node.given_up
    alive.add(1)
    node.advance(CHECK_INTERVAL_MS)
    assert node.given_up == [TP]


def test_damage_that_is_away_when_another_replica_joins_is_no_reason_to_give_up(node, alive):
    alive.discard(1)
    damage(node, 3)
    fetch(node, 2, times=REPEATS + 1)
    damage(node, 3)  # the bit flips back
    alive.add(1)
    node.advance(CHECK_INTERVAL_MS)
    assert not node.given_up and isinstance(node.replica_manager.get_partition(TP), Partition)
