"""An nbgrader course directory for the tests, and notebooks as plain JSON."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainmem.course import numbers as course

ROOT = Path(__file__).parents[2]
ASSIGNMENT = ROOT / "notebooks" / "assignment"
NAME = "will-it-fit"
SEED = 7
Notebook = dict[str, Any]


def needed(module: str) -> None:
    """Skip where a tool is missing; where CI is set, fail instead."""
    if importlib.util.find_spec(module) is None:
        message = f"{module} is not installed: pip install -e '.[course,test]'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def read(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def cells(notebook: Notebook) -> dict[str, dict[str, Any]]:
    """Return the nbgrader cells by their id."""
    return {
        cell["metadata"]["nbgrader"]["grade_id"]: cell
        for cell in notebook["cells"]
        if "nbgrader" in cell["metadata"]
    }


def secrets(notebook: Notebook) -> set[str]:
    """Return the lines of hidden tests that aren't to be read elsewhere in a source notebook."""
    hidden, shown = set(), set()
    for cell in notebook["cells"]:
        inside = False
        for line in map(str.strip, text(cell).splitlines()):
            if "HIDDEN TESTS" in line:
                inside = "BEGIN" in line
            else:
                (hidden if inside else shown).add(line)
    return {line for line in hidden - shown if len(line) > 12}


def answer(notebook: Notebook, answers: dict[str, str]) -> Notebook:
    """Return a copy of a notebook with some cells replaced."""
    result = copy.deepcopy(notebook)
    for grade_id, source in answers.items():
        cells(result)[grade_id]["source"] = source
    return result


class Course:
    """An nbgrader course directory and the command line that works on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "nbgrader_config.py").write_text((ASSIGNMENT / "nbgrader_config.py").read_text())
        source_path = root / "source" / NAME / f"{NAME}.ipynb"
        status = course.main(
            ["--seed", str(SEED), str(ASSIGNMENT / f"{NAME}.ipynb"), "-o", str(source_path)]
        )
        assert status == 0
        self.log = self.run("generate_assignment", NAME)
        self.source = read(source_path)
        self.release = read(root / "release" / NAME / f"{NAME}.ipynb")
        solutions = {
            name: text(cell)
            for name, cell in cells(self.source).items()
            if cell["metadata"]["nbgrader"]["solution"]
        }
        self.solution = answer(self.release, solutions)

    def copy(self, root: Path) -> Course:
        """Return the same course in another folder, with what was submitted so far."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        other = copy.copy(self)
        other.root = root
        return other

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run nbgrader offline; return its log."""
        nowhere = "http://127.0.0.1:9"
        env = os.environ | {
            # nbgrader finds alembic on the PATH, as in an activated environment.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "JUPYTER_CONFIG_DIR": str(self.root / ".jupyter"),
            "IPYTHONDIR": str(self.root / ".ipython"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=self.root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def submit(self, student: str, notebook: Notebook) -> None:
        folder = self.root / "submitted" / student / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")

    def points(self, student: str) -> dict[str, float]:
        """Return what the gradebook records for each graded cell."""
        with self._recorded(student) as notebook:
            return {grade.name: grade.score for grade in notebook.grades}

    def needs_a_look(self, student: str) -> bool:
        """Whether the gradebook asks for a person to grade it."""
        with self._recorded(student) as notebook:
            return notebook.needs_manual_grade

    @contextmanager
    def _recorded(self, student: str) -> Iterator[Any]:
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{self.root / 'gradebook.db'}") as gradebook:
            yield gradebook.find_submission_notebook(NAME, NAME, student)

    def outputs(self, student: str) -> dict[str, str]:
        """Return what each cell of the autograded notebook shows, as text."""
        notebook = read(self.root / "autograded" / student / NAME / f"{NAME}.ipynb")
        return {
            name: "\n".join(
                "".join(output.get("text", [])) + "\n".join(output.get("traceback", []))
                for output in cell.get("outputs", [])
            )
            for name, cell in cells(notebook).items()
        }

    def feedback(self, student: str) -> str:
        path = self.root / "feedback" / student / NAME / f"{NAME}.html"
        return path.read_text(encoding="utf-8")

    @property
    def full(self) -> dict[str, float]:
        """The most that each graded cell can give."""
        return {
            name: cell["metadata"]["nbgrader"]["points"]
            for name, cell in cells(self.source).items()
            if cell["metadata"]["nbgrader"]["grade"]
        }
