"""torchtitan, eager or compiled, as its job files run it."""

from __future__ import annotations

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine.graph import Operation
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack


class Torchtitan(Kernels):
    """Its own model in eager mode: norms in fp32, complex rotary products, repeated keys."""

    name = "torchtitan"
    label = "torchtitan, eager"
    writes_norm = True
    writes_gate = True
    writes_expert_gate = True
    repeats_keys = True
    kept_selectively = frozenset({"qp", "vp", "a", "g", "u_only", "m"})
    exact_pieces = True
    selective = True
    parallel = True
    scattered = True

    @property
    def turn(self) -> Operation:
        """Turn by complex products, as Meta's Llama does."""
        return fused.complex_rotary


_TITAN = {
    "framework": "torch",
    "kernels": "torchtitan",
    "wrapping": "split",
    "loss_head": "compiled",
}

KERNELS = (Torchtitan(),)
STACKS = (
    Stack(
        "torchtitan",
        "torchtitan",
        {**_TITAN, "checkpointing": "selective"},
        "torchtitan, models/llama3/parallelize.py; its default job files",
    ),
    Stack(
        "torchtitan-full",
        "torchtitan, full checkpointing",
        {**_TITAN, "checkpointing": "full"},
        "torchtitan, distributed/activation_checkpoint.py",
    ),
    Stack(
        "torchtitan-none",
        "torchtitan, no checkpointing",
        {**_TITAN, "checkpointing": "none"},
        "torchtitan, distributed/activation_checkpoint.py",
    ),
    Stack(
        "torchtitan-compile",
        "torchtitan, compiled",
        {**_TITAN, "kernels": "compiled", "checkpointing": "selective"},
        "torchtitan, models/llama3/parallelize.py",
    ),
)
