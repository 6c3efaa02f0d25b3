"""Exact limits of any memory model: the fewest GPUs, the longest sequence, the largest batch.

Each is found without a scan: a guess from two evaluations, which is exact where the memory is
affine (in 1/N for GPUs, in the value otherwise), then bisection of what the guess leaves open.
Whatever is returned was checked by the model itself, its neighbour too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainmem.config import FIELDS, TrainingConfig

if TYPE_CHECKING:
    from trainmem.memory_model import MemoryModel

__all__ = ["Limit", "Limited", "fewest", "graded", "largest", "limit"]


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
    return graded(model, config, field, _last(model, config, field))


def graded(model: MemoryModel, config: TrainingConfig, field: Limited, value: int | None) -> Limit:
    """Return a limit that is known with its grade, and beside it the last value graded `fits`."""
    if value is None:
        return Limit(None, "does not fit", None)
    there = config.replace(**{field: value})
    grade = model.grade(there, float(model.total(there)))
    if grade == "fits":
        return Limit(value, grade, value)
    return Limit(value, grade, _last(model, config, field, model.surely_fits(config), value))


def _last(
    model: MemoryModel,
    config: TrainingConfig,
    field: Limited,
    capacity: float | None = None,
    near: int | None = None,
) -> int | None:
    """Return the last value of an input at which a request fits, by the model's own search."""
    if field == "num_gpus":
        return model.smallest_num_gpus(config, capacity, near)
    return model.largest_that_fits(config, field, capacity, near)


def fewest(total: Callable[[int], float], capacity: float, least: int = 1) -> int | None:
    """Return the smallest GPU count, from `least` on, at which memory fits; None where none does.

    Parameters
    ----------
    total
        Bytes per GPU as a function of the count; assumed never to grow with it.
    capacity
        Bytes that one GPU offers.
    least
        The first count to try.
    """
    most = int(FIELDS["num_gpus"].bounds[1])
    alone, spread = total(least), total(most)
    if alone <= capacity:
        return least
    if spread > capacity:
        return None
    shared = (alone - spread) / (1 / least - 1 / most)  # total(N) = floor + shared / N
    room = capacity - (alone - shared / least)
    guess = math.ceil(shared / room) if room > 0 else most
    return _boundary(lambda count: total(count) > capacity, least, most, guess) + 1


def largest(total: Callable[[int], float], capacity: float, most: int) -> int | None:
    """Return the largest value, 1 to `most`, at which memory fits; None where none does.

    Parameters
    ----------
    total
        Bytes per GPU as a function of the value; assumed never to fall as it grows.
    capacity
        Bytes that one GPU offers.
    most
        The last value to try.
    """
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
