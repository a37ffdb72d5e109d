import pathlib
import struct
from functools import partial

import pytest

from kcore import errors
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinator_partitions import java_abs, java_string_hash
from kcore.coordinator.group import group_records
from kcore.coordinator.group.committed_offset import CommittedOffset, OffsetAndMetadata
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

from .harness import Harness, MemoryLog, MemoryReplicaManager, code_of

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "golden" / "consumer-offsets"
DAY_MS = 24 * 3600 * 1000


def test_of_two_commits_on_their_way_to_the_log_the_first_that_arrives_leaves_the_other_pending():
    """As pending as before: else it would not count when it arrives, and a stable fetch would not wait for it."""
    topic_partition = TopicPartition("t", 0)
    group = GroupMetadata("g", MockTime())
    older, newer = OffsetAndMetadata(5), OffsetAndMetadata(9)
    with group:
        group.prepare_offset_commit({topic_partition: older})
        group.prepare_offset_commit({topic_partition: newer})
        group.complete_offset_commit({topic_partition: older}, 100)
        assert group.offsets == {topic_partition: CommittedOffset(100, older)}
        assert group.pending_offset_commits == {topic_partition: [newer]}
        group.fail_offset_commit({topic_partition: older})
        assert group.pending_offset_commits == {topic_partition: [newer]}
        group.complete_offset_commit({topic_partition: newer}, 101)
        assert group.offsets == {topic_partition: CommittedOffset(101, newer)}
        assert group.pending_offset_commits == {}


def test_a_group_has_its_epoch_before_other_threads_can_find_it():
    """The log would refuse what a group without one appends; get_group() and groups() take no lock."""
    manager = Harness().coordinator.manager
    epochs = []

    class Groups(dict):
        def __setitem__(self, group_id, group):
            epochs.append(group.coordinator_epoch)
            super().__setitem__(group_id, group)

    manager._groups = Groups()
    group = manager.find_group("g", create=True)
    assert epochs == [group.coordinator_epoch] and group.coordinator_epoch >= 0


def test_an_older_commit_whose_append_completes_after_a_newer_ones_does_not_replace_it():
    """While a third is on its way, so that the partition is pending all the time."""
    topic_partition = TopicPartition("t", 0)
    group = GroupMetadata("g", MockTime())
    first, second, third = OffsetAndMetadata(1), OffsetAndMetadata(2), OffsetAndMetadata(3)
    with group:
        for value in (first, second, third):
            group.prepare_offset_commit({topic_partition: value})
        group.complete_offset_commit({topic_partition: second}, 101)
        group.complete_offset_commit({topic_partition: first}, 100)
        assert group.offsets == {topic_partition: CommittedOffset(101, second)}
        assert group.pending_offset_commits == {topic_partition: [third]}
        group.complete_offset_commit({topic_partition: third}, 102)
        assert group.offsets == {topic_partition: CommittedOffset(102, third)}


def test_an_offset_that_is_removed_while_its_commit_is_on_its_way_to_the_log_stays_removed():
    """Its deletion has been answered."""
    topic_partition = TopicPartition("t", 0)
    group = GroupMetadata("g", MockTime())
    value = OffsetAndMetadata(5)
    with group:
        group.prepare_offset_commit({topic_partition: value})
        group.remove_offsets(group.values_of([topic_partition]))
        group.complete_offset_commit({topic_partition: value}, 100)
        assert group.offsets == {}
        assert not group.all_offset_partitions()


def test_a_removal_leaves_what_was_committed_since_its_values_were_taken():
    topic_partition = TopicPartition("t", 0)
    group = GroupMetadata("g", MockTime())
    older, newer, oldest_of_7, newer_of_7 = (OffsetAndMetadata(5) for _ in range(4))
    with group:
        group.prepare_offset_commit({topic_partition: older})
        group.complete_offset_commit({topic_partition: older}, 100)
        group.prepare_transactional_commit(7, {topic_partition: oldest_of_7})
        group.complete_transactional_commit(7, {topic_partition: oldest_of_7}, 101)
        values = group.values_of([topic_partition])
        group.prepare_offset_commit({topic_partition: newer})
        group.complete_offset_commit({topic_partition: newer}, 102)
        group.prepare_transactional_commit(7, {topic_partition: newer_of_7})
        group.complete_transactional_commit(7, {topic_partition: newer_of_7}, 103)
        group.remove_offsets(values)
        assert group.offsets == {topic_partition: CommittedOffset(102, newer)}
        assert group.transactional_offsets == {7: {topic_partition: CommittedOffset(103, newer_of_7)}}
        group.remove_offsets(group.values_of([topic_partition]))
        assert not group.all_offset_partitions()


