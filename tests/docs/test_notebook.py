"""docs/first-hour.ipynb, run from top to bottom by a real kernel in an empty folder."""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pages import ROOT, Page

NOTEBOOK = ROOT / "docs" / "first-hour.ipynb"


def outputs_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_first_hour(tmp_path: Path, ceilings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "empty"
    (home / ".cache").mkdir(parents=True)
    folder.mkdir()
    (home / ".cache" / "flatout").symlink_to(ceilings)
    for name, value in (("HOME", str(home)), ("OMP_NUM_THREADS", "1"), ("IPYTHONDIR", str(home)), ("MPLCONFIGDIR", str(home))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell.cell_type == "markdown" else cell.update(outputs=[], execution_count=None)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()  # raises the error of a cell that fails
    made = outputs_of(notebook)
    assert not [output.text for output in made if output.output_type == "stream" and output.name == "stderr"]
    pages = [output.data["text/html"] for output in made if "data" in output and "<svg" in output.data.get("text/html", "")]
    assert len(pages) == 4 and all("width:100%;height:100%" in page for page in pages), "a live cell for each run, at its end"
    assert "leak: refund" in pages[0] and "leak" not in pages[1], "planning shows what the guardian found"
    pictures = [output.data["image/png"] for output in made if "data" in output and "image/png" in output.data]
    assert len(pictures) == 1 and base64.b64decode(pictures[0]).startswith(b"\x89PNG")
    assert "'plan' has a value unknown from training in 1 rows" in "".join(output.get("text", "") for output in made)
    assert {path.name for path in folder.iterdir()} == {"runs", "tale.txt", "package"}


def test_its_stored_outputs_are_whole_and_small() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert NOTEBOOK.stat().st_size < 100_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run once, from top to bottom"
    assert not [output for output in outputs_of(notebook) if output.output_type == "error" or output.get("name") == "stderr"]
    two_lines = next(cell.source for cell in code if "import flatout" in cell.source)
    assert sum("fo.run(" in line or "result[" in line for line in two_lines.splitlines()) == 2


def test_its_links() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for link in Page.links_in(cell.source):
                file, _, anchor = link.partition("#")
                assert (NOTEBOOK.parent / file).exists(), link
                assert not anchor or anchor in Page(NOTEBOOK.parent / file).anchors(), link
