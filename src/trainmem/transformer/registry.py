"""Adding a family, a stack or an optimizer of one's own."""

from __future__ import annotations

from typing import Any

from trainmem.transformer.families import FAMILIES, Family
from trainmem.transformer.inputs import forget as forget_plans
from trainmem.transformer.optimizers import OPTIMIZERS, Optimizer
from trainmem.transformer.program import forget as forget_programs
from trainmem.transformer.stacks import FRAMEWORKS, KERNELS, STACKS, Framework, Kernels, Stack
from trainmem.words import describe

_TABLES: tuple[tuple[type, dict[str, Any]], ...] = (
    (Family, FAMILIES),
    (Framework, FRAMEWORKS),
    (Kernels, KERNELS),
    (Stack, STACKS),
    (Optimizer, OPTIMIZERS),
)


def _table_of(row: object) -> dict[str, Any]:
    for kind, table in _TABLES:
        if isinstance(row, kind):
            return table
    kinds = ", ".join(kind.__name__ for kind, _ in _TABLES)
    raise TypeError(f"add takes one of {kinds}, not {describe(row)}")


def add(row: Family | Framework | Kernels | Stack | Optimizer) -> None:
    """Make a family, a framework, kernels, a stack or an optimizer known by its name.

    Every option, control and message that lists them has it from then on.

    Raises
    ------
    ValueError
        For a name that is taken.
    TypeError
        For anything else.
    """
    table = _table_of(row)
    if row.name in table:
        raise ValueError(f"name {describe(row.name)} is taken; there are {', '.join(table)}")
    table[row.name] = row
    _forget()


def remove(row: Family | Framework | Kernels | Stack | Optimizer) -> None:
    """Take back what `add` made known; what is not there, or another of that name, stays."""
    table = _table_of(row)
    if table.get(row.name) is row:
        del table[row.name]
        _forget()


def _forget() -> None:
    """Forget what was answered under the old names."""
    forget_plans()
    forget_programs()
