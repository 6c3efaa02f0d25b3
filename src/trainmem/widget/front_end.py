"""The front end that the browser gets: `js/src/`, bundled into `static/`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["front_end"]

STATIC: Final = Path(__file__).parents[1] / "static"


def front_end(name: str) -> str | Path:
    """Return a file of the front end as text, or under ``ANYWIDGET_HMR=1`` as a live path."""
    path = STATIC / name
    return path if os.environ.get("ANYWIDGET_HMR") == "1" else path.read_text(encoding="utf-8")
