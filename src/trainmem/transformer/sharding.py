"""FSDP2: when parameters are gathered and given up, and gradients reduced.

Follows `torch/distributed/fsdp/_fully_shard` (`_fsdp_param_group.py`, `_fsdp_collectives.py`) line
by line: what is allocated, and which Python variable or stream keeps it alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.transformer.architecture import Parameter
from trainmem.transformer.replay import GATHERED, GRADIENTS, SizeKey
from trainmem.transformer.states import Ledger, Parameters


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a micro batch stands in the step.

    Attributes
    ----------
    last
        The step's last micro batch.
    sync
        Its gradients are reduced.
    whole_exists
        Whole gradients of earlier micro batches wait.
    shards_exist
        Reduced gradients of earlier micro batches (or kept ones) exist.
    """

    last: bool
    sync: bool
    whole_exists: bool
    shards_exist: bool


class Sharding:
    """The collectives of FSDP's parameter groups, as events."""

    def __init__(self, ledger: Ledger) -> None:
        self.s, self.emit, self.ledger = ledger.s, ledger.emit, ledger
        self.rest_unit, self.weight_unit = ledger.rest_unit, ledger.weight_unit
        self.grad_unit = ledger.grad_unit
        mixed = self.s.precision == "mixed"
        self.reduce_unit = self.s.reduce_unit if mixed else self.weight_unit
        if self.s.adapted and not mixed:
            self.reduce_unit = self.s.adapter_unit
        self.buffer: list[SizeKey] = []  # the all-gather buffer to free at the next copy-out
        self.reduced: SizeKey | None = None  # the last reduce-scatter input

    @property
    def accumulates_whole(self) -> bool:
        """Whether earlier micro batches leave whole gradients in the type of the reduction."""
        return self.s.delayed and self.reduce_unit != self.weight_unit

    def pre_forward(self, group: Parameters) -> None:
        """Before a group's forward pass: gather and unshard (ZeRO-1 never gave up its weights)."""
        if self.s.fsdp and self.s.sharding != "zero1":
            self.gather(group)
            self.unshard(group, forward=True)

    def post_forward(self, group: Parameters) -> None:
        """After it: ZeRO-3 gives the weights up."""
        if self.s.sharding == "zero3":
            self.reshard(group)

    def pre_backward(
        self, group: Parameters, following: Parameters | None, gathered: bool = True
    ) -> None:
        """Before a group's backward pass: unshard, and prefetch the next one's gather.

        `gathered` says whether this group's own gather was prefetched.
        """
        if self.s.sharding == "zero3":
            if not gathered:
                self.gather(group)
            self.unshard(group, forward=False)
            if following is not None:
                self.gather(following)

    def gather(self, group: Parameters) -> None:
        """Allocate for an all-gather: a cast copy of the shards (freed), everybody's buffer."""
        if not self.s.alone:
            for key, unit in self.buffers(group):
                cast = self.rest_unit != self.weight_unit or self.s.offload == "all"
                if cast:
                    self.emit(("shard*", key, unit), 1, GATHERED)
                self.emit(("gather*", key, unit), 1, GATHERED)
                if cast:
                    self.emit(("shard*", key, unit), -1, GATHERED)

    def buffers(self, group: Parameters) -> list[tuple[tuple[Parameter, ...], float]]:
        """Return a group's parameters by bytes per element: all alike, but for a frozen base."""
        by_unit: dict[float, list[Parameter]] = {}
        for name, p in group.items():
            by_unit.setdefault(self.ledger.gathered_unit(name), []).append(p)
        return [(tuple(params), unit) for unit, params in by_unit.items()]

    def unshard(self, group: Parameters, forward: bool) -> None:
        """Copy the gathered buffer out into parameters; then a buffer can be freed.

        In forward it is the previous group's (it overlaps the next gather), in backward its own.
        """
        if self.s.alone:
            cast = self.rest_unit != self.weight_unit
            previous: SizeKey | None = None
            for name, p in group.items():
                unit = self.ledger.gathered_unit(name)
                if cast:
                    self.emit(("shard", (p,), unit), 1, GATHERED)
                if previous:
                    self.emit(previous, -1, GATHERED)
                self.emit(("gather", (p,), unit), 1, GATHERED)
                previous = ("shard", (p,), unit) if cast else None
            if previous:
                self.emit(previous, -1, GATHERED)
            return
        for name, p in group.items():
            self.emit(("gather", (p,), self.ledger.gathered_unit(name)), 1, GATHERED)
        own: list[SizeKey] = [("gather*", key, unit) for key, unit in self.buffers(group)]
        if not forward:
            for buffer in own:
                self.emit(buffer, -1, GATHERED)
        else:
            self.free_buffer()
            self.buffer = own

    def free_buffer(self) -> None:
        """Free the all-gather buffer that forward kept."""
        for buffer in self.buffer:
            self.emit(buffer, -1, GATHERED)
        self.buffer = []

    def reshard(self, group: Parameters) -> None:
        """Free the gathered parameters."""
        for name, p in group.items():
            self.emit(("gather", (p,), self.ledger.gathered_unit(name)), -1, GATHERED)

    def reduce(self, group: Parameters, unit: int, add: bool) -> None:
        """Allocate for a reduce-scatter of whole gradients, `unit` bytes each, into the shard's.

        The last gradient lives as long as the loop variable that holds it.
        """
        params = tuple(group.values())
        self.free_reduced()
        self.reduced = ("gather", params, self.reduce_unit)
        self.emit(self.reduced, 1, GRADIENTS)
        whole: list[SizeKey] = [("", rows + cols, unit) for rows, cols in params]
        held = [] if self.s.alone else [whole.pop()]
        for key in whole:
            self.emit(key, -1, GRADIENTS)
        shard: SizeKey = ("shard*", params, self.reduce_unit)
        self.emit(shard, 1, GRADIENTS)
        if self.reduce_unit != self.grad_unit:
            self.emit(("shard*", params, self.grad_unit), 1, GRADIENTS)
            self.emit(shard, -1, GRADIENTS)
        for key in held:
            self.emit(key, -1, GRADIENTS)
        if add or self.s.offload == "all":
            self.emit(("shard*", params, self.grad_unit), -1, GRADIENTS)

    def free_reduced(self) -> None:
        """Free the last reduce-scatter input."""
        if self.reduced:
            self.emit(self.reduced, -1, GRADIENTS)
            self.reduced = None

    def post_backward(self, group: Parameters, progress: Progress) -> None:
        """Deal with a group's gradients once its backward pass is done."""
        if not self.s.fsdp:
            return
        trained = {name: p for name, p in group.items() if self.s.trains(name)}
        new = self.s.adapter_unit if self.s.adapted else self.weight_unit
        if self.accumulates_whole and progress.whole_exists:  # add to those, free the new ones
            for rows, cols in trained.values():
                self.emit(("", rows + cols, new), -1, GRADIENTS)
        if self.s.sharding != "zero1":
            self.reshard(group)
        if not trained:
            return
        if progress.sync:
            old = self.accumulates_whole and progress.whole_exists
            self.reduce(trained, self.reduce_unit if old else new, progress.shards_exist)
        elif self.accumulates_whole and not progress.whole_exists:
            for rows, cols in trained.values():
                self.emit(("", rows + cols, self.reduce_unit), 1, GRADIENTS)
                self.emit(("", rows + cols, new), -1, GRADIENTS)


