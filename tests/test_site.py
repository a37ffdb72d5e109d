"""The site of the documentation is built without a warning, needs no network, and has what its reference promises."""

import re
import subprocess
import sys

import pytest

import kcore
from kcore.server.config.broker_settings import KAFKA_CONFIG_DEF
from kcore.tools.main import COMMANDS
from tests.pages import ROOT

for library in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs/site", ".", place]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return place


def text_of(page):
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_the_site_loads_nothing_from_elsewhere(site):
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+rel=\"stylesheet\"[^>]+href=\"(https?:[^\"]+)"
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert [(page.name, found) for page in pages for found in loaded.findall(page.read_text())] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.findall(r"@import[^;]+http|url\(\s*['\"]?https?:", styles)


def test_the_search_finds_words_of_the_pages(site):
    index = (site / "searchindex.js").read_text()
    assert "docs/dataframes" in index and "duckdb" in index


def test_the_reference_has_each_public_name_command_and_setting(site):
    names = text_of(site / "docs/site/api.html")
    for name in set(kcore.__all__) - {"__version__", "errors"}:
        assert f"{name}" in names, name
    commands = text_of(site / "docs/site/commands.html")
    assert [name for name in COMMANDS if f"kcore {name}" not in commands and name != "version"] == []
    assert "--replication-factor" in commands
    settings = text_of(site / "docs/site/settings.html")
    assert [name for name in KAFKA_CONFIG_DEF.names() if name not in settings] == []
    assert "CorruptMessage" in text_of(site / "docs/site/errors.html")
