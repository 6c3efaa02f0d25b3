"""The memory model of an architecture: `simulate(config, model=TransformerModel(...))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainmem.cards import Gpu, find_gpu
from trainmem.config import FIELDS, TrainingConfig
from trainmem.fixes import Offer
from trainmem.limits import Limit
from trainmem.memory_model import MemoryModel
from trainmem.reduced import Components
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.calibration import Calibration, calibrate
from trainmem.transformer.inputs import options_of, plan_of
from trainmem.transformer.layout import longest_length
from trainmem.transformer.levels import (
    GIB,
    VERDICT_SOURCE,
    Level,
    fits_below,
    grade,
    levels,
)
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.peak import (
    Result,
    peak,
    peak_bytes,
    peaks,
    reserved_bytes,
    whole_states_bytes,
)
from trainmem.transformer.peak_case import PeakCase
from trainmem.transformer.plan import Plan, gpu_multiple
from trainmem.transformer.remedies import offers
from trainmem.transformer.stacks import FRAMEWORKS
from trainmem.transformer.timeline import Timeline, timeline

GB = 10**9


@dataclass(frozen=True)
class TransformerModel(MemoryModel):
    """A memory model for `trainmem.simulate`: an architecture and how it is run.

    Parameters
    ----------
    architecture
        The model; the configuration's `model_params_b`, `num_layers` and `hidden_dim` follow from
        it (see :func:`derived_inputs`) and are not read.
    plan
        Everything that the ten inputs do not say: a plan, or a mapping of the options that differ
        from the defaults.
    usable_gib
        What `torch.cuda` reports for the card, where it is known; else `gpu_memory_gb` counts.
    gpu
        Label of that card, for people.
    calibration
        A measurement (:func:`trainmem.transformer.calibrate`) whose factor `components` carries, so
        that sweeps and the fewest GPUs follow it; `peak` and `timeline` stay as predicted.
    """

    architecture: Architecture = field()  # without it the base class's None were the default
    plan: Plan | Mapping[str, Any] = field(default_factory=dict)
    usable_gib: float | None = None
    gpu: str = ""
    calibration: Calibration | None = None

    @property
    def description(self) -> str:
        """One line that names the model, the options that differ, and a calibration."""
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        name = self.architecture.name + (f" ({given})" if given else "")
        line = f"architecture-aware replay of one training step: {name}"
        return f"{line}, calibrated × {self.factor:.3f}" if self.calibration else line

    @property
    def options(self) -> dict[str, Any]:
        """What of the plan the ten inputs do not say, where it differs from the defaults."""
        return options_of(self.plan)

    @property
    def framework(self) -> str:
        """Who keeps the states."""
        return str(self.options.get("framework", OPTIONS["framework"].default))

    def plan_for(self, config: TrainingConfig) -> Plan:
        """Return how the step is run, every option."""
        return plan_of(config, self.plan)

    def with_options(self, changes: Mapping[str, Any]) -> TransformerModel:
        """Return the model with some options of the plan changed."""
        return replace(self, plan={**self.options, **changes})

    def with_card(self, card: Gpu) -> TransformerModel:
        """Return the model on another card."""
        return replace(self, usable_gib=card.usable_gib, gpu=card.label)

    def changed(
        self, config: TrainingConfig, changes: Mapping[str, Any]
    ) -> tuple[TransformerModel, TrainingConfig]:
        """Return the model and a config with inputs, options of the plan or the card changed."""
        inputs = {name: value for name, value in changes.items() if name in FIELDS}
        options = {n: v for n, v in changes.items() if n not in FIELDS and n != "gpu"}
        model = self
        if "gpu" in changes:
            card = find_gpu(changes["gpu"])
            inputs["gpu_memory_gb"], model = card.nominal_gb, self.with_card(card)
        return (model.with_options(options) if options else model), config.replace(**inputs)

    def calibrated(
        self,
        config: TrainingConfig,
        *,
        peak_allocated_gib: float | None = None,
        peak_reserved_gib: float | None = None,
        memory_stats: Mapping[str, Any] | None = None,
    ) -> TransformerModel:
        """Return the model as measured at a config (:func:`trainmem.transformer.calibrate`)."""
        model = replace(self, calibration=None)
        found = calibrate(
            model.levels(config, model.peak(config).peak_bytes),
            peak_allocated_gib=peak_allocated_gib,
            peak_reserved_gib=peak_reserved_gib,
            memory_stats=memory_stats,
        )
        return replace(model, calibration=found)

    @property
    def gpu_multiple(self) -> int:
        """What numbers of GPUs are multiples of: tp · pp · cp, and what ep needs."""
        return gpu_multiple(self.options)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Numbers of GPUs of a fine grid, all multiples of `gpu_multiple`."""
        most = OPTIONS["num_gpus"].bounds[1] // self.gpu_multiple
        return np.unique(COUNTS[most >= COUNTS]) * self.gpu_multiple

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind at the peak, calibrated; `axes` as in :func:`peaks`.

        Numbers of GPUs between two multiples of `gpu_multiple` stand for the next one: the layout
        stays, and data parallelism is what is left.
        """
        parts = peaks(self.architecture, self.plan_for(config), **self._whole_layouts(axes))
        values = (value if value.ndim else value.item() for value in parts.values())
        return Components(*(value * self.factor for value in values))

    def total(self, config: TrainingConfig, **axes: Any) -> Any:
        """Return the bytes per GPU, calibrated: the sum of `components`."""
        if self.calibration:
            return self.components(config, **axes).total
        return peak_bytes(self.architecture, self.plan_for(config), **self._whole_layouts(axes))

    def _whole_layouts(self, axes: dict[str, Any]) -> dict[str, Any]:
        if axes.get("num_gpus") is not None:
            counts = np.asarray(axes["num_gpus"], dtype=np.float64)
            axes["num_gpus"] = np.ceil(counts / self.gpu_multiple) * self.gpu_multiple
        return axes

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
        """Return the bytes of unsharded weights, gradients and optimizer states per parameter.

        A mean, where only adapters are trained or weights are quantised.
        """
        whole = whole_states_bytes(self.architecture, self.plan_for(config))
        return whole / self.architecture.num_params

    def global_batch(self, config: TrainingConfig) -> int:
        """Return the sequences of one optimizer step, over all GPUs."""
        plan = self.plan_for(config)
        return plan.micro_batch * plan.dp * plan.accumulation

    def surely_fits(self, config: TrainingConfig) -> float:
        """Return the most bytes allocated that are graded `fits`."""
        share = fits_below(self.framework) * self.capacity_bytes(config)
        return float(np.nextafter(share, 0.0))

    def smallest_num_gpus(
        self, config: TrainingConfig, capacity: float | None = None, near: int | None = None
    ) -> int | None:
        """Return the fewest GPUs at which `config` fits, or None where no count does.

        `capacity` bytes, or all that the card offers; `near` is a count below which none fits.

        Memory is not monotone in the count: FSDP2 pads every parameter's first dimension to a
        multiple of it, so beyond a few thousand GPUs the gathered parameters grow again. Hence a
        grid over all counts, then every count of the gap in front of the first that fits.
        """
        capacity = self.capacity_bytes(config) if capacity is None else capacity

        def fitting(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            fits: NDArray[np.bool_] = self.total(config, num_gpus=counts) <= capacity
            return counts[fits]

        step, grid = self.gpu_multiple, self.counts
        if near is not None:  # most often the next few are enough; else a coarser grid from there
            close = near + step * np.arange(16)
            found = fitting(close[close <= grid[-1]])
            if found.size:
                return int(found[0])
            grid = np.unique([close[-1], *grid[grid > close[-1]][::4], grid[-1]])
        found = fitting(grid)
        if not found.size:
            return None
        above = grid[grid < found[0]]
        gap = np.arange(above[-1] + step if above.size else step, found[0] + 1, step)
        return int(fitting(gap)[0])

    def leanest_num_gpus(self, config: TrainingConfig) -> tuple[int, float]:
        """Return the count at which one GPU holds least, of a fine grid, and the bytes there."""
        totals = self.total(config, num_gpus=self.counts)
        best = int(np.argmin(totals))
        return int(self.counts[best]), float(totals[best])

    def largest_that_fits(
        self,
        config: TrainingConfig,
        name: Literal["seq_length", "micro_batch"],
        capacity: float | None = None,
        near: int | None = None,
    ) -> int | None:
        """Return the largest value of an input at which `config` fits, or None where none does.

        `capacity` bytes, or all that the card offers; `near` is a value above which none fits.

        Ends at what the input takes, and lengths at what the architecture can. The memory may fall
        where a chunk of the loss begins, so this is the end of the last run of fitting values that
        a grid of ever finer steps meets: it fits, and the next value does not.
        """
        capacity = self.capacity_bytes(config) if capacity is None else capacity
        most = int(FIELDS[name].bounds[1])
        if name == "seq_length":
            most = min(most, longest_length(self.architecture) or most)
        points = 64
        if near is not None:
            most, points = near, 14
        low, high = 0, most + 1  # fits (or is none), does not (or is beyond)
        grid = np.unique(np.round(np.geomspace(1, most, points)).astype(np.int64))
        while grid.size:
            fits = self.total(config, **{name: grid}) <= capacity
            if fits.any():
                last = int(np.flatnonzero(fits)[-1])
                low, rest = int(grid[last]), grid[last + 1 :]
                high = int(rest[0]) if rest.size else high
            else:
                high = int(grid[0])
            grid = np.unique(np.linspace(low, high, points + 2).astype(np.int64))
            grid = grid[(grid > low) & (grid < high)]
        return low or None

    def peak(self, config: TrainingConfig) -> Result:
        """Return the peak in detail (:func:`trainmem.transformer.peak`)."""
        return peak(self.architecture, self.plan_for(config))

    def timeline(self, config: TrainingConfig) -> Timeline:
        """Return the step over time (:func:`trainmem.transformer.timeline`)."""
        return timeline(self.architecture, self.plan_for(config))

    def levels(self, config: TrainingConfig, need: float) -> tuple[Level, Level, Level]:
        """Return allocated, reserved and card as intervals, for `need` bytes allocated."""
        plan = self.plan_for(config)
        reserved = reserved_bytes(self.architecture, plan) * self.factor
        return levels(need, plan, reserved)

    def grade(self, config: TrainingConfig, need: float) -> str:
        """Return `fits`, `uncertain` or `does not fit`, for `need` bytes allocated."""
        capacity = self.capacity_bytes(config)
        low = 0.0
        if self.surely_fits(config) < need <= capacity:  # the levels take longer than the rest
            low = self.levels(config, need)[2].low_bytes
        return grade(need, capacity / GIB, framework=self.framework, card_low_bytes=low)

    @property
    def grade_source(self) -> str:
        """Where the shares of the card come from by which a step is graded."""
        if fits_below(self.framework) == fits_below(""):
            return VERDICT_SOURCE
        remark = FRAMEWORKS[self.framework].remark
        return f"{VERDICT_SOURCE}; {fits_below(self.framework):.0%} here, for {remark}"

    def case(self, config: TrainingConfig, need: Components) -> PeakCase:
        """Return what sentences are made of: the case with the peak in detail."""
        return PeakCase(config, need, self.capacity_bytes(config), self)

    def offers(self, config: TrainingConfig, limits: Mapping[str, Limit]) -> Iterator[Offer]:
        """Yield the changes to try, gentlest first; what trains something else comes last."""
        return offers(self, config, limits)

    def detail(self, config: TrainingConfig) -> dict[str, Any]:
        """Return `plan` and `detail` as the answer's `to_dict()` adds them: plain types only."""
        plan, result = self.plan_for(config), self.peak(config)
        need = result.peak_bytes * self.factor
        extra = {"calibration": asdict(self.calibration)} if self.calibration else {}
        return {
            "plan": told(plan),
            "detail": {
                "architecture": asdict(self.architecture),
                "num_params": self.architecture.num_params,
                "gpu": self.gpu or None,
                "usable_gib": self.usable_gib,
                **{f.name: getattr(result, f.name) for f in fields(result)},
                "grade": self.grade(config, need),
                "grade_source": self.grade_source,
                "levels": [asdict(level) for level in self.levels(config, need)],
                **extra,
            },
        }


def told(plan: Plan) -> dict[str, Any]:
    """Return every option of a plan; settings of the framework only where there are some."""
    options = asdict(plan)
    settings = dict(options.pop("settings"))
    return options | ({"settings": settings} if settings else {})


#: GPU counts of the grids: 1 to a million, 300 steps.
COUNTS: NDArray[np.int64] = np.unique(
    np.round(np.geomspace(1, OPTIONS["num_gpus"].bounds[1], 300)).astype(np.int64)
)
