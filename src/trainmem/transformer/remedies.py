"""Changes to try under the architecture-aware model: what a verdict names and `fixes()` offers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainmem.cards import GPUS
from trainmem.config import FIELDS, TrainingConfig
from trainmem.fixes import Offer, offers_of_limits
from trainmem.limits import Limit, limit
from trainmem.transformer.optimizers import OPTIMIZERS, Optimizer
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.stacks import FRAMEWORKS
from trainmem.words import grouped

if TYPE_CHECKING:
    from trainmem.transformer.model import TransformerModel

__all__ = ["Change", "offers", "remedies"]

GPUS_PER_NODE: Final = 8
"""GPUs of one machine (DGX, HGX): beyond one, offers are whole machines."""

MOST_GPUS: Final = 2048
"""What people can be told to shard over; beyond it another change is wanted."""

LORA_RANK: Final = 16


class Change(NamedTuple):
    """One change to a request, and what it is called in a sentence and on a button."""

    field: str
    value: Any
    words: str
    label: str


def remedies(model: TransformerModel, config: TrainingConfig) -> list[Change]:
    """Return the changes that may free memory without changing what is trained, gentlest first."""
    options = model.options
    found = []
    if options.get("loss_head", "transformers") == "transformers":
        found.append(Change("loss_head", "chunked", "a chunked loss head", "chunked loss head"))
    if options.get("loss_head") != "fused":
        found.append(Change("loss_head", "fused", "a fused loss head", "fused loss head"))
    if options.get("attention") == "eager":
        found.append(Change("attention", "flash", "flash attention", "flash attention"))
    if not config.grad_ckpt:
        found.append(Change("grad_ckpt", 1, "checkpointing", "checkpointing on"))
    if config.zero_stage and options.get("wrapping") != "split":
        words = "gathering embedding and head apart"
        found.append(Change("wrapping", "split", words, "embedding and head apart"))
    if options.get("no_sync"):
        words = "reducing at every micro batch"
        found.append(Change("no_sync", False, words, "reduce at every micro batch"))
    if fused := _optimizer(options).fused:
        found.append(Change("optimizer", fused, "the fused optimizer", "fused AdamW"))
    if config.num_gpus > 1:
        found += [
            Change("zero_stage", stage, f"ZeRO-{stage}", f"ZeRO-{stage}")
            for stage in range(config.zero_stage + 1, 4)
        ]
    return found


def offers(
    model: TransformerModel, config: TrainingConfig, limits: Mapping[str, Limit]
) -> Iterator[Offer]:
    """Yield the changes to try, gentlest first; what trains something else comes last."""
    for change in remedies(model, config):
        yield Offer(change.field, change.value, change.label)
    yield from _leaner_states(model.options, config)
    gpus = limits["num_gpus"]
    step = model.gpu_multiple
    whole = Limit(whole_nodes(gpus.value, step), gpus.grade, whole_nodes(gpus.surely, step))
    yield from offers_of_limits(config, {**limits, "num_gpus": whole})
    if config.zero_stage < 3:
        yield from _sharded_over_more(model, config)
    for card in GPUS:
        if card.label != model.gpu:
            yield Offer("gpu_memory_gb", card.nominal_gb, card.label)
    if not model.options.get("lora_rank"):
        label = f"LoRA of rank {LORA_RANK}, the rest frozen"
        yield Offer("lora_rank", LORA_RANK, label, (("lora_targets", "all"),))


def _sharded_over_more(model: TransformerModel, config: TrainingConfig) -> Iterator[Offer]:
    """Yield ZeRO-3 over as many GPUs as it needs, where the plan can be sharded so."""
    try:
        fewest = limit(model, config.replace(zero_stage=3), "num_gpus")
    except ValueError:  # 8-bit states, say
        return
    for enough in (fewest.surely, fewest.value):
        count = whole_nodes(enough, model.gpu_multiple)
        if count is not None and config.num_gpus < count <= MOST_GPUS:
            label = f"ZeRO-3 over {grouped(count)} GPUs"
            yield Offer("zero_stage", 3, label, (("num_gpus", count),))


def _leaner_states(options: Mapping[str, Any], config: TrainingConfig) -> Iterator[Offer]:
    """Yield what keeps the optimizer's states in 8 bits, or on the CPU, where the stack can."""
    for row in OPTIMIZERS.values():
        if row.offer and row is not _optimizer(options):
            yield Offer("optimizer", row.name, row.offer)
    framework = FRAMEWORKS[options.get("framework", OPTIONS["framework"].default)]
    offload = options.get("offload", "none")
    if framework.cpu_optimizer and offload == "none":
        yield Offer("offload", "optimizer", "optimizer states on the CPU")
    if config.zero_stage and offload != "all":
        yield Offer("offload", "all", "all states on the CPU")


def _optimizer(options: Mapping[str, Any]) -> Optimizer:
    return OPTIMIZERS[options.get("optimizer", OPTIONS["optimizer"].default)]


def whole_nodes(count: int | None, multiple: int = 1) -> int | None:
    """Return a number of GPUs that can be had: beyond one machine, whole machines."""
    if count is None or count <= GPUS_PER_NODE:
        return count
    step = math.lcm(GPUS_PER_NODE, multiple)
    return min(-(-count // step) * step, int(FIELDS["num_gpus"].bounds[1]))
