"""Frames for a live view: the figure of `trainmem.figure`, drawn in a few milliseconds.

All that stands still (axes, ticks, titles) is drawn once and kept as pixels; a frame copies
them back, draws the artists that move, and is written as a compact PNG. Nothing here knows
pyplot, so frames can be drawn on any thread and leave nothing behind.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from trainmem.figure import Drawing, frame_size, theme_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmem.simulation import Simulation

__all__ = ["FrameRenderer", "encode_png"]

RATIOS: Final = (0.5, 4.0)
MAX_PIXELS: Final = 6_000_000  # of one frame; a higher ratio is lowered to it
SURFACES: Final = 4  # sizes kept: two views, each in draft and at rest
BACKGROUND_BYTES: Final = 48_000_000  # of all backgrounds of one size


class FrameRenderer:
    """Draws frames of one widget; safe to call from any thread.

    Keeps one figure for each of the last few sizes, and a few backgrounds for each.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._surfaces: OrderedDict[tuple[int, float, str], _Surface] = OrderedDict()

    def render(
        self, simulation: Simulation, *, width: int, ratio: float, theme: str, draft: bool = False
    ) -> bytes:
        """Draw a frame.

        Parameters
        ----------
        simulation : Simulation
            What to show.
        width : int
            Width of the view, CSS pixels; see `trainmem.figure.frame_size`.
        ratio : float
            Device pixels per CSS pixel, taken into 0.5 to 4 and lowered where the picture
            would have more than `MAX_PIXELS`.
        theme : {"light", "dark"}
            Colours.
        draft : bool
            Draw at ratio 1, for a frame that the next one replaces at once.

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
            if not math.isfinite(value):
                raise ValueError(f"{name}: {value!r} is not allowed; must be a finite number")
        size = frame_size(width)
        ratio = min(max(float(ratio), RATIOS[0]), RATIOS[1])
        ratio = min(1.0 if draft else ratio, math.sqrt(MAX_PIXELS / (size[0] * size[1])))
        with self._lock:
            return self._surface(size, ratio, theme).draw(simulation)

    def close(self) -> None:
        """Drop every figure and background. A later `render` starts afresh."""
        with self._lock:
            self._surfaces.clear()

    def _surface(self, size: tuple[int, int], ratio: float, theme: str) -> _Surface:
        key = (size[0], ratio, theme)
        if key not in self._surfaces:
            while len(self._surfaces) >= SURFACES:
                self._surfaces.popitem(last=False)
            self._surfaces[key] = _Surface(size, ratio, theme)
        self._surfaces.move_to_end(key)
        return self._surfaces[key]


class _Surface:
    """One figure of one size with its backgrounds."""

    def __init__(self, size: tuple[int, int], ratio: float, theme: str) -> None:
        # A whole number of pixels, plus what a float may lose on the way through inches.
        width, height = (round(side * ratio) + 1e-6 for side in size)
        self.drawing = Drawing(width / ratio, height / ratio, theme, dpi=72 * ratio)
        self.canvas = FigureCanvasAgg(self.drawing.figure)
        self.moving = sorted(self.drawing.moving, key=lambda artist: artist.get_zorder())
        self.backgrounds: OrderedDict[tuple[float, ...], Any] = OrderedDict()
        self.most = max(2, BACKGROUND_BYTES // int(4 * width * height))

    def draw(self, simulation: Simulation) -> bytes:
        renderer = self.canvas.get_renderer()
        key = self.drawing.axes_key(simulation)
        if key != self.shown:
            self.drawing.scale(simulation)
            self.shown = key
        background = self._background(key)
        self.drawing.update(simulation)
        self.canvas.restore_region(background)
        for artist in self.moving:
            artist.draw(renderer)
        return encode_png(np.asarray(self.canvas.buffer_rgba()))

    shown: tuple[float, ...] | None = None

    def _background(self, key: tuple[float, ...]) -> Any:
        """Return the pixels of all that stands still, for axes scaled to `key`."""
        if key not in self.backgrounds:
            while len(self.backgrounds) >= self.most:
                self.backgrounds.popitem(last=False)
            for artist in self.moving:
                artist.set_animated(True)  # leaves it out of the drawing
            self.canvas.draw()
            self.backgrounds[key] = self.canvas.copy_from_bbox(self.drawing.figure.bbox)
        self.backgrounds.move_to_end(key)
        return self.backgrounds[key]


def encode_png(rgba: NDArray[np.uint8]) -> bytes:
    """Write opaque RGBA pixels, shape (height, width, 4), as a PNG."""
    height, width, _ = rgba.shape
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2  # filter "up": each byte less the one above
    pixels = np.ascontiguousarray(rgba[..., :3]).reshape(height, 3 * width)
    rows[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=rows[1:, 1:])
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(rows, 1)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
