"""Every example in docs/dataframes.md runs, in the order of the page."""

import codeop
import re
import tempfile

import pytest

from tests.pages import ROOT, python_examples

for library in ("pyarrow", "pandas", "polars", "duckdb"):
    pytest.importorskip(library)

PAGE = "docs/dataframes.md"


def test_the_page_runs_from_top_to_bottom_and_makes_the_data_that_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    examples = python_examples(PAGE)
    assert len(examples) > 8
    for example in examples:
        example.evaluate()


def test_each_example_can_be_pasted_into_pythons_prompt():
    """There an empty line ends a block, and nothing else does."""
    for example in python_examples(PAGE):
        prompt, pending = codeop.CommandCompiler(), ""
        for line in str(example.parsed).splitlines():
            pending += line + "\n"
            if prompt(pending.removesuffix("\n"), PAGE) is not None:
                pending = ""
        assert not pending, f"not ended: {pending}"


def name_on_the_page(type_):
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

    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]*)\|", (ROOT / PAGE).read_text(), re.M)[1:]
    fields = arrow.schema(arrow.COLUMNS)
    assert [(name, type_) for name, type_, _ in rows] == [
        (field.name, name_on_the_page(field.type)) for field in fields
    ]
    assert [null.startswith("never") for _, _, null in rows] == [not field.nullable for field in fields]
