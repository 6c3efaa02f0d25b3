"""From what PyTorch allocates to what the GPU shows, and what that means for fitting.

None of this is in the replay: it differs by stack, driver and luck, so it is an interval with a
source, on top of the allocated peak and never folded into it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.transformer.plan import Plan
from trainmem.transformer.stacks import FRAMEWORKS, KERNELS, Framework
from trainmem.words import describe

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
    expected_bytes
        The likeliest value; the middle of the interval, if not given.
    """

    name: str
    low_bytes: float
    high_bytes: float
    label: str
    source: str
    expected_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not self.expected_bytes:
            object.__setattr__(self, "expected_bytes", (self.low_bytes + self.high_bytes) / 2)


@dataclass(frozen=True, slots=True)
class Factor:
    """One row of the table: an interval `low` to `high`, where it was seen, bytes on top."""

    low: float
    high: float
    source: str
    slack: float = 0.0


#: Allocated against real GPUs, as a factor, by what is known of the stack.
ALLOCATED = {
    "known": Factor(0.93, 1.07, "90 % of 35 published full-training runs lie within"),
    "parallel": Factor(0.95, 1.20, "torchtitan's runs with tensor or pipeline parallelism"),
    "qlora": Factor(0.80, 1.25, "16 litgpt runs; what QLoRA saves is measured, not derived"),
    "unverified": Factor(0.85, 1.15, "no published run of this stack was compared"),
}

#: Reserved over what `reserved_bytes` gives, as a factor, by how the step is run.
RESERVED = {
    "one stream": Factor(1.02, 1.15, "Megatron and llm.c with fixed shapes"),
    "one GPU": Factor(1.0, 1.3, "11 published transformers runs on one GPU"),
    "replicated": Factor(1.0, 1.3, "as one GPU; DDP adds no streams that allocate"),
    "pools": Factor(0.90, 1.12, "49 torchtitan FSDP2 runs; the allocator's pools, summed"),
    "parallel pools": Factor(0.85, 1.25, "torchtitan runs with tensor or pipeline parallelism"),
    "sharded": Factor(
        1.0, 1.35, "torchtitan's eager FSDP2 runs: 15–20 %, one pool per CUDA stream"
    ),
    "varying lengths": Factor(1.0, 2.0, "16 ms-swift runs: up to twice what is allocated"),
    "deepspeed": Factor(1.0, 1.05, "few data; up to 5 GiB more", slack=5 * GIB),
}

#: CUDA context and loaded kernels, bytes.
CONTEXT = Factor(0.5 * GIB, 1.4 * GIB, "0.5–0.8 GiB typical, up to 1.4 (transformers docs)")

#: NCCL buffers of one communicator, bytes.
COMMUNICATOR = Factor(0.4 * GB, 0.7 * GB, "published NCCL measurements")

#: Share of the card above which a step does not fit; below which it does is the framework's to say.
FAILS_ABOVE = 1.00

VERDICT_SOURCE = (
    "258 published runs and 216 rows that all ran: none of 15 out-of-memory runs was below 80 %"
)


def trust(plan: Plan) -> str:
    """Say how well a stack's allocated bytes are known: a key of `ALLOCATED`."""
    if plan.quantization != "none":
        return "qlora"
    kernels = KERNELS[plan.kernels]
    if kernels.scattered and plan.tp * plan.pp > 1:
        return "parallel"
    if not kernels.verified or plan.ep > 1:
        return "unverified"
    return "known"


def reserving(plan: Plan, pools: bool) -> str:
    """Say how the allocator is used: a key of `RESERVED`; `pools` where their sum is known."""
    framework = FRAMEWORKS[plan.framework]
    if framework.one_stream:
        return "one stream"
    if plan.varying_lengths:
        return "varying lengths"
    if framework.reserving:
        return framework.reserving
    if plan.fsdp and pools:
        return "parallel pools" if plan.tp * plan.pp > 1 else "pools"
    if plan.fsdp:
        return "sharded"
    return "replicated" if plan.num_gpus > 1 else "one GPU"


def levels(
    allocated_bytes: float, plan: Plan, reserved_bytes: float | None = None
) -> tuple[Level, Level, Level]:
    """Allocated, reserved and card, as intervals.

    Parameters
    ----------
    allocated_bytes
        Predicted allocated peak.
    plan
        How the step is run.
    reserved_bytes
        The allocator's pools, summed (:func:`trainmem.transformer.reserved_bytes`), where known.
    """
    allocated = ALLOCATED[trust(plan)]
    how = reserving(plan, reserved_bytes is not None)
    reserved = RESERVED[how]
    base = (reserved_bytes or allocated_bytes) if "pools" in how else allocated_bytes
    # Reserved is never less than what is allocated, in whose own interval it then lies.
    low = max(base * reserved.low, allocated_bytes * allocated.low)
    high = max(base * reserved.high, low)
    expected = reserved_bytes or (low + high) / 2
    high += reserved.slack
    communicators = sum((plan.dp * plan.cp > 1, plan.tp > 1, plan.pp > 1, plan.cp > 1, plan.ep > 1))
    return (
        Level(
            "allocated",
            allocated_bytes * allocated.low,
            allocated_bytes * allocated.high,
            "tensors, as PyTorch counts them",
            allocated.source,
            allocated_bytes,
        ),
        Level(
            "reserved",
            low,
            high,
            f"what the caching allocator keeps ({how})",
            reserved.source,
            min(max(expected, low), high),
        ),
        Level(
            "card",
            low + CONTEXT.low + communicators * COMMUNICATOR.low,
            high + CONTEXT.high + communicators * COMMUNICATOR.high,
            "reserved, CUDA context" + (" and NCCL" if communicators else ""),
            f"{CONTEXT.source}; {COMMUNICATOR.source}" if communicators else CONTEXT.source,
        ),
    )


def fits_below(framework: str) -> float:
    """Return the share of the card below which a step fits; "" for any framework."""
    row = FRAMEWORKS.get(framework)
    return Framework.fits_below if row is None else row.fits_below


def grade(
    allocated_bytes: float,
    usable_gib: float,
    *,
    framework: str = "torch",
    card_low_bytes: float = 0.0,
) -> str:
    """Whether a step fits: `fits`, `uncertain` or `does not fit`.

    Judged from allocated bytes against what the card shows, because the allocator empties its cache
    before it gives up (see `VERDICT_SOURCE`). Where that leaves it open, a step whose card level
    lies above the card with its low end already does not fit.

    Parameters
    ----------
    allocated_bytes
        Predicted allocated peak.
    usable_gib
        What `torch.cuda` reports for the card, in GiB.
    framework
        Who keeps the states: below which share a step fits depends on it.
    card_low_bytes
        Low end of the card level (:func:`levels`), where it is known.

    Raises
    ------
    ValueError
        If `usable_gib` is not a positive number.
    """
    if not usable_gib > 0 or usable_gib == float("inf"):
        raise ValueError(f"usable_gib must be a positive number, got {describe(usable_gib)}")
    capacity = usable_gib * GIB
    if allocated_bytes < fits_below(framework) * capacity:
        return "fits"
    fails = max(allocated_bytes / FAILS_ABOVE, card_low_bytes) > capacity
    return "does not fit" if fails else "uncertain"
