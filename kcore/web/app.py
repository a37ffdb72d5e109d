"""The application: which address shows which page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kcore.common.text import plain_error
from kcore.errors import GroupIdNotFound, InvalidTopicException, KafkaError, UnknownTopicOrPartition
from kcore.web import change_pages, cluster_pages, directory_pages, record_pages
from kcore.web.guard import Guard, Hosts
from kcore.web.jobs import TooManyJobs
from kcore.web.site import BadInput, Forbidden, NotThere, Site, site_of

_STATUS: dict[type[Exception], tuple[int, str]] = {
    BadInput: (HTTPStatus.BAD_REQUEST, "This request cannot be answered"),
    Forbidden: (HTTPStatus.FORBIDDEN, "This page may not do that"),
    TooManyJobs: (HTTPStatus.SERVICE_UNAVAILABLE, "Too much is going on"),
    NotThere: (HTTPStatus.NOT_FOUND, "Not found"),
    UnknownTopicOrPartition: (HTTPStatus.NOT_FOUND, "Not found"),
    InvalidTopicException: (HTTPStatus.NOT_FOUND, "Not found"),
    GroupIdNotFound: (HTTPStatus.NOT_FOUND, "Not found"),
    KafkaError: (HTTPStatus.BAD_GATEWAY, "The cluster answers with an error"),
    OSError: (HTTPStatus.BAD_GATEWAY, "The cluster or a file cannot be read"),
}


def make_app(site: Site) -> Starlette:
    """The site is started and closed with the server."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        site.start()
        try:
            yield
        finally:
            await run_in_threadpool(site.close)

    parts = (cluster_pages, change_pages, directory_pages, record_pages)
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(packages=[("kcore.web", "static")]), name="static"),
            *(Route(path, page) for part in parts for path, page in part.PAGES.items()),
            *(Route(path, page, methods=["POST"]) for part in parts[1:] for path, page in part.FORMS_TAKEN.items()),
        ],
        middleware=[Middleware(Guard, hosts=Hosts(site.settings.listening, site.settings.names))],
        exception_handlers=dict.fromkeys((*_STATUS, HTTPException), _error_page),
        lifespan=lifespan,
    )
    app.state.site = site
    return app


def _error_page(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, title, text = error.status_code, HTTPStatus(error.status_code).phrase, ""
    else:
        status, title = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
        text = plain_error(error)
    return site_of(request).page(request, "error.html", title, status=status, text=text)
