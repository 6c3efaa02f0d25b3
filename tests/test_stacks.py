"""Stacks, layouts and calibration, as `simulate` and the widget show them."""

from __future__ import annotations

import pytest

import trainmem
from trainmem import ConfigError, simulate
from trainmem.presentation import panel, tables

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


@pytest.mark.parametrize("stack", [s["name"] for s in tables()["stacks"] if s["name"] != "llm.c"])
def test_every_stack_of_the_widget_is_a_valid_change(stack):
    changes = next(s["changes"] for s in tables()["stacks"] if s["name"] == stack)
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B")
    memory.update(**changes)
    assert memory.error == ""
    assert memory.per_gpu_total_gb > 0
    plan = memory.simulation.plan
    own = trainmem.transformer.STACKS[stack].options
    assert {name: getattr(plan, name) for name in own} == dict(own)


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
    assert found.moment.levels[0].high_bytes == pytest.approx(
        1.1 * simulation.moment.levels[0].high_bytes
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
