"""How numbers and values are written, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Number", "cut", "describe", "grouped", "nearest", "write_capacity", "write_gb"]

Number = int | float


def describe(value: object, limit: int = 60) -> str:
    """Return ``repr(value)``, cut to `limit` characters and safe for any object.

    Whatever a message says of a value that came from outside goes through here.
    """
    if isinstance(value, int) and value.bit_length() > 8 * limit:
        return f"an integer of {value.bit_length()} bits"  # repr() itself refuses the largest
    try:
        text = repr(value)
    except Exception:  # a foreign object may fail in any way; the message must not
        text = f"<{type(value).__name__}>"
    return cut(text, limit)


def cut(text: str, limit: int = 60) -> str:
    """Return a text on one line, cut to `limit` characters."""
    text = " ".join(text[: 4 * limit].split())  # an array's repr has lines
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the known name most like a wrong one as a hint, or "" where none is."""
    if not isinstance(name, str) or len(name) > 100:  # comparing takes the longer the longer it is
        return ""
    from difflib import get_close_matches  # slow to import, seldom needed

    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


def grouped(value: Number) -> str:
    """Write a number with a space between thousands from 10 000: ``1 000 000``, ``4096``."""
    return f"{value:,}".replace(",", " ") if abs(value) >= 10_000 else f"{value:g}"


def write_gb(gb: float) -> str:
    """Write GB, or a percentage, for people: ``55.1``, ``0.02``, ``1262``, ``7.8×10¹⁴``."""
    if abs(gb) >= 1e6:
        mantissa, _, exponent = f"{gb:.1e}".partition("e")
        return f"{mantissa}×10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    if abs(gb) >= 999.95:
        return grouped(round(gb))
    if abs(gb) >= 0.05 or gb == 0:
        return f"{gb:.1f}"
    return f"{gb:.2g}" if abs(gb) >= 0.001 else "<0.001"


SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_capacity(gb: float) -> str:
    """Write a capacity, GB: ``80``, ``84.9``, ``0.1``."""
    return write_gb(gb).removesuffix(".0")
