"""The sentences: what dominates, what frees memory, and why no GPU count fits.

Each says only what is true for the case at hand. The published grammar is
``what dominates -- why and what frees memory here; the stage in words``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trainmem.config import FIELDS, TrainingConfig
from trainmem.words import grouped

if TYPE_CHECKING:
    from trainmem.memory_model import MemoryModel
    from trainmem.reduced import Components
    from trainmem.transformer.peak_case import PeakCase

__all__ = ["Case", "ComponentsCase", "write_bytes"]

STAGE_WORDS = (
    "ZeRO-0 / DDP (nothing sharded)",
    "ZeRO-1 (optimizer states sharded)",
    "ZeRO-2 (optimizer states and gradients sharded)",
    "ZeRO-3 / FSDP (fully sharded)",
)
PUBLISHED = (  # to the letter, for a state-dominated request that fits at stage 3
    "sharding across more GPUs (higher ZeRO/FSDP stage) is what frees memory here, "
    "not checkpointing"
)
WHOLE = ("", "weights and gradients", "weights", "")  # what stages 1 and 2 leave unsharded
MOST_GPUS = int(FIELDS["num_gpus"].bounds[1])
NEEDS_LITTLE = 0.2  # part of the capacity below which a banner advises nothing
WORTH_NAMING = 0.1  # part of the need that more GPUs must be able to divide to be named


@dataclass(frozen=True)
class Case(ABC):
    """All that a sentence may speak of; what takes long is computed when a sentence needs it.

    Attributes
    ----------
    config : TrainingConfig
        The request.
    need : Components
        Bytes per GPU by kind.
    capacity : float
        Bytes that one GPU offers.
    """

    config: TrainingConfig
    need: Components
    capacity: float

    @property
    @abstractmethod
    def min_gpus(self) -> int | None:
        """Smallest count that fits."""

    @property
    @abstractmethod
    def grade(self) -> str:
        """The grade of the need."""

    @abstractmethod
    def sentence(self) -> str:
        """Return the `verdict` of the API answer."""

    @abstractmethod
    def banner(self) -> str:
        """Return the widget's sentence, to follow the headline of the grade."""

    @abstractmethod
    def why_no_count_fits(self) -> str:
        """Return the reason, where `min_gpus` is None."""

    def why_no_longer(self, length: int) -> str | None:
        """Return what ends the longest sequence, `length`, where it isn't memory."""
        return None

    @property
    def in_detail(self) -> PeakCase | None:
        """The peak in detail, where the model knows it."""
        return None

    @property
    def fits(self) -> bool:
        """Whether the need is at most the capacity."""
        return bool(self.need.total <= self.capacity)

    @property
    def needs_little(self) -> bool:
        """Whether so much is free that no advice is wanted."""
        return bool(self.need.total < NEEDS_LITTLE * self.capacity)


@dataclass(frozen=True)
class ComponentsCase(Case):
    """The case of a model that knows bytes by kind and no more.

    Attributes
    ----------
    model : MemoryModel or None
        The model, to ask further; None for an answer from elsewhere, which leaves out what only
        the model can say: what checkpointing would free.
    told : int or None
        Such an answer's smallest count that fits.
    """

    model: MemoryModel | None
    told: int | None = None

    @cached_property
    def min_gpus(self) -> int | None:
        """Smallest count that fits."""
        return self.model.smallest_num_gpus(self.config) if self.model else self.told

    @cached_property
    def grade(self) -> str:
        """The model's grade of the need; without one, by the capacity."""
        if self.model is None:
            return "fits" if self.fits else "does not fit"
        return self.model.grade(self.config, float(self.need.total))

    @cached_property
    def checkpointing_frees(self) -> float:
        """Bytes that turning checkpointing on would free; 0 where it is on."""
        if self.model is None or self.config.grad_ckpt:
            return 0.0
        checkpointed = self.model.components(self.config.replace(grad_ckpt=1))
        return max(0.0, float(self.need.total - checkpointed.total))

    def sentence(self) -> str:
        """Return the `verdict` of the API answer."""
        return sentence(self)

    def banner(self) -> str:
        """Return the widget's sentence."""
        return banner(self)

    def why_no_count_fits(self) -> str:
        """Return the reason, where `min_gpus` is None."""
        return why_no_count_fits(self)

    @property
    def states_dominate(self) -> bool:
        """Model states are at least the activations."""
        return bool(self.need.states >= self.need.activations)

    @property
    def sharded_share(self) -> float:
        """Part of the need that the GPUs share, 0 to 1."""
        parts = (self.need.optimizer, self.need.gradients, self.need.weights)
        return float(sum(parts[: self.config.zero_stage]) / self.need.total)

    @property
    def more_gpus_free(self) -> bool:
        """Whether more GPUs would divide a part of the need that is worth naming."""
        return self.config.num_gpus < MOST_GPUS and self.sharded_share >= WORTH_NAMING


