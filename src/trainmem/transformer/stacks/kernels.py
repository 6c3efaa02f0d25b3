"""Kernels: whose layers run, hence which tensors exist and which are saved for the backward pass.

The base class writes layers with fused kernels, as torch.compile makes them; each stack's file
says where its own differ. Sums of what a layer saves (bytes, per token and layer) are those of
published runs; h hidden, q and k query and key/value widths, f FFN size, a heads, t tensor-parallel
GPUs:

===================  =====================================================
torchtitan, eager    16h + 8q + 4a + 8f + 8: keys and values repeated
the same, selective  4h + 4q + 2k + 4a + 2f: outputs of every second product, attention, input
torch.compile        8h + 4q + 4k + 4a + 6f; selective 2h + 4q + 2k + 4a + 2f
Transformer Engine   (8h + 4q + 4k + 4a + 6f)/t, the 8h whole without sequence parallelism
Megatron, unfused    2as/t, and 3as/t with dropout, in place of 4a/t (Korthikanti et al. 2022, §4.1)
litgpt, frozen base  11h + 12q + 4a + 8f; GPT-NeoX 7h + 12q + 4a + 4f; QLoRA 8h + 2f more
llm.c                36h + 4a + 16
===================  =====================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import (
    BS,
    BSF,
    BSH,
    BSK,
    BSQ,
    BSV,
    A,
    B,
    F,
    G,
    H,
    N,
    S,
    Shape,
    T,
    X,
)
from trainmem.transformer.engine.graph import Operation, Row, Table, end
from trainmem.transformer.engine.tables import Embedding, flash, rms_norm
from trainmem.transformer.losses import piece_logits
from trainmem.transformer.rule import ModelRule

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row


class Kernels:
    """Whose layers run; a subclass in each stack's file, one object of it in `KERNELS`.

    Attributes
    ----------
    name, label
        What to call them, in code and for people.
    own_code
        Whether tables are the family's own (transformers), as its file writes them.
    transformers_model
        Whether transformers' model runs them, eagerly: Python's frames keep variables alive,
        attention drops weights, experts are not divided.
    peft
        Whether adapters are peft's, in fp32.
    writes_norm, writes_gate, writes_expert_gate
        Whether norms, the gate of the MLP and that of experts are written out, not fused.
    repeats_keys
        Whether key/value heads are repeated to all heads before attention.
    torch_attention
        Whether attention is PyTorch's, which pads head sizes.
    kept_selectively
        Rows whose outputs a selective checkpoint keeps; empty where selective is something else.
    ties
        Whether a head that is the embedding is one tensor.
    exact_pieces
        Whether a loss in pieces is torchtune's, to the byte.
    drops_model
        Whether the model's own dropout counts.
    drops_attention
        Whether a plan can drop attention weights.
    attentions, precisions, selective, parallel, expert_parallel, caches
        What they have: attention kernels; types; selective checkpointing; tensor and pipeline
        parallelism; divided experts; keys and values kept.
    verified, scattered
        Whether a published run was compared, and whether runs with tensor or pipeline parallelism
        scatter more than others.
    rules
        Which models and plans they are not covered with.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    own_code: ClassVar[bool] = False
    transformers_model: ClassVar[bool] = False
    peft: ClassVar[bool] = False
    writes_norm: ClassVar[bool] = False
    writes_gate: ClassVar[bool] = False
    writes_expert_gate: ClassVar[bool] = False
    repeats_keys: ClassVar[bool] = False
    torch_attention: ClassVar[bool] = True
    kept_selectively: ClassVar[frozenset[str]] = frozenset()
    ties: ClassVar[bool] = True
    exact_pieces: ClassVar[bool] = False
    drops_model: ClassVar[bool] = False
    drops_attention: ClassVar[bool] = False
    attentions: ClassVar[tuple[str, ...]] = ("flash",)
    precisions: ClassVar[tuple[str, ...]] = ("mixed", "bf16_master", "bf16")
    selective: ClassVar[bool] = False
    parallel: ClassVar[bool] = False
    expert_parallel: ClassVar[bool] = True
    caches: ClassVar[bool] = False
    verified: ClassVar[bool] = True
    scattered: ClassVar[bool] = False
    rules: ClassVar[tuple[ModelRule, ...]] = ()

    @property
    def product(self) -> Operation:
        """The operation of a product away from the residual stream."""
        return ops.linear

    @property
    def turn(self) -> Operation:
        """The operation of a rotary embedding."""
        return ops.scale  # one kernel, nothing saved

    # ---- the layer ----
    def layer(self, s: Structure) -> Table:
        """One layer, `X` in, `OUT` out."""
        rows = self.side_by_side(s) if s.code.side_by_side else self.block(s)
        return self.with_adapters(s, rows)

    def block(self, s: Structure) -> Table:
        """Attention, then the MLP, each with its norm and its sum."""
        dropped = fused.masked if s.dropout else ops.same
        return (
            *self.norm(s, "X", "y0", "norm1"),
            *self.whole_sequence(s, "y0", "y"),
            *self.attend(s),
            *self.back(s, "a", "o", "o"),
            R("od", dropped, "o"),
            R("x1", ops.add, "X od"),
            *self.norm(s, "x1", "z0", "norm2"),
            *(self.experts(s) if s.experts else (*self.whole_sequence(s, "z0", "z"), *self.mlp(s))),
            R("md", dropped, "m"),
            R("OUT", ops.add, "x1 md"),
            *self.locals(),
        )

    def side_by_side(self, s: Structure) -> Table:
        """GPT-NeoX's block: attention and MLP on the same input."""
        return (
            R("y", ops.layer_norm, "X", "norm1"),
            R("z", ops.layer_norm, "X", "norm2"),
            *self.attend(s),
            *self.back(s, "a", "o", "o"),
            *self.mlp(s),
            R("x1", ops.add, "o m"),
            R("OUT", ops.add, "x1 X"),
        )

    def locals(self) -> Table:
        """Variables of the block's Python function that live to its return."""
        return ()

    def norm(self, s: Structure, x: str, out: str, weight: str) -> Table:
        """Norm: one kernel, or written out in fp32."""
        if s.code.layer_norm:
            return (R(out, ops.layer_norm, x, weight),)
        if self.writes_norm:
            return rms_norm(x, out, weight, s.residual[:-1])
        return (R(out, fused.rms_norm, x, weight, s.residual[:-1]),)

    def whole_sequence(self, s: Structure, x: str, out: str) -> Table:
        """Gather a sequence that sequence parallelism divided."""
        if s.sequence_parallel:
            return (R(out, fused.gather, x, shape=BSH),)
        return (R(out, ops.same, x),)

    def back(self, s: Structure, x: str, out: str, weight: str) -> Table:
        """Product back to the residual stream, divided again with sequence parallelism."""
        if s.sequence_parallel:
            divided = R(out, fused.gather, out + "p", shape=s.residual)
            return (R(out + "p", ops.linear, x, weight, BSH), divided)
        return (R(out, ops.linear, x, weight, BSH),)

    # ---- attention ----
    def attend(self, s: Structure) -> Table:
        """From the normalised `y` to the attention output `a`."""
        rows = [
            R("qp", self.product, "y", "q", BSQ),
            R("kp", self.product, "y", "k", BSK),
            R("vp", self.product, "y", "v", BSK),
        ]
        if s.qk_norm:
            for name, stat in (("q", (B, S, A)), ("k", (B, S, G))):
                rows += self.norm_of_heads(name + "p", name + "n", name + "_norm", stat)
                rows += [R(name + "r", self.turn, name + "n")]
        else:
            turn = ops.same if s.learned_positions else self.turn
            rows += [R("qr", turn, "qp"), R("kr", turn, "kp")]
        return (*rows, *self.attention(s))

    def norm_of_heads(self, x: str, out: str, weight: str, stat: Shape) -> Table:
        """Norm of queries or keys, one statistic a head."""
        if self.writes_norm:
            return rms_norm(x, out, weight, stat)
        return (R(out, fused.rms_norm, x, weight, stat),)

    def attention(self, s: Structure) -> Table:
        """From turned `qr`, `kr` and `vp` to the output `a`."""
        rows: list[Row] = []
        kernel, k, v = self.fused_attention(s), "kr", "vp"
        if s.grouped and self.repeats_keys:
            rows += [R("kk", ops.repeat, "kr", shape=BSQ), R("vv", ops.repeat, "vp", shape=BSQ)]
            kernel, k, v = ops.flash, "kk", "vv"
        q = "qr"
        if s.context_parallel:
            rows += self.passed_around(k)
            q, k = "qc", "kc"
        rows += self.attention_output(R("a", kernel, f"{q} {k} {v}"))
        if self.torch_attention:
            rows = [part for row in rows for part in flash(s, row)]
        return tuple(rows)

    def fused_attention(self, s: Structure) -> Operation:
        """Return the attention kernel."""
        return ops.flash_grouped if s.grouped else ops.flash

    def attention_output(self, row: Row) -> Table:
        """Write the attention kernel's row, and what is kept of its output."""
        return (row,)

    def passed_around(self, k: str) -> Table:
        """Keep what context parallelism does beside: as much as queries and keys once more.

        Keys and values of the other ranks, and partial results. Measured, not derived from the
        ring's schedule: five published runs of torchtitan (cp 2 to 8) and four of Megatron (cp 4
        and 8), rows of `tests/accuracy/data/measured.json` with `cp_sp`.
        """
        return (
            R("qc", fused.kept, "qr", shape=BSQ, unit=2),
            R("kc", fused.kept, k, shape=BSK, unit=2),
        )

    # ---- the MLP ----
    def mlp(self, s: Structure) -> Table:
        """From the normalised `z` to `m`."""
        if not s.gated:
            rows: Table = (
                R("u_only", self.product, "z", "up", BSF),
                R("gu", ops.activation, "u_only"),
            )
        else:
            rows = (
                R("g", self.product, "z", "gate", BSF),
                R("u", self.product, "z", "up", BSF),
                *self.gate(self.writes_gate),
            )
        kept = self.kept_in_mlp(s)
        name = kept[-1].out if kept else "gu"
        return (*rows, *kept, *self.back(s, name, "m", "down"))

    def gate(self, written_out: bool) -> Table:
        """Activation of the gate, times the other half: one kernel or two."""
        if written_out:
            return (R("sg", ops.activation, "g"), R("gu", ops.multiply, "sg u"))
        return (R("gu", fused.gated, "g u"),)

    def kept_in_mlp(self, s: Structure) -> Table:
        """Keep what is kept beside, before the product back, which takes the last output."""
        return ()

    def experts(self, s: Structure) -> Table:
        """Router, tokens in the order of their experts (T of them), grouped products, and back."""
        here = s.residual[:-1]  # routing works on the divided sequence
        return (
            R("rl", ops.linear, "z0", "router", (*here, N)),
            R("rp", ops.float32, "rl"),
            R("rs", ops.softmax, "rp"),
            R("pr", fused.chosen, "rs", shape=(T,)),
            R("tz", fused.routed, "z0", shape=(T, H)),
            R("g", self.product, "tz", "gate", (T, F)),
            R("u", self.product, "tz", "up", (T, F)),
            *self.gate(self.writes_expert_gate),
            R("tm", self.product, "gu", "down", (T, H)),
            R("tw", fused.weighted, "tm pr"),
            R("m", fused.routed, "tw", shape=s.residual),
        )

    # ---- adapters ----
    def with_adapters(self, s: Structure, rows: Table) -> Table:
        """Give adapted products their adapters: two products of rank x, scaled and added (peft)."""
        out: list[Row] = []
        for row in rows:
            if row.op not in (ops.linear, ops.conv1d) or row.weight not in s.adapted:
                out.append(row)
                continue
            p, w = row.out + ".", row.weight
            x, before = self.adapter_input(row, out)
            out += [
                *before,
                R(p + "base", row.op, row.ins, w, row.shape),
                R(p + "c", fused.widen, x),
                R(p + "a", ops.linear, p + "c", w + ".lora_A", (*row.shape[:-1], X)),
                R(p + "b", ops.linear, p + "a", w + ".lora_B", row.shape),
                R(p + "s", ops.scale, p + "b"),
                R(p + "t", ops.add, f"{p}base {p}s"),
                R(row.out, ops.like, f"{p}t {p}base"),
            ]
            if self.transformers_model:  # peft's variable, and the caller's argument
                out.append(end(f"{p}c {x}"))
        return tuple(out)

    def adapter_input(self, row: Row, written: list[Row]) -> tuple[str, Table]:
        """Return the input of a product's adapter, and the rows that make it."""
        return row.ins, ()

    # ---- around the layers ----
    def embedding(self, s: Structure) -> Embedding:
        """From token ids, or the stage before, to the first layer's input `X`."""
        if not s.first:
            return Embedding((R("X", fused.receive, shape=s.residual),), (), ("X",))
        whole = "x0" if s.sequence_parallel else "X"
        divided = (R("X", fused.gather, "x0", shape=s.residual),) if s.sequence_parallel else ()
        if not self.looks_positions_up(s):
            lookup = (R(whole, ops.embedding, "", "embed", BSH), *divided)
            return Embedding(lookup, (), ("X",))
        tokens = R("TOKENS", ops.embedding, "", "embed", BSH)
        rest = (
            R("IDS", ops.fixed, shape=BS, unit=8),
            R("PLACES", ops.embedding, "IDS", "position", BSH),
            R(whole, ops.add, "TOKENS PLACES"),
            *divided,
        )
        return Embedding((tokens,), rest, ("X", "TOKENS", "IDS", "PLACES"))

    def looks_positions_up(self, s: Structure) -> bool:
        """Whether positions are an embedding of their own."""
        return s.learned_positions

    def final_norm(self, s: Structure) -> Table:
        """Norm in front of the head."""
        return self.norm(s, "X", "Y", "norm")

    def logits(self, s: Structure) -> Table:
        """Logits in the type of the weights."""
        if s.loss_in_pieces:
            return self.with_adapters(s, piece_logits(s))
        if s.code.logits is not None:
            return s.code.logits(s)
        return self.with_adapters(s, self.head(s))

    def head(self, s: Structure) -> Table:
        """Write the product to the vocabulary."""
        if s.sequence_parallel:
            return (
                R("Yg", fused.gather, "Y", shape=BSH),
                R("LOGITS", ops.linear, "Yg", "head", BSV),
            )
        return (R("LOGITS", ops.linear, "Y", "head", BSV),)

    def selected(self, s: Structure) -> frozenset[str]:
        """Rows that a selective checkpoint keeps: of padded heads, attention's output as it came.

        Per operation, as torchtitan lists them: attention and every second matrix product.
        """
        rows = self.kept_selectively
        return rows - {"a"} | {"a.w"} if s.padded_heads and "a" in rows else rows
