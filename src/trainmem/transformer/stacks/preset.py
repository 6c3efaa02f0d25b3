"""A stack by name: how people run a step, as a preset of a plan's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stack:
    """One row of the table.

    Attributes
    ----------
    name, label
        What to call it, in code and for people.
    options
        Options of :class:`Plan` that it sets, `framework` and `kernels` among them; what it does
        not name stays as the plan has it.
    source
        Where they come from.
    """

    name: str
    label: str
    options: Mapping[str, Any]
    source: str
