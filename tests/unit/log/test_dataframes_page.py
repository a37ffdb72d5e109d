"""Every example in docs/dataframes.md runs, in the order of the page."""

import json
import pathlib
import re

import pytest

import kcore
from kcore.record.record_batch_builder import RecordBatchBuilder

for library in ("pyarrow", "pandas", "polars", "duckdb"):
    pytest.importorskip(library)

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "dataframes.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("data").mkdir()
    with kcore.open_log("data/orders-0", "a") as log:
        for first in range(0, 1000, 50):
            builder = RecordBatchBuilder(compression="lz4" if first % 100 else "none")
            for i in range(first, first + 50):
                deleted = i == 993
                value = json.dumps({"amount": i % 7, "customer": f"customer-{i % 10}"}).encode()
                builder.append(
                    None if deleted else value,
                    f"customer-{i % 10}".encode(),
                    timestamp=1_700_000_000_000 + 1000 * i,
                    headers=[("source", b"shop" if i % 3 == 1 else b"web")],
                )
            log.append_as_leader(builder.build())
    text = PAGE.read_text()
    examples = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(examples) > 6
    scope: dict[str, object] = {}
    for example in examples:
        line = text.count("\n", 0, example.start(1))
        # Padded, so that a failure names the line of the page.
        exec(compile("\n" * line + example.group(1), str(PAGE), "exec"), scope)


def as_told(type_):
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return f"dictionary<{type_.index_type}, {type_.value_type}>"
    if pa.types.is_timestamp(type_):
        return f"timestamp[{type_.unit}, {type_.tz}]"
    if pa.types.is_list(type_):
        fields = ", ".join(f"{field.name}: {field.type}" for field in type_.value_type)
        return f"list<struct<{fields}>>"
    return str(type_)


def test_the_schema_of_the_page_is_the_schema():
    from kcore.record import arrow

    told = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]*)\|", PAGE.read_text(), re.M)[1:]
    fields = arrow.schema(arrow.COLUMNS)
    assert [(name, type_) for name, type_, _ in told] == [(field.name, as_told(field.type)) for field in fields]
    assert [null.startswith("never") for _, _, null in told] == [not field.nullable for field in fields]
