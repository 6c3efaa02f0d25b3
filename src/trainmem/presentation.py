"""What the widget shows of a simulation, in words: plain data for a front end that only paints.

Keeping the sentences here keeps them testable without a browser and the front end small.
"""

from __future__ import annotations

import json
from typing import Any, Final

from trainmem.config import FIELDS, GPUS, PRESETS, TrainingConfig, grouped, write_capacity, write_gb
from trainmem.simulation import GB, Simulation

__all__ = ["curl_command", "panel", "python_call", "tables"]

PUBLISHED_URL: Final = "https://www.chipfoundryservices.com/edge/training"


CHOICE_LABELS: Final[dict[tuple[str, float], str]] = {
    ("precision_bits", 32): "32 bit",
    ("grad_ckpt", 0): "off",
    ("grad_ckpt", 1): "on",
}


def panel(simulation: Simulation) -> dict[str, Any]:
    """Return all that the widget shows of a simulation, as JSON-serialisable data."""
    s = simulation
    return {
        "fits": s.fits,
        "headline": "✓ Fits" if s.fits else "✗ Out of memory",
        "banner": s.banner.replace(" %", "\N{NO-BREAK SPACE}%"),
        "fixes": [
            {
                "field": fix.field,
                "value": fix.value,
                "label": fix.label,
                "gb": f"{write_gb(fix.per_gpu_total_gb)} GB",
            }
            for fix in s.fixes()
        ],
        "cards": _cards(s),
        "footer": (
            f"{s.bytes_per_param:g} bytes/param · global batch {grouped(s.global_batch)} · "
            f"cluster {write_gb(s.aggregate_cluster_gb)} GB · "
            f"computed here in {s.compute_ms:.1f} ms"
        ),
        "table": _table(s),
        "python": python_call(s.config),
        "curl": curl_command(s.config),
    }


def tables() -> dict[str, Any]:
    """Return what the front end needs to know of fields, presets and cards, once."""
    return {
        "fields": [
            {
                "name": field.name,
                "label": field.label,
                "help": f"{field.help} {field.allowed[0].upper()}{field.allowed[1:]}.",
                "group": field.group,
                "choices": [
                    {"value": value, "label": CHOICE_LABELS.get((field.name, value), str(value))}
                    for value in field.choices
                ],
                "values": [] if field.choices else field.slider_values(),
            }
            for field in FIELDS.values()
        ],
        "presets": [
            {"name": p.name, "values": {**p.config.to_dict(), "gpu": p.gpu}} for p in PRESETS
        ],
        "gpus": [{"label": gpu.label, "gb": gpu.nominal_gb} for gpu in GPUS],
    }


def curl_command(config: TrainingConfig, url: str = PUBLISHED_URL) -> str:
    """Return the published curl request, to the letter, for `config`."""
    parts = [f'"{name}":{json.dumps(_plain(value))}' for name, value in config.to_dict().items()]
    body = ",\n       ".join(",".join(parts[i:j]) for i, j in ((0, 4), (4, 7), (7, 10)))
    return f"curl -X POST {url} \\\n  -H \"Content-Type: application/json\" \\\n  -d '{{{body}}}'"


def python_call(config: TrainingConfig) -> str:
    """Return the Python lines that repeat the simulation."""
    lines = "".join(f"    {name}={_plain(value)!r},\n" for name, value in config.to_dict().items())
    return f"import trainmem\n\nsimulation = trainmem.simulate(\n{lines})\n"


def _plain(value: float) -> float:
    """Write whole floats as integers, as the published request does."""
    return int(value) if value == int(value) else value


def _cards(s: Simulation) -> list[dict[str, str]]:
    if s.min_gpus_to_fit is None:
        fewest, at, each = "none", "", s.min_gpus_reason or ""
    else:
        fewest, at = grouped(s.min_gpus_to_fit), f"at ZeRO-{s.zero_stage}"
        total = s.at(num_gpus=s.min_gpus_to_fit)
        each = f"{write_gb(total)} GB each"
    return [
        {
            "title": "Per GPU",
            "value": write_gb(s.components.total / GB),
            "unit": f"/ {write_capacity(s.gpu_capacity_gb)} GB",
            "note": f"{write_gb(s.utilization_percent)} % of capacity",
        },
        {"title": "Minimum GPUs", "value": fewest, "unit": at, "note": each},
        {
            "title": "Model states",
            "value": write_gb(s.components.states / GB),
            "unit": f"GB of {write_capacity(s.model_states_unsharded_gb)}",
            "note": f"largest micro batch {_together(_limit(s.largest_micro_batch))}",
        },
        {
            "title": "Activations",
            "value": write_gb(s.components.activations / GB),
            "unit": "GB",
            "note": f"longest sequence {_together(_limit(s.longest_sequence))}",
        },
    ]


def _table(s: Simulation) -> list[list[str]]:
    """Rows of name, value: the numbers of the picture, for those who read instead of look."""
    gb = {
        "Need per GPU": s.per_gpu_total_gb,
        "Capacity per GPU": s.gpu_capacity_gb,
        "Headroom": s.headroom_gb,
        "Weights per GPU": s.weights_per_gpu_gb,
        "Gradients per GPU": s.grads_per_gpu_gb,
        "Optimizer states per GPU": s.optimizer_per_gpu_gb,
        "Activations per GPU": s.activations_per_gpu_gb,
        "Model states, unsharded": s.model_states_unsharded_gb,
        "Cluster": s.aggregate_cluster_gb,
    }
    counts = {
        "Minimum GPUs": s.min_gpus_to_fit,
        "Longest sequence that fits": s.longest_sequence,
        "Largest micro batch that fits": s.largest_micro_batch,
        "Global batch": s.global_batch,
    }
    return [
        *([name, f"{value:.3f} GB"] for name, value in gb.items()),
        *([name, _limit(value)] for name, value in counts.items()),
    ]


def _limit(value: int | None) -> str:
    return "none" if value is None else grouped(value)


def _together(text: str) -> str:
    """Keep a grouped number on one line."""
    return text.replace(" ", "\N{NARROW NO-BREAK SPACE}")
