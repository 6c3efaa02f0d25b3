"""The three panels of the figure, each a matplotlib `Axes` with artists that can move.

A panel is styled once, scaled when an axis changes, and updated for each simulation: `scale`
touches what a frame renderer keeps as its background, `update` only the artists in `moving`.
Every property is set explicitly, so `rcParams` and style sheets change nothing here. One point
is one CSS pixel; labels are placed in points, on axes fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from trainmem.config import FIELDS, grouped
from trainmem.reduced import Components
from trainmem.simulation import Simulation, Sweep

Array = NDArray[np.float64]

GB: Final = 1e9
TEXT: Final = 10.0  # points; nothing is written smaller
GAP: Final = 4.0  # points between a label and what it names
BAR: Final = 44.0  # points, the budget's bar with its margins
CURVE_POINTS: Final = 160


@dataclass(frozen=True)
class Theme:
    """Colours of one theme; text ones have a contrast of at least 4.5 on the background."""

    background: str
    ink: str
    muted: str
    grid: str
    capacity: str
    fits: str
    floor: str
    free: str


THEMES: Final[Mapping[str, Theme]] = {
    "light": Theme(
        background="#ffffff", ink="#1f2328", muted="#5b636d", grid="#e6e8eb",
        capacity="#c4302b", fits="#1a7f37", floor="#8f5200", free="#dfe2e6",
    ),
    "dark": Theme(
        background="#111318", ink="#f0f3f6", muted="#9aa2ac", grid="#2a2f37",
        capacity="#ff6b6b", fits="#3fb950", floor="#f0a04b", free="#333942",
    ),
}  # fmt: skip

COLORS: Final[Mapping[str, str]] = {
    "weights": "#4c8dd6",
    "gradients": "#7cc4e8",
    "optimizer": "#2f5f9e",
    "activations": "#e8912d",
}
"""One colour for each component, everywhere and in both themes."""

STATES_FILL: Final = to_rgba(COLORS["weights"], 0.22)
ACTIVATIONS_FILL: Final = to_rgba(COLORS["activations"], 0.28)


def font(size: float = TEXT, weight: str = "normal") -> FontProperties:
    """Return the font that ships with matplotlib, every property set."""
    return FontProperties(
        family="DejaVu Sans", style="normal", variant="normal", weight=weight, stretch="normal",
        size=size,
    )  # fmt: skip


# Axis tops and their tick steps, in units of a power of ten.
TOPS: Final = (
    (1.0, 0.2), (1.2, 0.2), (1.5, 0.3), (1.8, 0.2), (2.0, 0.4), (2.4, 0.4), (3.0, 0.5),
    (4.0, 1.0), (5.0, 1.0), (6.0, 1.0), (8.0, 2.0), (10.0, 2.0),
)  # fmt: skip


def axis_top(simulation: Simulation) -> float:
    """Return the top of the shared axis, GB: round, ≥ 1.5 × capacity, above the request.

    Steps are coarse on purpose: the axis stays where it is while a slider moves a little.
    """
    need = max(1.5 * simulation.gpu_capacity_gb, 1.06 * float(simulation.components.total) / GB)
    power = 10.0 ** math.floor(math.log10(need))
    return float(next(power * top for top, _ in TOPS if power * top >= need * (1 - 1e-9)))


def axis_ticks(top: float) -> list[float]:
    """Return the ticks from 0 to `top`, both included: 4 to 9 round steps."""
    power = 10.0 ** math.floor(math.log10(top * (1 + 1e-9)))
    step = power * min(TOPS, key=lambda row: abs(row[0] - top / power))[1]
    return [i * step for i in range(round(top / step) + 1)]


def write_gb(gb: float) -> str:
    """Write GB for a label: ``55.1``, ``0.02``, ``16 200``, ``2.3×10¹³``."""
    size = abs(gb)
    if size >= 1e7:
        return _scientific(gb)
    if size >= 9999.95:
        return grouped(round(gb))
    return f"{gb:.1f}" if size >= 0.05 or gb == 0 else f"{gb:.2g}"


def write_capacity(gb: float) -> str:
    """Write a capacity: ``80``, ``84.9``, ``0.1``."""
    text = write_gb(gb)
    return text.removesuffix(".0")


def write_tick(gb: float) -> str:
    """Write a tick of the GB axis: ``120``, ``0.05``, ``150k``."""
    if gb >= 1e7:
        return _scientific(gb)
    return f"{gb / 1000:g}k" if gb >= 10_000 else f"{gb:g}"


def write_count(count: float) -> str:
    """Write a number of tokens to three digits: ``600``, ``29.6k``, ``4.19M``."""
    if count < 10_000:
        return f"{count:.0f}"
    unit, letter = (1e6, "M") if count >= 999_500 else (1e3, "k")
    return f"{count / unit:.3g}{letter}"


def write_binary(count: float) -> str:
    """Write a power of two as people say it: ``512``, ``4k``, ``128k``, ``16M``."""
    for unit, letter in ((2**20, "M"), (2**10, "k")):
        if count >= unit:
            return f"{count / unit:g}{letter}"
    return f"{count:g}"


def _scientific(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa.removesuffix('.0')}×10{raised}"


@dataclass(frozen=True)
class Box:
    """A rectangle in points from the panel's lower left corner."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the common area, square points."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)


