"""Configurations as people have them: every key of a file is accounted for, exactly once."""

import errno
import json
import os
import time
import tomllib
from dataclasses import FrozenInstanceError
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem import simulate
from trainmem.config import ConfigError, TrainingConfig
from trainmem.readers import (
    FORMATS,
    Reading,
    accelerate,
    deepspeed,
    megatron_keys,
    read_configuration,
    torchtitan,
    trainer,
)
from trainmem.readers.account import UNKNOWN, flatten
from trainmem.readers.foreign import SIGNS as FOREIGN
from trainmem.readers.megatron import parse
from trainmem.readers.read import LONG_KEY, MAX_BYTES, SIGNS, _parse
from trainmem.transformer import OPTIONS, TransformerModel


def nested(depth):
    """Return a list in a list, that deep."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def dict_of(depth):
    """Return a mapping in a mapping, that deep."""
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


CONFIGS = Path(__file__).parents[1] / "data" / "configs"

#: File → format, and options that its plan must have.
EXPECTED = {
    "deepspeed_zero3.json": (
        "deepspeed",
        {"num_gpus": 16, "micro_batch": 4, "accumulation": 4, "sharding": "zero3",
         "precision": "bf16_master", "framework": "deepspeed", "offload": "all"},
    ),
    "deepspeed_zero2_auto.json": (
        "deepspeed",
        {"sharding": "zero2", "precision": "bf16_master", "framework": "deepspeed"},
    ),
    "accelerate_fsdp.json": (
        "accelerate",
        {"num_gpus": 16, "sharding": "zero2", "precision": "mixed", "checkpointing": "full",
         "reduce_dtype": "bfloat16", "optimizer": "adamw_foreach"},
    ),
    "accelerate_deepspeed.json": (
        "accelerate",
        {"num_gpus": 8, "sharding": "zero3", "precision": "bf16_master", "accumulation": 8,
         "offload": "optimizer", "framework": "deepspeed"},
    ),
    "fsdp2_section.json": ("accelerate", {"sharding": "zero3", "offload": "all"}),
    "trainer_deepspeed.json": (
        "trainer",
        {"micro_batch": 2, "accumulation": 8, "checkpointing": "full", "sharding": "zero3",
         "precision": "bf16_master", "framework": "deepspeed", "optimizer": "adamw"},
    ),
    "trainer_fsdp.json": (
        "trainer",
        {"micro_batch": 1, "checkpointing": "full", "sharding": "zero3", "precision": "mixed",
         "kernels": "liger", "loss_head": "fused", "optimizer": "adamw"},
    ),
    "trl_qlora.json": (
        "trainer",
        {"micro_batch": 4, "seq_length": 2048, "precision": "bf16", "lora_rank": 32,
         "lora_targets": "all", "quantization": "nf4_double", "optimizer": "adam8bit",
         "checkpointing": "full"},
    ),
    "torchtitan_llama3_8b.toml": (
        "torchtitan",
        {"num_gpus": 8, "micro_batch": 2, "seq_length": 8192, "sharding": "zero3",
         "precision": "mixed", "kernels": "torchtitan", "checkpointing": "selective",
         "loss_head": "transformers", "wrapping": "split"},
    ),
    "torchtitan_llama3_405b.toml": (
        "torchtitan",
        {"tp": 8, "pp": 8, "vpp": 2, "micro_batch": 1, "accumulation": 16, "sharding": "zero2",
         "kernels": "compiled", "loss_head": "compiled", "checkpointing": "full",
         "optimizer": "adamw_foreach"},
    ),
    "torchtitan_2024.toml": (
        "torchtitan",
        {"num_gpus": 16, "tp": 2, "micro_batch": 8, "kernels": "compiled",
         "checkpointing": "every_2nd"},
    ),
    "megatron_llama3_70b.txt": (
        "megatron",
        {"num_gpus": 64, "tp": 4, "pp": 4, "vpp": 4, "accumulation": 32, "sharding": "zero1",
         "precision": "bf16_master", "sequence_parallel": True, "checkpointing": "selective",
         "loss_head": "in_place", "framework": "megatron", "kernels": "transformer_engine"},
    ),
    "megatron_mixtral.txt": (
        "megatron",
        {"pp": 4, "ep": 8, "num_gpus": 32, "sharding": "zero1", "checkpointing": "full",
         "sequence_parallel": False, "loss_head": "transformers", "accumulation": 32},
    ),
}  # fmt: skip

#: File → keys that must be unsupported, and no others.
UNSUPPORTED = {
    "deepspeed_zero3.json": {
        "zero_optimization.stage3_prefetch_bucket_size",
        "prefetch_my_data",
    },
    "deepspeed_zero2_auto.json": {
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.reduce_bucket_size",
    },
    "accelerate_fsdp.json": {"fsdp_config.fsdp_version"},
    "trainer_deepspeed.json": {
        "optim",
        "deepspeed.zero_optimization.reduce_bucket_size",
        "deepspeed.zero_optimization.stage3_prefetch_bucket_size",
        "deepspeed.zero_optimization.stage3_param_persistence_threshold",
    },
    "trl_qlora.json": {"lora_dropout"},
    "torchtitan_llama3_405b.toml": {
        "model.converters",
        "quantize.linear.float8.enable_fsdp_float8_all_gather",
    },
    "torchtitan_2024.toml": {"training.data_parallel_replicate_degree"},
    "megatron_llama3_70b.txt": {"--fp8-format", "--my-own-argument"},
}


def leaves(name: str) -> set[str]:
    """Return the keys of a file, found without the readers where that is possible."""
    text = (CONFIGS / name).read_text()
    if name.endswith(".txt"):
        return set(parse(_parse(text, "megatron")))
    return set(flatten(json.loads(text) if name.endswith(".json") else tomllib.loads(text)))


def test_every_sample_is_expected():
    assert {path.name for path in CONFIGS.iterdir()} == set(EXPECTED)
    assert {kind for kind, _ in EXPECTED.values()} == set(FORMATS)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_key_is_accounted_for_once(name):
    reading = read_configuration(CONFIGS / name)
    books = [set(reading.used), set(reading.ignored), set(reading.unsupported)]
    assert set.union(*books) == leaves(name)
    assert sum(map(len, books)) == len(leaves(name))
    assert all(text for book in (reading.used, reading.ignored, reading.unsupported)
               for text in book.values())  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_plan_is_what_the_file_says(name):
    kind, options = EXPECTED[name]
    reading = read_configuration(CONFIGS / name)
    assert reading.format == kind
    assert {key: getattr(reading.plan, key) for key in options} == options
    assert set(reading.unsupported) == UNSUPPORTED.get(name, set())


@pytest.mark.parametrize("name", EXPECTED)
def test_inputs_and_plan_agree(name):
    reading = read_configuration(CONFIGS / name)
    config = reading.training_config()
    assert {key: getattr(config, key) for key in reading.inputs} == dict(reading.inputs)
    assert set(reading.assumed) <= set(OPTIONS)
    text = str(reading)
    assert all(f"  {key}: " in text for key in leaves(name))


UNKNOWN_KEYS = {
    "deepspeed": ({"zero_optimization": {"stage": 3}, "my_key": 1}, "my_key"),
    "a deepspeed section": ({"zero_optimization": {"stage": 3, "mine": "auto"}},
                            "zero_optimization.mine"),
    "a sign of another too": ({"zero_optimization": {}, "train_batch_size": 8,
                               "optimizer": {"params": {"mine": 1}}}, "optimizer.params.mine"),
    "accelerate": ({"distributed_type": "FSDP", "mixed_precision": "bf16", "mine": False}, "mine"),
    "fsdp": ({"distributed_type": "FSDP", "mixed_precision": "bf16",
              "fsdp_config": {"fsdp_mine": 2}}, "fsdp_config.fsdp_mine"),
    "trainer": ({"output_dir": "x", "lora_rank": 8}, "lora_rank"),
    "a prefix of trainer's": ({"output_dir": "x", "save_activations": True}, "save_activations"),
    "torchtitan": ({"training": {"mine": 1}}, "training.mine"),
    "megatron": ("--num-layers 4 --bf16 --mine 4", "--mine"),
    "a prefix of megatron's": ("--bf16 --distributed-optimizer", "--distributed-optimizer"),
    "another": ("--bf16 --overlap-everything", "--overlap-everything"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN_KEYS)
def test_an_unknown_key_is_never_ignored(case):
    source, key = UNKNOWN_KEYS[case]
    assert read_configuration(source).unsupported[key] == UNKNOWN


def test_null_is_as_good_as_absent():
    assert read_configuration({"output_dir": "x", "mine": None}).ignored["mine"].startswith("null")


TABLES = [accelerate.IGNORED, accelerate.FSDP_IGNORED, deepspeed.IGNORED, megatron_keys.IGNORED,
          torchtitan.IGNORED, trainer.IGNORED]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_no_prefix_ignores_a_key(table):
    for key in " ".join(table.values()).split():
        whole = key.removesuffix(".*").removeprefix("*.")
        assert "*" not in whole, f"{key} may swallow a key that changes memory"


AXOLOTL = {"base_model": "some/model-1.7B", "sequence_len": 16384, "sample_packing": True,
           "micro_batch_size": 1, "gradient_accumulation_steps": 1, "optimizer": "adamw_8bit",
           "bf16": "auto", "gradient_checkpointing": False, "output_dir": "out"}  # fmt: skip
FOREIGN_SOURCES = [
    (AXOLOTL, "axolotl"),
    ({"model_name_or_path": "meta-llama/Meta-Llama-3-8B", "quantization_bit": 4, "stage": "sft",
      "finetuning_type": "lora", "lora_rank": 8, "cutoff_len": 4096, "bf16": True,
      "per_device_train_batch_size": 1, "output_dir": "out"}, "LLaMA-Factory"),
    ({"model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8},
      "optimizer": {"fused": True}, "batch_size": 2, "compile": False}, "torchtune"),
    ({"batch_size": 2, "optimizer": {"lr": 1}, "enable_activation_checkpointing": True},
     "torchtune"),
    ({"model": "x", "training": {"training_type": "lora", "max_seq_length": 2048}}, "Unsloth"),
    ({"per_device_train_batch_size": 2, "gradient_checkpointing": "unsloth"}, "Unsloth"),
    ({"model": "Qwen/Qwen2.5-7B", "train_type": "lora", "max_length": 2048, "output_dir": "o",
      "per_device_train_batch_size": 1}, "ms-swift"),
    ({"checkpoint_dir": "x", "lora_r": 8, "lora_query": True, "train": {"micro_batch_size": 1}},
     "litgpt"),
    ({"trainer": {"devices": 8}, "exp_manager": {}, "model": {"micro_batch_size": 1}}, "NeMo"),
    ({"model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM"}, "optimizer": {}}, "NeMo"),
    ({"pipe_parallel_size": 1, "num_layers": 12, "zero_optimization": {"stage": 1},
      "train_micro_batch_size_per_gpu": 4}, "GPT-NeoX"),
    ({"max_seq_len": 4096, "device_train_microbatch_size": 2, "fsdp_config": {}}, "LLM Foundry"),
    ({"model": {}, "optimizer": {}, "parallelism": {"dp": 2}, "tokens": {"micro_batch_size": 1}},
     "nanotron"),
    ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "bf16": True}, "model"),
    ("accelerate launch sft.py --model_name_or_path some/model --bf16", "accelerate"),
    ("CUDA_VISIBLE_DEVICES=0 !/usr/bin/accelerate launch --bf16 x.py", "accelerate"),
    ("trl sft --model_name_or_path some/model --bf16", "TRL"),
    ("torchrun --nproc_per_node 8 sft.py --per_device_train_batch_size 2 --bf16 True", "TRL"),
    ("python train.py --model-name-or-path x --bf16", "TRL"),
    ("llamafactory-cli train --stage sft --bf16", "LLaMA-Factory"),
    ("torchrun src/train.py --stage sft --finetuning_type full --bf16", "LLaMA-Factory"),
    ("torchrun -m axolotl.cli.train config.yml --bf16", "axolotl"),
    ("tune run --nproc_per_node 2 lora_finetune_distributed --config llama3/8B_lora", "torchtune"),
    ("swift sft --model x --bf16 true", "ms-swift"),
    ("litgpt finetune_full x --train.micro_batch_size 1", "litgpt"),
    ("torchrun torchtitan/train.py --job.config_file x.toml", "torchtitan"),
    ("torchrun train.py --training.seq_len 8192", "torchtitan"),
    ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "DeepSpeed's launcher"),
    ("torchrun pretrain_gpt.py --num-layers 4 --bf16 --deepspeed --zero-stage 1",
     "Megatron-DeepSpeed"),
    ("python train.py --epochs 3", "none of Megatron-LM's options"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "tool"), FOREIGN_SOURCES, ids=str)
def test_another_tools_configuration_is_refused_by_its_name(source, tool):
    with pytest.raises(ConfigError, match=f"source: .* it is a [^:]*{tool}.*which is not read: "):
        read_configuration(source)


def test_no_sign_of_another_tool_is_a_key_that_is_read():
    ours = {key.partition("=")[0] for table in TABLES for key in " ".join(table.values()).split()}
    ours |= set.union(*SIGNS.values())
    for tables in (accelerate, deepspeed, torchtitan, trainer, megatron_keys):
        ours |= {k.partition("=")[0] for k in " ".join(tables.UNSUPPORTED.values()).split()}
    for name in EXPECTED:
        ours |= leaves(name)
    for tool, signs in FOREIGN.items():
        assert not ours & set(signs.split()), tool


def test_numpys_scalars_are_numbers():
    reading = read_configuration({"output_dir": "x", "per_device_train_batch_size": np.int64(4)})
    assert reading.plan.micro_batch == 4


def test_a_format_that_is_named_is_read_and_what_it_lacks_is_listed():
    reading = read_configuration(AXOLOTL | {"bf16": True}, format="trainer")
    assert {"sequence_len", "micro_batch_size", "base_model", "optimizer"} <= set(
        reading.unsupported
    )


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        ("", "--use-flash-attn"),
        ("--use-flash-attn", None),
        ("--use-mcore-models", None),
        ("--transformer-impl transformer_engine", None),
        ("--transformer-impl local", "--transformer-impl"),
        ("--transformer-impl local --use-flash-attn", None),
        ("--transformer-impl local --use-mcore-models --use-flash-attn", "--transformer-impl"),
        ("--attention-backend fused", None),
        ("--attention-backend auto", None),
        ("--attention-backend unfused", "--attention-backend"),
        ("--attention-backend local --use-mcore-models", "--attention-backend"),
    ],
)
def test_megatrons_attention_is_flash_only_where_the_arguments_say_so(words, stored):
    arguments = f"{BASE} --vocab-size 1000 {words}"
    reading = read_configuration(arguments)
    assert dict(reading.unsupported) == {}
    assert reading.plan.attention == ("eager" if stored else "flash")
    if stored and stored in words:
        assert "attention = 'eager'" in reading.used[stored]
    elif stored:
        assert "--use-flash-attn" in reading.assumed["attention"]
    assert read_configuration(arguments, attention="flash").plan.attention == "flash"


def test_megatrons_stored_scores_say_what_is_not_modelled_of_them():
    stored = f"{BASE} --vocab-size 1000 --transformer-impl local"
    assert not read_configuration(stored).unsupported
    for words, key in (
        ("--attention-softmax-in-fp32", "--attention-softmax-in-fp32"),
        ("--hidden-dropout 0", "--attention-dropout"),
        ("--attention-dropout 0", "--attention-dropout"),
    ):
        assert set(read_configuration(f"{stored} {words}").unsupported) == {key}


def test_a_published_run_without_flash_attention_runs_out_of_memory():
    """GPT-2 large on a V100 of 31.7 GiB: out of memory with 28.8 GiB allocated, 0.8 more asked."""
    arguments = (
        "--num-layers 36 --hidden-size 1280 --num-attention-heads 20 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 16 --fp16 "
        "--use-distributed-optimizer"
    )
    for gate in ("", " --swiglu"):
        reading = read_configuration(arguments + gate, num_gpus=1, vocab_size=50257)
        model = reading.architecture
        assert (model.gated, model.linear_bias, model.learned_positions) == (bool(gate), True, True)
        answer = simulate(architecture=model, plan=reading.plan, gpu="V100 · 32 GB")
        assert answer.grade == "does not fit"
        flash = read_configuration(
            arguments + gate + " --use-flash-attn", num_gpus=1, vocab_size=50257
        )
        less = simulate(architecture=model, plan=flash.plan, gpu="V100 · 32 GB")
        scores = 5 * 20 * 1024**2 * 4 * 36  # 2 softmax, 1 mask, 2 dropped: a layer and sequence
        freed = (answer.per_gpu_total_gb - less.per_gpu_total_gb) * 1e9
        assert freed == pytest.approx(scores, rel=0.05)


def test_megatrons_gpt_has_the_parameters_that_its_arguments_make():
    """Megatron's CI: 12 layers of 512 with learned positions and biases, 0.064 billion."""
    words = "--num-layers 12 --hidden-size 512 --num-attention-heads 8 --bf16 --seq-length 1024"
    words += " --max-position-embeddings 1024 --micro-batch-size 4 --use-mcore-models"
    model = read_configuration(words, vocab_size=50257).architecture
    h, layers = 512, 12
    products = layers * (12 * h * h + 9 * h)  # 3h + h + 4h + h of biases
    assert model.num_params == products + (50304 + 1024) * h + (2 * layers + 1) * 2 * h
    rotary = read_configuration(
        words + " --position-embedding-type rope --disable-bias-linear", vocab_size=50257
    ).architecture
    assert model.num_params - rotary.num_params == 1024 * h + layers * 9 * h


