"""`simulate`: the published answer number by number, the sweeps, the fixes, the round trip."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from strategies import configs, everyday
from trainmem import (
    FIELDS,
    GPUS,
    PRESETS,
    ConfigError,
    Fix,
    Simulation,
    TrainingConfig,
    preset,
    simulate,
)
from trainmem.outputs import OUTPUT_NAMES
from trainmem.reduced import REDUCED
from trainmem.sweeps import GPU_SWEEP, SEQ_SWEEP, SWEEP_POINTS, sweep_points

OUTPUTS = [
    *("model_states_unsharded_gb", "model_states_per_gpu_gb", "activations_per_gpu_gb"),
    *("per_gpu_total_gb", "gpu_capacity_gb", "utilization_percent", "fits", "bytes_per_param"),
    *("weights_per_gpu_gb", "grads_per_gpu_gb", "optimizer_per_gpu_gb", "min_gpus_to_fit"),
    *("aggregate_cluster_gb", "global_batch", "zero_stage", "checkpointing", "verdict"),
]
PROFILE = ["model_state_gb", "activation_gb", "capacity_gb", "per_gpu_gb"]
PROFILE += ["num_gpus", "seq_length", "fits"]
FIX_ORDER = ["grad_ckpt", "zero_stage", "num_gpus", "micro_batch", "seq_length", "gpu_memory_gb"]


def same(got, expected):
    """Equal to the last digit and of the same JSON type (16.0 is not 16)."""
    return json.dumps(got) == json.dumps(expected)


# The published answer.


def test_the_whole_answer_to_the_last_digit(reference):
    answer = simulate().to_dict()
    assert isinstance(answer.pop("node"), str)
    assert isinstance(answer.pop("compute_ms"), float)
    del reference["node"], reference["compute_ms"]
    assert same(answer, reference)


def test_keys_and_order(reference):
    answer = simulate().to_dict()
    assert list(answer) == list(reference)
    for part in ("inputs", "outputs", "profile"):
        assert list(answer[part]) == list(reference[part])


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name, reference):
    assert same(simulate().to_dict()["outputs"][name], reference["outputs"][name])
    assert same(getattr(simulate(), name), reference["outputs"][name])


@pytest.mark.parametrize("name", PROFILE)
def test_profile_scalars(name, reference):
    assert same(simulate().to_dict()["profile"][name], reference["profile"][name])


@pytest.mark.parametrize("index", range(48))
@pytest.mark.parametrize("sweep", ["mem_vs_gpus", "mem_vs_seq"])
def test_sweep_points(sweep, index, reference):
    assert same(simulate().to_dict()["profile"][sweep][index], reference["profile"][sweep][index])


def test_the_lists_above_are_complete(reference):
    assert list(reference["outputs"]) == OUTPUTS == list(OUTPUT_NAMES)
    assert [*reference["profile"]][2:] == PROFILE
    assert reference["steps"] == 2 * SWEEP_POINTS == 96


# How it is called.


def test_every_way_to_ask_gives_the_same_answer():
    config = TrainingConfig(num_gpus=64, zero_stage=2)
    asked = [
        simulate(config),
        simulate(num_gpus=64, zero_stage=2),
        simulate(config, num_gpus=64),
        simulate(TrainingConfig(num_gpus=64), zero_stage=2),
        simulate(model=REDUCED, num_gpus=64.0, zero_stage=np.int64(2)),
    ]
    assert all(answer == asked[0] for answer in asked)
    assert asked[0].config == config


@pytest.mark.parametrize("config", [{"num_gpus": 8}, "Llama-3-8B", 8, PRESETS[0]], ids=str)
def test_a_config_of_another_type_is_refused(config):
    with pytest.raises(TypeError, match="config must be a TrainingConfig, not "):
        simulate(config)


def test_bad_input_is_refused_wherever_it_comes_from():
    for call in (
        lambda: simulate(num_gpus=0),
        lambda: simulate(TrainingConfig(), num_gpus=0),
    ):
        with pytest.raises(ConfigError, match=r"^num_gpus: 0 is not allowed; must be a whole"):
            call()
    for call in (lambda: simulate(gpus=1), lambda: simulate(TrainingConfig(), gpus=1)):
        with pytest.raises(ConfigError, match=r"^unknown field: 'gpus' is not allowed"):
            call()


@given(configs())
def test_the_round_trip(config):
    first = simulate(config)
    again = simulate(**first.to_dict()["inputs"])
    assert again == first
    assert hash(again) == hash(first)
    answers = [first.to_dict(), again.to_dict()]
    for answer in answers:
        del answer["compute_ms"]
    assert same(*answers)


@given(configs())
def test_the_answer_is_json_of_the_published_types(config):
    answer = simulate(config).to_dict()
    text = json.dumps(answer, allow_nan=False)
    assert json.loads(text) == answer
    published = simulate().to_dict()
    for part in ("inputs", "outputs"):
        for name, value in answer[part].items():
            if name == "min_gpus_to_fit" and value is None:
                continue
            assert type(value) is type(published[part][name]), name
    for name in ("mem_vs_gpus", "mem_vs_seq"):
        pairs = answer["profile"][name]
        assert len(pairs) == SWEEP_POINTS
        assert {tuple(map(type, pair)) for pair in pairs} == {
            tuple(map(type, published["profile"][name][0]))
        }


@given(configs())
def test_the_outputs_agree_with_each_other(config):
    s = simulate(config)
    need = s.components
    assert s.fits is (need.total <= config.gpu_memory_gb * 1e9)
    assert s.per_gpu_total_gb == round(need.total / 1e9, 3)
    assert s.model_states_per_gpu_gb == round(need.states / 1e9, 3)
    assert s.utilization_percent == round(100 * need.total / (config.gpu_memory_gb * 1e9), 1)
    assert s.aggregate_cluster_gb == round(need.total * config.num_gpus / 1e9, 1)
    assert s.global_batch == config.num_gpus * config.micro_batch
    assert s.headroom_gb == pytest.approx(config.gpu_memory_gb - need.total / 1e9)
    assert (s.headroom_gb >= 0) is s.fits
    assert (s.min_gpus_reason is None) is (s.min_gpus_to_fit is not None)
    assert s.fits is (s.min_gpus_to_fit is not None and s.min_gpus_to_fit <= config.num_gpus)
    assert s.fits is ((s.longest_sequence or 0) >= config.seq_length)
    assert s.fits is ((s.largest_micro_batch or 0) >= config.micro_batch)


PRESET_NUMBERS = {  # per GPU, states, activations (GB), minimum GPUs: by hand from DESIGN's formula
    "Llama-3-8B": (24.858, 16.0, 8.858, 2),
    "Llama-3-70B": (32.801, 17.5, 15.301, 18),
    "Llama-3-405B": (55.606, 12.656, 42.95, 175),
}


@pytest.mark.parametrize("name", PRESET_NUMBERS)
def test_presets_fit(name):
    s = simulate(preset(name))
    assert s.fits
    assert (
        s.per_gpu_total_gb,
        s.model_states_per_gpu_gb,
        s.activations_per_gpu_gb,
        s.min_gpus_to_fit,
    ) == PRESET_NUMBERS[name]


def test_rounding_comes_last():
    s = simulate(model_params_b=0.0011, num_gpus=3, seq_length=1, micro_batch=1)
    assert s.weights_per_gpu_gb + s.grads_per_gpu_gb + s.optimizer_per_gpu_gb == 0.006
    assert s.model_states_per_gpu_gb == 0.006
    assert s.components.states == pytest.approx(0.0011e9 * 16 / 3)


@pytest.mark.parametrize("gb", [0.1, 14.6, 70.6, 79.1, 1e5, 24.0005])
def test_capacity_is_in_gb_to_three_decimals(gb):
    assert simulate(gpu_memory_gb=gb).gpu_capacity_gb == round(gb, 3)


# The sweeps.


@pytest.mark.parametrize(
    ("ends", "value", "expected"),
    [
        (GPU_SWEEP, 8, (1, 2048)),
        (GPU_SWEEP, 1, (1, 2048)),
        (GPU_SWEEP, 2048, (1, 2048)),
        (GPU_SWEEP, 2049, (1, 4096)),
        (GPU_SWEEP, 1_000_000, (1, 2**20)),
        (SEQ_SWEEP, 512, (512, 131_072)),
        (SEQ_SWEEP, 511, (256, 131_072)),
        (SEQ_SWEEP, 256, (256, 131_072)),
        (SEQ_SWEEP, 1, (1, 131_072)),
        (SEQ_SWEEP, 131_072, (512, 131_072)),
        (SEQ_SWEEP, 131_073, (512, 262_144)),
        (SEQ_SWEEP, 2**24, (512, 2**24)),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_sweep_ends_make_room_for_the_request(ends, value, expected, whole):
    points = sweep_points(ends, value, whole=whole)
    assert len(points) == 48
    assert (points[0], points[-1]) == expected
    assert (np.diff(points) >= 0).all()
    with pytest.raises(ValueError, match="read-only"):
        points[0] = 0


@given(configs())
def test_every_sweep_point_is_the_model_at_that_point(config):
    s = simulate(config)
    for x, total in zip(s.gpu_sweep.x, s.gpu_sweep.total_gb, strict=True):
        changed = REDUCED.components(config, num_gpus=int(x))
        assert changed.total / 1e9 == total
    for x, total in zip(s.seq_sweep.x, s.seq_sweep.total_gb, strict=True):
        assert REDUCED.components(config, seq_length=float(x)).total / 1e9 == total
    assert s.gpu_sweep.x[0] <= config.num_gpus <= s.gpu_sweep.x[-1]
    assert s.seq_sweep.x[0] <= config.seq_length <= s.seq_sweep.x[-1]


# What would make it fit.


@given(everyday())
def test_every_fix_is_one_change_that_fits(config):
    s = simulate(config)
    fixes = s.fixes()
    if s.fits:
        assert fixes == []
    names = [fix.field for fix in fixes]
    assert names == sorted(set(names), key=FIX_ORDER.index)
    for fix in fixes:
        assert fix.value != getattr(config, fix.field)
        fixed = simulate(config, **{fix.field: fix.value})
        assert fixed.fits
        assert fixed.per_gpu_total_gb == fix.per_gpu_total_gb
        assert type(fix.value) is type(getattr(config, fix.field))


@given(everyday())
def test_no_fix_is_missed_and_each_is_the_smallest_change(config):
    s = simulate(config)
    if s.fits:
        return
    fixes = {fix.field: fix.value for fix in s.fixes()}

    def fits(**changes):
        return simulate(config, **changes).fits

    assert ("grad_ckpt" in fixes) is (not config.grad_ckpt and fits(grad_ckpt=1))
    stages = [k for k in range(config.zero_stage + 1, 4) if fits(zero_stage=k)]
    assert fixes.get("zero_stage") == (stages[0] if stages else None)
    assert fixes.get("num_gpus") == s.min_gpus_to_fit
    assert fixes.get("micro_batch") == s.largest_micro_batch
    assert fixes.get("seq_length") == s.longest_sequence
    cards = [gpu.nominal_gb for gpu in GPUS if fits(gpu_memory_gb=gpu.nominal_gb)]
    assert fixes.get("gpu_memory_gb") == (cards[0] if cards else None)


def test_a_fix_may_fill_the_card_to_the_byte():
    full = float(simulate().components.total)
    s = simulate(grad_ckpt=0, gpu_memory_gb=full / 1e9)
    assert s.model.capacity_bytes(s.config) == full
    assert not s.fits
    assert s.fixes()[0] == Fix("grad_ckpt", 1, "checkpointing on", round(full / 1e9, 3))


def test_fixes_of_the_mock():
    assert simulate(seq_length=65_536).fixes() == [
        Fix("micro_batch", 1, "micro batch 1", 51.433),
        Fix("seq_length", 29_592, "sequence 29 592", 79.998),
        Fix("gpu_memory_gb", 180.0, "B200 · 180 GB", 157.734),
    ]


def test_all_six_fixes_in_order():
    s = simulate(micro_batch=5, grad_ckpt=0, zero_stage=2)
    assert [fix.label for fix in s.fixes()] == [
        "checkpointing on",
        "micro batch 2",
        "sequence 2175",
        "H200 · 141 GB",
    ]
    s = simulate(micro_batch=2, grad_ckpt=0, zero_stage=1, num_gpus=4)
    assert [fix.label for fix in s.fixes()] == [
        "checkpointing on",
        "ZeRO-3",
        "10 GPUs",
        "micro batch 1",
        "sequence 2611",
        "H200 · 141 GB",
    ]


def test_one_gpu_has_nothing_to_share_with():
    assert "zero_stage" not in [f.field for f in simulate(num_gpus=1, zero_stage=1).fixes()]


def test_where_nothing_is_enough_there_is_no_fix():
    assert simulate(model_params_b=405, num_gpus=1, num_layers=126, hidden_dim=16384).fixes() == []


# The object.


def test_repr_is_one_line():
    text = repr(simulate(num_gpus=64))
    assert text.startswith("<Simulation 10.858 / 80 GB fits: model_params_b=8.0, num_gpus=64, ")
    assert "\n" not in text
    assert "does not fit" in repr(simulate(num_gpus=1))


def test_simulations_compare_by_what_they_say():
    first, again, other = simulate(), simulate(), simulate(num_gpus=9)
    assert first == again
    assert first != other
    assert len({first, again, other}) == 2
    assert replace(first, node="elsewhere", compute_ms=99.0) == first


def test_simulations_survive_pickling():
    first = simulate(seq_length=65_536)
    copy = pickle.loads(pickle.dumps(first))
    assert copy == first
    assert copy.fixes() == first.fixes()
    assert same(copy.to_dict(), first.to_dict())


def test_an_answer_without_a_model_says_what_to_do():
    distant = replace(simulate(num_gpus=1), model=None, node="far")
    assert distant.to_dict()["outputs"]["fits"] is False
    for ask in (
        distant.fixes,
        lambda: distant.longest_sequence,
        lambda: distant.largest_micro_batch,
    ):
        with pytest.raises(ValueError, match=r"the answer of far has no model .* use trainmem"):
            ask()


def test_simulate_takes_any_model():
    class Flat:
        description = "flat"

        def components(self, config, **axes):
            part = 1e9 + 0 * np.asarray(axes.get("num_gpus", axes.get("seq_length", 1)))
            return type(simulate().components)(part, part, part, part)

        def capacity_bytes(self, config):
            return 4e9

        def bytes_per_param(self, config):
            return 2.0

    s = simulate(model=Flat())
    assert isinstance(s, Simulation)
    assert (s.per_gpu_total_gb, s.utilization_percent, s.fits) == (4.0, 100.0, True)
    assert s.to_dict()["model"] == "flat"
    assert s.min_gpus_to_fit == 1
    assert s.longest_sequence == FIELDS["seq_length"].bounds[1]
    assert math.isclose(s.headroom_gb, 0)
