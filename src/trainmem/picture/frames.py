"""Frames for a live view: the figure of `trainmem.picture.figure`, drawn in a few milliseconds.

All that stands still (axes, ticks, titles) is drawn once and kept as pixels; a frame copies
them back, draws the artists that move, and is written as a compact PNG. Nothing here knows
pyplot, so frames can be drawn on any thread and leave nothing behind.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict, deque
from dataclasses import asdict
from functools import lru_cache
from numbers import Real
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.typing import ColorType
from PIL import Image

from trainmem.picture.figure import Drawing, frame_size
from trainmem.picture.style import (
    COLORS,
    GATHERED,
    GRID_SHARE,
    LOGITS,
    THEMES,
    mix,
    theme_named,
)
from trainmem.words import describe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmem.simulation import Simulation

__all__ = ["FrameRenderer", "encode_png"]

RATIOS: Final = (0.5, 4.0)
MAX_PIXELS: Final = 6_000_000  # of one frame; a higher ratio is lowered to it
SURFACES: Final = 4  # sizes kept: two views, each in draft and at rest
FRAMES: Final = 6  # finished ones kept: the last few, and some drawn ahead
BACKGROUND_BYTES: Final = 16_000_000  # of all backgrounds of one size

Kind = tuple[tuple[int, int], float, str]
"""What frames of one kind share: width and height in CSS pixels, pixel ratio, theme."""

CELL: Final = 4  # Pillow tells colours of a palette apart by cells of this many levels


class FrameRenderer:
    """Draws frames of one widget; safe to call from any thread.

    Keeps one figure for each of the last few sizes, a few backgrounds for each, and the last few
    frames, so that what was drawn ahead is there when it is asked for.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._surfaces: OrderedDict[Kind, _Surface] = OrderedDict()
        self._frames: deque[tuple[Kind, Simulation, bytes]] = deque(maxlen=FRAMES)

    def render(
        self, simulation: Simulation, *, width: int, ratio: float, theme: str, draft: bool = False
    ) -> bytes:
        """Draw a frame.

        Parameters
        ----------
        simulation : Simulation
            What to show.
        width : int
            Width of the view, CSS pixels; see `trainmem.picture.figure.frame_size`.
        ratio : float
            Device pixels per CSS pixel, taken into 0.5 to 4 and lowered where the picture
            would have more than `MAX_PIXELS`.
        theme : {"light", "dark"}
            Colours.
        draft : bool
            Draw at ratio 1 at most, for a frame that the next one replaces at once.

        Returns
        -------
        bytes
            PNG.

        Raises
        ------
        ValueError
            For a width or ratio that isn't a finite number, or an unknown theme.
        """
        theme_named(theme)
        for name, value in (("width", width), ("ratio", ratio)):
            if not isinstance(value, Real) or not math.isfinite(value):
                raise ValueError(
                    f"{name}: {describe(value)} is not allowed; must be a finite number"
                )
        size = frame_size(width)
        lowest, highest = RATIOS
        highest = min(1.0 if draft else highest, math.sqrt(MAX_PIXELS / (size[0] * size[1])))
        ratio = min(max(float(ratio), lowest), highest)
        with self._lock:
            key = (size, ratio, theme)
            for kept, shown, png in self._frames:
                if kept == key and shown == simulation:
                    return png
            png = self._surface(key).draw(simulation)
            self._frames.append((key, simulation, png))
            return png

    def close(self) -> None:
        """Drop every figure and background. A later `render` starts afresh."""
        with self._lock:
            self._surfaces.clear()
            self._frames.clear()

    def _surface(self, key: Kind) -> _Surface:
        if key not in self._surfaces:
            self._surfaces[key] = _Surface(*key)
            if len(self._surfaces) > SURFACES:
                self._surfaces.popitem(last=False)
        self._surfaces.move_to_end(key)
        return self._surfaces[key]


