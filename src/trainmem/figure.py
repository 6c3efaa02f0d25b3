"""The figure: memory against GPU count, against sequence length, and the HBM budget.

`plot` returns a matplotlib `Figure`; the `draw_…` functions draw one panel on axes of yours.
`trainmem.frames` draws the same panels fast enough to follow a slider.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure

from trainmem.config import FIELDS, grouped
from trainmem.panels import (
    BAR,
    COLORS,
    PANELS,
    THEMES,
    BudgetPanel,
    GpuPanel,
    Panel,
    SeqPanel,
    Theme,
    axis_top,
    font,
    longest_sequence,
    write_capacity,
    write_gb,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainmem.simulation import Simulation

__all__ = [
    "COLORS",
    "THEMES",
    "Drawing",
    "Theme",
    "describe",
    "draw_budget",
    "draw_gpu_sweep",
    "draw_seq_sweep",
    "frame_size",
    "plot",
]


def plot(
    simulation: Simulation, *, theme: str = "light", size: tuple[float, float] = (9.0, 4.2)
) -> Figure:
    """Draw the three panels.

    Parameters
    ----------
    simulation : Simulation
        What to show.
    theme : {"light", "dark"}
        Colours.
    size : tuple of float
        Width and height, inches. Narrow figures stack the panels.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, unknown to pyplot: save it with ``savefig``, or leave it as the
        last line of a cell.

    Raises
    ------
    ValueError
        For an unknown theme.
    """
    drawing = Drawing(size[0] * 72, size[1] * 72, theme)
    drawing.scale(simulation)
    drawing.update(simulation)
    return drawing.figure


def draw_gpu_sweep(
    ax: Axes, simulation: Simulation, *, theme: str = "light", top: float | None = None
) -> None:
    """Draw memory per GPU against GPU count on `ax`; `top` is the top of the y axis, GB."""
    _draw(GpuPanel(ax, theme_named(theme)), simulation, top)


def draw_seq_sweep(
    ax: Axes, simulation: Simulation, *, theme: str = "light", top: float | None = None
) -> None:
    """Draw memory per GPU against sequence length on `ax`; `top` as in `draw_gpu_sweep`."""
    _draw(SeqPanel(ax, theme_named(theme)), simulation, top)


def draw_budget(
    ax: Axes, simulation: Simulation, *, theme: str = "light", top: float | None = None
) -> None:
    """Draw the HBM budget as a stacked bar on `ax`; `top` as in `draw_gpu_sweep`."""
    _draw(BudgetPanel(ax, theme_named(theme)), simulation, top)


def _draw(panel: Panel, simulation: Simulation, top: float | None) -> None:
    top = axis_top(simulation) if top is None else top
    panel.scale(simulation, top)
    panel.update(simulation, top)


def theme_named(name: str) -> Theme:
    """Return a theme by name; raises `ValueError` for an unknown one."""
    if name not in THEMES:
        raise ValueError(f"theme: {name!r} is not allowed; must be one of {', '.join(THEMES)}")
    return THEMES[name]


def describe(simulation: Simulation) -> str:
    """Return the figure in words, as the text alternative of its image."""
    need, capacity = simulation.components, write_capacity(simulation.gpu_capacity_gb)
    margin = write_gb(abs(simulation.headroom_gb))
    result = (
        f"fits, {margin} GB of headroom" if simulation.fits else f"does not fit, {margin} GB short"
    )
    parts = ", ".join(f"{name} {write_gb(getattr(need, name) / 1e9)}" for name in COLORS)
    fewest, longest = simulation.min_gpus_to_fit, longest_sequence(simulation)
    gpus = "no GPU count fits" if fewest is None else f"at least {grouped(fewest)} GPUs fit it"
    if longest is None:
        tokens = "no sequence length fits"
    elif longest >= FIELDS["seq_length"].bounds[1]:
        tokens = "every sequence length fits"
    else:
        tokens = f"sequences fit up to {grouped(int(longest))} tokens"
    return (
        f"Memory per GPU: {write_gb(need.total / 1e9)} of {capacity} GB, {result}. "
        f"GB by kind: {parts}. At this setting {gpus}; {tokens}."
    )


class Rect(NamedTuple):
    """Where a panel lies in the figure, points from the lower left corner."""

    left: float
    bottom: float
    width: float
    height: float


LEFT, RIGHT, TOP, BOTTOM = 50.0, 12.0, 28.0, 40.0  # margins of a row: axis, rim, title, axis
BUDGET = BAR + 112.0  # the bar and its labels
ONE_ROW, TWO_ROWS = 600.0, 380.0  # widths from which the panels fit so


def frame_size(width: int) -> tuple[int, int]:
    """Return the size of the picture for a view `width` CSS pixels wide, also CSS pixels.

    Widths end at 280 and 2000.
    """
    width = round(min(max(width, 280), 2000))
    if width >= ONE_ROW:
        return width, round(min(max(0.48 * width, 310), 560))
    return width, 500 if width >= TWO_ROWS else 660


def layout(width: float, height: float) -> dict[str, Rect]:
    """Return where each panel goes; those that start a row carry the y axis' labels."""
    gap = 34.0
    if width >= ONE_ROW:
        curves = width - LEFT - gap - 22 - BUDGET
        tall = height - TOP - BOTTOM
        first = 0.53 * curves
        return {
            "gpus": Rect(LEFT, BOTTOM, first, tall),
            "seq": Rect(LEFT + first + gap, BOTTOM, curves - first, tall),
            "budget": Rect(width - BUDGET, BOTTOM, BUDGET, tall),
        }
    rows = 2 if width >= TWO_ROWS else 3
    tall = height / rows - TOP - BOTTOM
    bottoms = [BOTTOM + i * height / rows for i in reversed(range(rows))]
    whole = width - LEFT - RIGHT
    if rows == 3:
        return {
            name: Rect(LEFT, bottom, whole, tall)
            for name, bottom in zip(PANELS, bottoms, strict=True)
        }
    return {
        "gpus": Rect(LEFT, bottoms[0], whole, tall),
        "seq": Rect(LEFT, bottoms[1], width - LEFT - 22 - BUDGET, tall),
        "budget": Rect(width - BUDGET, bottoms[1], BUDGET, tall),
    }