class DeepSpeed(Sharding):
    """ZeRO-3 as DeepSpeed runs it: parameters whole for their module, the next ones fetched ahead.

    Gradients go into the reduce bucket as they come, and from there to the partition
    (`runtime/zero/stage3.py`, `partitioned_param_coordinator.py`).
    """

    def pre_forward(self, group: Parameters) -> None:
        """Gather a module's parameters and as many ahead."""
        self.fetch(group, 1)

    def post_forward(self, group: Parameters) -> None:
        """Give them up."""
        self.fetch(group, -1)

    def pre_backward(
        self, group: Parameters, following: Parameters | None, gathered: bool = True
    ) -> None:
        """Gather them again."""
        self.fetch(group, 1)

    def post_backward(self, group: Parameters, progress: Progress) -> None:
        """Give up parameters and the whole gradients."""
        if not self.s.fsdp:
            return
        self.fetch(group, -1)
        unit = self.s.adapter_unit if self.s.adapted else self.weight_unit
        for name, (rows, cols) in group.items():
            if self.s.trains(name):
                self.emit(("", rows + cols, unit), -1, GRADIENTS)

    def fetch(self, group: Parameters, sign: int) -> None:
        """Allocate or free a module's parameters, layers twice: one is fetched ahead."""
        if self.s.fsdp and not self.s.alone:
            ahead = 2 if group is self.ledger.layer else 1
            for name, p in group.items():
                self.emit(("gather", (p,), self.ledger.gathered_unit(name)), sign * ahead, GATHERED)


def sharding_of(ledger: Ledger) -> Sharding:
    """Return the collectives of a framework (Megatron's weights are never given up: none)."""
    return (DeepSpeed if ledger.s.framework == "deepspeed" else Sharding)(ledger)
