"""The second panel: memory per GPU against sequence length."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes

from trainmem.config import FIELDS
from trainmem.picture.panel import ROW, move
from trainmem.picture.placing import Spot
from trainmem.picture.style import Theme, write_count
from trainmem.picture.sweep import SweepPanel
from trainmem.simulation import Simulation
from trainmem.sweeps import Sweep

__all__ = ["LONGEST", "SeqPanel", "longest_sequence"]

LONGEST: Final = FIELDS["seq_length"].bounds[1]


class SeqPanel(SweepPanel):
    """Memory per GPU against sequence length."""

    title = "Memory vs sequence"
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
        elif simulation.peak_case is not None and simulation.longest_sequence_reason:
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
