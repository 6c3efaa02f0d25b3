"""DeepSpeed's ZeRO-1, 2 and 3: what its engine keeps, and what its step allocates.

Read from deepspeed 0.19 (`runtime/zero/stage_1_and_2.py`, `stage3.py`, `runtime/bf16_optimizer.py`)
and traced; what its hooks allocate in backward is in `deepspeed_reduce` and `deepspeed_gather`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.engine.dims import SCALAR, Dim
from trainmem.transformer.engine.tape import (
    GATHERED,
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Size,
    of_framework,
    whole,
)
from trainmem.transformer.optimizers import Updated
from trainmem.transformer.rule import Rule
from trainmem.transformer.stacks.collectives import Collectives
from trainmem.transformer.stacks.deepspeed_gather import Gathering, persistent
from trainmem.transformer.stacks.deepspeed_partitions import (
    AT_ONCE,
    DIMENSIONS,
    FIRST,
    FULLEST,
    KEPT,
    LAST,
    PART,
    SHARE,
    SLICE,
    UNIT,
    Floats,
    Integers,
    Keeping,
    Reductions,
    held,
    uneven,
)
from trainmem.transformer.stacks.deepspeed_reduce import Accumulating, Partitioning, laid_out
from trainmem.transformer.stacks.deepspeed_settings import FROM_HIDDEN, SETTINGS
from trainmem.transformer.stacks.framework import Framework, Numbers
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

FROZEN = Dim("φ", "elements of a rank's part of frozen weights")
LARGEST = Dim("l", "elements of a rank's part of the largest parameter")

#: The dimensions of a rank at ZeRO-3.
OF_STAGE_3 = (PART, FROZEN, LARGEST, AT_ONCE, SHARE)


class DeepSpeed(Framework):
    """ZeRO by DeepSpeed's engine (`runtime/zero`)."""

    name = "deepspeed"
    label = "DeepSpeed ZeRO"
    gathers_from = 3
    keeps_gradients = False
    adapters = True
    reserving = "deepspeed"
    cpu_optimizer = True
    by_module = True
    own_masters = True
    settings = SETTINGS
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
        Rule(
            name="gradients are partitioned as they come",
            fields=("no_sync", "sharding", "framework"),
            broken=lambda p: p.no_sync and p.zero_stage > 1,
            message=lambda p: (
                "no_sync is not DeepSpeed's with gradients in partitions: sharding 'zero1', got "
                f"{p.sharding!r}"
            ),
            grants={"sharding": ("zero1",)},
        ),
        Rule(
            name="weights in CPU memory are ZeRO-3's",
            fields=("offload", "sharding", "framework"),
            broken=lambda p: p.offload == "all" and p.zero_stage < 3,
            message=lambda p: (
                "offload 'all' is DeepSpeed's with sharding 'zero3' only (offload_param), got "
                f"{p.sharding!r}; use 'optimizer'"
            ),
            grants={"offload": ("optimizer",), "sharding": ("zero3",)},
        ),
        Rule(
            name="fp32 gradients of ZeRO-1 stay on the GPU",
            fields=("offload", "settings", "framework"),
            broken=lambda p: (
                p.offload != "none"
                and p.zero_stage < 3
                and dict(p.settings).get("grad_accum_dtype") == "fp32"
            ),
            message=lambda p: (
                f"offload {p.offload!r} is not covered with DeepSpeed's grad_accum_dtype 'fp32' at "
                "ZeRO-1 and 2"
            ),
            grants={"offload": ("none",), "settings": ((),)},
        ),
        Rule(
            name="another engine has stages and experts",
            fields=("pp", "ep", "framework"),
            broken=lambda p: p.pp > 1 or p.ep > 1,
            message=lambda p: (
                "framework 'deepspeed' is covered with pp 1 and ep 1 (its pipeline engine and its "
                f"experts are not), got pp {p.pp}, ep {p.ep}"
            ),
        ),
    )

    def resolved(
        self, settings: tuple[tuple[str, Any], ...], hidden: int
    ) -> tuple[tuple[str, Any], ...]:
        """Return settings with "auto" as transformers fills it in, from the hidden size."""
        return tuple(
            (name, FROM_HIDDEN[name](hidden) if value == "auto" else value)
            for name, value in settings
        )

    def collectives(self, write: StepWriter) -> Collectives:
        """Return the hooks of the stage that a step has."""
        if write.s.zero == 3:
            return Gathering(write)
        return (Accumulating if accumulates(write.s) else Partitioning)(write)

    def states(self, write: StepWriter) -> None:
        """Allocate flat weights, and flat states of a rank's part."""
        s = write.s
        if s.zero < 3:
            for _, p, count in write.parameters():
                write.emit(whole(p.shape, write.unit_at_rest(p)), count, WEIGHTS)
        elif s.offload != "all":
            for dim in (PART, FROZEN):
                write.emit(of_framework(dim, write.weight_unit), 1, WEIGHTS)
        if s.offload == "none":
            for size in self.flat_states(write):
                write.emit(size, 1, OPTIMIZER)

    def flat_states(self, write: StepWriter) -> Iterator[Size]:
        """Return the sizes of the states of a rank's part: fp32 weights and the optimizer's."""
        placed = next(p for p in laid_out(write.s) if write.s.trains(p.parameter))
        for state in write.states_of(placed.name, placed.parameter):
            if state.scalar:
                yield whole(SCALAR, 4)
            else:
                yield of_framework(PART, write.state_unit(placed.parameter, state))

    def buffers(self, write: StepWriter) -> None:
        """Allocate what stays between steps: gradients, ZeRO-3's bucket and small parameters."""
        s = write.s
        if s.zero == 3:
            if s.offload == "none":
                wide = s.setting("grad_accum_dtype") == "fp32"
                write.emit(of_framework(PART, 4 if wide else write.grad_unit), 1, GRADIENTS)
            if s.setting("contiguous_gradients"):
                bucket = s.setting("reduce_bucket_size") * write.weight_unit
                write.emit(whole(SCALAR, bucket), 1, GRADIENTS)
            self.persistent(write, 1)
        elif accumulates(s) and s.offload == "none":
            for placed in laid_out(s):
                if s.trains(placed.parameter):
                    write.emit(whole(placed.parameter.shape, 4), 1, GRADIENTS)

    def persistent(self, write: StepWriter, sign: int) -> None:
        """Allocate or free the parameters that stay whole."""
        units = math.ceil(2 * sum(p.elements for p in persistent(write.s)) / UNIT)
        if units:
            write.emit(whole(SCALAR, UNIT), sign * units, GATHERED)

    def step(self, write: StepWriter) -> None:
        """Write the engine's `step`: the norm, fp32 gradients, the update."""
        s = write.s
        updates = s.offload == "none"  # else the CPU does
        if s.zero == 3 and updates:
            self.persistent(write, -1)
            write.tape.passing(of_framework(LARGEST, 8), GRADIENTS)  # fp64, `get_grad_norm_direct`
            self.update(write, AT_ONCE)
            self.persistent(write, 1)
        elif accumulates(s):
            s.optimizer.step(write, Updated([of_framework(PART, 4)], [(of_framework(PART, 4), 1)]))
            for placed in laid_out(s):
                if s.trains(placed.parameter):
                    write.emit(whole(placed.parameter.shape, write.grad_unit), -1, GRADIENTS)
        elif s.zero < 3 and not updates:
            free(write, kept(write.noted))
        elif s.zero < 3:
            write.tape.passing(of_framework(SLICE, 8), GRADIENTS)
            self.update(write, AT_ONCE, kept(write.noted))

    def update(self, write: StepWriter, part: Dim, kept: tuple[Size, ...] = ()) -> None:
        """Make flat fp32 gradients, update, and give them up.

        Gradients in bf16 are made flat, then cast. Those in fp32 are one buffer already at ZeRO-2,
        and made flat at ZeRO-3. `kept` are the gradients of the backward pass, which go once they
        are copied.
        """
        s = write.s
        in_bf16 = s.setting("grad_accum_dtype") == "bf16"
        flat, wide = of_framework(part, write.grad_unit), of_framework(part, 4)
        if in_bf16:
            write.emit(flat, 1, GRADIENTS)
        if in_bf16 or s.zero == 3:
            write.emit(wide, 1, GRADIENTS)
        if in_bf16:
            write.emit(flat, -1, GRADIENTS)
            free(write, kept)
        s.optimizer.step(write, Updated([wide], [(wide, 1)]))
        if in_bf16 or s.zero == 3:
            write.emit(wide, -1, GRADIENTS)
        if not in_bf16:
            free(write, kept)

    def numbers(self, s: Structure, written: Any, n: Any, rank: int | None) -> list[Numbers]:
        """Return the sizes of a rank's part and of what it holds of gradients."""
        counts = np.asarray(n)
        every, inverse = np.unique(counts.astype(np.int64), return_inverse=True)
        dims = DIMENSIONS
        tables: list[list[Floats]]
        if s.zero == 3:
            alone = tuple(written or ())  # gradients that were reduced alone
            dims = (*OF_STAGE_3, *map(uneven, alone))
            tables = [[divided(s, alone, int(count)) for count in every]]
        else:
            keeping = Keeping(
                dealt=s.setting("round_robin_gradients"),
                copies=s.setting("reduce_scatter") or not s.setting("contiguous_gradients"),
                contiguous=s.setting("contiguous_gradients"),
                wide=s.setting("grad_accum_dtype") == "fp32",
                on_cpu=s.offload != "none",
            )
            ranks = (FIRST, LAST, FULLEST) if rank is None else (rank,)
            tables = [[held(written, keeping, int(count), r) for count in every] for r in ranks]
        columns = [np.array(table)[inverse.ravel()].T for table in tables]
        shaped = (each.reshape(len(dims), *counts.shape) for each in columns)
        return [dict(zip(dims, each, strict=True)) for each in shaped]


