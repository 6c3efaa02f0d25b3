"""Configurations of other tools, which are not read: recognised, and refused by the tool's name.

Many share keys with a format that is read, and would be misread as that one. The signs are keys
that only the tool has: `axolotl` `src/axolotl/utils/schemas`, LLaMA-Factory
`src/llamafactory/hparams`, torchtune `recipes/configs`, Unsloth `unsloth_cli/config.py`, ms-swift
`swift/arguments`, litgpt `config_hub`, NeMo `examples/nlp/language_modeling/conf`, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trainmem.config import ConfigError

#: Tool → keys that only it has, at the top or in a section (`section.key`).
SIGNS = {
    "LLaMA-Factory": """finetuning_type cutoff_len quantization_bit quantization_method lora_target
        neat_packing use_unsloth enable_liger_kernel disable_gradient_checkpointing
        upcast_layernorm freeze_trainable_layers use_galore use_badam pissa_init flash_attn
        val_size""",
    "axolotl": """base_model base_model_config sequence_len sample_packing pad_to_sequence_len
        lora_target_linear dataset_prepared_path val_set_size flash_attention xformers_attention
        sdp_attention micro_batch_size eval_sample_packing lora_model_dir tokenizer_use_fast""",
    "torchtune": """enable_activation_checkpointing enable_activation_offloading optimizer_in_bwd
        metric_logger checkpointer max_steps_per_epoch custom_sharded_layers fsdp_cpu_offload
        ac_mode""",
    "Unsloth": """use_gradient_checkpointing finetune_vision_layers finetune_language_layers
        fast_inference training.training_type training.load_in_4bit lora.finetune_vision_layers
        lora.vision_all_linear lora.use_loftq data.format_type""",
    "ms-swift": """train_type tuner_type sft_type tuner_backend freeze_vit freeze_llm freeze_aligner
        attn_impl model_author loss_scale_type target_modules lazy_tokenize custom_dataset_info
        train_dataset_sample dataset_test_ratio""",
    "litgpt": """lora_query lora_key lora_value lora_projection lora_mlp lora_head out_dir
        train.micro_batch_size train.lr_warmup_steps train.max_seq_length""",
    "NeMo": """exp_manager model.micro_batch_size model.global_batch_size
        model.tensor_model_parallel_size model.encoder_seq_length model.optim
        model.activations_checkpoint_granularity step_scheduler policy.train_micro_batch_size""",
    "GPT-NeoX": """pipe_parallel_size model_parallel_size pipe-parallel-size model-parallel-size
        partition-activations num-layers hidden-size num_attention_heads""",
    "LLM Foundry (Composer)": """device_train_microbatch_size global_train_batch_size
        device_train_batch_size device_eval_batch_size max_duration""",
    "nanotron": """tokens.micro_batch_size tokens.sequence_length parallelism.dp parallelism.pp
        parallelism.tp_mode data_stages""",
    "verl": """actor_rollout_ref actor_rollout_ref.actor reward_model.micro_batch_size
        trainer.n_gpus_per_node""",
    "OpenRLHF": "micro_train_batch_size zero_stage_3 pretrain adam_offload",
    "MaxText": "per_device_batch_size ici_fsdp_parallelism base_emb_dim remat_policy",
    "Levanter": "trainer.train_batch_size trainer.per_device_parallelism trainer.mp",
    "PEFT's adapter_config.json": "peft_type base_model_name_or_path",
    "SageMaker": "iam_role_name sagemaker_inputs_file base_job_name",
    "a model (config.json)": "architectures num_hidden_layers max_position_embeddings",
}

#: Key at any depth by which a tool names the class to build.
BUILDS = {"_component_": "torchtune", "_target_": "NeMo or another that builds by Hydra"}

#: First word of a command line → whose it is.
PROGRAMS = {
    "accelerate": "accelerate",
    "trl": "TRL",
    "llamafactory-cli": "LLaMA-Factory",
    "llamafactory": "LLaMA-Factory",
    "axolotl": "axolotl",
    "tune": "torchtune",
    "unsloth": "Unsloth",
    "swift": "ms-swift",
    "megatron": "ms-swift",
    "litgpt": "litgpt",
    "nemo": "NeMo",
    "deepspeed": "DeepSpeed's launcher",
    "composer": "LLM Foundry (Composer)",
    "autotrain": "AutoTrain",
    "colossalai": "Colossal-AI",
}

#: Package that a command line runs, as a module or by the path of a script → whose it is.
PACKAGES = {
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "litgpt": "litgpt",
    "torchtune": "torchtune",
    "torchtitan": "torchtitan",
    "openrlhf": "OpenRLHF",
    "verl": "verl",
    "trl": "TRL",
    "accelerate": "accelerate",
}

#: Options that only transformers' Trainer, TRL and their relatives take.
TRAINER = """
per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing output_dir
model_name_or_path learning_rate num_train_epochs use_peft lora_r max_seq_length model_max_length
"""

#: Options of its fork.
DEEPSPEED = "--deepspeed --deepspeed_config --deepspeed-config --zero-stage"

#: Options that only Megatron-LM has.
MEGATRON = """
--num-layers --hidden-size --num-attention-heads --seq-length --micro-batch-size
--global-batch-size --tensor-model-parallel-size --pipeline-model-parallel-size
--context-parallel-size --expert-model-parallel-size --sequence-parallel --bf16 --fp16
--use-distributed-optimizer --use-mcore-models --recompute-granularity --recompute-activations
--transformer-impl --train-iters --train-samples --max-position-embeddings --num-experts
"""


def check_keys(source: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where a parsed configuration is another tool's."""
    keys = {key for key in source if isinstance(key, str)}
    for name in list(keys):
        section = source[name]
        if isinstance(section, Mapping):
            keys |= {f"{name}.{key}" for key in section if isinstance(key, str)}
    for key, value in _leaves(source):
        if key in BUILDS:
            _refuse({key}, f"a configuration of {BUILDS[key]}")
        if key.endswith("gradient_checkpointing") and str(value).lower() == "unsloth":
            _refuse({key}, "a configuration of Unsloth")
    _check(keys, "configuration")


