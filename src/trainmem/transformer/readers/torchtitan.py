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
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.presets import ARCHITECTURES
from trainmem.transformer.readers.ledger import Ledger, Reading, flatten

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
    ledger = Ledger(flatten(source), given)
    model = _model(ledger)
    ledger.assume("torchtitan", kernels="torchtitan")
    _mesh(ledger, model)
    _training(ledger)
    _checkpointing(ledger)
    _optimizer(ledger)
    if ledger.get("model.converters"):
        for key in ledger.leaves:
            if key.startswith(("quantize.", "float8.", "mx.")):
                ledger.refuse(key, why="part of model.converters")
    ledger.rest(IGNORED, UNSUPPORTED)
    return ledger.close("torchtitan", model)


def _mesh(ledger: Ledger, model: Architecture | None) -> None:
    """Account for the degrees: their product is the number of GPUs, where none is left open."""
    degrees = {"tensor_parallel_degree": "tp", "context_parallel_degree": "cp",
               "expert_parallel_degree": "ep", "pipeline_parallel_degree": "pp"}  # fmt: skip
    for name, axis in degrees.items():
        for key in _spellings(name):
            degree = ledger.integer(key)
            if degree is not None:
                ledger.use(key, **{axis: degree})
    replicate, shard = "data_parallel_replicate_degree", "data_parallel_shard_degree"
    replicas = _integer(ledger, replicate, 1) or 1
    shards = _integer(ledger, shard, -1)
    shards = -1 if shards is None else shards
    if shards == 0:
        raise ConfigError(f"parallelism.{shard}", 0, "must be -1 or a whole number from 1 up")
    axes: int = ledger.value("tp") * ledger.value("pp") * ledger.value("cp")
    if shards > 0:
        ledger.count_gpus(replicas * shards * axes, *_spellings(shard))
    gpus = ledger.count_gpus(replicas=2 if shards < 0 else 1)
    if shards < 0:
        shards = max(1, gpus // (replicas * axes))
    sharded = shards * ledger.value("cp") > 1
    again = ledger.choice("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"))
    keep = again == "never" or (again != "always" and ledger.value("pp") > 1)
    sharding = ("zero2" if keep else "zero3") if sharded else ledger.replicated()
    ledger.use(*_spellings(shard), "parallelism.fsdp_reshard_after_forward", sharding=sharding)
    ledger.assume("all ranks that are left shard the states", sharding=sharding)
    if sharded:
        ledger.assume("torchtitan", wrapping="split")  # embedding, layers and head on their own
    if replicas > 1 and sharded:
        why = "replicas of shards: read as shards over all data-parallel ranks"
        ledger.refuse(*_spellings(replicate), why=why)
    ledger.note(*_spellings(replicate), text="a factor of num_gpus")
    _schedule(ledger, model)


