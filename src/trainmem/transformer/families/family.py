"""What a family of models is: its parameters, its layers, the format of its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmem.transformer.engine.dims import SCALAR, D, E, F, H, K, N, P, Q, Shape, V
from trainmem.transformer.engine.graph import Table
from trainmem.transformer.engine.tables import Embedding
from trainmem.transformer.engine.tape import Parameter, Parameters, Role
from trainmem.transformer.families.config_json import Format
from trainmem.transformer.rule import ModelRule

if TYPE_CHECKING:
    from trainmem.transformer.architecture import Architecture
    from trainmem.transformer.structure import Structure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Code:
    """The code that runs a family; families whose code is alike share one, and what is compiled.

    Attributes
    ----------
    layer, embedding, final_norm, logits
        The tables as the family's own library (transformers) writes them: `X` to `OUT`, token ids
        to `X`, `X` to `Y`, `Y` to `LOGITS`. None where they are not described, or (logits) where
        one product makes them.
    exact
        Whether these are traced to the byte, each layer as it is; else of a mean layer.
    layer_norm
        Whether norms are layer norms; else root-mean-square norms.
    side_by_side
        Whether attention and MLP work on the same input.
    holds_input
        Whether a variable of the model keeps the first layer's input to the end of the layers.
    leaf
        The tensor that peft makes a leaf which wants a gradient, for checkpointing over a frozen
        embedding; "" where it is the first layer's input, which a checkpoint keeps anyway.
    saves_positions
        Whether the embedding saves the position ids, for a trained table of positions.
    upcasts_logits
        Whether the model raised its logits to fp32 (transformers before 4.45).
    """

    layer: Callable[[Structure], Table] | None = None
    embedding: Callable[[Structure], Embedding] | None = None
    final_norm: Callable[[Structure], Table] | None = None
    logits: Callable[[Structure], Table] | None = None
    exact: bool = False
    layer_norm: bool = False
    side_by_side: bool = False
    holds_input: bool = True
    leaf: str = ""
    saves_positions: bool = False
    upcasts_logits: bool = True


def _anything(architecture: Architecture) -> None:
    """Accept every geometry."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """One family: all that differs from another lives here.

    Attributes
    ----------
    name
        `model_type` of its `config.json`, where it has one.
    code
        What runs.
    layer_parameters, root_parameters
        Parameter tensors of a layer, and of what is outside the layers, in the model's order.
    format
        How its `config.json` is read; None where it is not.
    experts
        Whether the MLP is a mixture of experts.
    gated
        Whether the MLP has a gate (SwiGLU, GeGLU).
    qk_norm
        Whether queries and keys are normalised.
    fields
        Fields of an architecture that are for this family to say.
    check
        Raises `ValueError` for a geometry that it does not have.
    targets
        What of the usual LoRA targets its layers call by another name, or do not have (None).
    transposed
        Whether its products' weights are transposed (`Conv1D`).
    kernels
        The kernels that it is covered with, the usual first; empty where they say so themselves.
    drops
        What a plan's dropout drops: "attention" weights where the kernels do, "outputs" too, or
        "always" where its code drops without being told.
    splits
        Whether embedding and head can be groups of their own.
    rules
        Which other plans it is not covered with.
    """

    name: str
    code: Code
    layer_parameters: Callable[[Architecture], Parameters]
    root_parameters: Callable[[Architecture], Parameters]
    format: Format | None = None
    experts: bool = False
    gated: Callable[[Architecture], bool] = lambda a: True
    qk_norm: bool = False
    fields: frozenset[str] = frozenset()
    check: Callable[[Architecture], None] = _anything
    targets: dict[str, str | None] = field(default_factory=dict)
    transposed: bool = False
    kernels: tuple[str, ...] = ()
    drops: str = "attention"
    splits: bool = True
    rules: tuple[ModelRule, ...] = ()


def product(rows: Any, *cols: Any) -> Parameter:
    """Return the weight of a matrix product, (out, in)."""
    return Parameter(rows, cols, Role.PRODUCT)


def norm(dim: Any, *more: Any) -> Parameter:
    """Return a norm's weight or bias."""
    return Parameter(dim, more, Role.NORM)


def bias(dim: Any) -> Parameter:
    """Return a product's bias."""
    return Parameter(dim, SCALAR, Role.BIAS)


def biased(*rows: tuple[str, Any, Shape]) -> Parameters:
    """Return a weight and a bias of every (name, first dimension, others); norms have no others."""
    out: Parameters = {}
    for name, first, others in rows:
        out[name + ".weight"] = product(first, *others) if others else norm(first)
        out[name + ".bias"] = bias(first) if others else norm(first)
    return out


EMBED = Parameter(V, (H,), Role.EMBEDDING)
POSITION = Parameter(P, (H,), Role.EMBEDDING)

#: The MLP of Llama and its kin.
GATED: Parameters = {
    "gate.weight": product(F, H),
    "up.weight": product(F, H),
    "down.weight": product(H, F),
}

#: Experts are one tensor each of gate, up and down (transformers 5, torchtitan, Megatron).
EXPERTS: Parameters = {
    "router.weight": product(N, H),
    "gate.weight": product(E, F, H),
    "up.weight": product(E, F, H),
    "down.weight": product(E, H, F),
}

#: Norms of queries and keys, of each head's dimension.
QK_NORM: Parameters = {"q_norm": norm(D), "k_norm": norm(D)}

#: Biases of queries, keys and values.
QKV_BIAS: Parameters = {"q.bias": bias(Q), "k.bias": bias(K), "v.bias": bias(K)}


def llama_parameters(
    biases: Parameters | None = None,
    norms: Parameters | None = None,
    mlp: Parameters = GATED,
) -> Parameters:
    """Return a layer of Llama, with what its kin have more."""
    return {
        "q.weight": product(Q, H),
        "k.weight": product(K, H),
        "v.weight": product(K, H),
        **(biases or {}),
        "o.weight": product(H, Q),
        **(norms or {}),
        **mlp,
        "norm1": norm(H),
        "norm2": norm(H),
    }


def head_of(a: Architecture) -> Parameters:
    """Return the head, unless it is the embedding."""
    return {} if a.tie_embeddings else {"head.weight": Parameter(V, (H,), Role.HEAD)}


def llama_root(a: Architecture) -> Parameters:
    """Return what is outside the layers of Llama and its kin."""
    return {"embed": EMBED, "norm": norm(H), **head_of(a)}


def gpt_root(a: Architecture) -> Parameters:
    """Return what is outside the layers of GPTs: a layer norm, perhaps a table of positions."""
    positions = {"position": POSITION} if a.learned_positions else {}
    return {"embed": EMBED, **positions, "norm.weight": norm(H), "norm.bias": norm(H), **head_of(a)}