@pytest.mark.parametrize(
    ("words", "dropout"),
    [("", True), ("--hidden-dropout 0.1", True), ("--hidden-dropout 0", False),
     ("--hidden-dropout 0.0 --attention-dropout 0.1", False)],
)  # fmt: skip
def test_megatrons_dropout_is_on_by_default(words, dropout):
    reading = read_configuration(f"{BASE} --vocab-size 50000 --use-flash-attn {words}")
    TransformerModel(reading.architecture, reading.plan).components(reading.training_config())
    assert (reading.plan.dropout, dict(reading.unsupported)) == (dropout, {})


@pytest.mark.parametrize(
    ("keys", "book"),
    [
        ({"use_cache": True}, "used"),
        ({"use_cache": True, "gradient_checkpointing": False}, "used"),
        ({"use_cache": True, "gradient_checkpointing": True}, "ignored"),
        ({"use_cache": True, "use_peft": False}, "ignored"),  # TRL checkpoints by default
        ({"use_cache": False}, "ignored"),
        ({"use_cache": True, "fsdp": True, "fsdp_config": {"activation_checkpointing": True}},
         "used"),
    ],
    ids=str,
)  # fmt: skip
def test_use_cache_counts_unless_transformers_turns_it_off(keys, book):
    reading = read_configuration({"output_dir": "x", "bf16": True, **keys})
    assert "use_cache" in getattr(reading, book)
    assert reading.plan.use_cache is (book == "used")