Spot = tuple[float, float, str, str]  # x, y in points, horizontal and vertical alignment


class Panel:
    """An axes of the figure, with its theme, its moving artists and its labels' places."""

    title = ""
    xlabel = ""

    def __init__(self, ax: Axes, theme: Theme) -> None:
        self.ax = ax
        self.theme = theme
        self.moving: list[Any] = []
        self.taken: list[Box] = []
        self.curve: tuple[Array, Array] | None = None
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
            self.xlabel, loc="center", labelpad=3, color=theme.muted, fontproperties=font(10.5)
        )

    # The artists, each with every property given.

    def _add(self, artist: Any, *, clip: bool = True) -> Any:
        self.ax.add_artist(artist)
        artist.set_clip_on(clip)
        self.moving.append(artist)
        return artist

    def _fill(self, color: Any) -> Polygon:
        polygon = Polygon(
            [(1, 0)], closed=True, facecolor=color, edgecolor="none", linewidth=0,
            linestyle="-", antialiased=True, zorder=1,
        )  # fmt: skip
        return self._add(polygon)  # type: ignore[no-any-return]

    def _line(self, color: str, width: float, zorder: float = 2, **style: Any) -> Line2D:
        look: dict[str, Any] = {
            "linestyle": "-", "marker": "None", "markersize": 6, "markeredgewidth": 0,
            "markerfacecolor": color, "markeredgecolor": color,
        }  # fmt: skip
        line = Line2D(
            [], [], color=color, linewidth=width, antialiased=True, zorder=zorder,
            solid_capstyle="butt", solid_joinstyle="round", dash_capstyle="butt",
            dash_joinstyle="round", drawstyle="default", fillstyle="full", **(look | style),
        )  # fmt: skip
        return self._add(line)  # type: ignore[no-any-return]

    def _mark(self, color: str, marker: str, size: float, edge: str, width: float) -> Line2D:
        line = self._line(
            color, 0, zorder=4, linestyle="None", marker=marker, markersize=size,
            markeredgecolor=edge, markeredgewidth=width,
        )  # fmt: skip
        line.set_clip_on(False)  # whole, even on the rim of the panel
        return line

    def _label(self, color: str) -> Text:
        text = Text(
            0, 0, "", color=color, fontproperties=font(), usetex=False, parse_math=False,
            antialiased=True, linespacing=1.2, rotation=0, wrap=False, zorder=5,
            transform=self.ax.transAxes,
        )  # fmt: skip
        return self._add(text, clip=False)  # type: ignore[no-any-return]

    # Where things are, in points.

    def measure(self) -> None:
        """Read the panel's size and forget where the last labels were."""
        points_per_pixel = 72 / self.ax.get_figure(root=True).dpi  # type: ignore[union-attr]
        self.width = self.ax.bbox.width * points_per_pixel
        self.height = self.ax.bbox.height * points_per_pixel
        self.taken.clear()
        self.curve = None

    def block(self, left: float, bottom: float, right: float, top: float) -> None:
        """Keep labels out of a rectangle."""
        self.taken.append(Box(left, bottom, right, top))

    def write(self, text: Text, words: str, spots: Iterable[Spot]) -> None:
        """Write `words` at the first spot where they cover nothing, else the least bad one."""
        lines = words.split("\n")
        width = 0.62 * TEXT * max(map(len, lines))
        height = 1.2 * TEXT * len(lines)
        best: tuple[float, Spot, Box] | None = None
        for spot in spots:
            x, y, ha, va = spot
            left = x - {"left": 0.0, "center": width / 2, "right": width}[ha]
            bottom = y - {"bottom": 0.0, "center": height / 2, "top": height}[va]
            box = Box(left, bottom, left + width, bottom + height)
            cost = self._cost(box)
            if best is None or cost < best[0]:
                best = cost, spot, box
            if cost == 0:
                break
        assert best is not None  # noqa: S101  # every label has a spot
        _, (x, y, ha, va), box = best
        self.taken.append(box)
        text.set_text(words)
        text.set_position((x / self.width, y / self.height))
        text.set_horizontalalignment(ha)  # type: ignore[arg-type]
        text.set_verticalalignment(va)  # type: ignore[arg-type]
        text.set_visible(True)

    def _cost(self, box: Box) -> float:
        """Return what a label there would cover, in square points."""
        cost = sum(box.overlap(other) for other in self.taken)
        outside = max(0.0, -box.left, box.right - self.width, -box.bottom, box.top - self.height)
        cost += 1000 * outside
        if self.curve is not None:
            x, y = self.curve
            crossed = np.interp((box.left, (box.left + box.right) / 2, box.right), x, y)
            # The curve is monotone: it crosses the box where it enters on one side of it.
            if crossed.min() < box.top and crossed.max() > box.bottom:
                cost += 100
        return cost

    # The two axes.

    def range(self, simulation: Simulation) -> tuple[float, float]:
        """Return the ends of the x axis."""
        return 0.0, 1.0

    def ticks(self, ends: tuple[float, float]) -> tuple[Sequence[float], Sequence[str]]:
        """Return the x axis' ticks and their labels."""
        return [], []

    def scale(self, simulation: Simulation, top: float) -> None:
        """Set both axes: all that is not in `moving`."""
        ax = self.ax
        ends = self.range(simulation)
        ax.set_xlim(*ends)
        ax.set_ylim(0, top)
        ax.set_xticks(*self.ticks(ends))
        heights = axis_ticks(top)
        ax.set_yticks(heights, [write_tick(gb) for gb in heights])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
            for label in axis.get_ticklabels():  # new ticks come with the user's rcParams
                label.set(fontproperties=font(), usetex=False, antialiased=True)
        for label in (*ax.get_xticklabels(), ax.xaxis.label, ax._left_title):  # type: ignore[attr-defined]
            label.set(usetex=False, antialiased=True)

    def update(self, simulation: Simulation, top: float) -> None:
        """Move the artists to show `simulation`."""
        raise NotImplementedError


