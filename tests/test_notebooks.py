"""The notebooks: clean as committed, run without errors, and readable as HTML with no network."""

from __future__ import annotations

import base64
import getpass
import os
import platform
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from notebook_outputs import NOTEBOOKS as FOLDER
from notebook_outputs import WITH_OUTPUTS, kept
from notebook_outputs import run as execute

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURE_CELLS = {  # cells whose output has to be a picture
    "quickstart": {"widget", "timeline", "fix", "plot"},
    "exploration": {"two-widgets", "panels", "batch-axis", "grid"},
}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
with_outputs = pytest.mark.parametrize("path", [FOLDER / f"{name}.ipynb" for name in WITH_OUTPUTS])


@cache
def run(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a new kernel, once for all tests."""
    return execute(path)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def in_words(outputs):
    """Return what outputs say, and which have a picture."""
    return [
        (o.get("text") or o.data["text/plain"], "image/png" in o.get("data", {})) for o in outputs
    ]


@each
def test_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == {  # and so no widget state
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(cell.metadata == {} for cell in notebook.cells)
    if path.stem not in WITH_OUTPUTS:
        for cell in code_cells(notebook):
            assert cell.outputs == []
            assert cell.execution_count is None


@with_outputs
def test_committed_outputs_are_what_it_prints(path):
    """`python -m tests.notebook_outputs` renews them."""
    committed = code_cells(nbformat.read(path, as_version=4))
    assert [cell.execution_count for cell in committed] == list(range(1, len(committed) + 1))
    for cell, fresh in zip(committed, code_cells(run(path)), strict=True):
        assert in_words(cell.outputs) == in_words(kept(fresh))
        for output in cell.outputs:
            assert output.metadata == {} if "data" in output else output.name == "stdout"
            assert output.get("data", {}).keys() <= {"text/plain", "image/png"}
            picture = output.get("data", {}).get("image/png")
            if picture is not None:
                assert base64.b64decode(picture).startswith(b"\x89PNG")
    pictures = {c.id for c in committed for o in c.outputs if "image/png" in o.get("data", {})}
    assert pictures == PICTURE_CELLS[path.stem]
    assert path.stat().st_size < 500_000


@each
def test_outputs_tell_nothing_of_the_machine(path):
    told = [t for c in code_cells(run(path)) for t, _ in in_words(kept(c))]
    text = "".join(told)
    personal = {platform.node(), str(Path.home()), os.getcwd(), str(FOLDER), "compute_ms"}
    if len(getpass.getuser()) > 4:  # "root" may be part of a word
        personal.add(getpass.getuser())
    assert not [word for word in personal if word and word in text]


def test_what_the_quickstart_says_of_its_widgets_is_so():
    """It answers its question, no, and then yes with the one fix; so it stays after Run All."""
    notebook = run(FOLDER / "quickstart.ipynb")
    cells = {cell.id: cell for cell in notebook.cells}
    said = {name: in_words(cells[name].outputs)[0][0] for name in ("widget", "fix", "result")}
    assert cells["title"].source.splitlines()[0].endswith("?")
    assert said["widget"].startswith("✗ Out of memory: ")
    assert said["fix"].startswith("✓ Fits: ")
    assert " fits: architecture='Llama-3-8B'" in said["result"]
    code = "\n".join(cell.source for cell in code_cells(notebook))
    scope: dict[str, object] = {"display": lambda *_: None}
    exec(code, scope)
    assert scope["widget"].grade == "does not fit"  # where Run All leaves the live views
    assert scope["fixed"].grade == "fits"


def test_a_count_of_gpus_never_stands_alone_where_none_would_do():
    cells = {cell.id: cell for cell in run(FOLDER / "exploration.ipynb").cells}
    table = in_words(cells["compare"].outputs)[0][0].splitlines()
    (t4,) = (line for line in table if line.startswith("T4 · 16 GB"))
    assert t4.removeprefix("T4 · 16 GB").split() == ["1602", "none", "none", "none"]
    for word in ("reduced-order model", "without logits and loss", "the least that could do"):
        assert word in cells["title"].source


@each
def test_runs_without_errors_or_warnings(path):
    for cell in run(path).cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.get("text")


@each
def test_the_pictures_are_there(path):
    with_picture = {
        cell.id
        for cell in run(path).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    }
    assert with_picture == PICTURE_CELLS[path.stem]


@each
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
