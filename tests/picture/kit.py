"""Drawings to look at, and what is in them."""

from __future__ import annotations

from functools import cache

from trainmem import FIELDS
from trainmem.picture.figure import Drawing, frame_size

PRESETS = ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B")
EXTREMES = {
    "405B on one GPU": {"model_params_b": 405, "num_gpus": 1, "hidden_dim": 16384},
    "nothing fits": {"zero_stage": 0, "seq_length": 8192},
    "tiny": {"model_params_b": 0.001, "gpu_memory_gb": 0.1, "micro_batch": 1, "hidden_dim": 64},
    "huge cards": {"model_params_b": 100_000, "gpu_memory_gb": 100_000, "num_gpus": 64},
    "one GPU": {"num_gpus": 1},
    "2048 GPUs": {"num_gpus": 2048},
    "a million GPUs": {"num_gpus": 1_000_000, "model_params_b": 100_000},
    "one token": {"seq_length": 1},
    "2^24 tokens": {"seq_length": 2**24},
    "just fits": {"seq_length": 29_592},
    "just not": {"seq_length": 29_593},
    "minimum out of sight": {"model_params_b": 100_000, "num_gpus": 64},
    "largest of all": {name: field.bounds[1] for name, field in FIELDS.items()}
    | {"num_gpus": 1, "gpu_memory_gb": 0.1, "grad_ckpt": 0},
    "smallest of all": {name: field.bounds[0] for name, field in FIELDS.items()}
    | {"num_gpus": 1_000_000, "gpu_memory_gb": 100_000},
}


@cache
def drawing_of(width):
    """The one drawing of a width: a new one would look the same, as is tested below."""
    return Drawing(*frame_size(width), "light", dpi=72)


def drawn(simulation, width=660, drawing=None):
    """A drawing that shows `simulation` at the size of a frame, and its panels by name."""
    drawing = drawing_of(width) if drawing is None else drawing
    drawing.scale(simulation)
    drawing.update(simulation)
    return drawing, dict(zip(("gpus", "seq", "budget"), drawing.panels, strict=True))


def points(line):
    """x and y of a line as they are drawn: `get_data` has those that it was made with."""
    return line.get_xydata().T.copy()


def labels(panel):
    """Visible labels of a panel that move, with their boxes in pixels."""
    found = [a for a in panel.moving if hasattr(a, "get_text") and a.get_visible()]
    return [(label.get_text(), label.get_window_extent()) for label in found]


CARDS = {
    "8B": {"architecture": "Llama-3-8B", "num_gpus": 8, "seq_length": 8192},
    "405B": {"architecture": "Llama-3-405B", "num_gpus": 512},
    "not sharded": {"architecture": "Llama-3-8B", "zero_stage": 0},
    "tensor parallel": {
        "architecture": "Llama-3-70B",
        "num_gpus": 64,
        "plan": {"tp": 8, "kernels": "torchtitan"},
    },
    "GPT-2": {"architecture": "GPT-2", "seq_length": 1024},
}