class _Surface:
    """One figure of one size, with the pixels of all that stands still in it."""

    def __init__(self, size: tuple[int, int], ratio: float, theme: str) -> None:
        width, height = size
        self.theme = theme
        self.drawing = Drawing(width, height, theme, dpi=72 * ratio)
        self.canvas: Any = FigureCanvasAgg(self.drawing.figure)
        self.moving = self.drawing.moving
        for artist in self.moving:
            artist.set_animated(True)  # which leaves it out of `canvas.draw`
        self.axes: tuple[float, ...] | None = None
        self.backgrounds: OrderedDict[tuple[float, ...], Any] = OrderedDict()
        self.most = max(1, int(BACKGROUND_BYTES / (4 * width * height * ratio**2)))

    def draw(self, simulation: Simulation) -> bytes:
        """Draw a frame: the background, then what moves."""
        axes = self.drawing.axes_key(simulation)
        if axes != self.axes:
            self.drawing.scale(simulation)
            self.axes = axes
        background = self._background(axes)
        self.drawing.update(simulation)
        self.canvas.restore_region(background)
        renderer = self.canvas.get_renderer()
        for artist in self.moving:
            artist.draw(renderer)
        return encode_png(self.canvas, self.theme, card=simulation.peak_case is not None)

    def _background(self, axes: tuple[float, ...]) -> Any:
        if axes not in self.backgrounds:
            self.canvas.draw()
            self.backgrounds[axes] = self.canvas.copy_from_bbox(self.drawing.figure.bbox)
            if len(self.backgrounds) > self.most:
                self.backgrounds.popitem(last=False)
        self.backgrounds.move_to_end(axes)
        return self.backgrounds[axes]


@lru_cache(maxsize=2 * len(THEMES))
def palette(theme: str, *, card: bool = False) -> NDArray[np.uint8]:
    """Return the colours of a theme's frames, shape (n ≤ 256, 3): each once, plain ones first.

    The plain colours are exact; between those that meet there are steps for smooth edges.
    With `card` the colours of its band are added.
    """
    look, parts = theme_named(theme), (*COLORS.values(), GATHERED, LOGITS)
    plain = [*asdict(look).values(), look.grid, look.states, look.activations, *parts]
    grounds = (look.background, look.states, look.activations)
    lines = (look.ink, look.capacity, look.fits, look.floor)
    edges: list[tuple[ColorType, ColorType, int]]
    edges = [(ground, line, 10) for ground in grounds for line in lines]
    edges += [(look.background, color, 6) for color in (look.muted, look.free, *parts)]
    edges += [(look.capacity, color, 3) for color in (look.ink, look.grid, *parts)]
    edges += [(look.floor, look.ink, 4)]
    blends = [mix(area, look.ink, GRID_SHARE) for area in (look.states, look.activations)]
    if card:
        plain += [look.card, look.rim]
        edges += [(look.card, line, 8) for line in (look.ink, look.muted, *lines[1:])]
        edges += [(look.background, look.rim, 4), (look.card, look.rim, 4)]
        blends.append(mix(look.card, look.ink, GRID_SHARE))
    blends += [mix(low, high, i / steps) for low, high, steps in edges for i in range(1, steps)]
    distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
    for color in (*plain, *blends):
        levels = tuple(round(255 * part) for part in to_rgb(color))
        distinct.setdefault(tuple(level // CELL for level in levels), levels)
    return np.array(list(distinct.values())[:256], np.uint8)


@lru_cache(maxsize=2 * len(THEMES))
def _cells(theme: str, *, card: bool = False) -> Image.Image:
    """Return the palette as Pillow looks colours up: by the low corner of their cell."""
    image = Image.new("P", (1, 1))
    corners: NDArray[np.uint8] = palette(theme, card=card) // CELL * CELL
    rest = np.broadcast_to(corners[:1], (256 - len(corners), 3))
    image.putpalette(np.concatenate((corners, rest)).tobytes())
    return image


def encode_png(canvas: Any, theme: str, *, card: bool = False) -> bytes:
    """Write an Agg canvas as a PNG in the colours of `palette`, with those of the card or not.

    A byte a pixel and runs instead of searches: a tenth of the time of a plain `savefig`.
    """
    width, height = canvas.get_width_height(physical=True)
    image = Image.frombytes("RGB", (width, height), canvas.buffer_rgba(), "raw", "RGBX")
    indices = image.quantize(palette=_cells(theme, card=card), dither=Image.Dither.NONE)
    rows = np.zeros((height, 1 + width), np.uint8)  # each row starts with its filter: none
    rows[:, 1:] = np.asarray(indices)
    runs = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 5, zlib.Z_RLE)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette(theme, card=card).tobytes()),
            _chunk(b"IDAT", runs.compress(rows.data) + runs.flush()),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
