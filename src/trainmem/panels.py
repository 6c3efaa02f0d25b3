"""The three panels of the figure, each a matplotlib `Axes` with artists that can move.

A panel is styled once, scaled when an axis changes, and updated for each simulation: `scale`
touches what a frame renderer keeps as its background, `update` only the artists in `moving`.
Every property is set explicitly, so `rcParams` and style sheets change nothing here. One point
is one CSS pixel; labels are placed in points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from trainmem.config import FIELDS, grouped
from trainmem.lettering import LINE, Label, font, text_width
from trainmem.placing import Places, Spot, spread
from trainmem.simulation import GB, Simulation, Sweep
from trainmem.style import (
    ACTIVATIONS_FILL,
    COLORS,
    STATES_FILL,
    TEXT,
    Theme,
    axis_ticks,
    write_binary,
    write_capacity,
    write_count,
    write_gb,
    write_tick,
)

__all__ = ["BudgetPanel", "GpuPanel", "Panel", "SeqPanel", "longest_sequence"]

Array = NDArray[np.float64]

BAR: Final = 44.0  # points, the budget's bar with its margins
CURVE_POINTS: Final = 160
FAR: Final = 20.0  # heights of the panel: where curves end, as Agg refuses vast coordinates
ROW: Final = LINE * TEXT


class Panel:
    """An axes of the figure with its theme and its moving artists.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    theme : Theme
        Colours.
    spill : float
        How far labels may reach over the right rim, points.
    """

    title = ""
    xlabel = ""

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        self.ax = ax
        self.theme = theme
        self.spill = spill
        self.moving: list[Any] = []
        ax.set_facecolor(theme.background)
        ax.set_axisbelow(True)
        ax.set_autoscale_on(False)
        ax.spines[:].set_visible(False)
        ax.tick_params(
            axis="both", which="both", length=0, pad=4, labelcolor=theme.muted, labelsize=TEXT,
            labelrotation=0, bottom=False, top=False, left=False, right=False,
            labelbottom=True, labeltop=False, labelright=False,
        )  # fmt: skip
        ax.grid(False, which="both", axis="both")
        ax.grid(
            True, which="major", axis="y", color=theme.grid, linewidth=1, linestyle="-", alpha=1
        )
        ax.set_title(
            self.title, loc="left", y=1.0, pad=8, color=theme.ink, fontproperties=font(11, "bold")
        )
        ax.set_xlabel(
            self.xlabel, loc="center", labelpad=3, color=theme.muted, fontproperties=font(TEXT)
        )

    def range(self, simulation: Simulation) -> tuple[float, float]:
        """Return the ends of the x axis."""
        raise NotImplementedError

    def ticks(self, ends: tuple[float, float]) -> tuple[Sequence[float], Sequence[str]]:
        """Return the x axis' ticks and their labels."""
        raise NotImplementedError

    def scale(self, simulation: Simulation, top: float) -> None:
        """Set both axes: all that isn't in `moving`."""
        ax, ends = self.ax, self.range(simulation)
        ax.set_xlim(*ends)
        ax.set_ylim(0, top)
        ax.set_xticks(*self.ticks(ends))
        heights = axis_ticks(top)
        ax.set_yticks(heights, [write_tick(gb) for gb in heights])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
            for label in axis.get_ticklabels():  # new ones come with the user's rcParams
                label.set(fontproperties=font(TEXT), usetex=False, antialiased=True)

    def update(self, simulation: Simulation, top: float) -> None:
        """Move the artists to show `simulation`."""
        points = 72 / self.ax.get_figure(root=True).dpi  # type: ignore[union-attr]
        box = self.ax.bbox
        self.places = Places(box.width * points, box.height * points, self.spill)
        self.top = top
        self.capacity = simulation.gpu_capacity_gb
        self.need = float(simulation.components.total) / GB

    def up(self, gb: float) -> float:
        """Return the height of `gb`, points."""
        return gb * self.places.height / self.top

    def write(self, label: Label, words: str, spots: Sequence[Spot]) -> None:
        """Write `words` at the best of `spots`."""
        height = ROW * (1 + words.count("\n"))
        spot = self.places.take(text_width(words, TEXT), height, spots)
        label.set_text(words)
        label.set_position((spot.x / self.places.width, spot.y / self.places.height))
        label.set_horizontalalignment(spot.ha)  # type: ignore[arg-type]
        label.set_verticalalignment(spot.va)  # type: ignore[arg-type]

    # Artists with every property given.

    def _add(self, artist: Any, *, clip: bool = True) -> Any:
        self.ax.add_artist(artist)
        artist.set_clip_on(clip)
        self.moving.append(artist)
        return artist

    def _area(self, color: Any) -> Any:
        return self._add(
            Polygon(
                [(1, 0)], closed=True, facecolor=color, edgecolor="none", linewidth=0,
                linestyle="-", antialiased=True, zorder=1,
            )
        )  # fmt: skip

    def _line(self, color: str, width: float, zorder: float = 2, **style: Any) -> Any:
        look: dict[str, Any] = {
            "linestyle": "-", "marker": "None", "markersize": 6, "markeredgewidth": 0,
            "markerfacecolor": color, "markeredgecolor": color,
        }  # fmt: skip
        return self._add(
            Line2D(
                [], [], color=color, linewidth=width, antialiased=True, zorder=zorder,
                solid_capstyle="butt", solid_joinstyle="round", dash_capstyle="butt",
                dash_joinstyle="round", drawstyle="default", fillstyle="full", **(look | style),
            )
        )  # fmt: skip

    def _mark(self, color: str, marker: Any, size: float, edge: str, width: float) -> Any:
        mark = self._line(
            color, 0, zorder=4, linestyle="None", marker=marker, markersize=size,
            markeredgecolor=edge, markeredgewidth=width,
        )  # fmt: skip
        mark.set_clip_on(False)  # whole, even on the rim
        return mark

    def _label(self, color: str) -> Label:
        label = Label(color, TEXT, zorder=5, transform=self.ax.transAxes)
        self._add(label, clip=False)
        return label


