"""The architecture-aware model through the common surface: simulate, traits, panel, figures."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from traitlets import TraitError

from trainmem import (
    ARCHITECTURES,
    OPTIONS,
    Architecture,
    ConfigError,
    Plan,
    TrainingConfig,
    TrainingMemory,
    TrainingMemoryWidget,
    simulate,
)
from trainmem.__main__ import main
from trainmem.figure import draw_timeline, plot_timeline
from trainmem.presentation import panel, python_call, tables
from trainmem.request import PLAN_OPTIONS, NotCovered
from trainmem.transformer import TransformerModel, plan_of

H100 = "H100 · 80 GB"
GIB = 2**30
TINY = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "_name_or_path": "someone/tiny",
}  # fmt: skip


def llama(**given: Any) -> Any:
    return simulate(architecture="Llama-3-8B", **{"gpu": H100, **given})


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
    error = NotCovered("dropout is covered for gpt2 only, got family 'llama'")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field) == (str(error), "dropout")


def test_a_model_and_an_architecture_are_not_both_given():
    with pytest.raises(TypeError, match="not both"):
        simulate(architecture="GPT-2", model=TransformerModel(ARCHITECTURES["GPT-2"]))


def test_a_card_brings_what_it_shows_and_a_typed_size_its_bytes():
    assert llama().gpu_capacity_gb == round(79.1 * GIB / 1e9, 3)
    assert llama(gpu=None, gpu_memory_gb=80).gpu_capacity_gb == 80.0
    assert simulate(gpu="H200 · 141 GB").gpu_capacity_gb == 141.0  # nominal: the reduced model


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
    assert s.min_gpus_reason.startswith("even over ")
    assert s.longest_sequence_reason == f"even one token needs {s.at(seq_length=1):.1f} GB"
    assert s.largest_micro_batch_reason.startswith("even one sequence needs ")
    assert llama(zero_stage=0).min_gpus_reason == "stage 0 shards nothing"


def test_lengths_end_where_the_positions_do_and_rotary_ones_do_not():
    gpt2 = simulate(architecture="GPT-2", gpu=H100)
    assert gpt2.longest_sequence == 1024
    assert gpt2.longest_sequence_reason == "GPT-2 takes at most 1024 positions"
    assert llama().longest_sequence > ARCHITECTURES["Llama-3-8B"].max_positions
    assert llama().longest_sequence_reason is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"grad_ckpt": 0}, ["grad_ckpt", "micro_batch", "seq_length", "gpu_memory_gb"]),
        ({"micro_batch": 12}, ["loss_head", "micro_batch", "seq_length", "gpu_memory_gb"]),
        ({"micro_batch": 1, "grad_ckpt": 0, "seq_length": 8192, "plan": {"attention": "eager"}},
         ["attention", "grad_ckpt", "seq_length"]),
        ({"zero_stage": 0}, ["zero_stage", "gpu_memory_gb"]),
        ({}, []),
    ],
)  # fmt: skip
def test_fixes_fit_when_they_are_asked_for(given, expected):
    s = llama(**given)
    assert [fix.field for fix in s.fixes()] == expected
    for fix in s.fixes():
        change: dict[str, Any] = {**given}
        if fix.field in OPTIONS and fix.field not in TrainingConfig().to_dict():
            change["plan"] = {**given.get("plan", {}), fix.field: fix.value}
        elif fix.field == "gpu_memory_gb":
            change["gpu"] = fix.label
        else:
            change[fix.field] = fix.value
        after = llama(**change)
        assert after.fits
        assert after.per_gpu_total_gb == fix.per_gpu_total_gb


# -- grades and sentences ---------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "grade"), [(7, "fits"), (8, "uncertain"), (12, "does not fit")])
def test_three_grades_by_share_of_the_card(batch, grade):
    s = llama(micro_batch=batch)
    share = float(s.components.total) / (79.1 * GIB)
    assert s.grade == grade
    assert s.fits == (share <= 1)
    assert (share < 0.8, share > 1) == (grade == "fits", grade == "does not fit")


def test_the_reduced_model_has_two_grades():
    assert [simulate(gpu_memory_gb=gb).grade for gb in (24.9, 24.8)] == ["fits", "does not fit"]


@pytest.mark.parametrize(
    ("given", "label", "parts"),
    [
        ({}, "loss-dominated", ["peak in the backward pass of the loss: logits and loss 56 %",
                                "a chunked loss head (18.9 GB)"]),
        ({"grad_ckpt": 0}, "activation-dominated", ["GB over capacity", "checkpointing (",
                                                    "no GPU count fits: even over"]),
        ({"num_gpus": 1}, "model-state-dominated", ["backward pass of the layers",
                                                    "twice the GPUs ("]),
        ({"zero_stage": 0}, "model-state-dominated", ["ZeRO-3 (", "stage 0 shards nothing",
                                                      "ZeRO-0 / DDP (nothing sharded)"]),
        ({"micro_batch": 8}, "loss-dominated", ["too close to capacity to be certain"]),
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
    for change, freed in s.moment.frees:
        if change.field in OPTIONS and change.field in PLAN_OPTIONS:
            after = llama(**given, plan={change.field: change.value})
        else:
            after = llama(**{**given, change.field: change.value})
        assert float(s.components.total - after.components.total) == freed > 0


def test_the_banner_gives_the_card_interval_where_uncertain():
    s = llama(micro_batch=8)
    low, high = s.moment.levels[2].low_bytes / 1e9, s.moment.levels[2].high_bytes / 1e9
    assert f"the card may need {low:.1f} to {high:.1f} GB" in s.banner
    assert "headroom" in llama().banner
    assert llama(grad_ckpt=0).banner.startswith("60.7 GB short. ")


def test_the_composition_is_that_of_the_peak():
    s = llama()
    assert (
        dict(s.moment.groups)["logits and loss"] == s.moment.peak.bytes_by_kind["logits and loss"]
    )
    assert sum(size for _, size in s.moment.groups) == s.components.total


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
        "trainmem.model.simulate", lambda *a, **k: calls.append(1) or simulate(*a, **k)
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
    reduced, aware = panel(simulate()), panel(llama(micro_batch=8))
    json.dumps([reduced, aware])
    assert (reduced["architecture"], aware["architecture"]) == ("", "Llama-3-8B")
    assert "loss head" in reduced["note"]["text"]
    assert aware["note"]["text"] == ""
    assert (reduced["grade"], aware["grade"]) == ("fits", "uncertain")
    assert aware["headline"] == "≈ May not fit"
    assert aware["dominates"] == {
        "what": "logits and loss", "share": "68 %", "when": "in the backward pass of the loss",
    }  # fmt: skip
    assert reduced["detail"] == []
    names = [row[0] for row in aware["detail"]]
    assert names[0] == "Parameters"
    assert names[-3:] == ["Allocated, likely", "Reserved, likely", "Card, likely"]


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
    for choice in next(o for o in t["plan"] if o["name"] == "precision")["choices"]:
        assert choice["value"] != "fp32"  # the input `precision_bits` says it
    widget = TrainingMemoryWidget()
    for preset in t["presets"]:
        widget.update(**preset["architecture"])
        assert (widget.architecture, widget.gpu) == (preset["name"].split(" ")[0], H100)


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
    s.timeline(size=(6.0, 4.0)).savefig(io.BytesIO(), format="png")
    s.plot().savefig(io.BytesIO(), format="png")


def test_the_timeline_needs_an_architecture_and_room():
    with pytest.raises(ValueError, match="the reduced-order model has no timeline"):
        simulate().timeline()
    with pytest.raises(ValueError, match=r"size: 2\.0 × 2\.0 inches"):
        llama().timeline(size=(2, 2))
    with pytest.raises(ValueError, match="theme: 'x'"):
        plot_timeline(llama(), theme="x")


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


def test_the_reduced_model_loads_nothing_of_the_other():
    code = (
        "import sys, trainmem; trainmem.simulate().fixes(); "
        "print('trainmem.transformer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_mapping_and_plan_mean_the_same():
    config = TrainingConfig(zero_stage=1)
    assert plan_of(config, {"optimizer": "sgd"}) == plan_of(config, Plan(optimizer="sgd"))
