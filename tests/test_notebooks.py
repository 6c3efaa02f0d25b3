"""The notebooks: clean as committed, run without errors, and readable as HTML with no network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
PICTURE_CELLS = {  # cells whose output has to be a picture
    "quickstart": {"widget", "plot"},
    "exploration": {"two-widgets", "panels", "batch-axis", "grid"},
}

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
executed: dict[Path, nbformat.NotebookNode] = {}


def run(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a new kernel, once for all tests."""
    if path not in executed:
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(
            notebook,
            timeout=180,
            kernel_name="python3",
            resources={"metadata": {"path": path.parent}},
            store_widget_state=False,
        ).execute()
        executed[path] = notebook
    return executed[path]


def test_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_runs_without_errors_or_warnings(path):
    for cell in run(path).cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")


def test_the_pictures_are_there(path):
    with_picture = {
        cell.id
        for cell in run(path).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    }
    assert with_picture == PICTURE_CELLS[path.stem]


def test_exported_html_shows_its_figures_offline(path, browser, tmp_path):
    notebook = run(path)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "notebook.html").write_text(html, encoding="utf-8")
    pictures = sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )

    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_offline(True)
    page = context.new_page()
    page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
    shown = page.locator("img").evaluate_all(
        """images => images.map(image => {
            const box = image.getBoundingClientRect();
            return [image.complete, image.naturalWidth, box.width, box.height];
        })"""
    )
    context.close()
    assert len(shown) == pictures > 0
    for complete, natural, width, height in shown:
        assert complete
        assert natural > 300
        assert width > 300
        assert height > 150