def under_deepspeed(**keys):
    section = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    section |= keys.pop("deepspeed", {})
    return read_configuration({"output_dir": "x", "bf16": True, "deepspeed": section, **keys})


@pytest.mark.parametrize("optim", ["adamw_torch", "paged_adamw_8bit", "adafactor", "sgd"])
def test_optim_counts_under_deepspeed_where_its_file_names_no_optimizer(optim):
    reading = under_deepspeed(optim=optim)
    expected = trainer.OPTIMIZERS.get(optim)
    assert reading.plan.optimizer == expected or "optim" in reading.unsupported
    assert "optim" not in reading.ignored
    named = under_deepspeed(optim=optim, deepspeed={"optimizer": {"type": "AdamW"}})
    assert named.ignored["optim"] == "DeepSpeed's file names its own optimizer"
    assert "optim" in under_deepspeed(optim="adamw_torch_fused").used


def test_a_compilers_mode_or_backend_switches_it_on():
    def read(**keys):
        return read_configuration({"output_dir": "x", "bf16": True, "fsdp": True, **keys})

    assert read(torch_compile_backend="inductor").plan.kernels == "compiled"
    assert read(torch_compile_mode="default").plan.kernels == "compiled"
    assert "torch_compile_mode" in read(torch_compile_mode="reduce-overhead").unsupported
    assert "torch_compile" in read(torch_compile=True, torch_compile_backend="eager").unsupported
    assert read(torch_compile=False).plan.kernels == "transformers"


