"""How a model is laid out over GPUs: what divides what, and what each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def splits(layers: int, parts: int) -> bool:
    """Whether layers fall into equal parts, alone or with embedding and head counted as one each.

    The second is torchtitan's and Megatron's way for Llama 3's 126 layers
    (`--account-for-embedding-in-pipeline-split`).
    """
    if layers % parts == 0:
        return True
    return (layers + 2) % parts == 0 and (layers + 2) // parts > 1 and parts > 1


def longest_length(architecture: Architecture) -> int | None:
    """Return the longest sequence that the model's code runs as it is described here, or None.

    Only a table of positions and a sliding window end it: rotary positions run past
    `max_positions`, though the model was not trained there.
    """
    if architecture.has_positions:
        return architecture.max_positions
    window = architecture.sliding_window
    return None if window is None else window - 1


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
        warmup = pp - i if vpp == 1 else 2 * (pp - i - 1) + (vpp - 1) * pp + 1
        flight = min(m * vpp, warmup)
        waiting = flight - 1 if pp > 1 else 0
        out.append(Stage(i, first, last, layers, layers if vpp == 1 else chunk, waiting))
    return out
