"""The requests for one broker: order, one at a time, repetition."""

import pytest

from kcore.client.broker_channel import RETRY_BACKOFF_MS, BrokerChannel, QueuedRequest, Wait
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest


def request(number):
    return UpdateMetadataRequest(controller_epoch=number)


def test_requests_leave_in_order_one_at_a_time():
    channel = BrokerChannel()
    assert channel.next_request(0) == Wait(None)
    channel.put(request(1))
    channel.put(request(2))
    first = channel.next_request(0)
    assert first.request.controller_epoch == 1
    assert channel.next_request(0) == Wait(None)
    channel.on_reply(first)
    second = channel.next_request(0)
    assert second.request.controller_epoch == 2
    channel.on_reply(second)
    assert len(channel) == 0


def test_a_request_is_repeated_until_it_is_answered_with_a_pause():
    channel = BrokerChannel()
    channel.put(request(1))
    channel.put(request(2))
    for now in range(0, 10_000, 1000):
        sent = channel.next_request(now)
        assert sent.request.controller_epoch == 1
        channel.on_failure(sent, now)
        assert channel.next_request(now) == Wait(now + RETRY_BACKOFF_MS)
    assert len(channel) == 2


@pytest.mark.parametrize("late", ["on_reply", "on_failure"])
def test_what_comes_of_an_old_request_changes_nothing(late):
    channel = BrokerChannel()
    channel.put(request(1))
    channel.put(request(2))
    first = channel.next_request(0)
    channel.on_reply(first)
    second = channel.next_request(0)
    getattr(channel, late)(*((first,) if late == "on_reply" else (first, 0)))
    assert channel.next_request(0) == Wait(None)
    assert len(channel) == 1
    channel.on_reply(QueuedRequest(request(2)))  # equal to the second, but another one
    assert len(channel) == 1
    channel.on_reply(second)
    assert len(channel) == 0
