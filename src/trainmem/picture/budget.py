"""The HBM budget: one GPU's memory as a stacked bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray

from trainmem.picture.card import card_of
from trainmem.picture.panel import Panel, move
from trainmem.picture.placing import spread
from trainmem.picture.style import COLORS, GATHERED, LOGITS, TEXT, Theme
from trainmem.simulation import GB, Simulation
from trainmem.words import write_gb

__all__ = ["BAR", "BudgetPanel"]

Array = NDArray[np.float64]

BAR: Final = 44.0
"""Width of the bar with its margins, points; labels stand to its right."""

PARTS: Final = ("optimizer", "gradients", "weights", "activations")
"""The components from the bottom up."""


class Part(NamedTuple):
    """One part of the bar: its name, its colour, GB."""

    name: str
    color: str
    gb: float


def parts_of(simulation: Simulation) -> list[Part]:
    """Return the parts that a simulation tells apart, from the bottom up."""
    need, case = simulation.components, simulation.peak_case
    sizes = {name: float(getattr(need, name)) / GB for name in PARTS}
    extra: list[Part] = []
    if case is not None:  # which knows what the activations' component is made of
        groups = dict(case.groups)
        extra = [
            Part("gathered", GATHERED, groups["gathered parameters"] / GB),
            Part("logits", LOGITS, groups["logits and loss"] / GB),
        ]
        sizes["activations"] -= sum(part.gb for part in extra)
    *states, activations = (
        Part("grads" if name == "gradients" else name, COLORS[name], gb)
        for name, gb in sizes.items()
    )
    return [*states, *extra[:1], activations, *extra[1:]]


class BudgetPanel(Panel):
    """The GPU's memory as a stacked bar, each part named beside it."""

    title = "HBM budget"

    def __init__(self, ax: Axes, theme: Theme, spill: float = 0.0) -> None:
        super().__init__(ax, theme, spill)
        # Ticks as long as the bar is wide stand in for a grid: no line strikes a label.
        ax.tick_params(
            axis="y", which="major", left=True, direction="in", length=BAR, width=1,
            color=theme.grid,
        )  # fmt: skip
        self.parts = self._add(
            PolyCollection(
                [], facecolors="none", edgecolors="none", linewidths=0, linestyles="-",
                antialiaseds=True, zorder=1,
            )
        )  # fmt: skip
        self.hatching = self._line(theme.background, 1.2)  # a patch's hatch obeys rcParams
        self.limit = self._line(theme.capacity, 1.5, zorder=3)
        self.leaders = self._line(theme.muted, 0.8)
        self.card = self._line(theme.ink, 1.2, zorder=2.5)
        self.colors: list[str] = []
        self.labels = [self._label(theme.ink) for _ in range(8)]
        for label in self.labels:
            label.set(ha="left", va="center")

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
        free = Part("free", self.theme.free, max(0.0, self.capacity - self.need))
        parts = [*parts_of(simulation), free]
        sizes = [part.gb for part in parts]
        borders = np.cumsum([0.0, *sizes])
        corners = np.empty((len(sizes), 4, 2))
        corners[:, :, 0] = left, right, right, left
        corners[:, :2, 1] = borders[:-1, None]
        corners[:, 2:, 1] = borders[1:, None]
        self.parts.set_verts(corners)
        colors = [part.color for part in parts]
        if colors != self.colors:
            self.colors = colors
            self.parts.set_facecolor(colors)
        named = [
            (base + part.gb / 2, f"{part.name} {write_gb(part.gb)}")
            for part, base in zip(parts, borders[:-1], strict=True)
            if part.gb > 0
        ]
        move(self.limit, (0, end), (self.capacity, self.capacity))
        x, y = hatching(BAR - 14, self.up(borders[-2]) + 1, self.up(borders[-1]) - 1)
        move(self.hatching, (7 + x) / width, y / self.up(1))

        card = card_of(simulation)
        self.card.set_visible(card is not None)
        starts = [right] * len(named)
        if card is not None:  # a bracket between bar and labels, and its own among them
            post, cap = (BAR - 3.5) / width, 2.5 / width
            move(
                self.card,
                (post - cap, post + cap, math.nan, post, post, math.nan, post - cap, post + cap),
                (card[0], card[0], math.nan, *card, math.nan, card[1], card[1]),
            )
            middle = min(sum(card) / 2, top)
            at = sum(gb <= middle for gb, _ in named)
            named.insert(at, (middle, f"card {write_gb(card[0])}–{write_gb(card[1])}"))
            starts.insert(at, post)
        middles = np.array([gb for gb, _ in named])
        heights = spread(self.up(1) * middles, 1.3 * TEXT, TEXT / 2, height - TEXT / 2)
        for label in self.labels:
            label.set_visible(False)
        for label, y, (_, words) in zip(self.labels, heights, named, strict=False):
            color = self.theme.fits if words.startswith("free") else self.theme.ink
            label.set_visible(True)
            label.set_text(words)
            label.set_color(color)
            label.set_position(((BAR + 8) / width, y / height))
        bent = heights / self.up(1)
        xs = np.tile((right, end, (BAR + 5) / width, math.nan), (len(named), 1))
        xs[:, 0] = starts
        move(self.leaders, xs.ravel(), np.column_stack((middles, middles, bent, bent)).ravel())


def hatching(width: float, bottom: float, top: float, step: float = 5.0) -> tuple[Array, Array]:
    """Return x and y of lines that rise at 45° through a rectangle, each ended by a NaN."""
    start = np.arange(math.floor((bottom - width) / step), top / step) * step  # y at x = 0
    low, high = np.maximum(0, bottom - start), np.minimum(width, top - start)
    start, low, high = (values[low < high] for values in (start, low, high))
    gap = np.full_like(start, math.nan)
    x = np.column_stack((low, high, gap)).ravel()
    y = np.column_stack((start + low, start + high, gap)).ravel()
    return x, y
