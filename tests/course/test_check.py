"""`trainmem.check`: right answers pass, wrong turns get their hint, the answer is never told."""

import math
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainmem
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
    with pytest.raises(ValueError, match="1 values for 2 cases"):
        check.function(divide, CASES[:2], [8])


def test_function_reports_what_the_student_raised_and_where() -> None:
    def broken(states: float, gpus: int) -> float:
        return states / (gpus - gpus)

    def quits(states: float, gpus: int) -> float:
        sys.exit()

    said = failure(check.function, broken, CASES, divide)
    line = broken.__code__.co_firstlineno + 1
    assert said == (
        "broken(states=8.0, gpus=1) raised ZeroDivisionError: float division by zero "
        f"(line {line} of its cell)."
    )
    assert "raised SystemExit" in failure(check.function, quits, CASES, divide)


def test_function_protects_its_inputs_and_stderr(capsys) -> None:
    def greedy(parts: dict[str, float]) -> float:
        warnings.warn("nbgrader would count this", stacklevel=1)
        return parts.pop("weights")

    check.function(greedy, [{"parts": {"weights": 2.0}}], lambda parts: parts["weights"])
    assert capsys.readouterr().err == ""


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