def check_words(words: Sequence[str]) -> None:
    """Raise `ConfigError` where a command line isn't Megatron-LM's."""
    names = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
    _check_run(words)
    bare = {name.lstrip("-") for name in names}
    _check({name for name in bare if "-" not in name and "." not in name}, "command line")
    trainer = {name for name in bare if name.replace("-", "_") in TRAINER.split()}
    if trainer:
        _refuse(trainer, "a command line of transformers' Trainer, TRL or a relative")
    if any("." in name for name in names):
        _refuse({name for name in names if "." in name}, "a command line of torchtitan or litgpt")
    if names & set(DEEPSPEED.split()):
        _refuse(names & set(DEEPSPEED.split()), "a command line of Megatron-DeepSpeed")
    if not names & set(MEGATRON.split()):
        _refuse(names or set(words), "a command line, but none of Megatron-LM's options is there")


def _check(keys: set[str], kind: str) -> None:
    """Raise `ConfigError` for the tool with the most signs among the keys, if any has one."""
    found = {tool: keys & set(signs.split()) for tool, signs in SIGNS.items()}
    tool = max(found, key=lambda name: len(found[name]))
    if found[tool]:
        _refuse(found[tool], f"a {kind} of {tool}")


def _refuse(signs: set[str], what: str) -> NoReturn:
    raise ConfigError(
        "source",
        ", ".join(sorted(signs)),
        f"it is {what}, which is not read: give the options of trainmem.Plan, or the configuration "
        "of DeepSpeed, accelerate, transformers' Trainer, torchtitan or Megatron-LM",
    )


def _leaves(tree: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values at every depth that a real file has."""
    if isinstance(tree, Mapping) and depth < 10:
        for key, value in tree.items():
            if isinstance(key, str):
                yield key, value
            yield from _leaves(value, depth + 1)


def _check_run(words: Sequence[str]) -> None:
    """Raise `ConfigError` where what a command line runs is known, and isn't Megatron-LM."""
    before = ""
    for word in words:
        if before in ("", "="):  # the program, after the environment
            if re.fullmatch(r"[A-Za-z_]\w*=.*", word):
                before = "="
                continue
            program = word.lstrip("!").rpartition("/")[2]
            if program in PROGRAMS:
                _refuse({word}, f"a command line of {PROGRAMS[program]}")
        script = word.endswith(".py")
        if script or before in ("-m", "--module"):
            for part in re.split(r"[/.]", word):
                if part in PACKAGES:
                    _refuse({word}, f"a command line of {PACKAGES[part]}")
        if script:
            return
        before = word
