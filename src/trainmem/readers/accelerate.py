"""Accelerate's launch configuration (YAML as a parsed dict, or JSON), and its section on FSDP.

Keys: accelerate 1.15 `commands/config/config_args.py`, `commands/config/cluster.py` and
`utils/dataclasses.py` (`FullyShardedDataParallelPlugin`, `ParallelismConfig`); without the prefix
`fsdp_` the same keys are transformers' `fsdp_config` (transformers 5.24, `training_args.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmem.config import ConfigError
from trainmem.readers.account import Account, Reading, flatten
from trainmem.transformer.options import OPTIONS

#: Keys at the top by which the format is recognised.
TOP_LEVEL = """
compute_environment distributed_type mixed_precision num_processes num_machines machine_rank
main_process_ip main_process_port main_training_function downcast_bf16 rdzv_backend same_network
fsdp_config deepspeed_config megatron_lm_config parallelism_config dynamo_config tpu_env
tpu_use_cluster tpu_use_sudo use_cpu fsdp_sharding_strategy fsdp_version fsdp_reshard_after_forward
fsdp_auto_wrap_policy fsdp_offload_params
"""

IGNORED = {
    "how processes start and find each other": """compute_environment debug machine_rank
        num_machines gpu_ids main_process_ip main_process_port main_training_function
        enable_cpu_affinity rdzv_backend rdzv_conf same_network mpirun_config mpirun_config.*
        command_file commands deepspeed_config.deepspeed_hostfile
        deepspeed_config.deepspeed_multinode_launcher deepspeed_config.deepspeed_inclusion_filter
        deepspeed_config.deepspeed_exclusion_filter""",
    "for TPUs": """downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo tpu_vm tpu_env
        tpu_commands tpu_command_file""",
    "gradient clipping: one number": "deepspeed_config.gradient_clipping",
    "loading and saving": """deepspeed_config.zero3_init_flag
        deepspeed_config.zero3_save_16bit_model
        deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path""",
}

UNSUPPORTED = {
    "give Megatron's own argument list": "megatron_lm_config.*",
    "a path: read that file by itself": "deepspeed_config.deepspeed_config_file",
    "not modelled": """use_cpu fp8_config.* parallelism_config.*=1
        deepspeed_config.deepspeed_moe_layer_cls_names""",
    "a compiler other than inductor is not modelled": "dynamo_config.*=default",
}

FSDP_IGNORED = {
    "loading and saving": "cpu_ram_efficient_loading state_dict_type sync_module_states",
    "the same tensors, as views": "use_orig_params",
    "the layer class is the model's": "transformer_layer_cls_to_wrap",
    "one group ahead, as modelled": "backward_prefetch backward_prefetch_policy limit_all_gathers",
    "XLA only": "xla xla_fsdp_v2 xla_fsdp_grad_ckpt xla_fsdp_settings xla_fsdp_settings.*",
}

FSDP_UNSUPPORTED = {
    "a group gathered ahead in forward is not modelled": "forward_prefetch",
    "modules left out are not modelled": "ignored_modules",
    "checkpoints on the CPU are not modelled": "activation_checkpointing_offload",
    "float8 gathering is not modelled": "enable_fsdp_float8_all_gather",
}

#: FSDP1's strategies, also written 1 to 5 in this order: `accelerate.utils.constants`.
STRATEGIES = {
    "FULL_SHARD": "zero3",
    "SHARD_GRAD_OP": "zero2",
    "NO_SHARD": "ddp",
    "HYBRID_SHARD": "zero3",
    "HYBRID_SHARD_ZERO2": "zero2",
}


def read_accelerate(source: Mapping[str, Any], **given: Any) -> Reading:
    """Read what `accelerate config` writes, or only its section on FSDP.

    Parameters
    ----------
    source
        The parsed YAML or JSON.
    **given
        Options of the plan that the script sets (`micro_batch`, `seq_length`, …).

    Raises
    ------
    ConfigError
        Naming a key, its bad value and what is allowed.
    ValueError
        For a combination that the plan does not cover.
    """
    account = Account(flatten(source), given)
    for name in ("micro_batch", "seq_length", "accumulation"):
        default = OPTIONS[name].default
        account.assume(f"the script decides; give {name}=", **{name: default})
    account.assume("the script decides; give checkpointing=", checkpointing="none")
    account.assume("PyTorch's default", optimizer="adamw_foreach")
    if not any("." in key for key in account.leaves) and any(
        key.startswith("fsdp_") for key in account.leaves
    ):  # only the section
        account.assume("the script decides; give precision=", precision="mixed")
        account.count_gpus()
        read_fsdp(account, "fsdp_")
        account.rest({}, {})
        return account.close("accelerate")
    read_launch(account)
    account.rest(IGNORED, UNSUPPORTED)
    return account.close("accelerate")


def read_launch(account: Account) -> None:
    """Account for the keys of a launch configuration."""
    kinds = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "TP", "MULTI_CPU", "XLA")
    kind = account.choice("distributed_type", kinds) or "NO"
    half = account.choice("mixed_precision", ("no", "fp16", "bf16", "fp8")) or "no"
    gpus = account.integer("num_processes", 1, 1_000_000)
    account.count_gpus(gpus, "num_processes")
    half_precision = {"FSDP": "mixed", "DEEPSPEED": "bf16_master"}.get(kind, "amp")
    account.use("mixed_precision", precision="fp32" if half == "no" else half_precision)
    if kind == "FSDP":
        read_fsdp(account.under("fsdp_config."), "fsdp_")
        account.note("distributed_type", text="FSDP, as fsdp_config says")
    elif kind == "DEEPSPEED":
        _deepspeed(account.under("deepspeed_config."))
        account.note("distributed_type", text="DeepSpeed, as deepspeed_config says")
    else:
        account.assume("no distributed_type shards", sharding=account.replicated())
        if kind in ("NO", "MULTI_GPU"):
            account.use("distributed_type", sharding=account.replicated())
        else:
            account.refuse("distributed_type", why="read as replicas of the whole model")
    for axis in ("tp", "cp"):
        key = f"parallelism_config.parallelism_config_{axis}_size"
        size = account.integer(key)
        if size is not None:
            account.wish(key, **{axis: size})
    if account.choice("dynamo_config.dynamo_backend", ("no", "inductor", "INDUCTOR")) == "inductor":
        account.wish("dynamo_config.dynamo_backend", kernels="compiled", loss_head="compiled")


def read_fsdp(account: Account, prefix: str) -> None:
    """Account for the keys that describe FSDP, each with or without `prefix`."""
    section = account.under(prefix)
    version = section.integer("version", 1, 2)
    strategy = str(section.get("sharding_strategy", "")).upper()
    again = str(section.get("reshard_after_forward", "")).upper()
    named = dict(zip("12345", STRATEGIES, strict=True))
    keys = ("sharding_strategy", "reshard_after_forward")
    for key, value in zip(keys, (strategy, again), strict=True):
        allowed = (*STRATEGIES, *named, *(("TRUE", "FALSE", "YES", "NO") if key == keys[1] else ()))
        if value and value not in allowed:
            raise ConfigError(
                section.prefix + key, section.get(key), f"must be one of {', '.join(allowed)}"
            )
    name = named.get(strategy or again, strategy or again)
    if version == 2 or name in ("", "TRUE", "FALSE", "YES", "NO"):
        sharding = "zero2" if again in ("FALSE", "NO") else "zero3"
    else:
        sharding = STRATEGIES[name]
    if name.startswith("HYBRID"):
        section.refuse(*keys, why="replicas of shards: read as shards over all data-parallel ranks")
    if sharding == "ddp":
        sharding = account.replicated()
        if account.value("precision") == "mixed":
            account.options["precision"] = "amp"
    account.assume("FSDP shards all states", sharding=sharding)
    section.use(*keys, sharding=sharding)
    if version == 1:
        section.refuse("version", why="FSDP1: modelled as FSDP2")
    section.note("version", text="FSDP2")
    if account.value("precision") == "mixed":  # accelerate reduces in the type it computes in
        account.assume("accelerate reduces gradients in bf16", reduce_dtype="bfloat16")
    _wrapping(section)
    if section.flag("activation_checkpointing"):
        section.use("activation_checkpointing", checkpointing="full")
    for key in ("offload_params", "cpu_offload"):
        if section.flag(key):
            section.wish(key, offload="all")
        section.ignore(key, why="not used")
    section.ignore("activation_checkpointing", why="off, or as another key says")
    section.rest(FSDP_IGNORED, FSDP_UNSUPPORTED)


def _wrapping(section: Account) -> None:
    policies = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
    policy = section.choice("auto_wrap_policy", policies)
    if policy in (None, policies[0]):
        section.use("auto_wrap_policy", wrapping="layers")
        section.ignore("min_num_params", why="only for SIZE_BASED_WRAP")
    why = "modelled as a group for each layer"
    section.refuse("auto_wrap_policy", why=why)
    if section.integer("min_num_params", 0):
        section.refuse("min_num_params", why=why)
    section.ignore("min_num_params", why="not used")


def _deepspeed(section: Account) -> None:
    stage = section.integer("zero_stage", 0, 3)
    stage = 2 if stage is None else stage
    sharding = f"zero{stage}" if stage else section.replicated()
    section.assume("accelerate's default", sharding=sharding)
    section.use("zero_stage", sharding=sharding)
    if stage and section.value("precision") == "bf16_master":
        section.assume("DeepSpeed shards the states", framework="deepspeed", optimizer="adamw")
    if section.value("precision") == "bf16_master":
        section.assume("the script's, modelled as fused AdamW", optimizer="adamw")
    steps = section.integer("gradient_accumulation_steps")
    if steps is not None:
        section.use("gradient_accumulation_steps", accumulation=steps)
    devices = ("none", "cpu", "nvme")
    weights = section.choice("offload_param_device", devices) or "none"
    optimizer = section.choice("offload_optimizer_device", devices) or "none"
    if weights != "none" and optimizer != "none" and stage == 3:
        section.wish("offload_param_device", "offload_optimizer_device", offload="all")
    if optimizer != "none":
        section.wish("offload_optimizer_device", offload="optimizer")
    if weights != "none":
        section.refuse(
            "offload_param_device", why="needs stage 3 and the optimizer states there too"
        )
    section.ignore("offload_param_device", "offload_optimizer_device", why="not used")
