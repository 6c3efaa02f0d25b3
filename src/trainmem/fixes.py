"""What would make a step fit: single changes, each tried, each with the grade that it ends in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainmem.cards import GPUS
from trainmem.config import TrainingConfig
from trainmem.limits import Limit
from trainmem.words import grouped

__all__ = ["Fix", "Offer", "best", "offers", "offers_of_limits"]


@dataclass(frozen=True)
class Fix:
    """One change that makes a step fit.

    Attributes
    ----------
    field : str
        The input to change, or with an architecture the option of its plan.
    value : int, float, str or bool
        Its new value.
    label : str
        The change in a few words.
    per_gpu_total_gb : float
        Memory per GPU with it, GB to 3 decimals, computed by the model.
    grade : {"fits", "uncertain"}
        The grade that it ends in, computed by the model.
    also : tuple of (str, value)
        What changes with it, such as the GPUs that a higher ZeRO stage needs.
    """

    field: str
    value: int | float | str
    label: str
    per_gpu_total_gb: float
    grade: str = "fits"
    also: tuple[tuple[str, int | float | str], ...] = ()

    @property
    def changes(self) -> dict[str, int | float | str]:
        """All that changes, as `TrainingMemory.update` takes it."""
        return changes_of(self)


@dataclass(frozen=True)
class Offer:
    """A change to try: a :class:`Fix` before it was tried."""

    field: str
    value: Any
    label: str
    also: tuple[tuple[str, Any], ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """All that changes."""
        return changes_of(self)


def changes_of(change: Fix | Offer) -> dict[str, Any]:
    """Return all that a change changes; a card brings its memory by its label."""
    if change.field == "gpu_memory_gb":
        return {"gpu": change.label}
    return {change.field: change.value, **dict(change.also)}


def best(tries: Iterable[Offer], trial: Callable[[Offer], Fix]) -> list[Fix]:
    """Return of each field the first offer that fits, else the first that may.

    Parameters
    ----------
    tries
        Offers, gentlest first.
    trial
        Tells what an offer ends in; raises `ValueError` for a combination that isn't covered.

    Returns
    -------
    list of Fix
        Those graded `fits`, then those graded `uncertain`, each in the order of the offers.
    """
    found: dict[str, Fix] = {}
    for offer in tries:
        known = found.get(offer.field)
        if known is not None and known.grade == "fits":
            continue
        try:
            fix = trial(offer)
        except ValueError:
            continue
        if fix.grade == "fits" or (fix.grade == "uncertain" and known is None):
            found[offer.field] = fix
    return sorted(found.values(), key=lambda fix: fix.grade != "fits")


def offers(config: TrainingConfig, limits: Mapping[str, Limit]) -> Iterator[Offer]:
    """Yield the changes of the ten inputs to try, gentlest first."""
    if not config.grad_ckpt:
        yield Offer("grad_ckpt", 1, "checkpointing on")
    if config.num_gpus > 1:
        for stage in range(config.zero_stage + 1, 4):
            yield Offer("zero_stage", stage, f"ZeRO-{stage}")
    yield from offers_of_limits(config, limits)
    for card in GPUS:
        if card.nominal_gb != config.gpu_memory_gb:
            yield Offer("gpu_memory_gb", card.nominal_gb, card.label)


def offers_of_limits(config: TrainingConfig, limits: Mapping[str, Limit]) -> Iterator[Offer]:
    """Yield more GPUs, a smaller micro batch, a shorter sequence: what surely fits comes first."""
    words = {"num_gpus": "{} GPUs", "micro_batch": "micro batch {}", "seq_length": "sequence {}"}
    for field, text in words.items():
        for value in (limits[field].surely, limits[field].value):
            if value is not None and value != getattr(config, field):
                yield Offer(field, value, text.format(grouped(value)))
