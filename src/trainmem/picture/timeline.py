"""The memory of one step over time: stacked by kind, phases named, the peak marked and explained.

Every allocation and free of the step is there. The picture keeps the highest moment of each column
about a point wide, and where a layer is wide enough to be seen also the lowest, so that neither
the peak nor the saw's teeth are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from trainmem.picture.lettering import font, plain, text_width
from trainmem.picture.panel import Line
from trainmem.picture.style import (
    COLORS,
    GATHERED,
    LOGITS,
    TEXT,
    TITLE,
    TOPS,
    TRANSIENT,
    Theme,
    axis_ticks,
    plain_axes,
    theme_on,
    write_tick,
)
from trainmem.simulation import GB, Simulation
from trainmem.words import grouped, write_capacity, write_gb

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainmem.transformer import Timeline

__all__ = ["ROWS", "draw_timeline", "lay_out"]

Array = NDArray[np.float64]


class Row(NamedTuple):
    """One band of the stack: its name in the legend, its colour, the kinds it is made of."""

    name: str
    color: str
    kinds: tuple[str, ...]


ROWS: Final = (
    Row("optimizer", COLORS["optimizer"], ("optimizer",)),
    Row("weights", COLORS["weights"], ("weights",)),
    Row("gradients", COLORS["gradients"], ("gradients",)),
    Row("gathered parameters", GATHERED, ("gathered parameters",)),
    Row("saved activations", COLORS["activations"], ("saved activations",)),
    Row("recomputed, temporary", TRANSIENT, ("recomputation", "temporaries")),
    Row("logits and loss", LOGITS, ("logits and loss",)),
)
"""From the bottom up: what stays through the step, then what comes and goes."""

PHASES: Final[Mapping[str, tuple[float, tuple[str, ...]]]] = {
    "fwd": (3.0, ("forward", "fwd")),
    "other": (2.6, ("backward", "bwd")),
    "loss": (1.7, ("loss",)),
    "layers": (4.6, ("backward, layer {last} → 1", "backward", "bwd")),
    "opt": (1.1, ("optimizer step", "optimizer", "step")),
}
"""Width of each phase (a picture of the order, not of the seconds) and its names, longest first."""

TOOTH: Final = 4.0
"""Points that a layer must have for its ups and downs to be drawn."""

FEW: Final = 4
"""Events of a column that are all worth drawing."""

BOLD: Final = 1.15
"""Width of bold text in that of plain text."""

LEAST: Final = 0.02
"""Part of the peak from which a kind is named in the explanation."""


class Stretch(NamedTuple):
    """A phase on the x axis: its names, longest first, and where it begins and ends."""

    names: tuple[str, ...]
    left: float
    right: float


def lay_out(width: float, height: float) -> tuple[tuple[float, float, float, float], str]:
    """Return where the axes go in a figure, and on which side the legend stands, for points.

    Raises
    ------
    ValueError
        Where the picture wouldn't fit.
    """
    if width < 396 or height < 180:
        raise ValueError(
            f"size: {width / 72:.1f} × {height / 72:.1f} inches is not allowed; it must be at "
            "least 5.5 × 2.5"
        )
    left, top = 54.0, 34.0
    if width >= 620:
        right, bottom, legend = 208.0, 36.0, "right"
    else:
        right, bottom, legend = 14.0, 104.0, "below"
    wide, high = width - left - right, height - top - bottom
    return (left / width, bottom / height, wide / width, high / height), legend


def draw_timeline(
    ax: Axes, simulation: Simulation, *, theme: str | None = None, legend: str = "right"
) -> None:
    """Draw the memory of one step over time on `ax`.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw; the legend takes about 196 points beside it, or 70 below.
    simulation : Simulation
        What to show; it needs an architecture.
    theme : {"light", "dark"}, optional
        Colours; those that go with the background of the figure where omitted.
    legend : {"right", "below", ""}
        Where the legend stands, if anywhere.

    Raises
    ------
    ValueError
        Under the reduced-order model, which knows the peak but not the step; for an unknown
        theme.
    """
    colors, case = theme_on(ax, theme), simulation.peak_case
    if case is None:
        raise ValueError(
            "the reduced-order model has no timeline: choose an architecture, as in "
            'simulate(architecture="Llama-3-8B")'
        )
    timeline = case.model.timeline(simulation.config)
    x, stretches = _places(timeline, case.model.architecture.num_layers)
    stack = _stack(timeline)
    peak = _peak(timeline, case.peak.phase)
    points = 72 / ax.get_figure().dpi  # type: ignore[union-attr]
    width = float(ax.bbox.width) * points
    teeth = width / stretches[-1].right / case.model.architecture.num_layers
    both = PHASES["fwd"][0] * teeth >= TOOTH
    column = 1.0 if both else max(1.0, PHASES["layers"][0] * teeth)  # a whole layer, or more
    kept = _columns(x, timeline.total_bytes, stretches, round(width / column), both=both)
    total = timeline.total_bytes / GB
    top = _top(float(total[peak]), simulation.gpu_capacity_gb)
    right = stretches[-1].right
    _style(ax, colors, right, top)
    edges = np.append(x[kept], right)
    lower = np.zeros(len(kept))
    for row, band in zip(ROWS, stack[:, kept], strict=True):
        upper = lower + band
        _band(ax, row.color, edges, lower, upper)
        lower = upper
    ax.add_artist(
        Line(
            np.repeat(edges, 2)[1:-1], np.repeat(total[kept], 2), color=colors.ink, width=0.9,
            zorder=3, transform=ax.transLimits + ax.transAxes,  # as transData it would be cut up
        )
    )  # fmt: skip
    _phases(ax, colors, stretches, points)
    capacity = simulation.gpu_capacity_gb
    if capacity <= top:
        ax.add_artist(
            Line([0, right], [capacity, capacity], color=colors.capacity, width=1.5, zorder=4)
        )
        words = f"{write_capacity(capacity)} GB capacity"
        if x[peak] < right / 2:  # at the end where the peak's words aren't
            _text(
                ax, words, right, capacity, colors.capacity, offset=(-4, -4), ha="right", va="top"
            )
        else:
            _text(ax, words, 0, capacity, colors.capacity, offset=(4, 3))
    _explain(ax, colors, simulation, (float(x[peak]), float(total[peak])), points)
    _title(ax, colors, simulation, width + (166 if legend == "right" else 0))
    if legend:
        _legend(ax, colors, stack[:, peak], legend, points)
    plain(ax)


def _stack(timeline: Timeline) -> Array:
    """Return the bands of `ROWS` after every event, GB, shape (bands, events)."""
    index = {name: i for i, name in enumerate(timeline.kinds)}
    return np.stack(
        [sum((timeline.bytes_by_kind[index[k]] for k in row.kinds), 0.0) for row in ROWS]
    ) / GB  # fmt: skip


def _places(timeline: Timeline, layers: int) -> tuple[Array, list[Stretch]]:
    """Return x of every event and the phases, which take their own widths whatever they hold.

    What exists before the step is no part of it. A phase may hold no event at all: an optimizer
    that works in place.
    """
    x = np.zeros(len(timeline.total_bytes))
    stretches: list[Stretch] = []
    runs = groupby(range(len(timeline.phases)), key=lambda i: timeline.phases[i])
    at = 0.0
    for phase, members in runs:
        if phase == "states":
            continue
        parts = list(members)
        first, end = timeline.boundaries[parts[0]], timeline.boundaries[parts[-1] + 1]
        width, names = PHASES[phase]
        x[first:end] = at + width * np.arange(end - first) / (end - first)
        names = tuple(name.format(last=layers) for name in names)
        stretches.append(Stretch(names, at, at + width))
        at += width
    return x, stretches


def _peak(timeline: Timeline, phase: str) -> int:
    """Return the event of the peak: of equal ones, the first in the phase that sets it."""
    events = np.flatnonzero(timeline.total_bytes >= timeline.total_bytes[timeline.peak_index])
    runs = np.searchsorted(timeline.boundaries, events, side="right") - 1
    return int(next((e for e, r in zip(events, runs, strict=True) if timeline.phases[r] == phase),
                    timeline.peak_index))  # fmt: skip


def _columns(
    x: Array, total: Array, stretches: list[Stretch], columns: int, *, both: bool
) -> NDArray[np.int64]:
    """Return the events to draw: in each column the highest, and the lowest too if `both`.

    The ends of every phase that has events are kept.
    """
    shown = np.flatnonzero(np.append(x[1:] > 0, True))  # the event before the step is its floor
    column = np.minimum((x[shown] / stretches[-1].right * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    last = len(shown) - 1
    begin = np.searchsorted(x[shown], [stretch.left for stretch in stretches[1:]])
    kept = {int(shown[min(i, last)]) for i in (0, last, *begin, *(begin - 1))}
    for first, end in zip(starts, [*starts[1:], len(shown)], strict=True):
        part = total[shown[first:end]]
        kept.add(int(shown[first + int(np.argmax(part))]))
        if both or len(part) < FEW:
            kept.add(int(shown[first + int(np.argmin(part))]))
    return np.array(sorted(kept))


def _top(peak: float, capacity: float) -> float:
    """Return the top of the axis: room for the peak's words, and for the capacity where near."""
    least = max(1.36 * peak, 1.12 * capacity if capacity < 1.7 * peak else 0.0)
    power = 10.0 ** np.floor(np.log10(least))
    return float(power * next(top for top, _ in TOPS if power * top >= least * (1 - 1e-9)))