def test_what_is_read_can_be_simulated():
    reading = read_configuration(CONFIGS / "trainer_fsdp.json", num_gpus=4, seq_length=1024)
    model = TransformerModel(reading.architecture, reading.plan)
    config = reading.training_config()
    assert (config.num_gpus, config.seq_length) == (4, 1024)
    assert 10e9 < model.components(config).total < 200e9


def test_the_megatron_model_is_the_preset():
    model = read_configuration(CONFIGS / "megatron_llama3_70b.txt").architecture
    assert (model.family, model.num_layers, model.num_kv_heads) == ("llama", 80, 8)
    assert model.vocab_size == 128512  # padded to a multiple of 128 · tp
    mixtral = read_configuration(CONFIGS / "megatron_mixtral.txt").architecture
    assert (mixtral.family, mixtral.num_experts, mixtral.experts_per_token) == ("mixtral", 8, 2)


def test_given_options_win_and_the_key_says_so():
    reading = read_configuration(CONFIGS / "deepspeed_zero3.json", micro_batch=2, num_gpus=32,
                                 format="deepspeed")  # fmt: skip
    assert (reading.plan.micro_batch, reading.plan.num_gpus) == (2, 32)


def test_a_given_option_is_named_where_it_overrides():
    reading = read_configuration({"per_device_train_batch_size": 4, "bf16": True}, micro_batch=2)
    assert reading.plan.micro_batch == 2
    assert reading.ignored["per_device_train_batch_size"] == "overridden by micro_batch=2"
    assert reading.inputs["micro_batch"] == 2


