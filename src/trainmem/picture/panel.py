"""A panel of the figure: a matplotlib `Axes` with artists that can move.

A panel is styled once, scaled when an axis changes, and updated for each simulation: `scale`
touches what a frame renderer keeps as its background, `update` only the artists in `moving`.
Every property is set explicitly, so `rcParams` and style sheets change nothing here. One point
is one CSS pixel; labels are placed in points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.ticker import NullFormatter, NullLocator
from matplotlib.transforms import Transform
from numpy.typing import ArrayLike, NDArray

from trainmem.picture.lettering import LINE, Label, font, text_width
from trainmem.picture.placing import Places, Spot
from trainmem.picture.style import TEXT, TITLE, Theme, axis_ticks, plain_axes, write_tick
from trainmem.simulation import GB, Simulation

__all__ = ["ROW", "Line", "Panel", "move", "reshape"]

Array = NDArray[np.float64]

ROW: Final = LINE * TEXT
"""Height of a line of text, points."""


# Points change in place where their number stays: for new ones matplotlib makes new paths, which
# costs more than drawing them.


def move(line: Line2D, x: ArrayLike, y: ArrayLike) -> None:
    """Give a line other points."""
    points = np.asarray(line.get_xydata())
    if len(points) == len(x):  # type: ignore[arg-type]
        # What is drawn is the path, which before matplotlib 3.11 is a copy of the points.
        for held in (points, np.asarray(line.get_path().vertices)):
            held[:, 0], held[:, 1] = x, y
    else:
        line.set_data(x, y)


def reshape(area: Polygon, outline: Array) -> None:
    """Give an area another outline, shape (n, 2)."""
    points = np.asarray(area.get_xy())
    if len(points) == len(outline) + 1:  # the last one closes it
        points[:-1], points[-1] = outline, outline[0]
    else:
        area.set_xy(outline)


class Line(Line2D):
    """A line with every property given, simplified alike whatever the rcParams are."""

    def __init__(self, x: ArrayLike, y: ArrayLike, *, color: Any, width: float, **style: Any):
        look: dict[str, Any] = {
            "linestyle": "-", "marker": "None", "markersize": 6, "markeredgewidth": 0,
            "markerfacecolor": color, "markeredgecolor": color, "antialiased": True,
            "solid_capstyle": "butt", "solid_joinstyle": "round", "dash_capstyle": "butt",
            "dash_joinstyle": "round", "drawstyle": "default", "fillstyle": "full",
        }  # fmt: skip
        super().__init__(x, y, color=color, linewidth=width, **(look | style))

    def draw(self, renderer: Any) -> None:
        """Draw, unless hidden."""
        path = self.get_path()  # which is made anew, from rcParams, for other points
        path.should_simplify, path.simplify_threshold = len(np.asarray(path.vertices)) >= 128, 1 / 9
        super().draw(renderer)


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
        self.transform: Transform = ax.transData  # of the moving artists
        plain_axes(ax, theme, labelbottom=True)
        ax.set_title(
            self.title,
            loc="left",
            y=1.0,
            pad=8,
            color=theme.ink,
            fontproperties=font(TITLE, "bold"),
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
        for axis, ha, va in ((ax.xaxis, "center", "top"), (ax.yaxis, "right", "center_baseline")):
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
            for label in axis.get_ticklabels():  # new ones come with the user's rcParams
                label.set(fontproperties=font(TEXT), ha=ha, va=va)

    def update(self, simulation: Simulation, top: float) -> None:
        """Move the artists to show `simulation`."""
        points = 72 / self.ax.get_figure().dpi  # type: ignore[union-attr]
        box = self.ax.bbox
        self.places = Places(box.width * points, box.height * points, self.spill)
        self.top = top
        self.capacity = simulation.gpu_capacity_gb
        self.need = float(simulation.components.total) / GB

    def up(self, gb: float) -> float:
        """Return the height of `gb`, points."""
        return gb * self.places.height / self.top

    def write(self, label: Label, words: str, spots: Sequence[Spot]) -> None:
        """Write `words` at the best of `spots`; nothing where each would cover something.

        The picture is for the shape: each number that it names stands beside it too.
        """
        height = ROW + words.count("\n") * (ROW + 2)  # descenders between the lines
        # A little more than it measures: hinted at few pixels, letters are wider.
        spot = self.places.take(1.03 * text_width(words, TEXT) + 2, height + 1, spots)
        label.set_visible(spot is not None)
        if spot is None:
            return
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

    def _line(self, color: Any, width: float, zorder: float = 2, **style: Any) -> Any:
        line = Line([], [], color=color, width=width, zorder=zorder, transform=self.transform,
                    **style)  # fmt: skip
        return self._add(line)

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
