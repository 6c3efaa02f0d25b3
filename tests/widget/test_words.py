"""What the widget shows in words, under either model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steps import H100, TINY, llama
from trainmem import (
    ARCHITECTURES,
    TrainingConfig,
    TrainingMemory,
    TrainingMemoryWidget,
    simulate,
)
from trainmem.cards import GPUS
from trainmem.config import FIELDS
from trainmem.request import CONTROLS
from trainmem.widget.calls import python_call
from trainmem.widget.controls import tables
from trainmem.widget.words import panel

from .kit import Browser


def test_the_python_line_repeats_the_answer():
    tiny = TrainingMemory()
    tiny.open_config(TINY)
    for s in (llama(plan={"loss_head": "chunked"}), tiny.simulation):
        names: dict[str, Any] = {}
        exec(python_call(s.config, s.model), names)
        assert names["simulation"] == s


# -- panel and tables


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
    names = [row["name"] for row in aware["detail"]]
    assert names[0] == "Parameters"
    assert names[-3:] == ["Allocated, likely", "Reserved, likely", "Card, likely"]


@pytest.mark.parametrize("micro_batch", [4, 8])
def test_cards_and_detail_are_decimal_gigabytes(micro_batch):
    """GB are 10⁹ bytes, also where the card's memory is known in GiB."""
    s = llama(micro_batch=micro_batch)
    need, shown = s.components, panel(s)
    detail = {row["name"]: row["value"] for row in shown["detail"]}
    assert all(0 <= row["share"] <= 1 for row in shown["detail"])
    assert detail["Peak"] == f"{need.total / 10**9:.3f} GB"
    for name, size in s.peak_case.peak.bytes_by_kind.items():
        assert detail[name.capitalize()] == f"{size / 10**9:.3f} GB"
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
    assert sorted(o["name"] for o in t["plan"]) == sorted(CONTROLS)
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


# -- words for the front end


def test_tables_offer_only_what_the_model_takes() -> None:
    offered = tables()
    json.dumps(offered)
    for field in offered["fields"]:
        for value in [*field["values"], *(choice["value"] for choice in field["choices"])]:
            assert FIELDS[field["name"]].validate(value) == value
        assert field["values"] == sorted(field["values"])
    widget = TrainingMemoryWidget()
    for preset in offered["presets"]:
        widget.update(preset=preset)
        assert widget._panel["preset"] == preset
    assert [gpu["label"] for gpu in offered["gpus"]] == [gpu.label for gpu in GPUS]
    for gpu in GPUS:
        widget.gpu = gpu.label
        assert widget.gpu_memory_gb == gpu.nominal_gb


@pytest.mark.parametrize(
    "inputs", [{"model_params_b": 70}, {"zero_stage": 1, "seq_length": 32_768}, {"grad_ckpt": 0}]
)
def test_every_fix_of_the_panel_fits(inputs: dict[str, Any]) -> None:
    widget = TrainingMemoryWidget(**inputs)
    assert widget._panel["headline"] == "✗ Out of memory"
    (group,) = widget._panel["fixes"]
    assert group["offer"] == "Fits with"
    for fix in group["items"]:
        each = TrainingMemoryWidget(widget.config)
        Browser(each).set(**fix["changes"])
        assert each.fits, fix
        assert each._panel["fixes"] == []


def test_python_and_curl_repeat_the_request() -> None:
    widget = TrainingMemoryWidget(model_params_b=70.6, num_gpus=12_500, grad_ckpt=0)
    scope: dict[str, Any] = {}
    exec(widget._panel["python"], scope)
    assert scope["simulation"].config == widget.config
    body = widget._panel["curl"].split("-d '")[1].rstrip("'")
    assert TrainingConfig.from_mapping(json.loads(body)) == widget.config
