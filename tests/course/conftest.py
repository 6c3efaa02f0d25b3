"""One released course for all tests here, and the source notebook."""

from collections.abc import Callable
from typing import Any

import pytest

from course.kit import ASSIGNMENT, NAME, Course, Notebook, needed, read, text


@pytest.fixture(scope="session")
def empty_course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A released course without submissions."""
    needed("nbgrader")
    return Course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="session")
def source() -> Notebook:
    return read(ASSIGNMENT / f"{NAME}.ipynb")


@pytest.fixture
def run_cells() -> Callable[[Notebook], dict[str, Any]]:
    """Run a notebook's code in this process, without its widgets."""

    def run(notebook: Notebook) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        for cell in notebook["cells"]:
            shown = {"widget", "figure"} & set(cell["metadata"].get("tags", []))
            if cell["cell_type"] == "code" and not shown:
                exec(compile(text(cell), cell["id"], "exec"), names)
        return names

    return run
