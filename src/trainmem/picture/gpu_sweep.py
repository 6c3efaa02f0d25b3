"""The first panel: memory per GPU against GPU count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from trainmem.picture.lettering import text_width
from trainmem.picture.panel import ROW, move
from trainmem.picture.placing import Spot
from trainmem.picture.style import TEXT, Theme, write_binary
from trainmem.picture.sweep import SweepPanel
from trainmem.simulation import Simulation
from trainmem.sweeps import Sweep
from trainmem.words import grouped, write_capacity, write_gb

__all__ = ["GpuPanel"]


class GpuPanel(SweepPanel):
    """Memory per GPU against GPU count."""

    title = "Memory vs GPU count"
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
        self.floor_name = "activation floor" if simulation.peak_case is None else "transient"
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
