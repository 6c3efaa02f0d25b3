"""How a model is laid out over GPUs: what divides what, and which stage of a pipeline holds what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.plan import Plan


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of a pipeline (of one stage, where there is no pipeline).

    Attributes
    ----------
    index
        From 0.
    first, last
        Whether it holds the embedding, and the head.
    layers
        Layers whose weights it holds.
    chunk_layers
        Layers that a micro batch passes at once: all of them, or one model chunk's if interleaved.
    waiting
        Chunks of layers whose activations wait for their backward pass, beside the one at work.
    """

    index: int
    first: bool
    last: bool
    layers: int
    chunk_layers: int
    waiting: int


def divisors(*numbers: int) -> list[int]:
    """Return the common divisors, ascending."""
    low = min(numbers)
    return [d for d in range(1, low + 1) if all(n % d == 0 for n in numbers)]


def nearest(choices: Iterable[int], value: int) -> str:
    """Name the choices just below and above a value."""
    ordered = sorted(set(choices))
    below = [c for c in ordered if c < value][-1:]
    above = [c for c in ordered if c > value][:1]
    return " or ".join(map(str, below + above)) or "1"


def check_layout(a: Architecture, plan: Plan) -> None:
    """Refuse axes that do not divide the model.

    Raises
    ------
    ValueError
        Naming the axis, its value, what it must divide and the nearest valid choices.
    """
    sizes = [a.num_heads, a.num_kv_heads, a.ffn_dim]
    if any(size % plan.tp for size in sizes):
        raise ValueError(
            f"tp {plan.tp} does not divide the {a.num_heads} heads, {a.num_kv_heads} key/value "
            f"heads and FFN size {a.ffn_dim} of {a.name}; the nearest are "
            f"{nearest(divisors(*sizes), plan.tp)}"
        )
    if plan.ep > 1 and not a.experts:
        raise ValueError(f"ep {plan.ep} needs a mixture of experts, which {a.name} is not; use 1")
    if a.experts and a.num_experts % plan.ep:
        raise ValueError(
            f"ep {plan.ep} does not divide the {a.num_experts} experts of {a.name}; the nearest "
            f"are {nearest(divisors(a.num_experts), plan.ep)}"
        )
    if plan.ep > 1 and plan.kernels in ("transformers", "liger"):
        raise ValueError(f"ep {plan.ep} is not covered with kernels {plan.kernels!r}; use 1")
    parts = plan.pp * plan.vpp
    if not _splits(a.num_layers, parts):
        valid = [n for n in range(1, a.num_layers + 3) if _splits(a.num_layers, n)]
        raise ValueError(
            f"pp {plan.pp} · vpp {plan.vpp} = {parts} divides neither the {a.num_layers} layers of "
            f"{a.name} nor these with embedding and head ({a.num_layers + 2}); the nearest "
            f"products are {nearest(valid, parts)}"
        )


def _splits(layers: int, parts: int) -> bool:
    """Whether layers fall into equal parts, alone or with embedding and head counted as one each.

    The second is torchtitan's and Megatron's way for Llama 3's 126 layers
    (`--account-for-embedding-in-pipeline-split`).
    """
    if layers % parts == 0:
        return True
    return (layers + 2) % parts == 0 and (layers + 2) // parts > 1 and parts > 1


def stages(a: Architecture, plan: Plan) -> list[Stage]:
    """Return the stages of a pipeline, first to last.

    Chunks in flight follow the schedules: 1F1B keeps `pp − i` micro batches on stage `i`, an
    interleaved pipeline `2 (pp − i − 1) + (vpp − 1) pp + 1` chunks, neither more than there are
    (Narayanan et al. 2021, arXiv 2104.04473; `get_num_warmup_microbatches` in Megatron-Core).
    """
    pp, vpp, m = plan.pp, plan.vpp, plan.accumulation
    parts = pp * vpp
    counted = a.num_layers % parts != 0  # embedding and head count as a layer each
    chunk = (a.num_layers + 2 * counted) // parts
    out = []
    for i in range(pp):
        first, last = i == 0, i == pp - 1
        layers = chunk * vpp - counted * (first + last)
        if vpp == 1:
            flight = min(pp - i, m)
        else:
            flight = min(m * vpp, 2 * (pp - i - 1) + (vpp - 1) * pp + 1)
        waiting = flight - 1 if pp > 1 else 0
        out.append(Stage(i, first, last, layers, layers if vpp == 1 else chunk, waiting))
    return out
