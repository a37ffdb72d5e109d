"""kcore.inspect as a library: docs/inspect.md runs from top to bottom, and its table is the public names."""

import inspect
import re
import subprocess
import sys

import pytest

import kcore
import kcore.inspect
from kcore.errors import NotAPartitionDirectory
from kcore.log.open_log import open_log
from tests import golden_data
from tests.pages import ROOT, python_examples

PAGE = "docs/inspect.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in python_examples(PAGE):
        example.evaluate()


def test_the_table_of_the_page_has_each_public_function_with_parameters_that_it_takes():
    rows = dict(re.findall(r"^\| `(\w+)\(([^`]*)\)` \|", (ROOT / PAGE).read_text(), re.M))
    functions = {name for name in kcore.inspect.__all__ if inspect.isfunction(getattr(kcore.inspect, name))}
    assert rows.keys() == functions
    for name, parameters in rows.items():
        taken = inspect.signature(getattr(kcore.inspect, name)).parameters
        for parameter in parameters.split(", "):
            wanted, _, default = parameter.partition("=")
            if wanted != "*":
                assert wanted in taken, f"{name}: {wanted}"
                if default and not default.endswith("()"):
                    assert repr(taken[wanted].default).replace("'", '"') == default, f"{name}: {parameter}"


@pytest.mark.parametrize("name", kcore.inspect.__all__)
def test_each_public_name_has_a_docstring_and_functions_that_read_files_name_their_errors(name):
    documented = inspect.getdoc(getattr(kcore.inspect, name))
    assert documented, name
    if inspect.isfunction(getattr(kcore.inspect, name)) and name != "events_of":
        assert "Raises" in documented, name


def test_importing_the_package_loads_none_of_its_modules():
    code = "import sys, kcore.inspect; print(*(name for name in sys.modules if name.startswith('kcore.inspect.')))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_a_partition_directory_is_not_paired_with_a_data_directory(tmp_path):
    open_log(tmp_path / "t-0", "a").close()
    with pytest.raises(NotAPartitionDirectory, match=f"{tmp_path}: no directory of a partition"):
        list(kcore.inspect.paired_partitions(str(tmp_path), str(tmp_path / "t-0")))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_partition_is_not_compared_with_a_data_directory_as_if_that_was_an_empty_log(reverse, tmp_path):
    for data in ("one", "two"):
        (tmp_path / data).mkdir()
        open_log(tmp_path / data / "t-0", "a").close()
    sides = [str(tmp_path / "one" / "t-0"), str(tmp_path / "two")]
    with pytest.raises(
        NotAPartitionDirectory, match=f"two: no directory of a partition; it has t-0: compare with {sides[1]}/t-0"
    ):
        kcore.inspect.compare(*(reversed(sides) if reverse else sides))
    with pytest.raises(NotAPartitionDirectory, match=r"two: no directory of a partition; paired_partitions\(\)"):
        kcore.inspect.compare(str(tmp_path / "two"), str(tmp_path / "two"))
    with pytest.raises(FileNotFoundError):
        kcore.inspect.compare(sides[0], str(tmp_path / "three"))


def test_results_have_reprs_that_a_person_can_read(tmp_path):
    with open_log(tmp_path / "t-0", "a") as log:
        for _ in range(3):
            builder = kcore.RecordBatchBuilder()
            builder.append(b"v" * 1000, b"k", timestamp=1_700_000_000_000)
            log.append_as_leader(builder.build())
    path = tmp_path / "t-0" / "00000000000000000000.log"
    size = path.stat().st_size
    shown = f"ScannedSegment({str(path)!r}, {size} bytes, offsets [0, 3), 3 batches, 3 records)"
    assert repr(kcore.inspect.scan_segment(str(path))) == shown
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    shown = repr(kcore.inspect.scan_segment(str(path)))
    assert shown.endswith("offsets [0, 2), 2 batches, 2 records, a part of a batch at the end)")
    path.write_bytes(content[: size // 2] + bytes([content[size // 2] ^ 1]) + content[size // 2 + 1 :])
    shown = repr(kcore.inspect.scan_segment(str(path)))
    assert shown.endswith("offsets [0, 3), 2 batches, 2 records, 1 damaged place)")
    (index, *_) = (
        file for file in kcore.inspect.examine_index_files(str(golden_data.partition_dir("g-none-0"))) if file.content
    )
    assert repr(index) == f"IndexFile({index.path!r}, {index.status!r}, {len(index.content)} bytes)"
    (plan,) = kcore.inspect.plan_repair(str(tmp_path / "t-0"))
    assert plan.actions and "content=" not in repr(plan)
