"""ZeRO-1 and 2: gradients on their way through the reduce bucket to a rank's partition.

The hooks of `runtime/zero/stage_1_and_2.py` (deepspeed 0.19), in the order in which they allocate:
`process_gradients`, `reduce_independent_p_g_buckets_and_remove_grads`, `reduce_ipg_grads`,
`copy_grads_in_partition`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from trainmem.transformer.engine.dims import SCALAR
from trainmem.transformer.engine.tape import (
    GRADIENTS,
    Block,
    Event,
    Parameter,
    Role,
    Size,
    Storage,
    of_framework,
    whole,
)
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.stacks.deepspeed_partitions import (
    CAST,
    COPIED,
    KEPT,
    STRETCHES,
    UNIT,
    Reductions,
)

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter


class Placed(NamedTuple):
    """A parameter where it is: its name, the number of its layer (0: outside), its elements."""

    name: str
    layer: int
    parameter: Parameter
    elements: int


def laid_out(s: Structure) -> tuple[Placed, ...]:
    """Return all parameters in the order of the model's modules: embeddings, layers, the rest."""
    count = dict(s.elements)
    root = [Placed(name, 0, p, count[p.shape]) for name, p in s.root]
    first = [placed for placed in root if placed.parameter.role is Role.EMBEDDING]
    layers = [
        Placed(name, layer, p, count[p.shape])
        for layer in range(1, s.held_layers + 1)
        for name, p in s.layer
    ]
    return (*first, *layers, *(placed for placed in root if placed not in first))


class Hooked(Collectives):
    """What hooks on gradients write: each is settled where it comes, as its segment is closed."""

    def __init__(self, writer: StepWriter) -> None:
        super().__init__(writer)
        self.tape = writer.tape
        self.names: dict[Block, str] = {}
        self.marks: dict[Block, Callable[[], None]] = {}
        self.end = self.mark(self.finish)  # of a backward pass
        self.placed = [p for p in laid_out(self.s) if self.s.trains(p.parameter)]
        self.number = {(p.layer, p.name): i for i, p in enumerate(self.placed)}
        if self.s.tied and not self.s.frozen:
            self.number[0, "head.weight"] = self.number[0, "embed"]
        self.total = sum(p.elements for p in self.placed)
        self.progress: Progress | None = None
        self.later = self.last = False
        writer.settle = self.settle

    def begin(self, progress: Progress) -> None:
        """Before a micro batch."""
        self.later, self.last = self.progress is not None, progress.last
        self.progress = progress

    def mark(self, then: Callable[[], None]) -> Event:
        """Return an event that marks a place where something follows."""
        block = self.tape.block(whole(SCALAR, 0), GRADIENTS)
        self.marks[block] = then
        return Event(block, 0)

    def takes(self, name: str, gradient: Storage) -> bool:
        """Mark where a gradient comes."""
        self.names[gradient.block] = name
        self.tape.events.append(Event(gradient.block, 0))
        return True

    def free_reduced(self) -> None:
        """Mark the end of a backward pass."""
        self.tape.events.append(self.end)

    def settle(self, events: list[Event], layer: int) -> list[Event]:
        """Put in place of every mark what the hooks do there."""
        with self.tape.recording() as settled:
            for event in events:
                if event.change:
                    settled.append(event)
                elif event.block in self.marks:
                    self.marks[event.block]()
                elif event.block in self.names:
                    self.arrive(self.number[layer, self.names[event.block]])
                else:
                    settled.append(event)
        return settled

    def gradient(self, number: int, sign: int) -> None:
        """Allocate or free a whole gradient."""
        parameter = self.placed[number].parameter
        unit = self.s.adapter_unit if parameter.adapter else self.writer.weight_unit
        self.emit(whole(parameter.shape, unit), sign, GRADIENTS)

    def note(self, buckets: list[tuple[int, tuple[int, ...]]]) -> None:
        """Tell the framework what its numbers depend on."""
        decays = [p.parameter.role not in (Role.NORM, Role.BIAS) for p in self.placed]
        two = self.s.setting("param_groups") == 2 and 0 < sum(decays) < len(decays)
        groups = [[i for i, d in enumerate(decays) if d is with_it or not two]
                  for with_it in ((True, False) if two else (True,))]  # fmt: skip
        self.writer.noted = Reductions(
            tuple(p.elements for p in self.placed), tuple(map(tuple, groups)), tuple(buckets)
        )

    def arrive(self, number: int) -> None:
        """Do what the hook on a gradient does; it has just been made."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what follows on a backward pass."""
        raise NotImplementedError


