"""A client of the page's application, without a server between."""

import re
from contextlib import contextmanager
from html import unescape

from starlette.testclient import TestClient

from kcore.web.app import make_app
from kcore.web.site import Settings, Site

TOKEN = "a token"


def address_of(broker):
    host, _, port = broker.bootstrap_servers.partition(",")[0].rpartition(":")
    return host, int(port)


@contextmanager
def opened(bootstrap=(), directories=(), *, base_url="http://127.0.0.1", **settings):
    """(client, site) while the block runs."""
    site = Site(Settings(bootstrap=bootstrap, directories=[str(d) for d in directories], **settings), TOKEN)
    with TestClient(make_app(site), base_url=base_url) as client:
        yield client, site


@contextmanager
def opened_after_a_look(*arguments, **settings):
    """As opened(), once the list of topics is there: a page waits for it only for a moment."""
    with opened(*arguments, **settings) as (client, site):
        assert site.sampler.wait_for_catalog(60) is not None, site.sampler.problem
        yield client, site


def plain(markup):
    """What a reader sees of it."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).replace("\u202f", "").split())


def words(text):
    """What a reader sees of a page's content."""
    return plain(text[text.index("<main") :])


def cells(text):
    """The texts of each row of the tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    return [row for row in ([plain(cell) for cell in re.findall(r"<td.*?</td>", row, re.S)] for row in rows) if row]
