"""Megatron's GPT: layer norms, and gate, biases and learned positions as its arguments say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmem.transformer.engine.dims import SCALAR, F, H, K, Q
from trainmem.transformer.engine.tape import Parameters
from trainmem.transformer.families.family import Code, Family, bias, biased, gpt_root, product

if TYPE_CHECKING:
    from trainmem.transformer.architecture import Architecture


def layer_parameters(a: Architecture) -> Parameters:
    """Return a layer, in Megatron's order; the gate's weight last."""
    table: Parameters = {
        **biased(("norm1", H, SCALAR)),
        "q.weight": product(Q, H),
        "k.weight": product(K, H),
        "v.weight": product(K, H),
        "o.weight": product(H, Q),
        **biased(("norm2", H, SCALAR)),
        "up.weight": product(F, H),
        "down.weight": product(H, F),
        **({"gate.weight": product(F, H)} if a.gate else {}),
    }
    biases = {name.replace("weight", "bias"): bias(p.rows) for name, p in table.items() if p.cols}
    return table | (biases if a.linear_bias else {})


FAMILY = Family(
    name="gpt",
    code=Code(layer_norm=True),
    layer_parameters=layer_parameters,
    root_parameters=gpt_root,
    gated=lambda a: a.gate,
    fields=frozenset({"gate", "linear_bias", "learned_positions"}),
)
