"""docs/notebooks/segments.ipynb runs from top to bottom, with this interpreter."""

import json
import pathlib

import pytest

for library in ("numba", "pandas", "pyarrow", "nbformat", "nbclient", "ipykernel"):
    pytest.importorskip(library)

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "docs" / "notebooks" / "segments.ipynb"


def test_the_notebook_of_the_kernels_runs(tmp_path, monkeypatch):
    import nbclient
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # No directories to look for kernels in: what is left is the one of this interpreter.
    manager = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]), kernel_name="python3")
    notebook = nbformat.read(NOTEBOOK, 4)
    client = nbclient.NotebookClient(notebook, km=manager, timeout=100, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    tables = [output["data"].get("text/html", "") for output in shown if "data" in output]
    assert any("max_timestamp" in table for table in tables)
    assert any("batch length" in output["data"].get("text/plain", "") for output in shown if "data" in output)


def test_the_notebook_is_kept_without_what_it_printed():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
