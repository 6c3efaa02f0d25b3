"""GPT-2 as transformers runs it (`modeling_gpt2.py`): one product for q, k, v; `gelu_new`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import BSF, BSH, BSQ, B, F, H, S, W
from trainmem.transformer.engine.graph import Row, Table, end
from trainmem.transformer.engine.tables import CACHED, MASK, POSITIONS, Embedding, attention
from trainmem.transformer.engine.tape import Parameters
from trainmem.transformer.families.config_json import Fields, Format
from trainmem.transformer.families.family import (
    EMBED,
    POSITION,
    Code,
    Family,
    bias,
    head_of,
    norm,
    product,
)
from trainmem.transformer.rule import ModelRule
from trainmem.words import describe

if TYPE_CHECKING:
    from trainmem.transformer.architecture import Architecture
    from trainmem.transformer.structure import Structure

R = Row

#: The kernels that it is covered with.
KERNELS = ("transformers", "llm.c")

LAYER: Parameters = {
    "norm1.weight": norm(H),
    "norm1.bias": norm(H),
    "qkv.weight": product(H, W),
    "qkv.bias": bias(W),
    "o.weight": product(H, H),
    "o.bias": bias(H),
    "norm2.weight": norm(H),
    "norm2.bias": norm(H),
    "up.weight": product(H, F),
    "up.bias": bias(F),
    "down.weight": product(F, H),
    "down.bias": bias(H),
}


def root_parameters(a: Architecture) -> Parameters:
    """Return what is outside the layers: two tables, a layer norm, the head if it is apart."""
    tables = {"embed": EMBED, "position": POSITION}
    return {**tables, "norm.weight": norm(H), "norm.bias": norm(H), **head_of(a)}


def layer(s: Structure) -> Table:
    """One block with the unfused `gelu_new`; `X` in, `OUT` out."""
    eager = s.attention_kernel == "eager"
    dropped = ops.dropout if s.dropout else ops.same
    turned = "" if s.direct_gradients else "kvq" if s.attention_kernel == "flash" else "vq"

    def name(n: str) -> str:
        return n + "1" if s.use_cache and n in "kv" else n

    return (
        R("y", ops.layer_norm, "X", "norm1"),
        R("qkv", ops.conv1d, "y", "qkv", (B, S, W)),
        R("q0 k0 v0", ops.split, "qkv", shape=BSQ),
        *(R(name(n), ops.heads if n in turned else ops.same, n + "0") for n in "kvq"),
        *(CACHED if s.use_cache else ()),
        *attention(s, upcasts=False),
        R("o", ops.conv1d, "a", "o", BSH),
        R("od", dropped, "o"),
        end("q k v q0 k0 v0 qkv"),
        R("x1", ops.add, "od X"),
        end("y"),
        R("z", ops.layer_norm, "x1", "norm2"),
        R("u", ops.conv1d, "z", "up", BSF),
        R("half", ops.scale, "u"),
        R("cube", ops.power, "u"),
        R("c", ops.scale, "cube"),
        R("t", ops.add, "u c"),
        R("ts", ops.scale, "t"),
        R("th", ops.tanh, "ts"),
        R("t1", ops.passing, "th"),
        R("gu", ops.multiply, "half t1"),
        end("u"),
        R("m", ops.conv1d, "gu", "down", BSH),
        R("md", dropped, "m"),
        R("OUT", ops.add, "x1 md"),
        end("z od x1 md at" if eager else "z od x1 md"),
    )


def embedding(s: Structure) -> Embedding:
    """Look tokens and positions up; their sum, and what is dropped of it."""
    lookup = (R("TOKENS", ops.embedding, "", "embed", BSH),)
    rest = (
        *POSITIONS,
        R("PLACES", ops.embedding, "IDS", "position", BSH if s.single else (S, H)),
        R("sum" if s.dropout else "X", ops.add, "TOKENS PLACES"),
        *(MASK if s.attention == "eager" else ()),
        *((R("X", ops.dropout, "sum"),) if s.dropout else ()),
    )
    return Embedding(lookup, rest, ("X", "TOKENS", "IDS", "PLACES", "MASK"))


def final_norm(s: Structure) -> Table:
    """Norm in front of the head."""
    return (R("Y", ops.layer_norm, "X", "norm"),)


def sizes(f: Fields, form: Format) -> dict[str, Any]:
    """Read the sizes under either of their names, and whether values are dropped."""
    hidden = f.integer("n_embd", "hidden_size")
    heads = f.integer("n_head", "num_attention_heads")
    dropped = {key: f.dropped(key, 0.1) for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    if len(set(dropped.values())) > 1:
        none, some = (
            next(k for k, on in dropped.items() if on is which) for which in (False, True)
        )
        raise ValueError(
            f"{none} 0 with {some} {describe(f.config.get(some, 0.1))} is not covered: "
            "all three above 0 are, or none"
        )
    return {
        "num_layers": f.integer("n_layer", "num_hidden_layers"),
        "hidden_dim": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // max(heads, 1),
        "ffn_dim": f.integer("n_inner", default=4 * hidden),
        "vocab_size": f.integer("vocab_size"),
        "tie_embeddings": f.flag("tie_word_embeddings", True),
        "max_positions": f.integer(
            "n_positions", "max_position_embeddings", default=form.positions
        ),
        "dropout": any(dropped.values()),
    }


def check(a: Architecture) -> None:
    """Refuse heads that do not make up the hidden size, or that share keys and values."""
    if a.num_kv_heads != a.num_heads or a.num_heads * a.head_dim != a.hidden_dim:
        raise ValueError(
            "gpt2 needs num_kv_heads = num_heads and num_heads × head_dim = hidden_dim"
        )


FAMILY = Family(
    name="gpt2",
    code=Code(
        layer=layer,
        embedding=embedding,
        final_norm=final_norm,
        exact=True,
        layer_norm=True,
        holds_input=False,
        leaf="TOKENS",
        saves_positions=True,
        upcasts_logits=False,
    ),
    layer_parameters=lambda a: LAYER,
    root_parameters=root_parameters,
    format=Format(
        "GPT2LMHeadModel",
        sizes,
        1024,
        only={
            "activation_function": ("gelu_new",),
            "reorder_and_upcast_attn": (False,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
        },
        ignored=frozenset({"afn", "n_special", "predict_special_tokens"}),
    ),
    gated=lambda a: False,
    check=check,
    targets={"q": "qkv", "k": None, "v": None, "gate": None},
    transposed=True,
    kernels=KERNELS,
    drops="outputs",
    splits=False,
    rules=(
        ModelRule(
            name="kernels that run Conv1D",
            fields=("kernels",),
            broken=lambda a, p: p.kernels not in KERNELS,
            message=lambda a, p: (
                f"kernels {p.kernels!r} are not covered for gpt2; use {KERNELS[0]!r}"
            ),
        ),
    ),
)
