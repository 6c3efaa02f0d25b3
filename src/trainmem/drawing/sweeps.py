"""The two sweeps: memory per GPU against GPU count, and against sequence length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon
from numpy.typing import NDArray

from trainmem.config import FIELDS, grouped, write_capacity, write_gb
from trainmem.drawing.card import card_along
from trainmem.drawing.lettering import text_width
from trainmem.drawing.panel import ROW, Panel, move, reshape
from trainmem.drawing.placing import Spot
from trainmem.drawing.style import (
    GRID_SHARE,
    TEXT,
    Theme,
    axis_ticks,
    write_binary,
    write_count,
)
from trainmem.simulation import GB, Simulation, Sweep

__all__ = ["LONGEST", "GpuPanel", "SeqPanel", "longest_sequence"]

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


class GpuPanel(SweepPanel):
    """Memory per GPU against GPU count."""

    title = "Memory per GPU vs GPU count"
    xlabel = "GPUs (log)"
    name = "num_gpus"
    areas_of = "activations", "states"

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        # A width of 1: rcParams["lines.scale_dashes"] then makes no difference.
        self.floor = self._line(theme.floor, 1, linestyle=(0, (4, 2)))
        self.arrow = self._line(theme.fits, 1.4)
        self.diamond = self._mark(theme.fits, "D", 6, theme.background, 1)
        self.capacity_label = self._label(theme.capacity)
        self.fewest_label = self._label(theme.fits)
        self.margin_label = self._label(theme.fits)
        self.floor_label = self._label(theme.floor)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over GPU counts."""
        return simulation.gpu_sweep

    @staticmethod
    def straight(x: Any) -> Any:
        """Return -1/N: sharded memory is a + b/N."""
        return -1 / x

    @staticmethod
    def write_x(x: float) -> str:
        """Write a GPU count."""
        return f"{x:g}" if x < 10_000 else write_binary(x)

    @staticmethod
    def base(parts: Any) -> Any:
        """Return the activations, which no count shrinks."""
        return parts.activations

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel."""
        super().update(simulation, top)
        move(self.floor, self.octaves, self.low)
        self.floor_name = "activation floor" if simulation.moment is None else "transient"
        self._draw_arrow(simulation)
        self._name_capacity()
        self._mark_fewest(simulation)
        self._name_margin(simulation)
        self._name_floor()
        self._name_card()

    def _draw_arrow(self, simulation: Simulation) -> None:
        """Draw the arrow between the request and the capacity."""
        color = self.theme.fits if simulation.fits else self.theme.capacity
        low, high = sorted((self.up(self.capacity), self.up(self.need)))
        self.arrow.set_visible(high - low > 12)
        self.arrow.set_color(color)
        clear = 6.0 if high - low > 16 else 0.0  # stop short of the point
        low, high = (low + clear, high) if simulation.fits else (low, high - clear)
        point = (self.octaves[-1] - self.octaves[0]) / self.places.width  # in octaves
        x, gap, wide, deep = math.log2(self.value(simulation)), math.nan, 3 * point, 4.5
        head = (x - wide, x, x + wide)
        ends = (low + deep, low, low + deep, gap, high - deep, high, high - deep)
        move(
            self.arrow,
            (x, x, gap, *head, gap, *head),
            np.array((low, high, gap, *ends)) / self.up(1),
        )
        self.span = low, high
        self.places.block(self.here - 3, low, self.here + 3, high)

    def _name_capacity(self) -> None:
        y, right = self.up(self.capacity), self.places.width
        spots = [
            Spot(x, at, ha, va)
            for x, ha in ((right, "right"), (0.0, "left"))
            for at, va in ((y + 2, "bottom"), (y - 3, "top"), (y + 2 + ROW, "bottom"))
        ]
        self.write(self.capacity_label, f"{write_capacity(self.capacity)} GB capacity", spots)

    def _mark_fewest(self, simulation: Simulation) -> None:
        """Mark the smallest GPU count that fits."""
        fewest = simulation.min_gpus_to_fit
        inside = fewest is not None and fewest <= self.ends[1]
        self.diamond.set_visible(inside)
        self.fewest_label.set_visible(fewest is not None)
        if fewest is None:
            return
        words = f"min {grouped(fewest)}"
        if not inside:
            y, right = self.up(self.capacity), self.places.width
            spots = [
                Spot(right, y + dy, "right", va)
                for dy, va in ((-4, "top"), (3, "bottom"), (-4 - ROW, "top"))
            ]
            spots += [Spot(right, y + 3 + row * ROW, "right", "bottom") for row in (1, 2)]
            self.write(self.fewest_label, f"{words} →", spots)
            return
        total = float(np.interp(self.straight(fewest), self.straight(self.x), self.high))
        move(self.diamond, (math.log2(fewest),), (total,))
        u, v = self.along(fewest), self.up(total)
        self.places.block(u - 4, v - 4, u + 4, v + 4)
        near = [
            [Spot(u + dx, v + dy, ha, va) for dy, va in ((0, "center"), (-2, "top"), (1, "bottom"))]
            for dx, ha in ((-7, "right"), (7, "left"))
        ]
        left, right_side = near if simulation.fits else reversed(near)
        far = [
            Spot(u + 2, v + dy, ha, va)
            for dy, va in ((-7, "top"), (7, "bottom"), (-7 - ROW, "top"), (7 + ROW, "bottom"))
            for ha in ("left", "right", "center")
        ]
        self.write(self.fewest_label, words, [*left, *right_side, *far])

    def _name_margin(self, simulation: Simulation) -> None:
        """Say how much is free or missing, beside the arrow."""
        low, high = self.span
        kind = "headroom" if simulation.fits else "short"
        words = f"{write_gb(abs(simulation.headroom_gb))} GB\n{kind}"
        sides = ((8.0, "left"), (-8.0, "right"))
        spots = [
            Spot(self.here + dx, low + share * (high - low), ha, "center")
            for dx, ha in sides
            for share in (0.5, 0.35, 0.65, 0.2, 0.8)
        ]
        beyond = [
            Spot(self.here + dx / 2, y, ha, va)
            for y, va in (
                (low - 8, "top"),
                (high + 8, "bottom"),
                (high + 8 + ROW, "bottom"),
                (low - 8 - ROW, "top"),
            )
            for dx, ha in (*sides, (0.0, "center"))
        ]
        if high - low < 2 * ROW + 6:
            spots, words = [], words.replace("\n", " ")
        self.margin_label.set_color(self.theme.fits if simulation.fits else self.theme.capacity)
        self.write(self.margin_label, words, [*spots, *beyond])

    def _name_floor(self) -> None:
        gb = float(self.low[-1])
        words = f"{self.floor_name} {write_gb(gb)} GB"
        y, right = self.up(gb), self.places.width
        over = self.places.on_curve(right - text_width(words, TEXT))
        self.places.block(0, y - 1, right, y + 1)
        above = (y + 2, min(over, y + 2 * ROW) + 3, y + 2 + ROW, y + 2 + 2 * ROW)
        ways = ((y - 3, "top"), *((at, "bottom") for at in above))
        spots = [
            Spot(x, at, ha, va) for x, ha in ((right, "right"), (2.0, "left")) for at, va in ways
        ]
        self.write(self.floor_label, words, spots)


class SeqPanel(SweepPanel):
    """Memory per GPU against sequence length."""

    title = "… vs sequence length"
    xlabel = "tokens (log)"
    name = "seq_length"
    areas_of = "states", "activations"

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        self.cross = self._mark(theme.capacity, "x", 7, theme.capacity, 2)
        self.cross_label = self._label(theme.capacity)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over sequence lengths."""
        return simulation.seq_sweep

    @staticmethod
    def straight(x: Any) -> Any:
        """Return s itself: activations grow with the length."""
        return x

    @staticmethod
    def base(parts: Any) -> Any:
        """Return the model states, which no length changes."""
        return parts.states

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel, with the crossing where it stops fitting."""
        super().update(simulation, top)
        longest = longest_sequence(simulation)
        low, high = self.ends
        y, right = self.up(self.capacity), self.places.width
        inside = longest is not None and low <= longest <= high
        self.cross.set_visible(inside)
        if longest is None:
            u, words = 0.0, "no length fits"
        elif longest >= LONGEST:
            u, words = right, "every length fits →"
        elif simulation.moment is not None and simulation.longest_sequence_reason:
            u, words = self.along(longest), f"ends at {write_count(longest)}"
            inside = False  # the architecture ends there, not the memory
            self.cross.set_visible(False)
        elif longest < low:
            u, words = 0.0, f"← OOM past {write_count(longest)}"
        elif longest > high:
            u, words = right, f"OOM past {write_count(longest)} →"
        else:
            u, words = self.along(longest), f"OOM past {write_count(longest)}"
            move(self.cross, (math.log2(longest),), (self.capacity,))
            self.places.block(u - 5, y - 5, u + 5, y + 5)
        aside = 6.0 if inside else 0.0
        spots = [
            Spot(u + dx, at, ha, va)
            for at, va in ((y + 4, "bottom"), (y - 5, "top"), (y + 4 + ROW, "bottom"))
            for dx, ha in ((-aside, "right"), (aside, "left"), (0.0, "center"))
        ]
        self.write(self.cross_label, words, spots)
        self._name_card()


LONGEST: Final = FIELDS["seq_length"].bounds[1]


def longest_sequence(simulation: Simulation) -> float | None:
    """Return the longest sequence that fits, or None where no length does.

    Where there is no model to ask, it is read off the sweep, or off the line through the end
    of the sweep: exact where memory is affine in the length, as in the reduced-order model.
    """
    if simulation.model is not None:
        return simulation.longest_sequence
    x, total = simulation.seq_sweep.x, simulation.seq_sweep.total_gb
    after = int(np.clip(np.searchsorted(total, simulation.gpu_capacity_gb), 1, len(x) - 1))
    (low, high), (least, most) = x[after - 1 : after + 1], total[after - 1 : after + 1]
    room = simulation.gpu_capacity_gb - least
    if most <= least:
        return LONGEST if room >= 0 else None
    longest = float(low + room * (high - low) / (most - least))
    return min(longest, LONGEST) if longest >= 1 else None


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
