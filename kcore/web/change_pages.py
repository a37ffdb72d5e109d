"""Pages that change a cluster: only with --http-admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from kcore.common.text import counted
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ElectionNotNeeded
from kcore.web.listing import url
from kcore.web.shown import foreign
from kcore.web.site import (
    BadInput,
    Forbidden,
    FormHandler,
    Handler,
    Site,
    number_parameter,
    shows,
    takes_form,
    text_parameter,
)

_INT16, _INT32 = (1 << 15) - 1, (1 << 31) - 1


def _allowed(site: Site) -> None:
    """Raises Forbidden."""
    if not site.settings.allows_changes:
        raise Forbidden("this page changes nothing: kcore web --http-admin does")


def form(template: str, title: str) -> Handler:
    """The page with a form."""

    def page(site: Site, request: Request) -> Response:
        _allowed(site)
        return site.page(request, template, title, token=site.token)

    return page


def change(act: Callable[[Site, Mapping[str, str]], tuple[str, str]]) -> FormHandler:
    """What a form is sent to.  act: does it, and returns what has happened and where to go on."""

    def page(site: Site, request: Request, values: Mapping[str, str]) -> Response:
        _allowed(site)
        text, address = act(site, values)
        return site.page(request, "done.html", "Done", text=text, address=address)

    return page


def _create_topic(site: Site, values: Mapping[str, str]) -> tuple[str, str]:
    name = text_parameter(values, "name").strip()
    settings = {}
    for line in values.get("config", "").splitlines():
        key, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise BadInput(f"settings: expected NAME=VALUE on each line, not {foreign(line[:40])!r}")
        if line.strip():
            settings[key.strip()] = value.strip()
    partitions = number_parameter(values, "partitions", -1, _INT32)
    replicas = number_parameter(values, "replicas", -1, _INT16)
    with site.reader().own_client() as client:
        client.create_topic(name, partitions, replicas, config=settings)
    site.watcher().look_again()
    return f"Topic {name} is created.", url("/topic", name=name)


def _delete_topic(site: Site, values: Mapping[str, str]) -> tuple[str, str]:
    name = text_parameter(values, "topic")
    if values.get("again") != name:
        raise BadInput("the topic is not deleted: its name was not written again as it is")
    with site.reader().own_client() as client:
        client.delete_topic(name)
    site.watcher().look_again()
    return f"Topic {name} is being deleted.", "/topics"


def _delete_group(site: Site, values: Mapping[str, str]) -> tuple[str, str]:
    group_id = text_parameter(values, "group")
    with site.reader().own_client() as client:
        client.delete_group(group_id)
    return f"Group {group_id} is deleted, with its committed offsets.", "/groups"


def _elect(site: Site, values: Mapping[str, str]) -> tuple[str, str]:
    name = text_parameter(values, "topic")
    with site.reader().own_client() as client:
        numbers = client.describe_cluster([name]).topics[name].partitions
        results = client.elect_leaders([TopicPartition(name, number) for number in numbers])
    failed = [
        f" {tp}: {error}."
        for tp, error in sorted(results.items())
        if error is not None and not isinstance(error, ElectionNotNeeded)
    ]
    elected = sum(error is None for error in results.values())
    return f"{counted(elected, 'partition')} got their preferred leader.{''.join(failed)}", url("/topic", name=name)


PAGES = {
    "/change/create-topic": shows(form("create_topic.html", "Create a topic")),
    "/change/delete-topic": shows(form("delete_topic.html", "Delete a topic")),
    "/change/delete-group": shows(form("delete_group.html", "Delete a consumer group")),
    "/change/elect": shows(form("elect.html", "Elect the preferred leaders of a topic")),
}
FORMS_TAKEN = {
    "/change/create-topic": takes_form(change(_create_topic)),
    "/change/delete-topic": takes_form(change(_delete_topic)),
    "/change/delete-group": takes_form(change(_delete_group)),
    "/change/elect": takes_form(change(_elect)),
}
