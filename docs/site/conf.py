"""Sphinx: the pages of docs/ as a site that needs no network.  `make docs` builds it in build/site."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import kcore  # noqa: E402

project = "kcore"
author = copyright = "kcore developers"
release = kcore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference_tables"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**"]
exclude_patterns = ["docs/notebooks"]
root_doc = "docs/site/index"

#: `name` in a docstring is code.
default_role = "code"

html_theme = "furo"
html_title = "kcore"
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 4
# Pages link to files of the repository, which are not part of the site: they become plain text.
suppress_warnings = ["myst.xref_missing"]
nitpicky = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"


def as_plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: what reStructuredText takes for markup is escaped."""
    for place, line in enumerate(lines):
        lines[place] = re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", line)


def setup(app):
    app.connect("autodoc-process-docstring", as_plain_text)