class SweepPanel(Panel):
    """Memory along one input on a log axis: two filled areas, the curve and the capacity."""

    upper_fill: Any
    lower_fill: Any
    tick_step: int  # octaves between ticks

    def __init__(self, ax: Axes, theme: Theme) -> None:
        super().__init__(ax, theme)
        ax.set_xscale("log", base=2)
        self.lower = self._fill(self.lower_fill)
        self.upper = self._fill(self.upper_fill)
        self.limit = self._line(theme.capacity, 1.5)
        self.total = self._line(theme.ink, 1.8, zorder=3)
        self.point = self._mark(theme.ink, "o", 8, theme.background, 1.2)

    def sweep(self, simulation: Simulation) -> Sweep:
        raise NotImplementedError

    def value(self, simulation: Simulation) -> float:
        raise NotImplementedError

    def write_end(self, count: float) -> str:
        raise NotImplementedError

    @staticmethod
    def straight(x: Array) -> Array:
        """Return a measure of x, rising, along which memory is a straight line."""
        raise NotImplementedError

    def range(self, simulation: Simulation) -> tuple[float, float]:
        """Return the ends of the sweep."""
        x = self.sweep(simulation).x
        return float(x[0]), float(x[-1])

    def ticks(self, ends: tuple[float, float]) -> tuple[Sequence[float], Sequence[str]]:
        """Return a tick every few octaves, and one at the end."""
        octaves = round(math.log2(ends[1] / ends[0]))
        step = 3 * math.ceil(octaves / 15)
        values = [ends[0] * 2**i for i in range(0, octaves - step // 2, step)] + [ends[1]]
        return values, [self.write_end(value) for value in values]

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the areas, the curve, the capacity and the request's point."""
        self.measure()
        self.ends = self.range(simulation)
        self.top = top
        x = curve_points(*self.ends)
        states, activations = self._curves(simulation, x)
        low, high = self._order(states, activations)
        # Far above the panel a curve only costs; Agg refuses coordinates that are too large.
        low, total = np.minimum(low, 20 * top), np.minimum(low + high, 20 * top)
        self.lower.set_xy(_between(x, np.zeros_like(x), low))
        self.upper.set_xy(_between(x, low, total))
        self.total.set_data(x, total)
        capacity = simulation.gpu_capacity_gb
        self.limit.set_data(self.ends, (capacity, capacity))
        here, need = self.value(simulation), float(simulation.components.total) / GB
        self.point.set_data([here], [need])
        self.curve = self.at(x), total * (self.height / top)
        self.x, self.totals = x, total

        line = self.up(capacity)
        self.block(0, line - 1, self.width, line + 1)
        u, v = self.along(here), self.up(need)
        self.block(u - 5, v - 5, u + 5, v + 5)

    def _curves(self, simulation: Simulation, x: Array) -> tuple[Array, Array]:
        """Return states and activations at `x`, GB, through the sweep and the request itself."""
        sweep, own = self.sweep(simulation), simulation.components
        known, first = np.unique(np.append(sweep.x, self.value(simulation)), return_index=True)
        places, wanted = self.straight(known), self.straight(x)

        def through(along: Any, here: Any) -> Array:
            values = np.append(np.broadcast_to(along, sweep.x.shape), here)[first]
            return np.interp(wanted, places, values) / GB

        parts: Components = sweep.components
        return through(parts.states, own.states), through(parts.activations, own.activations)

    def _order(self, states: Array, activations: Array) -> tuple[Array, Array]:
        """Return what lies below and what on top of it."""
        raise NotImplementedError

    def at(self, x: Any) -> Any:
        """Return the distance of x from the left rim, points."""
        low, high = self.ends
        return np.log(np.asarray(x) / low) * (self.width / math.log(high / low))

    def along(self, x: float) -> float:
        """Return the same for one number."""
        return float(self.at(x))

    def up(self, gb: float) -> float:
        """Return the height of `gb`, points."""
        return gb * self.height / self.top


class GpuPanel(SweepPanel):
    """Memory per GPU against GPU count."""

    title = "Memory per GPU vs GPU count"
    xlabel = "GPUs (log)"
    upper_fill = STATES_FILL
    lower_fill = ACTIVATIONS_FILL

    def __init__(self, ax: Axes, theme: Theme) -> None:
        super().__init__(ax, theme)
        # A width of 1: rcParams["lines.scale_dashes"] then makes no difference.
        self.floor = self._line(theme.floor, 1, linestyle=(0, (4, 2)))
        self.stem = self._line(theme.fits, 1.4)
        self.heads = [self._mark(theme.fits, marker, 5.5, "none", 0) for marker in (6, 7)]
        self.diamond = self._mark(theme.fits, "D", 6, theme.background, 1)
        self.capacity_label = self._label(theme.capacity)
        self.floor_label = self._label(theme.floor)
        self.margin_label = self._label(theme.fits)
        self.fewest_label = self._label(theme.fits)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over GPU counts."""
        return simulation.gpu_sweep

    def value(self, simulation: Simulation) -> float:
        """Return the request's GPU count."""
        return simulation.config.num_gpus

    def write_end(self, count: float) -> str:
        """Write a GPU count of the axis."""
        return f"{count:g}" if count < 10_000 else write_binary(count)

    @staticmethod
    def straight(x: Array) -> Array:
        """Return -1/N: sharded memory is a + b/N."""
        return -1 / x

    def _order(self, states: Array, activations: Array) -> tuple[Array, Array]:
        self.floor_gb = activations
        return activations, states

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel."""
        super().update(simulation, top)
        self.floor.set_data(self.x, np.minimum(self.floor_gb, 20 * top))
        self._write_capacity(simulation)
        self._show_margin(simulation)
        self._show_fewest(simulation)
        self._write_floor()

    def _write_capacity(self, simulation: Simulation) -> None:
        words = f"{write_capacity(simulation.gpu_capacity_gb)} GB capacity"
        y = self.up(simulation.gpu_capacity_gb)
        self.write(
            self.capacity_label, words,
            [
                (self.width, y + 2, "right", "bottom"), (self.width, y - 3, "right", "top"),
                (0, y + 2, "left", "bottom"), (0, y - 3, "left", "top"),
            ],
        )  # fmt: skip

    def _show_margin(self, simulation: Simulation) -> None:
        """Draw the arrow between the request and the capacity."""
        here, need = self.value(simulation), float(simulation.components.total) / GB
        capacity, margin = simulation.gpu_capacity_gb, simulation.headroom_gb
        color = self.theme.fits if simulation.fits else self.theme.capacity
        low, high = sorted((capacity, need))
        u, bottom, top = self.along(here), self.up(low), self.up(high)
        room = top - bottom
        clear = 6 if room > 16 else 0  # stop short of the point
        if simulation.fits:
            bottom += clear
        else:
            top -= clear
        shown = room > 12
        self.stem.set_visible(shown)
        self.stem.set_color(color)
        self.stem.set_data(
            (here, here), (bottom * self.top / self.height, top * self.top / self.height)
        )
        for head, y in zip(self.heads, (top, bottom), strict=True):
            head.set_visible(shown)
            head.set_markerfacecolor(color)
            head.set_data([here], [y * self.top / self.height])
        self.block(u - 3, bottom, u + 3, top)
        kind = "headroom" if simulation.fits else "short"
        words = f"{write_gb(abs(margin))} GB\n{kind}"
        self.margin_label.set_color(color)
        places = [bottom + share * (top - bottom) for share in (0.5, 0.35, 0.65, 0.2, 0.8)]
        near = 8.0
        spots: list[Spot] = [(u + near, y, "left", "center") for y in places]
        spots += [(u - near, y, "right", "center") for y in places]
        if room < 30:
            spots = [
                (u + dx, y, ha, va)
                for y, va in ((bottom - 8, "top"), (top + 8, "bottom"))
                for dx, ha in ((0, "center"), (6, "left"), (-6, "right"))
            ]
            words = words.replace("\n", " ")
        self.write(self.margin_label, words, spots)

    def _show_fewest(self, simulation: Simulation) -> None:
        """Mark the smallest GPU count that fits."""
        fewest = simulation.min_gpus_to_fit
        inside = fewest is not None and fewest <= self.ends[1]
        self.diamond.set_visible(inside)
        self.fewest_label.set_visible(fewest is not None)
        if fewest is None:
            return
        words = f"min {grouped(fewest)}"
        if not inside:
            y = self.up(simulation.gpu_capacity_gb)
            spots: list[Spot] = [
                (self.width, y + dy, "right", va)
                for dy, va in ((-4, "top"), (-16, "top"), (3, "bottom"), (16, "bottom"))
            ]
            self.write(self.fewest_label, words + " →", spots)
            return
        total = float(
            np.interp(self.straight(np.float64(fewest)), self.straight(self.x), self.totals)
        )  # type: ignore[arg-type]
        self.diamond.set_data([fewest], [total])
        u, v = self.along(fewest), self.up(total)
        self.block(u - 4, v - 4, u + 4, v + 4)
        left: list[Spot] = [(u - 7, v, "right", "center"), (u - 7, v - 2, "right", "top")]
        right: list[Spot] = [
            (u + 7, v + 1, "left", "bottom"), (u + 7, v, "left", "center"),
            (u + 7, v - 2, "left", "top"),
        ]  # fmt: skip
        below: list[Spot] = [(u, v - 7, "center", "top"), (u, v + 7, "center", "bottom")]
        self.write(
            self.fewest_label,
            words,
            [*left, *right, *below] if simulation.fits else [*right, *left, *below],
        )

    def _write_floor(self) -> None:
        """Name the activations, which no GPU count shrinks."""
        gb = float(self.floor_gb[-1])
        shown = gb > 0
        self.floor.set_visible(shown)
        self.floor_label.set_visible(shown)
        if not shown:
            return
        y = self.up(gb)
        words = f"activation floor {write_gb(gb)} GB"
        self.block(0, y - 1, self.width, y + 1)
        width = 0.62 * TEXT * len(words)
        assert self.curve is not None  # noqa: S101  # set by update
        curve = np.interp((self.width - width, 0), *self.curve)
        spots: list[Spot] = []
        for x, ha, over in ((self.width, "right", curve[0]), (2.0, "left", curve[1])):
            spots += [(x, y - 3, ha, "top"), (x, y + 2, ha, "bottom"), (x, over + 3, ha, "bottom")]
        self.write(self.floor_label, words, spots)


class SeqPanel(SweepPanel):
    """Memory per GPU against sequence length."""

    title = "… vs sequence length"
    xlabel = "tokens (log)"
    upper_fill = ACTIVATIONS_FILL
    lower_fill = STATES_FILL

    def __init__(self, ax: Axes, theme: Theme) -> None:
        super().__init__(ax, theme)
        self.cross = self._mark(theme.capacity, "x", 7, theme.capacity, 2)
        self.cross_label = self._label(theme.capacity)

    def sweep(self, simulation: Simulation) -> Sweep:
        """Return the sweep over sequence lengths."""
        return simulation.seq_sweep

    def value(self, simulation: Simulation) -> float:
        """Return the request's sequence length."""
        return simulation.config.seq_length

    def write_end(self, count: float) -> str:
        """Write a length of the axis."""
        return write_binary(count)

    @staticmethod
    def straight(x: Array) -> Array:
        """Return s itself: activations grow with the length."""
        return x

    def _order(self, states: Array, activations: Array) -> tuple[Array, Array]:
        return states, activations

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel."""
        super().update(simulation, top)
        longest = longest_sequence(simulation)
        low, high = self.ends
        capacity = simulation.gpu_capacity_gb
        y = self.up(capacity)
        inside = longest is not None and low <= longest <= high
        self.cross.set_visible(inside)
        u = 0.0 if longest is None else min(max(self.along(longest), 0.0), self.width)
        if longest is None:
            words = "no length fits"
        elif longest >= FIELDS["seq_length"].bounds[1]:
            words = "every length fits →"
        else:
            words = f"OOM past {write_count(longest)}"
            if not inside:
                words = f"← {words}" if longest < low else f"{words} →"
        if inside:
            self.cross.set_data([longest], [capacity])
            self.block(u - 5, y - 5, u + 5, y + 5)
        spots: list[Spot] = [
            (u + dx, y + dy, ha, va)
            for dy, va in ((4.0, "bottom"), (-5.0, "top"))
            for dx, ha in ((-6.0 if inside else 0.0, "right"), (6.0 if inside else 0.0, "left"))
        ]
        self.write(self.cross_label, words, spots)


def longest_sequence(simulation: Simulation) -> float | None:
    """Return the longest sequence that fits, read off the sweep where there is no model to ask."""
    if simulation.model is not None:
        return simulation.longest_sequence
    x, total = simulation.seq_sweep.x, simulation.seq_sweep.total_gb
    capacity = simulation.gpu_capacity_gb
    total = np.broadcast_to(total, x.shape)
    if total[0] > capacity:
        return None
    if total[-1] <= capacity:
        return FIELDS["seq_length"].bounds[1]
    after = int(np.argmax(total > capacity))
    share = (capacity - total[after - 1]) / (total[after] - total[after - 1])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))


class BudgetPanel(Panel):
    """The GPU's memory as a stacked bar, each part named beside it."""

    title = "HBM budget"

    def __init__(self, ax: Axes, theme: Theme) -> None:
        super().__init__(ax, theme)
        ax.grid(False, which="both", axis="both")
        # Ticks as long as the bar is wide stand in for a grid, so that no line strikes a label.
        ax.tick_params(
            axis="y",
            which="major",
            left=True,
            direction="in",
            length=BAR,
            width=1,
            color=theme.grid,
        )
        ax.set_xticks([])
        self.parts = {
            name: self._rectangle(facecolor=COLORS[name], edgecolor="none", linewidth=0)
            for name in ("optimizer", "gradients", "weights", "activations")
        }
        self.free = self._rectangle(
            facecolor="none", edgecolor=theme.free, linewidth=0, hatch="////"
        )
        self.limit = self._line(theme.capacity, 1.5, zorder=3)
        self.leaders = self._line(theme.muted, 0.8)
        self.labels = [self._label(theme.ink) for _ in range(5)]

    def _rectangle(self, **style: Any) -> Rectangle:
        rectangle = Rectangle((0, 0), 1, 0, linestyle="-", antialiased=True, zorder=1, **style)
        return self._add(rectangle)  # type: ignore[no-any-return]

    def update(self, simulation: Simulation, top: float) -> None:
        """Draw the panel."""
        self.measure()
        need, capacity = simulation.components, simulation.gpu_capacity_gb
        left, right = 7 / self.width, (BAR - 7) / self.width
        base = 0.0
        named: list[tuple[float, str, str]] = []
        for name, rectangle in self.parts.items():
            size = float(getattr(need, name)) / GB
            rectangle.set_bounds(left, base, right - left, size)
            short = "grads" if name == "gradients" else name
            if size > 0:
                named.append((base + size / 2, f"{short} {write_gb(size)}", self.theme.ink))
            base += size
        free = max(0.0, capacity - base)
        self.free.set_bounds(left, base, right - left, free)
        if free > 0:
            named.append((base + free / 2, f"free {write_gb(free)}", self.theme.fits))
        self.limit.set_data((0, BAR / self.width), (capacity, capacity))

        scale = self.height / top
        middles = np.array([gb * scale for gb, _, _ in named])
        heights = spread(middles, 1.3 * TEXT, TEXT / 2, self.height - TEXT / 2)
        xs: list[float] = []
        ys: list[float] = []
        for text, y, middle, (_, words, color) in zip(
            self.labels, heights, middles, named, strict=False
        ):
            text.set(
                text=words,
                color=color,
                position=((BAR + 8) / self.width, y / self.height),
                ha="left",
                va="center",
                visible=True,
            )
            xs += [right, BAR / self.width, (BAR + 5) / self.width, math.nan]
            ys += [middle / scale, middle / scale, y / scale, math.nan]
        for text in self.labels[len(named) :]:
            text.set_visible(False)
        self.leaders.set_data(xs, ys)


def spread(heights: Array, gap: float, low: float, high: float) -> Array:
    """Return rising `heights` moved apart to at least `gap`, as little as may be, in a range."""
    steps = np.arange(len(heights)) * gap
    slack = heights - steps
    up = np.maximum.accumulate(slack)
    down = np.minimum.accumulate(slack[::-1])[::-1]
    return np.clip((up + down) / 2, low, max(low, high - steps[-1])) + steps  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def curve_points(low: float, high: float) -> Array:
    """Return the x at which a curve is drawn."""
    points = np.geomspace(low, high, CURVE_POINTS)
    points.flags.writeable = False
    return points


def _between(x: Array, low: Array, high: Array) -> Array:
    """Return the outline of the area between two curves, shape (2n, 2)."""
    return np.column_stack((np.append(x, x[::-1]), np.append(low, high[::-1])))


PANELS: Final[Mapping[str, Callable[[Axes, Theme], Panel]]] = {
    "gpus": GpuPanel,
    "seq": SeqPanel,
    "budget": BudgetPanel,
}
