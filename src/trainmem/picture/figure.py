"""The figure: memory against GPU count, against sequence length, and the HBM budget.

`plot` returns a matplotlib `Figure`; the `draw_…` functions draw one panel on axes of yours.
`trainmem.picture.frames` draws the same panels fast enough to follow a slider.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib import rcParams
from matplotlib.figure import Figure

from trainmem.picture.budget import BAR, BudgetPanel
from trainmem.picture.card import card_of
from trainmem.picture.gpu_sweep import GpuPanel
from trainmem.picture.lettering import font, plain
from trainmem.picture.panel import Panel
from trainmem.picture.seq_sweep import LONGEST, SeqPanel, longest_sequence
from trainmem.picture.style import (
    COLORS,
    TEXT,
    THEMES,
    Theme,
    axis_top,
    theme_named,
    theme_on,
)
from trainmem.picture.timeline import draw_timeline, lay_out
from trainmem.simulation import GB, Simulation
from trainmem.words import grouped, write_capacity, write_gb

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = [
    "COLORS",
    "THEMES",
    "Drawing",
    "Theme",
    "describe",
    "draw_budget",
    "draw_gpu_sweep",
    "draw_seq_sweep",
    "draw_timeline",
    "frame_size",
    "plot",
    "plot_timeline",
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
        For an unknown theme, or a size too small for the panels.
    """
    drawing = Drawing(size[0] * 72, size[1] * 72, theme)
    drawing.scale(simulation)
    drawing.update(simulation)
    return drawing.figure


def plot_timeline(
    simulation: Simulation, *, theme: str = "light", size: tuple[float, float] = (11.0, 4.2)
) -> Figure:
    """Draw the memory of one step over time.

    Parameters
    ----------
    simulation : Simulation
        What to show; it needs an architecture.
    theme : {"light", "dark"}
        Colours.
    size : tuple of float
        Width and height, inches; at least 5.5 × 2.5. Narrow figures put the legend below.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, unknown to pyplot.

    Raises
    ------
    ValueError
        Under the reduced-order model, which has no timeline; for an unknown theme, or a size too
        small.
    """
    figure = PictureFigure(
        figsize=size, dpi=100, linewidth=0, facecolor=theme_named(theme).background,
        edgecolor="none", frameon=True,
    )  # fmt: skip
    figure.set_layout_engine("none")
    rect, legend = lay_out(size[0] * 72, size[1] * 72)
    draw_timeline(figure.add_axes(rect), simulation, theme=theme, legend=legend)
    return figure


def draw_gpu_sweep(
    ax: Axes, simulation: Simulation, *, theme: str | None = None, top: float | None = None
) -> None:
    """Draw memory per GPU against GPU count on `ax`.

    The theme is the one that goes with the figure of `ax`, unless it is named; `top` is the top of
    the y axis, GB.
    """
    _draw(GpuPanel(ax, theme_on(ax, theme)), simulation, top)


def draw_seq_sweep(
    ax: Axes, simulation: Simulation, *, theme: str | None = None, top: float | None = None
) -> None:
    """Draw memory per GPU against sequence length on `ax`, as `draw_gpu_sweep` does."""
    _draw(SeqPanel(ax, theme_on(ax, theme)), simulation, top)


def draw_budget(
    ax: Axes, simulation: Simulation, *, theme: str | None = None, top: float | None = None
) -> None:
    """Draw the HBM budget as a stacked bar on `ax`, as `draw_gpu_sweep` does."""
    _draw(BudgetPanel(ax, theme_on(ax, theme)), simulation, top)


def _draw(panel: Panel, simulation: Simulation, top: float | None) -> None:
    top = _top(simulation) if top is None else top
    panel.scale(simulation, top)
    panel.update(simulation, top)
    plain(panel.ax)


def describe(simulation: Simulation) -> str:
    """Return the figure in words, as the text alternative of its image."""
    need, capacity = simulation.components, write_capacity(simulation.gpu_capacity_gb)
    margin = write_gb(abs(simulation.headroom_gb))
    grade = {"uncertain": "may not fit"}.get(simulation.grade, simulation.grade)
    result = f"{grade}, {margin} GB " + ("of headroom" if simulation.fits else "short")
    parts = ", ".join(f"{name} {write_gb(getattr(need, name) / GB)}" for name in COLORS)
    fewest, longest = simulation.min_gpus_to_fit, longest_sequence(simulation)
    gpus = "no GPU count fits" if fewest is None else f"at least {grouped(fewest)} GPUs fit it"
    if longest is None:
        tokens = "no sequence length fits"
    elif longest >= LONGEST:
        tokens = "every sequence length fits"
    else:
        tokens = f"sequences fit up to {grouped(int(longest))} tokens"
    return (
        f"Memory per GPU: {write_gb(need.total / GB)} of {capacity} GB, {result}. "
        f"GB by kind: {parts}. At this setting {gpus}; {tokens}."
    )


def _top(simulation: Simulation) -> float:
    need, card = float(simulation.components.total) / GB, card_of(simulation)
    return axis_top(need if card is None else max(need, card[1]), simulation.gpu_capacity_gb)


class Rect(NamedTuple):
    """Where a panel lies in the figure, points from the lower left corner."""

    left: float
    bottom: float
    width: float
    height: float


LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 28.0, 40.0  # margins of a row: axis, rim, title, axis
BUDGET = BAR + 128.0  # the bar and its labels
GAP, NEAR = 34.0, 22.0  # between the two sweeps, before the budget
ONE_ROW, TWO_ROWS = 600.0, 380.0  # widths from which the panels fit so
NARROWEST, SHORTEST = 200.0, 50.0  # width of a figure, height of a panel


def frame_size(width: int) -> tuple[int, int]:
    """Return the size of the picture for a view `width` CSS pixels wide, also CSS pixels.

    Widths end at 280 and 2000.
    """
    width = round(min(max(width, 280), 2000))
    if width >= ONE_ROW:
        return width, 2 * round(min(max(0.24 * width, 155), 280))  # even: whole at ratio 1.5
    return width, 500 if width >= TWO_ROWS else 660


def layout(width: float, height: float) -> dict[str, Rect]:
    """Return where each panel goes; those that start a row carry the y axis' labels.

    Raises
    ------
    ValueError
        Where the panels wouldn't fit.
    """
    rows = 1 if width >= ONE_ROW else 2 if width >= TWO_ROWS else 3
    least = rows * (TOP + BOTTOM + SHORTEST)
    if width < NARROWEST or height < least:
        raise ValueError(
            f"size: {width / 72:.1f} × {height / 72:.1f} inches is not allowed; at this width it "
            f"must be at least {max(width, NARROWEST) / 72:.1f} × {least / 72:.1f}"
        )
    tall = height / rows - TOP - BOTTOM
    bottoms = [BOTTOM + row * height / rows for row in reversed(range(rows))]
    first, last = bottoms[0], bottoms[-1]
    whole = width - LEFT - RIGHT
    beside = width - LEFT - NEAR - BUDGET  # what the budget leaves of a row
    budget = Rect(width - BUDGET, last, BUDGET, tall)
    if rows == 1:
        gpus = 0.53 * (beside - GAP)
        seq = Rect(LEFT + gpus + GAP, last, beside - GAP - gpus, tall)
        return {"gpus": Rect(LEFT, first, gpus, tall), "seq": seq, "budget": budget}
    if rows == 2:
        seq = Rect(LEFT, last, beside, tall)
        return {"gpus": Rect(LEFT, first, whole, tall), "seq": seq, "budget": budget}
    return {
        name: Rect(LEFT, bottom, whole, tall) for name, bottom in zip(PANELS, bottoms, strict=True)
    }


PANELS: Final[Mapping[str, Callable[[Axes, Theme, float], Panel]]] = {
    "gpus": GpuPanel,
    "seq": SeqPanel,
    "budget": BudgetPanel,
}


class PictureFigure(Figure):
    """A figure that notebooks show as it is, whether or not pyplot was ever imported.

    Nor do rcParams change how it is saved: what isn't said is as the figure is.
    """

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure, as `matplotlib.figure.Figure.savefig` does."""
        given = {name: value for name, value in options.items() if value is not None}
        said: dict[str, Any] = {
            "dpi": "figure",
            "facecolor": "auto",
            "edgecolor": "auto",
            "transparent": False,
        }
        if rcParams["savefig.bbox"] is not None:  # None would mean that
            said["bbox_inches"] = self.bbox_inches
        if "." not in os.path.basename(fname if isinstance(fname, str | os.PathLike) else ""):
            said["format"] = "png"
        super().savefig(fname, **(said | given))

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
        # A hair more than whole, which floats may lose on the way through inches to pixels.
        width, height = width + 1e-6, height + 1e-6
        self.figure = PictureFigure(
            figsize=(width / 72, height / 72), dpi=dpi, linewidth=0,
            facecolor=colors.background, edgecolor="none", frameon=True,
        )  # fmt: skip
        self.figure.set_layout_engine("none")
        self.panels: list[Panel] = []
        for name, rect in layout(width, height).items():
            ax = self.figure.add_axes(
                (rect.left / width, rect.bottom / height, rect.width / width, rect.height / height)
            )
            first = rect.left == LEFT
            spill = min(GAP, width - rect.left - rect.width) - 8
            self.panels.append(PANELS[name](ax, colors, spill))
            ax.tick_params(axis="y", labelleft=first)
            # Hardly off the middle: text lands on whole pixels, and halves would go either way.
            ax.xaxis.set_label_coords(0.5 + 0.1 / rect.width, -20 / rect.height)
            if first:
                ax.set_ylabel(
                    "GB per GPU", loc="center", color=colors.muted, fontproperties=font(TEXT)
                )
                ax.yaxis.set_label_coords((14 - LEFT) / rect.width, 0.5 + 0.1 / rect.height)

    @property
    def moving(self) -> list[Artist]:
        """The artists that `update` moves, in the order in which they are drawn."""
        return [
            artist
            for panel in self.panels
            for artist in sorted(panel.moving, key=lambda artist: artist.get_zorder())
        ]

    def axes_key(self, simulation: Simulation) -> tuple[float, ...]:
        """Return all that `scale` depends on."""
        ends = [end for panel in self.panels for end in panel.range(simulation)]
        return (_top(simulation), *ends)

    def scale(self, simulation: Simulation) -> None:
        """Set the axes."""
        for panel in self.panels:
            panel.scale(simulation, _top(simulation))
        plain(self.figure)

    def update(self, simulation: Simulation) -> None:
        """Move the artists."""
        for panel in self.panels:
            panel.update(simulation, _top(simulation))
