"""transformers with Liger kernels: fused norms, rotary embedding, gate and loss."""

from __future__ import annotations

from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack


class Liger(Kernels):
    """Liger-Kernel's functions in transformers' model (`transformers/monkey_patch.py`)."""

    name = "liger"
    label = "transformers with Liger kernels"
    transformers_model = True
    peft = True
    exact_pieces = True
    drops_attention = True
    expert_parallel = False
    verified = False


KERNELS = (Liger(),)
STACKS = (
    Stack(
        "transformers+liger",
        "transformers with Liger kernels",
        {"framework": "torch", "kernels": "liger", "loss_head": "fused"},
        "Liger-Kernel, transformers/monkey_patch.py",
    ),
)