def restarted(harness, **config):
    """Another coordinator over the same offsets topic, with everything loaded."""
    config.setdefault("offsets_topic_num_partitions", harness.config.offsets_topic_num_partitions)
    again = Harness(harness.replica_manager, **config)
    again.time.sleep(harness.time.milliseconds() - again.time.milliseconds())
    again.scheduler.tick()
    return again


def test_offsets_are_loaded_on_the_disks_scheduler_which_expirations_do_not_wait_for():
    disk_schedulers = []

    def disk_scheduler(time):
        disk_schedulers.append(MockScheduler(time))
        return disk_schedulers[0]

    replica_manager = golden_harness().replica_manager
    harness = Harness(replica_manager, disk_scheduler=disk_scheduler, offsets_topic_num_partitions=3)
    manager = harness.coordinator.manager
    harness.time.sleep(harness.config.offsets_retention_check_interval_ms)
    assert harness.scheduler.tick() == 1, "the expiry"
    assert manager.partitions.loading and disk_schedulers[0].tick() == 2
    assert not manager.partitions.loading


def golden_harness():
    replica_manager = MemoryReplicaManager()
    for partition in (1, 2):
        log = replica_manager.logs[partition] = MemoryLog()
        for batch in MemoryRecords((GOLDEN / f"{partition}.log").read_bytes()).batches:
            log.batches.append((batch.base_offset, bytes(batch.buffer)))
            log.log_end_offset = batch.next_offset
    harness = Harness(replica_manager, offsets_topic_num_partitions=3)
    harness.scheduler.tick()
    return harness


# -- which partition


@pytest.mark.parametrize(
    "text, value",
    [("", 0), ("a", 97), ("Aa", 2112), ("BB", 2112), ("polygenelubricants", -(1 << 31)), ("\U0001f600", 1772899)],
)
def test_strings_hash_as_in_java(text, value):
    assert java_string_hash(text) == value


def test_the_absolute_value_of_the_smallest_integer_is_zero_as_in_kafka():
    assert [java_abs(value) for value in (-(1 << 31), -5, 5)] == [0, 5, 5]


def test_groups_belong_to_the_partition_that_a_real_broker_chose():
    harness = Harness(offsets_topic_num_partitions=3)
    for group_id in ("managed", "left", "deleted", "txn", "modern"):
        assert harness.coordinator.partition_for(group_id) == 1
    assert harness.coordinator.partition_for("simple") == 2


# -- appending


def test_APP_04_a_group_and_its_offsets_are_written_with_acks_all():
    """What is answered to the group's members must outlive this broker."""
    appends = []

    class RecordingReplicaManager(MemoryReplicaManager):
        def append_records(self, timeout_ms, required_acks, internal_topics_allowed, origin, entries, *args):
            appends.append((required_acks, origin, len(entries)))
            super().append_records(timeout_ms, required_acks, internal_topics_allowed, origin, entries, *args)

    harness = Harness(RecordingReplicaManager())
    join, *_ = harness.stable_group()
    harness.sync(join, {join.member_id: b"all"})
    assert appends == [(-1, AppendOrigin.COORDINATOR, 1)]
    harness.commit({("t", 0): 5}, join.member_id, join.generation_id)
    assert appends == [(-1, AppendOrigin.COORDINATOR, 1)] * 2


# -- loading


