"""What a memory model is: four answers that it has to give, and what follows from them.

Whoever asks a model (limits, sweeps, sentences, fixes, pictures) asks for what stands here and
nothing else. Inherit `MemoryModel`, give the four, and override what your model knows better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainmem.cards import find_gpu
from trainmem.config import FIELDS, TrainingConfig
from trainmem.fixes import Offer, offers
from trainmem.limits import Limit, fewest, largest
from trainmem.verdict import Case, ComponentsCase

if TYPE_CHECKING:
    from trainmem.reduced import Components
    from trainmem.transformer import Architecture, Calibration, Plan

__all__ = ["MemoryModel", "SimpleModel", "completed"]


class MemoryModel(ABC):
    """What answers `trainmem.simulate`: the base class of every memory model.

    `description`, `components`, `capacity_bytes` and `bytes_per_param` have no default. The rest
    follows from them for a model whose memory never grows with the GPUs and never falls as the
    sequence or the micro batch grow, and that has two grades.

    Attributes
    ----------
    architecture : Architecture or None
        What is trained, where the model knows it.
    gpu : str
        Label of the card, where one was named; else "".
    usable_gib : float or None
        The memory that `torch.cuda` reports for that card, where it is what counts.
    calibration : Calibration or None
        The measurement that the answers follow; None without.
    """

    architecture: Architecture | None = None
    gpu: str = ""
    usable_gib: float | None = None
    calibration: Calibration | None = None

    # -- what every model says ------------------------------------------------------------------

    @property
    @abstractmethod
    def description(self) -> str:
        """One line that names the model; `model` in the API answer."""

    @abstractmethod
    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind.

        Keywords ``num_gpus``, ``seq_length`` or ``micro_batch`` replace the config's value by
        a number or an array, over which the result broadcasts.
        """

    def total(self, config: TrainingConfig, **axes: Any) -> Any:
        """Return the bytes per GPU, of all kinds; `axes` as for `components`."""
        return self.components(config, **axes).total

    @abstractmethod
    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return the bytes that one GPU offers."""

    @abstractmethod
    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of unsharded model states per parameter."""

    # -- how the step is run --------------------------------------------------------------------

    @property
    def options(self) -> Mapping[str, Any]:
        """What of a plan the ten inputs do not say, where it differs from the defaults."""
        return MappingProxyType({})

    def plan_for(self, config: TrainingConfig) -> Plan | None:
        """Return how the step is run, every option; None where the model knows no plan."""
        return None

    def global_batch(self, config: TrainingConfig) -> int:
        """Return the sequences of one optimizer step, over all GPUs."""
        return config.micro_batch * config.num_gpus

    @property
    def gpu_multiple(self) -> int:
        """What numbers of GPUs are multiples of, 1 or what a parallel layout takes."""
        return 1

    # -- grades ---------------------------------------------------------------------------------

    def grade(self, config: TrainingConfig, need: float) -> str:
        """Return the grade of a need in bytes: `fits`, `uncertain` or `does not fit`."""
        return "fits" if need <= self.capacity_bytes(config) else "does not fit"

    def surely_fits(self, config: TrainingConfig) -> float:
        """Return the most bytes that are graded `fits`."""
        return self.capacity_bytes(config)

    # -- limits ---------------------------------------------------------------------------------

    def total_by_gpus(self, config: TrainingConfig) -> Callable[[int], float]:
        """Return the total bytes per GPU as a function of the GPU count."""
        return lambda count: float(self.components(config, num_gpus=count).total)

    def smallest_num_gpus(
        self, config: TrainingConfig, capacity: float | None = None, near: int | None = None
    ) -> int | None:
        """Return the fewest GPUs at which `config` fits, or None where no count does.

        Parameters
        ----------
        config
            The request, whose own count isn't read.
        capacity
            Bytes that one GPU offers; all of `capacity_bytes` where omitted.
        near
            A count below which none fits, where one is known.
        """
        capacity = self.capacity_bytes(config) if capacity is None else capacity
        return fewest(self.total_by_gpus(config), capacity, near or 1)

    def largest_that_fits(
        self,
        config: TrainingConfig,
        name: Literal["seq_length", "micro_batch"],
        capacity: float | None = None,
        near: int | None = None,
    ) -> int | None:
        """Return the largest value of an input at which `config` fits, or None where none does.

        Values end at the input's upper bound.

        Parameters
        ----------
        config
            The request, whose own value isn't read.
        name
            The input.
        capacity
            Bytes that one GPU offers; all of `capacity_bytes` where omitted.
        near
            A value above which none fits, where one is known.
        """
        capacity = self.capacity_bytes(config) if capacity is None else capacity

        def total(value: int) -> float:
            return float(self.components(config, **{name: value}).total)

        return largest(total, capacity, near or int(FIELDS[name].bounds[1]))

    # -- what is said and offered ---------------------------------------------------------------

    def case(self, config: TrainingConfig, need: Components) -> Case:
        """Return what sentences are made of, for a request that takes `need`."""
        return ComponentsCase(config, need, self.capacity_bytes(config), self)

    def detail(self, config: TrainingConfig) -> dict[str, Any]:
        """Return what `Simulation.to_dict()` adds to the published keys: plain types only."""
        return {}

    def offers(self, config: TrainingConfig, limits: Mapping[str, Limit]) -> Iterator[Offer]:
        """Yield the changes to try where a step doesn't fit, gentlest first."""
        return offers(config, limits)

    def changed(
        self, config: TrainingConfig, changes: Mapping[str, Any]
    ) -> tuple[MemoryModel, TrainingConfig]:
        """Return the model and a config with the changes of an offer, which may name a card."""
        inputs = dict(changes)
        if "gpu" in inputs:
            inputs["gpu_memory_gb"] = find_gpu(inputs.pop("gpu")).nominal_gb
        return self, config.replace(**inputs)


class SimpleModel(Protocol):
    """The four answers alone, by any class that has them; see `MemoryModel`."""

    @property
    def description(self) -> str:
        """One line that names the model."""

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        """Return bytes per GPU by kind."""

    def capacity_bytes(self, config: TrainingConfig) -> float:
        """Return the bytes that one GPU offers."""

    def bytes_per_param(self, config: TrainingConfig) -> float:
        """Return the bytes of unsharded model states per parameter."""


class _Completed(MemoryModel):
    """A model that has the four answers alone, with the rest."""

    def __init__(self, given: SimpleModel) -> None:
        self.given = given

    @property
    def description(self) -> str:
        return self.given.description

    def components(self, config: TrainingConfig, **axes: Any) -> Components:
        return self.given.components(config, **axes)

    def capacity_bytes(self, config: TrainingConfig) -> float:
        return self.given.capacity_bytes(config)

    def bytes_per_param(self, config: TrainingConfig) -> float:
        return self.given.bytes_per_param(config)


def completed(model: MemoryModel | SimpleModel) -> MemoryModel:
    """Return a whole memory model: the one given, or one that asks it its four answers."""
    return model if isinstance(model, MemoryModel) else _Completed(model)
