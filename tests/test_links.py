"""Links between the pages: each leads to a file, and each anchor to a heading.  Each command has a page."""

import re
from functools import cache

import pytest

from kcore.tools.main import COMMANDS
from tests.pages import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: What is code: nothing in it is a link or a heading.
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


@cache
def anchors(page):
    """Of the headings, as GitHub and Sphinx make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def broken_links(page):
    for file, anchor in LINK.findall(CODE.sub("", page.read_text())):
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield file
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{file}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_of_a_page_leads_somewhere(page):
    assert list(broken_links(page)) == []


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "b.md").write_text("# The `last` one\n")
    (tmp_path / "a.md").write_text(
        "# A\n[a](b.md) [b](b.md#the-last-one) [c](#a) [d](c.md) [e](b.md#one) [f](#b) `[g](d.md)`\n"
    )
    assert list(broken_links(tmp_path / "a.md")) == ["c.md", "b.md#one", "#b"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "version"])
def test_the_index_of_commands_names_the_page_of_each(command):
    index = (ROOT / "docs" / "tools.md").read_text()
    (page,) = re.findall(rf"^- \[`kcore {command}\b[^`]*`\]\(([\w/]+\.md)\): ", index, re.M)
    assert f"kcore {command}" in (ROOT / "docs" / page).read_text()
