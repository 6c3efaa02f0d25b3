"""The sentences of the architecture-aware model: what sets the peak, and what frees memory there.

Whatever a sentence recommends was tried: the model ran with that change alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from trainmem.config import FIELDS
from trainmem.transformer.layout import longest_length
from trainmem.transformer.levels import Level, fits_below
from trainmem.transformer.peak import PHASE_NAMES, Result
from trainmem.transformer.plan import Plan
from trainmem.transformer.remedies import Change, remedies
from trainmem.transformer.stacks import FRAMEWORKS
from trainmem.verdict import STAGE_WORDS, Case, write_bytes
from trainmem.words import grouped

if TYPE_CHECKING:
    from trainmem.transformer.model import TransformerModel

__all__ = ["PeakCase", "layout_words"]

GROUPS: Final = {
    "model states": ("weights", "gradients", "optimizer"),
    "gathered parameters": ("gathered parameters",),
    "activations": ("saved activations", "recomputation", "temporaries"),
    "logits and loss": ("logits and loss",),
}
"""What can dominate, and the kinds of bytes that it is made of."""

LABELS: Final = {
    "model states": "model-state-dominated",
    "gathered parameters": "gathered-parameter-dominated",
    "activations": "activation-dominated",
    "logits and loss": "loss-dominated",
}

WORTH_NAMING: Final = 0.05
"""Part of the need that a change must free to be named."""

MOST_NAMED: Final = 3


@dataclass(frozen=True)
class PeakCase(Case):
    """All that a sentence of this model may speak of: the case, and the peak in detail.

    Attributes
    ----------
    model : TransformerModel
        The model, which is asked for what follows when it is read.
    """

    model: TransformerModel

    @property
    def in_detail(self) -> PeakCase:
        """The case itself."""
        return self

    @cached_property
    def min_gpus(self) -> int | None:
        """Smallest count that fits."""
        return self.model.smallest_num_gpus(self.config)

    @cached_property
    def grade(self) -> str:
        """`fits`, `uncertain` or `does not fit`."""
        return self.model.grade(self.config, float(self.need.total))

    @cached_property
    def peak(self) -> Result:
        """The peak: when it comes and what is alive then."""
        return self.model.peak(self.config)

    @cached_property
    def levels(self) -> tuple[Level, Level, Level]:
        """Allocated, reserved and card, as intervals with their sources."""
        return self.model.levels(self.config, float(self.need.total))

    @cached_property
    def groups(self) -> list[tuple[str, int]]:
        """What is alive at the peak by `GROUPS`, bytes, most first."""
        kinds = self.peak.bytes_by_kind
        sizes = ((name, sum(kinds.get(k, 0) for k in parts)) for name, parts in GROUPS.items())
        return sorted(sizes, key=lambda group: -group[1])

    @property
    def dominates(self) -> str:
        """What takes most at the peak."""
        return self.groups[0][0]

    @property
    def when(self) -> str:
        """The phase of the peak, to follow "in"."""
        return PHASE_NAMES[self.peak.phase]

    def largest(self) -> str:
        """Name the two groups that take most at the peak, with their part of it."""
        total = self.peak.peak_bytes
        named = [
            f"{name} {100 * size / total:.0f} %"
            for name, size in self.groups[:2]
            if size >= WORTH_NAMING * total
        ]
        return " and ".join(named)

    @cached_property
    def frees(self) -> list[tuple[Change, float]]:
        """The changes worth naming with the bytes that each frees, by trial, most first.

        Beside the remedies: twice the GPUs, half the micro batch, half the sequence.
        """
        config = self.config
        tried = remedies(self.model, config)
        if config.zero_stage and 2 * config.num_gpus <= FIELDS["num_gpus"].bounds[1]:
            tried.append(Change("num_gpus", 2 * config.num_gpus, "twice the GPUs", ""))
        if config.micro_batch > 1:
            tried.append(Change("micro_batch", config.micro_batch // 2, "half the micro batch", ""))
        elif config.seq_length > 1:
            tried.append(Change("seq_length", config.seq_length // 2, "half the sequence", ""))
        best: dict[str, tuple[Change, float]] = {}
        for change in tried:
            need = self.after(change)
            freed = 0.0 if need is None else float(self.need.total) - need
            # Of one field the gentlest that frees what the others do, to a twentieth.
            if freed > max(
                WORTH_NAMING * self.need.total, 1.05 * best.get(change.field, (0, 0))[1]
            ):
                best[change.field] = (change, freed)
        return sorted(best.values(), key=lambda item: -item[1])[:MOST_NAMED]

    def after(self, change: Change) -> float | None:
        """Return the bytes needed with a change, or None where that isn't covered."""
        model, config = self.model.changed(self.config, {change.field: change.value})
        try:
            return float(model.peak(config).peak_bytes * model.factor)
        except ValueError:
            return None

    def sentence(self) -> str:
        """Return the `verdict`: published grammar, this model's reasons."""
        why = f"peak in {self.when}: {self.largest()}"
        if not self.fits:
            why += f", {write_bytes(self.need.total - self.capacity)} over capacity"
        elif self.grade != "fits":
            close = "too close to capacity to be certain"
            why += f", {close if self.grade == 'uncertain' else self.why_not_sure()}"
        frees = self._what_frees()
        if not self.fits and self.min_gpus is None:
            frees += f"; no GPU count fits: {self.why_no_count_fits()}"
        stage = sharding_words(self.plan)
        remarks = "".join(f"; {remark}" for remark in self.remarks)
        return f"{LABELS[self.dominates]} -- {why}; {frees}{remarks}; {stage}"

    def banner(self) -> str:
        """Return the widget's sentences, to follow the headline of the grade."""
        margin = self.capacity - self.need.total
        if not self.fits:
            room = f"{write_bytes(-margin)} short"
        elif self.grade != "fits":
            room = f"{write_bytes(margin)} of headroom as PyTorch allocates, but "
            room += self.why_not_sure()
        else:
            room = f"{write_bytes(margin)} of headroom"
        room = room[0].upper() + room[1:]
        peak = f"The peak comes in {self.when}: {self.largest()}"
        if not self.fits and self.min_gpus is None:
            advice = f". No number of GPUs fits: {self.why_no_count_fits()}"
        elif self.needs_little:
            advice = "; nothing has to be freed"
        else:
            advice = f"; {self._what_frees()}"
        remarks = "".join(f" {remark[0].upper()}{remark[1:]}." for remark in self.remarks)
        return f"{room}. {peak}{advice}.{remarks}"

    def why_not_sure(self) -> str:
        """Say why a need below capacity isn't graded `fits`."""
        card = self.levels[2]
        low, high = f"{card.low_bytes / 1e9:.1f}", write_bytes(card.high_bytes)
        if self.grade == "does not fit":
            return (
                "with what it reserves and CUDA's own the card needs at least "
                f"{write_bytes(card.low_bytes)}"
            )
        if self.need.total < fits_below("") * self.capacity:
            return "that is not certain"  # the remarks say why
        return f"with what it reserves and CUDA's own the card may need {low} to {high}"

    @cached_property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.model.plan_for(self.config)

    @property
    def remarks(self) -> list[str]:
        """What surprises in the numbers, and what isn't in them."""
        found = []
        experts, ranks = self.model.architecture.num_experts, self.plan.ranks
        if self.plan.fsdp and ranks > experts > 0:
            found.append(
                f"FSDP2 pads the {experts} experts of each layer to {grouped(ranks)} ranks, so "
                "that gathering a layer takes more the more GPUs there are"
            )
        remark = FRAMEWORKS[self.plan.framework].remark
        if self.grade == "uncertain" and remark:
            found.append(remark)
        return found

    def why_no_count_fits(self) -> str:
        """Return the reason, where `min_gpus` is None."""
        if self.config.zero_stage == 0:
            return "stage 0 shards nothing"
        _, least = self.model.leanest_num_gpus(self.config)
        return f"what the GPUs don't share takes at least {write_bytes(least)} on each"

    def why_no_longer(self, length: int) -> str | None:
        """Return what ends the longest sequence, `length`, where it isn't memory."""
        most = longest_length(self.model.architecture)
        if most is None or length != most:
            return None
        kind = "positions" if self.model.architecture.has_positions else "tokens of its window"
        return f"{self.model.architecture.name} takes at most {grouped(most)} {kind}"

    def _what_frees(self) -> str:
        if not self.frees:
            return "no single change frees much here"
        *most, last = (f"{change.words} ({write_bytes(freed)})" for change, freed in self.frees)
        return (f"{', '.join(most)} or {last}" if most else last) + " would free memory here"


def sharding_words(plan: Plan) -> str:
    """Say what is sharded, and over which layout, in words."""
    own = FRAMEWORKS[plan.framework].stage_words
    words = own.get(plan.zero_stage, STAGE_WORDS[plan.zero_stage])
    layout = layout_words(plan)
    return f"{words}, {layout}" if layout else words


def layout_words(plan: Plan) -> str:
    """Write the layout as a product, ``tp 8 × pp 16 × dp 4 = 512 GPUs``; "" where it is dp alone.

    Expert parallelism takes its ranks from those of dp and cp, so it stands apart.
    """
    degrees = {"tp": plan.tp, "pp": plan.pp, "cp": plan.cp}
    if all(degree == 1 for degree in degrees.values()) and plan.ep == 1:
        return ""
    named = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    product = " × ".join([*named, f"dp {plan.dp}"]) + f" = {grouped(plan.num_gpus)} GPUs"
    return f"{product}, ep {plan.ep} of them" if plan.ep > 1 else product
