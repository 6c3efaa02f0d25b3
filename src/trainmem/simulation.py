"""`simulate`: one training step, its two sweeps, its limits, its verdict and what would fit.

The answer of any memory model has one type, `Simulation`, which is also the API answer.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from trainmem.config import GPUS, TrainingConfig, grouped
from trainmem.limits import MemoryModel, largest_that_fits, smallest_num_gpus
from trainmem.reduced import REDUCED, Components
from trainmem.verdict import Case, banner, sentence, why_no_count_fits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Fix", "Outputs", "Simulation", "Sweep", "simulate"]

GB: Final = 1e9
SWEEP_POINTS: Final = 48
GPU_SWEEP: Final = (1, 2048)
SEQ_SWEEP: Final = (512, 131_072)


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Sweep:
    """Memory per GPU along one input.

    Attributes
    ----------
    x : ndarray, shape (48,)
        Where the memory was computed: whole GPU counts, or unrounded sequence lengths.
    components : Components of ndarray, shape (48,)
        Bytes per GPU by kind.
    """

    x: NDArray[Any]
    components: Components

    @property
    def total_gb(self) -> NDArray[np.float64]:
        """Memory per GPU, GB, unrounded."""
        return np.asarray(self.components.total / GB)

    def pairs(self, label: Callable[[float], float]) -> list[list[float]]:
        """Return ``[label(x), GB to 3 decimals]`` pairs, as in the API answer."""
        return [
            [label(x), round(gb, 3)]
            for x, gb in zip(self.x.tolist(), self.total_gb.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Fix:
    """One change that makes a step fit.

    Attributes
    ----------
    field : str
        The input to change.
    value : int or float
        Its new value.
    label : str
        The change in a few words.
    per_gpu_total_gb : float
        Memory per GPU with it, GB to 3 decimals, computed by the model.
    """

    field: str
    value: int | float
    label: str
    per_gpu_total_gb: float


@dataclass(frozen=True)
class Outputs:
    """The 17 published outputs, in the published order; each says its unit and meaning.

    GB are 10⁹ bytes to 3 decimals.
    """

    model_states_unsharded_gb: float
    """Weights, gradients and optimizer states of the whole model, GB."""
    model_states_per_gpu_gb: float
    """The same as one GPU holds it, GB."""
    activations_per_gpu_gb: float
    """Activations alive at the peak on one GPU, GB."""
    per_gpu_total_gb: float
    """All that one GPU needs, GB."""
    gpu_capacity_gb: float
    """Memory of one GPU, GB."""
    utilization_percent: float
    """Need over capacity, percent to 1 decimal."""
    fits: bool
    """Whether the need is at most the capacity (judged before rounding)."""
    bytes_per_param: float
    """Bytes of model states per parameter."""
    weights_per_gpu_gb: float
    """Weights on one GPU, GB."""
    grads_per_gpu_gb: float
    """Gradients on one GPU, GB."""
    optimizer_per_gpu_gb: float
    """Optimizer states on one GPU, GB."""
    min_gpus_to_fit: int | None
    """Smallest GPU count that fits; None where none does (see `min_gpus_reason`)."""
    aggregate_cluster_gb: float
    """Need of all GPUs together, GB to 1 decimal."""
    global_batch: int
    """Sequences per step over all GPUs."""
    zero_stage: int
    """The request's ZeRO stage."""
    checkpointing: bool
    """Whether the request checkpoints activations."""
    verdict: str
    """What dominates, what frees memory here, and the stage, in words."""

    def outputs(self) -> dict[str, Any]:
        """Return the 17 outputs as a dict in the published order."""
        return {name: getattr(self, name) for name in OUTPUT_NAMES}


OUTPUT_NAMES: Final = tuple(f.name for f in fields(Outputs))


