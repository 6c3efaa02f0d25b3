"""From a compiled step to answers: the peak, what it is made of, its phases, and sweeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainmem.transformer.architecture import Architecture
from trainmem.transformer.engine.dims import Shape, X
from trainmem.transformer.engine.tape import KINDS
from trainmem.transformer.layout import Stage, stages
from trainmem.transformer.model_rules import MODEL_LAYOUT, check_length, check_model
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.plan import Plan
from trainmem.transformer.program import Program, program_of, structure_of
from trainmem.transformer.sizes import Floats, orders
from trainmem.transformer.writer import Segment, StepWriter
from trainmem.words import describe

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
    stage
        The pipeline stage that all of this is about: the one with the highest peak.
    stage_peaks
        The peak of every stage, in bytes.
    pool_bytes
        The peak within each pool of the caching allocator, which keeps one per CUDA stream:
        `compute`, `gather`, `reduce`; each alone, hence not at one moment.
    """

    peak_bytes: int
    phase: str
    bytes_by_kind: dict[str, int]
    phase_bytes: dict[str, int]
    states_bytes: int
    explanation: str
    stage: int = 0
    stage_peaks: tuple[int, ...] = ()
    pool_bytes: dict[str, int] = field(default_factory=dict)


def compiled_for(
    architecture: Architecture, plan: Plan, stage: Stage, rank: int | None = None
) -> tuple[Program, Floats]:
    """Compile one configuration of one stage and size its blocks, on the rank with the highest."""
    b, s, n = (np.float64(v) for v in (plan.micro_batch, plan.seq_length / plan.cp, plan.ranks))
    order = int(orders(architecture, plan, b=b, s=s, n=n))
    program = program_of(architecture, plan, order, stage)
    each = [
        program.bytes_of(*program.table.bytes(architecture, plan, b=b, s=s, n=n, own=own))
        for own in program.numbers(n, rank)
    ]
    if len(each) == 1:
        return program, each[0]
    return program, max(each, key=lambda sizes: float((program.alive @ sizes).max()))


def stages_of(architecture: Architecture, plan: Plan) -> list[Stage]:
    """Return the stages of a valid configuration."""
    check_length(architecture, np.asarray(plan.seq_length))
    check_model(architecture, plan, MODEL_LAYOUT)
    return stages(architecture, plan)


def peak(
    architecture: Architecture, plan: Plan, *, stage: int | None = None, rank: int | None = None
) -> Result:
    """Peak memory of one step, its phase and its composition.

    Parameters
    ----------
    architecture, plan
        The model and how it is run.
    stage
        Pipeline stage, or None for the one with the highest peak.
    rank
        Rank among those that share the states, or None for the one with the highest peak: they
        differ where a framework cuts its partitions without regard to parameters.

    Raises
    ------
    ValueError
        For a combination of model and plan that is not covered, or a sequence that the model
        cannot take.
    """
    all_stages = stages_of(architecture, plan)
    if stage is not None and stage not in range(len(all_stages)):
        raise ValueError(f"stage must be from 0 to {len(all_stages) - 1}, got {describe(stage)}")
    if rank is not None and rank not in range(plan.ranks):
        raise ValueError(f"rank must be from 0 to {plan.ranks - 1}, got {describe(rank)}")
    compiled = [compiled_for(architecture, plan, each, rank) for each in all_stages]
    highest_of = [int((program.alive @ sizes).max()) for program, sizes in compiled]
    worst = int(np.argmax(highest_of)) if stage is None else stage
    program, sizes = compiled[worst]
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
        explanation=explain(segment, kinds, architecture.num_layers, worst, len(all_stages)),
        stage=worst,
        stage_peaks=tuple(highest_of),
        pool_bytes=program.pools(sizes),
    )


def whole_states_bytes(architecture: Architecture, plan: Plan) -> float:
    """Return weights, gradients and optimizer states of the whole model, each once, in bytes.

    As one GPU would hold them with nothing sharded or offloaded: frozen weights in their own type
    and without states, adapters with all of theirs.
    """
    plan = replace(plan, pp=1, vpp=1, offload="none")
    writer = StepWriter(structure_of(architecture, plan, alone=False, single=False, chunks=1))
    dims = {**architecture.dims, X: plan.lora_rank}

    def elements(shape: Shape) -> int:
        return math.prod(dims[dim] for dim in shape)

    return writer.whole_bytes(elements)


def reserved_bytes(architecture: Architecture, plan: Plan) -> float:
    """Return what the caching allocator keeps at the peak of a step: its pools, summed.

    A pool per CUDA stream, each at its own highest; and blocks that the logits cannot use, because
    they were cut up before: one bf16 copy of the logits, under checkpointing also what one layer
    holds. Inferred from published runs, not seen in a memory snapshot.
    """
    compiled = [compiled_for(architecture, plan, each) for each in stages_of(architecture, plan)]
    highest = 0.0
    for program, sizes in compiled:
        pools = sum(program.pools(sizes).values())
        highest = max(highest, pools + program.fragments(sizes, plan.varying_lengths))
    return highest


