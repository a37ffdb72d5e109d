"""Foreign bytes, numbers and times as plain text."""

import pytest

from kcore.web.shown import ago, foreign, number, shown_bytes, size

RIGHT_TO_LEFT = "\N{RIGHT-TO-LEFT OVERRIDE}"


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "text", None),
        (b"", "text", ""),
        (b"plain\nlines\ttabs", "text", "plain\nlines\\ttabs"),
        (b"a\0b\x1b[31m", "text", "a\\x00b\\x1b[31m"),
        (b"\xff\xfe ok", "text", "\\xff\\xfe ok"),
        (f"user{RIGHT_TO_LEFT}gpj.exe".encode(), "text", "user\\u202egpj.exe"),
        ("שלום".encode(), "text", "שלום"),
        (b'{"b": [1, null], "a": "\\u202e"}', "json", '{\n  "b": [\n    1,\n    null\n  ],\n  "a": "\\u202e"\n}'),
        (b"{no json", "json", "{no json"),
        (b"\xff", "json", "\\xff"),
        (b"[" * 100_000, "json", "[" * 100_000),
        (b"ABC\0\xff", "hex", "00000000  41 42 43 00 ff" + " " * 33 + "  ABC.."),
    ],
)
def test_bytes_are_shown_without_what_a_reader_cannot_see(data, form, text):
    assert shown_bytes(data, form, 1 << 20).text == text


def test_json_that_its_indentation_would_blow_up_stays_as_it_is():
    nested = b"[" * 900 + b",".join([b"1"] * 5000) + b"]" * 900
    assert shown_bytes(nested, "json", 1 << 20).text == nested.decode()


def test_long_bytes_are_cut_between_characters_and_say_so():
    shown = shown_bytes("ab€".encode(), "text", 4)
    assert shown == ("ab", 5, True)
    assert shown_bytes(b'{"a": 1}', "json", 4) == ('{"a"', 8, True)
    assert shown_bytes(b"abcd", "text", 4) == ("abcd", 4, False)


def test_a_name_of_others_is_one_line():
    assert foreign("a\nb\u2028c\ud800\0") == "a\\nb\\u2028c\\ud800\\x00"


def test_numbers_have_thin_spaces_that_do_not_break():
    assert number(1234567) == "1\u202f234\u202f567"
    assert (number(None), number(0), number(1234.56, 1)) == ("\N{EN DASH}", "0", "1\u202f234.6")
    assert (size(0), size(1536), size(None)) == ("0\u202fB", "1.5\u202fKiB", "\N{EN DASH}")


@pytest.mark.parametrize(
    ("distance_ms", "text"),
    [(0, "now"), (999, "now"), (1000, "1 s ago"), (200_000, "3 min ago"), (86_400_000, "1 d ago"), (-5000, "in 5 s")],
)
def test_a_time_is_relative_to_now(distance_ms, text):
    assert ago(1_700_000_000_000, 1_700_000_000_000 + distance_ms) == text
