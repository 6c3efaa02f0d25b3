"""Configurations of tools that are not read: refused by the tool's name."""

import pytest

from trainmem.config import ConfigError
from trainmem.readers import (
    accelerate,
    deepspeed,
    megatron_keys,
    read_configuration,
    torchtitan,
    trainer,
)
from trainmem.readers.foreign import SIGNS as FOREIGN
from trainmem.readers.read import SIGNS

from .files import EXPECTED, TABLES, leaves

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


def test_a_format_that_is_named_is_read_and_what_it_lacks_is_listed():
    reading = read_configuration(AXOLOTL | {"bf16": True}, format="trainer")
    assert {"sequence_len", "micro_batch_size", "base_model", "optimizer"} <= set(
        reading.unsupported
    )
