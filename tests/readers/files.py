"""Configurations as they are posted, and what each says."""

import json
import tomllib
from pathlib import Path

from trainmem.readers import accelerate, deepspeed, megatron_keys, torchtitan, trainer
from trainmem.readers.account import flatten
from trainmem.readers.megatron import parse
from trainmem.readers.read import _parse

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
         "precision": "bf16_master", "framework": "deepspeed", "optimizer": "adamw_foreach",
         "settings": (("reduce_bucket_size", "auto"),
                      ("stage3_param_persistence_threshold", "auto"),
                      ("stage3_prefetch_bucket_size", "auto"))},
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
        "prefetch_my_data",
    },
    "accelerate_fsdp.json": {"fsdp_config.fsdp_version"},
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


TABLES = [accelerate.IGNORED, accelerate.FSDP_IGNORED, deepspeed.IGNORED, megatron_keys.IGNORED,
          torchtitan.IGNORED, trainer.IGNORED]  # fmt: skip
