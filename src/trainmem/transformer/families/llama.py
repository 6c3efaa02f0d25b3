"""Llama, and what its kin share: the layer and the embedding as transformers runs them.

`modeling_llama.py` of transformers 5; Mistral, Qwen2 and Qwen3 differ only in biases and in the
norms of queries and keys, mixtures of experts in the MLP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import BSH, BSK, BSQ, A, B, G, S
from trainmem.transformer.engine.graph import Row, Table, end
from trainmem.transformer.engine.tables import (
    CACHED,
    EXPERTS,
    GATED,
    MASK,
    POSITIONS,
    ROTARY_TABLES,
    Embedding,
    attention,
    rms_norm,
    rotary,
)
from trainmem.transformer.families.config_json import NO_BIAS, Fields, Format, llama_sizes
from trainmem.transformer.families.family import Code, Family, llama_parameters, llama_root

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row


def layer(s: Structure) -> Table:
    """One layer of Llama, Mistral, Qwen2 or Qwen3; `X` in, `OUT` out."""
    turned = ops.same if s.one_kv else ops.heads  # one head needs no copy to turn back
    k, v = ("k1", "v1") if s.use_cache else ("k", "v")
    rows: list[Row] = [*rms_norm("X", "y", "norm1")]
    if s.qk_norm:
        rows += [
            R("qp", ops.linear, "y", "q", BSQ),
            R("qv", ops.heads, "qp"),
            *rms_norm("qv", "q0", "q_norm", stat=(B, S, A)),
            end("qp qv"),
            R("kp", ops.linear, "y", "k", BSK),
            R("kv", turned, "kp"),
            *rms_norm("kv", "k0", "k_norm", stat=(B, S, G)),
            end("kp kv"),
        ]
    else:
        rows += [
            R("qp", ops.linear, "y", "q", BSQ),
            R("q0", ops.heads, "qp"),
            R("kp", ops.linear, "y", "k", BSK),
            R("k0", turned, "kp"),
        ]
    rows += [
        R("vp", ops.linear, "y", "v", BSK),
        R(v, ops.same if s.direct_gradients else turned, "vp"),
        end("vp" if s.qk_norm else "qp kp vp"),
        *rotary("q0", "q"),
        *rotary("k0", k),
        end("q0 k0"),
        *(CACHED if s.use_cache else ()),
        *attention(s),
        R("o", ops.linear, "a", "o", BSH),
        end("q k v a"),
        end("y"),
        R("x1", ops.add, "X o"),
        *rms_norm("x1", "z", "norm2"),
        *(EXPERTS if s.experts else GATED),
        end("z"),
        R("OUT", ops.add, "x1 m"),
        end("x1 at" if s.attention_kernel == "eager" else "x1"),
    ]
    return tuple(rows)


def embedding(s: Structure) -> Embedding:
    """Look token ids up; position ids, the mask of eager attention, rotary tables."""
    rest = (*POSITIONS, *(MASK if s.attention == "eager" else ()), *ROTARY_TABLES)
    lookup = (R("X", ops.embedding, "", "embed", BSH),)
    return Embedding(lookup, rest, ("X", "IDS", "MASK", "COS", "SIN"))


def final_norm(s: Structure) -> Table:
    """Norm in front of the head."""
    return rms_norm("X", "Y", "norm")


#: What Llama and its kin run, to the byte.
CODE = Code(layer=layer, embedding=embedding, final_norm=final_norm, exact=True)


def sizes(f: Fields, form: Format) -> dict[str, Any]:
    """Read the sizes; Llama's own configuration refuses a hidden size that heads don't divide."""
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    f.integer("num_hidden_layers")
    if heads > 0 and hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return llama_sizes(f, form)


FAMILY = Family(
    name="llama",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(),
    root_parameters=llama_root,
    format=Format(
        "LlamaForCausalLM", sizes, 2048, only=NO_BIAS, ignored=frozenset({"sliding_window"})
    ),
)
