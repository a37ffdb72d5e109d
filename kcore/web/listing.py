"""Rows of a table that the server filters, sorts and divides into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

_Row = TypeVar("_Row")


class Wanted(NamedTuple):
    """What a reader wants to see.  text: part of the name, in any case.  sort: a column's name, with "-" in front for
    descending order.  page: from 1 on."""

    text: str
    sort: str
    page: int


class Rows(NamedTuple, Generic[_Row]):
    """One page.  total: rows on all pages; pages: at least 1."""

    shown: Sequence[_Row]
    total: int
    page: int
    pages: int


def wanted_of(query: Mapping[str, str], columns: Iterable[str], default_sort: str) -> Wanted:
    """Of a query string; what is no column or no page becomes the default."""
    sort, page = query.get("sort", default_sort), query.get("page", "1")
    sort = sort if sort.removeprefix("-") in set(columns) else default_sort
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 10 else 1
    return Wanted(query.get("q", "").strip(), sort, max(1, number))


def rows_of(
    rows: Iterable[_Row],
    wanted: Wanted,
    name: Callable[[_Row], str],
    columns: Mapping[str, Callable[[_Row], Any]],
    per_page: int,
) -> Rows[_Row]:
    """The page with the wanted number, or the last page if there are fewer.

    columns: for each column the function whose values sort the rows.  Rows with equal values are sorted by name.
    """
    text = wanted.text.casefold()
    kept = sorted((row for row in rows if text in name(row).casefold()), key=name)
    kept.sort(key=columns[wanted.sort.removeprefix("-")], reverse=wanted.sort.startswith("-"))
    pages = max(1, -(-len(kept) // per_page))
    page = min(wanted.page, pages)
    return Rows(kept[(page - 1) * per_page : page * per_page], len(kept), page, pages)


def url(path: str, query: Mapping[str, object] | None = None, /, **changes: object) -> str:
    """path with the query string, some of its parameters changed; None and "" leave a parameter out."""
    parameters = {**(query or {}), **changes}
    kept = {key: value for key, value in parameters.items() if value is not None and value != ""}
    return path + ("?" + urlencode(kept, errors="surrogatepass") if kept else "")
