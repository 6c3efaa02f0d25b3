"""The peak of the architecture-aware model in words: grades, verdict, banner, layout."""

from __future__ import annotations

import pytest

from steps import GIB, PIPELINE, llama, planned
from trainmem import OPTIONS, simulate
from trainmem.request import PLAN_OPTIONS
from trainmem.transformer import Framework, add, remove, stack
from trainmem.widget.words import panel


def test_a_verdict_says_why_experts_need_more_with_more_gpus():
    def mixtral(gpus):
        return simulate(architecture="Mixtral-8x7B", num_gpus=gpus, micro_batch=1)

    few, many = mixtral(8), mixtral(128)
    assert many.per_gpu_total_gb > 2 * few.per_gpu_total_gb  # as traced: padded-experts.json
    why = "FSDP2 pads the 8 experts of each layer to 128 ranks"
    assert why in many.verdict
    assert why in many.banner
    assert "FSDP2 pads" not in few.verdict + few.banner


@pytest.mark.parametrize(
    ("batch", "length", "grade"),
    [
        (7, 4096, "fits"),
        (8, 3900, "uncertain"),
        (8, 4096, "does not fit"),
        (12, 4096, "does not fit"),
    ],
)
def test_three_grades_by_share_of_the_card(batch, length, grade):
    s = llama(micro_batch=batch, seq_length=length)
    share = float(s.components.total) / (79.1 * GIB)
    assert s.grade == grade
    assert s.fits == (share <= 1)
    assert (share < 0.8) == (grade == "fits")
    too_much = s.peak_case.levels[2].low_bytes > 79.1 * GIB
    assert (share > 1 or (too_much and share >= 0.8)) == (grade == "does not fit")


class Wary(Framework):
    """A framework of which something is not counted."""

    name = label = "wary"
    fits_below = 0.7
    remark = "a buffer of its own is not counted"


def test_a_step_of_which_something_is_not_counted_fits_later_and_says_why():
    wary = Wary()
    add(wary)
    try:
        plan = stack("transformers", framework="wary", precision="bf16_master", num_gpus=8)
        need = llama(plan=plan, gpu=None).components.total / 1e9
        s = llama(plan=plan, gpu=None, gpu_memory_gb=need / 0.75)
        assert s.grade == "uncertain"
        for sentence in (s.verdict, s.banner, s.to_dict()["detail"]["grade_source"]):
            assert "buffer of its own is not counted" in sentence
        assert llama(plan=plan, gpu=None, gpu_memory_gb=need / 0.69).grade == "fits"
    finally:
        remove(wary)


def test_the_reduced_model_has_two_grades():
    assert [simulate(gpu_memory_gb=gb).grade for gb in (24.9, 24.8)] == ["fits", "does not fit"]


@pytest.mark.parametrize(
    ("given", "label", "parts"),
    [
        ({}, "loss-dominated", ["peak in the backward pass of the loss: logits and loss 56 %",
                                "a chunked loss head (18.9 GB)"]),
        ({"grad_ckpt": 0}, "activation-dominated", ["GB over capacity", "checkpointing (",
                                                    "no GPU count fits: what the GPUs"]),
        ({"num_gpus": 1}, "model-state-dominated", ["backward pass of the layers",
                                                    "twice the GPUs ("]),
        ({"zero_stage": 0}, "model-state-dominated", ["ZeRO-3 (", "stage 0 shards nothing",
                                                      "ZeRO-0 / DDP (nothing sharded)"]),
        ({"micro_batch": 8, "seq_length": 3900}, "loss-dominated",
         ["too close to capacity to be certain"]),
    ],
)  # fmt: skip
def test_the_verdict_says_what_sets_the_peak_and_what_frees_memory(given, label, parts):
    verdict = llama(**given).verdict
    assert verdict.startswith(f"{label} -- peak in ")
    for part in parts:
        assert part in verdict


@pytest.mark.parametrize("given", [{}, {"grad_ckpt": 0}, {"zero_stage": 1}, {"micro_batch": 12}])
def test_what_frees_memory_was_tried(given):
    s = llama(**given)
    for change, freed in s.peak_case.frees:
        if change.field in OPTIONS and change.field in PLAN_OPTIONS:
            after = llama(**given, plan={change.field: change.value})
        else:
            after = llama(**{**given, change.field: change.value})
        assert float(s.components.total - after.components.total) == freed > 0


def test_the_banner_gives_the_card_interval_where_uncertain():
    s = llama(micro_batch=8, seq_length=3900)
    low, high = s.peak_case.levels[2].low_bytes / 1e9, s.peak_case.levels[2].high_bytes / 1e9
    assert f"the card may need {low:.1f} to {high:.1f} GB" in s.banner
    assert "headroom" in llama().banner
    assert llama(grad_ckpt=0).banner.startswith("60.7 GB short. ")


def test_the_composition_is_that_of_the_peak():
    s = llama()
    assert (
        dict(s.peak_case.groups)["logits and loss"]
        == s.peak_case.peak.bytes_by_kind["logits and loss"]
    )
    assert sum(size for _, size in s.peak_case.groups) == s.components.total


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
