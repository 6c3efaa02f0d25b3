"""`simulate`: one training step, its two sweeps, its limits, its verdict and what would fit.

The answer of any memory model has one type, `Simulation`, which is also the API answer.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard, Unpack

import numpy as np
from numpy.typing import NDArray

from trainmem.cards import GPUS
from trainmem.config import ConfigError, Inputs, TrainingConfig, check_names, takes
from trainmem.fixes import Fix, Offer, best, offers
from trainmem.limits import Limit, Limited, MemoryModel, grade_of, graded, limit, smallest_num_gpus
from trainmem.reduced import REDUCED, Components
from trainmem.verdict import Case, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainmem.moment import Moment
    from trainmem.transformer import Architecture, Calibration, Plan, TransformerModel

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
class Outputs:
    """The 17 published outputs, in the published order; each says its unit and meaning.

    GB are 10⁹ bytes to 3 decimals.
    """

    model_states_unsharded_gb: float
    """Weights, gradients and optimizer states of the whole model, each once, GB."""
    model_states_per_gpu_gb: float
    """The same as one GPU holds it, GB; with an architecture what is alive of it at the peak, with
    the copies made of it then."""
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
        if _is_detailed(self.model):
            answer |= self.model.detail(self.config)
        return answer

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
        return self._case.why_no_count_fits() if self.min_gpus_to_fit is None else None

    @property
    def banner(self) -> str:
        """The result in a sentence or two, to follow "Fits" or "Out of memory"."""
        return self._case.banner()

    @property
    def moment(self) -> Moment | None:
        """The peak in detail and its grade, where an architecture was chosen; else None."""
        # Moment or Case: asked of the model, which costs no import.
        return self._case if _is_detailed(self.model) else None  # type: ignore[return-value]

    @property
    def grade(self) -> str:
        """`fits`, `uncertain` or `does not fit`: three grades with an architecture, else two.

        With an architecture, `uncertain` is a need of 80 to 100 % of the card: what the allocator
        reserves and CUDA's own memory come on top of what the model counts.
        """
        moment = self.moment
        if moment is not None:
            return moment.grade
        return "fits" if self.fits else "does not fit"

    @property
    def architecture(self) -> Architecture | None:
        """The architecture; None under the reduced-order model."""
        return getattr(self.model, "architecture", None)

    @property
    def plan(self) -> Plan | None:
        """How the step is run, every option; None under the reduced-order model."""
        if not _is_detailed(self.model):
            return None
        from trainmem.transformer import plan_of

        return plan_of(self.config, self.model.plan)

    def at(self, **changes: float) -> float:
        """Return the GB per GPU, unrounded, with some inputs changed."""
        need = self._model.components(self.config.replace(**changes))
        return float(need.total) / GB

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
            return self._case.why_no_longer() if self._ends_at_the_architecture else None
        return f"even one token needs {write_bytes(self.at(seq_length=1) * GB)}"

    @property
    def largest_micro_batch_reason(self) -> str | None:
        """Why no micro batch fits; None where one does."""
        if self.largest_micro_batch is not None:
            return None
        return f"even one sequence needs {write_bytes(self.at(micro_batch=1) * GB)}"

    @property
    def _ends_at_the_architecture(self) -> bool:
        if self.architecture is None:
            return False
        from trainmem.transformer.layout import longest_length

        return self.longest_sequence == longest_length(self.architecture)

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
        moment, config = self.moment, self.config
        limits = {
            "num_gpus": self.limit("num_gpus"),
            "micro_batch": self.limit("micro_batch"),
            "seq_length": self.limit("seq_length"),
        }
        if moment is None:
            tries = offers(config, limits)
            return best((o for o in tries if o.value != getattr(config, o.field)), self._tried)
        found = best(moment.offers(limits), self._tried)
        return [fix for fix in found if fix.grade == "fits" or self.grade == "does not fit"]

    def _tried(self, offer: Offer) -> Fix:
        """Return what an offer ends in, by the model."""
        model, config = self._with(offer.changes)
        total = float(model.components(config).total)
        value = getattr(config, offer.field, offer.value)  # in the field's own type
        grade = grade_of(model, config, total)
        return Fix(offer.field, value, offer.label, round(total / GB, 3), grade, offer.also)

    def _with(self, changes: Mapping[str, Any]) -> tuple[MemoryModel, TrainingConfig]:
        """Return the model and the config with some changes."""
        moment, inputs = self.moment, dict(changes)
        if moment is not None:
            return moment.changed(inputs)
        if "gpu" in inputs:
            label = inputs.pop("gpu")
            inputs["gpu_memory_gb"] = next(gpu.nominal_gb for gpu in GPUS if gpu.label == label)
        return self._model, self.config.replace(**inputs)

    def after(self, fix: Fix) -> Simulation:
        """Return the simulation with a fix made."""
        model, config = self._with(fix.changes)
        return simulate(config, model=model)

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, predicted against measured by level; None without."""
        return getattr(self.model, "calibration", None)

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
        if self.moment is None:
            raise ValueError("calibrate needs an architecture: simulate(architecture=…)")
        from trainmem.transformer import calibrate

        model = replace(self.moment.model, calibration=None)
        found = calibrate(
            model.levels(self.config, self.moment.peak.peak_bytes),
            peak_allocated_gib=peak_allocated_gib,
            peak_reserved_gib=peak_reserved_gib,
            memory_stats=memory_stats,
        )
        return simulate(self.config, model=replace(model, calibration=found))

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


