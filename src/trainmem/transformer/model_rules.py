"""Rules of a model and a plan: axes that divide the model, kernels that run it, lengths it takes.

What belongs to some kernels or to a family stands in its own file, and is asked at its place here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from trainmem.transformer.families import FAMILIES
from trainmem.transformer.layout import divisors, longest_length, nearest, splits
from trainmem.transformer.rule import ModelRule, NotCovered
from trainmem.transformer.stacks import KERNELS

if TYPE_CHECKING:
    from trainmem.transformer.architecture import Architecture
    from trainmem.transformer.plan import Plan


def _undivided(a: Architecture, p: Plan) -> str:
    sizes = (a.num_heads, a.num_kv_heads, a.ffn_dim)
    return (
        f"tp {p.tp} does not divide the {a.num_heads} heads, {a.num_kv_heads} key/value "
        f"heads and FFN size {a.ffn_dim} of {a.name}; the nearest are "
        f"{nearest(divisors(*sizes), p.tp)}"
    )


def _uneven(a: Architecture, p: Plan) -> str:
    parts = p.pp * p.vpp
    valid = [n for n in range(1, a.num_layers + 3) if splits(a.num_layers, n)]
    return (
        f"pp {p.pp} · vpp {p.vpp} = {parts} divides neither the {a.num_layers} layers of "
        f"{a.name} nor these with embedding and head ({a.num_layers + 2}); the nearest "
        f"products are {nearest(valid, parts)}"
    )


def _drops(a: Architecture, p: Plan) -> bool:
    """Whether a plan's dropout is what the code that runs drops."""
    drops = FAMILIES[a.family].drops
    return drops == "outputs" or (drops == "attention" and KERNELS[p.kernels].drops_attention)


MODEL_LAYOUT = (
    ModelRule(
        name="tensor parallelism divides heads and FFN",
        fields=("tp",),
        broken=lambda a, p: any(n % p.tp for n in (a.num_heads, a.num_kv_heads, a.ffn_dim)),
        message=_undivided,
    ),
    ModelRule(
        name="expert parallelism divides experts",
        fields=("ep",),
        broken=lambda a, p: p.ep > 1 and not a.experts,
        message=lambda a, p: f"ep {p.ep} needs a mixture of experts, which {a.name} is not; use 1",
    ),
    ModelRule(
        name="expert parallelism divides evenly",
        fields=("ep",),
        broken=lambda a, p: a.experts and a.num_experts % p.ep != 0,
        message=lambda a, p: (
            f"ep {p.ep} does not divide the {a.num_experts} experts of {a.name}; the nearest "
            f"are {nearest(divisors(a.num_experts), p.ep)}"
        ),
    ),
    ModelRule(
        name="kernels with expert parallelism",
        fields=("ep",),
        broken=lambda a, p: p.ep > 1 and not KERNELS[p.kernels].expert_parallel,
        message=lambda a, p: f"ep {p.ep} is not covered with kernels {p.kernels!r}; use 1",
    ),
    ModelRule(
        name="a pipeline divides layers",
        fields=("pp",),
        broken=lambda a, p: not splits(a.num_layers, p.pp * p.vpp),
        message=_uneven,
    ),
)

MODEL_STACK = (
    ModelRule(
        name="kernels that the family is covered with",
        fields=("kernels",),
        broken=lambda a, p: (
            bool(FAMILIES[a.family].kernels) and p.kernels not in FAMILIES[a.family].kernels
        ),
        message=lambda a, p: (
            f"family {a.family!r} is not covered with kernels {p.kernels!r} "
            f"(covered: {', '.join(FAMILIES[a.family].kernels)})"
        ),
    ),
    ModelRule(
        name="adapters of experts",
        fields=("lora_rank",),
        broken=lambda a, p: a.experts and p.lora_rank > 0,
        message=lambda a, p: f"lora_rank {p.lora_rank} is not covered for a mixture of experts",
    ),
    ModelRule(
        name="what can be dropped",
        fields=("dropout",),
        broken=lambda a, p: p.dropout and not _drops(a, p),
        message=lambda a, p: (
            "dropout is covered with kernels 'transformers' and 'liger', or framework 'megatron'; "
            f"got kernels {p.kernels!r}"
        ),
    ),
    ModelRule(
        name="a head that is called once a piece",
        fields=("loss_head", "wrapping"),
        broken=lambda a, p: (
            p.loss_head == "pieces"
            and p.wrapping == "split"
            and KERNELS[p.kernels].transformers_model
            and FAMILIES[a.family].drops != "always"
        ),
        message=lambda a, p: (
            "loss_head 'pieces' calls the head once a piece, which is not covered with wrapping "
            f"'split' and kernels {p.kernels!r}; use wrapping 'layers'"
        ),
    ),
    ModelRule(
        name="groups apart are of tensors apart",
        fields=("wrapping",),
        broken=lambda a, p: (
            p.wrapping == "split" and (a.tie_embeddings or not FAMILIES[a.family].splits)
        ),
        message=lambda a, p: "wrapping 'split' needs an embedding and a head that are not tied",
    ),
)


def model_rules_of(architecture: Architecture, plan: Plan) -> Iterator[ModelRule]:
    """Return the rules that an architecture and a plan keep together, in order."""
    family, kernels = FAMILIES[architecture.family], KERNELS[plan.kernels]
    return chain(MODEL_LAYOUT, kernels.rules, family.rules, MODEL_STACK)


def check_model(
    architecture: Architecture, plan: Plan, rules: Iterable[ModelRule] | None = None
) -> None:
    """Refuse a model that the plan's axes, kernels or framework do not have.

    Raises
    ------
    NotCovered
        With the message of the first rule broken, and the field it names.
    """
    for rule in model_rules_of(architecture, plan) if rules is None else rules:
        if rule.broken(architecture, plan):
            raise NotCovered(rule.message(architecture, plan), rule.fields[0])


def check_length(architecture: Architecture, seq_length: ArrayLike) -> None:
    """Refuse sequences that the model's code would treat differently, or not at all.

    Raises
    ------
    NotCovered
        Naming `seq_length`.
    """
    longest, most = float(np.max(seq_length)), longest_length(architecture)
    if most is None or longest <= most:
        return
    if architecture.has_positions and longest > architecture.max_positions:
        reason = (
            f"seq_length {longest:g} exceeds the {architecture.max_positions} positions "
            f"of {architecture.name}"
        )
    else:
        reason = (
            f"seq_length {longest:g} reaches the sliding window of {architecture.name} "
            f"({architecture.sliding_window}), which is not covered"
        )
    raise NotCovered(reason, "seq_length")
