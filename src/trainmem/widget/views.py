"""A view of the widget in a browser, and a picture of one step for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from trainmem.simulation import Simulation

__all__ = ["STILL", "View", "draw_step", "read_view"]


@dataclass(frozen=True)
class View:
    """What one view wants drawn: CSS pixels wide, device pixels per CSS pixel, theme."""

    width: int
    ratio: float
    theme: str

    @property
    def key(self) -> str:
        """Name of the kind of picture, shared by all views alike."""
        return f"{self.width}x{self.ratio:g}-{self.theme}"


STILL: Final = View(900, 1.0, "light")
"""What is drawn for viewers that can't run the widget."""


def read_view(item: Any) -> View | None:
    """Read one view of a hello; None where it is hidden or isn't one."""
    if not isinstance(item, Mapping):
        return None
    width, ratio, theme = item.get("width"), item.get("ratio"), item.get("theme")
    numbers = isinstance(width, int | float) and isinstance(ratio, int | float)
    if not numbers or theme not in ("light", "dark"):
        return None
    if not (100 <= width <= 10_000 and 0.1 <= ratio <= 10):  # type: ignore[operator]
        return None
    ratio = round(min(max(float(ratio), 0.5), 4.0), 2)  # type: ignore[arg-type]
    return View(round(width), ratio, theme)  # type: ignore[arg-type]


def draw_step(simulation: Simulation, view: View) -> bytes:
    """Return the memory of one step over time as a PNG for a view."""
    size = (max(view.width / 72, 5.5), 4.2)  # a point is a CSS pixel, as in the frames
    png = BytesIO()
    figure = simulation.timeline(view.theme, size=size)
    figure.savefig(png, format="png", dpi=72 * min(view.ratio, 2.0))
    return png.getvalue()
