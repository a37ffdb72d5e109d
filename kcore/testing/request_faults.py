"""Faults on demand: requests of chosen clients are answered with an error, late, or not at all."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import ApiError
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message
from kcore.server.broker import Broker
from kcore.server.requests.handler import Handler
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RequestHandlerPool
from kcore.testing.waits import Wait

_REASON = "a fault of the test"
#: The fields of requests that name topics and partitions.
_TOPIC_FIELDS = ("name", "topic", "topic_name", "topic_id")
_PARTITION_FIELDS = ("partition", "partition_index", "index", "partition_indexes", "partitions")


class _Request(NamedTuple):
    """One that a fault has taken.  handler: what would have answered it."""

    handler: Handler
    context: RequestContext
    body: Message
    pool: RequestHandlerPool


#: What a fault does with a request; None: nothing, nobody answers it.
Action = Callable[[_Request], None] | None


class RequestFault:
    """From the call that made it to the end of its `with` block, to end(), or until it has hit `times` requests.

    Thread-safe.
    """

    def __init__(self, action: Action, matches: Callable[[RequestContext, Message], bool], times: int | None) -> None:
        self._action = action
        self._matches = matches
        self._remaining = times
        self._lock = threading.Lock()
        self._hits = 0
        self._undo: list[Callable[[], None]] = []
        self._unanswered: list[RequestContext] = []

    @property
    def hits(self) -> int:
        """How many requests it has hit."""
        return self._hits

    def wait_for_hits(self, count: int = 1, timeout: float = 30) -> None:
        """Raises WaitTimedOut with their number after `timeout` seconds."""
        Wait(
            lambda: self._hits >= count, f"{count} requests that the fault hits", lambda: f"it has hit {self._hits}"
        ).run(timeout)

    def end(self) -> None:
        """Requests are answered as usual again.  The connections of those that were not answered are closed."""
        with self._lock:
            self._remaining = 0
            undo, self._undo = self._undo, []
            unanswered, self._unanswered = self._unanswered, []
        for step in undo:
            step()
        for context in unanswered:
            if not context.request.is_done:
                context.request.close_connection(_REASON)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def hit(self, request: _Request) -> bool:
        """Whether the request is one of those that it takes; then it has acted on it."""
        if self._remaining == 0 or not self._matches(request.context, request.body):
            return False
        with self._lock:
            if self._remaining == 0:
                return False
            if self._remaining is not None:
                self._remaining -= 1
            self._hits += 1
            if self._action is None:
                self._unanswered.append(request.context)
        if self._action is not None:
            self._action(request)
        return True

    def put_into(self, broker: Broker, api_keys: Iterable[ApiKey]) -> None:
        apis, pool = broker.running.apis, broker.running.services.request_handler_pool
        for api_key in api_keys:
            apis.replace_handler(api_key, lambda handler: _FaultyHandler(handler, self, pool))
            self._undo.append(lambda api_key=api_key: apis.replace_handler(api_key, self._without))  # type: ignore[misc]

    def _without(self, handler: Handler) -> Handler:
        """The handler as it was before this fault; others may have come and gone meanwhile."""
        if not isinstance(handler, _FaultyHandler):
            return handler
        if handler.fault is self:
            return handler.handler
        return _FaultyHandler(self._without(handler.handler), handler.fault, handler.pool)


class _FaultyHandler:
    def __init__(self, handler: Handler, fault: RequestFault, pool: RequestHandlerPool) -> None:
        self.handler, self.fault, self.pool = handler, fault, pool
        self.runs_on = handler.runs_on
        self.error_response = handler.error_response

    def handle(self, context: RequestContext, body: Message) -> None:
        if not self.fault.hit(_Request(self.handler, context, body, self.pool)):
            self.handler.handle(context, body)


class _AnswerLost(RequestContext):
    """Of a request that is carried out, and whose connection ends instead of an answer."""

    __slots__ = ()

    def __init__(self, context: RequestContext) -> None:
        for name in RequestContext.__slots__:
            setattr(self, name, getattr(context, name))

    def respond(self, response: Message, throttle_ms: int = 0, *, api_version: int | None = None) -> None:
        self.request.close_connection(_REASON)

    def respond_nothing(self, throttle_ms: int = 0) -> None:
        self.request.close_connection(_REASON)


class RequestChoice(NamedTuple):
    """Which requests.  client_id: a pattern.  from_broker: those that this broker sends to others.  topic, partition:
    those that name it."""

    client_id: str = "*"
    from_broker: int | None = None
    topic: str | None = None
    partition: int | None = None

    def matcher(self, brokers: Iterable[Broker]) -> Callable[[RequestContext, Message], bool]:
        """Raises ValueError for a choice that makes no sense."""
        patterns: tuple[str, ...] = (self.client_id,)
        if self.from_broker is not None:
            if self.client_id != "*":
                raise ValueError("client_id and from_broker are both given: give one")
            # Its fetchers, its requests to the controller, those of the controller that it may be, its markers.
            broker = self.from_broker
            patterns = (
                f"broker-{broker}-fetcher-*",
                f"broker-{broker}",
                f"controller-{broker}",
                f"broker-{broker}-txn-*",
            )
        topic, partition = self.topic, self.partition
        if partition is not None and topic is None:
            raise ValueError("partition without topic: give both")
        if partition is not None and partition < 0:
            raise ValueError(f"partition={partition}: expected 0 or more")

        def matches(context: RequestContext, body: Message) -> bool:
            if not any(fnmatchcase(context.client_id, pattern) for pattern in patterns):
                return False
            if topic is None:
                return True
            ids = {broker.metadata_cache.topic_id(topic) for broker in brokers} - {ZERO_UUID}
            return _names(body, {topic, *ids}, partition)

        return matches


def make_fault(
    brokers: Collection[Broker], api: str | None, choice: RequestChoice, action: Action, times: int | None
) -> RequestFault:
    """Of requests to these brokers.  api: its name, None for each.  Raises ValueError."""
    if times is not None and times < 1:
        raise ValueError(f"times={times}: expected 1 or more")
    fault = RequestFault(action, choice.matcher(brokers), times)
    for broker in brokers:
        served = broker.running.apis.served
        fault.put_into(broker, served if api is None else [_api_key(api, served)])
    return fault


def action_of(error: str | type[ApiError] | None, delay: float | None, cut: str | None, *, silent: bool) -> Action:
    """Raises ValueError unless just one is given; KafkaTestSupport.fault() says what each means."""
    given = [
        name
        for name, value in {"error": error, "delay": delay, "cut": cut, "silent": silent or None}.items()
        if value is not None
    ]
    if len(given) != 1:
        raise ValueError(f"give one of error, delay, cut and silent: {', '.join(given) or 'none is given'}")
    if error is not None:
        code = _error_class(error).code
        return lambda request: _answer_error(request, code)
    if delay is not None:
        if not 0 <= delay <= threading.TIMEOUT_MAX:
            raise ValueError(f"delay={delay}: expected 0 seconds or more, at most {threading.TIMEOUT_MAX:.0f}")
        return lambda request: _answer_later(request, delay)
    if cut is not None:
        if cut not in ("before", "after"):
            raise ValueError(f"cut={cut!r}: expected before or after (the request is carried out)")
        return _cut_before if cut == "before" else _cut_after
    return None


def _answer_error(request: _Request, code: int) -> None:
    context = request.context
    response = request.handler.error_response(request.body, code, context.api_version)
    if response is None:
        context.request.close_connection(_REASON)
    else:
        context.respond(response)


def _answer_later(request: _Request, delay: float) -> None:
    def answer() -> None:
        request.pool.submit(request.context.request, lambda: request.handler.handle(request.context, request.body))

    timer = threading.Timer(delay, answer)
    timer.daemon = True
    timer.start()


def _cut_before(request: _Request) -> None:
    request.context.request.close_connection(_REASON)


def _cut_after(request: _Request) -> None:
    request.handler.handle(_AnswerLost(request.context), request.body)


def _api_key(name: str, served: Iterable[ApiKey]) -> ApiKey:
    by_name = {_plain(api_key.name): api_key for api_key in served}
    if _plain(name) not in by_name:
        raise ValueError(f"no API {name!r} is served{_nearest(name, by_name)}")
    return by_name[_plain(name)]


def _error_class(error: str | type[ApiError]) -> type[ApiError]:
    if not isinstance(error, str):
        return error
    by_name = {_plain(error_class.__name__): error_class for error_class in _subclasses(ApiError)}
    if _plain(error) not in by_name:
        # Those of the protocol; the others say more of one of them.
        named = {name: error_class for name, error_class in by_name.items() if "code" in vars(error_class)}
        near = _nearest(error, named) or ": kcore.errors has their names"
        raise ValueError(f"Kafka's protocol has no error {error!r}{near}")
    return by_name[_plain(error)]


def _subclasses(of: type[ApiError]) -> Iterator[type[ApiError]]:
    for error_class in of.__subclasses__():
        yield error_class
        yield from _subclasses(error_class)


def _nearest(name: str, by_name: Mapping[str, ApiKey | type[ApiError]]) -> str:
    for near in difflib.get_close_matches(_plain(name), by_name, 1, cutoff=0.5):
        found = by_name[near]
        return f": did you mean {found.name if isinstance(found, ApiKey) else found.__name__}?"
    return ""


def _plain(name: str) -> str:
    """NOT_LEADER_OR_FOLLOWER and NotLeaderOrFollower are the same name."""
    return name.replace("_", "").lower()


def _names(value: Any, topics: set[str | UUID], partition: int | None) -> bool:
    """Whether a part of a request names one of these topics, and in it the partition."""
    if isinstance(value, list):
        return any(_names(item, topics, partition) for item in value)
    fields = getattr(type(value), "__slots__", ())
    if any(field in fields and getattr(value, field) in topics for field in _TOPIC_FIELDS):
        return partition is None or any(partition in _numbers(getattr(value, field)) for field in fields)
    return any(_names(getattr(value, field), topics, partition) for field in fields)


def _numbers(value: Any) -> set[int]:
    """The partitions that a topic's part of a request lists."""
    if not isinstance(value, list):
        return set()
    numbers = {item for item in value if isinstance(item, int)}
    for item in value:
        slots = getattr(type(item), "__slots__", ())
        numbers |= {getattr(item, field) for field in _PARTITION_FIELDS if field in slots}
    return numbers
