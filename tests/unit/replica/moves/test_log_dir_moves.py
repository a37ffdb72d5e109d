"""Moves of logs between the data directories of one broker (DIR, RM-22), step by step and without threads."""

import errno
import os
import threading
import time

import pytest

from kcore import errors
from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_dir import LogDir
from kcore.replica import partition as partition_module
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher.fetcher_state import FetcherConfig
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    EpochQuestion,
    FetchedPartition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetQuestion,
)
from kcore.replica.fetcher.partition_fetch_state import Phase
from kcore.replica.moves import log_tail
from kcore.replica.moves.future_logs import FutureLogs
from kcore.replica.moves.local_leader_endpoint import LocalLeaderEndPoint
from kcore.replica.moves.replica_alter_log_dirs_thread import ReplicaAlterLogDirsThread
from tests.batches import batch
from tests.unit.replica.conftest import TP, Node, update

A, B = TopicPartition("a", 1), TopicPartition("b", 0)


def values(log):
    return [bytes(record.value) for record in log.records()]


def names(path, end=""):
    return sorted(name for name in os.listdir(path) if name.startswith(("t-", "a-", "b-")) and name.endswith(end))


class Moves:
    """A node with two data directories.  Its mover does a step when the test calls it."""

    def __init__(self, tmp_path, monkeypatch, **arguments):
        monkeypatch.setattr(ReplicaAlterLogDirsThread, "start", lambda thread: None)
        self.dirs = [str(tmp_path / "x"), str(tmp_path / "y")]
        self.arguments = arguments
        self.monkeypatch = monkeypatch
        self.start()

    def start(self):
        self.node = Node(self.dirs, topic_partitions=[TopicPartition("elsewhere", 0)], **self.arguments)
        self.manager = self.node.replica_manager.log_dir_moves
        self.manager.num_threads = 1

    def restart(self, *topic_partitions):
        self.node.shutdown()
        self.start()
        for tp in topic_partitions:
            self.node.lead(tp, epoch=1)

    def use(self, **config):
        """partition_max_bytes=1: a batch at each step, and the last one too has to be fetched."""
        self.monkeypatch.setattr(log_tail, "MAX_BYTES_UNDER_LOCK", 0)
        self.manager._config = FetcherConfig(truncates_on_fetch=False, fetch_backoff_ms=0, **config)

    def partition(self, tp=TP):
        return self.node.replica_manager.get_partition(tp)

    def other_dir(self, tp=TP):
        (other,) = {*self.dirs} - {self.partition(tp).log.parent_dir}
        return other

    def alter(self, *topic_partitions, to=None):
        destinations = {tp: to or self.other_dir(tp) for tp in topic_partitions or (TP,)}
        return {tp: error and type(error) for tp, error in self.manager.alter(destinations).items()}

    @property
    def thread(self):
        (thread,) = self.manager._threads.values()
        return thread

    def states(self):
        return self.thread.states()

    def step(self, count=1):
        for _ in range(count):
            assert self.thread.partition_count, "nothing moves"
            self.thread.do_work()

    def finish(self):
        for _ in range(100):
            if not self.manager.moving:
                return
            self.thread.do_work()
        raise AssertionError(f"it goes on moving: {self.states()}")


@pytest.fixture
def moves(tmp_path, monkeypatch):
    moves = Moves(tmp_path, monkeypatch)
    moves.node.lead()
    yield moves
    file.clear_faults()
    moves.node.shutdown()


def test_DIR_02_RD_27_a_log_moves_with_all_its_records_also_those_above_the_high_watermark(moves):
    moves.node.lead(epoch=1, isr=(0, 1))
    for n in range(5):
        moves.node.produce(batch(b"%d" % n), acks=1)
    partition, target = moves.partition(), moves.other_dir()
    source, before = partition.log, values(partition.log)
    assert (source.high_watermark, source.log_end_offset) == (0, 5)
    assert moves.alter() == {TP: None}
    assert names(target)[0].endswith("-future")
    moves.finish()
    assert partition.log is not source and partition.log.parent_dir == target and partition.future_log is None
    assert moves.node.log_manager.get_log(TP) is partition.log
    assert values(partition.log) == before and partition.log.high_watermark == 0
    assert partition.log.leader_epoch_cache.entries == source.leader_epoch_cache.entries
    assert partition.log.topic_id == source.topic_id and partition.log.is_served
    with pytest.raises(errors.LogIsServed):
        partition.log.append_as_leader(batch(b"nobody else"))
    moves.node.produce(batch(b"5"), acks=1)
    assert values(partition.log)[5:] == [b"5"]


