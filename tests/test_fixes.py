"""What makes a step of the architecture-aware model fit: each offer keeps its promise."""

from __future__ import annotations

import pytest

from steps import OFFERED, llama
from trainmem import Plan, TrainingMemory, simulate


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("given", OFFERED)
def test_a_fix_ends_in_the_grade_that_it_promises(given):
    s = llama(**given)
    assert s.grade != "fits"
    fixes = s.fixes()
    assert fixes
    for fix in fixes:
        after = s.after(fix)
        assert (after.grade, after.per_gpu_total_gb) == (fix.grade, fix.per_gpu_total_gb)
        memory = TrainingMemory(s.config, architecture=s.architecture, gpu=s.model.gpu)
        memory.update(plan=s.model.options)
        memory.update(**fix.changes)  # what a button of the widget does
        assert (memory.grade, memory.per_gpu_total_gb) == (fix.grade, fix.per_gpu_total_gb)
    grades = [fix.grade for fix in fixes]
    assert grades == sorted(grades)  # what fits first
    assert set(grades) <= {"fits", "uncertain"}
    if s.grade == "uncertain":
        assert set(grades) == {"fits"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (OFFERED[0], ["grad_ckpt", "micro_batch", "seq_length", "gpu_memory_gb"]),
        (OFFERED[4], ["zero_stage", "gpu_memory_gb", "lora_rank"]),
        (OFFERED[5], ["zero_stage", "gpu_memory_gb", "lora_rank", "optimizer"]),
        (OFFERED[6], ["offload", "num_gpus", "gpu_memory_gb", "lora_rank"]),
        (OFFERED[7], ["offload", "num_gpus", "zero_stage", "gpu_memory_gb", "lora_rank"]),
        (OFFERED[8], ["offload", "num_gpus", "gpu_memory_gb", "lora_rank"]),
        ({}, []),
    ],
)
def test_what_is_offered(given, expected):
    assert [fix.field for fix in llama(**given).fixes()] == expected


def test_beyond_one_machine_whole_machines_are_offered():
    fixes = {fix.field: fix.value for fix in llama(**OFFERED[6]).fixes()}
    assert fixes["num_gpus"] == 24


def test_offers_reach_what_solved_published_runs():
    no_sync = {"accumulation": 2, "no_sync": True}
    plan = Plan(num_gpus=8, micro_batch=1, seq_length=2048, precision="bf16", **no_sync)
    s = simulate(architecture="Mixtral-8x7B", plan=plan, gpu="A100 · 80 GB")
    assert {fix.field: fix.value for fix in s.fixes()}["no_sync"] is False
