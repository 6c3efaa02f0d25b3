"""The architecture as a trait: chosen, opened from a file, and left again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from traitlets import TraitError

import trainmem
import trainmem.widget.traits
from steps import GIB, TINY
from trainmem import ARCHITECTURES, ConfigError, TrainingMemory, TrainingMemoryWidget, simulate
from trainmem.transformer import stack

from .kit import Browser, own


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


# -- opened from a file


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


def test_any_gives_the_ten_inputs_back_and_an_architecture_its_stack():
    memory = trainmem.TrainingMemory(num_gpus=16, seq_length=8192, zero_stage=2)
    before = memory.config
    memory.update(architecture="GPT-2")
    memory.update(architecture="Llama-3-8B", stack="megatron")
    within = own(memory)
    assert (memory.zero_stage, memory.grad_ckpt, memory.seq_length) == (1, 0, 8192)
    memory.architecture = ""
    assert memory.config == before
    memory.architecture = "Llama-3-8B"
    assert own(memory) == within
    memory.num_gpus = 32  # by hand: kept
    memory.grad_ckpt = 1
    memory.architecture = ""
    assert memory.config == before.replace(num_gpus=32)
    memory.update(grad_ckpt=0, zero_stage=0)
    memory.architecture = "Llama-3-8B"
    assert (memory.grad_ckpt, memory.zero_stage) == (0, 0)


def test_an_architecture_brings_16_bits_and_a_shorter_sequence_and_gives_both_back() -> None:
    widget = TrainingMemoryWidget(precision_bits=8)
    browser = Browser(widget)
    before = widget.config
    browser.set(architecture="GPT-2")
    assert (widget.precision_bits, widget.seq_length) == (16, 1024)
    assert widget._told["also"] == "Also changed: Precision → 16; Sequence → 1024"
    browser.set(architecture="")
    assert widget.config == before


def test_a_whole_plan_brings_the_inputs_that_it_says():
    plan = stack("deepspeed-zero2", num_gpus=16, seq_length=2048)
    memory = TrainingMemory(architecture="Llama-3-8B", plan=plan)
    assert memory.simulation.plan == plan
    assert (memory.zero_stage, memory.num_gpus, memory.seq_length) == (2, 16, 2048)
    memory.update(plan=stack("transformers"), num_gpus=4)
    assert memory.simulation.plan == stack("transformers", num_gpus=4)
    with pytest.raises(ConfigError, match="takes a whole Plan"):
        memory.plan = plan
    assert memory.simulation.plan == stack("transformers", num_gpus=4)
