"""How the figure looks: themes, the components' colours, the GB axis, numbers in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from matplotlib.colors import to_rgb, to_rgba
from matplotlib.typing import ColorType

from trainmem.words import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLORS", "THEMES", "Theme", "axis_ticks", "axis_top", "theme_named", "theme_on"]

TEXT: Final = 11.0  # points, as the small print around the picture; nothing is written smaller
TITLE: Final = 12.0


STATES_SHARE, ACTIVATIONS_SHARE = 0.22, 0.28  # of their colour in an area, rest background
CARD_SHARE, RIM_SHARE = 0.10, 0.45  # of ink in the band of the card, and in its rims
GRID_SHARE: Final = 0.11  # of ink in a grid line, whatever it crosses


def mix(low: ColorType, high: ColorType, share: float) -> tuple[float, float, float]:
    """Return the colour that has `share` of `high` and the rest of `low`."""
    red, green, blue = (a + (b - a) * share for a, b in zip(to_rgb(low), to_rgb(high), strict=True))
    return red, green, blue


@dataclass(frozen=True)
class Theme:
    """Colours of one theme; those of text have a contrast of 4.5 or more on every ground."""

    background: str
    ink: str
    muted: str
    capacity: str
    fits: str
    floor: str
    free: str

    @property
    def grid(self) -> ColorType:
        """Grid lines on the background."""
        return mix(self.background, self.ink, GRID_SHARE)

    @property
    def states(self) -> ColorType:
        """The area of model states."""
        return mix(self.background, COLORS["weights"], STATES_SHARE)

    @property
    def activations(self) -> ColorType:
        """The area of activations."""
        return mix(self.background, COLORS["activations"], ACTIVATIONS_SHARE)

    @property
    def card(self) -> ColorType:
        """The band of what the card may show."""
        return mix(self.background, self.ink, CARD_SHARE)

    @property
    def rim(self) -> ColorType:
        """The two lines that bound the band."""
        return mix(self.background, self.ink, RIM_SHARE)


THEMES: Final[Mapping[str, Theme]] = {
    "light": Theme(
        background="#ffffff", ink="#1f2328", muted="#4f5760",
        capacity="#b01f1a", fits="#15692e", floor="#7d4700", free="#dfe2e6",
    ),
    "dark": Theme(
        background="#111111", ink="#f0f3f6", muted="#b0b8c2",
        capacity="#ff8585", fits="#4cc963", floor="#f5ae62", free="#3d434c",
    ),
}  # fmt: skip

COLORS: Final[Mapping[str, str]] = {
    "weights": "#4c8dd6",
    "gradients": "#7cc4e8",
    "optimizer": "#2f5f9e",
    "activations": "#e8912d",
}
"""One colour for each component, everywhere and in both themes."""

GATHERED: Final = "#8f9bb0"
LOGITS: Final = "#b5485a"
TRANSIENT: Final = "#f2c14e"
"""Colours of what only the architecture-aware model tells apart."""


def theme_on(ax: Axes, name: str | None) -> Theme:
    """Return a theme by name, or for None the one that goes with the figure of `ax`."""
    if name is not None:
        return theme_named(name)
    own: Any = ax.get_figure()  # perhaps a subfigure, through which the whole one shows
    for figure in (own, own.figure):
        *color, alpha = to_rgba(figure.get_facecolor())
        if alpha > 0.5:
            dark = sum(w * c for w, c in zip(LUMA, color, strict=True)) < 0.5
            return THEMES["dark" if dark else "light"]
    return THEMES["light"]


LUMA: Final = (0.2126, 0.7152, 0.0722)  # how bright red, green and blue are


def theme_named(name: str) -> Theme:
    """Return a theme by name; raises `ValueError` for an unknown one."""
    if not isinstance(name, str) or name not in THEMES:
        known = ", ".join(THEMES)
        raise ValueError(f"theme: {describe(name)} is not allowed; must be one of {known}")
    return THEMES[name]


# Tops of the GB axis and their tick steps, in units of a power of ten.
TOPS: Final = (
    (1.0, 0.2), (1.2, 0.2), (1.5, 0.3), (1.8, 0.2), (2.0, 0.4), (2.4, 0.4), (3.0, 0.5),
    (4.0, 1.0), (5.0, 1.0), (6.0, 1.0), (8.0, 2.0), (10.0, 2.0),
)  # fmt: skip


def axis_top(need_gb: float, capacity_gb: float) -> float:
    """Return the top of the GB axis: round, at least 1.5 × capacity, above the need.

    Steps are coarse on purpose: the axis stays where it is while a slider moves a little.
    """
    least = max(1.5 * capacity_gb, 1.06 * need_gb) * (1 - 1e-9)
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(top for top, _ in TOPS if power * top >= least)


def plain_axes(ax: Axes, theme: Theme, **labels: bool) -> None:
    """Give axes the theme's ground and labels, whatever rcParams say: no spines, ticks or grid."""
    ax.set_facecolor(theme.background)
    ax.set_axisbelow(True)
    ax.set_autoscale_on(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(
        axis="both", which="both", length=0, pad=4, labelcolor=theme.muted, labelsize=TEXT,
        labelrotation=0, bottom=False, top=False, left=False, right=False,
        labeltop=False, labelright=False, **labels,
    )  # fmt: skip
    ax.grid(False, which="both", axis="both")


def axis_ticks(top: float) -> list[float]:
    """Return ticks from 0 to `top`, both included, 4 to 9 round steps apart."""
    power = 10.0 ** math.floor(math.log10(top * (1 + 1e-9)))
    step = power * min(TOPS, key=lambda row: abs(row[0] - top / power))[1]
    return [i * step for i in range(math.floor(top / step * (1 + 1e-9)) + 1)]


def write_tick(gb: float) -> str:
    """Write a tick of the GB axis in few characters: ``120``, ``150k``, ``2e14``."""
    if gb >= 1e6:
        return f"{gb:g}".replace("e+0", "e").replace("e+", "e")
    return f"{gb / 1000:g}k" if gb >= 10_000 else f"{gb:g}"


def write_count(count: float) -> str:
    """Write a number of tokens to three digits: ``600``, ``9.6k``, ``29.6k``, ``4.19M``."""
    if count < 999.5:
        return f"{count:.0f}"
    unit, letter = (1e6, "M") if count >= 999_500 else (1e3, "k")
    return f"{count / unit:.3g}{letter}"


def write_binary(count: float) -> str:
    """Write a power of two as people say it: ``512``, ``4k``, ``128k``, ``16M``."""
    for unit, letter in ((2**20, "M"), (2**10, "k")):
        if count >= unit:
            return f"{count / unit:g}{letter}"
    return f"{count:g}"
