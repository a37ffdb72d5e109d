"""Pages about data directories."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kcore.common.progress import Progress, Stopped
from kcore.common.text import plain_error
from kcore.inspect import log_files
from kcore.web import directories as d
from kcore.web.jobs import Cancelled, Job
from kcore.web.listing import rows_of, url, wanted_of
from kcore.web.record_pages import log_of
from kcore.web.site import NotThere, Site, number_parameter, shows, takes_form

LOGS_PER_PAGE = 50
#: A smaller log is read whole for its page, which takes a tenth of a second; a larger one when the reader says so.
_READ_AT_ONCE_BYTES = 64 << 20


def directories(site: Site, request: Request) -> Response:
    described = [d.describe(path) for path in site.settings.directories]
    return site.page(request, "directories.html", "Data directories", described=described)


def directory(site: Site, request: Request) -> Response:
    number = number_parameter(request.query_params, "dir", 0)
    if number >= len(site.settings.directories):
        raise NotThere(f"there is no directory number {number}")
    path = site.settings.directories[number]
    wanted = wanted_of(request.query_params, ["name"], "name")
    rows = rows_of(d.log_names(path), wanted, lambda name: name, {"name": lambda name: name}, LOGS_PER_PAGE)
    sizes: dict[str, d.LogSize | str] = {}
    for name in rows.shown:
        try:
            sizes[name] = d.size_of_log(d.log_path(path, name) or path)
        except OSError as error:
            sizes[name] = plain_error(error)
    return site.page(
        request, "directory.html", f"Logs of {path}", rows=rows, wanted=wanted, sizes=sizes, number=number, folder=path
    )


def log(site: Site, request: Request) -> Response:
    number, name, path = log_of(site, request.query_params)
    is_small = d.size_of_log(path).size <= _READ_AT_ONCE_BYTES
    found = d.map_of(path, Progress("map", 0, quiet=True)) if is_small else d.sizes_of(path)
    return site.page(
        request,
        "log.html",
        f"Segments of {path}",
        place={"dir": number, "log": name},
        found=found,
        is_checked=is_small,
        token=site.token,
    )


class _JobProgress(Progress):
    """Tells a job how many bytes are read."""

    def __init__(self, job: Job) -> None:
        super().__init__("check", job.total, quiet=True)
        self._job = job

    def advance(self, size: int, file: str | None = None) -> None:
        try:
            self._job.advance(size)
        except Cancelled:
            self.stop()
        super().advance(size, file)


def start_check(site: Site, request: Request, form: Mapping[str, str]) -> Response:
    number, name, path = log_of(site, form)

    def work(job: Job) -> None:
        job.total = log_files.size_under([path])
        try:
            job.result = {"map": d.map_of(path, _JobProgress(job)), "place": {"dir": number, "log": name}}
        except Stopped:
            raise Cancelled from None

    job = site.jobs.start("check", path, work)
    return RedirectResponse(url("/job", id=job.number), 303)


PAGES = {"/directories": shows(directories), "/directory": shows(directory), "/log": shows(log)}
FORMS_TAKEN = {"/check": takes_form(start_check)}
