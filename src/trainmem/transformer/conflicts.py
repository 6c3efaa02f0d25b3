"""Options of a plan that do not go together, each with the message that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmem.transformer.plan import Plan


def conflicts(plan: Plan) -> Iterator[tuple[bool, str]]:
    """Yield what cannot be, each with its message."""
    zero = plan.zero_stage > 0
    ranks, fsdp = plan.ranks, plan.fsdp
    yield from _layout_conflicts(plan)
    yield (
        plan.sharding == "none" and ranks > 1,
        f"sharding 'none' is for one GPU, got num_gpus {plan.num_gpus}; "
        "use 'ddp' or 'zero1' to 'zero3'",
    )
    yield (
        plan.sharding == "ddp" and ranks == 1,
        f"sharding 'ddp' needs num_gpus of 2 or more{_each(plan)}, got {plan.num_gpus}; use 'none'",
    )
    yield (
        plan.precision == "mixed" and not fsdp,
        "precision 'mixed' is FSDP2's and needs framework 'torch' with sharding 'zero1', 'zero2' "
        f"or 'zero3'; with framework {plan.framework!r}, sharding {plan.sharding!r} use "
        "'amp' or 'bf16_master'",
    )
    yield (
        plan.wrapping == "split" and not fsdp,
        f"wrapping 'split' needs sharding 'zero1', 'zero2' or 'zero3', got {plan.sharding!r}",
    )
    yield (
        plan.reduce_dtype != "float32" and plan.precision != "mixed",
        f"reduce_dtype {plan.reduce_dtype!r} needs precision 'mixed', got {plan.precision!r}",
    )
    yield (
        plan.precision == "bf16_master" and plan.optimizer != "adamw",
        f"precision 'bf16_master' needs optimizer 'adamw', got {plan.optimizer!r}",
    )
    yield (
        plan.no_sync and plan.sharding == "none",
        "no_sync needs more than one rank: sharding 'ddp' or 'zero1' to 'zero3'",
    )
    yield (
        zero and plan.optimizer == "adam8bit",
        "optimizer 'adam8bit' is not covered with sharding 'zero1' to 'zero3'; use 'none' or 'ddp'",
    )
    yield from _stack_conflicts(plan)


def _each(plan: Plan) -> str:
    return f" for every tp · pp = {plan.tp * plan.pp}" if plan.tp * plan.pp > 1 else ""


def _layout_conflicts(plan: Plan) -> Iterator[tuple[bool, str]]:
    """Yield what is wrong with the product of the parallel axes."""
    multiple = plan.gpu_multiple
    below = plan.num_gpus // multiple * multiple
    near = f"{below} or {below + multiple}" if below else f"{multiple}"
    yield (
        plan.num_gpus % multiple != 0,
        f"num_gpus {plan.num_gpus} is not a multiple of {multiple} "
        f"(tp {plan.tp} · pp {plan.pp} · cp {plan.cp}"
        + (f", ep {plan.ep}" if plan.ep > 1 else "")
        + f"); the nearest are {near}",
    )
    yield (
        plan.vpp > 1 and plan.pp == 1,
        f"vpp {plan.vpp} needs pp of 2 or more, got 1",
    )
    yield (
        plan.vpp > 1 and plan.accumulation % plan.pp != 0,
        f"accumulation {plan.accumulation} is not a multiple of pp {plan.pp}, as an interleaved "
        f"pipeline needs; the nearest is {max(1, round(plan.accumulation / plan.pp)) * plan.pp}",
    )


def _stack_conflicts(plan: Plan) -> Iterator[tuple[bool, str]]:
    """Yield what a framework, its kernels or adapters do not have."""
    eager = plan.kernels == "transformers"
    bf16 = plan.framework != "torch"
    yield (
        bf16 and plan.precision != "bf16_master",
        f"framework {plan.framework!r} needs precision 'bf16_master', got {plan.precision!r}",
    )
    yield (
        plan.framework in ("megatron", "llm.c") and plan.sharding in ("zero2", "zero3"),
        f"framework {plan.framework!r} has sharding 'zero1' (distributed optimizer), 'ddp' or "
        f"'none', got {plan.sharding!r}",
    )
    yield (
        plan.framework == "deepspeed" and plan.zero_stage == 0,
        f"framework 'deepspeed' needs sharding 'zero1' to 'zero3', got {plan.sharding!r}",
    )
    for framework, kernels in (("megatron", "transformer_engine"), ("llm.c", "llm.c")):
        yield (
            (plan.framework == framework) != (plan.kernels == kernels),
            f"framework {plan.framework!r} does not go with kernels {plan.kernels!r}: "
            f"{framework!r} and {kernels!r} go together",
        )
    yield (
        plan.use_cache and not eager,
        f"use_cache is covered with kernels 'transformers', got {plan.kernels!r}",
    )
    for name, size in (("tp", plan.tp), ("pp", plan.pp)):
        yield (
            size > 1 and plan.kernels not in ("torchtitan", "compiled", "transformer_engine"),
            f"{name} {size} needs kernels 'torchtitan', 'compiled' or 'transformer_engine', "
            f"got {plan.kernels!r}",
        )
    yield (
        plan.kernels not in ("transformers", "transformer_engine") and plan.attention != "flash",
        f"kernels {plan.kernels!r} need attention 'flash', got {plan.attention!r}",
    )
    yield (
        plan.cp > 1 and plan.attention != "flash",
        f"cp {plan.cp} needs attention 'flash', got {plan.attention!r}",
    )
    yield (
        not eager and plan.precision in ("amp", "fp32"),
        f"kernels {plan.kernels!r} need precision 'mixed', 'bf16_master' or 'bf16', "
        f"got {plan.precision!r}",
    )
    yield (
        plan.checkpointing == "selective"
        and plan.kernels in ("transformers", "liger", "litgpt", "llm.c"),
        "checkpointing 'selective' needs kernels 'torchtitan', 'compiled' or "
        f"'transformer_engine', got {plan.kernels!r}",
    )
    yield (
        plan.loss_head in ("chunked", "fused") and (plan.tp > 1 or plan.framework == "megatron"),
        f"loss_head {plan.loss_head!r} is not covered with tensor parallelism or Megatron; "
        "use 'in_place', 'compiled' or 'transformers'",
    )
    yield (
        plan.pp > 1 and (plan.no_sync or plan.keep_gradients),
        "no_sync and keep_gradients are not covered with pp above 1",
    )
    yield (
        plan.quantization != "none" and not plan.lora_rank,
        f"quantization {plan.quantization!r} needs lora_rank of 1 or more, got 0",
    )
    master = plan.precision == "bf16_master" and plan.framework == "torch"
    other = plan.framework not in ("torch", "deepspeed") or plan.tp * plan.pp > 1
    yield (
        bool(plan.lora_rank) and (master or other),
        "lora_rank above 0 is covered with framework 'torch' or 'deepspeed', precision other than "
        f"'bf16_master' in the first, tp 1 and pp 1; got framework {plan.framework!r}, "
        f"precision {plan.precision!r}, tp {plan.tp}, pp {plan.pp}",
    )
    yield (
        plan.quantization != "none" and plan.precision in ("mixed", "fp32"),
        f"quantization {plan.quantization!r} needs precision 'bf16' or 'amp', "
        f"got {plan.precision!r}",
    )
    yield (
        plan.lora_targets == "all_head" and plan.loss_head in ("chunked", "fused"),
        f"lora_targets 'all_head' is not covered with loss_head {plan.loss_head!r}",
    )
    yield (
        plan.offload != "none" and plan.framework == "megatron",
        f"offload {plan.offload!r} is not covered with framework 'megatron'",
    )
