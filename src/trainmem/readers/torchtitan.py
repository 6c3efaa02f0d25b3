"""torchtitan's TOML configuration (used until February 2026; Python since).

Keys and defaults: torchtitan `config/job_config.py` at its last version (commit 9810191bb's
parent), and the older spellings of 2024 and 2025 (`training.batch_size`, `training.compile`,
`experimental.*`, `float8.*`); what they do: `distributed/activation_checkpoint.py`,
`models/llama3/infra/parallelize.py`, `distributed/pipeline_parallel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainmem.config import ConfigError
from trainmem.readers.account import Account, Reading, flatten
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.presets import ARCHITECTURES

#: Keys at the top by which the format is recognised.
TOP_LEVEL = """
job profiling metrics model optimizer lr_scheduler training parallelism checkpoint
activation_checkpoint compile quantize comm memory_estimation fault_tolerance validation debug
float8 mx
"""

IGNORED = {
    "logging, profiling and where things go": """job.* profiling.* metrics.* comm.* debug.*
        memory_estimation.*""",
    "saving and loading": "checkpoint.*",
    "validation runs between training steps": "validation.*",
    "schedule and hyperparameters: numbers, no tensors": """lr_scheduler.* optimizer.lr
        optimizer.eps optimizer.beta1 optimizer.beta2 optimizer.weight_decay training.steps
        training.warmup_steps training.max_norm""",
    "data, read on the CPU": """training.dataset training.dataset_path training.dataloader.*
        model.tokenizer_path model.hf_assets_path""",
    "the same tensors": """training.gc_freq training.gc_debug training.seed training.deterministic
        model.print_after_conversion model.norm_type experimental.custom_import
        experimental.custom_args_module compile.backend
        activation_checkpoint.preserve_rng_state activation_checkpoint.determinism_check
        activation_checkpoint.early_stop activation_checkpoint.debug
        activation_checkpoint.memory_budget
        activation_checkpoint.visualize_memory_budget_pareto""",
    "communication, not what is kept": """*.context_parallel_rotate_method
        *.context_parallel_load_balancer *.enable_async_tensor_parallel
        *.expert_parallel_comm_backend *.pipeline_parallel_expert_parallel_overlap
        *.enable_compiled_autograd""",
    "only for converters that are not switched on": "float8.* mx.* quantize.*",
}

UNSUPPORTED = {
    "the optimizer's step inside backward is not modelled": "optimizer.early_step_in_backward",
    "float8 and MX layers are modelled as bf16": "model.converters float8.enable_float8_linear",
    "layers are split evenly, embedding and head counted as one where they don't divide": """
        *.module_fqns_per_model_part *.pipeline_parallel_split_points
        *.pipeline_parallel_first_stage_less_layers=1 *.pipeline_parallel_last_stage_less_layers=1
        *.pipeline_parallel_schedule_csv""",
    "a product recomputed by name is not modelled": """
        activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns=['moe.router.gate']""",
    "experts divided by tensor parallelism are not modelled": "*.expert_tensor_parallel_degree=1",
    "replicas that may fail are not modelled": "fault_tolerance.enable fault_tolerance.*=gloo",
    "logits on every rank are not modelled": "*.disable_loss_parallel",
}

MODELS = {
    ("llama3", "8B"): "Llama-3-8B",
    ("llama3", "70B"): "Llama-3-70B",
    ("llama3", "405B"): "Llama-3-405B",
    ("llama2", "7B"): "Llama-2-7B",
    ("llama2", "13B"): "Llama-2-13B",
    ("llama2", "70B"): "Llama-2-70B",
    ("qwen3", "8B"): "Qwen3-8B",
    ("qwen3", "32B"): "Qwen3-32B",
    ("qwen3", "30B-A3B"): "Qwen3-30B-A3B",
}


def read_torchtitan(source: Mapping[str, Any], **given: Any) -> Reading:
    """Read torchtitan's configuration.

    Parameters
    ----------
    source
        The parsed TOML.
    **given
        Options of the plan that the launcher sets (`num_gpus`).

    Raises
    ------
    ConfigError
        Naming a key, its bad value and what is allowed.
    ValueError
        For a combination that the plan does not cover.
    """
    account = Account(flatten(source), given)
    model = _model(account)
    account.assume("torchtitan", kernels="torchtitan")
    _mesh(account, model)
    _training(account)
    _checkpointing(account)
    _optimizer(account)
    if account.get("model.converters"):
        for key in account.leaves:
            if key.startswith(("quantize.", "float8.", "mx.")):
                account.refuse(key, why="part of model.converters")
    account.rest(IGNORED, UNSUPPORTED)
    return account.close("torchtitan", model)


def _mesh(account: Account, model: Architecture | None) -> None:
    """Account for the degrees: their product is the number of GPUs, where none is left open."""
    degrees = {"tensor_parallel_degree": "tp", "context_parallel_degree": "cp",
               "expert_parallel_degree": "ep", "pipeline_parallel_degree": "pp"}  # fmt: skip
    for name, axis in degrees.items():
        for key in _spellings(name):
            degree = account.integer(key)
            if degree is not None:
                account.use(key, **{axis: degree})
    replicate, shard = "data_parallel_replicate_degree", "data_parallel_shard_degree"
    replicas = _integer(account, replicate, 1) or 1
    shards = _integer(account, shard, -1)
    shards = -1 if shards is None else shards
    if shards == 0:
        raise ConfigError(f"parallelism.{shard}", 0, "must be -1 or a whole number from 1 up")
    axes: int = account.value("tp") * account.value("pp") * account.value("cp")
    if shards > 0:
        account.count_gpus(replicas * shards * axes, *_spellings(shard))
    gpus = account.count_gpus(replicas=2 if shards < 0 else 1)
    if shards < 0:
        shards = max(1, gpus // (replicas * axes))
    sharded = shards * account.value("cp") > 1
    again = account.choice("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"))
    keep = again == "never" or (again != "always" and account.value("pp") > 1)
    sharding = ("zero2" if keep else "zero3") if sharded else account.replicated()
    account.use(*_spellings(shard), "parallelism.fsdp_reshard_after_forward", sharding=sharding)
    account.assume("all ranks that are left shard the states", sharding=sharding)
    if sharded:
        account.assume("torchtitan", wrapping="split")  # embedding, layers and head on their own
    if replicas > 1 and sharded:
        why = "replicas of shards: read as shards over all data-parallel ranks"
        account.refuse(*_spellings(replicate), why=why)
    account.note(*_spellings(replicate), text="a factor of num_gpus")
    _schedule(account, model)


def _schedule(account: Account, model: Architecture | None) -> None:
    """Account for the pipeline's schedule and its micro batches."""
    keys = _spellings("pipeline_parallel_schedule")
    per_stage = "parallelism.pipeline_parallel_layers_per_stage"
    micro = _spellings("pipeline_parallel_microbatch_size")
    if account.value("pp") == 1:
        account.ignore(*keys, per_stage, *micro, why="no pipeline")
        return
    name = next((str(account.get(key)) for key in keys if account.get(key)), "1F1B")
    chunks = 1
    if name.lower() == "interleaved1f1b":
        layers, chunks = account.integer(per_stage), 2  # two stages a rank unless said otherwise
        if layers and model is not None:
            chunks = max(1, math.ceil((model.num_layers + 2) / layers) // account.value("pp"))
    elif name.lower() != "1f1b":
        account.refuse(*keys, why="modelled as 1F1B")
    account.use(*keys, per_stage, vpp=chunks)


def _training(account: Account) -> None:
    account.assume("torchtitan's default", micro_batch=8, seq_length=2048)
    local = next((n for key in ("training.local_batch_size", "training.batch_size")
                  if (n := account.integer(key)) is not None), 8)  # fmt: skip
    if account.value("pp") > 1:
        micro = _integer(account, "pipeline_parallel_microbatch_size", 1) or 1
        if local % micro:
            raise ConfigError("training.local_batch_size", local, f"must be a multiple of {micro}")
        account.use(*_spellings("pipeline_parallel_microbatch_size"), micro_batch=micro)
        account.use("training.local_batch_size", "training.batch_size", accumulation=local // micro)
    else:
        account.use("training.local_batch_size", "training.batch_size", micro_batch=local)
    replicas = account.value("num_gpus") // (
        account.value("tp") * account.value("pp") * account.value("cp")
    )
    total = account.integer("training.global_batch_size", -1)
    if total is not None and total > 0:
        step = local * max(1, replicas)
        if total % step:
            raise ConfigError(
                "training.global_batch_size",
                total,
                f"must be a multiple of local batch × data-parallel ranks = {step}",
            )
        account.use(
            "training.global_batch_size",
            accumulation=account.value("accumulation") * (total // step),
        )
    account.ignore("training.global_batch_size", why="one local batch on every rank")
    length = account.integer("training.seq_len")
    if length is not None:
        account.use("training.seq_len", seq_length=length)
    _precision(account)
    if account.flag("training.enable_cpu_offload"):
        account.wish("training.enable_cpu_offload", offload="all")
    account.ignore("training.enable_cpu_offload", why="off")
    _compile(account)


def _precision(account: Account) -> None:
    types = ("bfloat16", "float32")
    weights = account.choice("training.dtype", types) or "float32"
    compute = account.choice("training.mixed_precision_param", types) or "bfloat16"
    reduce = account.choice("training.mixed_precision_reduce", types) or "float32"
    sharded = account.value("sharding").startswith("zero")
    precision = "mixed" if sharded else "amp"
    if weights == "bfloat16":
        precision = "bf16"
    elif compute == "float32":
        precision = "fp32"
    account.assume("torchtitan's default", precision=precision)
    account.use("training.dtype", "training.mixed_precision_param", precision=precision)
    if precision == "mixed":
        account.use("training.mixed_precision_reduce", reduce_dtype=reduce)
    account.ignore("training.mixed_precision_reduce", why="only for FSDP's mixed precision")


def _compile(account: Account) -> None:
    old = account.flag("training.compile")
    parts = account.get("compile.components", ["model", "loss"])
    if not isinstance(parts, list) or not set(map(str, parts)) <= {"model", "loss"}:
        raise ConfigError("compile.components", parts, 'must be a list of "model" and "loss"')
    if not (old or account.flag("compile.enable")):
        account.ignore("training.compile", "compile.enable", "compile.components", why="off")
        return
    options = {}
    if "model" in parts:
        options["kernels"] = "compiled"
    if "loss" in parts:
        options["loss_head"] = "compiled"
    account.use("training.compile", "compile.enable", "compile.components", **options)


def _checkpointing(account: Account) -> None:
    modes = ("none", "selective", "full", "memory_budget")
    said = account.choice("activation_checkpoint.mode", modes)
    mode = said or "selective"
    option = str(account.get("activation_checkpoint.selective_ac_option", "2")).lower()
    checkpointing = mode
    if mode == "selective" and option != "op":
        if not option.isdecimal() or int(option) > 1000:
            raise ConfigError(
                "activation_checkpoint.selective_ac_option", option, "must be 'op' or a number"
            )
        checkpointing = {0: "full", 1: "full", 2: "every_2nd"}.get(int(option), "none")
        if int(option) > 2:
            why = "every third layer and rarer is modelled as none"
            account.refuse("activation_checkpoint.selective_ac_option", why=why)
    elif mode == "memory_budget":
        checkpointing = "none"
        account.refuse("activation_checkpoint.mode", why="modelled as none")
    if mode != "selective":
        account.ignore("activation_checkpoint.selective_ac_option", why="only for selective")
    account.assume("torchtitan's default", checkpointing=checkpointing)
    account.use("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option",
               checkpointing=checkpointing)  # fmt: skip


def _optimizer(account: Account) -> None:
    name = str(account.get("optimizer.name", "AdamW"))
    fused = account.flag("optimizer.fused")  # 2024's spelling
    ways = {"fused": "adamw", "foreach": "adamw_foreach", "for-loop": "adamw_forloop"}
    way = account.choice("optimizer.implementation", ways) or ("foreach" if fused is False else "")
    if name.lower() not in ("adam", "adamw"):
        account.refuse("optimizer.name", why="modelled as AdamW")
    account.use("optimizer.name", "optimizer.implementation", "optimizer.fused",
               optimizer=ways[way or "fused"])  # fmt: skip


def _model(account: Account) -> Architecture | None:
    keys = ("model.name", "model.flavor")
    name = MODELS.get((str(account.get(keys[0], "llama3")), str(account.get(keys[1], ""))))
    model = ARCHITECTURES.get(name or "")
    if model is None:
        account.ignore(*keys, why="no preset: give the architecture yourself")
        return None
    account.note(*keys, text=f"architecture {model.name}")
    return model


def _spellings(name: str) -> tuple[str, ...]:
    """Return the sections in which a degree has stood."""
    return f"parallelism.{name}", f"experimental.{name}", f"training.{name}"


def _integer(account: Account, name: str, low: int) -> int | None:
    numbers = (account.integer(key, low) for key in _spellings(name))
    return next((number for number in numbers if number is not None), None)