def accumulates(s: Structure) -> bool:
    """Whether the step is `BF16_Optimizer`'s: ZeRO-1 with gradients in fp32."""
    return s.zero == 1 and bool(s.setting("grad_accum_dtype") == "fp32")


def free(write: StepWriter, sizes: tuple[Size, ...]) -> None:
    """Free gradients."""
    for size in sizes:
        write.emit(size, -1, GRADIENTS)


def kept(reductions: Reductions) -> tuple[Size, ...]:
    """Return the sizes of a rank's gradients after backward."""
    stretches = sorted({stretch for stretch, _ in reductions.buckets})
    return tuple(of_framework(KEPT[stretch], 1) for stretch in stretches)


@lru_cache(maxsize=4096)
def divided(s: Structure, alone: tuple[int, ...], n: int) -> Floats:
    """Return the numbers of `OF_STAGE_3`: every parameter divided by itself (`stage3.py`).

    And those of gradients that are reduced `alone`, copied where they do not divide.
    """
    elements, trains = elements_of(s)
    parts = -(-elements // n)
    trained, limit = parts[trains], s.setting("sub_group_size")
    total = int(trained.sum())
    largest, ends, begin = 0, np.cumsum(trained), 0
    while begin < total and limit < total:  # a group ends with the parameter that fills it
        end = int(ends[min(np.searchsorted(ends, begin + limit), ends.size - 1)])
        largest, begin = max(largest, end - begin), end
    frozen = parts[~trains].sum()
    copied = [UNIT if single % n else 0 for single in alone]
    return np.array([total, frozen, trained.max(initial=0), largest or total, 1 / n, *copied])


@lru_cache(maxsize=64)
def elements_of(s: Structure) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the elements of all parameters in order, and which of them are trained."""
    placed = laid_out(s)
    elements = np.array([p.elements for p in placed], dtype=np.int64)
    return elements, np.array([s.trains(p.parameter) for p in placed])


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
