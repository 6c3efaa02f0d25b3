"""The architecture-aware model through the common surface: simulate, traits, panel, figures."""

from __future__ import annotations

import inspect
import io
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import ipywidgets
import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from matplotlib.figure import Figure
from matplotlib.text import Text
from traitlets import TraitError

import trainmem
from trainmem import (
    ARCHITECTURES,
    OPTIONS,
    Architecture,
    ConfigError,
    Fix,
    Plan,
    TrainingConfig,
    TrainingMemory,
    TrainingMemoryWidget,
    preset,
    simulate,
)
from trainmem.__main__ import main
from trainmem.config import FIELDS, Inputs
from trainmem.limits import Limit
from trainmem.picture.figure import draw_timeline, plot_timeline
from trainmem.readers import read_configuration
from trainmem.request import PLAN_OPTIONS, AllInputs, NotCovered, PlanOptions
from trainmem.transformer import (
    STACKS,
    TransformerModel,
    architecture,
    peak,
    plan_of,
    stack,
)
from trainmem.widget.calls import python_call
from trainmem.widget.controls import tables
from trainmem.widget.inputs import WidgetInputs
from trainmem.widget.words import panel

H100 = "H100 · 80 GB"
GIB = 2**30
TINY = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "_name_or_path": "someone/tiny",
}  # fmt: skip


def llama(**given: Any) -> Any:
    return simulate(**{"architecture": "Llama-3-8B", "gpu": H100, **given})


# -- simulate -------------------------------------------------------------------------------


def test_the_three_inputs_follow_from_the_architecture():
    config = llama().config
    assert config.model_params_b == pytest.approx(8.030261248)
    assert (config.num_layers, config.hidden_dim) == (32, 4096)
    assert llama(config=TrainingConfig(num_layers=3)).config.num_layers == 32
    assert llama(num_layers=32).config.num_layers == 32


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"architecture": "Llama3-8B"}, "architecture", "did you mean Llama-3-8B"),
        ({"architecture": 5}, "architecture", "must be an Architecture or one of GPT-2"),
        ({"num_layers": 3}, "num_layers", "it is 32, derived from Llama-3-8B"),
        ({"hidden_dim": 0}, "hidden_dim", "must be a whole number"),
        ({"nonsense": 3}, "unknown field", "must be one of model_params_b"),
        ({"precision_bits": 8}, "precision_bits", "must be 16 or 32 with an architecture"),
        ({"architecture": "GPT-2", "seq_length": 1025}, "seq_length", "at most 1024 with GPT-2"),
        ({"plan": {"loss": 1}}, "unknown option", "did you mean loss_head"),
        ({"plan": {"loss_head": "x"}}, "loss_head", "must be one of 'transformers', 'chunked'"),
        ({"plan": {"loss_chunk": 0}}, "loss_chunk", "must be an integer from 1 to"),
        ({"plan": {"num_gpus": 9}}, "plan: num_gpus", "num_gpus is 8: change that input"),
        ({"plan": {"sharding": "ddp"}}, "plan: sharding", "zero_stage is 3"),
        ({"plan": {"precision": "fp32"}}, "plan: precision", "precision_bits is 16"),
        (
            {"plan": {"dropout": True, "kernels": "torchtitan"}},
            "dropout",
            "dropout is covered with kernels 'transformers'",
        ),
        ({"plan": {"optimizer": "adam8bit"}}, "optimizer", "is not covered with sharding"),
        ({"plan": 5}, "plan", "must be a Plan, or a dict of options"),
        ({"gpu": "H100"}, "gpu", "must be one of T4"),
        ({"gpu_memory_gb": 40}, "gpu_memory_gb", "must be 80 for H100"),
        ({"architecture": None, "plan": {}}, "plan", "it needs an architecture"),
    ],
)
def test_bad_requests_name_the_field(given, field, message):
    with pytest.raises(ConfigError, match=message) as caught:
        llama(**given) if "architecture" not in given else simulate(**{"gpu": H100, **given})
    assert caught.value.field == field


def test_an_error_survives_pickling():
    error = NotCovered("dropout is covered for gpt2 only, got family 'llama'", "dropout")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field) == (str(error), "dropout")


def test_a_model_and_an_architecture_are_not_both_given():
    with pytest.raises(TypeError, match="not both"):
        simulate(architecture="GPT-2", model=TransformerModel(ARCHITECTURES["GPT-2"]))


def test_a_card_brings_what_it_shows_and_a_typed_size_its_bytes():
    assert llama().gpu_capacity_gb == round(79.1 * GIB / 1e9, 3)
    assert llama(gpu=None, gpu_memory_gb=80).gpu_capacity_gb == 80.0
    assert simulate(gpu="H200 · 141 GB").gpu_capacity_gb == 141.0  # nominal: the reduced model


