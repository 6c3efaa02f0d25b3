"""What both sweeps share: areas under a curve over a log axis, the capacity, the request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon
from numpy.typing import NDArray

from trainmem.picture.card import card_along
from trainmem.picture.lettering import text_width
from trainmem.picture.panel import ROW, Panel, move, reshape
from trainmem.picture.placing import Spot
from trainmem.picture.style import (
    GRID_SHARE,
    TEXT,
    Theme,
    axis_ticks,
    write_binary,
)
from trainmem.simulation import GB, Simulation
from trainmem.sweeps import Sweep

__all__ = ["SweepPanel", "curve_points"]

Array = NDArray[np.float64]

CURVE_POINTS: Final = 128
FAR: Final = 20.0  # heights of the panel: where curves end, as Agg refuses vast coordinates


class SweepPanel(Panel):
    """Memory along one input on a log axis: two areas, the curve, the capacity, the request."""

    name: Literal["num_gpus", "seq_length"]  # of the input
    areas_of: tuple[str, str]  # what the lower and the upper area show: attributes of a theme

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        ax.set_xscale("log", base=2)
        # Artists hold log2(x): matplotlib's own logarithm costs more than all else they do.
        self.transform = ax.transLimits + ax.transAxes
        self.card = self._area(theme.card, zorder=0.8)
        self.rims = [self._line(theme.rim, 0.8, zorder=0.9) for _ in range(2)]
        self.areas = [self._area(getattr(theme, name)) for name in self.areas_of]
        # The axis' own grid would be background, hidden by the areas in a frame.
        self.grid = self._line(theme.ink, 1, zorder=1.5, alpha=GRID_SHARE)
        self.limit = self._line(theme.capacity, 1.5)
        self.total = self._line(theme.ink, 1.8, zorder=3)
        self.point = self._mark(theme.ink, "o", 8, theme.background, 1.2)
        self.card_label = self._label(theme.muted)

    def _area(self, color: Any, zorder: float = 1) -> Any:
        return self._add(
            Polygon(
                [(1, 0)], closed=True, facecolor=color, edgecolor="none", linewidth=0,
                linestyle="-", antialiased=True, zorder=zorder, transform=self.transform,
            )
        )  # fmt: skip

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep shown."""
        raise NotImplementedError

    def value(self, simulation: Simulation) -> float:
        """Return the request's x."""
        return float(getattr(simulation.config, self.name))

    @staticmethod
    def straight(x: Any) -> Any:
        """Return a measure of x, rising, along which memory is a straight line."""
        raise NotImplementedError

    @staticmethod
    def write_x(x: float) -> str:
        """Write a tick of the x axis."""
        return write_binary(x)

    def range(self, simulation: Simulation) -> tuple[float, float]:
        """Return the ends of the sweep."""
        x = self.sweep(simulation).x
        return float(x[0]), float(x[-1])

    def ticks(self, ends: tuple[float, float]) -> tuple[Sequence[float], Sequence[str]]:
        """Return a tick every three octaves or more, and one at the end."""
        low, high = ends
        octaves = round(math.log2(high / low))
        step = 3 * math.ceil(octaves / 15)
        values = [low * 2**i for i in range(0, octaves - step // 2, step)] + [high]
        return values, [self.write_x(value) for value in values]

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the areas, the curve, the capacity and the request."""
        super().update(simulation, top)
        self.ends = self.range(simulation)
        self.octaves, self.x = curve_points(*self.ends)
        base, total = self._curves(simulation)
        self._draw_card(card_along(simulation, self.name, self.octaves, total), FAR * top)
        low, high = np.minimum(base, FAR * top), np.minimum(total, FAR * top)
        self.low, self.high = low, high
        for area, floor, ceiling in zip(self.areas, (0 * low, low), (low, high), strict=True):
            reshape(area, _outline(self.octaves, floor, ceiling))
        move(self.total, self.octaves, high)
        heights = axis_ticks(top)
        left, right = self.octaves[0], self.octaves[-1]
        move(self.grid, (left, right, math.nan) * len(heights), np.repeat(heights, 3))
        move(self.limit, (left, right), (self.capacity, self.capacity))
        here = self.value(simulation)
        move(self.point, (math.log2(here),), (self.need,))

        self.here = self.along(here)
        line, y = self.up(self.capacity), self.up(self.need)
        self.places.curve = self.up(1) * high
        self.places.block(0, line - 1, self.places.width, line + 1)
        self.places.block(self.here - 5, y - 5, self.here + 5, y + 5)

    def _draw_card(self, band: tuple[Array, Array] | None, most: float) -> None:
        """Draw what the card may show as a band; its label comes last, where room is left."""
        for artist in (self.card, *self.rims, self.card_label):
            artist.set_visible(band is not None)
        self.band = None if band is None else np.minimum(band, most)
        if self.band is not None:
            reshape(self.card, _outline(self.octaves, *self.band))
            for rim, gb in zip(self.rims, self.band, strict=True):
                move(rim, self.octaves, gb)

    def _name_card(self) -> None:
        """Name the band: inside where it is thick and flat enough, else along its upper rim."""
        if self.band is None:
            return
        words, places = "card, likely", self.places
        width, (low, high) = text_width(words, TEXT), self.up(1) * self.band
        last = CURVE_POINTS - 1
        reach = math.ceil(width / places.width * last)
        inside, above = [], []
        for i in range(0, last - reach, 4):
            floor, ceiling = low[[i, i + reach]].max(), high[[i, i + reach]].min()
            x = i / last * places.width
            if ceiling - floor >= ROW + 4:
                inside.append(Spot(x, (floor + ceiling) / 2, "left", "center"))
            above.append(Spot(x, high[[i, i + reach]].max() + 1, "left", "bottom"))
        spots = [spot for spot in (*inside, *above) if places.fits(width, ROW, spot)]
        self.card_label.set_visible(bool(spots))
        if spots:
            self.write(self.card_label, words, spots[:1])

    def _curves(self, simulation: Simulation) -> tuple[Array, Array]:
        """Return the lower area's top and the total at `self.x`, GB.

        Through the sweep and the request itself, so that the point lies on the curve.
        """
        sweep, own, here = self.sweep(simulation), simulation.components, self.value(simulation)
        place = int(np.searchsorted(sweep.x, here))

        def joined(along: Array, value: float) -> Array:
            return np.concatenate((along[:place], (value,), along[place:]))

        known, wanted = self.straight(joined(sweep.x, here)), self.straight(self.x)

        def through(along: Any, value: float) -> Array:
            if np.ndim(along) == 0:  # a part that the sweep doesn't change
                return np.full(CURVE_POINTS, along / GB)
            return np.asarray(np.interp(wanted, known, joined(along, value)) / GB)

        parts = sweep.components
        return through(self.base(parts), self.base(own)), through(parts.total, own.total)

    @staticmethod
    def base(parts: Any) -> Any:
        """Return what the lower area shows, bytes."""
        raise NotImplementedError

    def along(self, x: float) -> float:
        """Return the distance of x from the left rim, points."""
        low, high = self.ends
        return math.log(x / low) * self.places.width / math.log(high / low)


@lru_cache(maxsize=64)
def curve_points(low: float, high: float) -> tuple[Array, Array]:
    """Return the log2(x), evenly spaced, at which a curve is drawn, and the x."""
    octaves = np.linspace(math.log2(low), math.log2(high), CURVE_POINTS)
    x = np.exp2(octaves)
    octaves.flags.writeable = x.flags.writeable = False
    return octaves, x


def _outline(x: Array, low: Array, high: Array) -> Array:
    """Return the outline of the area between two curves, shape (2n, 2)."""
    n = len(x)
    outline = np.empty((2 * n, 2))
    outline[:n, 0], outline[n:, 0] = x, x[::-1]
    outline[:n, 1], outline[n:, 1] = low, high[::-1]
    return outline
