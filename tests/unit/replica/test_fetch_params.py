import pytest

from kcore.log.log_offset_metadata import FetchIsolation
from kcore.replica.fetch_params import FetchParams


@pytest.mark.parametrize("replica_id", [0, 1, 2**31 - 1, -3])
def test_V22_02_RD_02_RD_04_a_follower_is_identified_by_its_id_and_0_is_an_id(replica_id):
    assert FetchParams.isolation_of(replica_id, read_committed=True) is FetchIsolation.LOG_END


@pytest.mark.parametrize("replica_id", [-1, -2])
def test_V22_02_RD_03_RD_06_a_consumer_and_a_debugging_one_read_no_further_than_is_replicated(replica_id):
    assert FetchParams.isolation_of(replica_id, read_committed=False) is FetchIsolation.HIGH_WATERMARK
    assert FetchParams.isolation_of(replica_id, read_committed=True) is FetchIsolation.TXN_COMMITTED