def _schedule(ledger: Ledger, model: Architecture | None) -> None:
    """Account for the pipeline's schedule and its micro batches."""
    keys = _spellings("pipeline_parallel_schedule")
    per_stage = "parallelism.pipeline_parallel_layers_per_stage"
    micro = _spellings("pipeline_parallel_microbatch_size")
    if ledger.value("pp") == 1:
        ledger.ignore(*keys, per_stage, *micro, why="no pipeline")
        return
    name = next((str(ledger.get(key)) for key in keys if ledger.get(key)), "1F1B")
    chunks = 1
    if name.lower() == "interleaved1f1b":
        layers, chunks = ledger.integer(per_stage), 2  # two stages a rank unless said otherwise
        if layers and model is not None:
            chunks = max(1, math.ceil((model.num_layers + 2) / layers) // ledger.value("pp"))
    elif name.lower() != "1f1b":
        ledger.refuse(*keys, why="modelled as 1F1B")
    ledger.use(*keys, per_stage, vpp=chunks)


def _training(ledger: Ledger) -> None:
    ledger.assume("torchtitan's default", micro_batch=8, seq_length=2048)
    local = next((n for key in ("training.local_batch_size", "training.batch_size")
                  if (n := ledger.integer(key)) is not None), 8)  # fmt: skip
    if ledger.value("pp") > 1:
        micro = _integer(ledger, "pipeline_parallel_microbatch_size", 1) or 1
        if local % micro:
            raise ConfigError("training.local_batch_size", local, f"must be a multiple of {micro}")
        ledger.use(*_spellings("pipeline_parallel_microbatch_size"), micro_batch=micro)
        ledger.use("training.local_batch_size", "training.batch_size", accumulation=local // micro)
    else:
        ledger.use("training.local_batch_size", "training.batch_size", micro_batch=local)
    replicas = ledger.value("num_gpus") // (
        ledger.value("tp") * ledger.value("pp") * ledger.value("cp")
    )
    total = ledger.integer("training.global_batch_size", -1)
    if total is not None and total > 0:
        step = local * max(1, replicas)
        if total % step:
            raise ConfigError(
                "training.global_batch_size",
                total,
                f"must be a multiple of local batch × data-parallel ranks = {step}",
            )
        ledger.use(
            "training.global_batch_size",
            accumulation=ledger.value("accumulation") * (total // step),
        )
    ledger.ignore("training.global_batch_size", why="one local batch on every rank")
    length = ledger.integer("training.seq_len")
    if length is not None:
        ledger.use("training.seq_len", seq_length=length)
    _precision(ledger)
    if ledger.flag("training.enable_cpu_offload"):
        ledger.wish("training.enable_cpu_offload", offload="all")
    ledger.ignore("training.enable_cpu_offload", why="off")
    _compile(ledger)


def _precision(ledger: Ledger) -> None:
    types = ("bfloat16", "float32")
    weights = ledger.choice("training.dtype", types) or "float32"
    compute = ledger.choice("training.mixed_precision_param", types) or "bfloat16"
    reduce = ledger.choice("training.mixed_precision_reduce", types) or "float32"
    sharded = ledger.value("sharding").startswith("zero")
    precision = "mixed" if sharded else "amp"
    if weights == "bfloat16":
        precision = "bf16"
    elif compute == "float32":
        precision = "fp32"
    ledger.assume("torchtitan's default", precision=precision)
    ledger.use("training.dtype", "training.mixed_precision_param", precision=precision)
    if precision == "mixed":
        ledger.use("training.mixed_precision_reduce", reduce_dtype=reduce)
    ledger.ignore("training.mixed_precision_reduce", why="only for FSDP's mixed precision")


def _compile(ledger: Ledger) -> None:
    old = ledger.flag("training.compile")
    parts = ledger.get("compile.components", ["model", "loss"])
    if not isinstance(parts, list) or not set(map(str, parts)) <= {"model", "loss"}:
        raise ConfigError("compile.components", parts, 'must be a list of "model" and "loss"')
    if not (old or ledger.flag("compile.enable")):
        ledger.ignore("training.compile", "compile.enable", "compile.components", why="off")
        return
    options = {}
    if "model" in parts:
        options["kernels"] = "compiled"
    if "loss" in parts:
        options["loss_head"] = "compiled"
    ledger.use("training.compile", "compile.enable", "compile.components", **options)


def _checkpointing(ledger: Ledger) -> None:
    modes = ("none", "selective", "full", "memory_budget")
    said = ledger.choice("activation_checkpoint.mode", modes)
    mode = said or "selective"
    option = str(ledger.get("activation_checkpoint.selective_ac_option", "2")).lower()
    checkpointing = mode
    if mode == "selective" and option != "op":
        if not option.isdecimal() or int(option) > 1000:
            raise ConfigError(
                "activation_checkpoint.selective_ac_option", option, "must be 'op' or a number"
            )
        checkpointing = {0: "full", 1: "full", 2: "every_2nd"}.get(int(option), "none")
        if int(option) > 2:
            why = "every third layer and rarer is modelled as none"
            ledger.refuse("activation_checkpoint.selective_ac_option", why=why)
    elif mode == "memory_budget":
        checkpointing = "none"
        ledger.refuse("activation_checkpoint.mode", why="modelled as none")
    if mode != "selective":
        ledger.ignore("activation_checkpoint.selective_ac_option", why="only for selective")
    ledger.assume("torchtitan's default", checkpointing=checkpointing)
    ledger.use("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option",
               checkpointing=checkpointing)  # fmt: skip


def _optimizer(ledger: Ledger) -> None:
    name = str(ledger.get("optimizer.name", "AdamW"))
    fused = ledger.flag("optimizer.fused")  # 2024's spelling
    ways = {"fused": "adamw", "foreach": "adamw_foreach", "for-loop": "adamw_forloop"}
    way = ledger.choice("optimizer.implementation", ways) or ("foreach" if fused is False else "")
    if name.lower() not in ("adam", "adamw"):
        ledger.refuse("optimizer.name", why="modelled as AdamW")
    ledger.use("optimizer.name", "optimizer.implementation", "optimizer.fused",
               optimizer=ways[way or "fused"])  # fmt: skip


def _model(ledger: Ledger) -> Architecture | None:
    keys = ("model.name", "model.flavor")
    name = MODELS.get((str(ledger.get(keys[0], "llama3")), str(ledger.get(keys[1], ""))))
    model = ARCHITECTURES.get(name or "")
    if model is None:
        ledger.ignore(*keys, why="no preset: give the architecture yourself")
        return None
    ledger.note(*keys, text=f"architecture {model.name}")
    return model


def _spellings(name: str) -> tuple[str, ...]:
    """Return the sections in which a degree has stood."""
    return f"parallelism.{name}", f"experimental.{name}", f"training.{name}"


def _integer(ledger: Ledger, name: str, low: int) -> int | None:
    numbers = (ledger.integer(key, low) for key in _spellings(name))
    return next((number for number in numbers if number is not None), None)