class SweepPanel(Panel):
    """Memory along one input on a log axis: two areas, the curve, the capacity, the request."""

    lower: Any  # fill colours of the two areas
    upper: Any

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        ax.set_xscale("log", base=2)
        self.areas = self._area(self.lower), self._area(self.upper)
        self.limit = self._line(theme.capacity, 1.5)
        self.total = self._line(theme.ink, 1.8, zorder=3)
        self.point = self._mark(theme.ink, "o", 8, theme.background, 1.2)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep shown."""
        raise NotImplementedError

    def value(self, simulation: Simulation) -> float:
        """Return the request's x."""
        raise NotImplementedError

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
        self.x = curve_points(*self.ends)
        low, high = (np.minimum(gb, FAR * top) for gb in self._curves(simulation))
        self.low, self.high = low, high
        for area, floor, ceiling in zip(self.areas, (0 * low, low), (low, high), strict=True):
            area.set_xy(_outline(self.x, floor, ceiling))
        self.total.set_data(self.x, high)
        self.limit.set_data(self.ends, (self.capacity, self.capacity))
        here = self.value(simulation)
        self.point.set_data([here], [self.need])

        self.here = self.along(here)
        line, y = self.up(self.capacity), self.up(self.need)
        self.places.curve = self.along(self.x), self.up(1) * high
        self.places.block(0, line - 1, self.places.width, line + 1)
        self.places.block(self.here - 5, y - 5, self.here + 5, y + 5)

    def _curves(self, simulation: Simulation) -> tuple[Array, Array]:
        """Return the lower area's top and the total along `self.x`, GB.

        Through the sweep and the request itself, so that the point lies on the curve.
        """
        sweep, own = self.sweep(simulation), simulation.components
        known, first = np.unique(np.append(sweep.x, self.value(simulation)), return_index=True)
        places, wanted = self.straight(known), self.straight(self.x)

        def through(along: Any, here: Any) -> Array:
            values = np.append(np.broadcast_to(along, sweep.x.shape), here)[first]
            return np.interp(wanted, places, values) / GB

        parts = sweep.components
        return through(self.base(parts), self.base(own)), through(parts.total, own.total)

    @staticmethod
    def base(parts: Any) -> Any:
        """Return what the lower area shows, bytes."""
        raise NotImplementedError

    def along(self, x: Any) -> Any:
        """Return the distance of x from the left rim, points."""
        low, high = self.ends
        return np.log(x / low) * (self.places.width / math.log(high / low))


