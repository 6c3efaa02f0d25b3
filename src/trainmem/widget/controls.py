"""What a front end needs to know once: fields, presets, cards and the options of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainmem.cards import GPUS, PRESETS
from trainmem.config import FIELDS
from trainmem.request import CONTROLS, DERIVED
from trainmem.transformer import ARCHITECTURES, OPTIONS, STACKS, Architecture, Option
from trainmem.widget.labels import CHOICE_LABELS

__all__ = ["tables"]

GROUPS: Final = {
    "Stack": ("framework", "kernels", "loss_head", "loss_chunk", "attention", "checkpointing"),
    "Parallel layout": ("tp", "sequence_parallel", "pp", "vpp", "cp", "ep", "expert_load"),
    "Precision and optimizer": ("precision", "optimizer", "reduce_dtype", "offload"),
    "Accumulation": ("accumulation", "no_sync", "keep_gradients"),
    "Adapters": ("lora_rank", "lora_targets", "quantization"),
}
"""Headings under which the widget shows the options of a plan; others come under "More"."""


def tables() -> dict[str, Any]:
    """Return what the front end needs to know of fields, presets, cards and plans, once."""
    return {
        "fields": [
            {
                "name": field.name,
                "label": field.label,
                "help": f"{field.help} {field.allowed[0].upper()}{field.allowed[1:]}.",
                "unit": field.unit.replace("10⁹", "billion"),  # as it is spoken
                "group": field.group,
                "choices": [
                    {"value": value, "label": CHOICE_LABELS.get((field.name, value), str(value))}
                    for value in field.choices
                ],
                "values": [] if field.choices else field.slider_values(),
            }
            for field in FIELDS.values()
        ],
        "presets": [preset.name for preset in PRESETS],
        "architectures": [
            {"name": a.name, "label": f"{a.name} · {_billions(a)}", "family": a.family}
            for a in ARCHITECTURES.values()
        ],
        "derived": list(DERIVED),
        "stacks": [{"name": stack.name, "label": stack.label} for stack in STACKS.values()],
        "plan": sorted(map(_option, CONTROLS.values()), key=_group_order),
        "gpus": [{"label": gpu.label} for gpu in GPUS],
    }


def _billions(architecture: Architecture) -> str:
    """Write the parameters: ``8.03 B``, ``124 M``."""
    count = architecture.num_params
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.0f} M"


def _group_order(option: Mapping[str, Any]) -> int:
    return [*GROUPS, "More"].index(option["group"])


def _option(option: Option) -> dict[str, Any]:
    """Return one option of the plan as a control."""
    group = next((g for g, names in GROUPS.items() if option.name in names), "More")
    # All that can be in force, what one of the ten inputs says too: no two controls contradict.
    choices = [{"value": value, "label": label} for value, label in OPTIONS[option.name].choices]
    return {
        "name": option.name,
        "label": option.label,
        "help": option.help,
        "source": option.source,
        "group": group,
        "kind": "choice" if option.choices else "number",
        "choices": choices,
        "bounds": list(option.bounds),
        "default": option.default,
    }
