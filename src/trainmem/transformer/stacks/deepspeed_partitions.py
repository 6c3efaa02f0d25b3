"""What a rank of ZeRO-1 and 2 holds: parameters in a row, cut into equal parts.

A partition's border may cut a parameter, whose whole gradient then belongs to both ranks
(`runtime/zero/stage_1_and_2.py`, `get_partition_info` and `copy_grads_in_partition`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.engine.dims import Dim

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Stretches of a backward pass, by elements whose gradients have come: what a rank's partition adds
#: in one of them has a dimension of its own, so that one order of events serves all ranks.
STRETCHES = 32

#: Bytes of a unit of memory whose count, not its size, differs: the allocator's smallest block.
UNIT = 512

#: Ranks that may hold most: the first's gradients come last, the last one's first, and one (here,
#: -1) has the largest parameters at its borders.
FIRST, LAST, FULLEST = 0, 2**40, -1

PART = Dim("S", "elements of a rank's part of what is trained")
AT_ONCE = Dim("γ", "elements of a rank's part that are updated at once")
SLICE = Dim("U", "most elements of one parameter inside a rank's partition")
SHARE = Dim("1/n", "a rank's share")


@lru_cache(maxsize=1024)
def uneven(elements: int) -> Dim:
    """Return the dimension that is a unit's bytes where ranks can't divide so many elements."""
    return Dim(f"r{elements}", f"bytes of a unit where n does not divide {elements}, or none")


def _by_stretch(symbol: str, meaning: str) -> tuple[Dim, ...]:
    return tuple(
        Dim(f"{symbol}{i}", f"{meaning} stretch {i} of backward") for i in range(STRETCHES)
    )


KEPT = _by_stretch("E", "bytes of a rank's gradients that appear in")
COPIED = _by_stretch("c", "bytes of a unit of the bucket's copies, or none, in")
CAST = _by_stretch("w", "elements of a rank's largest gradient in")

#: The dimensions that :func:`held` has the numbers of.
DIMENSIONS = (PART, AT_ONCE, SLICE, *KEPT, *COPIED, *CAST)


@dataclass(frozen=True)
class Reductions:
    """The reductions of one backward pass, as its events were written.

    Attributes
    ----------
    elements
        Of each trained parameter, in the order in which the engine lays them out.
    groups
        Their numbers by the optimizer's groups, each laid out by itself.
    buckets
        The stretch in which each reduction comes, and its parameters' numbers.
    """

    elements: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    buckets: tuple[tuple[int, tuple[int, ...]], ...]

    def __hash__(self) -> int:
        """Return a number that is computed once: these are long."""
        return self.number

    @cached_property
    def number(self) -> int:
        """The hash of all."""
        return hash((self.elements, self.groups, self.buckets))

    @cached_property
    def columns(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Stretches and sizes of the buckets, their contents in one, and where each begins."""
        stretches = np.array([stretch for stretch, _ in self.buckets], dtype=np.int64)
        counts = np.array([len(content) for _, content in self.buckets], dtype=np.int64)
        contents = np.array([i for _, content in self.buckets for i in content], dtype=np.int64)
        return stretches, counts, contents, np.cumsum(counts) - counts


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How a rank keeps its gradients.

    Attributes
    ----------
    dealt
        Whether parameters are dealt round robin.
    copies
        Whether a bucket that several ranks share is copied.
    contiguous
        Whether a rank's gradients have one buffer, from its first reduction on, or stay themselves.
    wide
        Whether they are kept in fp32: then of the partition alone.
    on_cpu
        Whether they are kept elsewhere.
    """

    dealt: bool
    copies: bool
    contiguous: bool
    wide: bool
    on_cpu: bool


@dataclass(frozen=True)
class Layout:
    """Parameters in rows, one a group, as ranks share them.

    Attributes
    ----------
    parts
        Elements of a rank's partition of each group, S.
    part
        The same, of each parameter's group.
    first, last
        The ranks that each parameter begins and ends on, in their own order.
    start, elements
        Where each begins in its row, and how many elements it has.
    """

    parts: tuple[int, ...]
    part: Integers
    first: Integers
    last: Integers
    start: Integers
    elements: Integers

    def touched(self, rank: int) -> Integers:
        """Elements of each parameter that touches a rank's partition, whole; 0 of others."""
        owned = (self.first <= rank) & (rank <= self.last)
        return np.where(owned, self.elements, 0)

    def largest_slice(self, rank: int) -> int:
        """Return the most elements of one parameter inside a rank's partition."""
        low = np.maximum(self.start, rank * self.part)
        high = np.minimum(self.start + self.elements, (rank + 1) * self.part)
        return int((high - low).max(initial=0))

    def fullest(self) -> int:
        """Return the rank whose parameters have most elements: one at a parameter's border."""
        ranks = np.unique(np.concatenate([self.first, self.last]))

        def up_to(ends: Integers, side: str) -> Integers:
            order = np.argsort(ends, kind="stable")
            total = np.concatenate([[0], np.cumsum(self.elements[order])])
            found: Integers = total[np.searchsorted(ends[order], ranks, side=side)]  # type: ignore[call-overload]
            return found

        return int(ranks[np.argmax(up_to(self.first, "right") - up_to(self.last, "left"))])


