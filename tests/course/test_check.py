"""`trainmem.check`: right answers pass, wrong turns get their hint, the answer is never told."""

import linecache
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainmem
from course.kit import Notebook, answer, cells, secrets, text
from course.submissions import RAISED, raising
from trainmem import check


def failure(function, *arguments, **named) -> str:
    with pytest.raises(check.CheckFailed) as caught:
        function(*arguments, **named)
    return str(caught.value)


def test_is_a_public_part_of_the_package() -> None:
    assert trainmem.check is check
    assert "check" in dir(trainmem)


@pytest.mark.parametrize("answer", [16, 16.0, 16.1, np.float32(16), np.int64(16), Fraction(16)])
def test_number_within_tolerance_passes(answer, capsys) -> None:
    check.number(answer, 16, name="states", unit="GB")
    assert capsys.readouterr().out == "✓ states\n"


def test_number_beyond_tolerance_fails() -> None:
    for given_number in (99.01, 101.0):
        check.number(given_number, 100)
    for given_number in (98.9, 101.1):
        said = failure(check.number, given_number, 100)
        assert said == f"answer: {given_number:g} is not right."
        check.number(given_number, 100, tolerance=0.02)
        failure(check.number, given_number, 100, tolerance=1e-6)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (16 * 1e9 / 2**30, "that is the number in GiB"),
        (16e9, "that is the number in bytes"),
        (0.016, "that is the number in TB"),
        (12.0, "the fp32 master weights are missing"),
        (2.0, "activations are not divided"),
        (99.0, "look at the worked step"),
    ],
)
def test_number_hints_at_the_wrong_turn(answer: float, hint: str) -> None:
    said = failure(
        check.number,
        answer,
        16,
        name="states",
        unit="GB",
        wrong={"master": 12, "activations_divided": 2},
        hint="look at the worked step",
    )
    assert said.startswith("states: ")
    assert f"Hint: {hint}" in said


@pytest.mark.parametrize(
    "answer",
    ["16", None, True, math.nan, math.inf, -math.inf, 10**400, 16 + 0j, [16], object(), {}, b"16"],
)
def test_number_refuses_what_is_none(answer: object) -> None:
    assert failure(check.number, answer, 16, unit="GB").endswith("is not a number in GB.")


def test_unanswered_is_said() -> None:
    assert failure(check.number, ..., 16, name="x") == "x: not answered yet."
    assert failure(check.whole, ..., 16, name="x") == "x: not answered yet."
    assert failure(check.function, ..., [], [], name="x") == "x: not answered yet."
    assert failure(check.choice, ..., 1, (1, 2), name="x").startswith("x: not answered yet")

    def stub(n: int) -> int:
        raise NotImplementedError

    assert failure(check.function, stub, [{"n": 1}], [1]) == "stub: not answered yet."


@given(
    answer=st.floats(allow_nan=False, allow_infinity=False),
    expected=st.floats(1e-3, 1e15).map(lambda x: float(f"{x:.12g}")),
)
def test_the_answer_is_never_told(answer: float, expected: float) -> None:
    try:
        check.number(answer, expected, unit="GB")
    except check.CheckFailed as error:
        told = str(error).replace(f"{answer:.6g}", "")
        for digits in (3, 6, 12):
            shown = f"{expected:.{digits}g}"
            assert shown not in told or shown in "10⁹ 2³⁰ 10¹² 10⁶ 8"


def test_whole_numbers_are_exact() -> None:
    check.whole(3, 3)
    check.whole(3.0, 3)
    check.whole(np.int32(3), 3)
    check.whole(None, None)
    check.whole(2**80, 2**80)
    assert "one off" in failure(check.whole, 2, 3)
    assert "one off" in failure(check.whole, 4, 3)
    assert "one off" in failure(check.whole, 2**80 + 1, 2**80)
    assert "Hint" not in failure(check.whole, 5, 3)
    assert failure(check.whole, None, 3, name="n") == "n: None is not right."
    assert failure(check.whole, 3, None, name="n", unit="GPUs") == "n: 3 GPUs is not right."
    assert "is not a whole number" in failure(check.whole, 2.5, 3)
    assert "is not a whole number" in failure(check.whole, math.inf, 3)


def divide(states: float, gpus: int) -> float:
    return states / gpus


CASES = [{"states": states, "gpus": gpus} for states in (8.0, 96.0) for gpus in (1, 2, 5)]


def test_function_passes_on_every_input(capsys) -> None:
    check.function(divide, CASES, lambda states, gpus: states / gpus)
    check.function(divide, CASES[:2], [8, 4])
    assert capsys.readouterr().out == "✓ divide\n✓ divide\n"


