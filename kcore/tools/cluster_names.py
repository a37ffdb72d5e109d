"""Names of topics and groups, which a shell completes by asking the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from kcore.client.group_client import GroupClient
from kcore.errors import KafkaError
from kcore.tools.bootstrap import default_bootstrap
from kcore.tools.command_line import Decorator, UsageError, addresses, protocol_string

#: Who has pressed Tab does not wait longer for a cluster that is silent.
_TIMEOUT_MS = 1000


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Those of the cluster that the command line names, or its environment; none if nobody answers.  An internal topic
    is offered to who has typed its first letter."""
    return _starting(incomplete, _from_cluster(ctx, lambda client: client.describe_cluster().topics))


def group_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As topic_names(), of consumer groups."""
    return _starting(incomplete, _from_cluster(ctx, lambda client: (g.group_id for g in client.list_groups()[0])))


def broker_ids_of_cluster(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As topic_names(), of brokers that are alive."""
    return _starting(incomplete, _from_cluster(ctx, lambda client: map(str, client.describe_cluster(()).brokers)))


def _from_cluster(ctx: click.Context, ask: Callable[[GroupClient], Iterable[str]]) -> list[str]:
    try:
        bootstrap = str(ctx.params.get("bootstrap") or default_bootstrap())
        with GroupClient(addresses(bootstrap), client_id="kcore-completion", timeout_ms=_TIMEOUT_MS) as client:
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
