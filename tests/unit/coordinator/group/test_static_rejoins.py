"""A static member that comes back while its new id is on its way to the log."""

import pytest

from kcore import errors

from .test_group_coordinator import stable_static_group


@pytest.mark.parametrize("error", [None, errors.NotEnoughReplicas("no")])
def test_a_rebalance_that_ends_before_the_new_id_is_stored_answers_instead_of_it(harness, error):
    """Else the failure would take back an id to which the next generation has assigned partitions."""
    leader, _ = stable_static_group(harness)
    harness.replica_manager.held = []
    again = harness.join(instance_id="b")
    assert again.waits
    first_append, harness.replica_manager.held = harness.replica_manager.held, None
    new = harness.join(protocols=[("range", b"subscription")])  # begins a rebalance
    new_id = harness.group().static_members["b"]
    joins = [harness.join(leader.member_id, instance_id="a"), harness.join(new_id, instance_id="b"), new]
    assert [join.error_code for join in joins] == [0, 0, 0]
    shares = {join.member_id: join.member_id.encode() for join in joins}
    harness.sync(joins[0], shares, instance_id="a")
    assert harness.state() == "Stable" and harness.group().generation_id == 2
    harness.replica_manager.error = error
    for append in first_append:
        append()
    harness.replica_manager.error = None
    assert harness.group().static_members["b"] == new_id
    assert harness.sync(joins[1], instance_id="b").assignment == new_id.encode()
