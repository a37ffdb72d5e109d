"""Which strings of a column have certain bytes."""

import random

import pytest

import kcore
from kcore.record.record_columns import columns_of
from kcore.web.search import Pattern, rows_with


def columns(records, compression="none"):
    builder = kcore.RecordBatchBuilder(compression=compression)
    for key, value, headers in records:
        builder.append(value, key, headers=headers, timestamp=1_700_000_000_000)
    return columns_of(builder.build())


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_are_those_that_a_look_at_each_string_finds(seed, compression):
    rng = random.Random(seed)

    def text():
        return None if rng.random() < 0.1 else bytes(rng.choices(b"ab\0", k=rng.randint(0, 6)))

    records = [(text(), text(), []) for _ in range(500)]
    found = columns(records, compression)
    for size in (1, 2, 3, 5):
        for _ in range(20):
            data = bytes(rng.choices(b"ab\0", k=size))
            for number, name in enumerate(("key", "value")):
                expected = [row for row, record in enumerate(records) if data in (record[number] or b"")]
                assert rows_with(found[name], data).tolist() == expected, f"seed={seed} {name} {data}"


def test_bytes_that_begin_in_one_string_and_end_in_the_next_are_no_match():
    found = columns([(b"ab", b"cd", []), (b"ab", b"cd", [("ab", b"cd")])])
    raw = bytes(found["value"].data)
    at = raw.index(b"ab")
    across = raw[at + 1 : at + 4]  # the end of a key, a length, the beginning of a value
    assert across.startswith(b"b") and across.endswith(b"c")
    assert Pattern(across, "anywhere").rows(found).tolist() == []


def test_lengths_between_headers_are_no_match():
    found = columns([(None, b"", [("name", b"value")]), (None, b"", [("x", None), ("other", b"name")])])
    assert Pattern(b"name", "headers").rows(found).tolist() == [0, 1]
    assert Pattern(b"\x0a", "headers").rows(found).tolist() == []  # how 5 is encoded
    assert Pattern(b"name\x0a", "headers").rows(found).tolist() == []


@pytest.mark.parametrize("field", ["anywhere", "key", "value", "headers"])
def test_nothing_is_found_in_nothing(field):
    assert Pattern(b"x", field).rows(columns([(None, None, [])])).tolist() == []
    assert Pattern(b"", field).rows(columns([(None, None, [])])) is None


def test_a_match_may_begin_inside_of_one_that_is_none():
    found = columns([(None, b"\6\6\6", [])])  # 6 is also how its length is encoded
    assert b"\6\6\6\6" in bytes(found["value"].data)
    assert rows_with(found["value"], b"\6\6\6").tolist() == [0]
