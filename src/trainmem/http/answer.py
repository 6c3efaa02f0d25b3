"""The answer of a server: read with no trust in it, and compared with one's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from trainmem.config import FIELDS, TrainingConfig
from trainmem.http.wire import OUTPUTS, REPEATS, SWEEPS, TOP, parse
from trainmem.outputs import GB
from trainmem.reduced import Components
from trainmem.simulation import Simulation
from trainmem.sweeps import SWEEP_POINTS, Sweep
from trainmem.words import describe

__all__ = [
    "BadAnswer",
    "CannotConnect",
    "Comparison",
    "Difference",
    "Refused",
    "RemoteError",
    "TimedOut",
    "compare",
    "decode",
]

MOST: Final = 1e30
"""Greatest number believed of an answer; no accepted request comes near it."""

TEXT_LIMIT: Final = 1000
"""Longest text believed of an answer, characters."""


class RemoteError(Exception):
    """A simulation could not be had from a server; the subclasses say why."""


class CannotConnect(RemoteError, ConnectionError):
    """No connection, or one that broke before the answer was complete."""


class TimedOut(RemoteError, TimeoutError):
    """No complete answer in the time allowed."""


class Refused(RemoteError):
    """The server answered that it won't: `status` is its HTTP status, `message` its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"refused by the server ({status}): {message}")
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[Refused], tuple[int, str]]:
        return type(self), (self.status, self.message)


class BadAnswer(RemoteError):
    """An answer that isn't what was asked: `field` is where, `problem` what is wrong there."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"bad answer from the server: {field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[BadAnswer], tuple[str, str]]:
        return type(self), (self.field, self.problem)


def decode(data: bytes, config: TrainingConfig) -> Simulation:
    """Return the answer to `config`, checked field by field.

    Names beyond the published ones are ignored. The sweeps hold what the answer tells: their
    x is the label (rounded, for sequence lengths), and only the split between model states and
    activations is the server's; that of the states among themselves is the request's own.

    Parameters
    ----------
    data : bytes
        The body of the answer.
    config : TrainingConfig
        What was asked.

    Returns
    -------
    Simulation
        With ``model=None``: it answers no further questions that need the model.

    Raises
    ------
    BadAnswer
        Naming the first field that is missing, of the wrong type, out of range, or at odds
        with the request or with another field.
    """
    try:
        answer = _object(parse(data), "the body")
    except ValueError as error:
        raise BadAnswer("the body", str(error)) from None
    top = {name: _value(answer, name, kind) for name, kind in TOP.items()}
    _check_inputs(_object(_get(answer, "inputs"), "inputs"), config)
    given = _object(_get(answer, "outputs"), "outputs")
    outputs = {name: _value(given, name, kind, "outputs.") for name, kind in OUTPUTS.items()}
    profile = _object(_get(answer, "profile"), "profile")
    for name, source in REPEATS.items():
        kind, expected = (
            (type(getattr(config, source)), getattr(config, source))
            if source in FIELDS
            else (OUTPUTS[source], outputs[source])
        )
        if (value := _value(profile, name, kind, "profile.")) != expected:
            problem = f"{describe(value)} is at odds with {source}, {describe(expected)}"
            raise BadAnswer(f"profile.{name}", problem)
    if outputs["min_gpus_to_fit"] == 0:
        raise BadAnswer("outputs.min_gpus_to_fit", "0 is not a GPU count")
    if top["steps"] != 2 * SWEEP_POINTS:
        raise BadAnswer("steps", f"{top['steps']} is not {2 * SWEEP_POINTS}")
    need = Components(
        outputs["weights_per_gpu_gb"] * GB,
        outputs["grads_per_gpu_gb"] * GB,
        outputs["optimizer_per_gpu_gb"] * GB,
        outputs["activations_per_gpu_gb"] * GB,
    )
    _check_sum("model_states_per_gpu_gb", need.states, outputs)
    _check_sum("per_gpu_total_gb", need.total, outputs)
    return Simulation(
        **outputs,
        config=config,
        components=need,
        gpu_sweep=_sweep(profile, "mem_vs_gpus", need, fixed="activations"),
        seq_sweep=_sweep(profile, "mem_vs_seq", need, fixed="states"),
        description=top["model"],
        node=top["node"],
        compute_ms=top["compute_ms"],
        model=None,
    )


def _get(values: dict[str, Any], name: str, prefix: str = "") -> Any:
    if name not in values:
        raise BadAnswer(prefix + name, "missing")
    return values[name]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(where, f"{describe(value)} is not an object")
    return value


def _value(values: dict[str, Any], name: str, kind: Any, prefix: str = "") -> Any:
    return _checked(_get(values, name, prefix), kind, prefix + name)


def _checked(value: Any, kind: Any, where: str) -> Any:
    """Return `value` as a `kind` (float, int, bool, str, or ``int | None``)."""
    if kind is float and _is_number(value, int | float):
        return float(value)
    if kind is int and _is_number(value, int):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str) and len(value) <= TEXT_LIMIT and value.isprintable():
        return value
    if kind == int | None and (value is None or _is_number(value, int)):
        return value
    words = {
        float: "a finite number from 0 up",
        int: "a whole number from 0 up",
        bool: "true or false",
        str: f"a line of text of at most {TEXT_LIMIT} characters",
    }
    expected = words.get(kind, "a whole number from 0 up, or null")
    raise BadAnswer(where, f"{describe(value)} is not {expected}")


def _is_number(value: Any, kind: Any) -> TypeGuard[int | float]:
    # NaN fails the comparison, and integers too large for a float never reach a conversion.
    return isinstance(value, kind) and not isinstance(value, bool) and 0 <= value <= MOST


def _check_inputs(inputs: dict[str, Any], config: TrainingConfig) -> None:
    for name, asked in config.to_dict().items():
        value = _value(inputs, name, type(asked), "inputs.")
        if value != asked:
            problem = f"answers {describe(value)} where {describe(asked)} was asked"
            raise BadAnswer(f"inputs.{name}", problem)


def _check_sum(name: str, parts: float, outputs: dict[str, Any]) -> None:
    """Refuse a total that isn't its parts, but for the rounding of each to 3 decimals."""
    if not math.isclose(outputs[name], parts / GB, rel_tol=1e-9, abs_tol=0.003):
        problem = f"{outputs[name]} is not the sum of its parts, {parts / GB:.3f}"
        raise BadAnswer(f"outputs.{name}", problem)