@pytest.mark.parametrize(
    ("given", "capacity"),
    [
        ({}, 84.933),
        ({"num_gpus": 64}, 84.933),
        ({"gpu_memory_gb": 80}, 80.0),
        ({"config": TrainingConfig()}, 84.933),
        ({"config": preset("Llama-3-70B")}, 84.933),
        ({"config": TrainingConfig(num_gpus=64)}, 80.0),
        ({"gpu": "T4 · 16 GB"}, 15.677),
        ({"gpu": "H100 · 80 GB", "config": TrainingConfig(num_gpus=64)}, 84.933),
    ],
)
def test_simulate_and_the_widget_mean_the_same_card(given, capacity):
    s = simulate(architecture="Llama-3-8B", **given)
    memory = TrainingMemory(architecture="Llama-3-8B", **given)
    assert s.gpu_capacity_gb == memory.gpu_capacity_gb == capacity
    note = panel(s)["cards"][0]["note"]
    assert note.endswith("% of 84.9 GB usable") is (capacity == 84.933)
    assert panel(memory.simulation) | {"footer": ""} == panel(s) | {"footer": ""}


def test_a_plain_architecture_is_enough_even_where_positions_end():
    assert simulate(architecture="GPT-2").config.seq_length == 1024


def test_a_whole_plan_is_a_request_and_a_config_wins_over_it():
    plan = Plan(num_gpus=64, seq_length=2048, loss_head="fused", checkpointing="none")
    answer = simulate(architecture="Llama-3-8B", plan=plan)
    assert answer.plan == plan
    assert simulate(TrainingConfig(), architecture="Llama-3-8B", plan=plan).config.num_gpus == 8
    assert simulate(architecture="Llama-3-8B", plan=plan, num_gpus=16).plan.num_gpus == 16


def test_options_that_need_replicas_can_be_asked_for():
    assert llama(zero_stage=0, plan={"optimizer": "adam8bit"}).bytes_per_param < 12


def test_accumulation_counts_in_the_global_batch():
    assert llama(plan={"accumulation": 4}).global_batch == 4 * 8 * 4


def test_the_answer_keeps_the_published_keys_and_adds_two(reference):
    answer = json.loads(json.dumps(llama().to_dict()))
    assert list(answer) == [*reference, "plan", "detail"]
    assert list(answer["outputs"]) == list(reference["outputs"])
    assert answer["plan"] == asdict(llama().plan)
    detail = answer["detail"]
    assert sum(detail["bytes_by_kind"].values()) == detail["peak_bytes"]
    assert detail["peak_bytes"] == llama().components.total
    assert [level["name"] for level in detail["levels"]] == ["allocated", "reserved", "card"]
    assert list(simulate().to_dict()) == list(reference)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"zero_stage": 0, "num_gpus": 1, "plan": {"optimizer": "sgd"}},
        {"precision_bits": 32, "grad_ckpt": 0, "plan": {"accumulation": 2}},
    ],
)
def test_an_answer_can_be_asked_again(given):
    first = llama(**given)
    d = json.loads(json.dumps(first.to_dict()))
    again = simulate(
        **d["inputs"],
        architecture=Architecture(**d["detail"]["architecture"]),
        plan=d["plan"],
        gpu=d["detail"]["gpu"],
    )
    assert again == first


def test_the_python_line_repeats_the_answer():
    tiny = TrainingMemory()
    tiny.open_config(TINY)
    for s in (llama(plan={"loss_head": "chunked"}), tiny.simulation):
        names: dict[str, Any] = {}
        exec(python_call(s.config, s.model), names)
        assert names["simulation"] == s


# -- limits and fixes -------------------------------------------------------------------------

CASES = (
    {},
    {"gpu": "A100 · 40 GB", "micro_batch": 1},
    {"plan": {"loss_head": "fused"}},
    {"plan": {"loss_head": "chunked"}, "seq_length": 512},
    {"grad_ckpt": 0, "micro_batch": 1, "seq_length": 2048, "plan": {"attention": "eager"}},
)


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("field", ["seq_length", "micro_batch"])
def test_limits_fit_and_the_next_value_does_not(given, field):
    s = llama(**given)
    most = s.longest_sequence if field == "seq_length" else s.largest_micro_batch
    capacity = s.gpu_capacity_gb
    assert s.at(**{field: most}) <= capacity < s.at(**{field: most + 1})


@pytest.mark.parametrize("given", CASES)
def test_fewest_gpus_fit_and_one_less_does_not(given):
    s = llama(**given)
    assert s.at(num_gpus=s.min_gpus_to_fit) <= s.gpu_capacity_gb
    if s.min_gpus_to_fit > 1:
        assert s.at(num_gpus=s.min_gpus_to_fit - 1) > s.gpu_capacity_gb


def test_padding_makes_a_million_gpus_worse_yet_the_fewest_is_found():
    s = llama()
    assert s.min_gpus_to_fit == 2
    assert s.at(num_gpus=1_000_000) > s.gpu_capacity_gb


def test_where_nothing_fits_the_reason_is_given():
    s = simulate(architecture="Llama-3-405B", gpu="T4 · 16 GB", seq_length=128, micro_batch=1)
    assert (s.min_gpus_to_fit, s.longest_sequence, s.largest_micro_batch) == (None, None, None)
    assert s.min_gpus_reason.startswith("what the GPUs don't share takes at least ")
    assert s.longest_sequence_reason == f"even one token needs {s.at(seq_length=1):.1f} GB"
    assert s.largest_micro_batch_reason.startswith("even one sequence needs ")
    assert llama(zero_stage=0).min_gpus_reason == "stage 0 shards nothing"


