"""DeepSpeed's JSON configuration.

Keys and defaults: deepspeed 0.17 `runtime/config.py`, `runtime/constants.py`,
`runtime/zero/config.py`, `runtime/zero/offload_config.py`,
`runtime/activation_checkpointing/config.py`; what `"auto"` becomes: transformers 5.24
`integrations/deepspeed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmem.config import ConfigError
from trainmem.readers.account import AUTO, Account, Reading, flatten
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.stacks import FRAMEWORKS

#: Keys at the top by which the format is recognised.
TOP_LEVEL = """
zero_optimization train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
bf16 bfloat16 fp16 amp torch_autocast gradient_clipping steps_per_print wall_clock_breakdown
zero_allow_untested_optimizer activation_checkpointing aio flops_profiler communication_data_type
"""

#: The stages of ZeRO at which settings of `zero_optimization` change memory.
STAGES = {
    "reduce_bucket_size": (1, 2, 3),
    "contiguous_gradients": (1, 2, 3),
    "reduce_scatter": (1, 2, 3),
    "overlap_comm": (1, 2),
    "round_robin_gradients": (1, 2),
    "sub_group_size": (3,),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_max_live_parameters": (3,),
    "stage3_max_reuse_distance": (3,),
}

#: Keys that have a part in the step, and may be "auto": another program fills them in.
LEFT_OPEN = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps bf16.enabled
bfloat16.enabled fp16.enabled zero_optimization.stage zero_optimization.offload_optimizer.device
zero_optimization.offload_param.device
"""

IGNORED = {
    "prints, profiles and logs": """steps_per_print wall_clock_breakdown memory_breakdown dump_state
        flops_profiler flops_profiler.* tensorboard tensorboard.* wandb wandb.* csv_monitor
        csv_monitor.* comet comet.* comms_logger comms_logger.* timers timers.* nebula nebula.*
        autotuning""",
    "schedule and hyperparameters: numbers, no tensors": """scheduler scheduler.* optimizer.params
        optimizer.params.lr optimizer.params.betas optimizer.params.eps
        optimizer.params.weight_decay optimizer.params.bias_correction optimizer.params.adam_w_mode
        optimizer.params.adamw_mode gradient_clipping prescale_gradients gradient_predivide_factor
        zero_allow_untested_optimizer data_efficiency data_efficiency.enabled data_efficiency.seed
        data_efficiency.data_sampling data_efficiency.data_sampling.*""",
    "loss scaling: one number": """fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window
        fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale fp16.auto_cast
        bf16.check_overflow bf16.check_grad_overflow""",
    "reading and writing checkpoints": """checkpoint checkpoint.* dataloader_drop_last
        zero_optimization.stage3_gather_16bit_weights_on_model_save
        zero_optimization.stage3_gather_fp16_weights_on_model_save
        zero_optimization.elastic_checkpoint zero_optimization.load_from_fp32_weights""",
    "how data moves to disk and CPU, not what stays on the GPU": """aio aio.*
        zero_optimization.offload_optimizer zero_optimization.offload_optimizer.nvme_path
        zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_optimizer.ratio
        zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.pipeline
        zero_optimization.offload_optimizer.pipeline_read
        zero_optimization.offload_optimizer.pipeline_write
        zero_optimization.offload_optimizer.fast_init zero_optimization.offload_param
        zero_optimization.offload_param.nvme_path zero_optimization.offload_param.buffer_count
        zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu
        zero_optimization.offload_param.pin_memory
        zero_force_ds_cpu_optimizer zero_optimization.cpu_offload_use_pin_memory""",
    "in place, or without tensors of its own": """zero_optimization.allgather_bucket_size
        zero_optimization.allgather_partitions zero_optimization.use_multi_rank_bucket_allreduce
        zero_optimization.ignore_unused_parameters zero_optimization.log_trace_cache_warnings
        zero_optimization.memory_efficient_linear zero_optimization.override_module_apply
        zero_optimization.enable_sanity_checks""",
    "deepspeed.checkpointing runs only where the model's code calls it": """activation_checkpointing
        activation_checkpointing.number_checkpoints activation_checkpointing.profile
        activation_checkpointing.synchronize_checkpoint_boundary
        activation_checkpointing.contiguous_memory_optimization""",
}

