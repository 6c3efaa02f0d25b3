"""DeepSpeed's ZeRO-1, 2 and 3 under transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine.dims import SCALAR
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    Form,
    Parameter,
    Parameters,
    Size,
    whole,
)
from trainmem.transformer.rule import Rule
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.stacks.framework import Framework
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

#: Buckets in elements of the weights' type (`reduce_bucket_size`, `allgather_bucket_size`,
#: `stage3_prefetch_bucket_size`; defaults of runtime/zero/config.py).
REDUCE_BUCKET, GATHER_BUCKET, PREFETCH_BUCKET = 5e8, 5e8, 5e7


class Fetching(Collectives):
    """ZeRO-3: parameters whole for their module, the next ones fetched ahead.

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
        if not self.s.gathers:
            return
        self.fetch(group, -1)
        unit = self.s.adapter_unit if self.s.frozen else self.writer.weight_unit
        for p in group.values():
            if self.s.trains(p):
                self.emit(whole(p.shape, unit), -1, GRADIENTS)

    def fetch(self, group: Parameters, sign: int) -> None:
        """Allocate or free a module's parameters, layers twice: one is fetched ahead."""
        if self.s.gathers and not self.s.alone:
            ahead = 2 if group is self.writer.layer else 1
            for p in group.values():
                size = Size(Form.GATHERED, (p.shape,), self.writer.gathered_unit(p))
                self.emit(size, sign * ahead, GATHERED)


class DeepSpeed(Framework):
    """ZeRO by DeepSpeed's engine (`runtime/zero`)."""

    name = "deepspeed"
    label = "DeepSpeed ZeRO"
    gathers_from = 3
    collectives = Fetching
    adapters = True
    reserving = "deepspeed"
    fits_below = 0.70
    remark = (  # `step` in runtime/zero/stage_1_and_2.py and stage3.py
        "DeepSpeed's optimizer step makes fp32 copies of its gradients, which are not counted here"
    )
    cpu_optimizer = True
    rules = (
        Rule(
            name="ZeRO from stage 1",
            fields=("framework", "sharding"),
            broken=lambda p: p.zero_stage == 0,
            message=lambda p: (
                f"framework 'deepspeed' needs sharding 'zero1' to 'zero3', got {p.sharding!r}"
            ),
            grants={"sharding": ("zero1", "zero3", "zero2")},
        ),
    )

    def gradient_size(self, s: Structure, p: Parameter, unit: float) -> Size:
        """Return the size of a gradient: divided at ZeRO-2."""
        return Size(Form.SHARD, (p.shape,), unit) if s.zero == 2 else whole(p.shape, unit)

    def buffers(self, write: StepWriter) -> None:
        """Allocate the buckets, whole from the start."""
        second = PREFETCH_BUCKET if write.s.zero == 3 else GATHER_BUCKET
        for elements in (REDUCE_BUCKET, second):
            write.emit(whole(SCALAR, elements * write.weight_unit), 1, GATHERED)


_DEEPSPEED = {
    "framework": "deepspeed",
    "kernels": "transformers",
    "precision": "bf16_master",
    "wrapping": "layers",
}

FRAMEWORKS = (DeepSpeed(),)
STACKS = (
    Stack(
        "deepspeed-zero1",
        "DeepSpeed ZeRO-1",
        {**_DEEPSPEED, "sharding": "zero1"},
        "DeepSpeed, runtime/zero/stage_1_and_2.py",
    ),
    Stack(
        "deepspeed-zero2",
        "DeepSpeed ZeRO-2",
        {**_DEEPSPEED, "sharding": "zero2"},
        "DeepSpeed, runtime/zero/stage_1_and_2.py",
    ),
    Stack(
        "deepspeed-zero3",
        "DeepSpeed ZeRO-3",
        {**_DEEPSPEED, "sharding": "zero3"},
        "DeepSpeed, runtime/zero/stage3.py",
    ),
)