def test_lengths_end_where_the_positions_do_and_rotary_ones_do_not():
    gpt2 = simulate(architecture="GPT-2", gpu=H100)
    assert gpt2.longest_sequence == 1024
    assert gpt2.longest_sequence_reason == "GPT-2 takes at most 1024 positions"
    assert llama().longest_sequence > ARCHITECTURES["Llama-3-8B"].max_positions
    assert llama().longest_sequence_reason is None


OFFERED = (
    {"grad_ckpt": 0},
    {"micro_batch": 12},
    {"micro_batch": 8, "seq_length": 3900},
    {"micro_batch": 1, "grad_ckpt": 0, "seq_length": 8192, "plan": {"attention": "eager"}},
    {"zero_stage": 0},
    {"zero_stage": 0, "num_gpus": 1, "micro_batch": 1, "seq_length": 512},
    {"architecture": "Llama-3-70B", "num_gpus": 16, "micro_batch": 1, "seq_length": 8192},
    {"plan": stack("deepspeed-zero2", num_gpus=1, seq_length=128)},
    {"plan": stack("deepspeed-zero3", seq_length=1024), "gpu": "RTX 3090 · 24 GB"},
    {"plan": {"accumulation": 2, "no_sync": True}, "gpu": "A100 · 40 GB"},
    {"zero_stage": 0, "plan": {"optimizer": "adam8bit"}},  # which ZeRO-3 does not have
)


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


@pytest.mark.parametrize("given", OFFERED)
def test_a_limit_says_how_sure_it_is_and_what_fits(given):
    s = llama(**given)
    for field in ("num_gpus", "seq_length", "micro_batch"):
        limit = s.limit(field)
        if limit.value is None:
            assert limit == Limit(None, "does not fit", None)
            continue
        at = s.after(Fix(field, limit.value, "", 0.0))
        assert (at.fits, at.grade) == (True, limit.grade)
        if limit.surely is None:
            continue
        assert s.after(Fix(field, limit.surely, "", 0.0)).grade == "fits"
        beyond = limit.surely + (-s.model.gpu_multiple if field == "num_gpus" else 1)
        if limit.surely != limit.value and beyond:
            assert s.after(Fix(field, beyond, "", 0.0)).grade != "fits"


def test_a_verdict_says_why_experts_need_more_with_more_gpus():
    def mixtral(gpus):
        return simulate(architecture="Mixtral-8x7B", num_gpus=gpus, micro_batch=1)

    few, many = mixtral(8), mixtral(128)
    assert many.per_gpu_total_gb > 2 * few.per_gpu_total_gb  # as traced: padded-experts.json
    why = "FSDP2 pads the 8 experts of each layer to 128 ranks"
    assert why in many.verdict
    assert why in many.banner
    assert "FSDP2 pads" not in few.verdict + few.banner


# -- grades and sentences ---------------------------------------------------------------------


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


def test_a_step_of_deepspeed_fits_below_seventy_percent_only_and_says_why():
    plan = stack("deepspeed-zero2", num_gpus=8, seq_length=4096)
    s = llama(plan=plan, gpu=None, gpu_memory_gb=53)
    assert 0.7 < s.components.total / 53e9 < 0.8
    assert s.grade == "uncertain"
    for sentence in (s.verdict, s.banner, s.to_dict()["detail"]["grade_source"]):
        assert "DeepSpeed's optimizer step makes fp32 copies of its gradients" in sentence
    assert llama(plan=plan, gpu=None, gpu_memory_gb=57).grade == "fits"


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


# -- traits -----------------------------------------------------------------------------------


def test_switching_back_and_forth_keeps_the_shared_inputs():
    m = TrainingMemory(num_gpus=16, num_layers=40, model_params_b=13, seq_length=2048)
    before = m.config
    m.architecture = "GPT-2"
    assert (m.num_layers, m.seq_length, m.num_gpus) == (12, 1024, 16)
    m.micro_batch = 2
    m.architecture = "Llama-3-8B"
    assert (m.num_layers, m.seq_length) == (32, 2048)
    m.architecture = ""
    assert m.config == before.replace(micro_batch=2)


def test_what_was_changed_since_is_kept():
    m = TrainingMemory(seq_length=4096)
    m.architecture = "GPT-2"
    m.seq_length = 512
    m.architecture = ""
    assert m.seq_length == 512
    m.seq_length = 4096
    m.update(architecture="GPT-2", seq_length=1024)  # asked for, not only all that it takes
    m.architecture = ""
    assert m.seq_length == 1024


@pytest.mark.parametrize("name", ["model_params_b", "num_layers", "hidden_dim"])
def test_derived_inputs_are_read_only_while_an_architecture_is_chosen(name):
    m = TrainingMemory(architecture="Llama-3-8B")
    value = getattr(m, name)
    with pytest.raises(
        ConfigError, match=rf"{name}: 3(\.0)? is not allowed; .* derived from Llama-3-8B"
    ):
        setattr(m, name, 3)
    with pytest.raises(ConfigError):
        m.update(**{name: 3, "num_gpus": 4})
    assert (getattr(m, name), m.num_gpus) == (value, 8)
    setattr(m, name, value)  # the same value is no change
    assert m.error == ""


