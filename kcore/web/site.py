"""Site: what the pages of one `kcore web` have in common, and how they are rendered."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kcore.client.admin_client import Address
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import counted
from kcore.common.time import SYSTEM_TIME, Time
from kcore.log.partition_metadata import format_topic_id
from kcore.web import shown
from kcore.web.answer_times import AnswerTimes
from kcore.web.cluster_reader import TIMEOUT_MS, ClusterReader
from kcore.web.jobs import Jobs
from kcore.web.listing import url
from kcore.web.sampler import Sampler

_MOST_FORM_BYTES = 1 << 16


class BadInput(Exception):
    """A parameter of a request is wrong: the page says so."""


class Forbidden(Exception):
    """The page may not do this."""


class NotThere(Exception):
    """There is no such topic, group, log or search."""


@dataclass(frozen=True)
class Settings:
    """bootstrap: empty for directories alone.  listening: the address of the server; names: others of this machine.
    allows_changes: topics and groups may be changed."""

    bootstrap: Sequence[Address] = ()
    directories: Sequence[str] = ()
    allows_changes: bool = False
    listening: str = "127.0.0.1"
    names: Sequence[str] = field(default_factory=tuple)
    timeout_ms: int = TIMEOUT_MS


class Site:
    """Thread-safe.  Lifetime: start(), close().  token: what a form must bring back that changes something."""

    def __init__(self, settings: Settings, token: str, *, time: Time = SYSTEM_TIME) -> None:
        self.settings = settings
        self.token = token
        self.time = time
        self.cluster: ClusterReader | None = None
        self.sampler: Sampler | None = None
        self.answer_times: AnswerTimes | None = None
        if settings.bootstrap:
            self.cluster = ClusterReader(settings.bootstrap, timeout_ms=settings.timeout_ms, time=time)
            self.sampler = Sampler(self.cluster, time=time)
            self.answer_times = AnswerTimes(self.cluster, time=time)
        self.jobs = Jobs(time)
        self._templates = _templates(self)

    def start(self) -> None:
        for thread in self._threads():
            thread.start()

    def close(self) -> None:
        self.jobs.close()
        for thread in self._threads():
            thread.initiate_shutdown()
        for thread in self._threads():
            thread.await_shutdown()
        if self.cluster is not None:
            self.cluster.close()

    def _threads(self) -> list[ShutdownableThread]:
        return [thread for thread in (self.sampler, self.answer_times) if thread is not None]

    def reader(self) -> ClusterReader:
        """Raises NotThere."""
        if self.cluster is None:
            raise NotThere("this page shows directories alone: kcore web --bootstrap HOST:PORT shows a cluster")
        return self.cluster

    def watcher(self) -> Sampler:
        """Raises NotThere."""
        self.reader()
        assert self.sampler is not None
        return self.sampler

    def answers(self) -> AnswerTimes:
        """Raises NotThere."""
        self.reader()
        assert self.answer_times is not None
        return self.answer_times

    def sections(self) -> list[tuple[str, str]]:
        """Address and name of the pages that each page links to."""
        of_cluster = [("/", "Brokers"), ("/topics", "Topics"), ("/groups", "Groups")] if self.cluster else []
        of_disk = [("/directories", "Directories")] if self.settings.directories else []
        return [*of_cluster, *of_disk, ("/search", "Search")]

    def page(self, request: Request, template: str, title: str, *, status: int = 200, **values: Any) -> Response:
        """title: what the page shows, in plain words."""
        text = self._templates.get_template(template).render(
            site=self,
            title=title,
            path=request.url.path,
            query=dict(request.query_params),
            now_ms=self.time.milliseconds(),
            **values,
        )
        # A name that is no Unicode text, which only a broken client sends, is shown with question marks.
        return HTMLResponse(text.encode("utf-8", "replace"), status)


def _templates(site: Site) -> Environment:
    environment = Environment(
        loader=PackageLoader("kcore.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "foreign": shown.foreign,
        "number": shown.number,
        "size": shown.size,
        "date": shown.date,
        "ago": lambda timestamp_ms: shown.ago(timestamp_ms, site.time.milliseconds()),
        "topic_id": format_topic_id,
        "ids": lambda ids: ", ".join(map(str, ids)) or "none",
    }
    environment.globals |= {"url": url, "counted": counted, "FORMS": shown.FORMS}
    for name in environment.list_templates():
        environment.get_template(name)  # compiled now, not for the first reader
    return environment


Handler = Callable[[Site, Request], Response]
FormHandler = Callable[[Site, Request, Mapping[str, str]], Response]


def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def shows(handler: Handler) -> Callable[[Request], Response]:
    """The endpoint of a page that changes nothing; it runs on a thread of its own."""

    def endpoint(request: Request) -> Response:
        return handler(site_of(request), request)

    return endpoint


def takes_form(handler: FormHandler) -> Callable[[Request], Any]:
    """The endpoint of a form.  BadInput for one that did not come from a page of this server."""

    async def endpoint(request: Request) -> Response:
        site = site_of(request)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_FORM_BYTES:
                raise BadInput(f"a form of more than {_MOST_FORM_BYTES} bytes")
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if not hmac.compare_digest(form.get("token", "").encode(), site.token.encode()):
            raise BadInput("this form is no page's of this server since its last start: go back, and load it again")
        return await run_in_threadpool(handler, site, request, form)

    return endpoint


def text_parameter(query: Mapping[str, str], name: str) -> str:
    """Raises BadInput if it is missing."""
    value = query.get(name)
    if value is None:
        raise BadInput(f"the address lacks the parameter {name}")
    return value


def number_parameter(query: Mapping[str, str], name: str, default: int, largest: int = (1 << 63) - 1) -> int:
    """A whole number, not below 0; the default if it is missing or empty.  Raises BadInput."""
    text = query.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest:
        return int(text)
    raise BadInput(f"{name}: expected a whole number from 0 to {largest}, not {shown.foreign(text[:40])!r}")
