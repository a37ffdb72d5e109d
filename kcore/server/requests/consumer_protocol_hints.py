"""A line in the log for consumers that may wait for the groups of KIP-848, which this broker does not serve.

librdkafka with group.protocol=consumer looks for its coordinator, sees that it does not serve ConsumerGroupHeartbeat,
and says and sends nothing more (seen with 2.16).  Java's consumer raises UnsupportedVersionException.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict

from kcore.coordinator.group.group_coordinator import GroupCoordinator
from kcore.server.requests.request_context import RequestContext

logger = logging.getLogger(__name__)

#: A consumer of the classic protocol joins within milliseconds of the coordinator's answer.
WAIT_MS = 10_000
#: Clients that are remembered, so that each is named once.
MAX_CLIENTS = 1000
#: What librdkafka and its bindings call themselves: group.protocol came with 2.4.
_LIBRDKAFKA = re.compile(r"librdkafka (\d+)\.(\d+)|.*-rdkafka-(\d+)\.(\d+)")
_FIRST_VERSION = (2, 4)


class ConsumerProtocolHints:
    """Thread-safe enough for its callers: a lost race costs a second line."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._clients: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def coordinator_was_found(self, context: RequestContext, group_id: str) -> None:
        """A client has got the answer that this broker coordinates the group."""
        client = (context.client_id, context.client_address, group_id)
        if client in self._clients or not _may_use_consumer_protocol(context.client_software):
            return
        self._clients[client] = None
        while len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        self._coordinator.call_later(lambda: self._check(context, group_id), WAIT_MS)

    def _check(self, context: RequestContext, group_id: str) -> None:
        client_id, address = context.client_id, context.client_address
        if self._coordinator.has_member_of(group_id, client_id, address):
            return
        logger.warning(
            "client %r at %s (%s) has looked for the coordinator of group %r and not joined it within %d s: if its "
            "group.protocol is consumer (KIP-848), it waits for ever, since this broker serves classic groups only; "
            "set group.protocol=classic. A consumer that does not subscribe can ignore this",
            client_id,
            address,
            context.client_software,
            group_id,
            WAIT_MS // 1000,
        )


def _may_use_consumer_protocol(software: str) -> bool:
    """software: name and version."""
    match = _LIBRDKAFKA.match(software)
    if match is None:
        return False
    major, minor = (int(number) for number in match.groups() if number is not None)
    return (major, minor) >= _FIRST_VERSION