def test_given_names_are_checked():
    with pytest.raises(TypeError, match="'gpus' is not an option of the plan"):
        read_configuration({"bf16": True, "fp16": False, "optim": "sgd"}, gpus=8)
    with pytest.raises(ValueError, match="num_gpus must be an integer"):
        read_configuration({"output_dir": "x"}, num_gpus=0)


def test_readings_are_frozen():
    reading = read_configuration({"output_dir": "x"})
    with pytest.raises(FrozenInstanceError):
        reading.format = "other"
    with pytest.raises(TypeError):
        reading.used["bf16"] = "?"


BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --bf16"
BAD = {
    "zero_optimization.stage: 4 is not allowed; must be a whole number from 0 to 3": {
        "zero_optimization": {"stage": 4}
    },
    "bf16.enabled: 'maybe' is not allowed; must be true or false": {
        "zero_optimization": {"stage": 1}, "bf16": {"enabled": "maybe"}
    },
    "train_batch_size: 100 is not allowed; must be a multiple of 24": {
        "train_batch_size": 100, "train_micro_batch_size_per_gpu": 3
    },
    "zero_optimization.offload_optimizer.device: 'gpu' is not allowed; must be one of none": {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}
    },
    "mixed_precision: 'int8' is not allowed; must be one of no, fp16, bf16, fp8": {
        "distributed_type": "FSDP", "mixed_precision": "int8"
    },
    "fsdp_config.fsdp_sharding_strategy: 'SHARDED' is not allowed; must be one of FULL_SHARD": {
        "distributed_type": "FSDP", "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_sharding_strategy": "SHARDED"},
    },
    "per_device_train_batch_size: 0 is not allowed; must be a whole number from 1 up": {
        "per_device_train_batch_size": 0
    },
    "per_device_train_batch_size: 100000 is not allowed; micro_batch must be an integer from 1": {
        "per_device_train_batch_size": 100_000
    },
    "fsdp: 'fully' is not allowed; must be true, full_shard": {
        "fsdp": "fully", "output_dir": "x"
    },
    "use_peft: False is not allowed; must be true": {"use_peft": False, "load_in_4bit": True},
    'deepspeed.gradient_accumulation_steps: 2 is not allowed; must be 4 or "auto"': {
        "output_dir": "x", "gradient_accumulation_steps": 4, "bf16": True,
        "deepspeed": {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2},
    },
    "activation_checkpoint.mode: 'some' is not allowed; must be one of none": {
        "activation_checkpoint": {"mode": "some"}
    },
    "activation_checkpoint.selective_ac_option: 'ops' is not allowed; must be 'op'": {
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "ops"}
    },
    "training.global_batch_size: 3 is not allowed; must be a multiple of": {
        "training": {"global_batch_size": 3, "local_batch_size": 2}
    },
    "compile.components: \\['optimizer'\\] is not allowed": {
        "compile": {"enable": True, "components": ["optimizer"]}, "training": {}
    },
    "--tensor-model-parallel-size: '\\$TP' is not allowed; must be a whole number from 1": (
        f"{BASE} --tensor-model-parallel-size '$TP'"
    ),
    "--bf16: None is not allowed; must be there": "--num-layers 4",
    "--hidden-dropout: '2' is not allowed; must be a number": f"{BASE} --hidden-dropout 2",
    "--recompute-granularity: 'most' is not allowed; must be one of full, selective": (
        f"{BASE} --recompute-granularity most"
    ),
    "--global-batch-size: 7 is not allowed; must be a multiple of": (
        f"--nproc-per-node 8 x.py {BASE} --global-batch-size 7"
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_a_bad_value_is_named(message):
    with pytest.raises(ConfigError, match=message):
        read_configuration(BAD[message])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "must be a mapping, text"),
        ("ds_config.json", "for a file, a pathlib.Path"),
        ("stage: 3\n", "must be JSON, TOML or Megatron's arguments"),
        ("{", "must be JSON"),
        ("[" * 100_000, "source"),
        ('{"a": ' * 100_000, "source"),
        ('{"bf16": 1, "bf16": 2}', "must be there once"),
        ({"colour": "red"}, "keys must be those of one format"),
        ({}, "keys must be those of one format"),
        ("{" + " " * MAX_BYTES, "must be at most 1 MiB"),
        ({"training": {3: 1}}, "keys must be strings"),
        (["8", "--bf16"], "must begin with an --argument"),
        ("--x 'open", "must be JSON, TOML"),
        (Path("config.yaml"), "yaml.safe_load"),
        (Path("nobody.json"), "source: 'nobody.json' .*can be read: No such file"),
        (Path("."), "can be read: Is a directory"),
        (Path("nul\0.json"), "can be read: embedded null"),
        ({"output_dir": b"x"}, "output_dir: b'x' is not allowed; must be a number, a switch"),
        ({"output_dir": np.zeros(2)}, "must be a number, a switch"),
        ({"fp16": Decimal("sNaN"), "seed": 1}, "fp16: .* must be a number, a switch"),
        ({"output_dir": nested(100_000)}, "output_dir: <list> is not allowed; .*ten levels"),
        ({"output_dir": [{"a": [[[[[[[[[[[[1]]]]]]]]]]]]}]}, "must not be nested deeper"),
        ({"training": dict_of(100_000)}, "must not be nested deeper"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, (str, Path)) else type(value).__name__,
)
def test_what_is_no_configuration_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        read_configuration(source)