def test_API_04_the_offsets_topic_of_a_real_broker_is_loaded():
    harness = golden_harness()
    assert harness.committed("managed") == {("orders", 0): 8, ("orders", 1): 10}
    assert harness.committed("left") == {("orders", 0): 10, ("orders", 1): 10}
    assert harness.committed("simple") == {("orders", 1): 3}
    assert harness.committed("modern") == {("orders", 0): 10, ("orders", 1): 12}
    assert harness.committed("deleted") == {}
    # The commit of offset 6 was in a transaction that aborted.
    assert harness.committed("txn") == {("orders", 0): 4}
    described = harness.coordinator.admin.describe_group("managed")
    assert (described.state, described.protocol_name) == ("Stable", "range")
    (member,) = described.members
    assert (member.group_instance_id, member.client_id, member.client_host) == ("instance-1", "golden", "/127.0.0.1")
    assert harness.group("managed").subscribed_topics == {"orders"}
    assert harness.state("left") == "Empty"
    assert harness.group("left").generation_id == 2
    assert harness.state("deleted") == "Dead"


def test_members_of_a_loaded_group_go_on_as_if_nothing_had_happened_or_lose_their_session():
    harness = Harness()
    leader, follower = harness.stable_group(2)
    again = restarted(harness)
    assert again.state() == "Stable"
    assert again.heartbeat(leader) == 0
    assert again.sync(follower).assignment == follower.member_id.encode()
    again.advance(9_000)
    assert again.heartbeat(leader) == 0
    again.advance(1_000)
    assert again.heartbeat(leader) == errors.RebalanceInProgress.code
    assert list(again.group().members) == [leader.member_id]


def test_a_restart_keeps_everything_that_was_committed():
    harness = Harness()
    (join,) = harness.stable_group()
    harness.commit({("t", 0): 1, ("t", 1): 2}, join.member_id, 1)
    harness.commit({("t", 0): 3}, join.member_id, 1)
    harness.commit({("u", 7): 9}, group_id="simple")
    again = restarted(harness)
    assert again.committed() == {("t", 0): 3, ("t", 1): 2}
    assert again.committed("simple") == {("u", 7): 9}
    assert again.group("simple").protocol_type is None


def test_a_deleted_group_stays_deleted_after_a_restart():
    harness = Harness()
    (join,) = harness.stable_group()
    harness.commit({("t", 0): 1}, join.member_id, 1)
    harness.leave(join.member_id)
    harness.delete_groups("g")
    assert restarted(harness).coordinator.admin.list_groups() == (0, [])


def test_while_a_partition_loads_requests_for_its_groups_get_the_error_that_each_api_has():
    harness = Harness()
    harness.stable_group()
    loading = Harness(harness.replica_manager)  # its scheduler has not run yet
    assert loading.join().error_code == errors.CoordinatorLoadInProgress.code
    assert loading.sync(loading.join("m")).error_code == errors.RebalanceInProgress.code
    assert code_of(loading.coordinator.heartbeat, "g", "m", None, 1) == 0
    assert code_of(loading.coordinator.offsets.fetch, "g", None) == errors.CoordinatorLoadInProgress.code
    assert loading.commit({("t", 0): 1}).result == {("t", 0): errors.CoordinatorLoadInProgress.code}
    assert loading.coordinator.admin.list_groups() == (errors.CoordinatorLoadInProgress.code, [])
    loading.scheduler.tick()
    assert loading.state() == "Stable"


def test_a_partition_without_records_is_coordinated_at_once():
    assert Harness().commit({("t", 0): 1}).result == {("t", 0): 0}


def test_a_loaded_group_larger_than_group_max_size_rebalances():
    harness = Harness()
    harness.stable_group(3)
    again = restarted(harness, max_size=2)
    assert again.state() == "PreparingRebalance"


def test_a_record_that_cannot_be_read_is_skipped_and_named(caplog):
    harness = Harness()
    harness.commit({("t", 0): 1})
    builder = RecordBatchBuilder()
    builder.append(b"\x00\x63", group_records.offset_commit_key("g", TopicPartition("t", 0)), timestamp=1)
    builder.append(b"", b"\x00\x01\x00", timestamp=1)
    builder.append(b"", None, timestamp=1)
    log = harness.replica_manager.logs[harness.coordinator.partition_for("g")]
    log.append(builder.build())
    harness.commit({("t", 1): 2})
    again = restarted(harness)
    assert again.committed() == {("t", 0): 1, ("t", 1): 2}
    assert "offset 1 skipped: offset commit: unknown version 99" in caplog.text
    assert "offset 3 skipped: group record key" in caplog.text


