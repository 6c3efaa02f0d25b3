"""Hypothesis strategies: any valid request, spread evenly over the orders of magnitude."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from trainmem import FIELDS, OPTIONS, TrainingConfig
from trainmem.config import Field
from trainmem.transformer import STACKS, Option, Plan, stack
from trainmem.transformer.option import Settings
from trainmem.transformer.stacks.deepspeed_settings import SETTINGS


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


def option_values(option: Option) -> st.SearchStrategy[object]:
    """Any value of an option that people may choose."""
    if option.choices:
        return st.sampled_from([value for value, _ in option.choices])
    if isinstance(option, Settings):
        some = st.sampled_from([10**6, "auto", True, "fp32"])
        return st.dictionaries(st.sampled_from(list(SETTINGS)), some, max_size=2)
    low, high = option.bounds
    small = [n for n in (1, 2, 3, 4, 8, 16, 64, 512, 4096) if low <= n <= high]
    return st.sampled_from([*small, low])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any valid plan: a stack, and options of its own as far as they go with it and each other."""
    plan = stack(draw(st.sampled_from(sorted(STACKS))))
    for name in draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=8, unique=True)):
        try:
            plan = replace(plan, **{name: draw(option_values(OPTIONS[name]))})
        except ValueError:
            continue
    return plan