def _style(ax: Axes, theme: Theme, right: float, top: float) -> None:
    plain_axes(ax, theme, labelbottom=False, labelleft=True)
    ax.grid(
        True, which="major", axis="y", color=theme.grid, linewidth=1, linestyle="-", alpha=1,
        antialiased=True,
    )  # fmt: skip
    ax.set_xlim(0, right)
    ax.set_ylim(0, top)
    ax.set_xticks([])
    heights = axis_ticks(top)
    ax.set_yticks(heights, [write_tick(gb) for gb in heights])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())
    for label in ax.yaxis.get_ticklabels():
        label.set(fontproperties=font(TEXT), ha="right", va="center_baseline")
    ax.set_ylabel("GB per GPU", labelpad=6, color=theme.muted, fontproperties=font(TEXT))


def _band(ax: Axes, color: str, edges: Array, lower: Array, upper: Array) -> None:
    """Fill between two staircases."""
    x = np.repeat(edges, 2)[1:-1]
    outline = np.column_stack(
        (np.append(x, x[::-1]), np.append(np.repeat(upper, 2), np.repeat(lower, 2)[::-1]))
    )
    ax.add_artist(
        Polygon(outline, closed=True, facecolor=color, edgecolor="none", linewidth=0,
                antialiased=True, zorder=2)
    )  # fmt: skip


