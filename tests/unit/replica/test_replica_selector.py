"""Which replica a consumer reads from (KIP-392), and what a follower serves."""

import pytest

from kcore import errors
from kcore.log.log_offset_metadata import FetchIsolation, TimestampAndOffset
from kcore.replica.fetch_params import ClientMetadata, FetchParams, FetchPartitionData
from kcore.replica.replica_selector import PreferredReadReplica, ReplicaView, leader_of, rack_aware
from tests.batches import batch

from .conftest import TP, Answer, Node, update
from .test_follower_fetches import follow, one

LEADER = ReplicaView(0, "a", 9, 0)
FOLLOWERS = [
    ReplicaView(1, "b", 7, 10),
    ReplicaView(2, "c", 5, 0),
    ReplicaView(3, "c", 8, 50),
    ReplicaView(4, "c", 8, 20),
]
IN_B = ClientMetadata("b", "PLAINTEXT")


@pytest.mark.parametrize(("rack", "broker_id"), [("a", 0), ("b", 1), ("c", 4), ("d", 0), ("", 0)])
def test_RD_25_the_leader_in_the_clients_rack_else_the_follower_there_with_the_most_else_the_leader(rack, broker_id):
    client = ClientMetadata(rack, "PLAINTEXT")
    assert rack_aware(client, LEADER, FOLLOWERS).broker_id == broker_id
    assert leader_of(client, LEADER, FOLLOWERS).broker_id == 0


RACKS = {0: "a", 1: "b", 2: "c"}


@pytest.fixture
def racks():
    return dict(RACKS)


@pytest.fixture
def node(tmp_path, racks):
    node = Node(tmp_path, replica_lag_time_max_ms=30_000)
    preferred = PreferredReadReplica(rack_aware, lambda broker_id, listener: racks.get(broker_id), node.time)
    node.replica_manager.local_reads.preferred_read_replica = preferred
    yield node
    node.shutdown()


@pytest.fixture
def leader(node):
    node.lead(epoch=4, isr=(0, 1, 2))
    node.produce(batch(b"a", b"b"), acks=1)
    for broker_id in (1, 2):
        follow(node, broker_id, 2)
    return node


def consume(node, offset, client=IN_B, wait_ms=0, epoch=-1, replica_id=-1):
    answer = Answer()
    params = FetchParams(
        replica_id=replica_id,
        max_wait_ms=wait_ms,
        isolation=FetchParams.isolation_of(replica_id, read_committed=False),
        client=client,
    )
    infos = [(TP, FetchPartitionData(offset, 1 << 20, current_leader_epoch=epoch))]
    node.replica_manager.fetch_messages(params, infos, answer)
    return answer


def preferred(node, offset, client=IN_B):
    return one(consume(node, offset, client)).preferred_read_replica


def test_RD_25_RD_13_RD_01_a_consumer_in_a_followers_rack_is_sent_there_at_once_and_nothing_is_read(leader):
    result = one(consume(leader, 0, wait_ms=500))
    assert (result.error, result.preferred_read_replica, result.records.size_in_bytes) == (None, 1, 0)
    assert (result.high_watermark, result.log_start_offset) == (2, 0)
    assert preferred(leader, 0, ClientMetadata("a", "PLAINTEXT")) == -1
    assert preferred(leader, 0, ClientMetadata("", "PLAINTEXT")) == -1
    assert preferred(leader, 0, None) == -1


def test_RD_25_only_a_replica_that_is_in_sync_and_alive_and_holds_the_offset_is_preferred(leader, racks):
    leader.produce(batch(b"c"), acks=1)
    assert preferred(leader, 2) == 1
    assert preferred(leader, 3) == -1  # beyond its log end
    follow(leader, 1, 2, log_start=1)
    assert preferred(leader, 0) == -1  # below its log start
    del racks[1]
    assert preferred(leader, 2) == -1
    racks[1] = "b"
    leader.become(update(epoch=5, isr=(0, 2), replicas=(0, 1, 2), partition_epoch=1))
    assert preferred(leader, 2) == -1


def test_RD_25_never_for_followers(leader):
    assert one(follow(leader, 1, 0, client=IN_B)).records.size_in_bytes > 0


def test_RD_25_a_fenced_consumer_is_refused_before_it_is_sent_elsewhere(leader):
    assert isinstance(one(consume(leader, 0, epoch=3)).error, errors.FencedLeaderEpoch)


@pytest.fixture
def follower(node):
    """Broker 1 leads; this one has its two records, of which one is committed."""
    node.become(update(leader=1, epoch=4, isr=(0, 1), replicas=(0, 1)))
    log = node.replica_manager.get_partition(TP).log
    first, second = batch(b"a"), batch(b"b", base_offset=1)
    log.append_as_follower(first)
    log.append_as_follower(second)
    log.update_high_watermark(1)
    return node


def test_RD_07_a_follower_serves_consumers_with_client_metadata_up_to_its_high_watermark(follower):
    result = one(consume(follower, 0, epoch=4))
    assert (result.error, result.high_watermark, result.preferred_read_replica) == (None, 1, -1)
    assert result.records.size_in_bytes == len(batch(b"a"))
    assert isinstance(one(consume(follower, 0, client=None)).error, errors.NotLeaderOrFollower)
    assert isinstance(one(follow(follower, 2, 0)).error, errors.NotLeaderOrFollower)
    assert isinstance(one(consume(follower, 0, epoch=3)).error, errors.FencedLeaderEpoch)
    assert isinstance(one(consume(follower, 3)).error, errors.OffsetOutOfRange)


def test_RD_27_the_future_replica_reads_from_a_follower_too_to_the_log_end(follower):
    result = one(consume(follower, 0, client=None, replica_id=-3))
    assert result.records.size_in_bytes == 2 * len(batch(b"a"))


def test_RD_07_a_consumer_waits_at_a_follower_until_its_high_watermark_rises(follower):
    waiting = consume(follower, 1, wait_ms=500)
    assert waiting.waits
    follower.replica_manager.get_partition(TP).log.update_high_watermark(2)
    follower.replica_manager.complete_waiting(TP)
    assert one(waiting).records.size_in_bytes > 0
    waiting = consume(follower, 2, wait_ms=500, epoch=4)
    follower.become(update(leader=1, epoch=5, isr=(0, 1), replicas=(0, 1), partition_epoch=1))
    assert isinstance(one(waiting).error, errors.FencedLeaderEpoch)


def test_a_new_leader_does_not_list_offsets_for_clients_before_its_high_watermark_has_reached_its_epoch(follower):
    """KIP-207: the last leader may have answered a later offset."""
    follower.lead(epoch=5, isr=(0, 1), replicas=(0, 1))
    partition = follower.replica_manager.get_partition(TP)
    listed = partition.fetch_offset_for_timestamp
    for isolation in (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED):
        with pytest.raises(errors.OffsetNotAvailable):
            listed(-1, isolation)
        with pytest.raises(errors.OffsetNotAvailable):
            listed(2**62, isolation)
        assert listed(-2, isolation).offset == 0
        assert listed(0, isolation).offset == 0
    assert listed(-1, FetchIsolation.LOG_END).offset == 2
    follow(follower, 1, 2, epoch=5)
    assert listed(-1, FetchIsolation.HIGH_WATERMARK) == TimestampAndOffset(-1, 2, 5)
    assert listed(2**62, FetchIsolation.HIGH_WATERMARK) is None
