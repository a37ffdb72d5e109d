"""Services: what a broker alone does not have."""

from dataclasses import fields
from types import SimpleNamespace

import pytest

from kcore.server.handlers import (
    allocate_producer_ids,
    alter_partition,
    controlled_shutdown,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from kcore.server.requests.services import Services

ONLY_FOR_MEMBERS = [
    allocate_producer_ids,
    alter_partition,
    controlled_shutdown,
    leader_and_isr,
    stop_replica,
    update_metadata,
]


def services(**given):
    return Services(**{field.name: given.get(field.name, SimpleNamespace()) for field in fields(Services)})


@pytest.mark.parametrize("module", ONLY_FOR_MEMBERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_handler_of_requests_between_brokers_is_not_made_for_a_broker_alone(module):
    with pytest.raises(RuntimeError, match="broker 7 is no member of a cluster"):
        module.Handler(services(broker_id=7, cluster_member=None))


def test_the_member_is_the_one_that_the_services_were_made_with():
    member = object()
    assert services(cluster_member=member).member is member
