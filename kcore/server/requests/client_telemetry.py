"""ClientTelemetry: which clients push metrics to this broker, and what becomes of a push (KIP-714).

Source: ClientMetricsManager, ClientMetricsInstance, Kafka 4.3; docs/decisions/0031 has what is not as there.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import NamedTuple, Protocol
from uuid import UUID

from kcore.common.metrics import Measured, MetricName
from kcore.common.random_source import random_uuid
from kcore.common.time import Time
from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    ApiError,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from kcore.record.compression import CODECS, decompress
from kcore.record.crc32c import crc32c
from kcore.server.config.stored_client_metrics import (
    ALL_METRICS,
    CLIENT_METRICS_CONFIG_DEF,
    DEFAULT_INTERVAL_MS,
    INTERVAL,
    MATCH,
    METRICS,
    StoredClientMetrics,
    matchers_of,
)

logger = logging.getLogger(__name__)

#: Clients that are remembered; of more, the one that was silent for longest is forgotten.
MAX_INSTANCES = 16384
#: How long a silent client is remembered at least; and how often those are looked for that are over.
_EXPIRY_MS = 60_000
#: What a push may hold once it is unpacked.
_MAX_UNPACKED_BYTES = 64 << 20
#: Ids that no client has.  Source: Uuid.RESERVED, Kafka.
_RESERVED = (ZERO_UUID, UUID(int=1))


class ClientMetadata(NamedTuple):
    """Who pushes metrics.  The name and version of the software are empty where the client has not given them."""

    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: int


class ClientTelemetryPayload(NamedTuple):
    """What a client has pushed.

    client_instance_id: of this run of the client, which keeps it.  is_terminating: it is the client's last push.
    data: an OTLP MetricsData, as protobuf writes it, unpacked.
    """

    client_instance_id: UUID
    client: ClientMetadata
    is_terminating: bool
    data: bytes


#: Called on threads of the broker that answer requests, several at once: it must not wait.  What it raises is logged,
#: and the broker answers the push with INVALID_RECORD.
ClientTelemetryReceiver = Callable[[ClientTelemetryPayload], object]


class Connection(Protocol):
    """fd: below 0 once it has ended."""

    @property
    def fd(self) -> int: ...


class Subscription(NamedTuple):
    """Metrics that clients are to push.  matchers: an attribute of the client, and whether its value matches."""

    metrics: frozenset[str]
    interval_ms: int
    matchers: list[tuple[str, Callable[[str], bool]]]


class ClientSubscription(NamedTuple):
    """All that one client is to push.  metrics: beginnings of names, sorted; ALL_METRICS alone for all."""

    subscription_id: int
    metrics: list[str]
    interval_ms: int


class _Instance:
    """A client, and when its next requests are due.  Times are of the hi-res clock, in ms."""

    __slots__ = (
        *("configs", "connection", "expires_ms", "interval_begins_ms", "is_terminated"),
        *("may_get_now", "may_push_now", "subscription"),
    )

    def __init__(self) -> None:
        self.connection: weakref.ref[Connection] | None = None  # of its last request
        self.configs: Mapping[str, Mapping[str, str]] | None = None  # which `subscription` is made of
        self.subscription = ClientSubscription(0, [], 0)
        self.interval_begins_ms = float("-inf")  # with the last request that was granted
        self.may_get_now = self.may_push_now = False
        self.is_terminated = False
        self.expires_ms = 0.0

    def is_over(self, now_ms: float) -> bool:
        connection = self.connection() if self.connection is not None else None
        return connection is None or connection.fd < 0 or now_ms >= self.expires_ms

    def interval_has_passed(self, now_ms: float) -> bool:
        return now_ms - self.interval_begins_ms >= self.subscription.interval_ms

    def begin_interval(self, now_ms: float, *, is_get: bool) -> None:
        """The first push after a get comes when the client likes: it waits for half to one and a half intervals."""
        self.interval_begins_ms = now_ms
        self.may_get_now, self.may_push_now = False, is_get


class ClientTelemetry:
    """Thread-safe.  Nothing runs between two requests: which clients are over is found by the next one.

    max_bytes: of a push, as it was sent.
    """

    def __init__(
        self,
        stored: StoredClientMetrics,
        receiver: ClientTelemetryReceiver,
        max_bytes: int,
        time: Time,
        random: Random,
    ) -> None:
        self.max_bytes = max_bytes
        self._stored = stored
        self._receiver = receiver
        self._time = time
        self._random = random
        self._lock = threading.Lock()
        self._configs: Mapping[str, Mapping[str, str]] | None = None  # which `_subscriptions` are made of
        self._subscriptions: list[Subscription] = []
        #: The client that was silent for longest first.
        self._instances: OrderedDict[UUID, _Instance] = OrderedDict()
        self._next_sweep_ms = 0.0
        self._counts = {
            "unknown-subscription-request-count": 0,
            "throttle-count": 0,
            "plugin-export-count": 0,
            "plugin-error-count": 0,
        }

    def get_subscription(
        self, client_instance_id: UUID, client: ClientMetadata, connection: Connection
    ) -> tuple[UUID, ClientSubscription]:
        """The client's id, a new one in the place of zero, and what it is to push.

        Raises InvalidRequest, ThrottlingQuotaExceeded.
        """
        if client_instance_id == ZERO_UUID:
            client_instance_id = random_uuid(self._random)
        _check_id(client_instance_id)
        with self._lock:
            now_ms = self._time.hi_res_clock_ms()
            instance = self._instance(client_instance_id, client, connection, now_ms)
            if not instance.may_get_now and not instance.interval_has_passed(now_ms):
                raise self._throttled(client_instance_id)
            instance.begin_interval(now_ms, is_get=True)
            return client_instance_id, instance.subscription

    def push(self, payload: ClientTelemetryPayload, subscription_id: int, codec: int, connection: Connection) -> None:
        """Hand metrics over to the receiver.  payload.data: as it was sent.

        A push that is refused is as none: neither an interval begins with it, nor is it the client's last.
        Raises InvalidRequest, ThrottlingQuotaExceeded, UnknownSubscriptionId, UnsupportedCompressionType,
        TelemetryTooLarge; InvalidRecord for what cannot be unpacked, and where the receiver fails.
        """
        _check_id(payload.client_instance_id)
        with self._lock:
            now_ms = self._time.hi_res_clock_ms()
            instance = self._instance(payload.client_instance_id, payload.client, connection, now_ms)
            try:
                self._check_push(instance, payload, subscription_id, codec, now_ms)
            except ApiError as error:
                instance.may_get_now = isinstance(error, UnknownSubscriptionId | UnsupportedCompressionType)
                raise
            instance.begin_interval(now_ms, is_get=False)
            instance.is_terminated = payload.is_terminating
        if payload.data:
            self._export(payload, codec)

    def _check_push(
        self, instance: _Instance, payload: ClientTelemetryPayload, subscription_id: int, codec: int, now_ms: float
    ) -> None:
        client = payload.client_instance_id
        if instance.is_terminated:
            raise InvalidRequest(f"client {client} has pushed metrics as its last before")
        is_due = payload.is_terminating or instance.may_push_now or instance.interval_has_passed(now_ms)
        if not is_due:
            raise self._throttled(client)
        if subscription_id != instance.subscription.subscription_id:
            self._counts["unknown-subscription-request-count"] += 1
            raise UnknownSubscriptionId(f"client {client} pushes for the subscription {subscription_id}, not its own")
        if not 0 <= codec < len(CODECS):
            raise UnsupportedCompressionType(f"client {client} pushes metrics in the unknown codec {codec}")
        if len(payload.data) > self.max_bytes:
            raise TelemetryTooLarge(f"client {client} pushes {len(payload.data)} bytes: {self.max_bytes} are the most")

    def _throttled(self, client_instance_id: UUID) -> ThrottlingQuotaExceeded:
        self._counts["throttle-count"] += 1
        return ThrottlingQuotaExceeded(f"a request of client {client_instance_id} comes before its interval has passed")

    def _export(self, payload: ClientTelemetryPayload, codec: int) -> None:
        """Without the lock: the receiver is not ours."""
        outcome = "plugin-error-count"
        try:
            data = bytes(decompress(codec, payload.data, max_size=_MAX_UNPACKED_BYTES))
            self._receiver(payload._replace(data=data))
            outcome = "plugin-export-count"
        except Exception as error:  # whatever the receiver raises
            logger.exception("the metrics of client %s are lost", payload.client_instance_id)
            raise InvalidRecord(f"the metrics could not be handed over: {error!r}") from None
        finally:
            with self._lock:
                self._counts[outcome] += 1

    def _instance(
        self, client_instance_id: UUID, client: ClientMetadata, connection: Connection, now_ms: float
    ) -> _Instance:
        """A client that sends a request now, with what the subscriptions of now make of it.  With the lock held."""
        if now_ms >= self._next_sweep_ms:
            self._sweep(now_ms)
        instance = self._instances.get(client_instance_id)
        if instance is None or instance.is_over(now_ms):
            instance = self._instances[client_instance_id] = _Instance()
            if len(self._instances) > MAX_INSTANCES:
                self._instances.popitem(last=False)
        self._instances.move_to_end(client_instance_id)
        self._follow_settings()
        if instance.configs is not self._configs:
            instance.configs = self._configs
            instance.subscription = subscription_of(client_instance_id, client, self._subscriptions)
            instance.interval_begins_ms = float("-inf")
        instance.connection = weakref.ref(connection)
        instance.expires_ms = now_ms + max(_EXPIRY_MS, 3 * instance.subscription.interval_ms)
        return instance

    def _follow_settings(self) -> None:
        configs = self._stored.configs
        if configs is not self._configs:
            self._configs, self._subscriptions = configs, list(subscriptions_of(configs))

    def _sweep(self, now_ms: float) -> None:
        """Forget the clients that are over."""
        self._next_sweep_ms = now_ms + _EXPIRY_MS
        for client_instance_id, instance in list(self._instances.items()):
            if instance.is_over(now_ms):
                del self._instances[client_instance_id]

    def measured(self) -> Iterator[tuple[MetricName, Measured]]:
        """How many clients there are, and what became of the requests of all of them together."""
        with self._lock:
            self._sweep(self._time.hi_res_clock_ms())
            counts = {"instance-count": len(self._instances), **self._counts}
        yield MetricName("kafka.server", "client-metrics", ""), {name: float(count) for name, count in counts.items()}


def _check_id(client_instance_id: UUID) -> None:
    if client_instance_id in _RESERVED:
        raise InvalidRequest(f"{client_instance_id} is not the id of a client")


def subscriptions_of(configs: Mapping[str, Mapping[str, str]]) -> Iterator[Subscription]:
    """configs: by the name of the subscription.  One with a pattern that this broker cannot match is left out, and
    logged: a newer broker may have stored it, or one that has RE2."""
    for name, config in configs.items():
        values = CLIENT_METRICS_CONFIG_DEF.parse(config)
        try:
            yield Subscription(frozenset(values[METRICS]), values[INTERVAL], matchers_of(values[MATCH]))
        except InvalidConfig as error:
            logger.error("the client metrics subscription %s is not followed: %s", name, error)


def subscription_of(
    client_instance_id: UUID, client: ClientMetadata, subscriptions: Iterable[Subscription]
) -> ClientSubscription:
    """All that are for the client: their metrics together, and the shortest of their intervals."""
    attributes = {name: str(value) for name, value in client._asdict().items()}
    attributes["client_instance_id"] = str(client_instance_id)
    own = [
        subscription
        for subscription in subscriptions
        if all(matches(attributes[name]) for name, matches in subscription.matchers)
    ]
    interval_ms = min((subscription.interval_ms for subscription in own), default=DEFAULT_INTERVAL_MS)
    names = {name for subscription in own for name in subscription.metrics}
    metrics = [ALL_METRICS] if ALL_METRICS in names else sorted(names)
    return ClientSubscription(_subscription_id(client_instance_id, metrics, interval_ms), metrics, interval_ms)


def _subscription_id(client_instance_id: UUID, metrics: list[str], interval_ms: int) -> int:
    """The same on every broker, so that a client may get it from one and push to another; 32 bits, with a sign."""
    crc = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    number = crc ^ _java_hash(client_instance_id)
    return number - (number >> 31 << 32)


def _java_hash(client_instance_id: UUID) -> int:
    """As Kafka's Uuid.hashCode(), without its sign."""
    half = (client_instance_id.int >> 64) ^ (client_instance_id.int & (1 << 64) - 1)
    return (half >> 32) ^ (half & 0xFFFFFFFF)