def test_records_of_groups_of_a_newer_protocol_are_left_out_with_one_line_for_the_partition(caplog):
    """Kafka 4 writes several for each member and epoch of a share group; their keys have versions from 10 on."""
    harness = Harness()
    harness.commit({("t", 0): 1})
    log = harness.replica_manager.logs[harness.coordinator.partition_for("g")]
    for version in range(10, 15):
        builder = RecordBatchBuilder()
        for _ in range(4):
            builder.append(b"\0\0", struct.pack(">h", version) + b"key", timestamp=1)
        log.append(builder.build())
    again = restarted(harness)
    assert again.committed() == {("t", 0): 1}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "20 records with a key of unknown version, from offset 1 on" in warning


def offset_record(builder, tp, offset):
    value = None if offset is None else group_records.offset_commit_value(OffsetAndMetadata(offset, "", -1, 1))
    builder.append(value, group_records.offset_commit_key("g", TopicPartition(*tp)), timestamp=1)


def append_to(log, offsets, producer_id=-1, marker=None):
    """A batch of offsets of group g (None: a tombstone), of a producer's transaction if it has one; or the marker that
    ends that: 1 commits, 0 aborts."""
    transaction = {"producer_id": producer_id, "producer_epoch": 0} if producer_id >= 0 else {}
    if marker is not None:
        builder = RecordBatchBuilder(is_transactional=True, is_control=True, **transaction)
        builder.append(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, marker), timestamp=1)
    else:
        if transaction:
            transaction["base_sequence"] = 0
        builder = RecordBatchBuilder(is_transactional=producer_id >= 0, **transaction)
        for tp, offset in offsets.items():
            offset_record(builder, tp, offset)
    log.append(builder.build())


def loaded(log):
    """A coordinator of group g that has loaded this log."""
    replica_manager = MemoryReplicaManager()
    replica_manager.logs[Harness().coordinator.partition_for("g")] = log
    harness = Harness(replica_manager)
    harness.scheduler.tick()
    return harness


def test_a_tombstone_removes_what_a_transaction_has_committed_before_it_and_not_what_comes_after():
    """As Kafka, which writes it where an offset is deleted while its transaction is open."""
    log = MemoryLog()
    append_to(log, {("t", 0): 10, ("t", 1): 11, ("t", 2): 12}, producer_id=5)
    append_to(log, {("t", 0): None, ("t", 1): None})
    append_to(log, {("t", 1): 20}, producer_id=5)
    append_to(log, {}, producer_id=5, marker=1)
    assert loaded(log).committed() == {("t", 1): 20, ("t", 2): 12}


def test_transactional_commits_count_once_their_transaction_is_committed_and_never_if_older():
    log = MemoryLog()
    append = partial(append_to, log)
    append({("t", 0): 1, ("t", 1): 1})
    append({("t", 0): 10, ("t", 1): 10}, producer_id=5)
    append({("t", 2): 20}, producer_id=6)
    append({("t", 3): 30}, producer_id=7)
    append({("t", 1): 2})  # newer than the transactional one, though that is committed later
    append({}, producer_id=5, marker=1)
    append({}, producer_id=6, marker=0)
    harness = loaded(log)
    assert harness.committed() == {("t", 0): 10, ("t", 1): 2}
    assert harness.group().offsets[TopicPartition("t", 0)] == CommittedOffset(2, OffsetAndMetadata(10, "", -1, 1))


# -- unloading


