"""From a compiled schedule to answers: peak, composition, phases, sweeps, timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.plan import OPTIONS, Plan
from trainmem.transformer.program import (
    Floats,
    Program,
    block_bytes,
    compile_structure,
    situation,
    structure_of,
)
from trainmem.transformer.replay import KINDS
from trainmem.transformer.states import Segment

#: Phases of a step in order; `other` is the backward pass of an earlier micro batch.
PHASES = ("states", "fwd", "other", "loss", "layers", "opt")

#: The four components of a sweep: model states by kind, and everything else.
COMPONENTS = ("weights", "gradients", "optimizer", "activations")

#: What a phase is called in a sentence.
PHASE_NAMES = {
    "states": "before the step",
    "fwd": "the forward pass",
    "other": "the backward pass of an earlier micro batch",
    "loss": "the backward pass of the loss",
    "layers": "the backward pass of the layers",
    "opt": "the optimizer step",
}


@dataclass(frozen=True)
class Result:
    """The peak of one training step on one GPU, as PyTorch's allocator counts it.

    Attributes
    ----------
    peak_bytes
        Highest sum of live blocks (`torch.cuda.max_memory_allocated`).
    phase
        Where it is reached: `fwd`, `loss`, `layers`, `opt`, or `other` (the backward pass of an
        earlier micro batch).
    bytes_by_kind
        What is alive at the peak, by the names of `KINDS`; sums to `peak_bytes`.
    phase_bytes
        Peak within each phase that occurs.
    states_bytes
        What is alive before the step.
    explanation
        One sentence about the moment of the peak.
    """

    peak_bytes: int
    phase: str
    bytes_by_kind: dict[str, int]
    phase_bytes: dict[str, int]
    states_bytes: int
    explanation: str


@dataclass(frozen=True)
class Timeline:
    """One step over time, event by event.

    Attributes
    ----------
    kinds
        Names of the rows of `bytes_by_kind`, in stacking order.
    bytes_by_kind
        Live bytes after each event, shape (kinds, events).
    total_bytes
        Their sum, shape (events,).
    boundaries
        Index of the first event of each stretch, then the number of events.
    labels, phases
        What happens in each stretch, and its phase.
    peak_index
        Event after which the total is highest.
    explanation
        The sentence of :class:`Result`.
    """

    kinds: tuple[str, ...]
    bytes_by_kind: Floats
    total_bytes: Floats
    boundaries: NDArray[np.int64]
    labels: tuple[str, ...]
    phases: tuple[str, ...]
    peak_index: int
    explanation: str


def _one(architecture: Architecture, plan: Plan) -> tuple[Program, Floats]:
    """Compile one configuration and size its blocks."""
    check_length(architecture, np.asarray(plan.seq_length))
    b, s, n = (np.float64(v) for v in (plan.micro_batch, plan.seq_length, plan.num_gpus))
    alone, single, chunks = (int(x) for x in situation(architecture, plan, b=b, s=s, n=n))
    structure = structure_of(
        architecture, plan, alone=bool(alone), single=bool(single), chunks=chunks
    )
    program = compile_structure(structure)
    return program, block_bytes(program.sizes, architecture, plan, b=b, s=s, n=n)


def peak(architecture: Architecture, plan: Plan) -> Result:
    """Peak memory of one step, its phase and its composition.

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered, or a sequence that the model
        cannot take.
    """
    program, sizes = _one(architecture, plan)
    totals = program.alive @ sizes
    row = program.highest(totals)
    by_kind = program.composition(row) @ sizes
    level = np.cumsum(program.count * sizes[program.size])
    phases: dict[str, int] = {}
    for i, part in enumerate(program.segments):
        first, end = program.start[i : i + 2]
        if part.phase == "opt":  # a fused optimizer allocates nothing: the level it finds
            first -= 1
        highest = level[first:end].max(initial=0)
        phases[part.phase] = max(phases.get(part.phase, 0), int(highest))
    states = phases.pop("states")
    segment = program.segments[np.searchsorted(program.start, program.rows[row], "right") - 1]
    kinds = {name: int(value) for name, value in zip(KINDS, by_kind, strict=True)}
    return Result(
        peak_bytes=int(totals[row]),
        phase=segment.phase,
        bytes_by_kind=kinds,
        phase_bytes=phases,
        states_bytes=states,
        explanation=explain(segment, kinds, architecture.num_layers),
    )


def explain(segment: Segment, kinds: dict[str, int], num_layers: int) -> str:
    """One sentence: when the peak comes, and what fills it."""
    total = sum(kinds.values())
    moment = f"in {PHASE_NAMES[segment.phase]}"
    low, high = segment.layers
    if low:
        layers = f"layer {low}" if low == high else f"layers {low} to {high}"
        moment = f"in the {segment.label} pass of {layers} of {num_layers}"
        if segment.phase == "other":
            moment += ", before the last micro batch"
    elif segment.phase in ("fwd", "layers", "other"):
        moment += f" ({segment.label})"
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    parts = [f"{name} {size / total:.0%}" for name, size in largest if size >= 0.005 * total]
    return f"The peak comes {moment}: {', '.join(parts)}."


def longest_length(architecture: Architecture) -> int | None:
    """Return the longest sequence that the model's code runs as it is described here, or None.

    Only a table of positions (GPT-2) and a sliding window end it: rotary positions run past
    `max_positions`, though the model was not trained there.
    """
    if architecture.family == "gpt2":
        return architecture.max_positions
    window = architecture.sliding_window
    return None if window is None else window - 1


def check_length(architecture: Architecture, seq_length: NDArray[Any]) -> None:
    """Refuse sequences that the model's code would treat differently, or not at all.

    Raises
    ------
    ValueError
        Naming `seq_length`.
    """
    longest = float(np.max(seq_length))
    if architecture.family == "gpt2" and longest > architecture.max_positions:
        raise ValueError(
            f"seq_length {longest:g} exceeds the {architecture.max_positions} positions "
            f"of {architecture.name}"
        )
    window = architecture.sliding_window
    if window is not None and longest >= window:
        raise ValueError(
            f"seq_length {longest:g} reaches the sliding window of {architecture.name} "
            f"({window}), which is not covered"
        )


def plan_for(plan: Plan, alone: bool) -> Plan:
    """Replicas are alone on one GPU and DDP on more: the plan of that number of GPUs."""
    if plan.fsdp or alone == (plan.sharding == "none"):
        return plan
    if alone:
        return replace(plan, sharding="none", num_gpus=1, no_sync=False)
    return replace(plan, sharding="ddp", num_gpus=2)


def peaks(
    architecture: Architecture,
    plan: Plan,
    *,
    num_gpus: ArrayLike | None = None,
    seq_length: ArrayLike | None = None,
    micro_batch: ArrayLike | None = None,
    limit_length: bool = False,
) -> dict[str, Floats]:
    """Peak memory over arrays of configurations, broadcast against each other.

    Parameters
    ----------
    architecture, plan
        The model and everything not given as an array. Sharding `none` becomes `ddp` where there
        is more than one GPU, and the reverse.
    num_gpus, seq_length, micro_batch
        Arrays, or None for the plan's value.
    limit_length
        Whether to refuse lengths the model cannot take, as :func:`peak` does; sweeps go beyond.

    Returns
    -------
    dict
        Bytes of `weights`, `gradients`, `optimizer` and `activations` (everything else), which sum
        to the peak; each of the broadcast shape.
    """
    n, s, b = np.broadcast_arrays(
        np.asarray(plan.num_gpus if num_gpus is None else num_gpus, dtype=np.float64),
        np.asarray(plan.seq_length if seq_length is None else seq_length, dtype=np.float64),
        np.asarray(plan.micro_batch if micro_batch is None else micro_batch, dtype=np.float64),
    )
    for name, values in (("num_gpus", n), ("seq_length", s), ("micro_batch", b)):
        low, high = OPTIONS[name].bounds
        if not np.all((values >= low) & (values <= high)):
            raise ValueError(f"{name} must be from {low} to {high}")
    if limit_length:
        check_length(architecture, s)
    shape = n.shape
    n, s, b = (np.ascontiguousarray(x).ravel() for x in (n, s, b))
    out = np.zeros((len(COMPONENTS), n.size))
    which_alone, which_single, how_many = situation(architecture, plan, b=b, s=s, n=n)
    kinds = (4 * how_many + 2 * which_single + which_alone).astype(np.int64)
    for kind in set(kinds.tolist()):
        where = np.flatnonzero(kinds == kind)
        alone, single, chunks = bool(kind & 1), bool(kind & 2), kind >> 2
        structure = structure_of(
            architecture, plan_for(plan, alone), alone=alone, single=single, chunks=chunks
        )
        program = compile_structure(structure)
        sizes = block_bytes(program.sizes, architecture, plan, b=b[where], s=s[where], n=n[where])
        rows = np.argmax(program.alive @ sizes, axis=0)
        for row in np.unique(rows):
            here = rows == row
            by_kind = program.composition(int(row)) @ sizes[:, here]
            out[:3, where[here]] = by_kind[:3]
            out[3, where[here]] = by_kind[3:].sum(axis=0)
    return {name: row.reshape(shape) for name, row in zip(COMPONENTS, out, strict=True)}


def timeline(architecture: Architecture, plan: Plan) -> Timeline:
    """One step over time, every layer written out.

    Of many accumulated micro batches two are written (three where gradients wait whole: the first,
    one like all between, the last).
    """
    program, sizes = _one(architecture, plan)
    parts, boundaries, labels, phases, at = [], [], [], [], 0
    for segment in program.segments:
        events = np.array(segment.events, dtype=np.int64).reshape(-1, 3)
        low, high = segment.layers
        order = range(low, high + 1)
        for layer in order if segment.label == "forward" else reversed(order):
            boundaries.append(at)
            labels.append(f"layer {layer} {segment.label}" if low else segment.label)
            phases.append(segment.phase)
            parts.append(events)
            at += len(events)
    size, count, kind = np.concatenate(parts).T
    change = np.zeros((len(KINDS), at))
    change[kind, np.arange(at)] = count * sizes[size]
    by_kind = np.cumsum(change, axis=1)
    total = by_kind.sum(axis=0)
    return Timeline(
        kinds=KINDS,
        bytes_by_kind=by_kind,
        total_bytes=total,
        boundaries=np.array([*boundaries, at]),
        labels=tuple(labels),
        phases=tuple(phases),
        peak_index=int(np.argmax(total)),
        explanation=peak(architecture, plan).explanation,
    )
