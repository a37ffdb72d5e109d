"""`kcore metadata`: what a running cluster says of itself: its id, controller, brokers, features and APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from kcore.client.admin_client import Node, silence_text
from kcore.client.config_client import ConfigResource, ResourceKind
from kcore.client.metadata_client import BrokerVersions, MetadataClient, VersionRange, api_name
from kcore.common.text import json_line, printable
from kcore.errors import ApiError
from kcore.tools.cluster_command import cluster_client, cluster_options, ids_text, leader_text
from kcore.tools.command_line import DAMAGE, OK, Arguments
from kcore.tools.commands import command

#: The settings that have a broker's listeners, those that it gives to clients first.
_LISTENERS = ("advertised.listeners", "listeners")


class _Broker(NamedTuple):
    """listeners: as the broker is configured; None where it does not say.  versions: None where it does not answer,
    because of no_answer."""

    node: Node
    is_controller: bool
    listeners: str | None
    versions: BrokerVersions | None
    no_answer: str | None


@command(example="kcore metadata --apis")
@click.option("--apis", is_flag=True, help="also which versions of each API the brokers speak")
@cluster_options("one JSON object a line: the cluster, and each broker")
def run(args: Arguments) -> int:
    """0; 1 if a broker does not answer.  Raises OSError, KafkaError, UsageError."""
    with cluster_client(MetadataClient, args, ends_where_locked=True) as client:
        cluster = client.describe_cluster(())
        silent = client.silent_brokers(cluster.brokers.values())
        brokers = []
        for node in cluster.brokers.values():
            is_controller = node.broker_id == cluster.controller_id
            if (silence := silent.get(node.broker_id)) is not None:
                brokers.append(_Broker(node, is_controller, None, None, silence_text(node[1:3], silence)))
            else:
                brokers.append(_Broker(node, is_controller, _listeners(client, node), client.versions(node), None))
    features = _features(brokers)
    if args.json:
        print(
            json_line(
                {
                    "type": "cluster",
                    "cluster_id": cluster.cluster_id,
                    "controller": None if cluster.controller_id < 0 else cluster.controller_id,
                    "features": _range_fields(features, "name"),
                }
            )
        )
        for broker in brokers:
            print(json_line(_broker_fields(broker, with_apis=args.apis)))
    else:
        print(f"cluster {cluster.cluster_id}, controller {leader_text(cluster.controller_id)}")
        print(f"  features: {', '.join(_feature_text(brokers, *item) for item in features.items()) or 'none'}")
        for broker in brokers:
            print(printable(f"  {_broker_text(broker)}"))
        if args.apis:
            _print_apis(brokers)
    return DAMAGE if silent else OK


def _listeners(client: MetadataClient, node: Node) -> str | None:
    """None also for a user who may not read the broker's settings."""
    try:
        settings = client.settings(ConfigResource(ResourceKind.BROKER, str(node.broker_id)))
    except ApiError:
        return None
    return next((settings[name].value for name in _LISTENERS if name in settings and settings[name].value), None)


def _features(brokers: list[_Broker]) -> Mapping[str, VersionRange]:
    """Those of the cluster, as the first broker that answers knows them."""
    return next((broker.versions.finalized_features for broker in brokers if broker.versions is not None), {})


def _feature_text(brokers: list[_Broker], name: str, finalized: VersionRange) -> str:
    supported = [broker.versions.supported_features.get(name) for broker in brokers if broker.versions is not None]
    highest = min((versions.highest for versions in supported if versions is not None), default=finalized.highest)
    more = f" (all brokers could do {highest})" if highest > finalized.highest else ""
    return f"{name} {finalized.highest}{more}"


def _broker_text(broker: _Broker) -> str:
    node = broker.node
    return ", ".join(
        filter(
            None,
            [
                f"broker {node.broker_id} at {node.host}:{node.port}",
                "" if node.rack is None else f"rack {node.rack}",
                "controller" if broker.is_controller else "",
                "" if broker.listeners is None else f"listeners {broker.listeners}",
                broker.no_answer,
            ],
        )
    )


def _broker_fields(broker: _Broker, *, with_apis: bool) -> dict[str, Any]:
    node, versions = broker.node, broker.versions
    fields: dict[str, Any] = {
        "type": "broker",
        "broker": node.broker_id,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "is_controller": broker.is_controller,
        "listeners": broker.listeners,
        "supported_features": None if versions is None else _range_fields(versions.supported_features, "name"),
        "no_answer": broker.no_answer,
    }
    if with_apis:
        apis = None if versions is None else _range_fields(versions.apis, "api_key")
        fields["apis"] = None if apis is None else [{"name": api_name(api["api_key"])} | api for api in apis]
    return fields


def _range_fields(ranges: Mapping[Any, VersionRange], key: str) -> list[dict[str, Any]]:
    return [
        {key: name, "min_version": versions.lowest, "max_version": versions.highest}
        for name, versions in sorted(ranges.items())
    ]


def _print_apis(brokers: list[_Broker]) -> None:
    """One table for all brokers that speak the same."""
    tables: dict[tuple[tuple[int, VersionRange], ...], list[int]] = {}
    for broker in brokers:
        if broker.versions is not None:
            tables.setdefault(tuple(sorted(broker.versions.apis.items())), []).append(broker.node.broker_id)
    for apis, ids in tables.items():
        print(f"broker{'s' if len(ids) > 1 else ''} {ids_text(ids)} speak{'' if len(ids) > 1 else 's'}:")
        for api_key, (lowest, highest) in apis:
            name = api_name(api_key) or "an API of later versions"
            print(f"  {api_key:>5} {name} {lowest}{'' if lowest == highest else f' to {highest}'}")