def test_update_computes_once(monkeypatch):
    m = TrainingMemory()
    calls = []
    monkeypatch.setattr(
        "trainmem.widget.traits.simulate", lambda *a, **k: calls.append(1) or simulate(*a, **k)
    )
    m.update(architecture="Llama-3-8B", plan={"loss_head": "chunked"}, num_gpus=16, optimizer="sgd")
    assert calls == [1]
    assert m.plan == {"loss_head": "chunked", "optimizer": "sgd"}
    m.update(optimizer="adamw")  # the default: no longer listed
    assert m.plan == {"loss_head": "chunked"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("precision_bits", 8), ("plan", {"optimizer": "adam8bit"}), ("plan", {"ep": 2}),
     ("architecture", "nonsense"), ("plan", {"x": 1}), ("plan", 5)],
)  # fmt: skip
def test_what_does_not_go_together_leaves_the_last_good_state(name, value):
    m = TrainingMemory(architecture="Llama-3-8B")
    before = getattr(m, name), m.simulation
    with pytest.raises((ConfigError, TraitError)):
        setattr(m, name, value)
    assert (getattr(m, name), m.simulation) == before
    assert m.error
    m.num_gpus = 16
    assert m.error == ""


def test_constructor_takes_the_architecture_and_options():
    m = TrainingMemory(architecture="llama-3-8b", loss_head="fused", micro_batch=2)
    assert (m.architecture, m.plan) == ("Llama-3-8B", {"loss_head": "fused"})
    assert "architecture='Llama-3-8B'" in repr(m)
    with pytest.raises(ConfigError, match="needs an architecture"):
        TrainingMemory(loss_head="fused")
    with pytest.raises(TypeError):
        TrainingMemory(architecture="Llama-3-8B", loss_heads="fused")


def test_the_card_gives_its_usable_memory_and_a_typed_size_none():
    m = TrainingMemory(architecture="Llama-3-8B")
    assert m.gpu_capacity_gb == round(79.1 * GIB / 1e9, 3)
    m.gpu_memory_gb = 70
    assert (m.gpu, m.gpu_capacity_gb) == ("", 70)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_config_json_becomes_an_architecture(as_text, tmp_path):
    m = TrainingMemory()
    m.open_config(json.dumps(TINY) if as_text else TINY)
    assert (m.architecture, m.num_layers, m.hidden_dim) == ("tiny", 3, 256)
    m.architecture = ""
    m.architecture = "tiny"  # still known
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, "num_hidden_layers": 5}))
    m.open_config(path, "other")
    assert (m.architecture, m.num_layers) == ("other", 5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**TINY, "model_type": "mamba"}, "model_type 'mamba' is not covered"),
        ({"model_type": "llama"}, "hidden_size is missing"),
        ({**TINY, "num_hidden_layers": "3"}, "num_hidden_layers must be an integer"),
        ("{", "config.json: "),
        ("/nowhere/config.json", "No such file"),
    ],
)
def test_a_config_that_is_not_covered_names_the_field(config, message):
    m = TrainingMemory()
    with pytest.raises(ConfigError, match=message):
        m.open_config(config)
    assert m.architecture == ""
    assert message in m.error


# -- the widget's messages --------------------------------------------------------------------


def message(widget: TrainingMemoryWidget, **content: Any) -> None:
    widget._handle_custom_msg(content, [])


def test_undo_and_reset_return_to_the_architecture_and_plan():
    widget = TrainingMemoryWidget(architecture="GPT-2")
    message(widget, kind="set", id=1, changes={"architecture": "Llama-3-8B"})
    message(widget, kind="set", id=2, changes={"loss_head": "chunked"})
    message(widget, kind="set", id=3, changes={"architecture": ""})
    assert (widget.architecture, widget.plan) == ("", {"loss_head": "chunked"})
    message(widget, kind="undo", id=4)
    assert widget.architecture == "Llama-3-8B"
    message(widget, kind="undo", id=5)
    assert widget.plan == {}
    message(widget, kind="reset", id=6)
    assert (widget.architecture, widget.num_layers, widget.seq_length) == ("GPT-2", 12, 1024)


def test_a_control_may_ask_for_what_one_of_the_ten_inputs_says():
    widget = TrainingMemoryWidget(architecture="Llama-3-8B", plan={"checkpointing": "every_2nd"})

    def shown(**changes):
        message(widget, kind="set", id=1, changes=changes)
        plan = widget._panel["plan"]
        return plan["checkpointing"], widget.grad_ckpt, plan["precision"], widget.precision_bits

    assert shown(checkpointing="none") == ("none", 0, "mixed", 16)
    assert shown(precision="fp32") == ("none", 0, "fp32", 32)
    assert shown(grad_ckpt=1) == ("every_2nd", 1, "fp32", 32)
    assert shown(checkpointing="full", precision="bf16") == ("full", 1, "bf16", 16)
    assert shown(grad_ckpt=0) == ("none", 0, "bf16", 16)
    assert shown(checkpointing="full") == ("full", 1, "bf16", 16)
    assert widget.error == ""


def test_a_pasted_config_is_opened_and_a_bad_one_shown():
    widget = TrainingMemoryWidget()
    message(widget, kind="open", id=1, config=json.dumps(TINY), name="pasted")
    assert (widget.architecture, widget._undo) == ("pasted", 1)
    for bad in ("/etc/passwd", "[]", 5, None):
        message(widget, kind="open", id=2, config=bad)
        assert "config.json" in widget.error
        assert widget.architecture == "pasted"


