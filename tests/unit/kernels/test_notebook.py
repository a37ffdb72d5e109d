"""docs/notebooks/segments.ipynb runs from top to bottom, with this interpreter, and shows what it is kept with.

`python -m tests.unit.kernels.test_notebook` runs it and keeps it with what it shows.
"""

import os
import pathlib
import re
import tempfile

import pytest

for library in ("numba", "pandas", "pyarrow", "nbformat", "nbclient", "ipykernel"):
    pytest.importorskip(library)

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "docs" / "notebooks" / "segments.ipynb"


def executed(directory: str):
    """The notebook, run in a directory by a kernel of this interpreter that imports this kcore."""
    import nbclient
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": f"{directory}/ipython",
        "JUPYTER_RUNTIME_DIR": f"{directory}/runtime",
        "TMPDIR": directory,
    }
    # No directories to look for kernels in: what is left is the one of this interpreter.
    manager = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), kernel_name="python3")
    notebook = nbformat.read(NOTEBOOK, 4)
    kept = dict(notebook.metadata)
    client = nbclient.NotebookClient(
        notebook, km=manager, timeout=100, resources={"metadata": {"path": directory}}, record_timing=False
    )
    client.execute(env=environment)
    notebook.metadata = kept
    return notebook


def outputs(notebook) -> list[list[dict]]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook) -> list[list[str]]:
    """What each code cell shows, as text."""
    cells = outputs(notebook)
    return [[shown.get("data", {}).get("text/plain", shown.get("text")) for shown in cell] for cell in cells]


def test_the_notebook_runs_and_shows_what_it_is_kept_with(tmp_path):
    import nbformat

    again, kept = executed(str(tmp_path)), nbformat.read(NOTEBOOK, 4)
    assert not [shown for cell in outputs(again) for shown in cell if shown.output_type == "error"]
    assert texts(again) == texts(kept)


def test_the_notebook_is_kept_with_its_tables_and_without_paths_of_a_machine():
    import nbformat

    kept = nbformat.read(NOTEBOOK, 4)
    tables = [shown.get("data", {}).get("text/html", "") for cell in outputs(kept) for shown in cell]
    assert sum("max_timestamp" in table for table in tables) == 1
    assert sum(map(bool, texts(kept))) >= 7
    assert not re.findall(r"(?<![<\w])/\w+/\w+", str(outputs(kept)))
    assert {*kept.metadata.language_info} == {"name"}  # not the version of whoever ran it last


if __name__ == "__main__":
    import nbformat

    with tempfile.TemporaryDirectory() as directory:
        nbformat.write(executed(directory), NOTEBOOK)
