"""Where labels go: each takes the first of its spots where it covers nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Places", "Spot", "spread"]

Array = NDArray[np.float64]

AIR: Final = 3.0  # between two labels on one line
TOUCH: Final = 0.5  # square points: what rounding may bring together
CROSSED: Final = 150.0  # what a label on the curve counts, in square points of overlap
OUTSIDE: Final = 100.0  # what each point outside counts

ALIGNED: Final = {
    "left": 0.0, "center": 0.5, "right": 1.0, "bottom": 0.0, "top": 1.0,
}  # fmt: skip
"""Part of a label that lies before its anchor, to the left or below."""


class Spot(NamedTuple):
    """An anchor in points from the lower left corner, and how a label is aligned on it."""

    x: float
    y: float
    ha: str
    va: str


class Box(NamedTuple):
    """A rectangle, points from the lower left corner."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, others: Iterable[Box]) -> float:
        """Return the area that it shares with others."""
        left, bottom, right, top = self
        shared = 0.0
        for low, base, high, ceiling in others:  # most are apart: unpacked, and asked that first
            if low < right and left < high and base < top and bottom < ceiling:
                width = min(right, high) - max(left, low)
                shared += width * (min(top, ceiling) - max(bottom, base))
        return shared


class Places:
    """The free room of a panel.

    Parameters
    ----------
    width, height : float
        Of the panel, points.
    spill : float
        How far labels may reach over the right rim, points.
    """

    def __init__(self, width: float, height: float, spill: float) -> None:
        self.width = width
        self.height = height
        self.spill = spill
        self.taken: list[Box] = []
        self.curve: Array | None = None  # heights at even steps from rim to rim, points

    def block(self, left: float, bottom: float, right: float, top: float) -> None:
        """Keep labels out of a rectangle."""
        self.taken.append(Box(left, bottom, right, top))

    def take(self, width: float, height: float, spots: Iterable[Spot]) -> Spot | None:
        """Return the first spot where a label covers nothing, else the best that is free.

        One on the curve or over a rim is free; None where each would cover a mark or a label.
        """
        least = float("inf")
        for spot in spots:
            box = _box(width, height, spot)
            cost = self._cost(box)
            if cost < least and box.overlap(self.taken) <= TOUCH:
                least, best, place = cost, spot, box
            if cost <= 0:
                break
        if least == float("inf"):
            return None
        self.taken.append(place._replace(left=place.left - AIR, right=place.right + AIR))
        return best

    def fits(self, width: float, height: float, spot: Spot) -> bool:
        """Return whether a label at a spot covers nothing."""
        return self._cost(_box(width, height, spot)) <= 0

    def _cost(self, box: Box) -> float:
        cost = box.overlap(self.taken)
        beyond = (
            -box.left,
            box.right - self.width - self.spill,
            -box.bottom,
            box.top - self.height,
        )
        cost += OUTSIDE * max(0.0, *beyond)
        if self.curve is not None:
            # Curves rise or fall throughout: one crosses a box unless both its ends are on a side.
            low, high = sorted((self.on_curve(box.left), self.on_curve(box.right)))
            if low < box.top and high > box.bottom:
                cost += CROSSED
        return cost

    def on_curve(self, x: float) -> float:
        """Return the height of the curve at x points from the left rim, 0 where there is none."""
        if self.curve is None:
            return 0.0
        last = len(self.curve) - 1
        return float(self.curve[min(max(round(x / self.width * last), 0), last)])


def _box(width: float, height: float, spot: Spot) -> Box:
    left = spot.x - ALIGNED[spot.ha] * width
    bottom = spot.y - ALIGNED[spot.va] * height
    return Box(left, bottom, left + width, bottom + height)


def spread(heights: Array, gap: float, low: float, high: float) -> Array:
    """Return rising `heights` moved apart to at least `gap`, as little as may be, in a range."""
    steps = np.arange(len(heights)) * gap
    slack = heights - steps
    up = np.maximum.accumulate(slack)
    down = np.minimum.accumulate(slack[::-1])[::-1]
    apart: Array = np.clip((up + down) / 2, low, max(low, high - steps[-1])) + steps
    return apart
