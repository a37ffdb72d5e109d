"""The thread of a request whose coordinator writes to its internal topic."""

from __future__ import annotations

from collections.abc import Callable

from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.protocol.schema import Message
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.topics.admin_manager import AdminManager


def group_writes_run_on(admin: AdminManager) -> Callable[[RequestContext, Message], RunsOn]:
    """Handler.runs_on of the requests of a group's members: what the coordinator writes may be synced."""
    return lambda context, body: RunsOn.POOL if admin.flushes_on_append(GROUP_METADATA_TOPIC) else RunsOn.NETWORK_THREAD
