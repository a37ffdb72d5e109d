"""The Python examples of the project's pages."""

import pathlib

from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = pathlib.Path(__file__).resolve().parent.parent


def python_examples(page: str) -> list[Example]:
    """Those of a page below the project's root, in order.  evaluate() runs one with the names that the ones before it
    have made; `parsed` is its text."""
    return list(Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / page).examples())
