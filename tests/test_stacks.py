"""Stacks, layouts and calibration, as `simulate` and the widget show them."""

from __future__ import annotations

import pytest

import trainmem
from trainmem import ConfigError, simulate
from trainmem.cards import PRESETS
from trainmem.widget.controls import tables
from trainmem.widget.words import panel

GIB = 2**30
PIPELINE = {
    "framework": "megatron", "kernels": "transformer_engine", "precision": "bf16_master",
    "loss_head": "in_place", "tp": 8, "pp": 16,
}  # fmt: skip


def planned(**changes):
    return simulate(
        architecture="Llama-3-405B", num_gpus=512, micro_batch=1, seq_length=8192, zero_stage=1,
        gpu="H100 · 80 GB", plan=PIPELINE, **changes,
    )  # fmt: skip


def test_the_verdict_names_the_layout_and_what_is_sharded_over_it():
    simulation = planned()
    assert simulation.verdict.endswith(
        "distributed optimizer (optimizer states sharded), tp 8 × pp 16 × dp 4 = 512 GPUs"
    )
    assert panel(simulation)["layout"] == "tp 8 × pp 16 × dp 4 = 512 GPUs"
    assert panel(simulate(architecture="Llama-3-8B"))["layout"] == ""
    assert panel(simulate())["layout"] == ""


def test_expert_parallelism_is_named_beside_the_product():
    simulation = simulate(
        architecture="Mixtral-8x7B",
        num_gpus=64,
        zero_stage=1,
        plan={**PIPELINE, "pp": 1, "tp": 2, "ep": 8},
    )  # fmt: skip
    assert panel(simulation)["layout"] == "tp 2 × dp 32 = 64 GPUs, ep 8 of them"


def test_an_invalid_layout_is_refused_with_choices():
    with pytest.raises(ConfigError, match=r"num_gpus|tp|pp"):
        simulate(architecture="Llama-3-8B", num_gpus=12, zero_stage=1, plan={**PIPELINE, "pp": 1})


def test_gpu_counts_stay_multiples_of_the_layout():
    simulation = planned()
    assert simulation.min_gpus_to_fit is not None
    assert simulation.min_gpus_to_fit % 128 == 0
    assert not (simulation.gpu_sweep.x % 128).any()
    assert 512 in simulation.gpu_sweep.x


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("stack", [s["name"] for s in tables()["stacks"] if s["name"] != "llm.c"])
def test_every_stack_of_the_widget_is_a_valid_change(stack):
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B")
    memory.update(stack=stack)
    assert memory.error == ""
    assert memory.per_gpu_total_gb > 0
    plan = memory.simulation.plan
    own = trainmem.transformer.STACKS[stack].options
    assert {name: getattr(plan, name) for name in own} == dict(own)
    assert panel(memory.simulation)["stack"] == stack


def own(memory):
    """What a person sees of a step: the ten inputs and the options."""
    return memory.config, memory.plan


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("stack", [s["name"] for s in tables()["stacks"] if s["name"] != "llm.c"])
@pytest.mark.parametrize(
    "had",
    [
        {"zero_stage": 2, "grad_ckpt": 0},
        {"precision": "bf16", "checkpointing": "every_2nd", "wrapping": "split"},
    ],
)
def test_going_back_to_the_stack_before_returns_what_the_person_had(stack, had):
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B", **had)
    before = own(memory)
    for name in (stack, "megatron-full", stack, "transformers"):
        memory.update(stack=name)
    assert own(memory) == before
    assert panel(memory.simulation)["stack"] == "transformers"


def test_what_was_changed_by_hand_outlives_the_stack():
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B", zero_stage=3)
    memory.update(stack="megatron")
    assert (memory.zero_stage, memory.grad_ckpt) == (1, 0)
    memory.zero_stage = 0
    memory.update(stack="transformers")
    assert (memory.zero_stage, memory.grad_ckpt) == (0, 1)


def test_a_stack_that_came_with_the_plan_leaves_its_options_with_it():
    memory = trainmem.TrainingMemory(
        architecture="Llama-3-8B", zero_stage=1, num_gpus=8, plan={**PIPELINE, "pp": 1, "tp": 2}
    )
    memory.update(stack="torchtitan-full")
    assert memory.plan == {
        "kernels": "torchtitan", "loss_head": "compiled", "wrapping": "split", "tp": 2,
    }  # fmt: skip
    assert panel(memory.simulation)["stack"] == "torchtitan-full"


