"""Predicted against measured, and the factor that sweeps carry."""

from __future__ import annotations

import json

import pytest

from steps import planned
from trainmem import TrainingConfig, simulate
from trainmem.transformer import (
    Plan,
    TransformerModel,
    architecture,
    calibrate,
    derived_inputs,
    levels,
    peak,
)

LLAMA = architecture("Llama-3-8B")
PLAN = Plan()
ALLOCATED = peak(LLAMA, PLAN).peak_bytes
LEVELS = levels(ALLOCATED, PLAN)
GIB = 2**30


def test_allocated_gives_the_factor():
    found = calibrate(LEVELS, peak_allocated_gib=1.04 * ALLOCATED / GIB)
    assert (found.factor, found.source) == (pytest.approx(1.04), "allocated")
    (one,) = found.comparisons
    assert one.predicted_bytes == ALLOCATED
    assert one.inside
    assert one.ratio == found.factor


def test_reserved_alone_gives_it_too_but_allocated_comes_first():
    reserved = LEVELS[1].expected_bytes / GIB
    found = calibrate(LEVELS, peak_reserved_gib=0.5 * reserved)
    assert (found.factor, found.source) == (pytest.approx(0.5), "reserved")
    assert not found.comparisons[0].inside
    both = calibrate(LEVELS, peak_allocated_gib=ALLOCATED / GIB, peak_reserved_gib=2 * reserved)
    assert both.factor == pytest.approx(1)
    assert [c.level for c in both.comparisons] == ["allocated", "reserved"]


def test_memory_stats_are_read_as_pytorch_gives_them():
    stats = {
        "allocated_bytes.all.peak": int(1.1 * ALLOCATED),
        "reserved_bytes.all.peak": int(1.3 * ALLOCATED),
        "allocated_bytes.all.current": 1,
        "num_ooms": 0,
    }
    found = calibrate(LEVELS, memory_stats=stats)
    assert found.factor == pytest.approx(1.1)
    assert len(found.comparisons) == 2


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({}, "give peak_allocated_gib, peak_reserved_gib or memory_stats"),
        ({"peak_allocated_gib": 0}, "peak_allocated_gib must be a positive number, got 0"),
        ({"peak_allocated_gib": float("nan")}, "peak_allocated_gib must be a positive number"),
        ({"peak_reserved_gib": "40"}, "peak_reserved_gib must be a positive number, got '40'"),
        ({"peak_reserved_gib": True}, "peak_reserved_gib must be a positive number, got True"),
        ({"peak_allocated_gib": 1e-3}, "times the predicted .* within 0.2 to 5"),
        ({"peak_allocated_gib": 40, "peak_reserved_gib": 30}, "must be at least peak allocated"),
        ({"memory_stats": {}}, "memory_stats has no 'allocated_bytes.all.peak'"),
        ({"memory_stats": []}, "memory_stats must be the mapping that .* got list"),
        ({"memory_stats": {"allocated_bytes.all.peak": -1}}, "must be a positive number, got -1"),
        ({"memory_stats": {}, "peak_allocated_gib": 1}, "give memory_stats or peak_allocated_gib"),
    ],
)
def test_bad_measurements_are_named(measured, message):
    with pytest.raises(ValueError, match=message):
        calibrate(LEVELS, **measured)


def test_sweeps_and_the_fewest_gpus_carry_the_factor():
    config = TrainingConfig(**derived_inputs(LLAMA))
    plain = TransformerModel(LLAMA)
    found = calibrate(LEVELS, peak_allocated_gib=1.2 * ALLOCATED / GIB)
    model = TransformerModel(LLAMA, calibration=found)
    counts = [8, 16, 64]
    ratio = (
        model.components(config, num_gpus=counts).total
        / plain.components(config, num_gpus=counts).total
    )
    assert ratio == pytest.approx([1.2] * 3)
    assert simulate(config, model=model).per_gpu_total_gb == pytest.approx(
        1.2 * simulate(config, model=plain).per_gpu_total_gb, rel=1e-4
    )
    assert model.smallest_num_gpus(config) >= plain.smallest_num_gpus(config)
    assert "calibrated × 1.200" in model.description
    assert "calibrated" not in plain.description
    detail = json.loads(json.dumps(model.detail(config)))
    assert detail["detail"]["calibration"]["factor"] == pytest.approx(1.2)
    assert "calibration" not in plain.detail(config)["detail"]


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