def _phases(ax: Axes, theme: Theme, stretches: list[Stretch], points: float) -> None:
    """Name the phases below, and draw a line where one begins."""
    scale = ax.bbox.width * points / stretches[-1].right
    for i, stretch in enumerate(stretches):
        if i:
            ax.add_artist(
                Line([stretch.left] * 2, [0, ax.get_ylim()[1]], color=theme.background,
                     width=1.4, zorder=2.5)
            )  # fmt: skip
        room = scale * (stretch.right - stretch.left) - 4
        fitting = (words for words in stretch.names if text_width(words, TEXT) <= room)
        words = next(fitting, stretch.names[-1])
        middle = (stretch.left + stretch.right) / 2
        _text(ax, words, middle, 0, theme.muted, offset=(0, -18), ha="center", va="baseline")


def _explain(
    ax: Axes, theme: Theme, simulation: Simulation, at: tuple[float, float], points: float
) -> None:
    """Mark the peak, and say when it comes and what fills it."""
    case = simulation.peak_case
    assert case is not None  # noqa: S101  # draw_timeline saw to it
    ax.add_artist(
        Line([at[0]], [at[1]], color=theme.ink, width=0, linestyle="None", marker="o",
             markersize=8, markeredgecolor=theme.background, markeredgewidth=1.4, zorder=5,
             clip_on=False)
    )  # fmt: skip
    total = case.peak.peak_bytes
    named = [f"{n} {write_gb(s / GB)}" for n, s in case.groups[:2] if s >= LEAST * total]
    words = f"peak {write_gb(total / GB)} GB, in {case.when}:\n{', '.join(named)}"
    width = text_width(words, TEXT)
    right_end = ax.get_xlim()[1]
    here, whole = at[0] / right_end * ax.bbox.width * points, ax.bbox.width * points
    if here >= width + 8:
        offset, ha = (-4.0, 9.0), "right"
    elif here + width + 8 <= whole:
        offset, ha = (4.0, 9.0), "left"
    else:
        offset, ha = (whole / 2 - here, 9.0), "center"
    _text(ax, words, at[0], at[1], theme.ink, offset=offset, ha=ha)


