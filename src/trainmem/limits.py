"""Exact limits of any memory model: the fewest GPUs, the longest sequence, the largest batch.

Each is found without a scan: a guess from two evaluations, which is exact where the memory is
affine (in 1/N for GPUs, in the value otherwise), then bisection of what the guess leaves open.
Whatever is returned was checked by the model itself, its neighbour too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainmem.config import FIELDS, TrainingConfig
from trainmem.reduced import Components

__all__ = [
    "Limit",
    "Limited",
    "MemoryModel",
    "grade_of",
    "graded",
    "largest_that_fits",
    "limit",
    "smallest_num_gpus",
]


class MemoryModel(Protocol):
    """What `trainmem.simulate` needs of a memory model."""

    @property
    def description(self) -> str:
        """One line that names the model; `model` in the API answer."""

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind.

        Keywords ``num_gpus``, ``seq_length`` or ``micro_batch`` replace the config's value by
        a number or an array, over which the result broadcasts.
        """

    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return the bytes that one GPU offers."""

    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of unsharded model states per parameter."""


Limited = Literal["num_gpus", "seq_length", "micro_batch"]
"""The inputs that have a limit."""


@dataclass(frozen=True)
class Limit:
    """The last value of an input at which a request fits, and how surely.

    Attributes
    ----------
    value : int or None
        The fewest GPUs, the longest sequence or the largest micro batch whose need is at most the
        capacity; None where there is none.
    grade : str
        The grade at that value; `does not fit` where there is none.
    surely : int or None
        The last value that is graded `fits`; None where there is none.
    """

    value: int | None
    grade: str
    surely: int | None


def limit(model: MemoryModel, config: TrainingConfig, field: Limited) -> Limit:
    """Return the limit of an input, the grade there, and the last value graded `fits`."""
    if field == "num_gpus":
        return graded(model, config, field, smallest_num_gpus(model, config))
    return graded(model, config, field, largest_that_fits(model, config, field))


def graded(model: MemoryModel, config: TrainingConfig, field: Limited, value: int | None) -> Limit:
    """Return a limit that is known with its grade, and beside it the last value graded `fits`."""
    if value is None:
        return Limit(None, "does not fit", None)
    there = config.replace(**{field: value})
    grade = grade_of(model, there, float(model.components(there).total))
    sure: Any = getattr(model, "surely_fits", None)
    if grade == "fits" or sure is None:
        return Limit(value, grade, value)
    own: Any = model  # whoever has more than two grades searches by itself
    if field == "num_gpus":
        return Limit(value, grade, own.smallest_num_gpus(config, sure(config), value))
    return Limit(value, grade, own.largest_that_fits(config, field, sure(config), value))


def grade_of(model: MemoryModel, config: TrainingConfig, need: float) -> str:
    """Return the grade of a need in bytes: the model's own, or `fits` and `does not fit`."""
    own = getattr(model, "grade", None)
    if own is not None:
        return str(own(config, need))
    return "fits" if need <= model.capacity_bytes(config) else "does not fit"


def smallest_num_gpus(model: MemoryModel, config: TrainingConfig) -> int | None:
    """Return the smallest GPU count at which `config` fits, or None where none does.

    A model with a `smallest_num_gpus` of its own is asked; else this assumes that memory per GPU
    never grows with the count. A `total_by_gpus` of its own spares it most of the work.
    """
    own = getattr(model, "smallest_num_gpus", None)
    if own is not None:
        return own(config)  # type: ignore[no-any-return]
    most = int(FIELDS["num_gpus"].bounds[1])
    capacity = model.capacity_bytes(config)
    by_gpus = getattr(model, "total_by_gpus", None)
    if by_gpus is not None:
        total: Callable[[int], float] = by_gpus(config)
    else:

        def total(count: int) -> float:
            return float(model.components(config, num_gpus=count).total)

    alone, spread = total(1), total(most)
    if alone <= capacity:
        return 1
    if spread > capacity:
        return None
    shared = (alone - spread) / (1 - 1 / most)  # total(N) = floor + shared / N
    room = capacity - (alone - shared)
    guess = math.ceil(shared / room) if room > 0 else most
    return _boundary(lambda count: total(count) > capacity, 1, most, guess) + 1


def largest_that_fits(
    model: MemoryModel, config: TrainingConfig, field: Literal["seq_length", "micro_batch"]
) -> int | None:
    """Return the largest value of `field` at which `config` fits, or None where none does.

    Values end at the field's upper bound. A model with a `largest_that_fits` of its own is asked;
    else this assumes that memory never falls as the value grows.
    """
    own = getattr(model, "largest_that_fits", None)
    if own is not None:
        return own(config, field)  # type: ignore[no-any-return]
    most = int(FIELDS[field].bounds[1])
    capacity = model.capacity_bytes(config)

    def total(value: int) -> float:
        return float(model.components(config, **{field: value}).total)

    least, greatest = total(1), total(most)
    if least > capacity:
        return None
    if greatest <= capacity:
        return most
    slope = (greatest - least) / (most - 1)
    guess = 1 + math.floor((capacity - least) / slope) if slope > 0 else 1
    return _boundary(lambda value: total(value) <= capacity, 1, most, guess)


def _boundary(holds: Callable[[int], bool], low: int, high: int, guess: int) -> int:
    """Return the last value at which `holds`, given that it does at `low`, not at `high`."""
    for near in (guess - 1, guess, guess + 1):
        if low < near < high:
            if holds(near):
                low = near
            else:
                high = near
                break
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