def test_DIR_06_the_old_directory_is_renamed_and_removed_later(moves):
    moves.node.produce(batch(b"a"))
    source, target = moves.partition().log.parent_dir, moves.other_dir()
    moves.alter()
    moves.finish()
    assert names(target) == ["t-0"]
    (old,) = names(source)
    assert old.endswith("-delete")
    moves.node.advance(60_000)
    assert names(source) == []
    assert moves.node.fetch(0).result[0][1].error is None


def test_DIR_06_what_is_appended_after_the_last_fetch_is_copied_before_the_log_is_replaced(moves, monkeypatch):
    """Under the partition's lock, so a partition that always gets records moves too."""
    moves.node.produce(batch(b"a"))
    moves.alter()
    append = moves.partition().append_records_to_follower_or_future_replica

    def append_and_produce(records, *rest):
        info = append(records, *rest)
        moves.node.produce(batch(b"late"))
        return info

    monkeypatch.setattr(moves.partition(), "append_records_to_follower_or_future_replica", append_and_produce)
    moves.finish()
    log = moves.partition().log
    assert values(log) == [b"a", b"late"] and log.high_watermark == 2


class BlockedThreads(threading.Condition):
    """The condition of a ReadWriteLock; is_any: whether a thread has waited for the lock."""

    def __init__(self, lock):
        super().__init__(lock)
        self.is_any = False

    def wait(self, timeout=None):
        self.is_any = True
        return super().wait(timeout)


def test_DIR_06_a_record_that_is_produced_while_the_log_is_replaced_is_not_lost(moves, monkeypatch):
    """The append waits, and goes to the log that has taken the place of the other."""
    moves.node.produce(batch(b"a"), acks=1)
    lock = moves.partition().leader_isr_update_lock
    blocked = lock._changed = BlockedThreads(lock._mutex)
    real, answers = partition_module.copy_tail, []
    producer = threading.Thread(target=lambda: answers.append(moves.node.produce(batch(b"late"), acks=1)))

    def copy_tail(log, future):
        is_copied = real(log, future)
        producer.start()
        deadline = time.monotonic() + 60
        while producer.is_alive() and not blocked.is_any:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return is_copied

    monkeypatch.setattr(partition_module, "copy_tail", copy_tail)
    moves.alter()
    moves.finish()
    producer.join(60)
    assert answers[0].result[TP].error is None
    assert values(moves.partition().log) == [b"a", b"late"]


def test_a_move_back_may_begin_before_the_mover_has_noticed_that_it_finished(moves, monkeypatch):
    moves.node.produce(batch(b"a"))
    source = moves.partition().log.parent_dir
    moves.alter()
    complete_waiting = FutureLogs.complete_waiting

    def complete_and_move_back(logs):
        monkeypatch.setattr(FutureLogs, "complete_waiting", complete_waiting)
        logs.complete_waiting()
        assert moves.partition().log.parent_dir != source
        assert moves.alter(to=source) == {TP: None}

    monkeypatch.setattr(FutureLogs, "complete_waiting", complete_and_move_back)
    moves.step()
    assert moves.manager.moving == [TP]
    moves.finish()
    assert moves.partition().log.parent_dir == source and values(moves.partition().log) == [b"a"]


def test_DIR_06_a_log_that_grows_too_fast_is_not_replaced_yet(moves, monkeypatch):
    monkeypatch.setattr(log_tail, "MAX_BYTES_UNDER_LOCK", 50)
    partition = moves.partition()
    moves.node.produce(batch(b"a" * 100))
    moves.alter()
    moves.node.produce(batch(b"x" * 100))
    assert not partition.maybe_replace_current_with_future_log(moves.node.log_manager.replace_current_with_future_log)
    assert partition.future_log is not None
    moves.finish()
    assert values(partition.log) == [b"a" * 100, b"x" * 100]


