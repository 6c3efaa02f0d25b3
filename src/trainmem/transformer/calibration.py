"""Predicted against measured: a factor from one run, to carry over to others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmem.transformer.levels import GIB, Level
from trainmem.words import describe

#: Keys of `torch.cuda.memory_stats()` that are read.
STATS = {
    "allocated": "allocated_bytes.all.peak",
    "reserved": "reserved_bytes.all.peak",
}

#: A factor beyond these is another run than the one predicted, not an error of the model.
LEAST, MOST = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One level of counting, predicted and measured.

    Attributes
    ----------
    level
        `allocated` or `reserved`.
    predicted_bytes, low_bytes, high_bytes
        What was predicted, and its interval.
    measured_bytes
        What was measured.
    """

    level: str
    predicted_bytes: float
    low_bytes: float
    high_bytes: float
    measured_bytes: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_bytes / self.predicted_bytes

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted interval."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


@dataclass(frozen=True, slots=True)
class Calibration:
    """What :func:`calibrate` found.

    Attributes
    ----------
    factor
        What predictions of allocated bytes are to be multiplied by.
    source
        The level that the factor comes from: `allocated` where it was measured.
    comparisons
        Every level that was measured.
    """

    factor: float
    source: str
    comparisons: tuple[Comparison, ...]

    def __str__(self) -> str:
        """Return a line a level: predicted, its interval, measured, and how far off."""
        lines = [
            f"{c.level:<10} predicted {c.predicted_bytes / GIB:7.2f} GiB "
            f"({c.low_bytes / GIB:.2f} to {c.high_bytes / GIB:.2f}), "
            f"measured {c.measured_bytes / GIB:7.2f} GiB: {c.ratio - 1:+.1%}"
            for c in self.comparisons
        ]
        return "\n".join([*lines, f"factor {self.factor:.4f}, from the {self.source} level"])


def calibrate(
    predicted: Sequence[Level],
    *,
    peak_allocated_gib: float | None = None,
    peak_reserved_gib: float | None = None,
    memory_stats: Mapping[str, Any] | None = None,
) -> Calibration:
    """Compare a prediction with a run of the same step.

    Parameters
    ----------
    predicted
        The levels of the prediction (:func:`trainmem.transformer.levels`).
    peak_allocated_gib, peak_reserved_gib
        `torch.cuda.max_memory_allocated()` and `max_memory_reserved()` of the run, over 2^30.
    memory_stats
        Instead, what `torch.cuda.memory_stats()` returned at the end of the run.

    Returns
    -------
    Calibration
        Its factor is measured over predicted at the allocated level, or at the reserved one (whose
        prediction is less certain) where only that is known.

    Raises
    ------
    ValueError
        If nothing or something twice is given, for what is not a positive number, or where
        prediction and measurement are so far apart that they cannot be of the same step.
    """
    measured = {"allocated": peak_allocated_gib, "reserved": peak_reserved_gib}
    if memory_stats is not None:
        if any(value is not None for value in measured.values()):
            raise ValueError("give memory_stats or peak_allocated_gib and peak_reserved_gib")
        if not isinstance(memory_stats, Mapping):
            raise ValueError(
                "memory_stats must be the mapping that torch.cuda.memory_stats() returns, "
                f"got {type(memory_stats).__name__}"
            )
        found = {level: memory_stats.get(key) for level, key in STATS.items()}
        if found["allocated"] is None:
            raise ValueError(f"memory_stats has no {STATS['allocated']!r}")
        sizes = {
            level: _positive(f"memory_stats[{STATS[level]!r}]", value)
            for level, value in found.items()
            if value is not None
        }
    else:
        sizes = {
            level: _positive(f"peak_{level}_gib", value) * GIB
            for level, value in measured.items()
            if value is not None
        }
    if not sizes:
        raise ValueError("give peak_allocated_gib, peak_reserved_gib or memory_stats")
    if sizes.get("reserved", math.inf) < sizes.get("allocated", 0.0):
        raise ValueError(
            f"peak reserved ({sizes['reserved'] / GIB:g} GiB) must be at least peak allocated "
            f"({sizes['allocated'] / GIB:g} GiB)"
        )
    by_name = {level.name: level for level in predicted}
    comparisons = tuple(
        Comparison(
            name,
            by_name[name].expected_bytes,
            by_name[name].low_bytes,
            by_name[name].high_bytes,
            size,
        )
        for name, size in sizes.items()
    )
    best = comparisons[0]
    if not LEAST <= best.ratio <= MOST:
        raise ValueError(
            f"measured {best.level} {best.measured_bytes / GIB:.2f} GiB is {best.ratio:.2g} times "
            f"the predicted {best.predicted_bytes / GIB:.2f} GiB; within {LEAST:g} to {MOST:g} it "
            "can be the same step"
        )
    return Calibration(best.ratio, best.level, comparisons)


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool | str) else math.nan
    except TypeError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a positive number, got {describe(value)}")
    return number
