"""The answer of any memory model: `Simulation`, which is also the API answer."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from trainmem.config import TrainingConfig
from trainmem.fixes import Fix, Offer, best
from trainmem.limits import Limit, Limited, graded, limit
from trainmem.memory_model import MemoryModel
from trainmem.outputs import GB, Outputs
from trainmem.reduced import Components
from trainmem.sweeps import Sweep, Sweeps, gpu_sweep, seq_sweep
from trainmem.verdict import Case, ComponentsCase, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainmem.transformer import Architecture, Calibration, Plan
    from trainmem.transformer.peak_case import PeakCase

__all__ = ["GB", "Simulation"]

LATER: Final[Any] = object()
"""Stands for an output that is computed when it is read."""


@dataclass(frozen=True)
class Simulation(Outputs, Sweeps):
    """The answer to one request: the 17 outputs, the sweeps, and what would make it fit.

    Attributes
    ----------
    config : TrainingConfig
        The request.
    components : Components
        Bytes per GPU by kind, unrounded.
    gpu_sweep, seq_sweep : Sweep
        Memory against GPU count and against sequence length, 48 points each.
    description : str
        The memory model in one line.
    node : str
        Who computed it.
    compute_ms : float
        How long `simulate` took.
    model : MemoryModel or None
        The model, for further questions; None for an answer from elsewhere.

    Notes
    -----
    Two simulations are equal where the request, the model's description and the result are:
    who computed it and how fast doesn't matter.

    What explains the result is computed when it is read: the sweeps, the fewest GPUs, the verdict,
    the limits, the peak in detail.
    """

    config: TrainingConfig
    components: Components
    description: str
    node: str = field(compare=False)
    compute_ms: float = field(compare=False)
    model: MemoryModel | None = field(repr=False, compare=False)

    @classmethod
    def of(
        cls, model: MemoryModel, config: TrainingConfig, *, start: float | None = None
    ) -> Simulation:
        """Return the answer of a model to a request.

        Parameters
        ----------
        model : MemoryModel
            The memory model.
        config : TrainingConfig
            The request.
        start : float, optional
            When the work on it began, by `time.perf_counter`; now where omitted.

        Raises
        ------
        ValueError
            For a combination that the model doesn't cover.
        """
        start = time.perf_counter() if start is None else start
        need, capacity = model.components(config), model.capacity_bytes(config)
        states, total, per_param = need.states, need.total, model.bytes_per_param(config)
        return cls(
            model_states_unsharded_gb=round(config.model_params_b * GB * per_param / GB, 3),
            model_states_per_gpu_gb=round(states / GB, 3),
            activations_per_gpu_gb=round(need.activations / GB, 3),
            per_gpu_total_gb=round(total / GB, 3),
            gpu_capacity_gb=round(capacity / GB, 3),
            utilization_percent=round(100 * total / capacity, 1),
            fits=bool(total <= capacity),
            bytes_per_param=per_param,
            weights_per_gpu_gb=round(need.weights / GB, 3),
            grads_per_gpu_gb=round(need.gradients / GB, 3),
            optimizer_per_gpu_gb=round(need.optimizer / GB, 3),
            min_gpus_to_fit=LATER,
            aggregate_cluster_gb=round(total * config.num_gpus / GB, 1),
            global_batch=model.global_batch(config),
            zero_stage=config.zero_stage,
            checkpointing=bool(config.grad_ckpt),
            verdict=LATER,
            config=config,
            components=need,
            gpu_sweep=LATER,
            seq_sweep=LATER,
            description=model.description,
            node=_node(),
            compute_ms=round((time.perf_counter() - start) * 1e3, 3),
            model=model,
        )

    def __post_init__(self) -> None:
        """Take out what is computed when it is read; what was given stays as it is."""
        for name in ("min_gpus_to_fit", "verdict", "gpu_sweep", "seq_sweep"):
            if self.__dict__[name] is LATER:
                del self.__dict__[name]

    @cached_property  # type: ignore[misc]  # a field, given late
    def min_gpus_to_fit(self) -> int | None:
        """Smallest GPU count that fits; None where none does (see `min_gpus_reason`)."""
        return self._case.min_gpus

    @cached_property  # type: ignore[misc]  # a field, given late
    def verdict(self) -> str:
        """What dominates, what frees memory here, and the stage, in words."""
        return self._case.sentence()

    @cached_property  # type: ignore[misc]  # a field, given late
    def gpu_sweep(self) -> Sweep:
        """Memory against GPU counts."""
        return gpu_sweep(self._model, self.config)

    @cached_property  # type: ignore[misc]  # a field, given late
    def seq_sweep(self) -> Sweep:
        """Memory against sequence lengths."""
        return seq_sweep(self._model, self.config)

    def __repr__(self) -> str:
        """One line: the result and the request that gave it."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.config.to_dict().items())
        result = f"{self.per_gpu_total_gb} / {self.gpu_capacity_gb:g} GB {self.grade}"
        return f"<Simulation {result}: {given}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the API answer: the published keys, types and order.

        With an architecture two keys follow: `plan` (every option in force) and `detail` (the
        architecture, the peak, the grade, and the intervals from allocated to the card).
        """
        answer = {
            "model": self.description,
            "inputs": self.config.to_dict(),
            "outputs": self.outputs(),
            "profile": {
                "mem_vs_gpus": self.gpu_sweep.pairs(int),
                "mem_vs_seq": self.seq_sweep.pairs(lambda x: float(round(x))),
                "model_state_gb": self.model_states_per_gpu_gb,
                "activation_gb": self.activations_per_gpu_gb,
                "capacity_gb": self.gpu_capacity_gb,
                "per_gpu_gb": self.per_gpu_total_gb,
                "num_gpus": self.config.num_gpus,
                "seq_length": self.config.seq_length,
                "fits": self.fits,
            },
            "steps": len(self.gpu_sweep.x) + len(self.seq_sweep.x),
            "node": self.node,
            "compute_ms": self.compute_ms,
        }
        return answer | self.model.detail(self.config) if self.model else answer

    @property
    def headroom_gb(self) -> float:
        """Capacity less need, GB, unrounded; negative where it does not fit."""
        return float(self._case.capacity - self.components.total) / GB

    @cached_property
    def _case(self) -> Case:
        if self.model is None:
            capacity, fewest = self.gpu_capacity_gb * GB, self.min_gpus_to_fit
            return ComponentsCase(self.config, self.components, capacity, None, fewest)
        return self.model.case(self.config, self.components)

    @property
    def _model(self) -> MemoryModel:
        if self.model is None:
            raise ValueError(
                f"the answer of {self.node} has no model to ask further; "
                "use trainmem.simulate(simulation.config)"
            )
        return self.model

    @property
    def min_gpus_reason(self) -> str | None:
        """Why no GPU count fits; None where one does."""
        return self._case.why_no_count_fits() if self.min_gpus_to_fit is None else None

    @property
    def banner(self) -> str:
        """The result in a sentence or two, to follow "Fits" or "Out of memory"."""
        return self._case.banner()

    @property
    def peak_case(self) -> PeakCase | None:
        """The peak in detail, its levels and its grade with an architecture; else None."""
        return self._case.in_detail

    @property
    def grade(self) -> str:
        """`fits`, `uncertain` or `does not fit`: three grades with an architecture, else two.

        With an architecture, `uncertain` is a need of 80 to 100 % of the card: what the allocator
        reserves and CUDA's own memory come on top of what the model counts.
        """
        if self.model is None:
            return "fits" if self.fits else "does not fit"
        return self._case.grade

    @property
    def architecture(self) -> Architecture | None:
        """The architecture; None under the reduced-order model."""
        return self.model.architecture if self.model else None

    @property
    def plan(self) -> Plan | None:
        """How the step is run, every option; None under the reduced-order model."""
        return self.model.plan_for(self.config) if self.model else None

    @property
    def options(self) -> Mapping[str, Any]:
        """What of the plan the ten inputs do not say, where it differs from the defaults."""
        return self.model.options if self.model else {}

    def at(self, **changes: float) -> float:
        """Return the GB per GPU, unrounded, with some inputs changed."""
        return float(self._model.total(self.config.replace(**changes))) / GB

    def limit(self, field: Limited) -> Limit:
        """Return the limit of an input, and how surely it fits there.

        Parameters
        ----------
        field : {"num_gpus", "seq_length", "micro_batch"}
            The input that varies, all else equal.

        Returns
        -------
        Limit
            By need against capacity, as `min_gpus_to_fit`; with an architecture the grade at that
            value, and beside it the value that ends in `fits`.
        """
        if field not in self._limits:
            if field == "num_gpus":
                found = graded(self._model, self.config, field, self.min_gpus_to_fit)
            else:
                found = limit(self._model, self.config, field)
            self._limits[field] = found
        return self._limits[field]

    @cached_property
    def _limits(self) -> dict[str, Limit]:
        return {}

    @cached_property
    def longest_sequence(self) -> int | None:
        """Longest sequence that fits, all else equal; None where not even one token does."""
        return self.limit("seq_length").value

    @cached_property
    def largest_micro_batch(self) -> int | None:
        """Largest micro batch that fits, all else equal; None where not even one does."""
        return self.limit("micro_batch").value

    @property
    def longest_sequence_reason(self) -> str | None:
        """Why no length fits, or what but memory ends the longest; None where memory does."""
        if self.longest_sequence is not None:
            return self._case.why_no_longer(self.longest_sequence)
        return f"even one token needs {write_bytes(self.at(seq_length=1) * GB)}"

    @property
    def largest_micro_batch_reason(self) -> str | None:
        """Why no micro batch fits; None where one does."""
        if self.largest_micro_batch is not None:
            return None
        return f"even one sequence needs {write_bytes(self.at(micro_batch=1) * GB)}"

    def fixes(self) -> list[Fix]:
        """Return the single changes that make it fit, each tried, with the grade it ends in.

        Returns
        -------
        list of Fix
            Least invasive first: checkpointing, a higher ZeRO stage, more GPUs, a smaller
            micro batch, a shorter sequence, a bigger card. With an architecture also a leaner
            loss head, flash attention, embedding and head apart, 8-bit AdamW, offload, ZeRO-3 over
            more GPUs, LoRA; what ends in `fits` before what ends in `uncertain`, and for an
            uncertain step what ends in `fits`. Empty where it fits already, or where no single
            change is enough.
        """
        if self.grade == "fits":
            return []
        limits = {
            "num_gpus": self.limit("num_gpus"),
            "micro_batch": self.limit("micro_batch"),
            "seq_length": self.limit("seq_length"),
        }
        found = best(self._model.offers(self.config, limits), self._tried)
        return [fix for fix in found if fix.grade == "fits" or self.grade == "does not fit"]

    def _tried(self, offer: Offer) -> Fix:
        """Return what an offer ends in, by the model."""
        model, config = self._model.changed(self.config, offer.changes)
        total = float(model.total(config))
        value = getattr(config, offer.field, offer.value)  # in the field's own type
        grade = model.grade(config, total)
        return Fix(offer.field, value, offer.label, round(total / GB, 3), grade, offer.also)

    def after(self, fix: Fix) -> Simulation:
        """Return the simulation with a fix made."""
        return Simulation.of(*self._model.changed(self.config, fix.changes))

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, predicted against measured by level; None without."""
        return self.model.calibration if self.model else None

    def calibrate(
        self,
        *,
        peak_allocated_gib: float | None = None,
        peak_reserved_gib: float | None = None,
        memory_stats: Mapping[str, Any] | None = None,
    ) -> Simulation:
        """Return the simulation as measured: its factor scales the answer and both sweeps.

        Parameters
        ----------
        peak_allocated_gib, peak_reserved_gib : float, optional
            What `torch.cuda.max_memory_allocated()` and `max_memory_reserved()` gave for this
            very step, over 2³⁰.
        memory_stats : mapping, optional
            Instead, what `torch.cuda.memory_stats()` returned.

        Returns
        -------
        Simulation
            Marked in its description; `calibration` compares level by level.

        Raises
        ------
        ValueError
            Under the reduced-order model; for nothing, something twice, or no positive number;
            where the measurement is too far off to be of the same step.
        """
        if self.peak_case is None:
            raise ValueError("calibrate needs an architecture: simulate(architecture=…)")
        measured = self.peak_case.model.calibrated(
            self.config,
            peak_allocated_gib=peak_allocated_gib,
            peak_reserved_gib=peak_reserved_gib,
            memory_stats=memory_stats,
        )
        return Simulation.of(measured, self.config)

    def plot(self, theme: str = "light", *, size: tuple[float, float] = (9.0, 4.2)) -> Figure:
        """Draw the three panels as a matplotlib `Figure` (see `trainmem.picture.figure.plot`)."""
        import trainmem  # which opens the door up to the picture

        return trainmem.plot(self, theme=theme, size=size)

    def timeline(self, theme: str = "light", *, size: tuple[float, float] = (11.0, 4.2)) -> Figure:
        """Draw the memory of one step over time (see `trainmem.picture.figure.plot_timeline`).

        Raises
        ------
        ValueError
            Under the reduced-order model, which knows the peak but not the step.
        """
        import trainmem

        return trainmem.plot_timeline(self, theme=theme, size=size)


@lru_cache(maxsize=1)
def _node() -> str:
    return platform.node() or "localhost"
