"""What a trait refuses: said once, briefly, and nothing is changed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import trainmem.cards
import trainmem.simulation
import trainmem.widget.traits
from trainmem.config import FIELDS, ConfigError
from trainmem.reduced import ReducedModel
from trainmem.request import check_plan
from trainmem.simulate_step import simulate
from trainmem.transformer import Plan, TransformerModel
from trainmem.widget.traits import TrainingMemory

from .memory import BAD, CONFIG, FOREIGN, OUTPUTS, consistent, heard, state

# -- refusing


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_raises_shows_and_leaves_the_last_state(name: str, value: object) -> None:
    memory = TrainingMemory(num_gpus=16)
    before = state(memory)
    with pytest.raises(ConfigError) as refused:
        setattr(memory, name, value)
    assert memory.error == str(refused.value)
    assert memory.error.startswith(f"{name}: ")
    assert state(memory) == before
    memory.num_gpus = 32
    assert memory.error == ""
    consistent(memory)


def test_setting_the_present_value_clears_the_error() -> None:
    memory = TrainingMemory()
    for again in (lambda: setattr(memory, "num_gpus", 8), lambda: memory.update(num_gpus=8)):
        with suppress(ConfigError):
            memory.num_gpus = 0
        assert memory.error
        again()
        assert memory.error == ""


# -- foreign values


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["no_sync", "optimizer", "tp", "sharding", "num_gpus"])
def test_a_foreign_value_of_an_option_is_one_short_error(name: str, value: Any) -> None:
    memory = TrainingMemory(architecture="Llama-3-8B")
    before = dict(memory.plan)
    for ask in (
        lambda: Plan(**{name: value}),
        lambda: check_plan({name: value}),
        lambda: simulate(architecture="Llama-3-8B", plan={name: value}),
        lambda: setattr(memory, "plan", {name: value}),
        lambda: memory.update(plan={name: value}),
    ):
        with pytest.raises(ValueError, match=f"{name} must be ") as caught:
            ask()
        assert len(str(caught.value)) < 400
    assert memory.plan == before
    assert name in memory.error


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_value_elsewhere_is_a_config_error(value: Any) -> None:
    memory = TrainingMemory()
    for ask in (
        lambda: simulate(gpu=value),
        lambda: simulate(architecture="Llama-3-8B", gpu=value),
        lambda: simulate(architecture=value),
        lambda: simulate(architecture="Llama-3-8B", plan=value),
        lambda: setattr(memory, "gpu", value),
        lambda: setattr(memory, "architecture", value),
        lambda: setattr(memory, "plan", value),
        lambda: trainmem.cards.preset(value),
        lambda: simulate(seq_length=value),
    ):
        with pytest.raises(ConfigError):
            ask()
    consistent(memory)


# -- traitlets' own tools


def test_a_bad_value_while_held_keeps_the_good_ones() -> None:
    memory = TrainingMemory()
    with memory.hold_trait_notifications():
        memory.num_gpus = 64
        with pytest.raises(ConfigError):
            memory.zero_stage = 4
    assert (memory.num_gpus, memory.zero_stage) == (64, 3)
    consistent(memory)


def test_an_observer_that_raises_leaves_a_consistent_state() -> None:
    memory = TrainingMemory()

    def fail(_change: object) -> None:
        raise RuntimeError("mine")

    memory.observe(fail, "num_gpus")
    with pytest.raises(RuntimeError, match="mine"):
        memory.num_gpus = 64
    assert memory.num_gpus == 64
    consistent(memory)


@pytest.mark.parametrize("way", ["update", "assign", "held", "open", "architecture"])
@pytest.mark.parametrize("breaks", ["simulate", "fewest", "limits"])
def test_whatever_raises_in_a_change_leaves_the_state_before_it(
    way: str, breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = TrainingMemory(num_gpus=16)
    before, log = state(memory), heard(memory, [*FIELDS, *OUTPUTS, "gpu", "simulation"])

    def fail(*_args: object, **_options: object) -> object:
        raise ZeroDivisionError("a model's own")

    places, name = {
        "simulate": ([trainmem.widget.traits], "simulate"),
        "fewest": ([ReducedModel, TransformerModel], "smallest_num_gpus"),
        "limits": ([trainmem.simulation], "limit"),  # only where the answer is shown
    }[breaks]

    def held() -> None:
        with memory.hold_trait_notifications():
            memory.num_gpus = 64
            memory.gpu = "H200 · 141 GB"

    change = {
        "update": lambda: memory.update(num_gpus=64, seq_length=8192),
        "assign": lambda: setattr(memory, "num_gpus", 64),
        "held": held,
        "open": lambda: memory.open_config(CONFIG),
        "architecture": lambda: setattr(memory, "architecture", "Llama-3-8B"),
    }[way]
    with monkeypatch.context() as broken:
        for place in places:
            broken.setattr(place, name, fail)
        with pytest.raises(ZeroDivisionError):
            change()
    assert memory.error == "ZeroDivisionError: a model's own"
    assert state(memory) == before
    assert (memory.architecture, memory.plan) == ("", {})
    assert all(new == before[name] for name, new in log)  # nobody keeps another
    consistent(memory)
    memory.num_gpus = 32
    assert memory.error == ""
    consistent(memory)
