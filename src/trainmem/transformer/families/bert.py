"""BERT as an encoder with a pooler and a head for two classes (`BertForSequenceClassification`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine import fused_ops as fused
from trainmem.transformer.engine import ops
from trainmem.transformer.engine.dims import (
    BSF,
    BSH,
    BSK,
    BSQ,
    SCALAR,
    SCORES,
    B,
    F,
    H,
    K,
    Q,
    S,
    Y,
)
from trainmem.transformer.engine.graph import Row, Table
from trainmem.transformer.engine.tables import Embedding
from trainmem.transformer.engine.tape import Parameter, Parameters, Role
from trainmem.transformer.families.family import EMBED, POSITION, Code, Family, biased
from trainmem.transformer.rule import ModelRule

if TYPE_CHECKING:
    from trainmem.transformer.structure import Structure

R = Row

LAYER = biased(
    ("q", Q, (H,)),
    ("k", K, (H,)),
    ("v", K, (H,)),
    ("o", H, (Q,)),
    ("norm1", H, SCALAR),
    ("up", F, (H,)),
    ("down", H, (F,)),
    ("norm2", H, SCALAR),
)
ROOT: Parameters = {
    "embed": EMBED,
    "position": POSITION,
    "token_type": Parameter(Y, (H,), Role.EMBEDDING),
    **biased(("embed_norm", H, SCALAR), ("pooler", H, (H,)), ("classifier", Y, (H,))),
}


def layer(s: Structure) -> Table:
    """One layer with unfused attention, dropout, and norms after the sums; `X` in, `OUT` out."""
    return (
        R("q", ops.linear, "X", "q", BSQ),
        R("k", ops.linear, "X", "k", BSK),
        R("v", ops.linear, "X", "v", BSK),
        R("sc", ops.batched, "q k", shape=SCORES),
        R("sm", ops.scale, "sc"),
        R("mk", ops.passing, "sm"),
        R("pr", ops.softmax, "mk"),
        R("at", ops.dropout, "pr"),
        R("a", ops.batched, "at v", shape=BSQ),
        R("o", ops.linear, "a", "o", BSH),
        R("od", ops.dropout, "o"),
        R("r1", ops.add, "od X"),
        R("x1", ops.layer_norm, "r1", "norm1"),
        R("u", ops.linear, "x1", "up", BSF),
        R("gu", ops.activation, "u"),
        R("m", ops.linear, "gu", "down", BSH),
        R("md", ops.dropout, "m"),
        R("r2", ops.add, "md x1"),
        R("n2", ops.layer_norm, "r2", "norm2"),
        R("OUT", ops.lower, "n2"),
    )


def embedding(s: Structure) -> Embedding:
    """Look tokens, their types and positions up; their sum, normalised and dropped."""
    lookup = (R("TOKENS", ops.embedding, "", "embed", BSH),)
    rest = (
        R("IDS", ops.fixed, shape=(S,), unit=8),
        R("KINDS", ops.fixed, shape=(S,), unit=8),
        R("TYPES", ops.embedding, "KINDS", "token_type", BSH),
        R("typed", ops.add, "TOKENS TYPES"),
        R("PLACES", ops.embedding, "IDS", "position", (S, H)),
        R("sum", ops.add, "typed PLACES"),
        R("normed", ops.layer_norm, "sum", "embed_norm"),
        R("dropped", ops.dropout, "normed"),
        R("X", ops.lower, "dropped"),
    )
    return Embedding(lookup, rest, ("X", "TOKENS", "IDS", "KINDS", "TYPES", "PLACES"))


def pooler(s: Structure) -> Table:
    """Pool the first token of each sequence."""
    return (
        R("first", fused.routed, "X", shape=(B, H)),
        R("pooled", ops.linear, "first", "pooler", (B, H)),
        R("Y", ops.tanh, "pooled"),
    )


def logits(s: Structure) -> Table:
    """Two classes a sequence."""
    return (
        R("kept", ops.dropout, "Y"),
        R("LOGITS", ops.linear, "kept", "classifier", (B, Y)),
    )


FAMILY = Family(
    name="bert",
    code=Code(
        layer=layer,
        embedding=embedding,
        final_norm=pooler,
        logits=logits,
        layer_norm=True,
    ),
    layer_parameters=lambda a: LAYER,
    root_parameters=lambda a: ROOT,
    gated=lambda a: False,
    kernels=("transformers",),
    drops="always",
    rules=(
        ModelRule(
            name="a few classes for logits",
            fields=("loss_head",),
            broken=lambda a, p: p.loss_head != "compiled",
            message=lambda a, p: (
                "bert, which has a few classes for logits, needs loss_head 'compiled', "
                f"got {p.loss_head!r}"
            ),
        ),
    ),
)
