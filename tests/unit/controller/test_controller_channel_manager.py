"""The controller's channels: one slow broker beside others."""

import threading

import pytest

from kcore.common.time import MockTime
from kcore.controller.controller_channel_manager import ControllerChannelManager
from kcore.controller.controller_context import LiveBroker
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

DEADLINE_S = 60


def request(number):
    return UpdateMetadataRequest(controller_epoch=number)


class Brokers:
    """Broker 1 hangs until released, broker 2 refuses the first two times, broker 3 answers."""

    def __init__(self):
        self.released = threading.Event()
        self.refusals = 2
        self.sent = []
        self.closed = []

    def sender(self, broker):
        brokers = self

        class Sender:
            def send(self, message):
                if broker.broker_id == 1:
                    brokers.released.wait(DEADLINE_S)
                if broker.broker_id == 2 and brokers.refusals:
                    brokers.refusals -= 1
                    raise ConnectionRefusedError("refused")
                brokers.sent.append((broker.broker_id, message.controller_epoch))
                return UpdateMetadataResponse()

            def close(self):
                brokers.closed.append(broker.broker_id)
                brokers.released.set()

        return Sender()


def test_a_slow_or_unreachable_broker_does_not_hold_up_the_others():
    brokers = Brokers()
    manager = ControllerChannelManager(7, brokers.sender)
    answered = {broker_id: threading.Event() for broker_id in (1, 2, 3)}
    for broker_id in (1, 2, 3):
        manager.add_broker(LiveBroker(broker_id, {}, None, 1))
        manager.send_request(broker_id, request(1))
        manager.send_request(broker_id, request(2), lambda reply, b=broker_id: answered[b].set())
    assert answered[3].wait(DEADLINE_S) and answered[2].wait(DEADLINE_S)
    assert not answered[1].is_set()
    assert [sent for sent in brokers.sent if sent[0] == 2] == [(2, 1), (2, 2)]
    manager.close()
    assert sorted(brokers.closed) == [1, 2, 3]


def test_what_was_not_sent_is_dropped_with_the_broker():
    brokers = Brokers()
    manager = ControllerChannelManager(7, brokers.sender, MockTime())
    manager.add_broker(LiveBroker(1, {}, None, 1))
    for number in range(3):
        manager.send_request(1, request(number))
    manager.remove_broker(1)
    assert len(brokers.sent) <= 1
    manager.send_request(1, request(9))
    manager.close()
    assert (1, 9) not in brokers.sent


@pytest.mark.parametrize("fails", ["send", "on_reply"])
def test_an_unexpected_error_costs_one_request_and_not_the_channel(fails, caplog):
    class Sender:
        def send(self, message):
            if fails == "send" and message.controller_epoch == 1:
                raise ValueError("cannot be encoded")
            return UpdateMetadataResponse()

        def close(self):
            pass

    answered, replies = threading.Event(), []

    def on_reply(reply):
        replies.append(1)
        raise KeyError("a defect")

    manager = ControllerChannelManager(7, lambda broker: Sender())
    manager.add_broker(LiveBroker(1, {}, None, 1))
    manager.send_request(1, request(1), on_reply)
    manager.send_request(1, request(2), lambda reply: answered.set())
    assert answered.wait(DEADLINE_S)
    manager.close()
    assert replies == ([] if fails == "send" else [1])
    (record,) = [record for record in caplog.records if record.name.startswith("kcore.client")]
    assert record.levelname == "ERROR" and record.exc_info and "UpdateMetadataRequest" in record.getMessage()
