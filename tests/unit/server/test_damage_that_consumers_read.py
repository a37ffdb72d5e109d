"""A broker alone whose records are damaged on its disk: what it says once consumers do not get past them."""

import pytest

import kcore
from kcore.protocol.messages import fetch as f
from kcore.replica import damage_checks
from tests.unit.log.segments import flip_a_bit
from tests.unit.server.client import Client
from tests.waiting import wait_until

#: The batch of this offset is damaged, and consumers ask for records from an earlier one on.
DAMAGED, ASKED = 99, 97


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.setattr(damage_checks, "REPEATS_MS", 50)
    with kcore.Broker(tmp_path) as broker:
        broker.create_topic("t", partitions=3)
        for number in range(200):
            broker.produce("t", b"%d" % number, partition=0)
        yield broker


class Fetches:
    """Fetches of t-0, and of other partitions that are empty, as consumers of several kinds send them."""

    def __init__(self, broker, kind):
        self.broker = broker
        self.kind = kind
        self.client = Client(broker)
        self.session_id = self.epoch = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.client.sock.close()

    def fetch(self, offset):
        count = 3 if self.kind == "in a session of many partitions" else 1
        is_in_session = "session of" in self.kind
        if self.kind == "on a new connection each time":
            self.client.sock.close()
            self.client = Client(self.broker)
        offsets = {0: offset} | dict.fromkeys(range(1, count), 0)
        partitions = [
            f.FetchPartition(partition=number, fetch_offset=at, partition_max_bytes=1 << 20)
            for number, at in offsets.items()
        ]
        names_partitions = not is_in_session or self.epoch == 0
        request = f.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch if is_in_session else -1,
            topics=[f.FetchTopic(topic="t", partitions=partitions)] if names_partitions else [],
        )
        response = self.client.ask(request, 12)
        assert response.error_code == 0
        if is_in_session:
            self.session_id, self.epoch = response.session_id, self.epoch + 1
        return response.responses[0].partitions[0].records


KINDS = ["in a session of one partition", "in a session of many partitions", "without a session"]


@pytest.mark.parametrize("kind", [*KINDS, "on a new connection each time"])
def test_a_broker_alone_says_what_of_its_records_is_damaged(broker, caplog, kind):
    path = broker.log("t").active_segment.log_path
    flip_a_bit(path)
    with Fetches(broker, kind) as fetches:

        def is_noticed():
            assert fetches.fetch(ASKED)
            return "damaged" in caplog.text

        wait_until(is_noticed)
    (line,) = (record.getMessage() for record in caplog.records if "damaged" in record.getMessage())
    position = broker.log("t").active_segment.translate_offset(DAMAGED).position
    where = f"from offset {DAMAGED}, {path} position {position}: "
    assert f"t-0: damaged {where}" in line and "leads on" in line
    for explanation in (broker.explain_isr("t"), broker.explain_fetch("t", offset=ASKED)):
        assert f"\n  damaged: {where}" in str(explanation)
