"""torchtune: torchtitan's layers, a loss in pieces, everything in bf16."""

from __future__ import annotations

from trainmem.transformer.stacks.preset import Stack

STACKS = (
    Stack(
        "torchtune",
        "torchtune",
        {
            "framework": "torch",
            "kernels": "torchtitan",
            "loss_head": "pieces",
            "precision": "bf16",
            "wrapping": "layers",
        },
        "torchtune, modules/loss/ce_chunked_output_loss.py; recipes in bf16",
    ),
)
