"""Checks for course exercises: a tolerance with units, hints, and never the answer.

An instructor writes the right value (or rule) and the wrong turns that students are known to
take; a failed check raises `CheckFailed` with the student's own value and, where it is one of
those wrong turns, a hint. Neither the right value nor its distance is ever printed, and in a
notebook the failure is one line, without a traceback that would show the checking code. A cell's
checks belong inside ``with exercise("1a"):``, which does the same for whatever else is raised.

>>> number(16.0, 16, name="adam", unit="bytes")
✓ adam
>>> number(14.9, 16, name="states_gb", unit="GB")  # doctest: +ELLIPSIS
Traceback (most recent call last):
trainmem.course.exercise.CheckFailed: states_gb: 14.9 GB is not right. Hint: that is the ...
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final

from trainmem.course.exercise import NOT_ANSWERED, CheckFailed, exercise, result_of, with_hint
from trainmem.words import describe

__all__ = [
    "UNITS",
    "WRONG_TURNS",
    "CheckFailed",
    "choice",
    "exercise",
    "function",
    "number",
    "require",
    "whole",
]

UNITS: Final[Mapping[str, tuple[float, str]]] = {
    "bytes": (1, "8 bits"),
    "MB": (1e6, "10⁶ bytes"),
    "GB": (1e9, "10⁹ bytes"),
    "GiB": (2**30, "2³⁰ bytes"),
    "TB": (1e12, "10¹² bytes"),
}
"""Units of memory: bytes in one, and how to say so. A slip between two is a known wrong turn."""

WRONG_TURNS: Final[Mapping[str, str]] = {
    "master": (
        "the fp32 master weights are missing: 16-bit training keeps 4 more bytes per parameter, "
        "because small updates vanish in 16 bits"
    ),
    "activations_divided": (
        "activations are not divided by the number of GPUs: each GPU runs its own micro batch"
    ),
    "states_not_divided": "at this stage the GPUs share some of the model states: divide those",
    "off_by_one": (
        "one off: 'fits' means need ≤ capacity, so round to the last whole number that still fits"
    ),
}
"""Names that `wrong` mappings may use instead of a sentence of their own."""

HINT_TOLERANCE: Final = 0.001
"""How near a wrong turn's value an answer is, relatively, to get its hint: nearer than what passes
as right, because a hint says what the student did."""


def number(
    answer: object,
    expected: float,
    *,
    name: str = "answer",
    unit: str = "",
    tolerance: float = 0.01,
    wrong: Mapping[str, float] | None = None,
    hint: str = "",
) -> None:
    """Check a number, within a relative tolerance.

    Parameters
    ----------
    answer : object
        What the student gave; anything but a real, finite number fails with a message.
    expected : float
        The right value, in `unit`.
    name : str
        Name of the answer, for messages.
    unit : str
        Its unit. For those in `UNITS`, an answer in another of them gets a hint (GiB for GB).
    tolerance : float
        Largest relative error that passes.
    wrong : mapping of str to float, optional
        Values that known wrong turns lead to: a name in `WRONG_TURNS` or the hint itself,
        and the value. A hint is shown within `HINT_TOLERANCE`; where several lead to the same
        value, all are.
    hint : str
        Shown where no wrong turn matches.

    Raises
    ------
    CheckFailed
        Where the answer isn't right.
    """
    _check(name, [(name, answer, expected, wrong or {})], unit, tolerance, hint)


def whole(
    answer: object,
    expected: int | None,
    *,
    name: str = "answer",
    unit: str = "",
    wrong: Mapping[str, int | None] | None = None,
    hint: str = "",
) -> None:
    """Check a whole number exactly; None stands for "there is none".

    Parameters
    ----------
    answer : object
        What the student gave. Integral floats and NumPy integers count as whole.
    expected : int or None
        The right value.
    name, unit, wrong, hint
        As in `number`. One too many or too few gets a hint by itself.

    Raises
    ------
    CheckFailed
        Where the answer isn't right.
    """
    _check(name, [(name, answer, expected, wrong or {})], unit, None, hint)


def function(
    student: object,
    cases: Iterable[Mapping[str, Any]],
    expected: Callable[..., Any] | Sequence[Any],
    *,
    name: str = "",
    unit: str = "",
    tolerance: float | None = 1e-6,
    wrong: Mapping[str, Callable[..., Any] | Sequence[Any]] | None = None,
    hint: str = "",
) -> None:
    """Check a function over many inputs.

    Parameters
    ----------
    student : callable
        The student's function. It gets copies of its arguments, and its warnings are
        silenced (nbgrader counts anything on stderr as a failure).
    cases : iterable of mapping
        Keyword arguments of each call.
    expected : callable or sequence
        The right rule, called with the same keywords; or one right value per case.
    name : str
        Name for messages; the function's own where omitted.
    unit : str
        Unit of the results, as in `number`.
    tolerance : float or None
        Largest relative error that passes; None for whole numbers (or None), as in `whole`.
    wrong : mapping of str to callable or sequence, optional
        Rules that known wrong turns follow, or what they lead to, as in `expected`. A hint is
        given where one of them explains every case that failed.
    hint : str
        Shown where no wrong turn matches.

    Raises
    ------
    CheckFailed
        For the first input where the result isn't right: names the input and what came back.
    """
    name = name or str(getattr(student, "__name__", "answer"))
    if not callable(student):
        said = NOT_ANSWERED if student is ... else f"{describe(student)} is not a function"
        raise CheckFailed(f"{name}: {said}.")
    inputs = [dict(case) for case in cases]
    right = _results(expected, inputs)
    turns = {turn: _results(rule, inputs) for turn, rule in (wrong or {}).items()}
    answers = []
    for index, case in enumerate(inputs):
        written = f"{name}({', '.join(f'{key}={describe(arg)}' for key, arg in case.items())})"
        led_to = {turn: values[index] for turn, values in turns.items()}
        answers.append((written, result_of(student, case, name, written), right[index], led_to))
    _check(name, answers, unit, tolerance, hint)


def choice(
    answer: object,
    expected: object,
    options: Iterable[object],
    *,
    name: str = "answer",
    hints: Mapping[Any, str] | None = None,
    hint: str = "",
) -> None:
    """Check a choice among given options, such as a word, a stage or True and False.

    Parameters
    ----------
    answer, expected : object
        What the student chose, and the right one of the options.
    options : iterable
        What may be chosen; anything else fails with a message that lists them.
    name : str
        Name of the answer, for messages.
    hints : mapping, optional
        A hint for each wrong option that has one.
    hint : str
        Shown where the option has none.

    Raises
    ------
    CheckFailed
        Where the answer isn't right.
    """
    allowed = list(options)
    # Types too: True is not 1 here, and a foreign __eq__ gets no say.
    found = [option for option in allowed if type(answer) is type(option) and option == answer]
    if not found:
        said = NOT_ANSWERED if answer is ... else f"{describe(answer)} is not one of the options"
        raise CheckFailed(f"{name}: {said}; choose one of {', '.join(map(repr, allowed))}.")
    if found[0] != expected:
        said = f"{name}: {describe(answer)} is not right."
        raise CheckFailed(with_hint(said, (hints or {}).get(found[0]) or hint))
    print(f"✓ {name}")


def require(condition: object, problem: str, hint: str = "") -> None:
    """Check one condition of an answer that may be right in many ways, such as a plan.

    Parameters
    ----------
    condition : object
        True where the answer meets it.
    problem : str
        What is wrong where it doesn't, in a few words.
    hint : str
        What to look at.

    Raises
    ------
    CheckFailed
        Where the condition is false.
    """
    if not condition:
        raise CheckFailed(with_hint(f"{problem}.", hint))


Answer = tuple[str, object, Any, Mapping[str, Any]]  # what it is, given, right, wrong turns


def _check(
    name: str, answers: Sequence[Answer], unit: str, tolerance: float | None, hint: str
) -> None:
    """Raise for the first answer that isn't right, with the hint that explains all of those."""
    failed = []
    near = None if tolerance is None else min(tolerance, HINT_TOLERANCE)
    for what, answer, expected, turns in answers:
        given = _plain(what, answer, unit, tolerance)
        if not _same(given, expected, tolerance):
            failed.append((what, given, expected, turns))
    if not failed:
        print(f"✓ {name}")
        return
    explained = [
        {
            text
            for text, value in _turns(expected, turns, unit, tolerance)
            if _same(given, value, near)
        }
        for _, given, expected, turns in failed
    ]
    what, given, expected, turns = failed[0]
    common = set.intersection(*explained)
    found = [text for text, _ in _turns(expected, turns, unit, tolerance) if text in common]
    hint = "; or ".join(dict.fromkeys(found)) or hint
    shown = f"{given:.6g}" if isinstance(given, float) else describe(given)
    if unit and given is not None:
        shown += f" {unit}"
    said = f"{what} returned {shown}, which" if what != name else f"{what}: {shown}"
    raise CheckFailed(with_hint(f"{said} is not right.", hint))


