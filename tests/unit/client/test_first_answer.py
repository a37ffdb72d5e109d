"""Brokers that answer when the test lets them."""

import threading

import pytest

from kcore.client.first_answer import all_answers, first_answer

DEADLINE_S = 60
#: No test waits for it.
NEVER_S = 10 * DEADLINE_S


class Broker:
    """Answers its name, or raises, once it is released."""

    def __init__(self, name, error=None, released=True):
        self.name, self.error = name, error
        self.asked, self.released = threading.Event(), threading.Event()
        if released:
            self.released.set()

    def ask(self):
        self.asked.set()
        assert self.released.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return self.name


@pytest.fixture
def silent():
    broker = Broker("silent", ConnectionAbortedError(103, "closed"), released=False)
    yield broker
    broker.released.set()


def test_a_broker_that_answers_keeps_the_others_from_being_asked():
    first, second = Broker("first"), Broker("second")
    assert first_answer([first, second], Broker.ask, head_start_s=NEVER_S) == (first, "first", {}, [])
    assert not second.asked.is_set()


def test_after_the_head_start_the_next_one_is_asked_while_the_first_one_still_waits(silent):
    second = Broker("second")
    assert first_answer([silent, second], Broker.ask, head_start_s=0.01) == (second, "second", {}, [silent])


def test_a_broker_that_fails_hands_over_at_once():
    refused = ConnectionRefusedError(111, "refused")
    dead, second = Broker("dead", refused), Broker("second")
    assert first_answer([dead, second], Broker.ask, head_start_s=NEVER_S) == (second, "second", {dead: refused}, [])


def test_the_first_one_answers_after_its_head_start_too(silent):
    slow = Broker("slow", released=False)

    def ask(broker):
        if broker is silent:
            slow.released.set()  # the other one has been asked
        return broker.ask()

    assert first_answer([slow, silent], ask, head_start_s=0.01) == (slow, "slow", {}, [silent])


def test_when_all_fail_the_error_has_the_class_of_the_first_one_and_names_each():
    errors = [ConnectionRefusedError(111, "a: refused"), TimeoutError(110, "b: no answer"), OSError(113, "c: no route")]
    brokers = [Broker(str(error), error) for error in errors]
    texts = ["a: refused", "a: refused; b: no answer", "a: refused; b: no answer; c: no route"]
    for count, text in enumerate(texts, start=1):
        with pytest.raises(ConnectionRefusedError) as raised:
            first_answer(brokers[:count], Broker.ask, head_start_s=NEVER_S)
        assert (raised.value.errno, raised.value.strerror) == (111, text)


def test_an_answer_that_is_an_error_is_raised_and_no_other_broker_is_asked():
    first, second = Broker("first", ValueError("not served")), Broker("second")
    with pytest.raises(ValueError, match="not served"):
        first_answer([first, second], Broker.ask, head_start_s=NEVER_S)
    assert not second.asked.is_set()


def test_all_are_asked_at_the_same_time_and_each_has_its_answer_or_its_error():
    refused = ConnectionRefusedError(111, "refused")
    brokers = [Broker("slow", released=False), Broker("dead", refused), Broker("last")]

    def ask(broker):
        if broker is brokers[2]:
            brokers[0].released.set()  # a broker that was asked before this one
        return broker.ask()

    answers = all_answers(brokers, ask)
    assert list(answers.items()) == [(brokers[0], "slow"), (brokers[1], refused), (brokers[2], "last")]
    assert all_answers([], ask) == {}
