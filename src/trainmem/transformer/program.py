"""A schedule compiled to counts of symbolic sizes, and the sizes of a configuration.

The schedule is run once for a structure. A configuration is then a product of two matrices: blocks
of each size alive after each event, and bytes of each size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.plan import Plan
from trainmem.transformer.replay import KINDS, SizeKey, net
from trainmem.transformer.schedule import walk
from trainmem.transformer.states import Segment, Structure

#: The CUDA caching allocator rounds every block up to this many bytes.
ROUND = 512

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Program:
    """A compiled schedule: counts of each size alive after every event.

    Attributes
    ----------
    sizes
        The distinct block sizes, symbolic.
    segments
        The stretches of events.
    size, count, kind
        One entry an event, middle layers collapsed.
    start
        Index of the first event of each segment, and the end.
    rows
        Events after which memory falls, or a segment ends: the only ones that can be a peak.
    alive
        Blocks of each size alive after those events, shape (rows, sizes).
    """

    sizes: tuple[SizeKey, ...]
    segments: tuple[Segment, ...]
    size: NDArray[np.int64]
    count: NDArray[np.int64]
    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.int64]
    alive: Floats

    def highest(self, totals: Floats) -> int:
        """Row of the peak; of equal ones the first in the last micro batch."""
        rows = np.flatnonzero(totals >= totals.max())
        segments = np.searchsorted(self.start, self.rows[rows], side="right") - 1
        final = [self.segments[i].phase != "other" for i in segments]
        return int(rows[int(np.argmax(final))])

    def composition(self, row: int) -> Floats:
        """Blocks of each kind and size alive after event `rows[row]`, shape (kinds, sizes)."""
        n = int(self.rows[row]) + 1
        flat = self.kind[:n] * len(self.sizes) + self.size[:n]
        total = np.bincount(flat, self.count[:n], minlength=len(KINDS) * len(self.sizes))
        return total.reshape(len(KINDS), len(self.sizes)).astype(np.float64)


@lru_cache(maxsize=256)
def compile_structure(structure: Structure) -> Program:
    """Run the schedule once for a structure."""
    ledger = walk(structure)
    segments = tuple(ledger.segments)
    events: list[list[int]] = []
    start = []
    for segment in segments:
        start.append(len(events))
        events += segment.events if segment.times == 1 else net(segment.events, segment.times)
    start.append(len(events))
    size, count, kind = np.array(events, dtype=np.int64).T
    sizes = tuple(ledger.tape.sizes)
    falls = np.flatnonzero((count[:-1] > 0) & (count[1:] < 0))
    ends = np.array(start[1:]) - 1
    rows = np.union1d(falls, ends[ends >= 0])
    alive = np.zeros((len(events), len(sizes)))
    alive[np.arange(len(events)), size] = count
    np.cumsum(alive, axis=0, out=alive)
    return Program(sizes, segments, size, count, kind, np.array(start), rows, alive[rows])


def structure_of(
    architecture: Architecture, plan: Plan, *, alone: bool, single: bool, chunks: int
) -> Structure:
    """Pick what of an architecture and a plan decides the order of events.

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered.
    """
    a = architecture
    if plan.dropout and a.family != "gpt2":
        raise ValueError(f"dropout is covered for gpt2 only, got family {a.family!r}")
    if plan.wrapping == "split" and (a.tie_embeddings or a.family == "gpt2"):
        raise ValueError("wrapping 'split' needs an embedding and a head that are not tied")
    delayed = plan.no_sync or plan.sharding == "zero1"
    return Structure(
        family=a.family if a.family in ("gpt2", "qwen3") else "llama",
        num_layers=a.num_layers,
        tied=a.tie_embeddings,
        grouped=a.num_kv_heads != a.num_heads,
        one_kv=a.num_kv_heads == 1,
        single=single,
        layer=tuple(a.layer_parameters.items()),
        root=tuple(a.root_parameters.items()),
        alone=alone,
        sharding=plan.sharding,
        precision=plan.precision,
        optimizer=plan.optimizer,
        attention=plan.attention,
        loss_head=plan.loss_head,
        chunks=chunks,
        checkpoint=plan.checkpointing == "full",
        micros=min(plan.accumulation, 3 if delayed else 2),
        no_sync=delayed and plan.sharding != "zero1",
        keep=plan.keep_gradients,
        split=plan.wrapping == "split",
        reduce_unit=4 if plan.reduce_dtype == "float32" else 2,
        dropout=plan.dropout,
    )


def chunk_tokens(architecture: Architecture, plan: Plan, tokens: Any) -> Any:
    """Tokens in one chunk of the loss head, for `tokens` in all.

    Fused: so that a chunk's logits are no larger than the hidden states, a power of two
    (`fused_linear_cross_entropy_forward` in Liger-Kernel).
    """
    if plan.loss_head == "fused":
        pieces = -(-architecture.vocab_size // architecture.hidden_dim)
        return np.minimum(2.0 ** np.ceil(np.log2(np.ceil(tokens / pieces))), tokens)
    if plan.loss_head == "chunked":
        return np.minimum(float(plan.loss_chunk), tokens)
    return tokens


def situation(
    architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> tuple[Any, Any, Any]:
    """Say what of the numbers changes the order of events.

    Whether a rank is alone, whether there is a single sequence, and how many chunks of the loss are
    run: one, two, or three for more.
    """
    chunks = np.minimum(np.ceil(b * s / chunk_tokens(architecture, plan, b * s)), 3)
    return n == 1, b == 1, chunks


def block_bytes(
    sizes: tuple[SizeKey, ...], architecture: Architecture, plan: Plan, *, b: Any, s: Any, n: Any
) -> Floats:
    """Bytes of each symbolic size, shape (sizes, configurations), rounded as the allocator does."""
    d = architecture.head_dim
    columns = 32 if d <= 128 else 64
    chunk = chunk_tokens(architecture, plan, b * s)
    count = np.ceil(b * s / chunk)
    last = b * s - (count - 1) * chunk
    dims: dict[str, Any] = {
        **architecture.dims,
        "b": b,
        "s": s,
        "i": s + 1,
        "R": -(-s // 128) * 128,
        "E": -(-s // 32) * 32,
        "c": chunk,
        "l": chunk,
        "z": last,
        "u": np.maximum(b * s - 2 * chunk - last, 0),
        "m": np.maximum(count - 3, 0),
        "C": -(-d // columns) * columns + 1,
    }
    out = np.empty((len(sizes), *np.shape(b)))

    def product(letters: str) -> Any:
        total: Any = 1.0
        for letter in letters:
            total = total * dims[letter]
        return total

    for i, (how, what, unit) in enumerate(sizes):
        if isinstance(what, str):
            elements = product(what)
        else:
            shards = 0.0
            for rows, cols in what:
                shards = shards + np.ceil(dims[rows] / n) * product(cols)
            elements = shards * n if how == "gather" else shards
        out[i] = np.ceil(elements * unit / ROUND) * ROUND
    return out
