"""The ten inputs and a plan: what of one says what of the other, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from trainmem.config import ConfigError, TrainingConfig
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.plan import Plan
from trainmem.transformer.stacks import FRAMEWORKS

GB = 10**9


def derived_inputs(architecture: Architecture) -> dict[str, float | int]:
    """Return the three inputs that follow from an architecture, by field name."""
    return {
        "model_params_b": architecture.num_params / GB,
        "num_layers": architecture.num_layers,
        "hidden_dim": architecture.hidden_dim,
    }


#: Options of a plan that the ten inputs say: option, the input, and which values it says (none
#: listed: all of them).
SHARED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "num_gpus": ("num_gpus", ()),
    "micro_batch": ("micro_batch", ()),
    "seq_length": ("seq_length", ()),
    "sharding": ("zero_stage", ()),
    "precision": ("precision_bits", ("fp32",)),
    "checkpointing": ("grad_ckpt", ("none", "full")),
}


def said_by(name: str, value: Any) -> str | None:
    """Return the input that says an option's value, or None where only a plan can."""
    field, values = SHARED.get(name, (None, ()))
    return field if not values or value in values else None


def options_of(plan: Plan | Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a plan the ten inputs do not say, where it differs from the defaults."""
    options = asdict(plan) if isinstance(plan, Plan) else plan
    return {
        name: option
        for name, option in options.items()
        if said_by(name, option) is None and option != OPTIONS[name].default
    }


def inputs_of(plan: Plan) -> dict[str, int]:
    """Return what a whole plan says of the ten inputs: the other direction of :func:`plan_of`.

    ``plan_of(TrainingConfig(**inputs_of(plan)), plan) == plan`` for every plan.
    """
    return {
        "num_gpus": plan.num_gpus,
        "micro_batch": plan.micro_batch,
        "seq_length": plan.seq_length,
        "precision_bits": 32 if plan.precision == "fp32" else 16,
        "zero_stage": plan.zero_stage,
        "grad_ckpt": int(plan.checkpointing != "none"),
    }


def plan_of(config: TrainingConfig, plan: Plan | Mapping[str, Any]) -> Plan:
    """Return `plan`, or a mapping of some options, with what the ten inputs say.

    `zero_stage` 0 is DDP, or nothing at one GPU; `precision_bits` 16 is bf16 mixed (autocast where
    nothing is sharded) unless the plan names another 16-bit policy, 32 is fp32; `grad_ckpt` is none
    or what the plan says, full by default. What of the plan cannot be under these is reset,
    quietly: groups apart need FSDP, and so on.

    Raises
    ------
    ConfigError
        For `precision_bits` 8, which this model does not cover.
    ValueError
        For a combination that is not covered.
    """
    if config.precision_bits == 8:
        raise ConfigError("precision_bits", 8, "must be 16 or 32 with an architecture")
    options = asdict(plan) if isinstance(plan, Plan) else dict(plan)
    try:
        return _planned(config, tuple(options), *options.values())
    except TypeError:  # a value of no use as a key, which the plan names in its refusal
        return _plan(config, options)


# Typed, for True is no 1 here.
@lru_cache(maxsize=1024, typed=True)
def _planned(config: TrainingConfig, names: tuple[str, ...], *values: Any) -> Plan:
    return _plan(config, dict(zip(names, values, strict=True)))


def forget() -> None:
    """Forget all plans: a name may stand for something else from now on."""
    _planned.cache_clear()


def _plan(config: TrainingConfig, options: dict[str, Any]) -> Plan:
    """Return the plan of options that a config completes."""
    sharding = f"zero{config.zero_stage}"
    if config.zero_stage == 0:
        one = options.get("tp", 1) * options.get("pp", 1)
        sharding = "none" if config.num_gpus <= one else "ddp"
    sharded = config.zero_stage > 0
    framework = FRAMEWORKS[options.get("framework", OPTIONS["framework"].default)]
    precision = options.get("precision", OPTIONS["precision"].default)
    if framework.one_stage is not None and sharded:
        sharding = f"zero{framework.one_stage}"
    if config.precision_bits == 32:
        precision = "fp32"
    elif framework.precision:
        precision = framework.precision
    elif precision == "fp32" or (precision == "mixed" and not sharded):
        precision = "mixed" if sharded else "amp"
    kept = options.get("checkpointing", "none")
    options |= {
        "num_gpus": config.num_gpus,
        "micro_batch": config.micro_batch,
        "seq_length": config.seq_length,
        "sharding": sharding,
        "precision": precision,
        "checkpointing": ("full" if kept == "none" else kept) if config.grad_ckpt else "none",
    }
    if not sharded:
        options["wrapping"] = "layers"
    if precision != "mixed":
        options["reduce_dtype"] = "float32"
    if sharding == "none":
        options["no_sync"] = False
    return Plan(**options)
