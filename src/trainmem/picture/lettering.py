"""Text that changes every frame, pasted from pixels of words and digits drawn before.

Laying out and hinting ten short labels takes matplotlib longer than everything else in a frame.
Their words never change and their numbers are made of ten digits, so each word and digit is
drawn once, at whole pixels, and copied after that.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from numpy.typing import NDArray

__all__ = ["Label", "font", "plain", "text_width"]

LINE: Final = 1.2  # distance of lines, em
BASELINE: Final = 0.94  # from the top of a line, em: capitals then stand in its middle
PIECES: Final = re.compile(r"\d|\D+")
FINE: Final = 1440.0  # dpi at which hinting hardly moves anything
MARGIN: Final = 2  # pixels around a piece, for ink beyond its advance


def font(size: float, weight: str = "normal") -> FontProperties:
    """Return the font that ships with matplotlib, every property set."""
    return FontProperties(
        family="DejaVu Sans", style="normal", variant="normal", weight=weight, stretch="normal",
        size=size,
    )  # fmt: skip


def plain(artist: Artist) -> None:
    """Undo what rcParams may have set at the birth of an artist and of all that it holds.

    And letter texts as they are: what a user named is never read as mathematics.
    """
    for each in artist.findobj():
        each.set_sketch_params(None)
        each.set_path_effects([])
        if isinstance(each, Text):
            each.set(usetex=False, parse_math=False, antialiased=True)


def text_width(words: str, size: float) -> float:
    """Return the width of the longest line of `words`, points, whatever the resolution."""
    return max(_width(line, size, FINE) for line in words.split("\n")) * 72 / FINE


class Label(Text):
    """A horizontal text in `font`; in pixel output, pasted from kept pieces.

    Vector output, and all that measures it, goes matplotlib's usual way.

    Parameters
    ----------
    color : str
        Colour.
    size : float
        Points.
    **properties
        As of `matplotlib.text.Text`.
    """

    def __init__(self, color: str, size: float, **properties: Any) -> None:
        super().__init__(
            0, 0, "", color=color, fontproperties=font(size), usetex=False, parse_math=False,
            antialiased=True, linespacing=LINE, rotation=0, wrap=False, **properties,
        )  # fmt: skip

    def draw(self, renderer: Any) -> None:
        """Draw, unless hidden."""
        if not isinstance(renderer, RendererAgg):
            super().draw(renderer)
            return
        if not self.get_visible():
            return
        size, dpi = float(self.get_fontsize()), float(renderer.dpi)
        x, y = self.get_transform().transform(self.get_position())
        lines = self.get_text().split("\n")
        em = size * dpi / 72
        share = {"bottom": 1.0, "center": 0.5, "top": 0.0}[self.get_verticalalignment()]
        top = y + share * LINE * em * len(lines)
        share = {"left": 0.0, "center": 0.5, "right": 1.0}[self.get_horizontalalignment()]
        color, below = to_rgb(self.get_color()), _reach(size, dpi)[1]
        gc = renderer.new_gc()
        for i, line in enumerate(lines):
            left = round(x - share * _width(line, size, dpi)) - MARGIN
            bottom = round(top - (i * LINE + BASELINE) * em) - below
            along = 0.0
            for piece in PIECES.findall(line):
                ink = _piece(piece, size, dpi, color)
                renderer.draw_image(gc, left + round(along), bottom, ink)
                along += _advance(piece, size, dpi)
        gc.restore()


def _width(line: str, size: float, dpi: float) -> float:
    return sum(_advance(piece, size, dpi) for piece in PIECES.findall(line))


@lru_cache(maxsize=512)
def _piece(
    piece: str, size: float, dpi: float, color: tuple[float, float, float]
) -> NDArray[np.uint8]:
    """Return a word or digit as RGBA pixels, the lowest row first as `draw_image` reads them."""
    above, below = _reach(size, dpi)
    width = math.ceil(_advance(piece, size, dpi)) + 2 * MARGIN
    renderer = _renderer(width, above + below, dpi)
    gc = renderer.new_gc()
    gc.set_antialiased(True)
    renderer.draw_text(gc, MARGIN, above, piece, font(size), 0)
    image = np.array(np.asarray(renderer.buffer_rgba())[::-1])
    image[..., :3] = np.round(np.multiply(color, 255))  # of the drawn, only the coverage counts
    return image


@lru_cache(maxsize=512)
def _advance(piece: str, size: float, dpi: float) -> float:
    """Return how far a piece moves the pen, pixels: what it adds between two digits."""
    renderer, properties = _renderer(1, 1, dpi), font(size)

    def width(text: str) -> float:
        return float(renderer.get_text_width_height_descent(text, properties, False)[0])

    return width(f"0{piece}0") - width("00")


def _renderer(width: int, height: int, dpi: float) -> Any:
    return RendererAgg(width, height, dpi)  # type: ignore[no-untyped-call]


def _reach(size: float, dpi: float) -> tuple[int, int]:
    """Return how many rows a line needs above and below its baseline."""
    em = size * dpi / 72
    return math.ceil(em), math.ceil(0.3 * em)
