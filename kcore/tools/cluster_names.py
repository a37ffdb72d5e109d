"""Names of topics, groups and transactional ids, which a shell completes by asking the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from kcore.client.admin_client import AdminClient
from kcore.client.group_client import GroupClient
from kcore.client.transaction_client import TransactionClient
from kcore.common.text import nearest
from kcore.errors import KafkaError
from kcore.tools.bootstrap import default_bootstrap
from kcore.tools.command_line import Decorator, UsageError, addresses, protocol_string

_Client = TypeVar("_Client", bound=AdminClient)

#: Who has pressed Tab does not wait longer for a cluster that is silent.
_TIMEOUT_MS = 1000


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Those of the cluster that the command line names, or its environment; none if nobody answers.  An internal topic
    is offered to who has typed its first letter."""
    return _starting(incomplete, _from_cluster(ctx, AdminClient, lambda client: client.describe_cluster().topics))


def nearest_topic(name: str, topics: Iterable[str]) -> str:
    """ "; did you mean X?", or where the names of these topics are shown."""
    return nearest(name, topics) or "; `kcore topics list` shows those that are there"


def group_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As topic_names(), of consumer groups."""
    listed = _from_cluster(ctx, GroupClient, lambda client: (group.group_id for group in client.list_groups()[0]))
    return _starting(incomplete, listed)


def transactional_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As topic_names(), of transactional producers."""
    listed = _from_cluster(
        ctx, TransactionClient, lambda client: (listed.transactional_id for listed in client.list_transactions()[0])
    )
    return _starting(incomplete, listed)


def broker_ids_of_cluster(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As topic_names(), of brokers that are alive."""
    return _starting(
        incomplete, _from_cluster(ctx, AdminClient, lambda client: map(str, client.describe_cluster(()).brokers))
    )


def _from_cluster(ctx: click.Context, kind: type[_Client], ask: Callable[[_Client], Iterable[str]]) -> list[str]:
    try:
        bootstrap = str(ctx.params.get("bootstrap") or default_bootstrap())
        with kind(addresses(bootstrap), client_id="kcore-completion", timeout_ms=_TIMEOUT_MS) as client:
            return sorted(ask(client))
    except (OSError, KafkaError, UsageError):
        return []


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete) and (incomplete or not name.startswith("__"))]


def topic_argument(text: str | None = None, *, required: bool = True) -> Decorator:
    """TOPIC."""
    return click.argument(
        "topic",
        type=protocol_string,
        required=required,
        shell_complete=topic_names,
        metavar="TOPIC" if required else "[TOPIC]",
        help=text,
    )