class Bucketed(Hooked):
    """A bucket that fills with gradients and is reduced when the next one does not fit.

    A gradient larger than the bucket stays itself and is reduced alone, as the next one comes.
    """

    def __init__(self, writer: StepWriter) -> None:
        super().__init__(writer)
        self.limit: int = self.s.setting("reduce_bucket_size")
        self.contiguous: bool = self.s.setting("contiguous_gradients")
        self.content: list[int] = []
        self.used = self.entered = 0

    @property
    def buffer(self) -> Size:
        """Size of a bucket."""
        return whole(SCALAR, self.limit * self.writer.weight_unit)

    def enter(self, number: int) -> None:
        """Copy a gradient into the bucket, which is reduced first where it does not fit."""
        elements = self.placed[number].elements
        if self.used + elements > self.limit:
            self.reduce()
        if not self.waits(number):
            self.gradient(number, -1)
        self.content.append(number)
        self.used += elements
        self.entered += elements

    def waits(self, number: int) -> bool:
        """Whether a gradient stays whole until it is reduced."""
        return not self.contiguous or self.placed[number].elements > self.limit

    def reduce(self) -> None:
        """Reduce what is in the bucket; what waited whole goes.

        Without a contiguous bucket a rank's own gradients stay themselves.
        """
        if self.content:
            self.copy_content()
            if self.contiguous:
                self.keep_content()
            for number in self.content:
                if self.waits(number):
                    self.gradient(number, -1)
            if not self.contiguous:
                self.keep_content()
        self.content, self.used = [], 0

    def copy_content(self) -> None:
        """Write what a reduction allocates and frees."""
        raise NotImplementedError

    def keep_content(self) -> None:
        """Write what it leaves to a rank that has no place for it yet."""

    def pages(self, elements: int) -> int:
        """Return how many units of memory so many elements of a bucket take."""
        return math.ceil(elements * self.writer.weight_unit / UNIT)


class Partitioning(Bucketed):
    """ZeRO-2 reduces in the hooks, ZeRO-1 after the last backward pass, in order of parameters."""

    def __init__(self, writer: StepWriter) -> None:
        super().__init__(writer)
        self.hooked = self.s.zero == 2
        self.overlaps: bool = self.s.setting("overlap_comm")
        self.wide = self.s.setting("grad_accum_dtype") == "fp32"
        self.bucket = 0  # how many there are
        self.born: set[int] = set()
        self.reductions: list[tuple[int, tuple[int, ...]]] = []

    def begin(self, progress: Progress) -> None:
        """Before a micro batch."""
        super().begin(progress)
        self.born = set()
        if self.hooked or self.last:
            self.reductions = []

    def arrive(self, number: int) -> None:
        """Allocate the bucket at the first gradient; enter it where the hooks reduce."""
        if not self.bucket and self.contiguous:
            self.bucket = 2 if self.overlaps else 1
            self.emit(self.buffer, self.bucket, GRADIENTS)
        if self.later and not self.hooked:  # added to the one that is there
            self.gradient(number, -1)
        if self.hooked or (self.overlaps and self.last):
            self.enter(number)

    @property
    def stretch(self) -> int:
        """The stretch of the backward pass in which the bucket was begun."""
        return min(STRETCHES * (self.entered - self.used) // self.total, STRETCHES - 1)

    def copy_content(self) -> None:
        """Copy the bucket for the reduction."""
        stretch = self.stretch
        self.reductions.append((stretch, tuple(self.content)))
        copy, units = of_framework(COPIED[stretch], 1), self.pages(self.used)
        self.emit(copy, units, GRADIENTS)
        if self.wide:  # while a slice is added
            self.tape.passing(of_framework(CAST[stretch], 4), GRADIENTS)
        self.emit(copy, -units, GRADIENTS)

    def keep_content(self) -> None:
        """Let the rank's gradients appear."""
        stretch = self.stretch
        if stretch not in self.born and not (self.wide and self.later):
            self.born.add(stretch)
            self.emit(of_framework(KEPT[stretch], 1), 1, GRADIENTS)

    def finish(self) -> None:
        """Reduce the rest and give the bucket up; at ZeRO-1 only after the last backward pass."""
        if not self.hooked:
            if not self.last:
                return
            if not self.overlaps:
                for number in range(len(self.placed)):
                    self.enter(number)
        self.reduce()
        if self.bucket:
            self.emit(self.buffer, -self.bucket, GRADIENTS)
        self.bucket = self.entered = 0
        if self.later and self.hooked:  # added to those of the micro batches before
            for stretch in self.born:
                self.emit(of_framework(KEPT[stretch], 1), -1, GRADIENTS)
        self.note(self.reductions)


class Accumulating(Hooked):
    """ZeRO-1 with gradients accumulated in fp32 (`runtime/bf16_optimizer.py`).

    Whole fp32 gradients are always there; bf16 ones go with the step.
    """

    def arrive(self, number: int) -> None:
        """Add a gradient, cast to fp32, to the one that is kept."""
        parameter = self.placed[number].parameter
        self.tape.passing(whole(parameter.shape, 4), GRADIENTS)
        if self.later:
            self.gradient(number, -1)

    def finish(self) -> None:
        """Reduce a bf16 copy of all of them."""
        self.note([])
        if self.last and not self.s.alone:
            for sign in (1, -1):
                for number in range(len(self.placed)):
                    self.gradient(number, sign)
