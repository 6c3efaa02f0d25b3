"""Parallel axes: products, divisors, pipeline stages, sweeps over whole layouts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem import TrainingConfig, simulate
from trainmem.transformer import (
    Plan,
    TransformerModel,
    architecture,
    derived_inputs,
    peak,
    peaks,
    plan_of,
    stack,
    stages,
)
from trainmem.transformer.layout import divisors, nearest

LLAMA, LARGE = architecture("Llama-3-70B"), architecture("Llama-3-405B")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_gpus": 60, "tp": 8},
            r"num_gpus 60 is not a multiple of 8 \(tp 8 · pp 1 · cp 1\); the nearest are 56 or 64",
        ),
        ({"num_gpus": 4, "tp": 8}, "num_gpus 4 is not a multiple of 8 .* the nearest are 8"),
        (
            {"num_gpus": 20, "cp": 2, "ep": 4, "pp": 2},
            r"num_gpus 20 is not a multiple of 8 \(tp 1 · pp 2 · cp 2, ep 4\); .* 16 or 24",
        ),
        ({"num_gpus": 8, "vpp": 2}, "vpp 2 needs pp of 2 or more, got 1"),
        (
            {"num_gpus": 8, "pp": 4, "vpp": 2, "accumulation": 6},
            "accumulation 6 is not a multiple of pp 4, .* the nearest is 8",
        ),
    ],
)
def test_products_that_do_not_come_out(options, message):
    with pytest.raises(ValueError, match=message):
        stack("megatron", **options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            LLAMA,
            {"num_gpus": 16, "tp": 16},
            "tp 16 does not divide the 64 heads, 8 key/value heads .* the nearest are 8",
        ),
        (LLAMA, {"num_gpus": 9, "tp": 3}, "tp 3 does not divide .* the nearest are 2 or 4"),
        (LLAMA, {"ep": 2}, "ep 2 needs a mixture of experts, which Llama-3-70B is not; use 1"),
        (
            architecture("Mixtral-8x7B"),
            {"num_gpus": 12, "ep": 3},
            "ep 3 does not divide the 8 experts of Mixtral-8x7B; the nearest are 2 or 4",
        ),
        (
            LLAMA,
            {"num_gpus": 12, "pp": 12},
            "pp 12 · vpp 1 = 12 divides neither the 80 layers .* the nearest products are 10 or 16",
        ),
    ],
)
def test_axes_that_do_not_divide_the_model(model, options, message):
    plan = stack("megatron", **options)
    with pytest.raises(ValueError, match=message):
        peak(model, plan)
    with pytest.raises(ValueError, match=message):
        peaks(model, plan)


@given(st.integers(1, 400), st.integers(1, 400))
def test_nearest_choices_are_choices(number, value):
    choices = divisors(number)
    assert choices[0] == 1
    assert choices[-1] == number
    assert all(number % int(x) == 0 for x in nearest(choices, value).split(" or "))


def test_stages_share_the_layers():
    for model, options in (
        (LLAMA, {"pp": 8, "accumulation": 16}),
        (LLAMA, {"pp": 4, "vpp": 5, "accumulation": 16}),
        (LARGE, {"pp": 8, "accumulation": 16}),  # 126 layers, embedding and head count
        (LARGE, {"pp": 16, "vpp": 4, "accumulation": 16}),
    ):
        plan = stack("megatron", num_gpus=64, **options)
        parts = stages(model, plan)
        assert sum(stage.layers for stage in parts) == model.num_layers
        assert [s.first for s in parts] == [True] + [False] * (plan.pp - 1)
        assert [s.last for s in parts] == [False] * (plan.pp - 1) + [True]
        waiting = [s.waiting for s in parts]
        assert waiting == sorted(waiting, reverse=True)


def test_chunks_in_flight_follow_the_schedules():
    one = stages(LLAMA, stack("megatron", num_gpus=8, pp=4, accumulation=16))
    assert [s.waiting + 1 for s in one] == [4, 3, 2, 1]
    few = stages(LLAMA, stack("megatron", num_gpus=8, pp=4, accumulation=2))
    assert [s.waiting + 1 for s in few] == [2, 2, 2, 1]
    two = stages(LLAMA, stack("megatron", num_gpus=8, pp=4, vpp=2, accumulation=16))
    assert [s.waiting + 1 for s in two] == [2 * (4 - i - 1) + 4 + 1 for i in range(4)]
    alone = stages(LLAMA, stack("megatron", num_gpus=8))
    assert (alone[0].waiting, alone[0].layers, alone[0].chunk_layers) == (0, 80, 80)


def test_waiting_micro_batches_are_all_there():
    """One more micro batch in flight costs what one forward pass of the stage saves."""
    plans = [
        stack("megatron", num_gpus=8, pp=4, accumulation=m, seq_length=8192) for m in (2, 3, 4, 8)
    ]
    by_count = [peak(LLAMA, plan, stage=0).peak_bytes for plan in plans]
    steps = np.diff(by_count)
    assert steps[0] == steps[1] > 0
    assert steps[2] == 0


def test_the_worst_stage_is_named_and_all_are_there():
    plan = stack("megatron", num_gpus=64, tp=8, pp=4, accumulation=16, seq_length=8192)
    result = peak(LLAMA, plan)
    each = [peak(LLAMA, plan, stage=i) for i in range(4)]
    assert result.stage_peaks == tuple(r.peak_bytes for r in each)
    assert result == each[result.stage]
    assert f"on pipeline stage {result.stage + 1} of 4" in result.explanation
    for bad in (-1, 4):
        with pytest.raises(ValueError, match=f"stage must be from 0 to 3, got {bad}"):
            peak(LLAMA, plan, stage=bad)


def test_the_large_presets_can_be_planned_as_they_are_trained():
    small = stack("megatron", num_gpus=64, tp=8, pp=2, accumulation=8, seq_length=8192)
    large = stack("megatron", num_gpus=512, tp=8, pp=16, accumulation=32, seq_length=8192)
    assert peak(LLAMA, small).peak_bytes < 80e9
    assert peak(LARGE, large).peak_bytes < 100e9


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_more_of_an_axis_takes_less(axis):
    sizes = [
        peak(
            LLAMA, stack("megatron", num_gpus=64, accumulation=1, seq_length=8192, **{axis: n})
        ).peak_bytes
        for n in (1, 2, 4, 8)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_context_parallel_divides_tokens_but_not_states():
    one, four = (
        peak(LLAMA, stack("megatron", num_gpus=64, cp=cp, seq_length=32768)) for cp in (1, 4)
    )
    assert one.states_bytes == pytest.approx(four.states_bytes, rel=1e-3)
    assert four.bytes_by_kind["saved activations"] == pytest.approx(
        one.bytes_by_kind["saved activations"] / 4, rel=0.2
    )


# ---- sweeps ----
MODEL = TransformerModel(LLAMA, stack("megatron", num_gpus=64, tp=8, pp=2, accumulation=8))


def config(**options):
    return TrainingConfig(
        **{
            **derived_inputs(LLAMA),
            "num_gpus": 64,
            "micro_batch": 1,
            "seq_length": 8192,
            "grad_ckpt": 0,
            **options,
        }
    )


def test_sweeps_keep_the_layout_and_vary_dp():
    assert MODEL.gpu_multiple == 16
    totals = MODEL.components(config(), num_gpus=[16, 32, 64, 128]).total
    for n, total in zip((16, 32, 64, 128), totals, strict=True):
        plan = plan_of(config(num_gpus=n), MODEL.plan)
        assert (plan.tp, plan.pp, plan.dp) == (8, 2, n // 16)
        assert total == pytest.approx(peak(LLAMA, plan).peak_bytes, abs=8)
    between = MODEL.components(config(), num_gpus=[17, 31, 32]).total
    assert len(set(between)) == 1
    with pytest.raises(ValueError, match=r"num_gpus must be multiples of 16 .*, got 17"):
        peaks(LLAMA, MODEL.plan, num_gpus=[16, 17])


def test_the_fewest_gpus_are_a_multiple():
    gb = MODEL.components(config(num_gpus=64)).total / 1e9
    fewest = MODEL.smallest_num_gpus(config(gpu_memory_gb=gb * 1.0001))
    assert fewest == 64
    assert MODEL.smallest_num_gpus(config(gpu_memory_gb=1)) is None


def test_a_count_that_is_no_multiple_is_refused_by_name():
    with pytest.raises(ValueError, match=r"num_gpus 60 is not a multiple of 16 .* 48 or 64"):
        MODEL.peak(config(num_gpus=60))


def test_simulate_answers_for_a_layout():
    answer = simulate(config(), model=MODEL)
    assert answer.per_gpu_total_gb == pytest.approx(MODEL.peak(config()).peak_bytes / 1e9, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "changes", "sharding", "precision", "checkpointing"),
    [
        ("megatron-selective", {"zero_stage": 3, "grad_ckpt": 1}, "zero1", "bf16_master",
         "selective"),
        ("megatron", {"zero_stage": 0, "num_gpus": 16}, "none", "bf16_master", "none"),
        ("megatron", {"zero_stage": 0, "num_gpus": 32}, "ddp", "bf16_master", "none"),
        ("torchtitan", {"grad_ckpt": 1}, "zero3", "mixed", "selective"),
    ],
)  # fmt: skip
def test_the_ten_inputs_under_a_stack(name, changes, sharding, precision, checkpointing):
    plan = stack(name, num_gpus=64, tp=8, pp=2, accumulation=8)
    found = plan_of(config(**{"grad_ckpt": 0, **changes}), plan)
    assert (found.sharding, found.precision) == (sharding, precision)
    assert found.checkpointing == checkpointing


def test_plans_count_what_is_left():
    plan = stack("megatron", num_gpus=64, tp=2, pp=2, cp=4)
    assert (plan.dp, plan.ranks, plan.gpu_multiple) == (4, 16, 16)
    assert replace(plan, ep=8, num_gpus=64).gpu_multiple == 32
    assert Plan().dp == Plan().ranks == 8
