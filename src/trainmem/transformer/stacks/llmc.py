"""llm.c: GPT-2 in CUDA, one buffer for all activations (`train_gpt2.cu`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import BS, BSH, A, B, S
from trainmem.transformer.engine.graph import Row, Table
from trainmem.transformer.engine.tape import TEMPORARY, whole
from trainmem.transformer.rule import ModelRule
from trainmem.transformer.stacks.framework import DISTRIBUTED_OPTIMIZER, Framework
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

R = Row

#: The family that it runs.
FAMILY = "gpt2"


class LlmC(Framework):
    """llm.c's own states; ZeRO-1 over several GPUs."""

    name = "llm.c"
    label = "llm.c"
    kernels = "llm.c"
    one_stream = True
    rules = (DISTRIBUTED_OPTIMIZER,)

    def buffers(self, write: StepWriter) -> None:
        """Allocate the 10 bytes per token and hidden element that it works in."""
        write.emit(whole(BSH, 10), 1, TEMPORARY)


class LlmCKernels(Kernels):
    """One buffer for all activations of a layer."""

    name = "llm.c"
    label = "llm.c"
    verified = False
    rules = (
        ModelRule(
            name="GPT-2 alone",
            fields=("kernels",),
            broken=lambda a, p: a.family != FAMILY,
            message=lambda a, p: f"kernels 'llm.c' are GPT-2's, got family {a.family!r}",
        ),
    )

    def layer(self, s: Structure) -> Table:
        """Keep 34h bytes a token and the input, 4a and 8."""
        return (
            R("y0", ops.layer_norm, "X", "norm1"),
            R("y", fused.kept, "y0", shape=BSH, unit=34),  # and X
            R("z", fused.kept, "y", shape=(B, S, A), unit=4),
            R("w", fused.kept, "z", shape=BS, unit=8),
            R("m", fused.routed, "w", shape=BSH),
            R("OUT", ops.add, "X m"),
        )

    def looks_positions_up(self, s: Structure) -> bool:
        """Positions are added as tokens are looked up."""
        return False


FRAMEWORKS = (LlmC(),)
KERNELS = (LlmCKernels(),)
STACKS = (
    Stack(
        "llm.c",
        "llm.c",
        {
            "framework": "llm.c",
            "kernels": "llm.c",
            "loss_head": "in_place",
            "sharding": "zero1",
            "precision": "bf16_master",
            "wrapping": "layers",
            "checkpointing": "none",
        },
        "llm.c, train_gpt2.cu; GPT-2 only",
    ),
)