def test_API_05_after_resignation_the_groups_are_unloaded_and_waiting_requests_are_answered():
    harness = Harness()
    (join,) = harness.stable_group()
    parked = harness.join()
    partition = harness.coordinator.partition_for("g")
    harness.coordinator.on_resignation(partition, 1)
    assert parked.error_code == errors.NotCoordinator.code
    assert harness.heartbeat(join) == errors.NotCoordinator.code
    assert harness.group() is None
    harness.advance(1_000_000)
    assert harness.timer.size == 0


def test_waiting_syncs_are_answered_after_a_resignation():
    harness = Harness()
    first, second = harness.join(), harness.join()
    harness.advance(3_000)
    harness.advance(3_000)
    waiting = harness.sync(second)
    harness.coordinator.on_resignation(harness.coordinator.partition_for("g"))
    assert waiting.error_code == errors.NotCoordinator.code
    assert first.generation_id == 1


def test_a_resignation_while_loading_leaves_nothing_behind():
    harness = Harness()
    harness.stable_group()
    loading = Harness(harness.replica_manager)
    loading.coordinator.on_resignation(loading.coordinator.partition_for("g"), 1)
    loading.scheduler.tick()
    assert loading.group() is None
    assert code_of(loading.coordinator.admin.describe_group, "g") == errors.NotCoordinator.code


def test_a_second_election_while_the_first_load_waits_loads_once_and_what_is_there_then(monkeypatch):
    harness = Harness()
    harness.commit({("t", 0): 1})
    loading = Harness(harness.replica_manager)
    partition = loading.coordinator.partition_for("g")
    loading.coordinator.on_resignation(partition, 1)
    harness.commit({("t", 0): 2})
    loading.coordinator.on_election(partition, 2)
    loaded = []
    finish = GroupLoad.finish
    monkeypatch.setattr(GroupLoad, "finish", lambda load: loaded.append(1) or finish(load))
    loading.scheduler.tick()
    assert loading.committed() == {("t", 0): 2}
    assert len(loaded) == 1


def test_an_update_with_an_older_epoch_changes_nothing():
    harness = Harness(partitions=[])
    partition = harness.coordinator.partition_for("g")
    harness.coordinator.on_election(partition, 5)
    harness.coordinator.on_resignation(partition, 4)
    assert harness.commit({("t", 0): 1}).result == {("t", 0): 0}
    harness.coordinator.on_election(partition, 6)
    assert harness.committed() == {("t", 0): 1}
    harness.coordinator.on_resignation(partition, 7)
    assert code_of(harness.coordinator.offsets.fetch, "g", None) == errors.NotCoordinator.code


def test_an_election_of_an_older_epoch_that_comes_late_does_not_let_an_older_resignation_count():
    harness = Harness(partitions=[])
    partition = harness.coordinator.partition_for("g")
    harness.coordinator.on_election(partition, 5)
    assert harness.commit({("t", 0): 1}).result == {("t", 0): 0}
    harness.coordinator.on_election(partition, 3)
    harness.coordinator.on_resignation(partition, 4)
    assert harness.committed() == {("t", 0): 1}


def test_an_election_of_an_older_epoch_that_comes_while_a_newer_one_loads_does_not_replace_it():
    harness = Harness()
    harness.commit({("t", 0): 1})
    loading = Harness(harness.replica_manager, partitions=[])
    partition = loading.coordinator.partition_for("g")
    loading.coordinator.on_election(partition, 5)
    loading.coordinator.on_election(partition, 3)
    loading.coordinator.on_resignation(partition, 4)
    assert code_of(loading.coordinator.offsets.fetch, "g", None) == errors.CoordinatorLoadInProgress.code
    loading.scheduler.tick()
    assert loading.committed() == {("t", 0): 1}
    loading.coordinator.on_resignation(partition, 4)
    assert loading.committed() == {("t", 0): 1}