def _sweep(profile: dict[str, Any], name: str, need: Components, *, fixed: str) -> Sweep:
    """Return a sweep along which the states, or the activations, stay `fixed`."""
    pairs, where = _get(profile, name, "profile."), f"profile.{name}"
    if not isinstance(pairs, list) or len(pairs) != SWEEP_POINTS:
        got = f"{len(pairs)} points" if isinstance(pairs, list) else describe(pairs)
        raise BadAnswer(where, f"{got} instead of {SWEEP_POINTS} points")
    x, total, last = [], [], 0
    for index, pair in enumerate(pairs):
        here = f"{where}[{index}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadAnswer(here, f"{describe(pair)} is not a pair")
        at = _checked(pair[0], SWEEPS[name], f"{here}[0]")
        if at < max(1, last):
            raise BadAnswer(f"{here}[0]", f"{at} is below {max(1, last)}")
        last = at
        x.append(at)
        total.append(_checked(pair[1], float, f"{here}[1]") * GB)
    totals = np.array(total)
    # Rounding may leave a total a hair below its fixed part; nothing is negative.
    part = np.minimum(need.activations if fixed == "activations" else need.states, totals)
    activations = part if fixed == "activations" else totals - part
    states = totals - activations
    # Where the request's own states round to nothing, the optimizer's stand for all.
    weights, gradients = (
        states * (kind / need.states if need.states else 0.0)
        for kind in (need.weights, need.gradients)
    )
    optimizer = states - weights - gradients
    return Sweep(np.array(x), Components(weights, gradients, optimizer, activations))


@dataclass(frozen=True)
class Difference:
    """One field in which two answers differ.

    Attributes
    ----------
    field : str
        Where in the API answer, such as ``outputs.activations_per_gpu_gb``.
    local, remote : object
        The two values; for a sweep, its 48 pairs.
    """

    field: str
    local: Any
    remote: Any

    def __str__(self) -> str:
        """One line; a sweep is summed up."""
        if isinstance(self.local, list):
            pairs = list(zip(self.local, self.remote, strict=True))
            count = sum(not _same(ours, theirs) for ours, theirs in pairs)
            return f"{self.field}: {count} of {len(pairs)} points differ"
        return f"{self.field}: {self.local!r} here, {self.remote!r} there"


@dataclass(frozen=True)
class Comparison:
    """The same request answered here and there.

    Attributes
    ----------
    local, remote : Simulation
        The two answers.
    differences : tuple of Difference
        Every field in which they differ, in the order of the API answer.
    """

    local: Simulation
    remote: Simulation
    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether no field differs."""
        return not self.differences

    def __str__(self) -> str:
        """One line a difference, or one that there is none."""
        if self.agrees:
            return f"{self.remote.node} agrees with this machine in every field"
        lines = (f"  {difference}" for difference in self.differences)
        return "\n".join([f"{self.remote.node} differs from this machine:", *lines])


def compare(local: Simulation, remote: Simulation) -> Comparison:
    """Compare two answers to one request, to the last published digit, field by field.

    Left out are `node` and `compute_ms`, which always differ, and the scalars of `profile`,
    which repeat the outputs (`decode` sees to it).
    """
    ours, theirs = _comparable(local), _comparable(remote)
    return Comparison(
        local,
        remote,
        tuple(
            Difference(name, ours[name], theirs[name])
            for name in ours
            if not _same(ours[name], theirs[name])
        ),
    )


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return all(_same(*pair) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, float) and isinstance(theirs, float):
        # Beyond 10¹² GB a sum taken apart and put together may be off in the 16th digit.
        return math.isclose(ours, theirs, rel_tol=1e-14)
    return bool(ours == theirs)


def _comparable(simulation: Simulation) -> dict[str, Any]:
    answer = simulation.to_dict()
    return (
        {"model": answer["model"]}
        | {f"inputs.{name}": value for name, value in answer["inputs"].items()}
        | {f"outputs.{name}": value for name, value in answer["outputs"].items()}
        | {f"profile.{name}": answer["profile"][name] for name in SWEEPS}
    )
