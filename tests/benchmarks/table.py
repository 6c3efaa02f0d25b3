"""One table of measurements: each row beside its baseline, as a ratio with its spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

Reading = Literal["faster", "more", "of it"]
HEAD = ("measured", "here", "baseline", "against", "ratio", "target")


@dataclass(frozen=True)
class Row:
    """Measurements of one thing, and of its baseline in the same run.

    Attributes
    ----------
    what : str
        What was measured.
    unit : str
        Unit of both.
    here, baseline : sequence of float
        Measurements taken in turn, so that a busy machine slows both; `baseline` may be empty,
        or one number that was fixed beforehand.
    against : str
        What the baseline is.
    reading : {"faster", "more", "of it"}
        How the ratio reads: baseline over here for times, here over baseline for rates, here
        over baseline for what may cost up to so much.
    target : str
        What the project aims for; shown, never asserted.
    """

    what: str
    unit: str
    here: Sequence[float]
    baseline: Sequence[float] = ()
    against: str = ""
    reading: Reading = "faster"
    target: str = ""

    def ratios(self) -> np.ndarray:
        """Return the ratio of each pair, or of medians where the two aren't pairs."""
        here, there = np.array(self.here, float), np.array(self.baseline, float)
        if len(here) != len(there):
            here, there = np.median(here, keepdims=True), np.median(there, keepdims=True)
        return there / here if self.reading == "faster" else here / there

    def cells(self) -> tuple[str, ...]:
        ratio = spread(self.ratios(), "×") if len(self.baseline) else ""
        if ratio and self.reading == "faster":
            ratio += " faster"
        baseline = spread(self.baseline, self.unit) if len(self.baseline) else ""
        here = spread(self.here, self.unit)
        return (self.what, here, baseline, self.against, ratio, self.target)


def spread(values: Sequence[float] | np.ndarray, unit: str) -> str:
    """Write a median, with the quartiles where there are any."""
    low, middle, high = np.percentile(np.asarray(values, float), (25, 50, 75))
    unit = unit if unit == "×" else f" {unit}"
    if len(values) < 3 or low == high:
        return f"{short(middle)}{unit}"
    return f"{short(middle)}{unit} ({short(low)}–{short(high)})"


def short(value: float) -> str:
    """Write three digits, or all of a whole number's."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 else f"{value:.3g}"


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table, aligned."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    written = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    written.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(written)


def records(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as plain data, each measurement included."""
    return [{**asdict(row), "here": list(row.here), "baseline": list(row.baseline)} for row in rows]


def in_turn(
    subjects: Sequence[Callable[[], float]], rounds: int, warm: int = 1
) -> list[list[float]]:
    """Measure the subjects one after the other, `rounds` times; return each one's values.

    Every second round goes backwards, so that none always follows the same other.
    """
    for _ in range(warm):
        for subject in subjects:
            subject()
    found: list[list[float]] = [[] for _ in subjects]
    for turn in range(rounds):
        order = range(len(subjects)) if turn % 2 == 0 else reversed(range(len(subjects)))
        for i in order:
            found[i].append(subjects[i]())
    return found
