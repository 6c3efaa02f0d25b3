"""A step compiled to counts of symbolic sizes: what a configuration is multiplied with.

The walk is run once for a structure. A configuration is then a product of two matrices: blocks of
each size alive after each event, and bytes of each size (`sizes`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.cache import ByteCache
from trainmem.transformer.engine.dims import BSV, H, Shape, V, X
from trainmem.transformer.engine.tape import (
    KINDS,
    LOGITS,
    RECOMPUTED,
    Event,
    Kind,
    Parameter,
    Role,
    Size,
    Stream,
    net,
    whole,
)
from trainmem.transformer.families import FAMILIES
from trainmem.transformer.layout import Stage, stages
from trainmem.transformer.model_rules import check_model
from trainmem.transformer.optimizers import OPTIMIZERS
from trainmem.transformer.plan import Plan
from trainmem.transformer.sizes import Floats, SizeTable, fixed_dimensions
from trainmem.transformer.stacks import FRAMEWORKS, KERNELS
from trainmem.transformer.stacks.framework import Numbers
from trainmem.transformer.step import walk
from trainmem.transformer.structure import Structure
from trainmem.transformer.writer import Segment


@dataclass(frozen=True)
class Program:
    """A compiled schedule: counts of each size alive after every event.

    Attributes
    ----------
    sizes
        The distinct block sizes, symbolic.
    segments
        The stretches of events.
    size, count, kind, stream
        One entry an event, middle layers collapsed: which size, blocks allocated or freed, what
        for (`Kind`), on which stream (`Stream`); each of shape (events,).
    start
        Index of the first event of each segment, and the end, shape (segments + 1,).
    rows
        Events after which memory falls, or a segment ends: the only ones that can be a peak.
    alive
        Blocks of each size alive after those events, shape (rows, sizes).
    structure, noted
        What it was written from, and what the framework's collectives noted as they wrote.
    """

    sizes: tuple[Size, ...]
    segments: tuple[Segment, ...]
    size: NDArray[np.int64]
    count: NDArray[np.int64]
    kind: NDArray[np.int64]
    stream: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.int64]
    alive: Floats
    structure: Structure
    noted: Any = None

    def numbers(self, n: Any, rank: int | None = None) -> list[Numbers]:
        """Return the framework's own numbers at `n` ranks (:meth:`Framework.numbers`)."""
        return self.structure.framework.numbers(self.structure, self.noted, n, rank)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory, about: its arrays, one of them twice, and its events."""
        arrays = (self.size, self.count, self.kind, self.stream, self.start, self.rows)
        events = sum(len(segment.events) for segment in self.segments)
        return sum(a.nbytes for a in arrays) + 2 * self.alive.nbytes + 160 * events

    @cached_property
    def table(self) -> SizeTable:
        """The sizes, to be asked for their bytes."""
        return SizeTable(self.sizes)

    @cached_property
    def _split(self) -> tuple[Floats, Floats]:
        """Blocks alive by the sizes that are whole, and by those that the ranks share."""
        columns = self.alive.T
        return columns[self.table.whole].copy(), columns[self.table.shared].copy()

    def totals(self, whole: Floats, shared: Floats) -> Floats:
        """Bytes alive after `rows`, shape (configurations, rows), of :meth:`SizeTable.bytes`."""
        by_whole, by_shared = self._split
        return whole.T @ by_whole + shared.T @ by_shared

    def bytes_of(self, whole: Floats, shared: Floats) -> Floats:
        """Bytes of each size of one configuration, shape (sizes,), of :meth:`SizeTable.bytes`."""
        out = np.empty(len(self.sizes))
        out[self.table.whole], out[self.table.shared] = whole[:, 0], shared[:, 0]
        return out

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

    def component_bytes(self, row: int, whole: Floats, shared: Floats) -> Floats:
        """Bytes of weights, gradients, optimizer states and the rest after event `rows[row]`."""
        if row not in self._components:
            by_kind = self.composition(row)
            grouped = np.vstack([by_kind[:3], by_kind[3:].sum(axis=0)])
            self._components[row] = grouped[:, self.table.whole], grouped[:, self.table.shared]
        by_whole, by_shared = self._components[row]
        return by_whole @ whole + by_shared @ shared

    @cached_property
    def _components(self) -> dict[int, tuple[Floats, Floats]]:
        return {}

    def pools(self, sizes: Floats) -> dict[str, int]:
        """Peak within each of the allocator's pools, bytes: one per CUDA stream.

        FSDP2 allocates gather buffers on streams of their own, and reduced gradients on another
        (`foreach_all_gather` and `foreach_reduce` in `_fsdp_collectives.py`).
        """
        change = self.count * sizes[self.size]
        return {
            stream.name.lower(): int(np.cumsum(change[self.stream == stream]).max(initial=0))
            for stream in Stream
        }

    def fragments(self, sizes: Floats, varying: bool = False) -> float:
        """Bytes cut up before the logits come, which cannot serve them.

        One copy of the logits in the weights' type and, where all weights are trained, what
        recomputing one layer under checkpointing leaves. With varying lengths all that the loss
        needs, for blocks of another length do not serve it.
        """

        def highest(kind: Kind) -> float:
            of_kind = np.where(self.kind == kind, self.count * sizes[self.size], 0)
            return float(np.cumsum(of_kind).max(initial=0))

        if varying:
            return highest(LOGITS)
        logits = whole(BSV, 2)
        one = sum(sizes[i] for i, size in enumerate(self.sizes) if size == logits)
        return float(one) + (0.0 if self.structure.frozen else highest(RECOMPUTED))


def compile_structure(structure: Structure) -> Program:
    """Run the schedule once for a structure; programs are kept, up to 128 MB of them."""
    return PROGRAMS.get(structure, lambda: _compiled(structure))


#: Programs made last, by their structure.
PROGRAMS = ByteCache[Program](128 * 10**6, lambda program: program.nbytes)


def _compiled(structure: Structure) -> Program:
    writer = walk(structure)
    segments = tuple(writer.segments)
    events: list[Event] = []
    start = []
    for segment in segments:
        start.append(len(events))
        events += segment.events if segment.times == 1 else net(segment.events, segment.times)
    start.append(len(events))
    columns = [(block.size, count, block.kind, block.stream) for block, count in events]
    size, count, kind, stream = np.array(columns, dtype=np.int64).T
    sizes = tuple(writer.tape.sizes)
    falls = np.flatnonzero((count[:-1] > 0) & (count[1:] < 0))
    ends = np.array(start[1:]) - 1
    rows = np.union1d(falls, ends[ends >= 0])
    alive = np.zeros((len(events), len(sizes)))
    alive[np.arange(len(events)), size] = count
    np.cumsum(alive, axis=0, out=alive)
    if structure.framework.by_module:  # many layers are written out, of which few can be the peak
        rows = rows[_undominated(alive[rows], np.searchsorted(start, rows, side="right"))]
    return Program(
        sizes,
        segments,
        size,
        count,
        kind,
        stream,
        np.array(start),
        rows,
        alive[rows],
        structure,
        writer.noted,
    )


def _undominated(alive: Floats, segments: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say which rows may be the peak: not those where no block lives that another has not.

    Compared with their neighbours, and with the same row of the layer before and after.
    """
    keep = np.ones(len(alive), dtype=np.bool_)
    lengths = Counter(np.bincount(segments).tolist()).most_common(4)
    for apart in {1, 2, 3, 4} | {length for length, _ in lengths if 0 < length < len(alive)}:
        before, after = alive[:-apart], alive[apart:]
        below, above = (before <= after).all(axis=1), (before >= after).all(axis=1)
        keep[:-apart] &= above | ~below
        keep[apart:] &= below | ~above
    return keep