class GpuPanel(SweepPanel):
    """Memory per GPU against GPU count."""

    title = "Memory per GPU vs GPU count"
    xlabel = "GPUs (log)"
    lower = ACTIVATIONS_FILL
    upper = STATES_FILL

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        # A width of 1: rcParams["lines.scale_dashes"] then makes no difference.
        self.floor = self._line(theme.floor, 1, linestyle=(0, (4, 2)))
        self.stem = self._line(theme.fits, 1.4)
        self.heads = [self._mark(theme.fits, marker, 5.5, "none", 0) for marker in (6, 7)]
        self.diamond = self._mark(theme.fits, "D", 6, theme.background, 1)
        self.capacity_label = self._label(theme.capacity)
        self.fewest_label = self._label(theme.fits)
        self.margin_label = self._label(theme.fits)
        self.floor_label = self._label(theme.floor)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over GPU counts."""
        return simulation.gpu_sweep

    def value(self, simulation: Simulation) -> float:
        """Return the request's GPU count."""
        return simulation.config.num_gpus

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
        self.floor.set_data(self.x, self.low)
        self._draw_arrow(simulation)
        self._name_capacity()
        self._mark_fewest(simulation)
        self._name_margin(simulation)
        self._name_floor()

    def _draw_arrow(self, simulation: Simulation) -> None:
        """Draw the arrow between the request and the capacity."""
        color = self.theme.fits if simulation.fits else self.theme.capacity
        low, high = sorted((self.up(self.capacity), self.up(self.need)))
        shown = high - low > 12
        clear = 6.0 if high - low > 16 else 0.0  # stop short of the point
        low, high = (low + clear, high) if simulation.fits else (low, high - clear)
        gb, here = self.top / self.places.height, self.value(simulation)
        self.stem.set(color=color, visible=shown, data=((here, here), (low * gb, high * gb)))
        for head, y in zip(self.heads, (high, low), strict=True):
            head.set(markerfacecolor=color, visible=shown, data=([here], [y * gb]))
        self.arrow = low, high
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
        self.diamond.set_data([fewest], [total])
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
        low, high = self.arrow
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
                (low - 8, "top"), (high + 8, "bottom"), (high + 8 + ROW, "bottom"),
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
        words = f"activation floor {write_gb(gb)} GB"
        y, right = self.up(gb), self.places.width
        assert self.places.curve is not None  # noqa: S101  # set by update
        over = float(np.interp(right - text_width(words, TEXT), *self.places.curve))
        self.places.block(0, y - 1, right, y + 1)
        ways = ((y - 3, "top"), (y + 2, "bottom"), (over + 3, "bottom"), (y + 2 + ROW, "bottom"), (y + 2 + 2 * ROW, "bottom"))
        spots = [
            Spot(x, at, ha, va) for x, ha in ((right, "right"), (2.0, "left")) for at, va in ways
        ]
        self.write(self.floor_label, words, spots)


class SeqPanel(SweepPanel):
    """Memory per GPU against sequence length."""

    title = "… vs sequence length"
    xlabel = "tokens (log)"
    lower = STATES_FILL
    upper = ACTIVATIONS_FILL

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        self.cross = self._mark(theme.capacity, "x", 7, theme.capacity, 2)
        self.cross_label = self._label(theme.capacity)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over sequence lengths."""
        return simulation.seq_sweep

    def value(self, simulation: Simulation) -> float:
        """Return the request's sequence length."""
        return simulation.config.seq_length

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
        elif longest < low:
            u, words = 0.0, f"← OOM past {write_count(longest)}"
        elif longest > high:
            u, words = right, f"OOM past {write_count(longest)} →"
        else:
            u, words = self.along(longest), f"OOM past {write_count(longest)}"
            self.cross.set_data([longest], [self.capacity])
            self.places.block(u - 5, y - 5, u + 5, y + 5)
        aside = 6.0 if inside else 0.0
        spots = [
            Spot(u + dx, at, ha, va)
            for at, va in ((y + 4, "bottom"), (y - 5, "top"), (y + 4 + ROW, "bottom"))
            for dx, ha in ((-aside, "right"), (aside, "left"), (0.0, "center"))
        ]
        self.write(self.cross_label, words, spots)


