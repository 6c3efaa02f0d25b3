"""The assignment in nbgrader itself: release, autograde, feedback."""

import html
import json
import time

import pytest

from course.kit import NAME, Course, Notebook, answer, cells, read, text
from course.submissions import KILL, LIBRARY, LOOP, SWALLOW, WRONG

TIMEOUT = 10  # seconds per cell: a busy machine takes a few to import matplotlib


@pytest.fixture(scope="module")
def graded(empty_course: Course) -> Course:
    """Submissions that run to their end, graded and with feedback."""
    course = empty_course
    course.submit("solved", course.solution)
    course.submit("untouched", course.release)
    course.submit(
        "wrong", answer(course.solution, {name: wrong[0] for name, wrong in WRONG.items()})
    )
    course.submit("library", answer(course.solution, LIBRARY))
    course.submit("tampered", tampered(course))
    course.run("autograde", NAME)
    course.run("generate_feedback", NAME)
    return course


@pytest.fixture(scope="module")
def endless(graded: Course) -> tuple[Course, str, float]:
    """Submissions that don't: the course, nbgrader's log, and how long it took."""
    graded.submit("loop", answer(graded.solution, {"ex1a": LOOP}))
    graded.submit("swallow", answer(graded.solution, {"ex1a": SWALLOW}))
    graded.submit("kill", answer(graded.solution, {"ex1a": KILL}))
    unmarked = answer(graded.solution, {})
    cells(unmarked)["ex3a-check"]["metadata"]["nbgrader"]["grade"] = False
    graded.submit("unmarked", unmarked)
    start = time.monotonic()
    log = graded.run("autograde", NAME, f"--Execute.timeout={TIMEOUT}", status=1)
    return graded, log, time.monotonic() - start


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


def test_feedback_keeps_the_hidden_tests(graded: Course) -> None:
    for student in ("solved", "untouched", "wrong"):
        feedback = graded.feedback(student)
        assert "HIDDEN TESTS" not in feedback
        assert "_memo_lines" not in feedback


def test_the_library_is_not_the_answer(graded: Course) -> None:
    assert graded.points("library") == dict.fromkeys(graded.full, 0)


def test_tampering_changes_only_the_answers_that_are_wrong(graded: Course) -> None:
    lost = {"ex1b-check", "ex1c-check", "ex2b-check", "ex4a-check", "ex6a-check"}
    expected = {name: 0 if name in lost else most for name, most in graded.full.items()}
    assert graded.points("tampered") == expected


def test_endless_loop_is_interrupted_and_the_rest_graded(endless) -> None:
    course, _, _ = endless
    expected = {name: 0 if name == "ex1a-check" else most for name, most in course.full.items()}
    assert course.points("loop") == expected
    assert not course.needs_a_look("loop")
    assert "CellTimeoutError" in course.outputs("loop")["ex1a"]


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