def test_jslink_cannot_break_what_goes_together():
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    widget.set_state({"num_layers": 5})
    widget.set_state({"precision_bits": 8})
    widget.set_state({"plan": {"optimizer": "adam8bit"}})
    assert (widget.num_layers, widget.precision_bits, widget.plan) == (32, 16, {})
    widget.set_state({"architecture": "GPT-2", "plan": {"attention": "eager"}})
    assert widget.simulation.plan.attention == "eager"


# -- panel and tables -------------------------------------------------------------------------


def test_the_panel_says_which_model_and_what_it_leaves_out():
    reduced, aware = panel(simulate()), panel(llama(micro_batch=8, seq_length=3900))
    json.dumps([reduced, aware])
    assert (reduced["architecture"], aware["architecture"]) == ("", "Llama-3-8B")
    assert "loss head" in reduced["note"]["text"]
    assert aware["note"]["text"] == ""
    assert (reduced["grade"], aware["grade"]) == ("fits", "uncertain")
    assert aware["headline"] == "≈ May not fit"
    assert aware["dominates"] == {
        "what": "logits and loss", "share": "67 %", "when": "in the backward pass of the loss",
    }  # fmt: skip
    assert reduced["detail"] == []
    names = [row[0] for row in aware["detail"]]
    assert names[0] == "Parameters"
    assert names[-3:] == ["Allocated, likely", "Reserved, likely", "Card, likely"]


@pytest.mark.parametrize("micro_batch", [4, 8])
def test_cards_and_detail_are_decimal_gigabytes(micro_batch):
    """GB are 10⁹ bytes, also where the card's memory is known in GiB."""
    s = llama(micro_batch=micro_batch)
    need, shown = s.components, panel(s)
    detail = {name: value for name, value, _ in shown["detail"]}
    assert detail["Peak"] == f"{need.total / 10**9:.3f} GB"
    for name, size in s.peak_case.peak.bytes_by_kind.items():
        assert detail[f"{name.capitalize()} at the peak"] == f"{size / 10**9:.3f} GB"
    for level in s.peak_case.levels:
        low, high = level.low_bytes / 10**9, level.high_bytes / 10**9
        assert detail[f"{level.name.capitalize()}, likely"] == f"{low:.1f} to {high:.1f} GB"
    cards = {card["title"]: (card["value"], card["unit"]) for card in shown["cards"]}
    assert cards["Per GPU"] == (f"{need.total / 10**9:.1f}", "/ 84.9 GB")
    assert cards["Model states"][0] == f"{need.states / 10**9:.1f}"
    assert cards["Activations"] == (f"{need.activations / 10**9:.1f}", "GB")


def test_cards_of_the_reduced_model_are_the_published_numbers(reference):
    out = reference["outputs"]
    cards = {card["title"]: card for card in panel(simulate())["cards"]}
    assert cards["Per GPU"]["value"] == f"{out['per_gpu_total_gb']:.1f}"
    assert cards["Per GPU"]["unit"] == "/ 80 GB"
    assert cards["Model states"]["value"] == f"{out['model_states_per_gpu_gb']:.1f}"
    assert cards["Model states"]["unit"] == "GB of 128"
    assert cards["Activations"]["value"] == f"{out['activations_per_gpu_gb']:.1f}"
    assert cards["Minimum GPUs"]["note"] == "72.9 GB each"  # 128 / 2 and the activations


def test_the_tables_list_architectures_and_options():
    t = json.loads(json.dumps(tables()))
    assert [a["name"] for a in t["architectures"]] == list(ARCHITECTURES)
    assert {"Llama-3-8B · 8.03 B", "GPT-2 · 124 M"} <= {a["label"] for a in t["architectures"]}
    assert sorted(o["name"] for o in t["plan"]) == sorted(PLAN_OPTIONS)
    groups = [o["group"] for o in t["plan"]]
    assert groups == sorted(groups, key=groups.index), "a group's options stand together"
    for option in t["plan"]:
        assert option["label"]
        assert option["help"]
        assert option["group"]
        assert bool(option["choices"]) == (option["kind"] == "choice")
    for name, said in (("precision", "fp32"), ("checkpointing", "none")):  # by an input
        option = next(o for o in t["plan"] if o["name"] == name)
        assert said in [choice["value"] for choice in option["choices"]]
    widget = TrainingMemoryWidget()
    for start in t["presets"]:
        widget.update(architecture="GPT-2", preset=start)
        assert (widget.architecture, widget.gpu) == ("GPT-2", H100)
        widget.update(preset=start)
        assert (widget.architecture, widget.gpu) == (start.split(" ")[0], H100)


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_timeline_is_a_figure_that_pyplot_does_not_know(theme):
    figure = llama().timeline(theme)
    figure.savefig(io.BytesIO(), format="png")
    words = " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))
    for expected in (
        "forward",
        "loss",
        "backward, layer 32 → 1",
        "optimizer",
        "alive at the peak",
        "peak 44.6 GB, in the backward pass of the loss",
        "logits and loss  25.2",
    ):
        assert expected in words