def _turns(
    expected: float | None, turns: Mapping[str, Any], unit: str, tolerance: float | None
) -> list[tuple[str, Any]]:
    """Return the wrong turns of one answer: hint and the value that it leads to."""
    found = [(WRONG_TURNS.get(turn, turn), value) for turn, value in turns.items()]
    if expected is None:
        return found
    if tolerance is None:
        near = WRONG_TURNS["off_by_one"]
        return [*found, (near, expected - 1), (near, expected + 1)]
    if unit in UNITS:
        size, words = UNITS[unit]
        for other, (other_size, other_words) in UNITS.items():
            if other != unit:
                text = f"that is the number in {other} ({other_words}); give it in {unit} ({words})"
                found.append((text, expected * size / other_size))
    return found


def _same(given: float | None, expected: float | None, tolerance: float | None) -> bool:
    if given is None or expected is None:
        return given is expected
    if tolerance is None:
        return given == expected
    return math.isclose(given, expected, rel_tol=tolerance)


def _plain(what: str, answer: object, unit: str, tolerance: float | None) -> float | None:
    """Return an answer as a plain number (or None, for whole ones); raise where it is neither."""
    if answer is ...:
        raise CheckFailed(f"{what}: {NOT_ANSWERED}.")
    if answer is None and tolerance is None:
        return None
    kind = "a whole number" if tolerance is None else "a number"
    wanted = f"{kind} in {unit}" if unit else kind
    if isinstance(answer, bool) or not isinstance(answer, Real):
        raise CheckFailed(f"{what}: {describe(answer)} is not {wanted}.")
    try:
        plain: float = int(answer) if isinstance(answer, Integral) else float(answer)
        good = math.isfinite(plain)
        if good and tolerance is None:
            good, plain = plain == int(plain), int(plain)
        elif good:
            plain = float(plain)
    except Exception:  # too large, or a foreign object that fails in its own way
        good = False
    if not good:
        raise CheckFailed(f"{what}: {describe(answer)} is not {wanted}.")
    return plain


def _results(rule: Any, inputs: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """Return the value of a rule for each input, or the values themselves."""
    if not callable(rule):
        if len(rule) != len(inputs):
            raise ValueError(f"{len(rule)} values for {len(inputs)} cases")
        return list(rule)
    return [rule(**copy.deepcopy(dict(case))) for case in inputs]