LONGEST: Final = FIELDS["seq_length"].bounds[1]


def longest_sequence(simulation: Simulation) -> float | None:
    """Return the longest sequence that fits; read off the sweep where no model can be asked."""
    if simulation.model is not None:
        return simulation.longest_sequence
    x, total = simulation.seq_sweep.x, simulation.seq_sweep.total_gb
    above = total > simulation.gpu_capacity_gb
    if above[0]:
        return None
    if not above.any():
        return LONGEST
    i = int(np.argmax(above))
    return float(np.interp(simulation.gpu_capacity_gb, total[i - 1 : i + 1], x[i - 1 : i + 1]))


class BudgetPanel(Panel):
    """The GPU's memory as a stacked bar, each part named beside it."""

    title = "HBM budget"

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        # Ticks as long as the bar is wide stand in for a grid: no line strikes a label.
        ax.grid(False, which="both", axis="both")
        ax.tick_params(
            axis="y", which="major", left=True, direction="in", length=BAR, width=1,
            color=theme.grid,
        )  # fmt: skip
        self.parts = {
            name: self._part(facecolor=COLORS[name], edgecolor="none")
            for name in ("optimizer", "gradients", "weights", "activations")
        }
        self.free = self._part(facecolor=theme.free, edgecolor=theme.background, hatch="////")
        self.limit = self._line(theme.capacity, 1.5, zorder=3)
        self.leaders = self._line(theme.muted, 0.8)
        self.labels = [self._label(theme.ink) for _ in range(5)]

    def _part(self, **style: Any) -> Any:
        part = Rectangle(
            (0, 0), 1, 0, linestyle="-", linewidth=0, antialiased=True, zorder=1, **style
        )
        return self._add(part)

    def range(self, simulation: Simulation) -> tuple[float, float]:
        """Return the ends of the x axis."""
        return 0.0, 1.0

    def ticks(self, ends: tuple[float, float]) -> tuple[Sequence[float], Sequence[str]]:
        """Return none."""
        return [], []

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel."""
        super().update(simulation, top)
        width, height = self.places.width, self.places.height
        left, right, end = 7 / width, (BAR - 7) / width, BAR / width
        base = 0.0
        named: list[tuple[float, str]] = []
        free = max(0.0, self.capacity - self.need)
        sizes = {name: float(getattr(simulation.components, name)) / GB for name in self.parts}
        for name, size in (sizes | {"free": free}).items():
            part = self.parts.get(name, self.free)
            part.set_bounds(left, base, right - left, size)
            if size > 0:
                short = "grads" if name == "gradients" else name
                named.append((base + size / 2, f"{short} {write_gb(size)}"))
            base += size
        self.limit.set_data((0, end), (self.capacity, self.capacity))

        middles = np.array([gb for gb, _ in named])
        heights = spread(self.up(1) * middles, 1.3 * TEXT, TEXT / 2, height - TEXT / 2)
        for label in self.labels:
            label.set_visible(False)
        for label, y, (_, words) in zip(self.labels, heights, named, strict=False):
            color = self.theme.fits if words.startswith("free") else self.theme.ink
            label.set(
                visible=True, text=words, color=color, ha="left", va="center",
                position=((BAR + 8) / width, y / height),
            )  # fmt: skip
        bent = heights / self.up(1)
        xs = np.tile((right, end, (BAR + 5) / width, math.nan), len(named))
        self.leaders.set_data(xs, np.column_stack((middles, middles, bent, bent)).ravel())


@lru_cache(maxsize=64)
def curve_points(low: float, high: float) -> Array:
    """Return the x at which a curve is drawn."""
    points = np.geomspace(low, high, CURVE_POINTS)
    points.flags.writeable = False
    return points


def _outline(x: Array, low: Array, high: Array) -> Array:
    """Return the outline of the area between two curves, shape (2n, 2)."""
    return np.column_stack((np.append(x, x[::-1]), np.append(low, high[::-1])))