KEYWORDS: Final = ("config", "model", "architecture", "plan", "gpu")
"""What `simulate` takes beside the ten inputs."""


@takes(Inputs)
def simulate(
    config: TrainingConfig | None = None,
    *,
    model: MemoryModel = REDUCED,
    architecture: Architecture | str | None = None,
    plan: Plan | Mapping[str, Any] | None = None,
    gpu: str | None = None,
    **changes: Unpack[Inputs],
) -> Simulation:
    """Simulate one training step; with no arguments, the published reference request.

    Parameters
    ----------
    config : TrainingConfig, optional
        The request; the defaults where omitted.
    model : MemoryModel, optional
        The memory model; the reduced-order one where omitted.
    architecture : Architecture or str, optional
        Answer with the architecture-aware model instead, for this architecture or the preset of
        that name (`trainmem.ARCHITECTURES`). It gives `model_params_b`, `num_layers` and
        `hidden_dim`: those of `config` are replaced.
    plan : Plan or dict, optional
        How the step is run, with an architecture: the options that differ from the defaults
        (`trainmem.OPTIONS`), or a whole `Plan`, whose GPUs, batch, length, sharding, precision
        and checkpointing count where no `config` is given.
    gpu : str, optional
        A card, by its label in `trainmem.GPUS` such as ``"H100 · 80 GB"``: its nominal memory, or
        with an architecture the memory that `torch.cuda` reports (84.9 × 10⁹ bytes). Where none
        is named, with an architecture a preset's config (none: the first) has the preset's card,
        and any other `gpu_memory_gb` counts as it is.
    **changes
        Fields that replace those of `config`.

    Returns
    -------
    Simulation

    Raises
    ------
    ConfigError
        For an unknown name or a bad value, a field that contradicts the architecture, the plan or
        the card, or a combination that the architecture-aware model doesn't cover.
    TypeError
        Where `config` isn't a `TrainingConfig`, or where both a model and an architecture are
        given.
    """
    start = time.perf_counter()
    check_names(changes, KEYWORDS)
    if architecture is not None or plan is not None or gpu is not None:
        if model is not REDUCED:
            raise TypeError("give a model, or an architecture with plan and card, but not both")
        config, model = _chosen(config, changes, architecture, plan, gpu)
    else:
        config = resolve(config, changes)
    need = model.components(config)
    capacity = model.capacity_bytes(config)
    min_gpus = smallest_num_gpus(model, config)
    case = _case(model, config, need, min_gpus)
    gpus = sweep_points(GPU_SWEEP, config.num_gpus, whole=True)
    step = getattr(model, "gpu_multiple", 1)  # a parallel layout stays, and dp varies
    if step > 1:
        gpus = step * np.ceil(gpus / step).astype(np.int64)
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
        global_batch=_global_batch(model, config),
        zero_stage=config.zero_stage,
        checkpointing=bool(config.grad_ckpt),
        verdict=case.sentence(),
        config=config,
        components=need,
        gpu_sweep=gpu_sweep,
        seq_sweep=seq_sweep,
        description=model.description,
        node=_node(),
        compute_ms=round((time.perf_counter() - start) * 1e3, 3),
        model=model,
    )


def _chosen(
    config: TrainingConfig | None,
    changes: Mapping[str, object],
    architecture: Architecture | str | None,
    plan: Plan | Mapping[str, Any] | None,
    gpu: str | None,
) -> tuple[TrainingConfig, MemoryModel]:
    """Return the config and the model that an architecture, a plan and a card ask for."""
    from trainmem import request

    if config is not None and not isinstance(config, TrainingConfig):
        resolve(config, changes)  # says what is wrong with it
    if architecture is not None:
        return request.resolve(config, changes, architecture, plan, gpu)
    if plan is not None:
        raise ConfigError("plan", plan, "it needs an architecture")
    return resolve(config, request.with_memory(changes, request.find_gpu(gpu))), REDUCED


def _is_detailed(model: MemoryModel | None) -> TypeGuard[TransformerModel]:
    """Whether the model knows an architecture."""
    return hasattr(model, "architecture")


def _global_batch(model: MemoryModel, config: TrainingConfig) -> int:
    """Return the sequences of one step: a plan may accumulate several micro batches."""
    if _is_detailed(model):
        return model.global_batch(config)
    return config.micro_batch * config.num_gpus


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
    if _is_detailed(model):
        from trainmem.moment import Moment

        return Moment.of(model, config, need, min_gpus)
    frees = 0.0
    if not config.grad_ckpt:
        checkpointed = model.components(config.replace(grad_ckpt=1)).total
        frees = max(0.0, float(need.total - checkpointed))
    return Case(config, need, model.capacity_bytes(config), min_gpus, frees)


@lru_cache(maxsize=1)
def _node() -> str:
    return platform.node() or "localhost"
