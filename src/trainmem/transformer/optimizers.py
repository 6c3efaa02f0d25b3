"""Optimizers: which states each keeps of a parameter, and what its step allocates.

An optimizer is a row. Several in one model (Muon for matrices, AdamW for the rest) are one row that
says who takes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trainmem.transformer.engine.tape import TEMPORARY, Form, Kind, Parameter, Size


class State(NamedTuple):
    """One tensor that an optimizer keeps of a parameter.

    Attributes
    ----------
    unit
        Bytes per element; None for the type of the parameter, or fp32 beside master weights.
    form
        `Form.EIGHT_BIT` for states in blocks of 8 bits, which small parameters keep in fp32.
    scalar
        Whether it is one fp32 number on the GPU.
    """

    unit: float | None = None
    form: Form = Form.WHOLE
    scalar: bool = False


class Writer(Protocol):
    """What a step's temporaries are written to."""

    def emit(self, size: Size, count: int, kind: Kind) -> None:
        """Allocate (count > 0) or free (count < 0) so many blocks."""


class Updated(NamedTuple):
    """The parameters of a step, as one rank holds them.

    Attributes
    ----------
    one_by_one
        Sizes in the order of the update, of the layers two only: the others repeat the second.
    every
        Sizes with how many parameters there are of each.
    """

    one_by_one: Sequence[Size]
    every: Sequence[tuple[Size, int]]


def nothing(write: Writer, updated: Updated) -> None:
    """Allocate nothing: one kernel works in place."""


def square_roots_one_by_one(write: Writer, updated: Updated) -> None:
    """Allocate a square root and its quotient, alive to the next one's (`_single_tensor_adam`)."""
    previous: Size | None = None
    for size in updated.one_by_one:
        write.emit(size, 2, TEMPORARY)
        write.emit(size, -1, TEMPORARY)
        if previous is not None:
            write.emit(previous, -1, TEMPORARY)
        previous = size
    if previous is not None:
        write.emit(previous, -1, TEMPORARY)


def square_roots_at_once(write: Writer, updated: Updated) -> None:
    """Allocate the square roots of all second moments at once (`_multi_tensor_adam`)."""
    for sign in (1, -1):
        for size, count in updated.every:
            write.emit(size, sign * count, TEMPORARY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Optimizer:
    """One row of the table.

    Attributes
    ----------
    name, label
        What to call it, in code and for people.
    states
        What it keeps of every trained parameter.
    step
        Writes what its step allocates and frees.
    takes
        Who takes a parameter, by name and parameter, where a model has several optimizers; None
        where this one takes all.
    fused
        The same optimizer in one kernel, which allocates less; "" where there is none.
    offer
        What it is called where it is offered to save memory; "" where it is not.
    masters
        Whether it can keep fp32 master weights of parameters in bf16.
    shards
        Whether its states are covered where they are sharded.
    source
        Where its behaviour was read or seen.
    """

    name: str
    label: str
    states: tuple[State, ...]
    step: Callable[[Writer, Updated], None] = nothing
    takes: Callable[[str, Parameter], Optimizer] | None = None
    fused: str = ""
    offer: str = ""
    masters: bool = False
    shards: bool = True
    source: str = "torch 2.13, torch/optim"

    def of(self, name: str, parameter: Parameter) -> Optimizer:
        """Return who takes a parameter."""
        return self.takes(name, parameter) if self.takes else self


_MOMENTS = (State(), State())
_EIGHT_BITS = (*[State(1, Form.EIGHT_BIT)] * 2, *[State(4 / 256, Form.EIGHT_BIT)] * 2)

#: Optimizers by name; :func:`trainmem.transformer.add` adds one.
OPTIMIZERS: dict[str, Optimizer] = {
    row.name: row
    for row in (
        Optimizer(
            name="adamw",
            label="AdamW, fused",
            states=(*_MOMENTS, State(4, scalar=True)),
            masters=True,
        ),
        Optimizer(
            name="adamw_foreach",
            label="AdamW, foreach",
            states=_MOMENTS,
            step=square_roots_at_once,
            fused="adamw",
        ),
        Optimizer(
            name="adamw_forloop",
            label="AdamW, one parameter at a time",
            states=_MOMENTS,
            step=square_roots_one_by_one,
        ),
        Optimizer(name="sgd", label="SGD without momentum", states=()),
        Optimizer(name="sgd_momentum", label="SGD with momentum", states=(State(),)),
        Optimizer(
            name="adam8bit",
            label="8-bit AdamW (bitsandbytes)",
            states=_EIGHT_BITS,  # two moments, and an fp32 scale a block of 256 of each
            offer="8-bit AdamW",
            shards=False,
            source="bitsandbytes, optim/optimizer.py: not traced",
        ),
    )
}
