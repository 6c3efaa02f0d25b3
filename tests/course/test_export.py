"""The assignment as a web page on disk: no kernel, no network, nothing essential lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from course.kit import Course, cells, needed, text

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def page_path(empty_course: Course, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released notebook, run as it is and exported without widget state."""
    needed("nbconvert")
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import ExecutePreprocessor
    from traitlets.config import Config

    notebook = nbformat.reads(json.dumps(empty_course.release), as_version=4)
    run = ExecutePreprocessor(timeout=60, allow_errors=True, store_widget_state=False)
    run.preprocess(notebook, {"metadata": {"path": str(tmp_path_factory.mktemp("run"))}})
    html, _ = HTMLExporter(config=Config()).from_notebook_node(notebook)
    path = tmp_path_factory.mktemp("export") / "will-it-fit.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_every_widget_is_followed_by_a_figure(empty_course: Course) -> None:
    sources = [text(cell) for cell in empty_course.source["cells"]]
    widgets = [i for i, source in enumerate(sources) if "TrainingMemoryWidget(" in source]
    assert len(widgets) == 5
    assert all(sources[i + 1].endswith("lab.figure()") for i in widgets)


# The browser comes last: its event loop would disturb the kernel that runs the notebook.
def test_page_from_disk_shows_it_all(
    empty_course: Course, page_path: Path, browser: Browser
) -> None:
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(page_path.as_uri(), wait_until="load")
    pictures = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea img')].map(image => ({
            width: image.naturalWidth, shown: image.getBoundingClientRect().width}))"""
    )
    shown = page.inner_text("body")
    page.screenshot(path=page_path.with_suffix(".png"), full_page=True)
    context.close()

    # One picture from each widget and one from each figure cell, all decoded and visible.
    assert len(pictures) == 10
    assert all(picture["width"] > 400 and picture["shown"] > 400 for picture in pictures)
    for grade_id, cell in cells(empty_course.release).items():
        if cell["metadata"]["nbgrader"]["solution"]:
            assert text(cell).splitlines()[0] in shown, grade_id
    for exercise in range(1, 9):
        assert f"\n{exercise}. " in shown
    assert "10⁹ bytes" in shown
    assert "Loading" not in shown
    # Formulas are plain text, so the page waits for nothing from the network.
    assert "$" not in "".join(
        text(cell) for cell in empty_course.release["cells"] if cell["cell_type"] == "markdown"
    )
