"""Training stacks by name: how people run a step, as presets of a plan's options.

A preset names kernels (which tensors are saved), loss head, states and buffers; what it does not
name stays as the plan has it. Facts come from the stacks' sources and from published measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmem.config import describe
from trainmem.transformer.plan import Plan


@dataclass(frozen=True, slots=True)
class Stack:
    """One row of the table.

    Attributes
    ----------
    name, label
        What to call it, in code and for people.
    options
        Options of :class:`Plan` that it sets.
    source
        Where they come from.
    """

    name: str
    label: str
    options: Mapping[str, Any]
    source: str


_TITAN = {"framework": "torch", "kernels": "torchtitan", "wrapping": "split"}
_MEGATRON = {
    "framework": "megatron",
    "kernels": "transformer_engine",
    "sharding": "zero1",
    "precision": "bf16_master",
    "loss_head": "in_place",
    "wrapping": "layers",
}
_DEEPSPEED = {
    "framework": "deepspeed",
    "kernels": "transformers",
    "precision": "bf16_master",
    "wrapping": "layers",
}

#: Presets by name.
STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack("transformers", "transformers with FSDP2",
              {"framework": "torch", "kernels": "transformers", "loss_head": "transformers"},
              "transformers 5.24, torch 2.13: traced"),
        Stack("transformers+liger", "transformers with Liger kernels",
              {"framework": "torch", "kernels": "liger", "loss_head": "fused"},
              "Liger-Kernel, transformers/monkey_patch.py"),
        Stack("torch.compile", "transformers, compiled",
              {"framework": "torch", "kernels": "compiled", "loss_head": "compiled"},
              "torch._inductor; torchtune's published runs"),
        Stack("torchtitan", "torchtitan",
              {**_TITAN, "checkpointing": "selective", "loss_head": "compiled"},
              "torchtitan, models/llama3/parallelize.py; its default job files"),
        Stack("torchtitan-full", "torchtitan, full checkpointing",
              {**_TITAN, "checkpointing": "full", "loss_head": "compiled"},
              "torchtitan, distributed/activation_checkpoint.py"),
        Stack("torchtitan-none", "torchtitan, no checkpointing",
              {**_TITAN, "checkpointing": "none", "loss_head": "compiled"},
              "torchtitan, distributed/activation_checkpoint.py"),
        Stack("torchtitan-compile", "torchtitan, compiled",
              {**_TITAN, "kernels": "compiled", "checkpointing": "selective",
               "loss_head": "compiled"},
              "torchtitan, models/llama3/parallelize.py"),
        Stack("torchtune", "torchtune",
              {"framework": "torch", "kernels": "torchtitan", "loss_head": "pieces",
               "precision": "bf16", "wrapping": "layers"},
              "torchtune, modules/loss/ce_chunked_output_loss.py; recipes in bf16"),
        Stack("megatron", "Megatron-Core with Transformer Engine",
              {**_MEGATRON, "checkpointing": "none"},
              "Megatron-Core, distributed optimizer; Transformer Engine, module/base.py"),
        Stack("megatron-selective", "Megatron-Core, attention recomputed",
              {**_MEGATRON, "checkpointing": "selective"},
              "Megatron-Core, recompute_granularity selective"),
        Stack("megatron-full", "Megatron-Core, layers recomputed",
              {**_MEGATRON, "checkpointing": "full"},
              "Megatron-Core, recompute_granularity full, uniform, 1 layer"),
        Stack("deepspeed-zero1", "DeepSpeed ZeRO-1", {**_DEEPSPEED, "sharding": "zero1"},
              "DeepSpeed, runtime/zero/stage_1_and_2.py"),
        Stack("deepspeed-zero2", "DeepSpeed ZeRO-2", {**_DEEPSPEED, "sharding": "zero2"},
              "DeepSpeed, runtime/zero/stage_1_and_2.py"),
        Stack("deepspeed-zero3", "DeepSpeed ZeRO-3", {**_DEEPSPEED, "sharding": "zero3"},
              "DeepSpeed, runtime/zero/stage3.py"),
        Stack("litgpt", "litgpt",
              {"framework": "torch", "kernels": "litgpt", "loss_head": "pieces",
               "precision": "bf16", "wrapping": "layers", "optimizer": "adamw_foreach",
               "no_sync": True},
              "litgpt, lora.py, utils.py (chunked_cross_entropy); precision bf16-true; "
              "finetune/full.py: no_backward_sync while accumulating, AdamW as torch makes it"),
        Stack("llm.c", "llm.c",
              {"framework": "llm.c", "kernels": "llm.c", "loss_head": "in_place",
               "sharding": "zero1", "precision": "bf16_master", "wrapping": "layers",
               "checkpointing": "none"},
              "llm.c, train_gpt2.cu; GPT-2 only"),
    )
}  # fmt: skip


def stack(name: str, **options: Any) -> Plan:
    """Return the plan of a stack, with options of its own on top.

    A stack that doesn't reduce while it accumulates has nothing to reduce on one GPU.

    Raises
    ------
    ValueError
        Listing the choices for an unknown name; as :class:`Plan` for the options.
    TypeError
        For an option that a plan does not have.
    """
    if name not in STACKS:
        known = ", ".join(STACKS)
        raise ValueError(f"stack {describe(name)} is not known; choose one of {known}")
    merged = {**STACKS[name].options, **options}
    if merged.get("sharding") == "none":
        merged["no_sync"] = options.get("no_sync", False)
    return Plan(**merged)
