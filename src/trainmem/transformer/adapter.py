"""The ten inputs under this model: `simulate(config, model=TransformerModel(...))`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.config import ConfigError, TrainingConfig
from trainmem.reduced import Components
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.overhead import GIB
from trainmem.transformer.plan import OPTIONS, Plan
from trainmem.transformer.result import Result, Timeline, peak, peaks, timeline
from trainmem.transformer.states import UNITS, optimizer_units

GB = 10**9


def derived_inputs(architecture: Architecture) -> dict[str, float | int]:
    """Return the three inputs that follow from an architecture, by field name."""
    return {
        "model_params_b": architecture.num_params / GB,
        "num_layers": architecture.num_layers,
        "hidden_dim": architecture.hidden_dim,
    }


def plan_of(config: TrainingConfig, plan: Plan) -> Plan:
    """Return `plan` with what a configuration says in the ten inputs.

    `zero_stage` 0 is DDP, or nothing at one GPU; `precision_bits` 16 is bf16 mixed (autocast where
    nothing is sharded) unless the plan names another 16-bit policy, 32 is fp32; `grad_ckpt` is full
    or none. What of the plan cannot be under these is reset, quietly: groups apart need FSDP, and
    so on.

    Raises
    ------
    ConfigError
        For `precision_bits` 8, which this model does not cover.
    ValueError
        For a combination that is not covered.
    """
    if config.precision_bits == 8:
        raise ConfigError("precision_bits", 8, "must be 16 or 32 with an architecture")
    sharding = f"zero{config.zero_stage}"
    if config.zero_stage == 0:
        sharding = "none" if config.num_gpus == 1 else "ddp"
    sharded = config.zero_stage > 0
    precision = "fp32" if config.precision_bits == 32 else plan.precision
    if config.precision_bits == 16 and precision in ("mixed", "amp", "fp32"):
        precision = "mixed" if sharded else "amp"
    return replace(
        plan,
        num_gpus=config.num_gpus,
        micro_batch=config.micro_batch,
        seq_length=config.seq_length,
        sharding=sharding,
        precision=precision,
        checkpointing="full" if config.grad_ckpt else "none",
        wrapping=plan.wrapping if sharded else "layers",
        reduce_dtype=plan.reduce_dtype if precision == "mixed" else "float32",
        no_sync=plan.no_sync and sharding != "none",
    )


@dataclass(frozen=True)
class TransformerModel:
    """A memory model for `trainmem.simulate`: an architecture and how it is run.

    Parameters
    ----------
    architecture
        The model; the configuration's `model_params_b`, `num_layers` and `hidden_dim` follow from
        it (see :func:`derived_inputs`) and are not read.
    plan
        Everything that the ten inputs do not say.
    usable_gib
        What `torch.cuda` reports for the card, where it is known; else `gpu_memory_gb` counts.
    """

    architecture: Architecture
    plan: Plan = field(default_factory=Plan)
    usable_gib: float | None = None

    @property
    def description(self) -> str:
        """One line that names the model."""
        return f"architecture-aware replay of one training step: {self.architecture.name}"

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind at the peak; `axes` as in :func:`peaks`."""
        parts = peaks(self.architecture, plan_of(config, self.plan), **axes)
        values = (value if value.ndim else value.item() for value in parts.values())
        return Components(*values)

    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return the bytes that one GPU offers."""
        if self.usable_gib is not None:
            return self.usable_gib * GIB
        return float(config.gpu_memory_gb) * GB

    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of unsharded weights, gradients and optimizer states per parameter."""
        plan = plan_of(config, self.plan)
        weights, _, gradients = UNITS[plan.precision]
        return weights + gradients + sum(optimizer_units(plan.precision, plan.optimizer))

    def smallest_num_gpus(self, config: TrainingConfig) -> int | None:
        """Return the fewest GPUs at which `config` fits, or None where no count does.

        Memory is not monotone in the count: FSDP2 pads every parameter's first dimension to a
        multiple of it, so beyond a few thousand GPUs the gathered parameters grow again. Hence a
        grid over all counts, then every count of the gap in front of the first that fits.
        """
        capacity = self.capacity_bytes(config)

        def fitting(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            fits: NDArray[np.bool_] = self.components(config, num_gpus=counts).total <= capacity
            return counts[fits]

        most = OPTIONS["num_gpus"].bounds[1]
        grid = np.unique(np.round(np.geomspace(1, most, 300)).astype(np.int64))
        found = fitting(grid)
        if not found.size:
            return None
        above = grid[grid < found[0]]
        gap = np.arange(above[-1] + 1 if above.size else 1, found[0] + 1)
        return int(fitting(gap)[0])

    def peak(self, config: TrainingConfig) -> Result:
        """Return the peak in detail (:func:`trainmem.transformer.peak`)."""
        return peak(self.architecture, plan_of(config, self.plan))

    def timeline(self, config: TrainingConfig) -> Timeline:
        """Return the step over time (:func:`trainmem.transformer.timeline`)."""
        return timeline(self.architecture, plan_of(config, self.plan))

    def detail(self, config: TrainingConfig) -> dict[str, Any]:
        """Return `plan` and `detail` as the answer's `to_dict()` adds them: plain types only."""
        plan, result = plan_of(config, self.plan), self.peak(config)
        return {
            "plan": {f.name: getattr(plan, f.name) for f in fields(plan)},
            "detail": {f.name: getattr(result, f.name) for f in fields(result)},
        }