def explain(
    segment: Segment, kinds: dict[str, int], num_layers: int, stage: int = 0, stages: int = 1
) -> str:
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
    if stages > 1:
        moment += f", on pipeline stage {stage + 1} of {stages}"
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    parts = [f"{name} {size / total:.0%}" for name, size in largest if size >= 0.005 * total]
    return f"The peak comes {moment}: {', '.join(parts)}."


def plan_for(plan: Plan, alone: bool) -> Plan:
    """Replicas are alone on one GPU and DDP on more: the plan of that number of GPUs."""
    if plan.sharding not in ("none", "ddp") or alone == (plan.sharding == "none"):
        return plan
    one = plan.tp * plan.pp
    if alone:
        return replace(plan, sharding="none", num_gpus=one, no_sync=False)
    return replace(plan, sharding="ddp", num_gpus=2 * one)


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
    axes, shape = _axes(plan, micro_batch=micro_batch, seq_length=seq_length, num_gpus=num_gpus)
    if limit_length:
        check_length(architecture, plan.seq_length if seq_length is None else seq_length)
    out = np.zeros((len(COMPONENTS), math.prod(shape)))
    for where, program, blocks in _programs(architecture, plan, axes):
        totals = program.totals(*blocks)
        rows = totals.argmax(axis=1)
        higher = totals[np.arange(rows.size), rows] > out[:, where].sum(axis=0)
        rows = np.broadcast_to(rows, higher.shape)
        for row in set(rows[higher].tolist()):
            here = (rows == row) & higher
            by_kind = program.component_bytes(row, *blocks)
            out[:, where[here]] = np.broadcast_to(by_kind, (len(COMPONENTS), here.size))[:, here]
    return {name: row.reshape(shape) for name, row in zip(COMPONENTS, out, strict=True)}


def peak_bytes(
    architecture: Architecture,
    plan: Plan,
    *,
    num_gpus: ArrayLike | None = None,
    seq_length: ArrayLike | None = None,
    micro_batch: ArrayLike | None = None,
) -> Floats:
    """Peaks of many configurations alone: the sum of what :func:`peaks` returns, in half the time.

    Parameters
    ----------
    architecture, plan, num_gpus, seq_length, micro_batch
        As for :func:`peaks`, with lengths of any kind.

    Returns
    -------
    ndarray
        Bytes, of the broadcast shape.
    """
    axes, shape = _axes(plan, micro_batch=micro_batch, seq_length=seq_length, num_gpus=num_gpus)
    out = np.zeros(math.prod(shape))
    for where, program, blocks in _programs(architecture, plan, axes):
        out[where] = np.maximum(out[where], program.totals(*blocks).max(axis=1))
    return out.reshape(shape)


def _axes(plan: Plan, **given: ArrayLike | None) -> tuple[list[Floats], tuple[int, ...]]:
    """Return micro batches, lengths on a GPU and ranks, flat, and the shape of all.

    What does not vary has one value, which broadcasts.
    """
    multiple = plan.gpu_multiple
    arrays = {n: np.asarray(x, dtype=np.float64) for n, x in given.items() if x is not None}
    for name, values in arrays.items():
        low, high = OPTIONS[name].bounds
        # A sweep over GPUs ends at the power of two, or the multiple, that follows.
        most = 2 ** high.bit_length() + multiple if name == "num_gpus" else high
        if values.size and not low <= values.min() <= values.max() <= most:
            raise ValueError(f"{name} must be from {low} to {high}")
    if "num_gpus" in arrays and np.any(odd := arrays["num_gpus"] % multiple):
        raise ValueError(
            f"num_gpus must be multiples of {multiple} (tp · pp · cp, and ep), "
            f"got {arrays['num_gpus'][odd != 0].flat[0]:g}"
        )
    shape = np.broadcast_shapes(*(values.shape for values in arrays.values()))
    if len(shape) > 1:
        arrays = {name: np.broadcast_to(values, shape) for name, values in arrays.items()}
    b, s, n = (
        arrays[name].ravel() if name in arrays else np.array([getattr(plan, name)], np.float64)
        for name in given
    )
    return [b, s / plan.cp, n / (plan.tp * plan.pp)], shape


def _programs(
    architecture: Architecture, plan: Plan, axes: list[Floats]
) -> Iterator[tuple[NDArray[np.int64], Program, tuple[Floats, Floats]]]:
    """Yield the programs that configurations run: of which, and the bytes of their blocks.

    One for each stage of a pipeline and each order of events among them, and again for each rank
    that may hold most.
    """
    check_model(architecture, plan, MODEL_LAYOUT)
    b, s, n = axes
    found = orders(architecture, plan, b=b, s=s, n=n)
    where = np.arange(found.size)
    for order, stage in itertools.product(set(found.tolist()), stages(architecture, plan)):
        at = axes
        if (found != order).any():
            where = np.flatnonzero(found == order)
            at = [axis[where] if axis.size > 1 else axis for axis in axes]
        program = program_of(architecture, plan_for(plan, bool(order & 1)), order, stage)
        b, s, n = at
        for own in program.numbers(n):
            yield where, program, program.table.bytes(architecture, plan, b=b, s=s, n=n, own=own)
