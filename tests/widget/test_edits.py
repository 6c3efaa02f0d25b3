"""What people do at the controls: undo, reset, refusals, and what comes along."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steps import TINY
from trainmem import ConfigError, TrainingMemoryWidget
from trainmem.request import DERIVED
from trainmem.widget.edits import MAX_UNDO

from .kit import Browser, consistent, message

# -- the widget's messages


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


# -- undo, reset, JSON


def test_undo_goes_back_change_by_change_and_a_drag_is_one() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(num_gpus=64)
    for n in range(33, 48):
        browser.set(draft=True, num_layers=n)
    assert widget._undo == 1  # not before it is let go
    browser.set(num_layers=47)
    browser.set(gpu="H200 · 141 GB")
    browser.set(num_gpus=0)  # refused
    browser.set(num_gpus=64)  # no change
    assert widget._undo == 3
    seen = []
    for _ in range(4):
        browser.message({"kind": "undo"})
        seen.append((widget.num_gpus, widget.num_layers, widget.gpu, widget._undo))
    card = "H100 · 80 GB"
    assert seen == [(64, 47, card, 2), (64, 32, card, 1), (8, 32, card, 0), (8, 32, card, 0)]
    consistent(widget)


def test_undo_keeps_what_python_changed_before() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(num_gpus=64)
    widget.seq_length = 8192
    browser.set(zero_stage=1)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget.seq_length, widget.zero_stage) == (64, 8192, 3)


def test_undo_in_the_middle_of_a_drag_returns_to_its_start() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(draft=True, num_gpus=9)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget._undo) == (8, 0)


def test_the_number_of_undos_is_bounded() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    for n in range(1, 150):
        browser.set(num_layers=n)
    assert widget._undo == len(widget._history) == MAX_UNDO


def test_reset_returns_to_the_constructors_inputs_and_can_be_undone() -> None:
    widget = TrainingMemoryWidget(num_gpus=16, gpu="H200 · 141 GB")
    browser = Browser(widget)
    browser.set(num_gpus=64, gpu_memory_gb=50)
    assert widget.gpu == ""
    browser.message({"kind": "reset"})
    assert (widget.num_gpus, widget.gpu, widget.gpu_memory_gb) == (16, "H200 · 141 GB", 141.0)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget.gpu, widget.gpu_memory_gb) == (64, "", 50.0)


def test_json_is_the_api_answer() -> None:
    widget = TrainingMemoryWidget(num_gpus=64)
    browser = Browser(widget)
    browser.message({"kind": "json"})
    ((kind, content, _),) = browser.take()
    assert kind == "json"
    assert content["answer"] == widget.simulation.to_dict()


# -- refusals and what comes along, in the words of the screen


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"num_gpus": "many"}, "num_gpus", "GPUs: 'many' is not allowed; must be a whole number"),
        ({"gpu": "nonsense"}, "gpu", "GPU memory: 'nonsense' is not allowed"),
        ({"loss_chunk": "x"}, "loss_chunk", "Loss chunk must be an integer from 1 to 1048576"),
        ({"stack": "x"}, "stack", "Stack: 'x' is not allowed"),
        ({"num_layers": 3}, "num_layers", "Layers: 3 is not allowed; it is 32, derived from"),
        ({"num_gpus": 9}, "num_gpus", "GPUs 9 is not a multiple of 8 (Tensor parallel 8"),
        ({"precision_bits": 8}, "precision_bits", "Precision: 8 is not allowed; must be 16 or 32"),
    ],
)
def test_a_refusal_names_its_field_as_the_screen_does(
    changes: dict[str, Any], field: str, words: str
) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B", kernels="torchtitan", tp=8)
    browser = Browser(widget)
    browser.set(**changes)
    assert widget._told["field"] == field
    assert widget._told["error"].startswith(words)
    assert widget.error  # as Python has it
    browser.set(num_gpus=16)
    assert widget._told == {"field": "", "error": "", "also": ""}


def test_a_refusal_from_python_names_its_field() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    for changes, field in (
        ({"tp": 8}, "tp"),
        ({"kernels": "torchtitan", "attention": "eager"}, "kernels"),
        ({"num_gpus": 0}, "num_gpus"),
    ):
        with pytest.raises(ConfigError):
            widget.update(**changes)
        assert widget._told["field"] == field
    widget.update(kernels="torchtitan")
    with pytest.raises(ConfigError, match="kernels 'torchtitan' need attention 'flash'"):
        widget.update(attention="eager")
    words = "Kernels “torchtitan, eager” need Attention kernel “flash (SDPA)”, got “eager”"
    assert widget._told["error"] == words


@pytest.mark.parametrize(
    ("changes", "also"),
    [
        ({"tp": 8}, "Kernels → torchtitan, eager"),
        ({"pp": 16}, "GPUs → 16; Kernels → torchtitan, eager"),
        ({"checkpointing": "selective"}, "Kernels → torchtitan, eager"),
        ({"kernels": "liger"}, ""),
        ({"quantization": "nf4"}, "LoRA rank → 8; Precision → everything in bf16"),
        ({"optimizer": "adam8bit"}, "ZeRO stage → 0; Precision → bf16 autocast"),
    ],
)
def test_what_a_choice_needs_comes_along_and_is_told(changes: dict[str, Any], also: str) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    browser = Browser(widget)
    browser.set(**changes)
    assert widget.error == ""
    told = f"Also changed: {also}" if also else ""
    assert widget._told["also"].startswith(told)
    assert bool(widget._told["also"]) == bool(also)
    for name, value in changes.items():
        assert widget._panel["plan"][name] == value
    assert widget._undo == 1  # one change, whatever came along
    browser.set(micro_batch=2)
    assert widget._told["also"] == ""


def test_python_is_refused_what_the_screen_brings_along() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    with pytest.raises(ConfigError, match="tp 8 needs kernels"):
        widget.update(tp=8)


def test_what_cannot_be_had_says_why() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    browser = Browser(widget)
    assert widget._panel["unavailable"] == {
        **{name: {"": "Follows from Llama-3-8B"} for name in DERIVED},
        "precision_bits": {
            "8": "Precision: 8 is not allowed; must be 16 or 32 with an architecture"
        },
        "stack": {"llm.c": "Kernels “llm.c” are GPT-2's, got family 'llama'"},
    }
    browser.set(stack="megatron")
    why = "Megatron-Core has stage 1 alone"
    assert widget._panel["unavailable"]["zero_stage"] == {"2": why, "3": why}
    assert widget._panel["unavailable"]["precision_bits"].keys() == {"8", "32"}
    for name, reasons in widget._panel["unavailable"].items():
        for value in reasons:
            if name == "precision_bits":
                with pytest.raises(ConfigError):
                    widget.update(**{name: float(value)})
            if name == "stack":
                with pytest.raises(ConfigError):
                    widget.update(stack=value)
    browser.set(architecture="")
    assert widget._panel["unavailable"] == {}


def test_a_config_json_from_the_browser_is_never_a_path(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    widget = TrainingMemoryWidget()
    with pytest.raises(ConfigError, match=r"config\.json"):
        widget._on_open({"config": str(path)})
    assert widget.architecture == ""
