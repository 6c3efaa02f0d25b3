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
    "deepspeed": Factor(1.0, 1.05, "few data; up to 5 GiB more"),
}

#: What DeepSpeed may reserve on top, bytes.
DEEPSPEED_SLACK = 5 * GIB

#: CUDA context and loaded kernels, bytes.
CONTEXT = Factor(0.5 * GIB, 1.4 * GIB, "0.5–0.8 GiB typical, up to 1.4 (transformers docs)")

#: NCCL buffers of one communicator, bytes.
COMMUNICATOR = Factor(0.4 * GB, 0.7 * GB, "published NCCL measurements")

#: Share of the card below which a step fits, and above which it does not.
FITS_BELOW, FAILS_ABOVE = 0.80, 1.00

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
    how, base, extra = "one GPU", allocated_bytes, 0.0
    if plan.framework == "megatron" or plan.kernels == "llm.c":
        how = "one stream"
    elif plan.framework == "deepspeed":
        how, extra = "deepspeed", DEEPSPEED_SLACK
    elif plan.fsdp and reserved_bytes is not None:
        how = "parallel pools" if plan.tp * plan.pp > 1 else "pools"
        base = reserved_bytes
    elif plan.fsdp:
        how = "sharded"
    elif plan.num_gpus > 1:
        how = "replicated"
    reserved = RESERVED[how]
    # Reserved is never less than what is allocated, in whose own interval it then lies.
    low = max(base * reserved.low, allocated_bytes * allocated.low)
    high = max(base * reserved.high, low) + extra
    middle = base if "pools" in how else base * (reserved.low + reserved.high) / 2 + extra / 2
    communicators = sum(
        (plan.dp * plan.cp > 1, plan.tp > 1, plan.pp > 1, plan.cp > 1, plan.ep > 1)
    )
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
            max(middle, allocated_bytes),
        ),
        Level(
            "card",
            low + CONTEXT.low + communicators * COMMUNICATOR.low,
            high + CONTEXT.high + communicators * COMMUNICATOR.high,
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