def test_the_timeline_draws_the_peak_where_it_is():
    s = llama()
    figure = s.timeline()
    line = max(figure.axes[0].lines or figure.axes[0].findobj(), key=_points)
    assert np.max(line.get_ydata()) == pytest.approx(float(s.components.total) / 1e9)


def _points(artist: Any) -> int:
    return len(artist.get_xdata()) if hasattr(artist, "get_xdata") else 0


def test_the_timeline_draws_on_axes_of_yours():
    ax = Figure().add_subplot()
    draw_timeline(ax, llama(plan={"accumulation": 3, "no_sync": True}), legend="")
    assert ax.get_ylim()[1] > 54


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_has_both_figures(name):
    s = simulate(architecture=name, num_gpus=64, micro_batch=1, seq_length=1024)
    s.timeline(size=(6.0, 4.0)).savefig(io.BytesIO(), format="png", dpi=30)
    s.plot().savefig(io.BytesIO(), format="png", dpi=30)


def test_the_timeline_needs_an_architecture_and_room():
    with pytest.raises(ValueError, match="the reduced-order model has no timeline"):
        simulate().timeline()
    with pytest.raises(ValueError, match=r"size: 2\.0 × 2\.0 inches"):
        llama().timeline(size=(2, 2))
    with pytest.raises(ValueError, match="theme: 'x'"):
        plot_timeline(llama(), theme="x")


def _refused(stack: Any, **inputs: Any) -> Any:
    """Return the answer for a training stack, or None where it doesn't have that."""
    plan = {n: v for n, v in stack.options.items() if n in PLAN_OPTIONS}
    plan = {n: v for n, v in plan.items() if n != "checkpointing" or inputs["grad_ckpt"]}
    gpt2 = stack.name == "llm.c"
    try:
        return simulate(
            architecture="GPT-2" if gpt2 else "Llama-3-8B", plan=plan, seq_length=512, **inputs
        )
    except ConfigError:
        return None


@pytest.mark.parametrize("name", list(STACKS))
def test_every_stack_draws_its_timeline(name):
    """However it shards and checkpoints, an optimizer step without an allocation too."""
    drawn = 0
    for zero_stage in (0, 1, 2, 3):
        for grad_ckpt in (0, 1):
            s = _refused(STACKS[name], zero_stage=zero_stage, grad_ckpt=grad_ckpt)
            if s is None:
                continue
            drawn += 1
            figure = s.timeline()
            figure.draw_without_rendering()
            ax = figure.axes[0]
            line = max(ax.findobj(), key=_points)
            x, y = line.get_data()
            assert x[-1] == pytest.approx(ax.get_xlim()[1])  # to the very end of the step
            assert np.max(y) == pytest.approx(float(s.components.total) / 1e9)
            steps = s.model.timeline(s.config)
            assert y[-1] == pytest.approx(steps.total_bytes[-1] / 1e9)
    assert drawn >= 2
    figure.savefig(io.BytesIO(), format="png", dpi=30)


@pytest.mark.parametrize("name", ["$$", r"$\frac{1}{$", "a $x_1$ b", "\ud800", "a\nb\x00c", "%_^"])
def test_a_name_is_lettered_as_it_is_in_every_picture(name):
    memory = TrainingMemory()
    opened = memory.open_config(TINY, name)
    assert memory.architecture == opened.name
    opened.name.encode("utf-8")  # as it is sent to a browser
    for figure in (memory.simulation.timeline(), memory.simulation.plot()):
        for form in ("png", "svg", "pdf"):
            figure.savefig(io.BytesIO(), format=form)
        texts = figure.findobj(Text)
        assert not any(text.get_parse_math() or text.get_usetex() for text in texts)
    title = memory.simulation.timeline().axes[0].get_title("left")
    assert name in title if name.isprintable() else "\ufffd" in title or "a b c" in title


def test_a_name_has_a_length():
    for name in ("x" * 81, "", "a\nb", "\ud800", 5, None):
        with pytest.raises(ValueError, match="name must be 1 to 80 characters") as refused:
            replace(ARCHITECTURES["GPT-2"], name=name)
        assert len(str(refused.value)) < 200
    memory = TrainingMemory()
    with pytest.raises(ConfigError, match="name must be 1 to 80"):
        memory.open_config(TINY, "x" * 1_000_000)
    assert memory.architecture == ""
    assert memory.open_config({**TINY, "_name_or_path": "x" * 1000}).name == "x" * 80
    assert memory.open_config({**TINY, "_name_or_path": "", "model_type": "llama"}).name


def test_an_opened_config_never_goes_by_the_name_of_a_preset():
    for name in ("Llama-3-8B", "llama-3-8b"):
        memory = TrainingMemory()
        opened = memory.open_config(TINY, name)
        assert (opened.name, memory.num_layers) == (f"{name} (own)", 3)
        assert memory.architecture == f"{name} (own)"
        memory.architecture = "Llama-3-8B"
        assert memory.num_layers == 32
        memory.architecture = f"{name} (own)"  # still known, by its own name
        assert memory.num_layers == 3
    own = replace(ARCHITECTURES["Llama-3-8B"], num_layers=4)
    memory = TrainingMemory(architecture=own)
    assert (memory.num_layers, memory.architecture) == (4, "Llama-3-8B (own)")
    memory.architecture = "Llama-3-8B"
    assert memory.num_layers == 32
    assert "(own)" in simulate(architecture=own).description
    same = replace(ARCHITECTURES["Llama-3-8B"], source="my disk")
    assert TrainingMemory(architecture=same).architecture == "Llama-3-8B"


