"""Pages about a cluster: brokers, topics, partitions, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from kcore.client.admin_client import PartitionDescription
from kcore.client.group_client import GroupClient, ListedGroup
from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import UnknownTopicOrPartition
from kcore.web.answer_times import MOST_LINES, lines_of
from kcore.web.catalog import TopicSummary, since_text
from kcore.web.listing import rows_of, wanted_of
from kcore.web.sampler import Point, Sampler
from kcore.web.site import Site, shows, text_parameter

TOPICS_PER_PAGE = 50
PARTITIONS_PER_PAGE = 50
GROUPS_PER_PAGE = 25
#: Of the topics page: so long it waits for the first list, which is read while the server starts.
_FIRST_WAIT_S = 0.1


def brokers(site: Site, request: Request) -> Response:
    if site.cluster is None and site.settings.directories:
        return RedirectResponse("/directories")
    reader, sampler = site.reader(), site.watcher()
    cluster = reader.brokers()
    nodes = list(cluster.brokers.values())
    silent = reader.ask(lambda client: client.silent_brokers(nodes))
    return site.page(
        request,
        "brokers.html",
        "Brokers of the cluster",
        cluster=cluster,
        silent=silent,
        catalog=sampler.catalog,
        problem=sampler.problem,
        samples_all=sampler.samples_all,
        answer_ms=site.answers().last(),
        most_lines=MOST_LINES,
    )


def _last_rate(points: list[Point]) -> float | None:
    return points[-1][1] if points else None


def _topic_columns(sampler: Sampler) -> Mapping[str, Callable[[TopicSummary], Any]]:
    return {
        "name": lambda topic: topic.name,
        "partitions": lambda topic: topic.partitions,
        "replicas": lambda topic: topic.replicas,
        "out": lambda topic: (topic.leaderless, topic.not_in_sync),
        "rate": lambda topic: _last_rate(sampler.topic_rates(topic.name)) or 0.0,
    }


def topics(site: Site, request: Request) -> Response:
    sampler = site.watcher()
    catalog = sampler.wait_for_catalog(_FIRST_WAIT_S)
    columns = _topic_columns(sampler)
    wanted = wanted_of(request.query_params, columns, "name")
    shows_internal = request.query_params.get("internal") == "1"
    listed = [] if catalog is None else catalog.topics.values()
    visible = [topic for topic in listed if shows_internal or not topic.is_internal]
    rows = rows_of(visible, wanted, lambda topic: topic.name, columns, TOPICS_PER_PAGE)
    return site.page(
        request,
        "topics.html",
        "Topics of the cluster",
        rows=rows,
        wanted=wanted,
        catalog=catalog,
        problem=sampler.problem,
        shows_internal=shows_internal,
        rate_of={topic.name: _last_rate(sampler.topic_rates(topic.name)) for topic in rows.shown},
    )


def topic(site: Site, request: Request) -> Response:
    reader, sampler = site.reader(), site.watcher()
    name = text_parameter(request.query_params, "name")
    cluster = reader.ask(lambda client: client.describe_cluster([name]))
    if name not in cluster.topics:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    described = cluster.topics[name]
    columns: Mapping[str, Callable[[tuple[int, PartitionDescription]], Any]] = {
        "partition": lambda row: row[0],
        "leader": lambda row: row[1].leader,
        "out": lambda row: (row[1].leader < 0, len(row[1].replicas) - len(row[1].isr)),
    }
    wanted = wanted_of(request.query_params, columns, "partition")
    numbered = described.partitions.items()
    rows = rows_of(numbered, wanted, lambda row: f"{row[0]:010}", columns, PARTITIONS_PER_PAGE)
    tps = [TopicPartition(name, number) for number, _ in rows.shown]
    starts, ends = reader.offsets(tps)
    sampler.watch_topic(name)
    configs = reader.ask(lambda client: client.topic_configs([name]))[name]
    return site.page(
        request,
        "topic.html",
        f"Topic {name}",
        topic=described,
        cluster=cluster,
        rows=rows,
        wanted=wanted,
        starts=starts,
        ends=ends,
        config={key: value.value for key, value in sorted(configs.items()) if value.is_own},
        reasons={number: _why_out(site, cluster, TopicPartition(name, number), row) for number, row in rows.shown},
        rate=_last_rate(sampler.topic_rates(name)),
    )


def _why_out(site: Site, cluster: Any, tp: TopicPartition, described: PartitionDescription) -> dict[int, str]:
    """By broker id, why a replica is out of the ISR, or since when."""
    out = [replica for replica in described.replicas if replica not in described.isr]
    if not out:
        return {}
    sampler = site.watcher()
    since = {replica: since_text((tp, replica), sampler.catalog, sampler.first_look_ms) for replica in out}
    return since | site.reader().why_out(cluster, tp, described)


_GROUP_COLUMNS: Mapping[str, Callable[[ListedGroup], Any]] = {
    "name": lambda group: group.group_id,
    "state": lambda group: group.state or "",
    "coordinator": lambda group: group.coordinator,
}


def groups(site: Site, request: Request) -> Response:
    reader = site.reader()
    listed, errors = reader.ask(GroupClient.list_groups)
    wanted = wanted_of(request.query_params, _GROUP_COLUMNS, "name")
    rows = rows_of(listed, wanted, lambda group: group.group_id, _GROUP_COLUMNS, GROUPS_PER_PAGE)
    shows_lag = request.query_params.get("lag") == "1"
    lags = reader.group_lags([group.group_id for group in rows.shown]) if shows_lag else {}
    return site.page(
        request,
        "groups.html",
        "Consumer groups of the cluster",
        rows=rows,
        wanted=wanted,
        lags=lags,
        shows_lag=shows_lag,
        errors={broker_id: plain_error(error) for broker_id, error in errors.items()},
    )


def group(site: Site, request: Request) -> Response:
    reader, sampler = site.reader(), site.watcher()
    group_id = text_parameter(request.query_params, "id")
    described = reader.ask(lambda client: client.describe_group(group_id))
    lag = reader.group_lags([group_id])[group_id]
    sampler.watch_group(group_id)
    wanted = wanted_of(request.query_params, ["partition", "lag"], "partition")
    owner = {tp: member for member in described.members for tp in member.assignment or ()}
    rows = rows_of(
        lag.by_partition.items(),
        wanted,
        lambda row: f"{row[0].topic}-{row[0].partition:010}",
        {
            "partition": lambda row: row[0],
            "lag": lambda row: -1 if row[1][1].offset is None else row[1][1].offset - row[1][0],
        },
        PARTITIONS_PER_PAGE,
    )
    return site.page(
        request,
        "group.html",
        f"Consumer group {group_id}",
        group=described,
        lag=lag,
        rows=rows,
        wanted=wanted,
        owner=owner,
    )


def plot(site: Site, request: Request) -> Response:
    """The points of a plot as JSON: {"t": seconds since 1970, "lines": [{"label": ..., "y": values or null}, ...]}."""
    sampler = site.watcher()
    query = request.query_params
    if "answers" in query:
        answered = site.answers().rows()
        lines = [_line(f"broker {broker}, ms", values) for broker, values in lines_of(answered)]
        return JSONResponse({"t": [row.at_ms / 1000 for row in answered], "lines": lines})
    if "topic" in query:
        sampler.watch_topic(query["topic"])
        label, points = "records per second", sampler.topic_rates(query["topic"])
    elif "group" in query:
        sampler.watch_group(query["group"])
        label, points = "lag in records", sampler.groups.points(query["group"])
    else:
        label, points = "records per second", sampler.cluster_rates()
    line = _line(label, [value for _, value in points])
    return JSONResponse({"t": [at_ms / 1000 for at_ms, _ in points], "lines": [line]})


def _line(label: str, values: Iterable[float | None]) -> dict[str, Any]:
    return {"label": label, "y": [None if value is None else round(value, 3) for value in values]}


PAGES = {
    "/": shows(brokers),
    "/topics": shows(topics),
    "/topic": shows(topic),
    "/groups": shows(groups),
    "/group": shows(group),
    "/plot.json": shows(plot),
}
