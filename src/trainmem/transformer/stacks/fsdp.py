"""PyTorch's own: FSDP2 and DDP.

Collectives follow `torch/distributed/fsdp/_fully_shard` (`_fsdp_param_group.py`,
`_fsdp_collectives.py`, torch 2.13) line by line: what is allocated, on which stream, and which
Python variable keeps it alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine.dims import Shape
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    Form,
    Parameters,
    Size,
    Stream,
    whole,
)
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.stacks.framework import Framework

if TYPE_CHECKING:
    from trainmem.transformer.writer import StepWriter


class FSDP2(Collectives):
    """The collectives of FSDP2's parameter groups; none of them where nothing is sharded (DDP)."""

    def __init__(self, writer: StepWriter) -> None:
        super().__init__(writer)
        self.rest_unit, self.weight_unit = writer.rest_unit, writer.weight_unit
        self.grad_unit = writer.grad_unit
        mixed = self.s.precision == "mixed"
        self.reduce_unit = self.s.reduce_unit if mixed else self.weight_unit
        if self.s.frozen and not mixed:
            self.reduce_unit = self.s.adapter_unit
        self.buffer: list[Size] = []  # the all-gather buffer to free at the next copy-out
        self.reduced: Size | None = None  # the last reduce-scatter input

    @property
    def accumulates_whole(self) -> bool:
        """Whether earlier micro batches leave whole gradients in the type of the reduction."""
        return self.s.delayed and self.reduce_unit != self.weight_unit

    def pre_forward(self, group: Parameters) -> None:
        """Gather and unshard a group (ZeRO-1 never gave up its weights)."""
        if self.s.gathers and self.s.sharding != "zero1":
            self.gather(group)
            self.unshard(group, forward=True)

    def post_forward(self, group: Parameters) -> None:
        """Give the weights up, at ZeRO-3."""
        if self.s.sharding == "zero3":
            self.reshard(group)

    def pre_backward(
        self, group: Parameters, following: Parameters | None, gathered: bool = True
    ) -> None:
        """Unshard a group, and prefetch the next one's gather."""
        if self.s.sharding == "zero3":
            if not gathered:
                self.gather(group)
            self.unshard(group, forward=False)
            if following is not None:
                self.gather(following)

    def gather(self, group: Parameters) -> None:
        """Allocate for an all-gather: a cast copy of the shards (freed), everybody's buffer."""
        if not self.s.alone:
            for shapes, unit in self.buffers(group):
                shard = Size(Form.SHARD, shapes, unit)
                cast = self.rest_unit != self.weight_unit or self.s.offload == "all"
                if cast:
                    self.emit(shard, 1, GATHERED, Stream.GATHER)
                self.emit(Size(Form.GATHERED, shapes, unit), 1, GATHERED, Stream.GATHER)
                if cast:
                    self.emit(shard, -1, GATHERED, Stream.GATHER)

    def buffers(self, group: Parameters) -> list[tuple[tuple[Shape, ...], float]]:
        """Return a group's shapes by bytes per element: all alike, but for a frozen base."""
        by_unit: dict[float, list[Shape]] = {}
        for p in group.values():
            by_unit.setdefault(self.writer.gathered_unit(p), []).append(p.shape)
        return [(tuple(shapes), unit) for unit, shapes in by_unit.items()]

    def unshard(self, group: Parameters, forward: bool) -> None:
        """Copy the gathered buffer out into parameters; then a buffer can be freed.

        In forward it is the previous group's (it overlaps the next gather), in backward its own.
        """
        if self.s.alone:
            self.unshard_alone(group)
            return
        for p in group.values():
            self.emit(self.gathered(p.shape, self.writer.gathered_unit(p)), 1, GATHERED)
        own = [Size(Form.GATHERED, shapes, unit) for shapes, unit in self.buffers(group)]
        if not forward:
            for buffer in own:
                self.emit(buffer, -1, GATHERED, Stream.GATHER)
        else:
            self.free_buffer()
            self.buffer = own

    def unshard_alone(self, group: Parameters) -> None:
        """Copy the shards of a single rank, cast first where types differ."""
        cast = self.rest_unit != self.weight_unit
        previous: Size | None = None
        for p in group.values():
            shard = Size(Form.SHARD, (p.shape,), self.writer.gathered_unit(p))
            if cast:
                self.emit(shard, 1, GATHERED)
            if previous:
                self.emit(previous, -1, GATHERED)
            self.emit(self.gathered(p.shape, shard.unit), 1, GATHERED)
            previous = shard if cast else None
        if previous:
            self.emit(previous, -1, GATHERED)

    @staticmethod
    def gathered(shape: Shape, unit: float) -> Size:
        """Return the size of one gathered parameter."""
        return Size(Form.GATHERED, (shape,), unit)

    def free_buffer(self) -> None:
        """Free the all-gather buffer that forward kept."""
        for buffer in self.buffer:
            self.emit(buffer, -1, GATHERED, Stream.GATHER)
        self.buffer = []

    def reshard(self, group: Parameters) -> None:
        """Free the gathered parameters."""
        for p in group.values():
            self.emit(self.gathered(p.shape, self.writer.gathered_unit(p)), -1, GATHERED)

    def reduce(self, group: Parameters, unit: int, add: bool) -> None:
        """Allocate for a reduce-scatter of whole gradients, `unit` bytes each, into the shard's.

        The last gradient lives as long as the loop variable that holds it.
        """
        shapes = tuple(p.shape for p in group.values())
        self.free_reduced()
        self.reduced = Size(Form.GATHERED, shapes, self.reduce_unit)
        self.emit(self.reduced, 1, GRADIENTS)
        gradients = [whole(shape, unit) for shape in shapes]
        held = [] if self.s.alone else [gradients.pop()]
        for size in gradients:
            self.emit(size, -1, GRADIENTS)
        shard = Size(Form.SHARD, shapes, self.reduce_unit)
        kept = Size(Form.SHARD, shapes, self.grad_unit)
        self.emit(shard, 1, GRADIENTS, Stream.REDUCE)
        if self.reduce_unit != self.grad_unit:
            self.emit(kept, 1, GRADIENTS, Stream.REDUCE)
            self.emit(shard, -1, GRADIENTS, Stream.REDUCE)
        for size in held:
            self.emit(size, -1, GRADIENTS)
        if add or self.s.offload == "all":
            self.emit(kept, -1, GRADIENTS, Stream.REDUCE)

    def free_reduced(self) -> None:
        """Free the last reduce-scatter input."""
        if self.reduced:
            self.emit(self.reduced, -1, GRADIENTS)
            self.reduced = None

    def post_backward(self, group: Parameters, progress: Progress) -> None:
        """Give the weights up; reduce the gradients, or let them wait whole."""
        if not self.s.gathers:
            return
        trained = {name: p for name, p in group.items() if self.s.trains(p)}
        new = self.s.adapter_unit if self.s.frozen else self.weight_unit
        if self.accumulates_whole and progress.whole_exists:  # add to those, free the new ones
            for p in trained.values():
                self.emit(whole(p.shape, new), -1, GRADIENTS)
        if self.s.sharding != "zero1":
            self.reshard(group)
        if not trained:
            return
        if progress.sync:
            old = self.accumulates_whole and progress.whole_exists
            self.reduce(trained, self.reduce_unit if old else new, progress.shards_exist)
        elif self.accumulates_whole and not progress.whole_exists:
            for p in trained.values():
                self.emit(whole(p.shape, self.reduce_unit), 1, GRADIENTS)
                self.emit(whole(p.shape, new), -1, GRADIENTS)


class Torch(Framework):
    """FSDP2 where something is sharded, DDP over several replicas, or one GPU."""

    name = "torch"
    label = "PyTorch (DDP, FSDP2)"
    fsdp2 = True
    gathers_from = 1
    shards_weights_from = 1
    keeps_gradients = False
    ddp_buckets = True
    flat_step = False
    precision = ""
    peft = True
    adapters = True
    adapters_with_master = False

    def collectives(self, write: StepWriter) -> FSDP2:
        """Return FSDP2's, which are none where nothing is sharded."""
        return FSDP2(write)


FRAMEWORKS = (Torch(),)
