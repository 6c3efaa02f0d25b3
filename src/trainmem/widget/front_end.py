"""The front end that the browser gets: `js/widget.js` and `js/widget.css`, packed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["front_end", "packed_text"]


def front_end(name: str) -> str | Path:
    """Return a file of the front end as text, or under ``ANYWIDGET_HMR=1`` as a live path."""
    packed = Path(__file__).parents[1] / "static"
    path = (packed if packed.is_dir() else Path(__file__).parents[3] / "js") / name
    if os.environ.get("ANYWIDGET_HMR") == "1":
        return path
    return packed_text(path.read_text(encoding="utf-8"), script=name.endswith(".js"))


_PIECES: Final = re.compile(
    r"""
    (?P<kept> '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*" | `(?:\\.|[^`\\])*`  # texts
    | (?<=[(,=:!&|?])[ ]?/(?![/*])(?:\\.|\[(?:\\.|[^]\\\n])*\]|[^/\\\n[])+/ )  # and patterns
    | (?P<gap> (?: \s | /\*.*?\*/ | //[^\n]* )+ )
    """,
    re.X | re.S,
)


def packed_text(text: str, *, script: bool) -> str:
    """Return a text of the front end without comments and needless space: all widgets send it.

    A script keeps its lines, at whose ends statements may end without a semicolon. It has no
    template within a template.
    """
    if not script:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        return re.sub(r"\s*([{};])\s*|(?<=[:,>])\s+", r"\1", text).strip()

    def close(found: re.Match[str]) -> str:
        if found["kept"]:
            return found["kept"]
        start, end = found.span()
        before, after = text[max(start - 1, 0) : start], text[end : end + 1]
        if "\n" in found["gap"]:
            return "" if before in "{,;(" or not before else "\n"
        apart = re.fullmatch(r"[\w$]{2}|\+\+|--", before + after)
        return " " if apart else ""

    return _PIECES.sub(close, text)