def test_any_gives_the_ten_inputs_back_and_an_architecture_its_stack():
    memory = trainmem.TrainingMemory(num_gpus=16, seq_length=8192, zero_stage=2)
    before = memory.config
    memory.update(architecture="GPT-2")
    memory.update(architecture="Llama-3-8B", stack="megatron")
    within = own(memory)
    assert (memory.zero_stage, memory.grad_ckpt, memory.seq_length) == (1, 0, 8192)
    memory.architecture = ""
    assert memory.config == before
    memory.architecture = "Llama-3-8B"
    assert own(memory) == within
    memory.num_gpus = 32  # by hand: kept
    memory.grad_ckpt = 1
    memory.architecture = ""
    assert memory.config == before.replace(num_gpus=32)
    memory.update(grad_ckpt=0, zero_stage=0)
    memory.architecture = "Llama-3-8B"
    assert (memory.grad_ckpt, memory.zero_stage) == (0, 0)


def test_a_preset_is_whole_under_either_model():
    memory = trainmem.TrainingMemory(num_gpus=3)
    for preset in PRESETS:
        memory.update(preset=preset.name)
        assert (memory.config, memory.gpu) == (preset.config, preset.gpu)
        memory.architecture = preset.architecture
        memory.update(stack="transformers+liger")
        assert panel(memory.simulation)["preset"] == ""  # another stack is another step
        memory.update(preset=preset.name)
        assert (memory.architecture, memory.plan) == (preset.architecture, {})
        assert panel(memory.simulation)["preset"] == preset.name
        memory.architecture = ""
        assert memory.config == preset.config
        assert panel(memory.simulation)["preset"] == preset.name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stack": "nonsense"}, "stack: 'nonsense' is not allowed; must be one of transformers"),
        ({"stack": 5}, "stack: 5"),
        ({"preset": "Llama"}, "preset: 'Llama' is not allowed; must be one of Llama-3-8B"),
        ({"preset": None}, "preset: None"),
        ({"stack": "megatron", "architecture": ""}, "stack: .*it needs an architecture"),
    ],
)
def test_unknown_stacks_and_presets_change_nothing(changes, words):
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B")
    before = own(memory)
    with pytest.raises(ConfigError, match=words):
        memory.update(**changes)
    assert own(memory) == before


def test_calibrate_compares_by_level_and_carries_the_factor():
    simulation = planned()
    predicted = float(simulation.components.total)
    found = simulation.calibrate(
        peak_allocated_gib=1.1 * predicted / GIB, peak_reserved_gib=1.2 * predicted / GIB
    )
    assert found.calibration.factor == pytest.approx(1.1)
    assert [c.level for c in found.calibration.comparisons] == ["allocated", "reserved"]
    assert "+10.0%" in str(found.calibration)
    assert found.per_gpu_total_gb == pytest.approx(1.1 * predicted / 1e9, abs=1e-3)
    assert found.gpu_sweep.total_gb == pytest.approx(1.1 * simulation.gpu_sweep.total_gb)
    assert found.seq_sweep.total_gb == pytest.approx(1.1 * simulation.seq_sweep.total_gb)
    assert found.peak_case.levels[0].high_bytes == pytest.approx(
        1.1 * simulation.peak_case.levels[0].high_bytes
    )
    assert "calibrated × 1.100" in found.to_dict()["model"]
    again = found.calibrate(peak_allocated_gib=predicted / GIB)  # of the model, not of itself
    assert again.calibration.factor == pytest.approx(1)
    assert simulation.calibration is None


def test_calibrate_reads_memory_stats():
    simulation = simulate(architecture="Llama-3-8B")
    total = int(simulation.components.total)
    stats = {"allocated_bytes.all.peak": 2 * total, "reserved_bytes.all.peak": 3 * total}
    assert simulation.calibrate(memory_stats=stats).calibration.factor == pytest.approx(2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give peak_allocated_gib"),
        ({"peak_allocated_gib": -1}, "peak_allocated_gib must be a positive number"),
        ({"peak_allocated_gib": 1e9}, "the same step"),
        ({"memory_stats": {}}, "memory_stats has no"),
    ],
)
def test_calibrate_refuses_what_is_no_measurement(given, words):
    with pytest.raises(ValueError, match=words):
        simulate(architecture="Llama-3-8B").calibrate(**given)
    with pytest.raises(ValueError, match="needs an architecture"):
        simulate().calibrate(peak_allocated_gib=10)