@lru_cache(maxsize=1024)
def layout(reductions: Reductions, n: int, dealt: bool) -> Layout:
    """Lay parameters in rows for `n` ranks; `dealt` deals them round robin first.

    Each part is a multiple of two elements, for NCCL's alignment
    (`nccl_start_alignment_factor`); dealing is `_round_robin_reorder`.
    """
    elements = np.array(reductions.elements, dtype=np.int64)
    start, part = np.empty_like(elements), np.empty_like(elements)
    parts = []
    for group in reductions.groups:
        numbers = np.array(group, dtype=np.int64)
        if dealt:
            numbers = numbers[np.argsort(np.arange(numbers.size) % n, kind="stable")]
        sizes = elements[numbers]
        start[numbers] = np.cumsum(sizes) - sizes
        parts.append(-(-int(sizes.sum()) // (2 * n)) * 2)
        part[numbers] = parts[-1]
    last = np.minimum((start + elements - 1) // part, n - 1)
    return Layout(tuple(parts), part, start // part, last, start, elements)


@lru_cache(maxsize=4096)
def held(reductions: Reductions, keeping: Keeping, n: int, rank: int) -> Floats:
    """Return what a rank of `n` holds, by `DIMENSIONS`; of ranks beyond the last, what it does.

    Rank `FULLEST` is the one whose parameters have most elements.
    """
    laid = layout(reductions, n, keeping.dealt)
    rank = laid.fullest() if rank == FULLEST else min(rank, int(laid.last.max()))
    own = laid.touched(rank)
    part = sum(laid.parts)
    kept, copied, cast = (np.zeros(STRETCHES) for _ in range(3))
    if reductions.buckets:
        stretches, counts, contents, begins = reductions.columns
        first = np.minimum.reduceat(laid.first[contents], begins)
        shared = first < np.maximum.reduceat(laid.last[contents], begins)
        if keeping.wide or not keeping.contiguous:  # gradients are not one flat slice
            shared |= (counts > 1) & (n > 1)
        if keeping.copies:
            copied[stretches[shared]] = UNIT
        mine = np.add.reduceat(own[contents], begins)
        np.maximum.at(cast, stretches, np.maximum.reduceat(own[contents], begins))
        if keeping.contiguous and mine.any():
            total = 4 * part if keeping.wide else 2 * int(own.sum())
            kept[stretches[np.argmax(mine > 0)]] = total
        elif not keeping.contiguous:
            np.add.at(kept, stretches, 2 * mine)
    if keeping.on_cpu:
        kept[:] = 0
    ones = (part, max(laid.parts), laid.largest_slice(rank))
    return np.concatenate([ones, kept, copied, cast])