def test_DIR_04_records_for_another_offset_than_the_end_of_the_future_log_are_not_written(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    moves.alter()
    moves.step(1)
    future = moves.partition().future_log
    assert future.log_end_offset == 1
    future.append_as_leader(batch(b"stray"), 0)
    moves.step()
    assert TP in moves.manager.failed and moves.manager.moving == []
    assert values(future) == [b"a", b"stray"]
    assert moves.alter() == {TP: None}  # tried again: the future log is compared with the current one first
    moves.finish()
    assert values(moves.partition().log)[2:] == [b"c"]


def test_DIR_05_the_future_log_follows_high_watermark_and_log_start(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c", b"d"):
        moves.node.produce(batch(value))
    moves.partition().delete_records_on_leader(2)
    moves.alter()
    while moves.partition().future_log.log_end_offset < 3:
        moves.step()
    future = moves.partition().future_log
    assert (future.log_start_offset, future.log_end_offset, future.high_watermark) == (2, 3, 3)
    moves.partition().delete_records_on_leader(3)
    moves.step()
    assert moves.partition().log.log_start_offset == 3
    moves.finish()
    log = moves.partition().log
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 4, 4)


def test_DIR_07_RFT_15_a_completed_truncation_of_the_current_log_cuts_the_future_log(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c", b"d"):
        moves.node.produce(batch(value), acks=1)
    moves.node.become(update(TP, leader=1, epoch=1, isr=(1, 0)))
    moves.alter()
    while moves.partition().future_log.log_end_offset < 3:
        moves.step()
    logs = ReplicaLogs(
        moves.node.replica_manager.get_partition,
        moves.node.log_manager,
        on_truncated=moves.manager.mark_for_truncation,
    )
    logs.truncate_to(TP, 2, False)
    assert moves.states()[TP].phase is Phase.FETCHING
    logs.truncate_to(TP, 1, True)
    assert moves.states()[TP].phase is Phase.TRUNCATING
    assert moves.states()[TP].fetch_offset == 1
    moves.partition().log.append_as_follower(follower_batch(1, b"B", epoch=1))
    moves.step()
    assert values(moves.partition().future_log)[:1] == [b"a"]
    moves.finish()
    assert values(moves.partition().log) == [b"a", b"B"]


def test_DIR_07_a_future_log_that_ends_below_the_truncation_goes_on_at_its_own_end(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c", b"d"):
        moves.node.produce(batch(value), acks=1)
    moves.node.become(update(TP, leader=1, epoch=1, isr=(1, 0)))
    moves.alter()
    while moves.partition().future_log.log_end_offset < 2:
        moves.step()
    moves.manager.mark_for_truncation(TP, 3)
    assert (moves.states()[TP].phase, moves.states()[TP].fetch_offset) == (Phase.TRUNCATING, 2)
    moves.finish()
    assert values(moves.partition().log) == [b"a", b"b", b"c", b"d"]


def follower_batch(base_offset, *contents, epoch):
    return batch(*contents, base_offset=base_offset, leader_epoch=epoch)


@pytest.mark.parametrize("kept", [2, 0])
def test_a_current_log_that_was_cut_inside_a_batch_moves_with_its_log_end(moves, kept):
    """The whole batch was removed; the log end is where the answer put it, so no record of the copy can reach it."""
    moves.node.become(update(TP, leader=1, epoch=1, isr=(1, 0)))
    log = moves.partition().log
    if kept:
        log.append_as_follower(follower_batch(0, b"a", b"b", epoch=1))
    log.append_as_follower(follower_batch(kept, b"c", b"d", b"e", b"f", epoch=1))
    log.truncate_to(kept + 3)
    moves.alter()
    moves.finish()
    moved = moves.partition().log
    assert moved is not log and (moved.log_end_offset, values(moved)) == (kept + 3, [b"a", b"b"][:kept])
    moved.append_as_follower(follower_batch(kept + 3, b"F", epoch=1))
    assert values(moved) == [*[b"a", b"b"][:kept], b"F"]


def test_DIR_08_the_future_logs_epochs_are_compared_with_the_current_logs(moves):
    moves.use(partition_max_bytes=1)
    moves.node.become(update(TP, leader=1, epoch=3, isr=(1, 0)))
    log = moves.partition().log
    log.append_as_follower(follower_batch(0, b"a", epoch=1))
    log.append_as_follower(follower_batch(1, b"b", epoch=3))
    future = moves.node.log_manager.get_or_create_log(TP, is_future=True, log_dir=moves.other_dir())
    future.append_as_follower(follower_batch(0, b"a", epoch=1))
    future.append_as_follower(follower_batch(1, b"x", b"y", epoch=2))
    moves.manager.on_state_change([TP])
    moves.step()
    assert future.log_end_offset <= 1 and moves.states()[TP].phase is Phase.FETCHING
    moves.finish()
    assert values(moves.partition().log) == [b"a", b"b"]


def test_DIR_09_one_log_after_the_other_in_the_order_of_topics_and_partitions(moves):
    moves.use(partition_max_bytes=1)
    for tp in (B, A):
        moves.node.lead(tp)
    for tp in (TP, B, A):
        for value in (b"1", b"2", b"3"):
            moves.node.produce({tp: batch(value)})
    assert moves.alter(TP, B, A) == dict.fromkeys((TP, B, A))
    order, before = [], dict.fromkeys((TP, B, A), 0)
    while moves.manager.moving:
        moves.step()
        for tp in before:
            future = moves.partition(tp).future_log
            end = moves.partition(tp).log.log_end_offset if future is None else future.log_end_offset
            if end != before[tp]:
                before[tp] = end
                order.append(tp)
    assert list(dict.fromkeys(order)) == [A, B, TP] and order == sorted(order)


def test_DIR_10_a_mover_whose_quota_is_exceeded_fetches_nothing(moves):
    class Quota:
        exceeded = True
        recorded = 0

        def is_throttled(self, topic_partition):
            return True

        def is_quota_exceeded(self):
            return self.exceeded

        def record(self, size):
            self.recorded += size

    moves.use()
    moves.manager.quota = quota = Quota()
    moves.node.produce(batch(b"a"))
    moves.alter()
    moves.step(3)
    assert moves.partition().future_log.log_end_offset == 0 and quota.recorded == 0
    quota.exceeded = False
    moves.finish()
    log = moves.partition().log
    assert values(log) == [b"a"] and quota.recorded == log.size


def test_DIR_11_a_cancelled_move_ends_and_its_directory_is_deleted(moves, caplog):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    log, target = moves.partition().log, moves.other_dir()
    moves.alter()
    moves.step()
    assert moves.alter(to=log.parent_dir) == {TP: None}
    assert moves.manager.moving == [] and moves.partition().future_log is None and moves.partition().log is log
    assert names(target, "-future") == [] and len(names(target, "-delete")) == 1
    assert moves.partition().append_records_to_follower_or_future_replica(batch(b"x"), is_future=True) is None
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    moves.node.advance(60_000)
    assert names(target) == []
    moves.alter()
    moves.finish()
    assert values(moves.partition().log) == [b"a", b"b", b"c"]


def test_RM_22_DIR_03_a_move_goes_on_after_a_restart_from_where_it_was(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    target = moves.other_dir()
    moves.alter()
    while moves.partition().future_log.log_end_offset < 2:
        moves.step()
    moves.restart()
    assert moves.manager.moving == []
    moves.node.lead(epoch=1)
    assert moves.manager.moving == [TP] and moves.partition().future_log.log_end_offset == 2
    (state,) = moves.states().values()
    assert (state.fetch_offset, state.current_leader_epoch) == (2, 1), "from its high watermark"
    moves.step()
    assert moves.partition().future_log.log_end_offset == 2, "what was copied stays"
    moves.finish()
    assert moves.partition().log.parent_dir == target and values(moves.partition().log) == [b"a", b"b", b"c"]
    moves.restart(TP)
    assert moves.partition().log.parent_dir == target and moves.manager.moving == []


def test_a_new_leader_epoch_in_the_middle_of_a_move(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    moves.alter()
    moves.step()
    moves.node.lead(epoch=5)
    assert moves.states()[TP].current_leader_epoch == 5
    moves.node.produce(batch(b"d"))
    moves.finish()
    assert values(moves.partition().log) == [b"a", b"b", b"c", b"d"]
    assert moves.partition().log.last_epoch == 5


def test_a_log_without_its_first_records_moves(moves):
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    moves.partition().log.maybe_increment_log_start_offset(2)
    moves.alter()
    moves.finish()
    log = moves.partition().log
    assert (log.log_start_offset, values(log)) == (2, [b"c"])


def test_producers_have_their_state_after_a_move(moves):
    records = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    moves.node.produce(bytes(records))
    moves.alter()
    moves.finish()
    (answer,) = moves.node.produce(bytes(records)).result.values()
    assert answer.error is None and moves.partition().log.log_end_offset == 2, "a duplicate is not written again"
    (answer,) = moves.node.produce(batch(b"x", producer_id=7, producer_epoch=0, base_sequence=9)).result.values()
    assert isinstance(answer.error, errors.OutOfOrderSequenceNumber)


def test_a_stopped_partition_does_not_move_and_a_deleted_one_leaves_nothing(moves):
    moves.node.lead(A)
    for tp in (TP, A):
        moves.node.produce({tp: batch(b"a")})
    moves.alter(TP, A)
    assert moves.node.stop(TP, delete=True) == {TP: None}
    assert moves.node.stop(A) == {A: None}
    assert moves.manager.moving == []
    moves.node.advance(60_000)
    left = [name for path in moves.dirs for name in names(path)]
    assert len([name for name in left if name.startswith("t-0")]) == 0
    assert sorted(name.partition(".")[0] for name in left) == ["a-1", "a-1"]
    moves.node.lead(A, epoch=1)
    moves.finish()
    assert values(moves.partition(A).log) == [b"a"]


def test_what_cannot_be_moved_is_answered_with_its_error(moves):
    elsewhere, unknown = TopicPartition("elsewhere", 0), TopicPartition("unknown", 0)
    assert moves.alter(TP, to="/no/such/directory") == {TP: errors.LogDirNotFound}
    assert moves.alter(TP, to=moves.other_dir() + "/") == {TP: errors.LogDirNotFound}
    assert moves.alter(elsewhere, unknown, to=moves.dirs[1]) == {
        elsewhere: errors.NotLeaderOrFollower,
        unknown: errors.UnknownTopicOrPartition,
    }
    assert moves.alter(to=moves.partition().log.parent_dir) == {TP: None}
    assert moves.manager.moving == [] and names(moves.other_dir()) == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_partition_that_comes_later_gets_its_log_in_the_directory_that_was_named_for_it(moves, number):
    elsewhere = TopicPartition("elsewhere", 0)
    moves.alter(elsewhere, to=moves.dirs[number])
    moves.node.lead(elsewhere)
    assert moves.partition(elsewhere).log.parent_dir == moves.dirs[number]


def handle_failure(moves, path):
    moves.node.log_manager.handle_log_dir_failure(path)
    moves.node.replica_manager.handle_log_dir_failure(path)


def test_a_target_directory_that_fails_ends_the_move_and_the_partition_is_served_where_it_is(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    target = moves.other_dir()
    moves.alter()
    moves.step()
    file.fail_next(file.CHANGES, errno.EIO, times=-1, under=target)
    moves.step()
    file.clear_faults()
    assert moves.node.log_manager.offline_log_dirs == [target] and moves.manager.moving == []
    handle_failure(moves, target)
    assert moves.partition().future_log is None and TP not in moves.manager.failed
    assert moves.node.log_manager.future_logs() == []
    (answer,) = moves.node.produce(batch(b"d")).result.values()
    assert answer.error is None
    assert values(moves.partition().log) == [b"a", b"b", b"c", b"d"]
    assert moves.alter(to=target) == {TP: errors.KafkaStorageError}
    described = {each.path: each for each in moves.manager.describe()}
    assert described[target].is_offline and not described[target].logs


def test_a_source_directory_that_fails_ends_the_move_and_takes_the_partition_offline(moves):
    moves.node.produce(batch(b"a"))
    source = moves.partition().log.parent_dir
    moves.alter()
    moves.node.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(source, OSError(errno.EIO, "broken"))
    handle_failure(moves, source)
    assert moves.manager.moving == []
    with pytest.raises(errors.KafkaStorageError):
        moves.partition().local_log()
    (answer,) = moves.node.produce(batch(b"d")).result.values()
    assert isinstance(answer.error, errors.KafkaStorageError)


def test_a_replacement_that_fails_leaves_the_current_log_in_place(moves):
    moves.node.produce(batch(b"a"))
    target = moves.other_dir()
    moves.alter()
    file.fail_next("rename", errno.EIO, under=target)
    for _ in range(10):
        if moves.manager.moving:
            moves.step()
    file.clear_faults()
    assert moves.manager.moving == [] and moves.node.log_manager.offline_log_dirs == [target]
    handle_failure(moves, target)
    moves.node.produce(batch(b"b"))
    assert values(moves.partition().log) == [b"a", b"b"]


def test_a_log_moves_out_of_a_full_directory_which_goes_on_with_its_other_logs(moves):
    """It took the directory offline: the checkpoints could not be written without the log that had moved."""
    moves.node.produce(batch(b"a"))
    source = moves.partition().log.parent_dir
    moves.node.lead(A)
    if moves.partition(A).log.parent_dir != source:
        moves.alter(A, to=source)
        moves.finish()
    moves.node.log_manager.checkpoint_recovery_offsets()
    moves.node.replica_manager.checkpoint_high_watermarks()
    full = ("open_write", "pwrite", "mkdir")
    file.fail_next(full, errno.ENOSPC, times=-1, under=source)
    assert moves.alter() == {TP: None}
    moves.finish()
    assert moves.node.log_manager.offline_log_dirs == [] and not moves.manager.failed
    moves.node.advance(60_000)  # file.delete.delay.ms
    assert names(source) == ["a-1"], "the space is free"
    file.clear_faults()
    file.fail_next(full, errno.ENOSPC, times=-1, under=os.path.join(source, "recovery-point-offset-checkpoint"))
    assert moves.alter(to=source) == {TP: errors.KafkaStorageError}, "the old log's offsets are still there"
    assert moves.node.log_manager.offline_log_dirs == []
    file.clear_faults()
    moves.node.produce({A: batch(b"b")})
    assert values(moves.partition().log) == [b"a"] and values(moves.partition(A).log) == [b"b"]
    assert moves.alter(to=source) == {TP: None}
    checkpoints = LogDir(source).read_checkpoints()
    assert all(TP not in offsets for offsets in checkpoints)
    moves.finish()
    assert moves.partition().log.parent_dir == source and values(moves.partition().log) == [b"a"]


def test_a_move_goes_on_in_the_thread_that_takes_the_place_of_a_dead_one(moves):
    """Only a bug ends a mover, and then not the moves that it had."""
    moves.use(partition_max_bytes=1)
    moves.node.lead(A)
    for value in (b"a", b"b", b"c"):
        moves.node.produce({TP: batch(value), A: batch(value)})
    moves.alter()
    moves.step(2)
    dead, before = moves.thread, moves.states()
    assert before[TP].fetch_offset > 0
    dead.is_running = False
    assert dead.is_dead
    target = moves.other_dir()
    assert moves.alter(A) == {A: None}
    assert moves.thread is not dead and moves.states().keys() == {TP, A}
    assert moves.states()[TP] == before[TP], "from where it was"
    moves.finish()
    assert moves.partition().log.parent_dir == target and values(moves.partition().log) == [b"a", b"b", b"c"]


def test_RM_12_a_mover_that_has_nothing_to_move_ends_at_the_next_change(moves):
    moves.node.produce(batch(b"a"))
    moves.node.lead(A)
    moves.alter()
    idle = moves.thread
    moves.node.lead(epoch=1)
    assert moves.thread is idle and idle.is_running, "it has something to move"
    moves.finish()
    moves.node.lead(A, epoch=1)
    assert not moves.manager._threads and not idle.is_running and not idle.is_dead
    assert moves.alter() == {TP: None}
    moves.finish()
    assert moves.thread is not idle
    stopped = moves.thread
    assert moves.node.stop(A) == {A: None}
    assert not moves.manager._threads and not stopped.is_running


def test_each_directory_is_described_with_its_logs_and_what_a_future_log_lacks(moves):
    moves.use(partition_max_bytes=1)
    for value in (b"a", b"b", b"c"):
        moves.node.produce(batch(value))
    source, target = moves.partition().log.parent_dir, moves.other_dir()
    moves.alter()
    moves.step()
    described = {each.path: each for each in moves.manager.describe()}
    (current,), (future,) = described[source].logs, described[target].logs
    log = moves.partition().log
    assert (current.topic_partition, current.size, current.offset_lag, current.is_future) == (TP, log.size, 0, False)
    assert (future.size, future.offset_lag, future.is_future) == (log.size // 3, 2, True)
    assert all(each.total_bytes >= each.usable_bytes > 0 for each in described.values())


def test_the_local_end_point_answers_by_the_partitions_epoch(moves):
    for value in (b"a", b"b"):
        moves.node.produce(batch(value))
    moves.partition().delete_records_on_leader(1)
    end_point = LocalLeaderEndPoint(moves.node.replica_manager.hosted_partitions)
    ask = end_point.send
    (answer,) = ask(OffsetForLeaderEpochRequest({TP: EpochQuestion(0, 0)})).partitions.values()
    assert answer == EpochEndOffset(0, 2)
    (answer,) = ask(OffsetForLeaderEpochRequest({TP: EpochQuestion(1, 0)})).partitions.values()
    assert isinstance(answer.error, errors.UnknownLeaderEpoch)
    ends = {t: ask(ListOffsetsRequest({TP: OffsetQuestion(0, t)})).partitions[TP].offset for t in (-1, -2)}
    assert ends == {-1: 2, -2: 1}
    assert ask(FetchRequest({}, 0, 1, 1)).partitions == {}
    moves.node.lead(epoch=3)
    (answer,) = ask(ListOffsetsRequest({TP: OffsetQuestion(0, -1)})).partitions.values()
    assert isinstance(answer.error, errors.FencedLeaderEpoch)


def test_RD_27_a_fetch_of_a_move_is_answered_at_once_at_the_log_end_too(moves):
    moves.node.produce(batch(b"a"))
    manager = moves.node.replica_manager
    end_point = LocalLeaderEndPoint(manager.hosted_partitions)
    at_end = FetchPartitionData(1, 1 << 20, current_leader_epoch=0)
    reply = end_point.send(FetchRequest({TP: at_end}, max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20))
    assert reply.partitions == {TP: FetchedPartition(b"", high_watermark=1, log_start_offset=0)}
    assert manager.delayed_fetch_purgatory.delayed == manager.delayed_log_end_fetch_purgatory.delayed == 0


def test_DIR_06_records_under_the_lock_are_copied_all_or_none(moves, monkeypatch):
    """The mover goes on from the offset that it fetched last."""
    monkeypatch.setattr(log_tail, "MAX_BYTES_UNDER_LOCK", 400)
    moves.manager._config = FetcherConfig(truncates_on_fetch=False, partition_max_bytes=1)
    for _ in range(8):
        moves.node.produce(batch(b"x" * 50))
    moves.alter()
    moves.step()
    assert moves.partition().future_log.log_end_offset == 1, "seven batches of 118 bytes are more than 400"
    moves.finish()
    assert values(moves.partition().log) == [b"x" * 50] * 8 and not moves.manager.failed


def test_DIR_11_a_move_that_is_cancelled_while_its_log_is_to_be_replaced_ends_in_silence(moves, monkeypatch, caplog):
    moves.node.produce(batch(b"a"))
    partition = moves.partition()
    source = partition.log.parent_dir
    moves.alter()
    replace = type(partition).maybe_replace_current_with_future_log

    def cancel_first(partition, replace_log):
        future = partition.future_log
        moves.alter(to=source)
        partition.future_log = future  # as the mover saw it
        try:
            return replace(partition, replace_log)
        finally:
            partition.future_log = None

    monkeypatch.setattr(type(partition), "maybe_replace_current_with_future_log", cancel_first)
    moves.step()
    assert partition.log.parent_dir == source and moves.manager.moving == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
