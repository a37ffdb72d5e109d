"""Filter, order and pages of a table."""

import pytest

from kcore.web.listing import Wanted, rows_of, url, wanted_of

ROWS = [("b", 2), ("A", 2), ("c", 1), ("ab", 3)]
COLUMNS = {"name": lambda row: row[0], "count": lambda row: row[1]}


def shown(wanted, per_page=10):
    return rows_of(ROWS, wanted, lambda row: row[0], COLUMNS, per_page)


def test_rows_are_filtered_by_their_names_in_any_case():
    assert [name for name, _ in shown(Wanted("A", "name", 1)).shown] == ["A", "ab"]


def test_equal_rows_are_in_the_order_of_their_names_in_both_directions():
    assert [name for name, _ in shown(Wanted("", "count", 1)).shown] == ["c", "A", "b", "ab"]
    assert [name for name, _ in shown(Wanted("", "-count", 1)).shown] == ["ab", "A", "b", "c"]


def test_a_page_beyond_the_last_is_the_last_one():
    rows = shown(Wanted("", "name", 9), per_page=3)
    assert (rows.shown, rows.total, rows.page, rows.pages) == ([("c", 1)], 4, 2, 2)
    assert shown(Wanted("no such", "name", 1)) == ([], 0, 1, 1)


@pytest.mark.parametrize("query", [{"page": "0", "sort": "x"}, {"page": "-1"}, {"page": "٣"}, {"page": "9" * 30}, {}])
def test_what_is_no_page_and_no_column_is_the_first_page_by_name(query):
    assert wanted_of(query, COLUMNS, "name") == Wanted("", "name", 1)


def test_an_address_has_whatever_a_name_has():
    assert url("/topic", name="a&b=c#d é\ud800") == "/topic?name=a%26b%3Dc%23d+%C3%A9%ED%A0%80"
    assert url("/x", {"q": "1", "page": 2}, page=None) == "/x?q=1"