def sentence(case: ComponentsCase) -> str:
    """Return the `verdict` of the API answer."""
    label = "model-state-dominated" if case.states_dominate else "activation-dominated"
    why = f"{_largest(case)} dominate"
    if case.states_dominate and case.fits and case.config.zero_stage == 3:
        frees = PUBLISHED
    else:
        if not case.fits:
            why += f", {write_bytes(case.need.total - case.capacity)} over capacity"
        frees = _what_frees(case)
    if not case.fits and case.min_gpus is None:
        frees += f"; no GPU count fits: {why_no_count_fits(case)}"
    return f"{label} -- {why}; {frees}; {STAGE_WORDS[case.config.zero_stage]}"


def banner(case: ComponentsCase) -> str:
    """Return the widget's sentence, to follow "Fits" or "Out of memory"."""
    margin = case.capacity - case.need.total
    room = f"{write_bytes(margin)} of headroom" if case.fits else f"{write_bytes(-margin)} short"
    room = room[0].upper() + room[1:]  # "Less than 0.001 GB short."
    label = "Model-state-dominated" if case.states_dominate else "Activation-dominated"
    if not case.fits and case.min_gpus is None:
        reason = why_no_count_fits(case)
        alone = case.states_dominate and case.need.activations > case.capacity
        link = ", but even the " if alone else ": "
        return f"{room}. {label}{link}{reason}, so no number of GPUs fits."
    share = f"{_share(case):.0%}".replace("%", " %")
    advice = "nothing has to be freed" if case.needs_little else _what_frees(case)
    return f"{room}. {label}: {_largest(case)} take {share}; {advice}."


def why_no_count_fits(case: ComponentsCase) -> str:
    """Return the reason, where `case.min_gpus` is None."""
    stage = case.config.zero_stage
    if case.need.activations > case.capacity:
        return f"activations alone ({write_bytes(case.need.activations)}) exceed capacity"
    if stage == 0:
        return "stage 0 shards nothing"
    whole = (0.0, case.need.weights + case.need.gradients, case.need.weights, 0.0)[stage]
    if whole + case.need.activations > case.capacity:
        return (
            f"the {WHOLE[stage]} that stage {stage} leaves whole ({write_bytes(whole)}) "
            "and the activations exceed capacity"
        )
    return f"it would take more than {grouped(MOST_GPUS)} GPUs"


def _largest(case: ComponentsCase) -> str:
    """Name what dominates: the two largest model states, or the activations."""
    if not case.states_dominate:
        return "activations"
    return " and ".join(name for name, _ in _two_largest_states(case))


def _share(case: ComponentsCase) -> float:
    """Part of the need taken by what `_largest` names."""
    if not case.states_dominate:
        return float(case.need.activations / case.need.total)
    return float(sum(size for _, size in _two_largest_states(case)) / case.need.total)


def _two_largest_states(case: ComponentsCase) -> list[tuple[str, float]]:
    states = [  # in order of mention where equal
        ("optimizer states", case.need.optimizer),
        ("weights", case.need.weights),
        ("gradients", case.need.gradients),
    ]
    return sorted(states, key=lambda state: -state[1])[:2]


def _what_frees(case: ComponentsCase) -> str:
    return _frees_states(case) if case.states_dominate else _frees_activations(case)


def _frees_states(case: ComponentsCase) -> str:
    stage, gpus = case.config.zero_stage, case.config.num_gpus
    fewest = case.min_gpus if not case.fits else None
    enough = f" (at least {grouped(fewest)})" if fewest else ""
    if stage == 0:
        what = (
            "sharding them (ZeRO stage 1 or higher)"
            if gpus > 1
            else "sharding them over several GPUs (ZeRO stage 1 or higher)"
        )
    elif stage == 3:
        what = f"sharding across more GPUs{enough}" if case.more_gpus_free else "a smaller model"
    elif gpus == 1:
        what = f"sharding across more GPUs{enough}"
    elif case.more_gpus_free:
        what = f"a higher ZeRO stage or more GPUs{enough}"
    else:
        what = "a higher ZeRO stage"
    return f"{what} is what frees memory here{_not_checkpointing(case)}"


def _not_checkpointing(case: ComponentsCase) -> str:
    if case.config.grad_ckpt:
        return ", not checkpointing"
    if case.checkpointing_frees > 0:
        return f"; checkpointing would free {write_bytes(case.checkpointing_frees)}"
    return ""


def _frees_activations(case: ComponentsCase) -> str:
    config = case.config
    smaller = [
        name
        for name, can in (
            ("a smaller micro batch", config.micro_batch > 1),
            ("a shorter sequence", config.seq_length > 1),
        )
        if can
    ]
    if case.checkpointing_frees > 0:
        smaller.insert(0, "checkpointing")
    *most, last = smaller or ["a narrower or shallower model"]
    what = (f"{', '.join(most)} or " if most else "") + last
    if not case.fits and case.min_gpus is not None:  # the states left over make the difference
        gpus = f"; {grouped(case.min_gpus)} GPUs would make it fit"
    else:
        gpus = "" if case.more_gpus_free else ", not more GPUs"
    return f"{what} is what frees memory here{gpus}"


def write_bytes(size: float) -> str:
    """Write bytes as GB, to one decimal, or finer where that would read 0.0."""
    gb = size / 1e9
    if gb == 0 or gb >= 0.05:
        return f"{grouped(round(gb, 1)) if gb >= 10_000 else format(gb, '.1f')} GB"
    return f"{gb:.2g} GB" if gb >= 0.001 else "less than 0.001 GB"