@pytest.mark.parametrize("where", ["text", "path", "browser"])
def test_a_config_with_a_key_twice_is_refused(where, tmp_path):
    text = json.dumps(TINY)[:-1] + ', "num_hidden_layers": 32}'
    path = tmp_path / "config.json"
    path.write_text(text)
    memory = TrainingMemoryWidget()
    opening = {
        "browser": lambda: memory._on_open({"config": text}),
        "text": lambda: memory.open_config(text),
        "path": lambda: memory.open_config(path),
    }[where]
    with pytest.raises(ConfigError, match=r"num_hidden_layers.*twice"):
        opening()
    assert memory.architecture == ""


BIG = "x" * 5_000_000
MILLIONS = {  # one of every way in
    "option": lambda: simulate(architecture="GPT-2", plan={"loss_head": BIG}),
    "number": lambda: simulate(architecture="GPT-2", plan={"tp": BIG}),
    "option's name": lambda: simulate(architecture="GPT-2", plan={BIG: 1}),
    "plan": lambda: simulate(architecture="GPT-2", plan=BIG),
    "whole plan": lambda: Plan(sharding=BIG),
    "integer": lambda: Plan(tp=10**1000),
    "architecture": lambda: simulate(architecture=BIG),
    "gpu": lambda: simulate(gpu=BIG),
    "input": lambda: simulate(num_gpus=BIG),
    "input's name": lambda: simulate(**{BIG: 1}),
    "keyword": lambda: TrainingMemory(**{BIG: 1}),
    "family": lambda: replace(ARCHITECTURES["GPT-2"], family=BIG),
    "size": lambda: replace(ARCHITECTURES["GPT-2"], num_layers=BIG),
    "tied": lambda: replace(ARCHITECTURES["GPT-2"], tie_embeddings=BIG),
    "config": lambda: Architecture.from_config({**TINY, "hidden_size": BIG}),
    "model_type": lambda: Architecture.from_config({"model_type": BIG}),
    "activation": lambda: Architecture.from_config({**TINY, "hidden_act": BIG}),
    "flag": lambda: Architecture.from_config({**TINY, "tie_word_embeddings": BIG}),
    "path": lambda: TrainingMemory().open_config(BIG),
    "twice": lambda: TrainingMemory().open_config(f'{{"{BIG}": 1, "{BIG}": 2}}'),
    "stack": lambda: stack(BIG),
    "theme": lambda: simulate().plot(BIG),
    "preset": lambda: trainmem.preset(BIG),
    "known name": lambda: architecture(BIG),
    "stage": lambda: peak(ARCHITECTURES["GPT-2"], Plan(num_gpus=8, seq_length=512), stage=BIG),
    "calibration": lambda: llama().calibrate(peak_allocated_gib=BIG),
    "configuration": lambda: read_configuration({"zero_optimization": {"stage": BIG}}),
    "configuration's key": lambda: read_configuration({BIG: 1}),
    "format": lambda: read_configuration({}, format=BIG),
}


@pytest.mark.parametrize("way", MILLIONS)
def test_what_is_echoed_is_cut(way):
    with pytest.raises((ValueError, TypeError)) as refused:
        MILLIONS[way]()
    assert len(str(refused.value)) < 1500
    assert "…" in str(refused.value) or "bits" in str(refused.value)


@pytest.mark.parametrize("num_gpus", [524_288, 524_289, 1_000_000])
def test_a_million_gpus_are_answered(num_gpus):
    s = llama(num_gpus=num_gpus)
    assert s.gpu_sweep.x[-1] == 2 ** (num_gpus - 1).bit_length()
    s.plot()
    memory = TrainingMemory(architecture="Llama-3-8B")
    memory.num_gpus = num_gpus
    assert memory.per_gpu_total_gb == simulate(memory.config, architecture="Llama-3-8B", gpu=H100
                                               ).per_gpu_total_gb  # fmt: skip
    odd = llama(num_gpus=num_gpus // 3 * 3, seq_length=3072, plan={"cp": 3})
    assert odd.gpu_sweep.x[-1] % 3 == 0


# -- command line -----------------------------------------------------------------------------


def test_the_command_line_answers_for_an_architecture(capsys, tmp_path):
    assert main(["simulate", "--architecture", "Llama-3-8B", "--gpu", "H100", "--plan",
                 "loss_head=chunked", "accumulation=2", "--json"]) == 0  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert (answer["plan"]["loss_head"], answer["plan"]["accumulation"]) == ("chunked", 2)
    assert answer["detail"]["gpu"] == H100
    assert main(["simulate", "--architecture", "Llama-3-8B", "--grad-ckpt", "0"]) == 1
    assert "logits and loss" in capsys.readouterr().out
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    assert (
        main(["plot", "--timeline", "--architecture", str(path), "-o", str(tmp_path / "t.png")])
        == 0
    )
    assert (tmp_path / "t.png").stat().st_size > 10_000


def test_the_report_is_in_decimal_gigabytes(capsys):
    s = llama(micro_batch=8)
    main(["simulate", "--architecture", "Llama-3-8B", "--gpu", "H100", "--micro-batch", "8"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:22].strip(): line[22:].split() for line in lines}
    assert rows["Memory per GPU"][:4] == [f"{s.components.total / 1e9:.3f}", "GB", "of", "84.933,"]
    kinds = dict(list(s.peak_case.peak.bytes_by_kind.items())[3:])
    assert "logits and loss" in kinds
    for kind, size in kinds.items():
        assert rows[kind] == [f"{size / 10**9:.3f}", "GB"]
    for level in s.peak_case.levels:
        low, high = level.low_bytes / 10**9, level.high_bytes / 10**9
        assert rows[level.name.capitalize()][:4] == [f"{low:.1f}", "to", f"{high:.1f}", "GB,"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plot", "--timeline", "-o", "x.png"],
        ["simulate", "--plan", "loss_head=chunked"],
        ["simulate", "--architecture", "nonsense"],
        ["simulate", "--architecture", "/nowhere/config.json"],
        ["simulate", "--architecture", "GPT-2", "--plan", "loss_head"],
        ["simulate", "--architecture", "GPT-2", "--remote", "http://localhost:1"],
        ["simulate", "--gpu", "A100"],
    ],
)
def test_the_command_line_refuses_in_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the house --------------------------------------------------------------------------------


