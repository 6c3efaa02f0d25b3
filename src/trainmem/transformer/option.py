"""What one option may be: a row of a table, from which validation and controls derive."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmem.transformer.rule import NotCovered
from trainmem.words import describe

#: The choices of a switch.
ON_OFF = ((False, "no"), (True, "yes"))


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: what a field of :class:`Plan` may be.

    Attributes
    ----------
    name
        Field of `Plan`.
    default
        What most people run.
    label, help, source
        For people: a name, one sentence, and where the behaviour was read or seen.
    listed
        Allowed values with a short label each; empty for numbers, and for what is in a table of
        its own.
    bounds
        Lowest and highest value of a number; (0, 0) where there are choices.
    rows
        The table whose rows can be chosen, each with a label: optimizers, say.
    words
        Values of a number that are words: `auto`, say.
    """

    name: str
    default: Any
    label: str
    help: str
    source: str
    listed: tuple[tuple[Any, str], ...] = ()
    bounds: tuple[int, int] = (0, 0)
    rows: Mapping[str, Any] | None = None
    words: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[tuple[Any, str], ...]:
        """Allowed values with a short label each; empty for numbers."""
        if self.rows is None:
            return self.listed
        return tuple((name, row.label) for name, row in self.rows.items())

    def check(self, value: Any) -> Any:
        """Return `value` in its own type, or raise :class:`NotCovered` that names the option."""
        if self.rows is not None:
            if isinstance(value, str) and value in self.rows:
                return value
        elif not self.listed:
            return value if isinstance(value, str) and value in self.words else self._number(value)
        for choice, _ in self.choices:
            if type(value) is type(choice) and value == choice:
                return choice
        allowed = ", ".join(repr(choice) for choice, _ in self.choices)
        reason = f"{self.name} must be one of {allowed}, got {describe(value)}"
        raise NotCovered(reason, self.name)

    def _number(self, value: Any) -> int:
        low, high = self.bounds
        try:
            number = operator.index(value)
        except Exception:  # a foreign object may fail in any way; the message must not
            number = low - 1
            if isinstance(value, float) and value.is_integer():
                number = int(value)
        boolean = type(value).__name__ in ("bool", "bool_")  # NumPy's before 2.3 is an index too
        if boolean or not low <= number <= high:
            words = "".join(f" or {word!r}" for word in self.words)
            allowed = f"an integer from {low} to {high}{words}"
            raise NotCovered(f"{self.name} must be {allowed}, got {describe(value)}", self.name)
        return number


@dataclass(frozen=True, slots=True)
class Settings(Option):
    """The row of options that one framework has alone: pairs of name and value, by name.

    What a framework has, and its defaults, is in its own table (`Framework.settings`), by which
    :class:`Plan` checks each.
    """

    def check(self, value: Any) -> tuple[tuple[str, Any], ...]:
        """Return a mapping, or pairs, as sorted pairs; raise :class:`NotCovered` for others."""
        try:
            found = dict(value)
        except (TypeError, ValueError):
            found = {None: None}
        if isinstance(value, str) or not all(isinstance(name, str) for name in found):
            reason = f"{self.name} must be a mapping of names to values, got {describe(value)}"
            raise NotCovered(reason, self.name)
        return tuple(sorted(found.items(), key=lambda pair: pair[0]))
