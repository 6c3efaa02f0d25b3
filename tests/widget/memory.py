"""`TrainingMemory` in tests: values to set, and what is heard of a change."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import traitlets

from trainmem.cards import GPUS
from trainmem.config import FIELDS
from trainmem.outputs import OUTPUT_NAMES
from trainmem.simulate_step import simulate
from trainmem.widget.traits import TrainingMemory

BEYOND = ("headroom_gb", "longest_sequence", "largest_micro_batch", "min_gpus_reason")
OUTPUTS = [name for name in OUTPUT_NAMES if name != "zero_stage"] + list(BEYOND)
OTHER = {
    "model_params_b": 70.6,
    "num_gpus": 64,
    "gpu_memory_gb": 141.0,
    "micro_batch": 2,
    "seq_length": 8192,
    "num_layers": 80,
    "hidden_dim": 8192,
    "precision_bits": 32.0,
    "zero_stage": 1,
    "grad_ckpt": 0,
}
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
BAD = [
    ("num_gpus", 0),
    ("num_gpus", 2.5),
    ("num_gpus", "64"),
    ("num_gpus", True),
    ("num_gpus", None),
    ("model_params_b", float("nan")),
    ("model_params_b", float("inf")),
    ("model_params_b", -1),
    ("gpu_memory_gb", 1e9),
    ("seq_length", 10**400),
    ("zero_stage", 4),
    ("precision_bits", 12),
    ("grad_ckpt", 2),
    ("hidden_dim", [4096]),
    ("gpu", "no such card"),
    ("gpu", 5),
    ("gpu", None),
]


def heard(memory: traitlets.HasTraits, names: object = traitlets.All) -> list[tuple[str, object]]:
    """Record changes as they are announced."""
    log: list[tuple[str, object]] = []
    memory.observe(lambda change: log.append((change["name"], change["new"])), names)
    return log


def state(memory: TrainingMemory) -> dict[str, object]:
    return {name: getattr(memory, name) for name in [*FIELDS, "gpu", *OUTPUTS, "simulation"]}


def consistent(memory: TrainingMemory) -> None:
    """Check that every output belongs to the inputs."""
    answer = simulate(memory.config)
    assert memory.simulation.config == memory.config
    for name in OUTPUTS:
        assert getattr(memory, name) == getattr(answer, name), name
    card = {gpu.label: gpu.nominal_gb for gpu in GPUS}
    assert memory.gpu == "" or card[memory.gpu] == memory.gpu_memory_gb


def nested() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


class Hostile:
    """Fails at whatever is asked of it."""

    __hash__ = None  # type: ignore[assignment]

    def fail(self, *_: object) -> Any:
        raise RuntimeError("hostile")

    __eq__ = __repr__ = __str__ = __index__ = __bool__ = __float__ = fail


FOREIGN = {
    "nested": nested(),
    "sNaN": Decimal("sNaN"),
    "array": np.zeros(3),
    "word": np.array("x"),
    "numpy bool": np.bool_(True),
    "NaN": float("nan"),
    "hostile": Hostile(),
    "bytes": b"x",
    "surrogate": "\ud800",
    "huge": 10**5000,
    "long": "x" * 5_000_000,
    "complex": 1j,
}
