"""The ten inputs under this model: `simulate(config, model=TransformerModel(...))`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmem.config import ConfigError, TrainingConfig
from trainmem.reduced import Components
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.calibration import Calibration
from trainmem.transformer.overhead import GIB
from trainmem.transformer.plan import OPTIONS, Plan
from trainmem.transformer.result import Result, Timeline, peak, peaks, timeline
from trainmem.transformer.states import optimizer_units, units_of

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
    nothing is sharded) unless the plan names another 16-bit policy, 32 is fp32; `grad_ckpt` is none
    or what the plan says, full by default. What of the plan cannot be under these is reset, quietly: groups apart need FSDP, and
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
        sharding = "none" if config.num_gpus <= plan.tp * plan.pp else "ddp"
    elif plan.framework == "megatron":
        sharding = "zero1"  # its distributed optimizer, the only one it has
    sharded = config.zero_stage > 0
    precision = "fp32" if config.precision_bits == 32 else plan.precision
    if plan.framework == "torch" and config.precision_bits == 16:
        if precision in ("mixed", "amp", "fp32"):
            precision = "mixed" if sharded else "amp"
    elif config.precision_bits == 16:
        precision = "bf16_master"
    checkpointing = "full" if plan.checkpointing == "none" else plan.checkpointing
    return replace(
        plan,
        num_gpus=config.num_gpus,
        micro_batch=config.micro_batch,
        seq_length=config.seq_length,
        sharding=sharding,
        precision=precision,
        checkpointing=checkpointing if config.grad_ckpt else "none",
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
    calibration
        A measurement (:func:`trainmem.transformer.calibrate`) whose factor `components` carries, so
        that sweeps and the fewest GPUs follow it; `peak` and `timeline` stay as predicted.
    """

    architecture: Architecture
    plan: Plan = field(default_factory=Plan)
    usable_gib: float | None = None
    calibration: Calibration | None = None

    @property
    def description(self) -> str:
        """One line that names the model, and says so if it is calibrated."""
        line = f"architecture-aware replay of one training step: {self.architecture.name}"
        return f"{line}, calibrated × {self.factor:.3f}" if self.calibration else line

    @property
    def gpu_multiple(self) -> int:
        """What numbers of GPUs are multiples of: tp · pp · cp, and what ep needs."""
        return self.plan.gpu_multiple

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind at the peak, calibrated; `axes` as in :func:`peaks`.

        Numbers of GPUs between two multiples of `gpu_multiple` stand for the next one: the layout
        stays, and data parallelism is what is left.
        """
        if axes.get("num_gpus") is not None:
            counts = np.asarray(axes["num_gpus"], dtype=np.float64)
            axes["num_gpus"] = np.ceil(counts / self.gpu_multiple) * self.gpu_multiple
        parts = peaks(self.architecture, plan_of(config, self.plan), **axes)
        values = (value if value.ndim else value.item() for value in parts.values())
        return Components(*(value * self.factor for value in values))

    @property
    def factor(self) -> float:
        """What predictions are multiplied by: 1, or as measured."""
        return self.calibration.factor if self.calibration else 1.0

    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return the bytes that one GPU offers."""
        if self.usable_gib is not None:
            return self.usable_gib * GIB
        return float(config.gpu_memory_gb) * GB

    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of unsharded weights, gradients and optimizer states per parameter."""
        plan = plan_of(config, self.plan)
        weights, _, gradients = units_of(plan.framework, plan.precision)
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

        step = self.gpu_multiple
        most = OPTIONS["num_gpus"].bounds[1] // step
        grid = step * np.unique(np.round(np.geomspace(1, most, 300)).astype(np.int64))
        found = fitting(grid)
        if not found.size:
            return None
        above = grid[grid < found[0]]
        gap = np.arange(above[-1] + step if above.size else step, found[0] + 1, step)
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
        } | ({"calibration": asdict(self.calibration)} if self.calibration else {})
