"""torch.compile: layers as its inductor fuses them."""

from __future__ import annotations

from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack


class Compiled(Kernels):
    """Every chain of elementwise operations is one kernel that saves its inputs."""

    name = "compiled"
    label = "torch.compile"
    peft = True
    # The last product's output is not needed.
    kept_selectively = frozenset({"qp", "vp", "a", "g", "u_only"})
    selective = True
    parallel = True
    scattered = True


KERNELS = (Compiled(),)
STACKS = (
    Stack(
        "torch.compile",
        "transformers, compiled",
        {"framework": "torch", "kernels": "compiled", "loss_head": "compiled"},
        "torch._inductor; torchtune's published runs",
    ),
)
