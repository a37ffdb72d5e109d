"""A broker for real clients, and what every client test needs."""

import shutil
import uuid

import pytest

import kcore
from tests import golden_data

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


@pytest.fixture(scope="module")
def broker():
    """One broker for a file's tests; each test makes topics and groups of its own."""
    with kcore.Broker() as broker:
        yield broker


@pytest.fixture
def servers(broker):
    return broker.bootstrap_servers


@pytest.fixture
def name():
    """A unique name: for a topic, a group, a client."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def golden_broker(tmp_path_factory):
    """A broker on a copy of the directory that Kafka 4.3.1 wrote.  Its open transaction, which has timed out, stays."""
    data = tmp_path_factory.mktemp("golden") / "data"
    shutil.copytree(golden_data.data_dir(), data)
    with kcore.Broker(data, **{ABORT_INTERVAL: 3_600_000}) as broker:
        yield broker