@pytest.mark.parametrize("how", ["offline", "missing"])
def test_a_partition_whose_log_cannot_be_had_is_not_coordinated(how):
    """Its data directory failed, or the replica was stopped, after the election: "no offset" would be wrong."""
    harness = Harness()
    harness.commit({("t", 0): 1})
    partition = harness.coordinator.partition_for("g")
    loading = Harness(harness.replica_manager, partitions=[])
    loading.coordinator.on_election(partition, 5)
    getattr(harness.replica_manager, how).add(partition)
    loading.scheduler.tick()
    assert code_of(loading.coordinator.offsets.fetch, "g", None) == errors.NotCoordinator.code
    assert not loading.coordinator.manager.is_loading
    # The next election finds the log.
    getattr(harness.replica_manager, how).clear()
    loading.coordinator.on_election(partition, 6)
    loading.scheduler.tick()
    assert loading.committed() == {("t", 0): 1}


def test_a_partition_that_goes_offline_while_it_is_read_is_not_coordinated():
    harness = Harness()
    harness.commit({("t", 0): 1})
    harness.commit({("t", 0): 2})
    partition = harness.coordinator.partition_for("g")
    loading = Harness(harness.replica_manager, partitions=[])
    loading.coordinator.on_election(partition, 5)
    log = harness.replica_manager.logs[partition]
    read = log.read

    def read_once(*args):
        log.read = goes_offline
        return read(*args)

    def goes_offline(*args):
        harness.replica_manager.offline.add(partition)
        raise errors.KafkaStorageError("the log is offline")

    log.read = read_once
    loading.scheduler.tick()
    assert code_of(loading.coordinator.offsets.fetch, "g", None) == errors.NotCoordinator.code
    assert loading.coordinator.manager.groups() == []


# -- expiry (KIP-211)


def test_offsets_of_an_empty_group_expire_when_it_has_been_empty_for_the_retention_time():
    harness = Harness(offsets_retention_minutes=60)
    (join,) = harness.stable_group()
    harness.commit({("t", 0): 1}, join.member_id, 1)
    for _ in range(1000):
        harness.advance(9_000)
        harness.heartbeat(join)
    harness.leave(join.member_id)
    harness.advance(3_600_000 - 1)
    harness.coordinator.manager.cleanup_expired_offsets()
    assert harness.committed() == {("t", 0): 1}
    harness.advance(1)
    harness.coordinator.manager.cleanup_expired_offsets()
    assert harness.committed() == {}
    assert harness.group() is None
    assert [record.value for record in harness.records()[-2:]] == [None, None]
    assert restarted(harness).coordinator.admin.list_groups() == (0, [])


def test_offsets_of_simple_consumers_expire_one_by_one_from_their_commit():
    harness = Harness(offsets_retention_minutes=60)
    harness.commit({("t", 0): 1})
    harness.advance(1_800_000)
    harness.commit({("t", 1): 2})
    harness.advance(1_800_000)
    harness.advance(0)
    harness.coordinator.manager.cleanup_expired_offsets()
    assert harness.committed() == {("t", 1): 2}
    # No generation, so no group record to bury.
    assert harness.records()[-1].key == group_records.offset_commit_key("g", TopicPartition("t", 0))


def test_a_stable_consumer_group_loses_only_offsets_of_topics_without_a_subscriber():
    harness = Harness(offsets_retention_minutes=1)
    names = struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", -1)
    (join,) = harness.stable_group(protocols=[("range", names)])
    harness.commit({("t", 0): 1, ("u", 0): 2}, join.member_id, 1)
    for _ in range(10):
        harness.advance(9_000)
        harness.heartbeat(join)
    harness.coordinator.manager.cleanup_expired_offsets()
    assert harness.committed() == {("t", 0): 1}


def test_an_explicit_expiry_of_an_old_client_counts_instead_of_the_retention():
    harness = Harness()
    now_ms = harness.time.milliseconds()
    harness.commit({("t", 0): OffsetAndMetadata(1, "", -1, now_ms, now_ms + 500), ("t", 1): 2})
    harness.advance(500)
    harness.coordinator.manager.cleanup_expired_offsets()
    assert harness.committed() == {("t", 1): 2}


def test_expiry_runs_by_itself():
    harness = Harness(offsets_retention_minutes=1, offsets_retention_check_interval_ms=600_000)
    harness.commit({("t", 0): 1})
    harness.advance(599_999)
    assert harness.committed() == {("t", 0): 1}
    harness.advance(1)
    assert harness.committed() == {}