class PictureFigure(Figure):
    """A figure that notebooks show as it is, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=self.dpi)
        return buffer.getvalue()


class Drawing:
    """The figure and its panels, ready to show one simulation after another.

    Parameters
    ----------
    width, height : float
        Points.
    theme : str
        Name of a theme.
    dpi : float
        72 draws one pixel a point.
    """

    def __init__(self, width: float, height: float, theme: str, dpi: float = 100) -> None:
        colors = theme_named(theme)
        self.figure = PictureFigure(
            figsize=(width / 72, height / 72), dpi=dpi, layout="none", linewidth=0,
            facecolor=colors.background, edgecolor="none", frameon=True,
        )  # fmt: skip
        self.panels: list[Panel] = []
        for name, rect in layout(width, height).items():
            ax = self.figure.add_axes(
                (rect.left / width, rect.bottom / height, rect.width / width, rect.height / height)
            )
            first = rect.left == LEFT
            self.panels.append(PANELS[name](ax, colors))
            ax.tick_params(axis="y", labelleft=first)
            if first:
                ax.set_ylabel(
                    "GB per GPU", loc="center", color=colors.muted, fontproperties=font(10.5)
                )
                ax.yaxis.set_label_coords((14 - LEFT) / rect.width, 0.5)
        self.moving = [artist for panel in self.panels for artist in panel.moving]

    def axes_key(self, simulation: Simulation) -> tuple[float, ...]:
        """Return all that `scale` depends on."""
        ends = [end for panel in self.panels for end in panel.range(simulation)]
        return (axis_top(simulation), *ends)

    def scale(self, simulation: Simulation) -> None:
        """Set the axes."""
        for panel in self.panels:
            panel.scale(simulation, axis_top(simulation))

    def update(self, simulation: Simulation) -> None:
        """Move the artists."""
        for panel in self.panels:
            panel.update(simulation, axis_top(simulation))
