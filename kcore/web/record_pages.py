"""Pages with records: a message browser, and search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from kcore.client.group_client import EARLIEST, LATEST, GroupClient
from kcore.common.moments import moment_ms
from kcore.common.topic_partition import TopicPartition
from kcore.web import search
from kcore.web.cluster_records import ClusterPartition, known_offset
from kcore.web.directories import log_names, log_path
from kcore.web.jobs import Job
from kcore.web.listing import url
from kcore.web.log_records import LogRecords
from kcore.web.records import Bounds, PartitionRecords
from kcore.web.shown import FORMS, foreign, shown_bytes
from kcore.web.site import (
    BadInput,
    NotThere,
    Site,
    number_parameter,
    shows,
    takes_form,
    text_parameter,
)

RECORDS_PER_PAGE = 50
#: Of a key, value or header on a page with many records, and on one with a single record.
_SHOWN_BYTES, _MOST_SHOWN_BYTES = 2000, 1 << 20
#: So much of what is looked for is in a search's title.
_TITLE_LENGTH = 60
_LARGEST_PARTITION = (1 << 31) - 1
TIME_HELP = "a time as 2026-11-24T03:00 (UTC unless it says), -1h, or @ and milliseconds since 1970"


class Place(NamedTuple):
    """A partition to read.  title: what it is called; query: the parameters of an address that name it."""

    title: str
    topic_partition: TopicPartition
    records: PartitionRecords
    query: Mapping[str, object]


def log_of(site: Site, query: Mapping[str, str]) -> tuple[int, str, str]:
    """Number of the directory, name and path of the log that dir= and log= name.  Raises NotThere, BadInput."""
    number = number_parameter(query, "dir", 0)
    if number >= len(site.settings.directories):
        raise NotThere(f"there is no directory number {number}")
    name = text_parameter(query, "log")
    path = log_path(site.settings.directories[number], name)
    if path is None:
        raise NotThere(f"{site.settings.directories[number]} has no log {name!r}")
    return number, name, path


def place_of(site: Site, query: Mapping[str, str]) -> Place:
    """Of topic= and partition=, or of dir= and log=.  Raises BadInput, NotThere, OSError."""
    if "log" in query:
        number, name, path = log_of(site, query)
        log = LogRecords(path)
        return Place(path, log.topic_partition, log, {"dir": number, "log": name})
    topic = text_parameter(query, "topic")
    tp = TopicPartition(topic, number_parameter(query, "partition", 0, _LARGEST_PARTITION))
    return Place(str(tp), tp, ClusterPartition(site.reader(), tp), {"topic": topic, "partition": tp.partition})


def time_parameter(site: Site, query: Mapping[str, str], name: str) -> int | None:
    """None if it is missing or empty.  Raises BadInput."""
    text = query.get(name, "").strip()
    if not text:
        return None
    try:
        return moment_ms(text, site.time.milliseconds())
    except (ValueError, OverflowError):
        raise BadInput(f"{name}: expected {TIME_HELP}, not {foreign(text[:40])!r}") from None


def form_parameter(query: Mapping[str, str]) -> str:
    form = query.get("form", "text")
    return form if form in FORMS else "text"


def messages(site: Site, request: Request) -> Response:
    query = request.query_params
    place, form = place_of(site, query), form_parameter(query)
    at_ms = time_parameter(site, query, "time")
    bounds = place.records.bounds()
    if at_ms is not None:
        offset = place.records.offset_at(at_ms)
    else:
        offset = number_parameter(query, "offset", max(bounds.start, bounds.end - RECORDS_PER_PAGE))
    found = place.records.read(offset, RECORDS_PER_PAGE)
    return site.page(
        request,
        "messages.html",
        f"Messages of {place.title}",
        place=place,
        bounds=bounds,
        offset=offset,
        found=found,
        form=form,
        older=max(bounds.start, min(offset, bounds.end) - RECORDS_PER_PAGE),
        show=lambda data: shown_bytes(data, form, _SHOWN_BYTES),
    )


def message(site: Site, request: Request) -> Response:
    """One record, whole."""
    query = request.query_params
    place, form = place_of(site, query), form_parameter(query)
    offset = number_parameter(query, "offset", 0)
    found = place.records.read(offset, 1)
    if not found.records or found.records[0].record.offset != offset:
        raise NotThere(f"{place.title} has no record with offset {offset}")
    return site.page(
        request,
        "message.html",
        f"Message {offset} of {place.title}",
        place=place,
        item=found.records[0],
        form=form,
        show=lambda data: shown_bytes(data, form, _MOST_SHOWN_BYTES),
    )


# -- search -----------------------------------------------------------------------------------------------------------


def search_form(site: Site, request: Request) -> Response:
    jobs = site.jobs.newest_first()
    return site.page(request, "search.html", "Search in messages", jobs=jobs, fields=search.FIELDS, help=TIME_HELP)


def start_search(site: Site, request: Request, form: Mapping[str, str]) -> Response:
    matches = search.Matches(_pattern(form))
    times = time_parameter(site, form, "from"), time_parameter(site, form, "to")
    words = foreign(form.get("text", "")[:_TITLE_LENGTH]) or "all records"
    if form.get("topic"):
        where = f"topic {form['topic']}"
        spans = _spans(site, form["topic"], form.get("partition", ""), times)
        work = search.search_cluster(site.reader(), form["topic"], spans, matches)
    else:
        where, paths = _logs(site, form)
        work = search.search_logs(map(LogRecords, paths), times, matches)
    job = site.jobs.start("search", f"“{words}” in {where}", work)
    return RedirectResponse(url("/job", id=job.number), 303)


def _logs(site: Site, form: Mapping[str, str]) -> tuple[str, list[str]]:
    """What is searched, and the paths of the logs.  Raises BadInput, NotThere, OSError."""
    number = number_parameter(form, "dir", len(site.settings.directories))
    if number >= len(site.settings.directories):
        raise BadInput("search in what? Give a topic or a directory")
    if form.get("log"):
        _, _, path = log_of(site, form)
        return path, [path]
    directory = site.settings.directories[number]
    paths = [log_path(directory, name) for name in sorted(log_names(directory))]
    return directory, [path for path in paths if path is not None]


def _pattern(form: Mapping[str, str]) -> search.Pattern:
    """Raises BadInput."""
    field, text = form.get("field", "anywhere"), form.get("text", "")
    if field not in search.FIELDS:
        raise BadInput(f"there is no part {foreign(field[:40])!r} of a record to look into")
    if form.get("as") != "hex":
        return search.Pattern(text.encode("utf-8", "surrogatepass"), field)
    try:
        return search.Pattern(bytes.fromhex(text), field)
    except ValueError:
        raise BadInput(f"{foreign(text[:40])!r} are no bytes in hex, as 00 ff") from None


def _spans(site: Site, topic: str, partition: str, times: search.Times) -> dict[int, Bounds]:
    """Offsets of the partitions that a form names.  Raises BadInput, OSError, KafkaError."""
    only = number_parameter({"partition": partition}, "partition", 0, _LARGEST_PARTITION) if partition.strip() else None

    def ask(client: GroupClient) -> dict[int, Bounds]:
        existing = client.describe_cluster([topic]).topics[topic].partitions
        if only is not None and only not in existing:
            raise NotThere(f"topic {topic} has no partition {only}")
        tps = [TopicPartition(topic, number) for number in (existing if only is None else [only])]
        ends = client.listed_offsets(dict.fromkeys(tps, LATEST))
        starts = client.listed_offsets(dict.fromkeys(tps, EARLIEST if times[0] is None else times[0]))
        limits = ends if times[1] is None else client.listed_offsets(dict.fromkeys(tps, times[1]))
        spans = {}
        for tp in tps:
            end, start, limit = (known_offset(tp, offsets[tp]) for offsets in (ends, starts, limits))
            # -1: no record is so late.
            spans[tp.partition] = Bounds(start if start >= 0 else end, limit if limit >= 0 else end)
        return spans

    return site.reader().ask(ask)


def job_of(site: Site, query: Mapping[str, str]) -> Job:
    """Raises NotThere, BadInput."""
    number = number_parameter(query, "id", 0)
    job = site.jobs.get(number)
    if job is None:
        raise NotThere(f"there is no search or check number {number}: the oldest ones are forgotten")
    return job


def job(site: Site, request: Request) -> Response:
    found, form = job_of(site, request.query_params), form_parameter(request.query_params)
    return site.page(
        request,
        f"job_{found.kind}.html",
        ("Search for " if found.kind == "search" else "Check of ") + found.title,
        job=found,
        form=form,
        show=lambda data: shown_bytes(data, form, _SHOWN_BYTES),
    )


def cancel_job(site: Site, request: Request, form: Mapping[str, str]) -> Response:
    found = job_of(site, form)
    found.cancel()
    return RedirectResponse(url("/job", id=found.number), 303)


def export(site: Site, request: Request) -> Response:
    found = job_of(site, request.query_params)
    if found.kind != "search" or found.result is None:
        raise NotThere("this search has found nothing yet")
    return StreamingResponse(
        found.result.exported(),
        media_type="application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="search-{found.number}.jsonl"'},
    )


PAGES = {
    "/messages": shows(messages),
    "/message": shows(message),
    "/search": shows(search_form),
    "/job": shows(job),
    "/export.jsonl": shows(export),
}
FORMS_TAKEN = {"/search": takes_form(start_search), "/cancel": takes_form(cancel_job)}
