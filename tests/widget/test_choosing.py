"""Stacks and presets, chosen and left again."""

from __future__ import annotations

from typing import Any

import pytest

import trainmem
from steps import PIPELINE
from trainmem import ConfigError
from trainmem.cards import PRESETS
from trainmem.transformer import STACKS, stack
from trainmem.widget.controls import tables
from trainmem.widget.shell import TrainingMemoryWidget
from trainmem.widget.words import panel

from .kit import Browser, own


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("stack", [s["name"] for s in tables()["stacks"] if s["name"] != "llm.c"])
def test_every_stack_of_the_widget_is_a_valid_change(stack):
    memory = trainmem.TrainingMemory(architecture="Llama-3-8B")
    memory.update(stack=stack)
    assert memory.error == ""
    assert memory.per_gpu_total_gb > 0
    plan = memory.simulation.plan
    options = STACKS[stack].options
    assert {name: getattr(plan, name) for name in options} == dict(options)
    assert panel(memory.simulation)["stack"] == stack


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


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("name", [n for n in STACKS if n != "llm.c"])
@pytest.mark.parametrize("had", [{"attention": "eager"}, {"precision_bits": 32}])
def test_every_stack_can_be_chosen_and_left_again(name: str, had: dict[str, Any]) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B", **had)
    browser = Browser(widget)
    before = widget.config, widget.plan
    browser.set(stack=name)
    assert (widget.error, widget._panel["stack"]) == ("", name)
    browser.set(stack="transformers")
    assert (widget.config, widget.plan) == before


def test_settings_go_with_their_framework():
    settings = {"reduce_bucket_size": 10**6}
    plan = stack("deepspeed-zero2", num_gpus=16, settings=settings)
    browser = Browser(trainmem.TrainingMemoryWidget(architecture="Llama-3-8B", plan=plan))
    assert dict(browser.widget.simulation.plan.settings) == settings
    browser.set(framework="megatron")
    assert browser.widget.error == ""
    assert browser.widget.simulation.plan.framework == "megatron"
    assert browser.widget.simulation.plan.settings == ()
    assert "Framework's settings → as it has them" in browser.widget._told["also"]
    browser.widget.update(stack="deepspeed-zero3")
    assert browser.widget.simulation.plan.settings == ()