def _title(ax: Axes, theme: Theme, simulation: Simulation, room: float) -> None:
    """Name the request, as much of it as there is room for, points."""
    config, name = simulation.config, simulation.architecture
    words = f"One step over time · {name.name if name else ''}"
    for part in (
        f"{grouped(config.num_gpus)} GPU{'s' * (config.num_gpus > 1)}",
        f"ZeRO-{config.zero_stage}" if config.zero_stage else "not sharded",
        f"micro batch {grouped(config.micro_batch)}",
        f"{grouped(config.seq_length)} tokens",
        "checkpointing" if config.grad_ckpt else "no checkpointing",
    ):
        longer = f"{words}, {part}"
        if BOLD * text_width(longer, TITLE) > room:
            break
        words = longer
    ax.set_title(
        words, loc="left", y=1.0, pad=10, color=theme.ink, fontproperties=font(TITLE, "bold")
    )


def _legend(ax: Axes, theme: Theme, sizes: Array, where: str, points: float) -> None:
    """Write what is alive at the peak, in the order of the stack."""
    width, height = ax.bbox.width * points, ax.bbox.height * points
    rows = list(zip(ROWS, sizes, strict=True))[::-1]
    columns, left, top = (1, width + 12, height - 6) if where == "right" else (2, 0.0, -30.0)
    step = min(18.0, (height - 8) / (len(rows) + 1)) if where == "right" else 15.0
    _text(ax, "alive at the peak, GB", 0, 0, theme.muted, offset=(left, top), va="center",
          coords="axes fraction")  # fmt: skip
    per = -(-len(rows) // columns)
    for i, (row, size) in enumerate(rows):
        # The first of two columns has the long names.
        x, y = left + (i // per) * 0.58 * width, top - (1 + i % per) * step
        box = Rectangle(
            (x / width, (y - 4.5) / height), 18 / width, 9 / height, facecolor=row.color,
            edgecolor="none", linewidth=0, antialiased=True, transform=ax.transAxes,
            clip_on=False, zorder=4,
        )  # fmt: skip
        ax.add_artist(box)
        box.set_clip_on(False)
        gb = write_gb(size) if size >= 0.001 else "0.0"
        _text(ax, f"{row.name}  {gb}", 0, 0, theme.ink, offset=(x + 24, y),
              va="center", coords="axes fraction")  # fmt: skip


def _text(
    ax: Axes, words: str, x: float, y: float, color: str, *, offset: tuple[float, float],
    ha: str = "left", va: str = "bottom", coords: str = "data",
) -> None:  # fmt: skip
    ax.annotate(
        words, (x, y), xytext=offset, xycoords=coords, textcoords="offset points", color=color,
        fontproperties=font(TEXT), ha=ha, va=va, annotation_clip=False, zorder=6,
        linespacing=1.25,
    )  # fmt: skip
