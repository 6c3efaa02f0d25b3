"""Options: one table, validation derived from it."""

from dataclasses import fields

import numpy as np
import pytest

from trainmem.transformer import OPTIONS, Plan
from trainmem.transformer.option import Settings


def test_plan_and_table_are_the_same_fields():
    assert [f.name for f in fields(Plan)] == list(OPTIONS)
    plan = Plan()
    assert all(getattr(plan, name) == option.default for name, option in OPTIONS.items())


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
def test_every_option_explains_itself(option):
    assert option.label
    assert option.help.endswith(".")
    assert option.source
    if isinstance(option, Settings):
        assert option.check({}) == option.default == ()
    elif option.choices:
        values = [value for value, _ in option.choices]
        assert option.default in values
        assert len(set(values)) == len(values)
        assert all(label for _, label in option.choices)
    else:
        low, high = option.bounds
        assert low <= option.default <= high


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("bad", ["nonsense", None, 0.5, float("nan"), [], 2**40])
def test_every_option_refuses_nonsense(option, bad):
    if isinstance(option, Settings) and bad == []:  # none
        return
    with pytest.raises(ValueError, match=f"{option.name} must be"):
        Plan(**{option.name: bad})


def test_booleans_are_not_numbers_nor_the_reverse():
    with pytest.raises(
        ValueError, match="micro_batch must be an integer from 1 to 65536, got True"
    ):
        Plan(micro_batch=True)
    with pytest.raises(ValueError, match="no_sync must be one of False, True, got 1"):
        Plan(no_sync=1)


def test_integral_floats_and_numpy_scalars_are_integers():
    plan = Plan(num_gpus=np.int64(16), seq_length=2048.0)
    assert (plan.num_gpus, plan.seq_length) == (16, 2048)
    assert type(plan.num_gpus) is type(plan.seq_length) is int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding": "none"}, "sharding 'none' is for one GPU, got num_gpus 8"),
        ({"sharding": "ddp", "num_gpus": 1, "precision": "amp"}, "num_gpus of 2 or more"),
        ({"sharding": "ddp"}, "precision 'mixed' is FSDP2's"),
        ({"sharding": "ddp", "precision": "amp", "wrapping": "split"}, "wrapping 'split' needs"),
        ({"precision": "bf16", "reduce_dtype": "bfloat16"}, "needs precision 'mixed', got 'bf16'"),
        ({"precision": "bf16_master", "optimizer": "sgd"}, "needs optimizer 'adamw', got 'sgd'"),
        (
            {"sharding": "none", "num_gpus": 1, "precision": "amp", "no_sync": True},
            "no_sync needs more than one rank",
        ),
        ({"optimizer": "adam8bit"}, "optimizer 'adam8bit' is not covered with sharding"),
    ],
)
def test_combinations_that_do_not_exist(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**options)
