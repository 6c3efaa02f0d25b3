"""`TrainingMemory`: inputs and outputs as traits."""

from __future__ import annotations

import numpy as np
import pytest
import traitlets

from trainmem.cards import PRESETS
from trainmem.config import FIELDS, ConfigError, TrainingConfig
from trainmem.widget.traits import TrainingMemory

from .memory import BAD, OTHER, OUTPUTS, consistent, heard, state

# -- starting


def test_starts_at_the_reference_request() -> None:
    memory = TrainingMemory()
    assert memory.config == TrainingConfig()
    assert memory.gpu == PRESETS[0].gpu
    assert memory.error == ""
    consistent(memory)


def test_every_input_is_a_keyword_beside_a_config() -> None:
    memory = TrainingMemory(TrainingConfig(num_gpus=2), **OTHER)
    assert memory.config == TrainingConfig(**OTHER)
    assert TrainingMemory(TrainingConfig(num_gpus=2), seq_length=512).num_gpus == 2
    consistent(memory)


def test_unknown_keywords_and_other_configs_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"TrainingMemory\(\).*'num_gpu'.*did you mean num_gpus"):
        TrainingMemory(num_gpu=8)
    with pytest.raises(TypeError, match="'fits'"):
        TrainingMemory(fits=True)
    with pytest.raises(TypeError, match="must be a TrainingConfig, not dict"):
        TrainingMemory({"num_gpus": 8})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_the_constructor_refuses_bad_values(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .* is not allowed; must be "):
        TrainingMemory(**{name: value})


def test_a_card_brings_its_memory_unless_a_size_is_given() -> None:
    assert TrainingMemory(gpu="H200 · 141 GB").gpu_memory_gb == 141.0
    typed = TrainingMemory(gpu="H200 · 141 GB", gpu_memory_gb=100)
    assert (typed.gpu, typed.gpu_memory_gb) == ("", 100.0)
    both = TrainingMemory(gpu="H200 · 141 GB", gpu_memory_gb=141)
    assert (both.gpu, both.gpu_memory_gb) == ("H200 · 141 GB", 141.0)


# -- inputs and outputs


@pytest.mark.parametrize("name", FIELDS)
def test_each_input_is_observed_and_computes_once(name: str, calls: list[TrainingConfig]) -> None:
    memory = TrainingMemory()
    log = heard(memory, name)
    del calls[:]
    setattr(memory, name, OTHER[name])
    assert log == [(name, OTHER[name])]
    assert len(calls) == 1
    assert getattr(memory.config, name) == OTHER[name]
    consistent(memory)
    setattr(memory, name, OTHER[name])
    assert len(calls) == 1  # nothing has changed


def test_each_output_is_observed() -> None:
    memory = TrainingMemory()
    log = heard(memory)
    memory.update(**OTHER)
    memory.update(**TrainingConfig(zero_stage=0, gpu_memory_gb=8, precision_bits=8).to_dict())
    assert {name for name, _ in log} >= {*OUTPUTS, *FIELDS, "gpu", "simulation"}
    consistent(memory)


def test_observers_see_one_state() -> None:
    memory = TrainingMemory()
    seen = []

    def look(_change: object) -> None:
        consistent(memory)
        seen.append(memory.num_gpus)

    memory.observe(look)
    memory.update(num_gpus=64, seq_length=8192)
    memory.zero_stage = 1
    assert set(seen) == {64}


def test_update_changes_all_at_once_and_computes_once(calls: list[TrainingConfig]) -> None:
    memory = TrainingMemory()
    log = heard(memory)
    del calls[:]
    memory.update(**OTHER)
    assert calls == [TrainingConfig(**OTHER)]
    assert len([name for name, _ in log if name == "simulation"]) == 1
    assert len({name for name, _ in log}) == len(log)  # each trait once
    consistent(memory)


def test_update_is_all_or_nothing() -> None:
    memory = TrainingMemory()
    before = state(memory)
    log = heard(memory)
    for changes in (
        {"num_gpus": 64, "zero_stage": 4},
        {"num_gpus": 64, "nonsense": 1},
        {"num_gpus": 64, "gpu": "nonsense"},
        {"self": 1},
        {"config": 1},
    ):
        with pytest.raises(ConfigError):
            memory.update(**changes)
        assert state(memory) == before
    assert {name for name, _ in log} == {"error"}


def test_integral_and_numpy_numbers_become_plain_ones() -> None:
    memory = TrainingMemory()
    memory.num_gpus = np.float32(16)
    memory.grad_ckpt = False
    memory.model_params_b = np.int64(70)
    assert [type(v) for v in (memory.num_gpus, memory.grad_ckpt)] == [int, int]
    assert type(memory.model_params_b) is float
    assert (memory.num_gpus, memory.grad_ckpt, memory.model_params_b) == (16, 0, 70.0)


@pytest.mark.parametrize("name", [*OUTPUTS, "simulation", "error"])
def test_outputs_are_read_only(name: str) -> None:
    memory = TrainingMemory()
    with pytest.raises(traitlets.TraitError, match="read-only"):
        setattr(memory, name, getattr(memory, name))


def test_help_and_kind_of_every_trait() -> None:
    for name, trait in TrainingMemory.class_traits().items():
        assert trait.help, name
        if name not in ("simulation",):
            assert trait.metadata["sync"], name
        if name in OUTPUTS:
            assert trait.metadata["kind"] == "output"
            assert trait.read_only
        elif name in FIELDS:
            assert trait.metadata["kind"] == "input"


def test_a_card_and_a_size_follow_each_other() -> None:
    memory = TrainingMemory()
    memory.gpu = "H200 · 141 GB"
    assert memory.gpu_memory_gb == 141.0
    memory.gpu_memory_gb = 100
    assert memory.gpu == ""
    memory.gpu = "T4 · 16 GB"
    assert memory.gpu_memory_gb == 16.0
    memory.gpu = ""  # a size to be typed; until then the same
    assert memory.gpu_memory_gb == 16.0
    memory.num_gpus = 9
    assert memory.gpu == ""
    memory.update(gpu="H200 · 141 GB", gpu_memory_gb=99)
    assert (memory.gpu, memory.gpu_memory_gb) == ("", 99.0)
    consistent(memory)


def test_repr_is_one_line_with_what_differs() -> None:
    assert repr(TrainingMemory()) == "<TrainingMemory 24.9 / 80 GB fits>"
    text = repr(TrainingMemory(**OTHER))
    assert "\n" not in text
    assert "does not fit: model_params_b=70.6, num_gpus=64" in text
    for length, grade in ((4096, "fits"), (7500, "uncertain"), (8192, "does not fit")):
        memory = TrainingMemory(architecture="Llama-3-8B", seq_length=length)
        assert memory.grade == grade
        assert f" GB {grade}: architecture='Llama-3-8B'" in repr(memory)