UNSUPPORTED = {
    "autotuning picks batch and stage itself": "autotuning.*",
    "tokens left out of some layers are not modelled": "data_efficiency.data_routing.*",
    "Apex AMP is not modelled": "amp amp.enabled",
    "autocast under DeepSpeed is not modelled: bf16 weights are assumed": """torch_autocast
        torch_autocast.enabled""",
    "checkpoints divided among ranks or kept on the CPU are not modelled": """
        activation_checkpointing.partition_activations
        activation_checkpointing.cpu_checkpointing""",
    "ZeRO++ (secondary copies, quantised communication) is not modelled": """
        zero_optimization.zero_hpz_partition_size=1 zero_optimization.zero_quantized_weights
        zero_optimization.zero_quantized_nontrainable_weights
        zero_optimization.zero_quantized_gradients zero_optimization.zeropp_loco_param*""",
    "sharding within groups of ranks (MiCS) is not modelled": """
        zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather""",
    "gradients are modelled with fp32 master weights in the optimizer": """
        bf16.immediate_grad_update=true fp16.fp16_master_weights_and_grads""",
    "another way to gather or keep parameters, which is not modelled": """
        zero_optimization.stage3_module_granularity_threshold
        zero_optimization.stage3_use_all_reduce_for_fetch_params zero_optimization.legacy_stage1
        zero_optimization.stage3_model_persistence_threshold=9223372036854775807""",
    "communication in another type needs a copy that is not modelled": """
        communication_data_type=bf16|bfp16 seq_parallel_communication_data_type=fp32""",
    "not modelled": """zero_optimization.zenflow* elasticity.enabled compression_training*
        sparse_attention* progressive_layer_drop.enabled eigenvalue.enabled
        curriculum_learning.enabled hybrid_engine.enabled pipeline.* sparse_gradients
        quantize_training.enabled compile.* zero_optimization.stage3_allgather_sequential""",
}


def read_deepspeed(source: Mapping[str, Any], **given: Any) -> Reading:
    """Read a DeepSpeed configuration.

    Whether layers are checkpointed is decided by the model's code, and is assumed to be so;
    `num_gpus` follows from the three batch sizes where all are there.

    Parameters
    ----------
    source
        The parsed JSON.
    **given
        Options of the plan that the launcher or the script sets (`num_gpus`, `seq_length`, …).

    Raises
    ------
    ConfigError
        Naming a key, its bad value and what is allowed.
    ValueError
        For a combination that the plan does not cover.
    """
    account = Account(flatten(source), given)
    account.assume("DeepSpeed's file doesn't say; give seq_length=", seq_length=4096)
    account.assume("the model's code decides; give checkpointing=", checkpointing="full")
    auto = any(account.get(f"{name}.enabled") == AUTO for name in ("bf16", "fp16"))
    why = '"auto": the trainer decides' if auto else "no key switches bf16 or fp16 on"
    account.assume(why, precision="bf16_master" if auto else "fp32")
    read_section(account)
    return account.close("deepspeed")


def read_section(account: Account, trainer: str = "") -> None:
    """Account for DeepSpeed's keys under the account's prefix.

    Parameters
    ----------
    account
        Prefixed where the section lies inside another configuration.
    trainer
        Who fills in `"auto"`; its values are in the account's options already.
    """
    for key in LEFT_OPEN.split():
        if account.get(key) == AUTO:
            account.ignore(key, why=f'"auto": {trainer or "the trainer"} decides')
    _precision(account)
    _batches(account)
    _zero(account)
    _optimizer(account)
    account.rest(IGNORED, UNSUPPORTED)


def _precision(account: Account) -> None:
    for name in ("bf16", "bfloat16", "fp16"):
        on = account.flag(f"{name}.enabled")
        if on:
            account.use(f"{name}.enabled", precision="bf16_master")  # fp16: the same bytes
        elif on is not None:
            account.ignore(f"{name}.enabled", why="off")