def test_the_sweeps_are_those_of_the_model():
    s = llama()
    model = TransformerModel(ARCHITECTURES["Llama-3-8B"])
    for i in (0, 20, 47):
        config = s.config.replace(num_gpus=int(s.gpu_sweep.x[i]))
        assert s.gpu_sweep.components.total[i] == model.peak(config).peak_bytes


def test_mapping_and_plan_mean_the_same():
    config = TrainingConfig(zero_stage=1)
    assert plan_of(config, {"optimizer": "sgd"}) == plan_of(config, Plan(optimizer="sgd"))


def typed(keywords):
    """Return what a `TypedDict` says of each keyword."""
    return {name: getattr(kind, "__forward_arg__", kind) for name, kind in keywords.items()}


def test_the_typed_keywords_are_the_tables():
    assert typed(Inputs.__annotations__) == dict.fromkeys(FIELDS, "Given")
    kinds = {bool: "bool", str: "str", int: "Given"}
    expected = {name: kinds[type(option.default)] for name, option in PLAN_OPTIONS.items()}
    assert list(expected) == list(PlanOptions.__annotations__)
    assert typed(PlanOptions.__annotations__) == expected
    beside = AllInputs.__annotations__.keys() - {*FIELDS, *PLAN_OPTIONS}
    assert beside == {"gpu", "architecture", "plan"}
    of_any = {n for n in ipywidgets.DOMWidget.class_own_traits() if not n.startswith("_")}
    assert WidgetInputs.__annotations__.keys() - AllInputs.__annotations__.keys() == of_any


EVERY = {*FIELDS, *PLAN_OPTIONS, "gpu", "architecture", "plan"}


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (simulate, {*FIELDS, "config", "model", "architecture", "plan", "gpu"}),
        (TrainingMemory, {*EVERY, "config"}),
        (TrainingMemory().update, {*EVERY, "stack", "preset"}),
        (TrainingMemoryWidget, {*EVERY, "config", "remote", "layout", "tooltip", "tabbable"}),
    ],
    ids=["simulate", "TrainingMemory", "update", "TrainingMemoryWidget"],
)
def test_completion_help_and_the_refusal_know_every_keyword(function, keywords):
    assert inspect.signature(function).parameters.keys() == keywords
    with pytest.raises((TypeError, ConfigError)) as refused:
        function(nonsense=1)
    named = str(refused.value).partition("must be one of ")[2].split(", ")
    assert sorted(named) == sorted(keywords)  # each once
    shell = TerminalInteractiveShell()
    shell.user_ns["function"] = function
    for use_jedi in (False, True):
        shell.Completer.use_jedi = use_jedi
        with provisionalcompleter():
            found = {c.text for c in shell.Completer.completions("function(", len("function("))}
        assert {f"{name}=" for name in keywords} <= found


TYPED = """
import numpy as np
import trainmem

trainmem.simulate(num_gpus=np.int64(64), precision_bits=16, gpu="H100 · 80 GB")
trainmem.simulate(num_gpu=64)  # wrong
trainmem.simulate(num_gpus="64")  # wrong
memory = trainmem.TrainingMemory(architecture="Llama-3-8B", tp=2, sequence_parallel=False)
memory.update(zero_stage=3, stack="torchtitan", loss_head="chunked")
memory.update(loss_heed="chunked")  # wrong
memory.update(tooltip="")  # wrong
trainmem.TrainingMemory(dropout="yes")  # wrong
trainmem.TrainingMemoryWidget(tooltip="Memory", layout={"width": "50%"}, micro_batch=2)
trainmem.TrainingMemoryWidget(tool_tip="Memory")  # wrong
"""


def test_a_type_checker_flags_wrong_keywords_and_no_others(root, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", tmp_path / "typed.py"],
        cwd=root,  # its cache is there
        env=os.environ | {"MYPYPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stderr == ""
    flagged = {int(found[1]) for found in re.finditer(r"typed\.py:(\d+): error", done.stdout)}
    wrong = {n for n, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert flagged == wrong, done.stdout
