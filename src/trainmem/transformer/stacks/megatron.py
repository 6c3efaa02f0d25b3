"""Megatron-Core with Transformer Engine: distributed optimizer, fused products, own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import BSQ, BSV, SCORES, F, H, Q, V, W
from trainmem.transformer.engine.graph import Operation, Row, Table
from trainmem.transformer.engine.tape import GRADIENTS, TEMPORARY, whole
from trainmem.transformer.stacks.framework import DISTRIBUTED_OPTIMIZER, Framework
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure
    from trainmem.transformer.writer import StepWriter

R = Row


class Megatron(Framework):
    """Main gradients in fp32, into which every product adds (`distrib_optimizer.py`)."""

    name = "megatron"
    label = "Megatron-Core"
    grad_unit = 4
    adds_to_main = True
    kernels = "transformer_engine"
    one_stage = 1
    offloads = False
    own_loss = True
    one_stream = True
    stage_words: ClassVar[Mapping[int, str]] = {
        1: "distributed optimizer (optimizer states sharded)"
    }
    rules = (DISTRIBUTED_OPTIMIZER,)

    def buffers(self, write: StepWriter) -> None:
        """Allocate Transformer Engine's cached gradients: one per shape of weight, never used.

        Gradients go into the main ones; autograd is handed these (`get_dummy_wgrad` in
        `transformer_engine/pytorch/module/base.py`). Queries, keys and values are one product, gate
        and up are one. The head's stays too, as published steady states show. And the buffer that
        Megatron's own attention hands to `baddbmm`, which never reads it.
        """
        s = write.s
        fc1 = 2 * write.weight_unit if s.gated else write.weight_unit
        for shape, unit in (((W, H), 2), ((H, Q), 2), ((F, H), fc1), ((H, F), 2)):
            write.emit(whole(shape, unit), 1, GRADIENTS)
        if s.last:
            write.emit(whole((V, H), 2), 1, GRADIENTS)
        if s.attention == "eager":
            write.emit(whole(SCORES, write.weight_unit), 1, TEMPORARY)


class TransformerEngine(Kernels):
    """Products with the collectives of sequence parallelism inside; Megatron's own attention."""

    name = "transformer_engine"
    label = "Transformer Engine"
    torch_attention = False
    drops_attention = True
    attentions = ("flash", "eager")
    selective = True
    parallel = True

    @property
    def product(self) -> Operation:
        """Multiply with the collectives inside."""
        return fused.parallel_product

    def whole_sequence(self, s: Structure, x: str, out: str) -> Table:
        """Leave the sequence divided: the products gather it."""
        return (R(out, ops.same, x),)

    def back(self, s: Structure, x: str, out: str, weight: str) -> Table:
        """Product back to the residual stream."""
        return (R(out, fused.parallel_product, x, weight, s.residual),)

    def attention(self, s: Structure) -> Table:
        """Take Transformer Engine's, or Megatron's own where neither flash nor that runs."""
        return self.unfused(s) if s.attention == "eager" else super().attention(s)

    def fused_attention(self, s: Structure) -> Operation:
        """Make attention's statistics again under selective recomputation."""
        return fused.flash_recomputed if s.selective else super().fused_attention(s)

    def unfused(self, s: Structure) -> Table:
        """Megatron's own attention (`DotProductAttention`): the scores are stored.

        Softmax is one kernel and saves its output, dropout a mask and its own; keys and values are
        repeated to all heads. Selective recomputation saves none of it.
        """
        k, v = ("kk", "vv") if s.grouped else ("kr", "vp")
        rows: Table = ()
        if s.grouped:
            rows = (R("kk", ops.repeat, "kr", shape=BSQ), R("vv", ops.repeat, "vp", shape=BSQ))
        if s.selective:
            again = fused.scores_recomputed_dropped if s.dropout else fused.scores_recomputed
            return (*rows, R("a", again, f"qr {k} {v}"))
        return (
            *rows,
            R("sc", ops.batched, f"qr {k}", shape=SCORES),
            R("pr", ops.softmax, "sc"),
            R("at", ops.dropout if s.dropout else ops.same, "pr"),
            R("ao", ops.batched, f"at {v}", shape=BSQ),
            R("a", ops.relayout, "ao"),
        )

    def head(self, s: Structure) -> Table:
        """Product to the vocabulary."""
        return (R("LOGITS", fused.parallel_product, "Y", "head", BSV),)


_MEGATRON = {
    "framework": "megatron",
    "kernels": "transformer_engine",
    "sharding": "zero1",
    "precision": "bf16_master",
    "loss_head": "in_place",
    "wrapping": "layers",
}

FRAMEWORKS = (Megatron(),)
KERNELS = (TransformerEngine(),)
STACKS = (
    Stack(
        "megatron",
        "Megatron-Core with Transformer Engine",
        {**_MEGATRON, "checkpointing": "none"},
        "Megatron-Core, distributed optimizer; Transformer Engine, module/base.py",
    ),
    Stack(
        "megatron-selective",
        "Megatron-Core, attention recomputed",
        {**_MEGATRON, "checkpointing": "selective"},
        "Megatron-Core, recompute_granularity selective",
    ),
    Stack(
        "megatron-full",
        "Megatron-Core, layers recomputed",
        {**_MEGATRON, "checkpointing": "full"},
        "Megatron-Core, recompute_granularity full, uniform, 1 layer",
    ),
)