def _batches(account: Account) -> None:
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    micro, steps, total = (account.integer(key) for key in keys)
    given = account.given.keys() & {"num_gpus", "micro_batch", "accumulation"}
    if total and micro and steps and not given and "num_gpus" not in account.options:
        _divide(account, keys, total, micro * steps)
        account.count_gpus(total // (micro * steps), keys[2])
    gpus = account.count_gpus()
    micro = account.given.get("micro_batch", micro)
    if total and steps is None:
        micro = micro or max(1, total // gpus)
        if not given:
            _divide(account, keys, total, micro * gpus)
        steps = max(1, total // (micro * gpus))
        account.use(keys[2], accumulation=steps)
    elif total and micro is None and steps:
        _divide(account, keys, total, steps * gpus)
        micro = total // (steps * gpus)
        account.use(keys[2], micro_batch=micro)
    elif total and micro and steps and not given:
        _divide(account, keys, total, micro * steps * gpus, equal=True)
    if micro:
        account.use(keys[0], micro_batch=micro)
    if steps:
        account.use(keys[1], accumulation=steps)
    account.note(keys[2], text="micro batch × accumulation × GPUs")


def _divide(
    account: Account, keys: tuple[str, ...], total: int, product: int, equal: bool = False
) -> None:
    """Refuse a batch that is not a multiple of its known factors, or not their product."""
    if total % product or (equal and total != product):
        relation = "" if equal else "a multiple of "
        raise ConfigError(
            account.prefix + keys[2],
            total,
            f"must be {relation}{product}: {keys[0]} × {keys[1]} × GPUs, as far as they are known",
        )


def _zero(account: Account) -> None:
    zero = "zero_optimization.stage"
    stage = account.integer(zero, 0, 3) or 0
    if account.get("zero_optimization") == {}:
        account.ignore("zero_optimization", why="empty: no stage")
    elif account.flag("zero_optimization"):  # 2020's spelling
        stage, zero = 1, "zero_optimization"
    sharding = f"zero{stage}" if stage else account.replicated()
    account.assume("no stage of ZeRO", sharding=sharding)
    account.use(zero, sharding=sharding)
    if stage and account.value("precision") == "bf16_master":
        account.assume("DeepSpeed shards the states", framework="deepspeed")
    elif stage:
        account.assume("without bf16 and fp16 ZeRO is modelled as FSDP2", framework="torch")
    section = account.under("zero_optimization.")
    _offload(section, stage)
    settings: dict[str, Any] = {}
    for key, stages in STAGES.items():
        if stage not in stages:
            named = " and ".join(map(str, stages))
            section.ignore(key, why=f"only for stage{'s' * (len(stages) > 1)} {named}")
        else:
            settings |= _setting(section, key)
    kept = account.choice("data_types.grad_accum_dtype", ("fp32", "bf16", "fp16"))
    if kept is not None and stage:
        settings["grad_accum_dtype"] = "fp32" if kept == "fp32" else "bf16"
        account.note("data_types.grad_accum_dtype", text=f"gradients in {kept}")
    account.ignore("data_types.grad_accum_dtype", why="no stage of ZeRO, or the default")
    settle(account, settings)


def settle(account: Account, settings: Mapping[str, Any]) -> None:
    """Add settings of the framework to those that are there, where it has them."""
    own = FRAMEWORKS[account.value("framework")].settings
    there = dict(account.value("settings")) | {k: v for k, v in settings.items() if k in own}
    account.options["settings"] = OPTIONS["settings"].check(there)


def _setting(section: Account, key: str) -> dict[str, Any]:
    """Return a setting that the section says, "auto" as it is where the trainer fills it in."""
    option = FRAMEWORKS[section.value("framework")].settings.get(key)
    if option is None:
        section.refuse(key, why="without bf16 and fp16 ZeRO is modelled as FSDP2")
        return {}
    value: Any
    if option.choices:
        value = section.flag(key)
    elif section.get(key) == AUTO:
        value = AUTO if AUTO in option.words else None
    else:
        value = section.integer(key, *option.bounds)
    if value is None:
        section.ignore(key, why="the default")
        return {}
    filled = " (from the hidden size)" if value == AUTO else ""
    section.note(key, text=f"{key} = {value!r}{filled}")
    return {key: value}


def _offload(section: Account, stage: int) -> None:
    devices = ("none", "cpu", "nvme")
    optimizer = section.choice("offload_optimizer.device", devices) or "none"
    weights = section.choice("offload_param.device", devices) or "none"
    old = section.flag("cpu_offload"), section.flag("cpu_offload_param")
    if old[0] and optimizer == "none":
        optimizer = "cpu"
    if old[1] and weights == "none":
        weights = "cpu"
    first = ("offload_optimizer.device", "cpu_offload")
    second = ("offload_param.device", "cpu_offload_param")
    ratio = section.get("offload_optimizer.ratio", 1.0)
    if optimizer != "none" and ratio != 1.0:
        section.refuse("offload_optimizer.ratio", why="all optimizer states are moved, not a part")
    if weights != "none" and stage < 3:
        section.ignore(*second, why="only for stage 3")
    elif weights != "none" and optimizer == "none":
        section.refuse(*second, why="weights alone on the CPU, without the optimizer states")
    elif weights != "none":
        section.wish(*first, *second, offload="all")
    if optimizer != "none":
        section.wish(*first, offload="optimizer")
    section.ignore(*first, *second, why="not used")


def _optimizer(account: Account) -> None:
    if account.get("optimizer.type") is None:
        account.assume("the script's, which the file doesn't say", optimizer="adamw")
    name = str(account.get("optimizer.type", "AdamW")).lower()
    if name in ("adam", "adamw", "fusedadam", "cpuadam"):
        if account.flag("optimizer.params.torch_adam"):  # torch's, foreach by default
            account.use("optimizer.params.torch_adam", optimizer="adamw_foreach")
        account.note("optimizer.type", text="AdamW")
    account.ignore("optimizer.params.torch_adam", why="off")
    account.refuse("optimizer.type", why="modelled as AdamW, the only one under DeepSpeed")
