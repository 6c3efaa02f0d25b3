"""The assignment in nbgrader itself: release, autograde, feedback."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course.kit import ASSIGNMENT, NAME, Course, Notebook, answer, cells, read, secrets, text
from course.submissions import KILL, LIBRARY, LOOP, SLOW, SWALLOW, TRIGGER, UNFORESEEN, WRONG

TIMEOUT = 10  # seconds per cell: a busy machine takes a few to import matplotlib


@pytest.fixture(scope="module")
def graded(empty_course: Course, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Submissions that run to their end, graded and with feedback."""
    course = empty_course.copy(tmp_path_factory.mktemp("graded"))
    course.submit("solved", course.solution)
    course.submit("untouched", course.release)
    course.submit(
        "wrong", answer(course.solution, {name: wrong[0] for name, wrong in WRONG.items()})
    )
    course.submit("library", answer(course.solution, LIBRARY))
    course.submit("tampered", tampered(course))
    course.submit(
        "unforeseen", answer(course.solution, {name: cell[0] for name, cell in UNFORESEEN.items()})
    )
    course.log = course.run("autograde", NAME)
    course.run("generate_feedback", NAME)
    return course


@pytest.fixture(scope="module")
def endless(graded: Course) -> tuple[Course, str, float]:
    """Submissions that don't: the course, nbgrader's log, and how long it took."""
    graded.submit("loop", answer(graded.solution, {"ex1a": LOOP, "ex1b": SLOW}))
    graded.submit("swallow", answer(graded.solution, {"ex1a": SWALLOW}))
    graded.submit("kill", answer(graded.solution, {"ex1a": KILL}))
    unmarked = answer(graded.solution, {})
    cells(unmarked)["ex3a-check"]["metadata"]["nbgrader"]["grade"] = False
    graded.submit("unmarked", unmarked)
    start = time.monotonic()
    log = graded.run("autograde", NAME, f"--Execute.timeout={TIMEOUT}", status=1)
    seconds = time.monotonic() - start
    graded.run("generate_feedback", NAME, "--student=loop")
    return graded, log, seconds


def tampered(course: Course) -> Notebook:
    """Change, empty and delete what is locked; raise; and leave a syntax error."""
    notebook = answer(
        course.solution,
        {
            "ex1b": "1 / 0\n",
            "ex1b-check": "pass\n",
            "ex1-numbers": "PARAMS_B = 1\nMOMENTS = 0\nMOMENT_BYTES = 0\nLAYERS = HIDDEN = 1\n",
            "ex1c": "your_states_gb = 8 * PARAMS_B\n",
            "ex2b": "def hybrid_states_per_gpu(:\n",
            "ex4a": "longest_sequence = lambda **inputs: 10**400\n",
            "ex6a": "check = None\nfewest_by_hand = float('nan')\n",
        },
    )
    named = cells(notebook)
    named["ex2b-check"]["metadata"]["nbgrader"]["points"] = 1000
    notebook["cells"].remove(named["ex4a-check"])
    return notebook


def test_release_has_neither_solutions_nor_hidden_tests(empty_course: Course) -> None:
    released = cells(empty_course.release)
    for name, cell in cells(empty_course.source).items():
        kept, given = text(released[name]), text(cell)
        assert "HIDDEN TESTS" not in kept
        assert "END SOLUTION" not in kept
        if cell["metadata"]["nbgrader"]["solution"]:
            assert "raise NotImplementedError()" in kept
            solution = given.split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
            assert solution.strip() not in kept
        elif cell["metadata"]["nbgrader"]["grade"]:
            assert "### BEGIN HIDDEN TESTS" in given
            for secret in given.split("### BEGIN HIDDEN TESTS\n")[1:]:
                assert secret.split("### END HIDDEN TESTS")[0].strip() not in kept
        else:
            assert kept == given
    assert "trainmem_course" not in empty_course.release["metadata"]


def test_full_solution_earns_full_marks(graded: Course) -> None:
    assert graded.points("solved") == graded.full
    assert sum(graded.full.values()) == 50
    assert "CheckFailed" not in graded.feedback("solved")


def test_untouched_release_earns_nothing_and_says_so(graded: Course) -> None:
    assert graded.points("untouched") == dict.fromkeys(graded.full, 0)
    shown = graded.outputs("untouched")
    for name in graded.full:
        assert "not answered yet" in shown[name], name
    assert "(Score: 0.0 / 50.0)" in graded.feedback("untouched")


@pytest.mark.parametrize("exercise", WRONG)
def test_wrong_turn_loses_its_points_and_gets_its_hint(graded: Course, exercise: str) -> None:
    _, cell, hint = WRONG[exercise]
    shown = graded.outputs("wrong")[cell]
    assert graded.points("wrong")[cell] == 0
    assert hint in shown
    assert shown.count("✗") == 1
    assert "Traceback" not in shown
    assert hint in html.unescape(graded.feedback("wrong"))


@pytest.mark.parametrize("exercise", UNFORESEEN)
def test_what_a_check_did_not_foresee_is_one_line(graded: Course, exercise: str) -> None:
    _, cell, said = UNFORESEEN[exercise]
    shown = words(graded.feedback("unforeseen"))
    assert graded.points("unforeseen")[cell] == 0
    assert said in words(graded.outputs("unforeseen")[cell])
    assert said in shown
    if exercise != "ex8b":  # there the check can't even be imported
        assert f"✗ Exercise {exercise[2:]}: " in shown


