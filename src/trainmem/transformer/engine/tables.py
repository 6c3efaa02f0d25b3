"""Stretches of operations that several models share, as PyTorch and transformers write them.

A tensor dies after the last row that mentions it unless autograd saved it; `end` rows name
variables that Python's frames keep alive longer. Upper-case names come from the caller, or go to
it, by habit. Transcribed from transformers 5 (`modeling_llama.py`, `modeling_mixtral.py`,
`sdpa_attention.py`, `loss_utils.py`) and PyTorch's `attention.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import (
    BS,
    BSF,
    BSH,
    BSQ,
    K_8,
    Q_8,
    SCORES,
    B,
    D,
    F,
    H,
    N,
    S,
    Shape,
    T,
)
from trainmem.transformer.engine.graph import Operation, Row, Table, end

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row


class Embedding(NamedTuple):
    """From token ids to the first layer's input `X`.

    Attributes
    ----------
    lookup
        Rows that use the embedding's weights, which can be given up after them.
    rest
        The others.
    variables
        Tensors that the model's own variables keep alive to its return, `X` among them.
    """

    lookup: Table
    rest: Table
    variables: tuple[str, ...]


def rms_norm(x: str, out: str, weight: str, stat: Shape = BS) -> Table:
    """Root-mean-square norm, written in fp32 and not fused; one statistic per `stat`."""
    p = out + "."
    return (
        R(p + "x", ops.float32, x),
        R(p + "square", ops.power, p + "x"),
        R(p + "mean", ops.mean, p + "square", shape=stat),
        R(p + "eps", ops.passing, p + "mean"),
        R(p + "r", ops.rsqrt, p + "eps"),
        R(p + "n", ops.multiply, f"{p}x {p}r"),
        R(p + "low", ops.like, f"{p}n {x}"),
        R(out, ops.multiply, p + "low", weight),
        end(f"{p}n {p}mean"),
    )


def rotary(x: str, out: str) -> Table:
    """Rotary embedding of queries or keys: three temporaries."""
    p = out + "."
    return (
        R(p + "a", ops.multiply, f"{x} COS"),
        R(p + "r", ops.rotate, x),
        R(p + "b", ops.multiply, f"{p}r SIN"),
        R(out, ops.add, f"{p}a {p}b"),
    )


def flash(s: Structure, row: Row) -> Table:
    """Write a row of flash attention, whose head sizes are multiples of 8; others as they are.

    Other sizes are padded in copies, and the output is cut back in one more (`pad_last_dim` and
    `post_process_flash_output` in PyTorch's `attention.cpp`).
    """
    if not s.padded_heads or row.op not in (ops.flash, ops.flash_grouped):
        return (row,)
    low, wide = (tuple(f"{row.out}.{name}{mark}" for name in "qkv") for mark in "lw")
    query: Shape = (B, S, Q_8)
    others: Shape = (B, S, K_8) if row.op is ops.flash_grouped else query
    shapes = (query, others, others)
    return (
        *(R(name, ops.operand, x) for name, x in zip(low, row.ins.split(), strict=True)),
        *(
            R(w, fused.routed, x, shape=shape)
            for w, x, shape in zip(wide, low, shapes, strict=True)
        ),
        R(row.out + ".w", row.op, " ".join(wide)),
        end(" ".join(low)),
        R(row.out, fused.routed, row.out + ".w", shape=BSQ),
    )


def attention(s: Structure, upcasts: bool = True) -> Table:
    """From q, k, v to the output `a`.

    `flash`; `efficient` and `math`, which PyTorch takes for fp32 (the second, quadratic, where key
    and value heads are fewer: no fused kernel has both); or `eager`, as transformers writes it,
    where most models raise the scores to fp32 for the softmax (`upcasts`).
    """
    kernel = s.attention_kernel
    wide: Table = ()
    k, v = "k", "v"
    if s.grouped and kernel != "flash":
        widen = ops.expand if s.one_kv and kernel == "eager" else ops.repeat
        wide = (R("kk", widen, "k", shape=BSQ), R("vv", widen, "v", shape=BSQ))
        k, v = "kk", "vv"
    if kernel == "flash":
        return flash(s, R("a", ops.flash_grouped if s.grouped else ops.flash, "q k v"))
    if kernel == "efficient":
        return (*wide, R("a", ops.efficient, f"q {k} {v}"))
    return _math(s, wide, k, v) if kernel == "math" else (*wide, *_eager(s, k, v, upcasts))


def _flat(s: Structure) -> Operation:
    """Sequences and heads as one dimension, as batched products want them.

    That takes a copy of heads that were transposed, unless there is only one sequence.
    """
    return ops.same if s.single else ops.copy


def _back(s: Structure) -> Row:
    """Write the output's heads side by side again."""
    return R("a", ops.copy if s.single else ops.relayout, "ao")


def _math(s: Structure, wide: Table, k: str, v: str) -> Table:
    """PyTorch's own composition of products (`_scaled_dot_product_attention_math`)."""
    return (
        R("qs", ops.scale, "q"),
        R("ones", ops.fixed, shape=(S, S), unit=1),
        R("tril", ops.fixed, "ones", shape=(S, S), unit=1),
        R("bias", ops.fixed, "tril", shape=(S, S), unit=4),
        *wide,
        R("ks", ops.scale, k),
        R("qc", _flat(s), "qs"),
        R("sc", ops.batched, "qc ks", shape=SCORES),
        R("mk", ops.add, "sc bias"),
        R("pr", ops.softmax, "mk"),
        R("at", ops.dropout if s.dropout else ops.same, "pr"),
        R("ao", ops.batched, f"at {v}", shape=BSQ),
        end(f"{k} qs bias"),
        _back(s),
    )


def _eager(s: Structure, k: str, v: str, upcasts: bool) -> Table:
    """`eager_attention_forward`: the scores, their mask, softmax and dropout are stored."""
    # Keys and values that were repeated or came through a cache are copies; one head is a view.
    apart = ops.same if not s.one_kv and (s.grouped or s.use_cache) else _flat(s)
    return (
        R("kl", ops.operand, k),
        R("ql", ops.operand, "q"),
        R("qc", _flat(s), "ql"),
        R("kc", apart if not s.one_kv or s.precision != "amp" else ops.same, "kl"),
        R("sc", ops.batched, "qc kc", shape=SCORES),
        end("ql kl"),
        R("sm", ops.scale, "sc"),
        R("mk", ops.add, "sm MASK"),
        R("mf", ops.float32 if upcasts else ops.same, "mk"),
        R("pr", ops.softmax, "mf"),
        R("pl", ops.like, "pr q" if upcasts else "pr v"),
        *((end("mk"),) if upcasts else ()),
        R("at", ops.dropout if s.dropout else ops.same, "pl"),
        R("vl", ops.operand, v),
        R("al", ops.operand, "at"),
        R("vc", apart, "vl"),
        R("ao", ops.batched, "al vc", shape=BSQ),
        _back(s),
        end(f"{k} {v}"),
    )


#: SwiGLU, from the normalised `z` to `m`.
GATED: Table = (
    R("g", ops.linear, "z", "gate", BSF),
    R("sg", ops.activation, "g"),
    R("u", ops.linear, "z", "up", BSF),
    R("gu", ops.multiply, "sg u"),
    R("m", ops.linear, "gu", "down", BSH),
)

#: Router and grouped products of experts, T tokens in all for them (`modeling_mixtral.py`): tokens
#: are copied once an expert, put in the order of the experts, and back.
EXPERTS: Table = (
    R("rl", ops.linear, "z", "router", (B, S, N)),
    R("rf", ops.float32, "rl"),
    R("rp", ops.softmax, "rf"),
    R("pr", fused.chosen, "rp", shape=(T,)),
    R("sel", fused.routed, "z", shape=(T, H)),
    R("tz", fused.routed, "sel", shape=(T, H)),
    R("g", ops.linear, "tz", "gate", (T, F)),
    R("u", ops.linear, "tz", "up", (T, F)),
    R("sg", ops.activation, "g"),
    R("gu", ops.multiply, "sg u"),
    R("tm", ops.linear, "gu", "down", (T, H)),
    R("tw", fused.weighted, "tm pr"),
    R("tb", fused.routed, "tw", shape=(T, H)),
    R("m", fused.routed, "tb", shape=BSH),
)

#: Keys and values through a cache that is empty: what attention then reads.
CACHED: Table = (R("k", ops.cached, "k1"), R("v", ops.cached, "v1"))

#: Cosine and sine tables of the rotary embedding, computed in fp32 once a forward pass.
ROTARY_TABLES: Table = (
    R("pos", ops.fixed, shape=(S,), unit=4),
    R("fr", ops.fixed, "pos", shape=(S, D), unit=2),
    R("emb", ops.fixed, shape=(S, D), unit=4),
    R("c0", ops.fixed, shape=(S, D), unit=4),
    R("c1", ops.fixed, "c0", shape=(S, D), unit=4),
    R("s0", ops.fixed, shape=(S, D), unit=4),
    R("s1", ops.fixed, "s0", shape=(S, D), unit=4),
    R("COS", ops.lower, "c1"),
    R("SIN", ops.lower, "s1"),
    end("fr emb c1 s1"),
)

#: The causal mask that eager attention adds: one per sequence, in the weights' type.
MASK: Table = (
    R("causal", ops.fixed, shape=(S, S), unit=1),
    R("MASK", ops.fixed, "causal", shape=(B, S, S)),
)

#: Position ids.
POSITIONS: Table = (
    R("p0", ops.fixed, shape=(S,), unit=8),
    R("IDS", ops.fixed, "p0", shape=(S,), unit=8),
)
