"""Requests of the architecture-aware model: what is asked, what is refused, what comes back."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace

import pytest

import trainmem
from steps import GIB, H100, PIPELINE, TINY, llama, planned
from trainmem import (
    ARCHITECTURES,
    Architecture,
    ConfigError,
    Plan,
    TrainingConfig,
    TrainingMemory,
    preset,
    simulate,
)
from trainmem.readers import read_configuration
from trainmem.request import NotCovered
from trainmem.transformer import TransformerModel, architecture, peak, stack
from trainmem.widget.words import panel


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
    assert answer["plan"] | {"settings": ()} == asdict(llama().plan)
    settings = {"reduce_bucket_size": 10**6, "overlap_comm": True}
    given = llama(plan=stack("deepspeed-zero2", settings=settings), zero_stage=2)
    assert given.to_dict()["plan"]["settings"] == settings
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


# -- huge values


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


def test_the_sweeps_are_those_of_the_model():
    s = llama()
    model = TransformerModel(ARCHITECTURES["Llama-3-8B"])
    for i in (0, 20, 47):
        config = s.config.replace(num_gpus=int(s.gpu_sweep.x[i]))
        assert s.gpu_sweep.components.total[i] == model.peak(config).peak_bytes


def test_an_invalid_layout_is_refused_with_choices():
    with pytest.raises(ConfigError, match=r"num_gpus|tp|pp"):
        simulate(architecture="Llama-3-8B", num_gpus=12, zero_stage=1, plan={**PIPELINE, "pp": 1})


def test_gpu_counts_stay_multiples_of_the_layout():
    simulation = planned()
    assert simulation.min_gpus_to_fit is not None
    assert simulation.min_gpus_to_fit % 128 == 0
    assert not (simulation.gpu_sweep.x % 128).any()
    assert 512 in simulation.gpu_sweep.x
