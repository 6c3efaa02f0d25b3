"""The ten inputs mapped to an architecture and a plan, and the model under `simulate`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from strategies import plans
from trainmem import ConfigError, TrainingConfig, simulate
from trainmem.transformer import (
    STACKS,
    Plan,
    TransformerModel,
    architecture,
    derived_inputs,
    peak,
    plan_of,
    stack,
)
from trainmem.transformer.inputs import inputs_of, options_of
from trainmem.widget.words import panel

LLAMA = architecture("Llama-3-8B")
MODEL = TransformerModel(LLAMA)


@pytest.mark.parametrize(
    ("changes", "sharding", "precision"),
    [
        ({}, "zero3", "mixed"),
        ({"zero_stage": 1}, "zero1", "mixed"),
        ({"zero_stage": 0}, "ddp", "amp"),
        ({"zero_stage": 0, "num_gpus": 1}, "none", "amp"),
        ({"num_gpus": 1}, "zero3", "mixed"),
        ({"precision_bits": 32}, "zero3", "fp32"),
    ],
)
def test_stage_and_precision(changes, sharding, precision):
    plan = plan_of(TrainingConfig(**changes), Plan(reduce_dtype="bfloat16", wrapping="split"))
    assert (plan.sharding, plan.precision) == (sharding, precision)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_comes_back_from_its_ten_inputs(name):
    for gpus in (1, 8):
        try:
            plan = stack(name, num_gpus=gpus)
        except ValueError:  # Megatron's and llm.c's optimizer is sharded over several
            continue
        assert plan_of(TrainingConfig(**inputs_of(plan)), plan) == plan


@given(plans())
def test_any_plan_comes_back_from_its_ten_inputs(plan):
    config = TrainingConfig(**inputs_of(plan))
    assert plan_of(config, plan) == plan
    assert plan_of(config, options_of(plan)) == plan


@pytest.mark.parametrize(("name", "stage"), [("deepspeed-zero2", 2), ("megatron", 1)])
def test_a_whole_plan_keeps_its_stage_under_simulate(name, stage):
    plan = stack(name, num_gpus=8, seq_length=2048)
    answer = simulate(architecture=LLAMA, plan=plan)
    assert answer.plan == plan
    assert answer.zero_stage == stage
    assert answer.per_gpu_total_gb == round(peak(LLAMA, plan).peak_bytes / 1e9, 3)


def test_llm_c_shards_its_optimizer_states():
    gpt2 = architecture("GPT-2")
    sharded = simulate(architecture=gpt2, plan=stack("llm.c", seq_length=1024))
    whole = simulate(architecture=gpt2, plan=stack("llm.c", seq_length=1024, sharding="ddp"))
    assert sharded.optimizer_per_gpu_gb == pytest.approx(whole.optimizer_per_gpu_gb / 8, abs=2e-3)


def test_plan_keeps_its_own_sixteen_bit_policy():
    config = TrainingConfig(zero_stage=0)
    plan = Plan(sharding="ddp", num_gpus=2, precision="bf16_master")
    assert plan_of(config, plan).precision == "bf16_master"


def test_checkpointing_and_sizes_come_from_the_inputs():
    config = TrainingConfig(grad_ckpt=0, micro_batch=3, seq_length=1000, num_gpus=7)
    plan = plan_of(config, Plan())
    assert plan.checkpointing == "none"
    assert (plan.micro_batch, plan.seq_length, plan.num_gpus) == (3, 1000, 7)


def test_eight_bits_are_refused():
    with pytest.raises(ConfigError, match="precision_bits: 8 is not allowed; must be 16 or 32"):
        MODEL.components(TrainingConfig(precision_bits=8))


def test_derived_inputs_are_valid_inputs():
    config = TrainingConfig(**derived_inputs(LLAMA))
    assert config.model_params_b == pytest.approx(8.030261248)
    assert (config.num_layers, config.hidden_dim) == (32, 4096)


@pytest.mark.parametrize(
    ("plan", "changes", "expected"),
    [
        (Plan(), {}, 16),
        (Plan(), {"precision_bits": 32}, 16),
        (Plan(precision="bf16_master"), {}, 16),
        (Plan(precision="bf16"), {}, 8),
        (Plan(optimizer="sgd"), {}, 8),
    ],
)
def test_bytes_per_parameter_are_derived(plan, changes, expected):
    model = TransformerModel(LLAMA, plan)
    assert model.bytes_per_param(TrainingConfig(**changes)) == expected


@pytest.mark.parametrize(
    ("options", "base", "adapter"),
    [
        ({}, 4, 16),  # fp32 shards of all, and fp32 AdamW of what is trained
        ({"precision": "bf16"}, 2, 16),  # peft keeps adapters in fp32
        ({"precision": "bf16", "optimizer": "sgd"}, 2, 8),
    ],
)
def test_adapters_have_states_and_the_frozen_base_has_none(options, base, adapter):
    rank, h, k, f = 16, 4096, 1024, 14336
    inputs_and_outputs = (2 * h, h + k, h + k, 2 * h, h + f, h + f, f + h)  # q k v o gate up down
    adapters = 32 * rank * sum(inputs_and_outputs)
    plan = {"lora_rank": rank, "lora_targets": "all", **options}
    model = TransformerModel(LLAMA, plan)
    whole = base * LLAMA.num_params + adapter * adapters
    assert model.bytes_per_param(TrainingConfig()) == pytest.approx(whole / LLAMA.num_params)
    answer = simulate(architecture=LLAMA, plan=plan)
    assert answer.model_states_unsharded_gb == pytest.approx(whole / 1e9, abs=1e-3)


def test_a_quantised_base_takes_its_bits_and_their_scales():
    plan = {"precision": "bf16", "lora_rank": 8, "quantization": "nf4"}
    answer = simulate(architecture="Llama-3-70B", plan=plan)
    big = architecture("Llama-3-70B")
    layers = big.num_layers * (big.layer_params - 2 * big.hidden_dim)  # norms stay as they are
    rest = big.num_params - layers
    adapters = 80 * 8 * ((8192 + 8192) + (8192 + 1024))  # queries, values
    whole = layers * (0.5 + 4 / 64) + 2 * rest + 16 * adapters
    assert answer.model_states_unsharded_gb == pytest.approx(whole / 1e9, abs=1e-3)


def test_model_states_are_called_a_part_of_the_whole_only_where_they_are():
    """At the peak gradients may be missing, and being reduced they are there twice."""
    one = simulate(architecture=LLAMA, num_gpus=1, micro_batch=1)
    assert one.model_states_per_gpu_gb > one.model_states_unsharded_gb
    for answer, unit in ((one, "GB at the peak"), (simulate(), "GB of 128")):
        card = next(c for c in panel(answer)["cards"] if c["title"] == "Model states")
        assert card["unit"] == unit
    assert "16 bytes/param, 128.5 GB of states in all" in panel(one)["footer"]


def test_capacity_is_what_the_card_shows_where_known():
    config = TrainingConfig(gpu_memory_gb=80)
    assert MODEL.capacity_bytes(config) == 80e9
    assert TransformerModel(LLAMA, usable_gib=79.1).capacity_bytes(config) == 79.1 * 2**30


def test_simulate_answers_with_this_model():
    config = TrainingConfig(**derived_inputs(LLAMA))
    answer = simulate(config, model=MODEL)
    assert answer.per_gpu_total_gb == round(MODEL.peak(config).peak_bytes / 1e9, 3)
    assert len(answer.gpu_sweep.x) == len(answer.seq_sweep.x) == 48


@pytest.mark.parametrize("gb", [45, 80, 120])
def test_fewest_gpus_fit_and_one_less_does_not(gb):
    config = TrainingConfig(gpu_memory_gb=gb)
    fewest = MODEL.smallest_num_gpus(config)
    totals = MODEL.components(config, num_gpus=[fewest - 1, fewest]).total
    assert totals[0] > gb * 1e9 >= totals[1]


def test_no_count_fits_where_a_rank_alone_needs_too_much():
    assert MODEL.smallest_num_gpus(TrainingConfig(gpu_memory_gb=20)) is None
    assert MODEL.smallest_num_gpus(TrainingConfig(gpu_memory_gb=400)) == 1


def test_detail_is_plain_json():
    config = TrainingConfig()
    extra = json.loads(json.dumps(MODEL.detail(config)))
    assert set(extra) == {"plan", "detail"}
    assert extra["detail"]["peak_bytes"] == peak(LLAMA, plan_of(config, Plan())).peak_bytes


def test_keys_and_values_stay_where_another_than_transformers_checkpoints():
    """A published run of Llama-2-7B, cured by use_cache=False: out of memory on 39.4 GiB."""
    plan = Plan(num_gpus=16, micro_batch=8, seq_length=4096)
    model = architecture("Llama-2-7B")
    kept = peak(model, replace(plan, use_cache=True)).peak_bytes
    assert kept - peak(model, plan).peak_bytes == 32 * 2 * 8 * 4096 * 4096 * 2
    answer = simulate(architecture=model, plan=replace(plan, use_cache=True), gpu="A100 · 40 GB")
    assert answer.grade == "does not fit"
    with pytest.raises(ValueError, match="use_cache is covered with kernels 'transformers'"):
        replace(plan, use_cache=True, kernels="liger")


def test_mapping_and_plan_mean_the_same():
    config = TrainingConfig(zero_stage=1)
    assert plan_of(config, {"optimizer": "sgd"}) == plan_of(config, Plan(optimizer="sgd"))
