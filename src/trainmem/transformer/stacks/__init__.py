"""Training stacks, one file each: who keeps the states, whose kernels run, and presets by name.

A *framework* keeps and shards the states, *kernels* run the layers; the two combine (DeepSpeed runs
transformers' layers or Liger's), and a *stack* is a named pair of them with the usual options.
DeepSpeed's engine has files beside its own: settings, partitions, reduction, gathering.
"""

from __future__ import annotations

from typing import Any

from trainmem.transformer.stacks import (
    compiled,
    deepspeed,
    fsdp,
    liger,
    litgpt,
    llmc,
    megatron,
    torchtitan,
    torchtune,
    transformers,
)
from trainmem.transformer.stacks.collectives import Collectives, Progress
from trainmem.transformer.stacks.framework import Framework
from trainmem.transformer.stacks.kernels import Kernels
from trainmem.transformer.stacks.preset import Stack

#: Frameworks by name.
FRAMEWORKS: dict[str, Framework] = {
    row.name: row for module in (fsdp, megatron, deepspeed, llmc) for row in module.FRAMEWORKS
}

#: Kernels by name.
KERNELS: dict[str, Kernels] = {
    row.name: row
    for module in (transformers, liger, torchtitan, compiled, megatron, litgpt, llmc)
    for row in module.KERNELS
}

#: Presets by name; :func:`trainmem.transformer.add` adds one.
STACKS: dict[str, Stack] = {
    row.name: row
    for module in (
        transformers,
        liger,
        compiled,
        torchtitan,
        torchtune,
        megatron,
        deepspeed,
        litgpt,
        llmc,
    )
    for row in module.STACKS
}

__all__ = [
    "FRAMEWORKS",
    "KERNELS",
    "STACKS",
    "Collectives",
    "Framework",
    "Kernels",
    "Progress",
    "Stack",
]


def __getattr__(name: str) -> Any:
    """Load `stack` when it is asked for here: it returns a plan, which is made of these tables."""
    if name == "stack":
        from trainmem.transformer.plan import stack

        return stack
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