def program_of(architecture: Architecture, plan: Plan, order: int, stage: Stage) -> Program:
    """Return the program of a stage, for an order of events (:func:`sizes.orders`).

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered.
    """
    return compile_structure(_ordered(architecture, plan, order, stage))


@lru_cache(maxsize=1024)
def _ordered(architecture: Architecture, plan: Plan, order: int, stage: Stage) -> Structure:
    return structure_of(
        architecture,
        plan,
        alone=bool(order & 1),
        single=bool(order & 2),
        chunks=order >> 2,
        stage=stage,
    )


def forget() -> None:
    """Forget all programs: a name may stand for something else from now on."""
    PROGRAMS.clear()
    _ordered.cache_clear()


def structure_of(
    architecture: Architecture,
    plan: Plan,
    *,
    alone: bool,
    single: bool,
    chunks: int,
    stage: Stage | None = None,
) -> Structure:
    """Pick what of an architecture and a plan decides the order of events.

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered.
    """
    a = architecture
    check_model(a, plan)
    family = FAMILIES[a.family]
    framework, kernels = FRAMEWORKS[plan.framework], KERNELS[plan.kernels]
    if not kernels.ties or plan.pp > 1:  # which cannot tie
        a = replace(a, tie_embeddings=False)
    stage = stage or stages(a, plan)[0]
    delayed = plan.no_sync or (plan.sharding == "zero1" and plan.fsdp)
    layer, root = dict(a.layer_parameters), dict(a.root_parameters)
    adapted = _adapted(a, plan)
    for name in adapted:
        table = root if name == "head" else layer
        product = Parameter(V, (H,)) if name == "head" else layer[name + ".weight"]
        rows, cols = product.rows, product.cols
        if family.transposed and name != "head":
            (rows,), cols = cols, (rows,)
        table[name + ".lora_A.weight"] = Parameter(X, cols, Role.ADAPTER)
        table[name + ".lora_B.weight"] = Parameter(rows, (X,), Role.ADAPTER)
    if not stage.first:
        root.pop("embed")
    if not stage.last:
        root = {name: p for name, p in root.items() if name in ("embed", "position")}
    elements: dict[Shape, int] = {}
    if framework.by_module:
        dims = fixed_dimensions(a, plan.tp, plan.ep, plan.lora_rank)
        for p in (*layer.values(), *root.values()):
            elements[p.shape] = math.prod(dims[dim] for dim in p.shape)
    return Structure(
        code=family.code,
        framework=framework,
        kernels=kernels,
        optimizer=OPTIMIZERS[plan.optimizer],
        num_layers=stage.chunk_layers,
        held_layers=stage.layers,
        first=stage.first,
        last=stage.last,
        waiting=stage.waiting,
        layer=tuple(layer.items()),
        root=tuple(root.items()),
        tied=a.tie_embeddings,
        grouped=a.num_kv_heads != a.num_heads,
        one_kv=a.num_kv_heads == 1,
        padded_heads=a.head_dim % 8 != 0,
        unaligned_heads=a.head_dim % 4 != 0,
        gated=a.gated,
        experts=a.experts,
        qk_norm=family.qk_norm,
        learned_positions=a.has_positions,
        adapted=adapted,
        quantization=plan.quantization,
        sharding=plan.sharding,
        alone=alone,
        split=plan.wrapping == "split" or framework.by_module,
        offload=plan.offload,
        reduce_unit=4 if plan.reduce_dtype == "float32" else 2,
        precision=plan.precision,
        attention=plan.attention,
        dropout=plan.dropout or (a.dropout and kernels.drops_model),
        use_cache=plan.use_cache,
        loss_head=plan.loss_head,
        chunks=chunks,
        checkpoint=plan.checkpointing in ("full", "every_2nd")
        or (plan.checkpointing == "selective" and bool(kernels.kept_selectively)),
        selective=plan.checkpointing == "selective",
        every_2nd=plan.checkpointing == "every_2nd",
        micros=1 if plan.pp > 1 else min(plan.accumulation, 3 if delayed else 2),
        no_sync=delayed and plan.sharding != "zero1",
        # In a pipeline gradients of earlier micro batches are there from the second on.
        keep=plan.keep_gradients or framework.keeps_gradients or plan.pp > 1,
        parallel=plan.tp > 1,
        sequence_parallel=plan.tp > 1 and plan.sequence_parallel,
        context_parallel=plan.cp > 1,
        single=single,
        settings=framework.resolved(plan.settings, a.hidden_dim),
        elements=tuple(elements.items()),
    )


#: Products with an adapter, by the plan's `lora_targets`.
TARGETS = {
    "qv": ("q", "v"),
    "qkv": ("q", "k", "v"),
    "attention": ("q", "k", "v", "o"),
    "all": ("q", "k", "v", "o", "gate", "up", "down"),
    "all_head": ("q", "k", "v", "o", "gate", "up", "down", "head"),
}


def _adapted(a: Architecture, plan: Plan) -> tuple[str, ...]:
    """Products with an adapter, of those the family has."""
    if not plan.lora_rank:
        return ()
    own = FAMILIES[a.family].targets
    named = (own.get(target, target) for target in TARGETS[plan.lora_targets])
    return tuple(t for t in named if t is not None and (a.gated or t != "gate"))
