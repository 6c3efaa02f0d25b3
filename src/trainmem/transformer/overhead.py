"""From what PyTorch allocates to what the GPU shows, and what that means for fitting.

None of this is in the replay: it differs by stack, driver and luck, so it is an interval with a
source, on top of the allocated peak and never folded into it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.config import describe
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
    """One row of the table: an interval `low` to `high` and where it was seen."""

    low: float
    high: float
    source: str


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
    "deepspeed": Factor(1.0, 1.05, "few data; up to 5 GiB more"),
}

#: What DeepSpeed may reserve on top, bytes.
DEEPSPEED_SLACK = 5 * GIB

#: CUDA context and loaded kernels, bytes.
CONTEXT = Factor(0.5 * GIB, 1.4 * GIB, "0.5–0.8 GiB typical, up to 1.4 (transformers docs)")

#: NCCL buffers of one communicator, bytes.
COMMUNICATOR = Factor(0.4 * GB, 0.7 * GB, "published NCCL measurements")

#: Share of the card below which a step fits, by framework ("" for the others), and above which it
#: does not.
FITS_BELOW = {"": 0.80, "deepspeed": 0.70}
FAILS_ABOVE = 1.00

#: Why DeepSpeed's share is lower: `step` in runtime/zero/stage_1_and_2.py and stage3.py.
DEEPSPEED_STEP = (
    "DeepSpeed's optimizer step makes fp32 copies of its gradients, which are not counted here"
)

VERDICT_SOURCE = (
    "258 published runs and 216 rows that all ran: none of 15 out-of-memory runs was below 80 %"
)


def trust(plan: Plan) -> str:
    """Say how well a stack's allocated bytes are known: a key of `ALLOCATED`."""
    if plan.quantization != "none":
        return "qlora"
    if plan.kernels in ("torchtitan", "compiled") and plan.tp * plan.pp > 1:
        return "parallel"
    if plan.kernels in ("liger", "llm.c") or plan.ep > 1:
        return "unverified"
    return "known"


def reserving(plan: Plan, pools: bool) -> str:
    """Say how the allocator is used: a key of `RESERVED`; `pools` where their sum is known."""
    if plan.framework == "megatron" or plan.kernels == "llm.c":
        return "one stream"
    if plan.varying_lengths:
        return "varying lengths"
    if plan.framework == "deepspeed":
        return "deepspeed"
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
    if how == "deepspeed":
        high += DEEPSPEED_SLACK
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
    """Return the share of the card below which a step fits."""
    return FITS_BELOW.get(framework, FITS_BELOW[""])


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
