"""From what PyTorch allocates to what the GPU shows, and what that means for fitting.

None of this is in the replay: it differs by stack, driver and luck, so it is an interval with a
source, on top of the allocated peak and never folded into it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.transformer.plan import Plan

GIB = 2**30
GB = 10**9


@dataclass(frozen=True, slots=True)
class Level:
    """An interval of bytes at one level of counting.

    Attributes
    ----------
    name
        `allocated` (`max_memory_allocated`), `reserved` (`max_memory_reserved`) or `card`
        (nvidia-smi).
    low_bytes, high_bytes
        The interval.
    label, source
        What is counted, and where the interval comes from.
    """

    name: str
    low_bytes: float
    high_bytes: float
    label: str
    source: str


@dataclass(frozen=True, slots=True)
class Factor:
    """One row of the table: an interval `low` to `high` and where it was seen."""

    low: float
    high: float
    source: str


#: Allocated against real GPUs, as a factor, for a stack whose tensors are known.
ALLOCATED = Factor(0.93, 1.07, "90 % of 35 published full-training runs lie within")

#: Reserved over allocated, as a factor, by how the step is run.
RESERVED = {
    "one GPU": Factor(1.0, 1.3, "11 published transformers runs on one GPU"),
    "replicated": Factor(1.0, 1.3, "as one GPU; DDP adds no streams that allocate"),
    "sharded": Factor(
        1.0, 1.35, "torchtitan's eager FSDP2 runs: 15–20 %, one pool per CUDA stream"
    ),
}

#: CUDA context and loaded kernels, bytes.
CONTEXT = Factor(0.5 * GIB, 1.4 * GIB, "0.5–0.8 GiB typical, up to 1.4 (transformers docs)")

#: NCCL buffers of one communicator, bytes.
COMMUNICATOR = Factor(0.4 * GB, 0.7 * GB, "published NCCL measurements")

#: Share of the card below which a step fits, and above which it does not.
FITS_BELOW, FAILS_ABOVE = 0.80, 1.00

VERDICT_SOURCE = (
    "258 published runs and 216 rows that all ran: none of 15 out-of-memory runs was below 80 %"
)


def levels(allocated_bytes: float, plan: Plan) -> tuple[Level, Level, Level]:
    """Allocated, reserved and card, as intervals, for a predicted allocated peak."""
    how = "sharded" if plan.fsdp else "replicated" if plan.num_gpus > 1 else "one GPU"
    reserved = RESERVED[how]
    communicators = int(plan.num_gpus > 1)
    return (
        Level(
            "allocated",
            allocated_bytes * ALLOCATED.low,
            allocated_bytes * ALLOCATED.high,
            "tensors, as PyTorch counts them",
            ALLOCATED.source,
        ),
        Level(
            "reserved",
            allocated_bytes * reserved.low,
            allocated_bytes * reserved.high,
            f"what the caching allocator keeps ({how})",
            reserved.source,
        ),
        Level(
            "card",
            allocated_bytes * reserved.low + CONTEXT.low + communicators * COMMUNICATOR.low,
            allocated_bytes * reserved.high + CONTEXT.high + communicators * COMMUNICATOR.high,
            "reserved, CUDA context" + (" and NCCL" if communicators else ""),
            f"{CONTEXT.source}; {COMMUNICATOR.source}" if communicators else CONTEXT.source,
        ),
    )


def grade(allocated_bytes: float, usable_gib: float) -> str:
    """Whether a step fits: `fits`, `uncertain` or `does not fit`.

    Judged from allocated bytes against what the card shows, because the allocator empties its cache
    before it gives up (see `VERDICT_SOURCE`).

    Parameters
    ----------
    allocated_bytes
        Predicted allocated peak.
    usable_gib
        What `torch.cuda` reports for the card, in GiB.

    Raises
    ------
    ValueError
        If `usable_gib` is not a positive number.
    """
    if not usable_gib > 0 or usable_gib == float("inf"):
        raise ValueError(f"usable_gib must be a positive number, got {usable_gib!r}")
    share = allocated_bytes / (usable_gib * GIB)
    if share < FITS_BELOW:
        return "fits"
    return "uncertain" if share <= FAILS_ABOVE else "does not fit"