@pytest.mark.parametrize("student", ["solved", "untouched", "wrong", "tampered", "unforeseen"])
def test_feedback_keeps_the_hidden_tests(graded: Course, student: str) -> None:
    assert told(graded, student) == []


def words(page: str) -> str:
    """Return what a page says, without its tags and with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>|\x1b\[[0-9;]*m", "", page)).split())


def told(course: Course, student: str) -> list[str]:
    """Return the lines of hidden tests in a student's feedback, but for the student's own."""
    shown = words(course.feedback(student))
    own = words(" ".join(map(text, submitted(course, student)["cells"])))
    lines = [" ".join(line.split()) for line in secrets(course.source)]
    assert len(lines) > 200
    return [line for line in lines if line in shown and line not in own]


def submitted(course: Course, student: str) -> Notebook:
    return read(course.root / "submitted" / student / NAME / f"{NAME}.ipynb")


def test_warnings_of_checksums_are_as_many_as_checks(graded: Course) -> None:
    # The page for instructors says that they are normal, and how many there are.
    page = (ASSIGNMENT / "README.md").read_text(encoding="utf-8")
    for student in ("solved", "untouched", "wrong"):
        after = graded.log.split(f"Converting notebook {graded.root}/submitted/{student}/")[1]
        count = after.split("Autograding")[0].count("Attribute 'checksum' for cell")
        assert count == len(graded.full)
        assert f"nbgrader logs {count} warnings a submission" in page


def test_the_library_is_not_the_answer(graded: Course) -> None:
    assert graded.points("library") == dict.fromkeys(graded.full, 0)


def test_tampering_changes_only_the_answers_that_are_wrong(graded: Course) -> None:
    lost = {"ex1b-check", "ex1c-check", "ex2b-check", "ex4a-check", "ex6a-check"}
    expected = {name: 0 if name in lost else most for name, most in graded.full.items()}
    assert graded.points("tampered") == expected


GRADER = """#!/bin/sh
# Stands in for docker: runs the command in the folder that would be mounted.
while [ "$1" != -v ]; do shift; done
cd "${2%%:*}" && shift 5 && exec "$@"
"""


def test_apart_one_submission_reaches_no_other(empty_course: Course, tmp_path: Path) -> None:
    """What the instructor's page says of the gradebook; its loop, with a stand-in for docker."""
    course = empty_course.copy(tmp_path)
    course.submit("a-trigger", answer(course.solution, {"ex1a": TRIGGER}))
    course.submit("honest", course.solution)
    shutil.copy(tmp_path / "gradebook.db", tmp_path / "blank.db")
    course.run("autograde", NAME)
    assert sum(course.points("honest").values()) == 0  # together, it does

    shutil.copy(tmp_path / "blank.db", tmp_path / "gradebook.db")
    page = (ASSIGNMENT / "README.md").read_text(encoding="utf-8")
    loop = page.split("## Grade each submission apart")[1].split("```bash\n")[1].split("```")[0]
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "docker").write_text(GRADER)
    (tools / "docker").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", loop],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    marks = dict(
        line.split(",")
        for line in (tmp_path / "marks.csv").read_text().splitlines()
        if line.startswith(("a-trigger,", "honest,"))
    )
    assert float(marks["honest"]) == 50
    assert float(marks["a-trigger"]) < 50
    assert (tmp_path / "apart/honest/feedback/honest" / NAME / f"{NAME}.html").exists()
    assert not list((tmp_path / "apart/honest").rglob("*a-trigger*"))


def test_endless_loop_is_interrupted_and_the_rest_graded(endless) -> None:
    course, _, _ = endless
    # The second loop is in a function, hence inside its check and where the student calls it.
    lost = {"ex1a-check", "ex1b-check", "ex1c-check"}
    expected = {name: 0 if name in lost else most for name, most in course.full.items()}
    assert course.points("loop") == expected
    assert not course.needs_a_look("loop")
    assert "CellTimeoutError" in course.outputs("loop")["ex1a"]
    assert "interrupted or ran out of time (line " in words(course.feedback("loop"))
    assert told(course, "loop") == []


@pytest.mark.parametrize("student", ["swallow", "kill", "unmarked"])
def test_what_cannot_be_graded_ends_soon_and_is_reported(endless, student: str) -> None:
    course, log, seconds = endless
    assert f"There was an error processing assignment '{NAME}' for student '{student}'" in log
    assert set(course.points(student).values()) == {0}
    assert course.needs_a_look(student)
    assert not (course.root / "autograded" / student / NAME).exists()
    assert seconds < 240


def test_what_was_not_graded_can_be_mended(endless) -> None:
    course, _, _ = endless
    path = course.root / "submitted" / "kill" / NAME / f"{NAME}.ipynb"
    mended = answer(read(path), {"ex1a": "raise NotImplementedError()\n"})
    path.write_text(json.dumps(mended), encoding="utf-8")
    course.run("autograde", NAME, "--student=kill")
    expected = {name: 0 if name == "ex1a-check" else most for name, most in course.full.items()}
    assert course.points("kill") == expected
    assert not course.needs_a_look("kill")