@dataclass(frozen=True)
class Simulation(Outputs):
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
        How long that took.
    model : MemoryModel or None
        The model, for further questions; None for an answer from elsewhere.

    Notes
    -----
    Two simulations are equal where the request, the model's description and the result are:
    who computed it and how fast doesn't matter.
    """

    config: TrainingConfig
    components: Components
    gpu_sweep: Sweep = field(repr=False, compare=False)
    seq_sweep: Sweep = field(repr=False, compare=False)
    description: str
    node: str = field(compare=False)
    compute_ms: float = field(compare=False)
    model: MemoryModel | None = field(repr=False, compare=False)

    def __repr__(self) -> str:
        """One line: the result and the request that gave it."""
        mark = "fits" if self.fits else "does not fit"
        given = ", ".join(f"{name}={value!r}" for name, value in self.config.to_dict().items())
        return f"<Simulation {self.per_gpu_total_gb} / {self.gpu_capacity_gb:g} GB {mark}: {given}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the API answer: the published keys, types and order."""
        return {
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

    @property
    def headroom_gb(self) -> float:
        """Capacity less need, GB, unrounded; negative where it does not fit."""
        return float(self._case.capacity - self.components.total) / GB

    @cached_property
    def _case(self) -> Case:
        if self.model is None:  # what checkpointing would free is for the model to say: left out
            capacity = self.gpu_capacity_gb * GB
            return Case(self.config, self.components, capacity, self.min_gpus_to_fit, 0.0)
        return _case(self._model, self.config, self.components, self.min_gpus_to_fit)

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
        return why_no_count_fits(self._case) if self.min_gpus_to_fit is None else None

    @property
    def banner(self) -> str:
        """The result in a sentence or two, to follow "Fits" or "Out of memory"."""
        return banner(self._case)

    def at(self, **changes: float) -> float:
        """Return the GB per GPU, unrounded, with some inputs changed."""
        need = self._model.components(self.config.replace(**changes))
        return float(need.total) / GB

    @cached_property
    def longest_sequence(self) -> int | None:
        """Longest sequence that fits, all else equal; None where not even one token does."""
        return largest_that_fits(self._model, self.config, "seq_length")

    @cached_property
    def largest_micro_batch(self) -> int | None:
        """Largest micro batch that fits, all else equal; None where not even one does."""
        return largest_that_fits(self._model, self.config, "micro_batch")

    def fixes(self) -> list[Fix]:
        """Return the single changes that make it fit, each checked by the model.

        Returns
        -------
        list of Fix
            Least invasive first: checkpointing, a higher ZeRO stage, more GPUs, a smaller
            micro batch, a shorter sequence, a bigger card. Empty where it fits already, or
            where no single change is enough.
        """
        if self.fits:
            return []
        config = self.config
        candidates: list[tuple[str, int | float | None, str]] = [
            ("grad_ckpt", 1, "checkpointing on")
        ]
        if config.num_gpus > 1:
            candidates += [
                ("zero_stage", stage, f"ZeRO-{stage}") for stage in range(config.zero_stage + 1, 4)
            ]
        gpus, batch, length = self.min_gpus_to_fit, self.largest_micro_batch, self.longest_sequence
        candidates.append(("num_gpus", gpus, f"{grouped(gpus or 0)} GPUs"))
        candidates.append(("micro_batch", batch, f"micro batch {grouped(batch or 0)}"))
        candidates.append(("seq_length", length, f"sequence {grouped(length or 0)}"))
        candidates += [("gpu_memory_gb", gpu.nominal_gb, gpu.label) for gpu in GPUS]
        found: dict[str, Fix] = {}
        for name, value, label in candidates:
            if value is None or name in found or value == getattr(config, name):
                continue
            changed = config.replace(**{name: value})
            total = float(self._model.components(changed).total)
            if total <= self._model.capacity_bytes(changed):
                found[name] = Fix(name, getattr(changed, name), label, round(total / GB, 3))
        return list(found.values())

    def plot(self, theme: str = "light", *, size: tuple[float, float] = (9.0, 4.2)) -> Figure:
        """Draw the three panels as a matplotlib `Figure` (see `trainmem.figure.plot`)."""
        from trainmem.figure import plot

        return plot(self, theme=theme, size=size)


def simulate(
    config: TrainingConfig | None = None, *, model: MemoryModel = REDUCED, **changes: object
) -> Simulation:
    """Simulate one training step; with no arguments, the published reference request.

    Parameters
    ----------
    config : TrainingConfig, optional
        The request; the defaults where omitted.
    model : MemoryModel, optional
        The memory model; the reduced-order one where omitted.
    **changes
        Fields that replace those of `config`.

    Returns
    -------
    Simulation

    Raises
    ------
    ConfigError
        For an unknown field or a bad value.
    TypeError
        Where `config` isn't a `TrainingConfig`.
    """
    start = time.perf_counter()
    config = resolve(config, changes)
    need = model.components(config)
    capacity = model.capacity_bytes(config)
    min_gpus = smallest_num_gpus(model, config)
    case = _case(model, config, need, min_gpus)
    gpus = sweep_points(GPU_SWEEP, config.num_gpus, whole=True)
    lengths = sweep_points(SEQ_SWEEP, config.seq_length, whole=False)
    gpu_sweep = Sweep(gpus, model.components(config, num_gpus=gpus))
    seq_sweep = Sweep(lengths, model.components(config, seq_length=lengths))
    params = config.model_params_b * GB
    per_param = model.bytes_per_param(config)
    return Simulation(
        model_states_unsharded_gb=round(params * per_param / GB, 3),
        model_states_per_gpu_gb=round(need.states / GB, 3),
        activations_per_gpu_gb=round(need.activations / GB, 3),
        per_gpu_total_gb=round(need.total / GB, 3),
        gpu_capacity_gb=round(capacity / GB, 3),
        utilization_percent=round(100 * need.total / capacity, 1),
        fits=case.fits,
        bytes_per_param=per_param,
        weights_per_gpu_gb=round(need.weights / GB, 3),
        grads_per_gpu_gb=round(need.gradients / GB, 3),
        optimizer_per_gpu_gb=round(need.optimizer / GB, 3),
        min_gpus_to_fit=min_gpus,
        aggregate_cluster_gb=round(need.total * config.num_gpus / GB, 1),
        global_batch=config.micro_batch * config.num_gpus,
        zero_stage=config.zero_stage,
        checkpointing=bool(config.grad_ckpt),
        verdict=sentence(case),
        config=config,
        components=need,
        gpu_sweep=gpu_sweep,
        seq_sweep=seq_sweep,
        description=model.description,
        node=_node(),
        compute_ms=round((time.perf_counter() - start) * 1e3, 3),
        model=model,
    )


def resolve(config: TrainingConfig | None, changes: Mapping[str, object]) -> TrainingConfig:
    """Return `config`, or the defaults, with `changes`; raises as `simulate` does."""
    if config is None:
        return TrainingConfig.from_mapping(changes)
    if not isinstance(config, TrainingConfig):
        raise TypeError(
            f"config must be a TrainingConfig, not {type(config).__name__}; "
            "pass a dict as simulate(**values)"
        )
    return config.replace(**changes) if changes else config


@lru_cache(maxsize=256)
def sweep_points(ends: tuple[int, int], value: int, *, whole: bool) -> NDArray[Any]:
    """Return 48 geometrically spaced points between `ends`, which make room for `value`.

    The end that `value` lies beyond moves to the next power of two. Whole points are rounded;
    duplicates stay.
    """
    low, high = ends
    low = min(low, 2 ** math.floor(math.log2(value)))
    high = max(high, 2 ** math.ceil(math.log2(value)))
    points = np.geomspace(low, high, SWEEP_POINTS)
    if whole:
        points = np.round(points).astype(np.int64)
    points.flags.writeable = False  # shared by every caller
    return points


def _case(
    model: MemoryModel, config: TrainingConfig, need: Components, min_gpus: int | None
) -> Case:
    frees = 0.0
    if not config.grad_ckpt:
        checkpointed = model.components(config.replace(grad_ckpt=1)).total
        frees = max(0.0, float(need.total - checkpointed))
    return Case(config, need, model.capacity_bytes(config), min_gpus, frees)


@lru_cache(maxsize=1)
def _node() -> str:
    return platform.node() or "localhost"