def test_function_names_the_input_and_the_hint_that_explains_all_failures() -> None:
    said = failure(
        check.function,
        lambda states, gpus: states,
        CASES,
        divide,
        name="f",
        unit="bytes",
        wrong={
            "right here, not elsewhere": lambda states, gpus: 8.0,
            "states_not_divided": lambda states, gpus: states,
        },
    )
    assert said.startswith("f(states=8.0, gpus=2) returned 8 bytes, which is not right. Hint: at")


def test_function_takes_values_for_wrong_turns_too() -> None:
    said = failure(
        check.function,
        lambda states, gpus: states,
        CASES[:2],
        [8, 4],
        wrong={"no": [8, 7], "states_not_divided": [8, 8]},
    )
    assert "Hint: at this stage" in said
    said = failure(
        check.function,
        lambda states, gpus: states,
        CASES[:2],
        [8, 4],
        wrong={"a": [8, 8], "b": [8, 8]},
    )
    assert said.endswith("Hint: a; or b.")  # several lead there
    with pytest.raises(ValueError, match="1 values for 2 cases"):
        check.function(divide, CASES[:2], [8])


@pytest.mark.parametrize(("statement", "said"), RAISED.values(), ids=RAISED)
def test_function_reports_what_the_student_raised_and_where(statement: str, said: str) -> None:
    cell = f"def f(states, gpus):\n    return g()\n\ndef g():\n    {statement}\n"
    told = failure(check.function, notebook_cell(cell)["f"], CASES, divide)
    assert told.startswith(f"f(states=8.0, gpus=1) raised {said}")
    assert told.endswith(f"(line 5 of its cell: {statement}).")


def notebook_cell(source: str) -> dict[str, object]:
    """Run a cell as a notebook does: in `__main__`, its lines known to tracebacks."""
    names: dict[str, object] = {"__name__": "__main__"}
    linecache.cache["cell"] = (len(source), None, source.splitlines(keepends=True), "cell")
    exec(compile(source, "cell", "exec"), names)
    return names


def test_function_cuts_what_the_student_raised() -> None:
    def talks(states: float, gpus: int) -> float:
        raise ValueError("x" * 10_000)

    assert len(failure(check.function, talks, CASES, divide)) < 300


def test_function_protects_its_inputs_and_stderr(capsys) -> None:
    def greedy(parts: dict[str, float]) -> float:
        warnings.warn("nbgrader would count this", stacklevel=1)
        return parts.pop("weights")

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        check.function(greedy, [{"parts": {"weights": 2.0}}], lambda parts: parts["weights"])
    assert heard == []
    assert capsys.readouterr().err == ""


def test_every_call_gets_copies_of_its_own() -> None:
    """Whoever empties an argument harms neither the next call nor the instructor's cases."""
    parts = {"weights": [2.0, 1.0]}
    cases = [{"parts": parts}, {"parts": parts}]

    def greedy(parts: dict[str, list[float]]) -> float:
        return parts["weights"].pop() + parts.pop("weights").pop()

    check.function(greedy, cases, [3, 3])
    check.function(lambda parts: sum(parts["weights"]), cases, greedy)  # the right rule too
    said = failure(
        check.function,
        lambda parts: 4.0,
        cases,
        lambda parts: sum(parts["weights"]),
        wrong={"one too many": lambda parts: 1 + greedy(parts)},
    )
    assert said.endswith("Hint: one too many.")
    assert cases == [{"parts": {"weights": [2.0, 1.0]}}] * 2


@pytest.mark.parametrize("result", [None, "12", [12.0], trainmem.simulate()])
def test_function_must_return_a_number(result: object) -> None:
    said = failure(check.function, lambda states, gpus: result, CASES, divide, name="f")
    assert "is not a number" in said


def test_choice() -> None:
    check.choice("b", "b", "ab")
    check.choice(True, True, (True, False))
    assert "choose one of 'a', 'b'" in failure(check.choice, "c", "b", "ab")
    assert "not one of the options" in failure(check.choice, 1, True, (True, False))
    assert failure(check.choice, "a", "b", "ab", name="x", hints={"a": "no"}).endswith("Hint: no.")

    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    assert "not one of the options" in failure(check.choice, Anything(), "b", "ab")


def test_require() -> None:
    check.require(True, "too big")
    assert failure(check.require, False, "too big", "shrink it") == "too big. Hint: shrink it."


def test_notebook_shows_one_line_and_no_traceback() -> None:
    shell = pytest.importorskip("IPython").core.interactiveshell.InteractiveShell()
    result = shell.run_cell("from trainmem import check\ncheck.number(1, 16, name='secret')  # 16")
    assert isinstance(result.error_in_exec, check.CheckFailed)
    assert result.error_in_exec._render_traceback_() == ["✗ secret: 1 is not right."]


class OddNumber(float):
    """Passes for a number until it is asked for its value."""

    def __float__(self) -> float:
        raise ZeroDivisionError


def test_an_object_that_only_looks_like_a_number_is_none() -> None:
    assert failure(check.number, OddNumber(16), 16) == "answer: 16.0 is not a number."


