"""litgpt: its own model, everything in bf16, adapters and a quantised base of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import BSF, BSH, BSQ
from trainmem.transformer.engine.graph import Row, Table, end
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row


class LitGPT(Kernels):
    """litgpt's `model.py` and `lora.py` in eager mode."""

    name = "litgpt"
    label = "litgpt"
    writes_norm = True
    writes_gate = True
    repeats_keys = True
    ties = False

    def locals(self) -> Table:
        """`Block.forward` names its intermediate results."""
        return (end("x1"), end("y"), end("z"))

    def attention_output(self, row: Row) -> Table:
        """Keep as much as queries twice over: copies around the rotary embedding and adapters.

        Measured: what 19 published LoRA runs save beyond what the products explain.
        """
        return (
            R("a0", row.op, row.ins),
            R("a", fused.kept, "a0", shape=BSQ, unit=4),
        )

    def kept_in_mlp(self, s: Structure) -> Table:
        """Keep what the frozen products of a LoRA run do not explain: 2f; quantised 2f + 8h more.

        Measured on 19 published LoRA and 16 QLoRA runs, whose unpacking products save inputs.
        """
        if not s.frozen:
            return ()
        rows = (R("gu0", fused.kept, "gu", shape=BSF, unit=2),)
        if s.quantization == "none":
            return rows
        return (
            *rows,
            R("gu1", fused.kept, "gu0", shape=BSF, unit=2),
            R("gu2", fused.kept, "gu1", shape=BSH, unit=8),
        )

    def adapter_input(self, row: Row, written: list[Row]) -> tuple[str, Table]:
        """Drop 5 % of an adapter's input, as its recipes do, once for all that share it."""
        shared = [r.out for r in written if r.op is ops.dropout and r.ins == row.ins]
        if shared:
            return shared[0], ()
        dropped = row.out + ".d"
        return dropped, (R(dropped, ops.dropout, row.ins),)


KERNELS = (LitGPT(),)
STACKS = (
    Stack(
        "litgpt",
        "litgpt",
        {
            "framework": "torch",
            "kernels": "litgpt",
            "loss_head": "pieces",
            "precision": "bf16",
            "wrapping": "layers",
            "optimizer": "adamw_foreach",
            "no_sync": True,
        },
        "litgpt, lora.py, utils.py (chunked_cross_entropy); precision bf16-true; "
        "finetune/full.py: no_backward_sync while accumulating, AdamW as torch makes it",
    ),
)
