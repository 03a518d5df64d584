"""The notebooks run, and what is stored with them is what they show.

``CLUSTERFL_NOTEBOOKS=1 pytest tests/docs/test_notebooks.py -m slow`` stores what they show today.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300  # a cell's most; a notebook takes less than 60 on a core of its own


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell: NotebookNode) -> str:
    """Return what a cell shows but for pictures and numbers, which may differ in the last places by processor."""
    found = [out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return re.sub(r"\s+", " ", re.sub(r"-?\d+(\.\d+)?", "#", "\n".join(found)))


def kinds(cell: NotebookNode) -> list[list[str]]:
    return [sorted(out.get("data", {out.output_type: ""})) for out in cell.outputs]


def stored(notebook: NotebookNode) -> None:
    """Leave out what differs from run to run: times, counts, ids of objects."""
    for cell in code(notebook):
        cell.metadata = NotebookNode()
        for out in cell.outputs:
            if "data" in out and "image/png" in out.data:
                out.data["text/plain"] = "<Figure>"
            if "data" in out and "text/html" in out.data:  # pandas' own style block is for Jupyter alone
                out.data["text/html"] = re.sub(
                    r"<style scoped>.*?</style>\n?", "", out.data["text/html"], flags=re.DOTALL
                )
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    before, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3").execute()
    stored(notebook)
    if os.environ.get("CLUSTERFL_NOTEBOOKS") == "1":
        nbformat.write(notebook, path)
        return
    for i, (old, new) in enumerate(zip(code(before), code(notebook), strict=True)):
        assert (texts(new), kinds(new)) == (texts(old), kinds(old)), (path.name, "cell", i, "see this file's head")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_names_no_folder_of_ours(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert not re.search(r"[\"' (](/tmp|/home|/root|/work|/Users)/", text)
    assert any("image/png" in kind for cell in code(nbformat.read(path, as_version=4)) for kind in kinds(cell))


def test_both_notebooks_are_there() -> None:
    assert [path.stem for path in PATHS] == ["compare", "write-a-method"]


def test_the_notebooks_method_is_contributings() -> None:
    """But for where it imports from."""

    def body(source: str) -> str:
        return source[source.index("@dataclass") :].strip()

    text = (FOLDER.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (ours,) = re.findall(r"<!-- file: src/clusterfl/methods/by_size.py -->\n```python\n(.*?)```", text, re.DOTALL)
    sources = [cell.source for cell in code(nbformat.read(FOLDER / "write-a-method.ipynb", as_version=4))]
    assert body(ours) in [body(source) for source in sources if "@dataclass" in source]