@given(
    right=st.floats(1, 1e6),
    turn=st.floats(0.1, 10).filter(lambda x: abs(x - 1) > 0.05),
    off=st.floats(0.0011, 0.0099),
    sign=st.sampled_from((-1, 1)),
)
def test_hint_needs_more_than_an_answer_within_one_percent(right, turn, off, sign) -> None:
    near = right * turn * (1 + sign * off)
    assert "Hint" not in failure(check.number, near, right, wrong={"master": right * turn})
    exact = right * turn * (1 + sign * off / 100)
    assert "Hint: the fp32" in failure(check.number, exact, right, wrong={"master": right * turn})


def test_hint_names_all_wrong_turns_that_lead_to_the_same() -> None:
    said = failure(check.number, 4, 8, wrong={"one moment, not two": 4, "fp32, not 16 bits": 4})
    assert said == "answer: 4 is not right. Hint: one moment, not two; or fp32, not 16 bits."
    assert "GiB" not in failure(check.number, 15, 16, unit="GB")  # 16 GB are 14.9 GiB


def test_exercise_passes_what_is_right_and_names_itself(capsys) -> None:
    with check.exercise("1a"):
        check.number(16, 16, name="x")
    assert capsys.readouterr().out == "✓ x\n"
    with (
        pytest.raises(check.CheckFailed, match=r"^Exercise 1a: x: 1 is not right\.$"),
        check.exercise("1a"),
    ):
        check.number(1, 16, name="x")


def test_exercise_says_where_a_missing_name_should_come_from() -> None:
    told = guarded("with check.exercise('1a'):\n    check.number(undefined, 16)\n")
    assert told == (
        "Exercise 1a: NameError: name 'undefined' is not defined: "
        "the answer cell must define it, and run to its end."
    )


def test_exercise_survives_an_error_made_to_look_like_its_own() -> None:
    class Mine(check.CheckFailed):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    told = guarded("with check.exercise('1a'):\n    raise Mine\n", Mine=Mine)
    assert told == "Exercise 1a: Mine."


def test_exercise_names_the_builtins_that_were_taken() -> None:
    told = guarded("with check.exercise('1a'):\n    sum([16])\n", sum=3, max=4, open=5, _=6)
    assert told == (
        "Exercise 1a: TypeError: 'int' object is not callable. "
        "Your code uses names of Python's own for something else: sum, max."
    )


def guarded(source: str, **names: object) -> str:
    with pytest.raises(check.CheckFailed) as caught:
        exec(compile(source, "check cell", "exec"), names | {"check": check})
    assert caught.value.__suppress_context__
    return str(caught.value)


@pytest.mark.parametrize("kind", RAISED)
def test_nothing_raised_shows_a_check_cell(source: Notebook, kind: str) -> None:
    """Answer every exercise by raising; no check may end in anything but one line of its own."""
    statement, said = RAISED[kind]
    answers = {
        name: raising(text(cell), statement)
        for name, cell in cells(source).items()
        if cell["metadata"]["nbgrader"]["solution"]
    }
    told = run_as_a_notebook(answer(source, answers))
    graded = {name for name, cell in cells(source).items() if cell["metadata"]["nbgrader"]["grade"]}
    assert told.keys() == graded
    for name, error in told.items():
        assert isinstance(error, check.CheckFailed), (name, error)
        assert str(error).startswith(f"Exercise {name[2:-6]}: ")
        assert not [line for line in secrets(source) if line in str(error)]
        if "def answer" not in answers[name.removesuffix("-check")]:
            assert said in str(error)
            assert f"(line 2 of its cell: {statement})" in str(error)


@pytest.mark.parametrize("left_out", range(17))
def test_a_missing_answer_shows_no_check_cell(source: Notebook, left_out: int) -> None:
    solutions = [
        name for name, cell in cells(source).items() if cell["metadata"]["nbgrader"]["solution"]
    ]
    assert len(solutions) == 17
    told = run_as_a_notebook(answer(source, {solutions[left_out]: ""}))
    assert f"{solutions[left_out]}-check" in told
    for name, error in told.items():
        assert isinstance(error, check.CheckFailed), (name, error)
        assert not [line for line in secrets(source) if line in str(error)]


def run_as_a_notebook(notebook: Notebook) -> dict[str, BaseException]:
    """Run the cells, whatever they raise; return what the graded ones raised."""
    names: dict[str, object] = {"__name__": "__main__"}
    raised = {}
    for name, cell in cells(notebook).items():
        if {"widget", "figure"} & set(cell["metadata"].get("tags", [])):
            continue
        code = text(cell)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            exec(compile(code, name, "exec"), names)
        except BaseException as error:
            if cell["metadata"]["nbgrader"]["grade"]:
                raised[name] = error
    return raised
