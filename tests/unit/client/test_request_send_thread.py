"""The thread that sends the requests of a channel."""

import errno
import threading

from kcore.client.broker_channel import RETRY_BACKOFF_MS, BrokerChannel
from kcore.client.request_send_thread import RequestSendThread
from kcore.common.time import MockTime
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

DEADLINE_S = 60


def request(number):
    return UpdateMetadataRequest(controller_epoch=number)


def test_a_dead_broker_costs_a_few_lines_of_the_log_and_is_tried_as_often_as_ever(caplog):
    caplog.set_level("INFO")
    clock = MockTime()
    attempts_ms = []
    answered = threading.Event()

    class Sender:
        def send(self, message):
            attempts_ms.append(clock.hi_res_clock_ms())
            clock.sleep(RETRY_BACKOFF_MS)
            if len(attempts_ms) <= 100:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "h:9092: Connection refused")
            return UpdateMetadataResponse()

        def close(self):
            pass

    class NoWait(BrokerChannel):
        """Its clock goes on while a request is sent, so that the thread need not wait."""

        def on_failure(self, sent, now_ms):
            super().on_failure(sent, now_ms - RETRY_BACKOFF_MS)

    thread = RequestSendThread("to-2", NoWait(), Sender(), clock)
    thread.put(request(1), lambda reply: answered.set())
    thread.start()
    assert answered.wait(DEADLINE_S)
    thread.shutdown()
    assert attempts_ms == [attempts_ms[0] + number * RETRY_BACKOFF_MS for number in range(101)]
    lines = [line for line in caplog.messages if "sent again" in line]
    assert lines == ["to-2: UpdateMetadataRequest is sent again until it is answered: h:9092: Connection refused"] * 4
