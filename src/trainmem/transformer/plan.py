"""How a training step is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainmem.transformer.options import OPTIONS
from trainmem.transformer.rules import check_options
from trainmem.transformer.stacks import FRAMEWORKS, STACKS
from trainmem.transformer.structure import zero_stage
from trainmem.words import describe


@dataclass(frozen=True, slots=True)
class Plan:
    """How a training step is run; every field is described in `OPTIONS`.

    Raises
    ------
    ValueError
        Naming the option, its value and what is allowed, for a value outside the table or a
        combination that is not covered.
    """

    num_gpus: int = OPTIONS["num_gpus"].default
    micro_batch: int = OPTIONS["micro_batch"].default
    seq_length: int = OPTIONS["seq_length"].default
    sharding: str = OPTIONS["sharding"].default
    precision: str = OPTIONS["precision"].default
    optimizer: str = OPTIONS["optimizer"].default
    attention: str = OPTIONS["attention"].default
    loss_head: str = OPTIONS["loss_head"].default
    loss_chunk: int = OPTIONS["loss_chunk"].default
    checkpointing: str = OPTIONS["checkpointing"].default
    accumulation: int = OPTIONS["accumulation"].default
    no_sync: bool = OPTIONS["no_sync"].default
    keep_gradients: bool = OPTIONS["keep_gradients"].default
    wrapping: str = OPTIONS["wrapping"].default
    reduce_dtype: str = OPTIONS["reduce_dtype"].default
    dropout: bool = OPTIONS["dropout"].default
    use_cache: bool = OPTIONS["use_cache"].default
    varying_lengths: bool = OPTIONS["varying_lengths"].default
    framework: str = OPTIONS["framework"].default
    kernels: str = OPTIONS["kernels"].default
    tp: int = OPTIONS["tp"].default
    sequence_parallel: bool = OPTIONS["sequence_parallel"].default
    pp: int = OPTIONS["pp"].default
    vpp: int = OPTIONS["vpp"].default
    cp: int = OPTIONS["cp"].default
    ep: int = OPTIONS["ep"].default
    expert_load: int = OPTIONS["expert_load"].default
    lora_rank: int = OPTIONS["lora_rank"].default
    lora_targets: str = OPTIONS["lora_targets"].default
    quantization: str = OPTIONS["quantization"].default
    offload: str = OPTIONS["offload"].default
    settings: tuple[tuple[str, Any], ...] = OPTIONS["settings"].default

    def __post_init__(self) -> None:
        for field in fields(self):
            value = OPTIONS[field.name].check(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        check_options(self)
        own = FRAMEWORKS[self.framework].settings
        checked = ((name, own[name].check(value)) for name, value in self.settings)
        differ = tuple(pair for pair in checked if pair[1] != own[pair[0]].default)
        object.__setattr__(self, "settings", differ)

    @property
    def zero_stage(self) -> int:
        """ZeRO stage of the sharding, whoever does it; 0 where nothing is sharded."""
        return zero_stage(self.sharding)

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 shards the states."""
        return FRAMEWORKS[self.framework].fsdp2 and self.zero_stage > 0

    @property
    def gpu_multiple(self) -> int:
        """What the number of GPUs must be a multiple of: tp · pp · cp, and what ep needs."""
        return gpu_multiple({"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep})

    @property
    def dp(self) -> int:
        """Data-parallel replicas: the GPUs that tp, pp and cp leave."""
        return self.num_gpus // (self.tp * self.pp * self.cp)

    @property
    def ranks(self) -> int:
        """GPUs that share one copy of the states: those of dp and cp."""
        return self.num_gpus // (self.tp * self.pp)


def unchecked(options: Mapping[str, Any]) -> Plan:
    """Return a plan of all options, valid ones each, that may break rules: to ask which."""
    plan = object.__new__(Plan)
    for name, value in options.items():
        object.__setattr__(plan, name, value)
    return plan


def gpu_multiple(options: Mapping[str, Any]) -> int:
    """Return what the number of GPUs must be a multiple of under some options of a plan."""
    tp, pp, cp, ep = (options.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    return int(tp * pp * math.lcm(cp, ep))


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
