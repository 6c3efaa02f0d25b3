"""Drawing ahead: the next steps of the slider last moved, while the kernel rests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trainmem.words import Number

__all__ = ["Ahead"]

REST_SECONDS: Final = 0.05
"""After so long without a request, the next steps of the slider last moved are drawn ahead."""

Values = Callable[[], list[Number]]
Draw = Callable[[Number], None]


class Ahead:
    """One plan at a time to draw some values, one each time the event loop has nothing to do."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Drop the plan."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def plan(self, values: Values, draw: Draw) -> None:
        """Draw, once the kernel rests, what `values` then returns; without a loop, never."""
        with suppress(RuntimeError):  # no event loop here
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REST_SECONDS, lambda: self._next(values(), draw))

    def _next(self, values: list[Number], draw: Draw) -> None:
        value, *others = values
        draw(value)
        self._timer = None
        if others:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0, self._next, others, draw)
