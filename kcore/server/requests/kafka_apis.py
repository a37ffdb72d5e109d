"""The dispatch table: api key -> handler.  What each API does is in handlers/, one file each.

It also has each request run on the thread that its handler names: the network thread that read it, or one of the
RequestHandlerPool, which also gets the large ones (docs/decisions/0009-where-a-request-runs.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib import import_module
from typing import NamedTuple

from kcore.common.meters import RequestMeters
from kcore.common.metrics import Measured, MetricName, count
from kcore.errors import InvalidRequest, UnknownServerError
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import StoreError
from kcore.network.connection import Request
from kcore.protocol.api_keys import INTER_BROKER, ApiKey
from kcore.protocol.codec import TooManyElements
from kcore.protocol.headers import decode_request_header
from kcore.protocol.messages import request_class
from kcore.protocol.schema import Message
from kcore.server.quotas.client_quota_manager import RequestTime
from kcore.server.requests.auth_helper import PERMISSIONS, AuthorizedHandler
from kcore.server.requests.handler import Handler
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import NETWORK_THREAD, RunsOn
from kcore.server.requests.services import Services

logger = logging.getLogger(__name__)

#: The largest request that runs on the network thread: a millisecond of copying, checking and writing record batches.
MAX_INLINE_BYTES = 1 << 20
#: Elements in the arrays of such a request, all together: a partition to fetch costs some 4 us of the thread's time.
MAX_INLINE_ELEMENTS = 300

#: A request that was decoded on the pool because it is large runs there too, if its body decides for one of these.
_UNORDERED = (NETWORK_THREAD, RunsOn.POOL)


class _Entry(NamedTuple):
    request_class: type[Message]
    handler: Handler
    #: handler.runs_on in two fields: where a request is decoded; the method that says where it then runs, or None.
    decoded_on: RunsOn
    runs_on: Callable[[RequestContext, Message], RunsOn] | None
    min_version: int
    max_version: int
    meters: RequestMeters


class KafkaApis:
    """Decodes requests and hands them to their handlers.  Thread-safe; handlers load with their first request.

    A request that cannot be parsed, and one of an API or version that is not served, ends its connection, as in
    Kafka; only ApiVersions of an unknown version is answered with UNSUPPORTED_VERSION.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pool = services.request_handler_pool
        self._client_quotas = services.client_quotas
        self._request_quota = services.client_quotas.request
        self._served = services.served_apis
        self._entries: dict[ApiKey, _Entry] = {}

    def handle(self, request: Request) -> None:
        """Answer the request, or have it answered.  Called on the network thread."""
        try:
            header = decode_request_header(request.buffer)
            entry = self._entries.get(header.api_key) or self._load(header.api_key)
            context = RequestContext(request, header, entry.meters)
            if self._request_quota.is_enabled and header.api_key not in INTER_BROKER:
                user, client_id = context.principal.name, context.client_id
                context.request_time = RequestTime(self._request_quota, user, client_id, self._client_quotas.time)
            if not entry.min_version <= header.api_version <= entry.max_version:
                self._refuse(context)
                return
            decoded_on = entry.decoded_on
            if decoded_on is NETWORK_THREAD and len(request.buffer) > MAX_INLINE_BYTES:
                decoded_on = RunsOn.POOL
            if decoded_on is not NETWORK_THREAD:
                self._pool.submit(request, partial(self._decode_and_run, context, entry), decoded_on)
                return
            body = context.decode(entry.request_class, MAX_INLINE_ELEMENTS)
        except InvalidRequest as error:
            request.close_connection(error)
            return
        except TooManyElements:
            self._pool.submit(request, partial(self._decode_and_run, context, entry))
            return
        if entry.runs_on is not None:
            runs_on = entry.runs_on(context, body)
            if runs_on is not NETWORK_THREAD:
                self._pool.submit(request, partial(self._restart_and_run, context, entry, body), runs_on)
                return
        self._run(context, entry, body)

    @property
    def served(self) -> Collection[ApiKey]:
        return self._served.keys()

    def handler(self, api_key: ApiKey) -> Handler:
        """What answers the requests of an API.  Raises InvalidRequest for one that is not served."""
        return (self._entries.get(api_key) or self._load(api_key)).handler

    def replace_handler(self, api_key: ApiKey, make: Callable[[Handler], Handler]) -> None:
        """From now on the requests of an API come to make(its handler), on the thread on which they did before.

        Raises InvalidRequest for an API that is not served.
        """
        entry = self._entries.get(api_key) or self._load(api_key)
        self._entries[api_key] = entry._replace(handler=make(entry.handler))

    def measured(self) -> Iterator[tuple[MetricName, Measured]]:
        """How many requests of each API and version came, and how long they took to be answered."""
        for api_key, entry in list(self._entries.items()):
            name = "".join(word.capitalize() for word in api_key.name.split("_"))
            for version, requests in entry.meters.requests().items():
                tags = {"request": name, "version": version}
                yield MetricName("kafka.network", "RequestMetrics", "RequestsPerSec", **tags), count(requests)
            yield MetricName("kafka.network", "RequestMetrics", "TotalTimeMs", request=name), entry.meters

    def _decode_and_run(self, context: RequestContext, entry: _Entry) -> None:
        """On a thread of the pool."""
        try:
            body = context.decode(entry.request_class)
        except InvalidRequest as error:
            context.request.close_connection(error)
            return
        if entry.runs_on is not None:
            runs_on = entry.runs_on(context, body)
            if runs_on not in _UNORDERED:
                self._pool.submit(context.request, partial(self._restart_and_run, context, entry, body), runs_on)
                return
        self._restart_and_run(context, entry, body)

    def _restart_and_run(self, context: RequestContext, entry: _Entry, body: Message) -> None:
        """On a thread of the pool."""
        if context.request_time is not None:
            context.request_time.restart()
        self._run(context, entry, body)

    def _run(self, context: RequestContext, entry: _Entry, body: Message) -> None:
        try:
            entry.handler.handle(context, body)
        except Exception as error:
            self._failed(context, entry, body, error)
        request_time = context.request_time
        if request_time is not None:  # not answered yet
            request_time.stop()

    def _load(self, api_key: ApiKey) -> _Entry:
        if api_key not in self._served:
            raise InvalidRequest(f"{api_key.name} requests are not served")
        module = import_module(f"kcore.server.handlers.{api_key.name.lower()}")
        handler = self._authorized(api_key, module.Handler(self._services))
        runs_on = handler.runs_on
        decoded_on, decide = (runs_on, None) if isinstance(runs_on, RunsOn) else (NETWORK_THREAD, runs_on)
        versions = self._served[api_key]
        entry = _Entry(request_class(api_key), handler, decoded_on, decide, *versions, RequestMeters())
        return self._entries.setdefault(api_key, entry)

    def _authorized(self, api_key: ApiKey, handler: Handler) -> Handler:
        """The handler, behind a check of its requests where there is an authorizer."""
        auth = self._services.auth
        if not auth.is_enabled:
            return handler
        permission = PERMISSIONS.get(api_key)
        return handler if permission is None else AuthorizedHandler(handler, permission, auth)

    def _refuse(self, context: RequestContext) -> None:
        header = context.header
        if header.api_key is ApiKey.API_VERSIONS:
            from kcore.protocol.messages.api_versions import unsupported_version_response

            context.respond(unsupported_version_response(self._served[ApiKey.API_VERSIONS]), api_version=0)
        else:
            raise InvalidRequest(f"{header.api_key.name} version {header.api_version} is not served")

    def _failed(self, context: RequestContext, entry: _Entry, body: Message, error: Exception) -> None:
        """Answer the error of the metadata store, or UNKNOWN_SERVER_ERROR for what nobody expected."""
        if isinstance(error, StoreError):
            error_code = api_error(error).code
            logger.warning("%r: the metadata store: %s", context, error)
        else:
            error_code = UnknownServerError.code
            logger.error("%r failed", context, exc_info=error)
        request = context.request
        if request.is_done:
            return
        try:
            response = entry.handler.error_response(body, error_code, context.api_version)
            if response is not None:
                context.respond(response)
        except Exception:
            logger.exception("%r: its error could not be answered", context)
        if not request.is_done:
            request.close_connection(f"{context!r}: error {error_code}")