@pytest.mark.parametrize(
    "text", [".".join(["a"] * 200_000) + "=1", "[" + ' . "b"' * 100_000 + "]", "x={a" + ".c" * 9**5]
)
def test_a_long_dotted_key_costs_no_time(text):
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"keys must not be nested deeper|must be JSON"):
        read_configuration(text)
    assert time.process_time() - start < 5  # the parser alone would take minutes


@pytest.mark.parametrize("text", ["a" * 10**6, "a " * 500_000, '"" ' * 300_000, "1." * 400_000])
def test_looking_for_long_keys_takes_no_time(text):
    start = time.process_time()
    LONG_KEY.search(text)
    assert time.process_time() - start < 2


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "secret.json"
    path.write_text("{}")

    def refused(*_args, **_options):  # as the system does, but for root, who reads everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(type(path), "open", refused)
    with pytest.raises(ConfigError, match="can be read: Permission denied"):
        read_configuration(path)


def test_large_and_binary_files_are_refused(tmp_path):
    path = tmp_path / "big.json"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        read_configuration(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        read_configuration(path)


def test_the_format_can_be_named():
    with pytest.raises(ConfigError, match="format: 'nemo' is not allowed"):
        read_configuration({}, format="nemo")
    with pytest.raises(ConfigError, match="doesn't go with this kind of source"):
        read_configuration(["--bf16"], format="trainer")
    assert read_configuration({}, format="trainer").plan.micro_batch == 8


def test_the_sources_of_one_configuration_are_the_same():
    path = CONFIGS / "trainer_deepspeed.json"
    text = path.read_text()
    assert read_configuration(path) == read_configuration(text)
    assert read_configuration(text) == read_configuration(json.loads(text))
    words = _parse((CONFIGS / "megatron_mixtral.txt").read_text(), "megatron")
    assert read_configuration(words) == read_configuration(CONFIGS / "megatron_mixtral.txt")


def test_what_the_plan_refuses_is_unsupported_in_its_words():
    reading = read_configuration({"output_dir": "x", "torch_compile": True})  # fp32
    assert reading.plan.kernels == "transformers"
    assert reading.unsupported["torch_compile"].startswith("kernels 'compiled' need")


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ({"output_dir": "x"}, {"precision": "fp32", "checkpointing": "none"}),
        ({"bf16": True, "optim": "sgd"}, {"precision": "amp", "optimizer": "sgd"}),
        ({"bf16": True, "dtype": "bfloat16", "seed": 1}, {"precision": "bf16"}),
        ({"bf16": True, "fsdp": ["shard_grad_op", "offload"]},
         {"sharding": "zero2", "precision": "mixed", "offload": "all"}),
        ({"bf16": True, "fsdp": "no_shard"}, {"sharding": "ddp", "precision": "amp"}),
        ({"bf16": True, "fsdp": True, "fsdp_config": {"fsdp_reshard_after_forward": False}},
         {"sharding": "zero2"}),
        ({"max_length": 512, "gradient_checkpointing": False},
         {"seq_length": 512, "precision": "amp", "checkpointing": "none"}),
        ({"use_peft": True, "lora_target_modules": "all-linear"},
         {"lora_rank": 16, "lora_targets": "all", "quantization": "none"}),
        ({"use_peft": True, "load_in_8bit": True, "lora_target_modules": ["q_proj"]},
         {"lora_targets": "qv", "quantization": "int8"}),
        ({"activation_checkpoint": {"mode": "none"}, "training": {}}, {"checkpointing": "none"}),
        ({"training": {"local_batch_size": 1, "global_batch_size": 32}}, {"accumulation": 4}),
        ({"training": {"dtype": "bfloat16"}}, {"precision": "bf16"}),
        ({"zero_optimization": True, "fp16": {"enabled": True}},
         {"sharding": "zero1", "precision": "bf16_master", "framework": "deepspeed"}),
        ({"zero_optimization": {"stage": 3}}, {"precision": "fp32", "framework": "torch"}),
        ({"train_batch_size": 64, "bf16": {"enabled": True}},
         {"micro_batch": 8, "accumulation": 1, "sharding": "ddp"}),
        (f"{BASE} --recompute-activations --context-parallel-size 2",
         {"checkpointing": "selective", "cp": 2, "sharding": "ddp"}),
        (f"{BASE} --num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size=2 "
         "--global-batch-size 16", {"vpp": 2, "pp": 2, "accumulation": 4}),
    ],
    ids=str,
)  # fmt: skip
def test_ways_to_say_it(source, options):
    plan = read_configuration(source).plan
    assert {key: getattr(plan, key) for key in options} == options


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_junk_values_give_an_answer_or_one_clear_error(data):
    name = data.draw(st.sampled_from([n for n in EXPECTED if n.endswith(".json")]))
    tree = json.loads((CONFIGS / name).read_text())
    branch = tree
    key = data.draw(st.sampled_from(sorted(branch)))
    while isinstance(branch[key], dict) and branch[key] and data.draw(st.booleans()):
        branch = branch[key]
        key = data.draw(st.sampled_from(sorted(branch)))
    branch[key] = data.draw(JUNK)
    try:
        reading = read_configuration(tree, format=EXPECTED[name][0])
    except ValueError:
        return
    assert isinstance(reading, Reading)
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    assert sorted(books) == sorted(flatten(tree))
    assert isinstance(reading.training_config(), TrainingConfig)


