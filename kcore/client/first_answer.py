"""Asking several brokers at once: the first answer of any of them, or the answer of each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

from kcore.common.text import plain_error

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


class FirstAnswer(NamedTuple, Generic[_Key, _Answer]):
    """failed: those that failed before somebody answered.  waiting: those that had been asked and had not answered."""

    answered: _Key
    answer: _Answer
    failed: dict[_Key, OSError]
    waiting: list[_Key]


def first_answer(
    brokers: Sequence[_Key], ask: Callable[[_Key], _Answer], *, head_start_s: float
) -> FirstAnswer[_Key, _Answer]:
    """Ask the first broker, and the next one after each head start without an answer, or at once when one fails.

    ask() runs on a thread for each broker; it must end by itself, and the caller makes those end earlier that are
    still `waiting`.  A single broker is asked on the calling thread.

    Raises an OSError when all have failed: of the first broker's class, with what each of them raised.  Any other
    exception of ask() is raised at once: it is an answer.
    """
    if len(brokers) == 1:
        return FirstAnswer(brokers[0], ask(brokers[0]), {}, [])
    ended: queue.SimpleQueue[tuple[_Key, _Answer | None, BaseException | None]] = queue.SimpleQueue()
    left, waiting = list(brokers), list[_Key]()
    failed: dict[_Key, OSError] = {}
    while left or waiting:
        if left:
            waiting.append(left.pop(0))
            _start(waiting[-1], ask, ended)
        try:
            broker, answer, error = ended.get(timeout=head_start_s if left else None)
        except queue.Empty:
            continue
        waiting.remove(broker)
        if error is None:
            return FirstAnswer(broker, answer, failed, waiting)  # type: ignore[arg-type]
        if not isinstance(error, OSError):
            raise error
        failed[broker] = error
    first = failed[brokers[0]]
    texts = dict.fromkeys(plain_error(failed[broker]) for broker in brokers)
    raise type(first)(first.errno, "; ".join(texts)) from first


def all_answers(brokers: Collection[_Key], ask: Callable[[_Key], _Answer]) -> dict[_Key, _Answer | Exception]:
    """What each broker answered, or the exception of ask(), in the order of brokers: all are asked at the same time,
    each on a thread of its own, and waited for."""
    ended: queue.SimpleQueue[tuple[_Key, _Answer | None, BaseException | None]] = queue.SimpleQueue()
    for broker in brokers:
        _start(broker, ask, ended)
    answers: dict[_Key, _Answer | Exception] = {}
    for _ in brokers:
        broker, answer, error = ended.get()
        if error is not None and not isinstance(error, Exception):
            raise error
        answers[broker] = answer if error is None else error  # type: ignore[assignment]
    return {broker: answers[broker] for broker in brokers}


def _start(
    broker: _Key,
    ask: Callable[[_Key], _Answer],
    ended: queue.SimpleQueue[tuple[_Key, _Answer | None, BaseException | None]],
) -> None:
    def run() -> None:
        try:
            ended.put((broker, ask(broker), None))
        except BaseException as error:  # raised on the thread that waits
            ended.put((broker, None, error))

    # A name that is looked up for minutes keeps no command from ending.
    threading.Thread(target=run, name=f"kcore-ask-{broker}", daemon=True).start()
