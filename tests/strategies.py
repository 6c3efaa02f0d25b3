"""Hypothesis strategies: any valid request, spread evenly over the orders of magnitude."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from trainmem import FIELDS, TrainingConfig
from trainmem.config import Field


def values(field: Field) -> st.SearchStrategy[int | float]:
    """Any valid value of a field, its bounds included."""
    if field.choices:
        return st.sampled_from(field.choices)
    low, high = field.bounds
    spread = st.floats(math.log(low), math.log(high)).map(math.exp)
    if field.kind == "int":
        spread = spread.map(round)
    inside = spread.map(lambda value: min(max(value, low), high))
    return st.one_of(inside, st.sampled_from(field.bounds))


def configs(**fixed: st.SearchStrategy[object]) -> st.SearchStrategy[TrainingConfig]:
    """Any valid request, some fields drawn from other strategies."""
    return st.builds(TrainingConfig, **{n: values(f) for n, f in FIELDS.items()} | fixed)


def everyday(**fixed: st.SearchStrategy[object]) -> st.SearchStrategy[TrainingConfig]:
    """Requests as people make them: near the capacity, where every kind of answer occurs."""
    usual = {
        "model_params_b": st.sampled_from([0.1, 1, 8, 13, 70.6, 405]),
        "num_gpus": st.sampled_from([1, 2, 3, 8, 64, 500, 2048, 1_000_000]),
        "gpu_memory_gb": st.sampled_from([1, 16, 24, 80, 141, 256]),
        "micro_batch": st.sampled_from([1, 2, 4, 28]),
        "seq_length": st.sampled_from([1, 512, 4096, 29_593, 131_072]),
        "num_layers": st.sampled_from([1, 2, 32, 126]),
        "hidden_dim": st.sampled_from([64, 1024, 4096, 16_384]),
    }
    return configs(**usual | fixed)