ARGUMENTS = parse(_parse((CONFIGS / "megatron_llama3_70b.txt").read_text(), "megatron"))


@settings(max_examples=60, deadline=None)
@given(names=st.sets(st.sampled_from(sorted(ARGUMENTS)), min_size=1))
def test_any_of_megatrons_arguments_are_accounted_for(names):
    words = ["--bf16"]
    for name in names - {"--bf16"}:
        values = ARGUMENTS[name]
        values = [] if values is True else [values] if isinstance(values, str) else values
        words += [name, *values]
    try:
        reading = read_configuration(words)
    except ValueError:
        return
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    missing = {"--attention-dropout"} & set(reading.unsupported) - names  # 0.1 where it isn't there
    assert sorted(books) == sorted(names | {"--bf16"} | missing)


@pytest.mark.parametrize("section", ["training", "parallelism", "compile", "optimizer"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_of_torchtitans_keys_are_accounted_for(section, data):
    tree = tomllib.loads((CONFIGS / "torchtitan_llama3_405b.toml").read_text())
    for key in list(tree[section]):
        if data.draw(st.booleans()):
            del tree[section][key]
    try:
        reading = read_configuration(tree)
    except ValueError:
        return
    books = [*reading.used, *reading.ignored, *reading.unsupported]
    assert sorted(books) == sorted(flatten(tree))
