"""transformers `TrainingArguments` as JSON, with the keys that TRL and scripts put beside them.

Keys and defaults: transformers 5.24 `training_args.py` (`TrainingArguments`, `OptimizerNames`,
`_process_fsdp_args`) and `integrations/deepspeed.py`; trl 1.16 `trainer/base_config.py`,
`trainer/sft_config.py` and `trainer/model_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmem.config import ConfigError
from trainmem.readers.accelerate import read_fsdp
from trainmem.readers.account import AUTO, Account, Reading, flatten
from trainmem.readers.deepspeed import read_section, settle
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.presets import ARCHITECTURES
from trainmem.words import describe

#: Keys at the top by which the format is recognised.
TOP_LEVEL = """
per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing learning_rate
output_dir num_train_epochs max_steps bf16 fp16 tf32 optim fsdp fsdp_config deepspeed
torch_compile use_liger_kernel lr_scheduler_type warmup_steps warmup_ratio weight_decay
max_grad_norm logging_steps save_strategy save_steps eval_strategy report_to seed
model_name_or_path use_peft lora_r max_length packing
"""

#: Keys that only TRL's configurations have: its defaults differ.
TRL = ("use_peft", "lora_r", "max_length", "packing", "padding_free", "dataset_text_field",
       "load_in_4bit", "load_in_8bit", "attn_implementation")  # fmt: skip

IGNORED = {
    "logging, saving and where things go": """
        output_dir overwrite_output_dir logging_strategy logging_steps logging_first_step
        logging_nan_inf_filter log_level log_level_replica log_on_each_node report_to run_name
        project trackio_space_id trackio_bucket_id trackio_static_space_id disable_tqdm
        save_only_model save_strategy save_steps save_on_each_node save_total_limit save_safetensors
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
        hub_revision push_to_hub_model_id push_to_hub_organization push_to_hub_token
        load_best_model_at_end metric_for_best_model greater_is_better resume_from_checkpoint
        ignore_data_skip restore_callback_states_from_checkpoint include_num_input_tokens_seen
        include_tokens_per_second enable_jit_checkpoint skip_memory_metrics debug do_train do_eval
        do_predict logging_dir""",
    "evaluation runs between training steps": """
        eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches
        eval_use_gather_object eval_accumulation_steps eval_packing evaluation_strategy
        per_device_eval_batch_size prediction_loss_only include_for_metrics batch_eval_metrics
        label_names bf16_full_eval fp16_full_eval""",
    "length of training, schedule and hyperparameters: numbers, no tensors": """
        num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
        lr_scheduler_kwargs.* warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2
        adam_epsilon optim_args max_grad_norm average_tokens_across_devices router_aux_loss_coef""",
    "data, read on the CPU": """dataloader_drop_last dataloader_num_workers dataloader_pin_memory
        dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
        dataloader_in_order remove_unused_columns dataset_text_field dataset_kwargs dataset_kwargs.*
        dataset_num_proc dataset_name dataset_config dataset_config_name dataset_train_split
        dataset_test_split dataset_streaming dataset_batch_size train_sampling_strategy
        group_by_length length_column_name shuffle_dataset truncation_mode eos_token pad_token
        chat_template_path preprocessing_num_workers datasets datasets.* streaming
        test_split_size completion_only_loss assistant_only_loss accelerator_config
        accelerator_config.*""",
    "seeds and start": """seed data_seed full_determinism local_rank ddp_backend ddp_timeout
        ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph model_revision
        trust_remote_code past_index jit_mode_eval no_cuda""",
    "the same bytes": "tf32 half_precision_backend lora_alpha use_rslora lora_task_type",
    "how, not whether, layers are recomputed": """gradient_checkpointing_kwargs
        gradient_checkpointing_kwargs.* activation_checkpointing_kwargs
        activation_checkpointing_kwargs.*""",
}

UNSUPPORTED = {
    "smoothed labels need the logits' whole log-probabilities": "label_smoothing_factor",
    "noise on the embeddings needs a tensor that is not modelled": "neftune_noise_alpha",
    "DDP's buckets are modelled at 25 MB": "ddp_bucket_cap_mb=25",
    "the batch size is read as written": "auto_find_batch_size",
    "emptying the cache lowers what is reserved, not what is allocated": "torch_empty_cache_steps",
    "activations on the CPU are not modelled": "activation_offloading",
    "not modelled": """use_cpu parallelism_config parallelism_config.* liger_kernel_config
        liger_kernel_config.* use_dora ignore_bias_buffers lora_target_parameters
        lora_modules_to_save bnb_4bit_quant_storage optim_target_modules loss_type=nll
        pad_to_multiple_of""",
    "dropout before the adapters keeps a copy of their input that is not modelled": "lora_dropout",
}

#: `optim` → the plan's optimizer; the others are refused.
OPTIMIZERS = {
    "adamw_torch_fused": "adamw",
    "adamw_torch": "adamw_foreach",
    "adamw_apex_fused": "adamw",
    "adamw_hf": "adamw_forloop",
    "sgd": "sgd",
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "paged_adamw_8bit": "adam8bit",
    "paged_adamw_32bit": "adamw",
    "paged_adamw": "adamw",
}

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS = {
    frozenset({"q_proj", "v_proj"}): "qv",
    frozenset(_ATTENTION): "attention",
    frozenset(_ATTENTION + _MLP): "all",
    frozenset((*_ATTENTION, *_MLP, "lm_head")): "all_head",
    frozenset({"all-linear"}): "all",
}


def read_trainer(source: Mapping[str, Any], **given: Any) -> Reading:
    """Read `TrainingArguments`, alone or with what TRL's scripts put beside them.

    Parameters
    ----------
    source
        The parsed JSON (or YAML); `deepspeed` may hold DeepSpeed's configuration, `fsdp_config`
        FSDP's.
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
    trl = any(key in account.leaves for key in TRL)
    account.count_gpus()
    _sizes(account, trl)
    model = _model(account)
    lora = _lora(account)
    _states(account, trl, lora)
    _kernels(account)
    _optimizer(account)
    account.rest(IGNORED, UNSUPPORTED)
    return account.close("trainer", model)


def _sizes(account: Account, trl: bool) -> None:
    account.assume("the default of TrainingArguments", micro_batch=8, accumulation=1)
    for key, option in (
        ("per_device_train_batch_size", "micro_batch"),
        ("gradient_accumulation_steps", "accumulation"),
    ):
        number = account.integer(key)
        if number is not None:
            account.use(key, **{option: number})
    why = "TRL's default" if trl else "the data decide; give seq_length="
    account.assume(why, seq_length=1024 if trl else 4096)
    for key in ("max_length", "max_seq_length", "block_size"):
        number = account.integer(key)
        if number is not None:
            account.use(key, seq_length=number)
    if account.flag("padding_free"):
        account.refuse("padding_free", why="varying lengths are modelled at the full length")
    account.flag("packing")
    keys = ("packing", "packing_strategy", "padding_free")
    account.note(*keys, text="every sequence has its full length")


def _states(account: Account, trl: bool, lora: bool) -> None:
    """Account for precision, sharding and checkpointing."""
    half = account.flag("bf16"), account.flag("fp16")
    if trl and half == (None, None):
        half = True, None
    loaded = _dtype(account)
    plain = "amp" if any(half) else "fp32"
    if loaded == "bfloat16" and plain != "fp32":
        plain = "bf16"  # gradients and states follow the weights
    elif loaded in ("bfloat16", "float16"):
        plain = "bf16"
    deepspeed, fsdp = account.get("deepspeed"), account.get("fsdp")
    section = any(key.startswith("deepspeed.") for key in account.leaves)
    sharded = section or (fsdp not in (None, False, "", "false") and fsdp != [])
    precision = plain
    if lora:
        precision = "bf16"
    elif section:
        precision = "bf16_master" if any(half) else "fp32"
    elif sharded and any(half):
        precision = "mixed"
    account.assume(
        "neither bf16 nor fp16" if not any(half) else "TRL's default", precision=precision
    )
    _checkpointing(account, trl)
    if section:
        _from_trainer(account.under("deepspeed."), precision)
        read_section(account.under("deepspeed."), "TrainingArguments")
        account.ignore("fsdp", why="DeepSpeed shards")
    elif sharded:
        _fsdp(account, fsdp)
    else:
        account.assume("no FSDP, no DeepSpeed", sharding=account.replicated())
        account.ignore("fsdp", why="off")
    if deepspeed not in (None, {}, ""):
        account.refuse("deepspeed", why="a path: put that file's content here")
    account.ignore("deepspeed", why="not used")
    account.under("fsdp_config").rest({"fsdp is off": "*"}, {})
    account.use("bf16", "fp16", "dtype", "torch_dtype", "model_init_kwargs.dtype",
               "model_init_kwargs.torch_dtype", precision=account.value("precision"))  # fmt: skip


def _dtype(account: Account) -> str | None:
    types = ("float32", "float16", "bfloat16", AUTO)
    for key in ("dtype", "torch_dtype"):
        for prefix in ("", "model_init_kwargs."):
            value = account.choice(prefix + key, types)
            if value is not None:
                return value
    return None


def _checkpointing(account: Account, trl: bool) -> None:
    keys = ("gradient_checkpointing", "activation_checkpointing")
    values = [account.flag(key) for key in keys]
    account.assume(
        "TRL's default" if trl else "the default of TrainingArguments",
        checkpointing="full" if trl else "none",
    )
    if values != [None, None]:
        account.use(*keys, checkpointing="full" if any(values) else "none")
    for key in ("use_cache", "model_init_kwargs.use_cache"):
        if not account.flag(key):
            account.ignore(key, why="off")
        elif any(values) or (trl and values == [None, None]):
            account.ignore(key, why="transformers turns it off where it checkpoints layers")
        else:
            account.wish(key, use_cache=True)


def _from_trainer(section: Account, precision: str) -> None:
    """Put what the trainer says where DeepSpeed's file says "auto", or refuse a contradiction."""
    pairs = {
        "train_micro_batch_size_per_gpu": "micro_batch",
        "gradient_accumulation_steps": "accumulation",
    }
    for key, option in pairs.items():
        number, trainer = section.integer(key), section.options[option]
        if number is not None and option not in section.assumed and number != trainer:
            raise ConfigError(section.prefix + key, number, f'must be {trainer} or "auto"')
    if precision == "fp32" and section.flag("bf16.enabled"):
        raise ConfigError(section.prefix + "bf16.enabled", True, 'must be false or "auto"')


def _fsdp(account: Account, fsdp: Any) -> None:
    words = fsdp if isinstance(fsdp, list) else str(fsdp).lower().replace(",", " ").split()
    names = {"full_shard": "zero3", "shard_grad_op": "zero2", "no_shard": "ddp",
             "hybrid_shard": "zero3", "hybrid_shard_zero2": "zero2"}  # fmt: skip
    for word in words:
        if word not in (*names, "auto_wrap", "offload", "true"):
            allowed = f"true, {', '.join(names)}, with auto_wrap and offload"
            raise ConfigError("fsdp", fsdp, f"must be {allowed}")
    section = account.under("fsdp_config.")
    strategy = next((names[word] for word in words if word in names), None)
    for full in [key for key in account.leaves if key.startswith("fsdp_config.fsdp_")]:
        if full.replace(".fsdp_", ".") not in account.leaves:
            read_fsdp(section, "fsdp_")
            break
    else:
        read_fsdp(section, "")
    section.rest({}, {})
    if strategy == "ddp":
        strategy = account.replicated()
        if account.value("precision") == "mixed":
            account.options |= {"precision": "amp", "reduce_dtype": "float32"}
    if any(str(word).startswith("hybrid") for word in words):
        account.options["sharding"] = strategy
        account.refuse("fsdp", why="replicas of shards: read as shards over all ranks")
    account.use("fsdp", sharding=strategy or account.value("sharding"))
    if "offload" in words:
        account.options["offload"] = "all"


def _kernels(account: Account) -> None:
    if account.flag("use_liger_kernel"):
        account.wish("use_liger_kernel", kernels="liger", loss_head="fused")
    _compile(account)
    account.ignore("use_liger_kernel", why="off")
    keys = ("attn_implementation", "model_init_kwargs.attn_implementation")
    for key in keys:
        name = str(account.get(key, "sdpa"))
        if name == "eager":
            account.wish(key, attention="eager")
        elif name == "sdpa" or "flash" in name:
            account.wish(key, attention="flash")
        account.refuse(key, why="modelled as flash attention")


def _compile(account: Account) -> None:
    """Account for the compiler: its backend or its mode alone switches it on too."""
    keys = "torch_compile", "torch_compile_backend", "torch_compile_mode"
    on, (backend, mode) = account.flag(keys[0]), (account.get(key) for key in keys[1:])
    if backend not in (None, "inductor"):
        account.refuse(*keys, why="a compiler other than inductor is not modelled")
    if mode not in (None, "default", "max-autotune-no-cudagraphs"):
        account.refuse(keys[2], why="CUDA graphs' private pools are not modelled")
    if on or backend or mode:
        account.wish(*keys, kernels="compiled", loss_head="compiled")
    account.ignore(*keys, why="off")


def _optimizer(account: Account) -> None:
    """Account for `optim`, which counts under DeepSpeed too where its file names no optimizer."""
    if account.get("deepspeed.optimizer.type") is not None:
        account.ignore("optim", why="DeepSpeed's file names its own optimizer")
        return
    if account.value("sharding") in ("zero1", "zero2"):
        settle(account, {"param_groups": 2})  # with and without weight decay
    account.assume("the default of TrainingArguments", optimizer="adamw")
    name = str(account.get("optim", "adamw_torch_fused")).lower()
    if name in OPTIMIZERS:
        account.wish("optim", optimizer=OPTIMIZERS[name])
    account.refuse("optim", why=f"modelled as AdamW; covered are {', '.join(OPTIMIZERS)}")


def _lora(account: Account) -> bool:
    """Account for TRL's adapters; return whether there are some."""
    rank = account.integer("lora_r", 1, 65_536)
    keys = ("use_peft", "lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit",
            "bnb_4bit_quant_type", "use_bnb_nested_quant", "lora_dropout")  # fmt: skip
    four, eight = account.flag("load_in_4bit"), account.flag("load_in_8bit")
    if not account.flag("use_peft"):
        if four or eight:
            raise ConfigError("use_peft", False, "must be true: a quantised base needs adapters")
        account.ignore(*keys, why="no adapters")
        return False
    account.use("use_peft", "lora_r", lora_rank=rank or 16)
    _targets(account)
    quantization = "none"
    if four:
        quantization = "nf4_double" if account.flag("use_bnb_nested_quant") else "nf4"
    elif eight:
        quantization = "int8"
    kind = account.choice("bnb_4bit_quant_type", ("nf4", "fp4")) or "nf4"
    if four and kind != "nf4":
        account.note("bnb_4bit_quant_type", text="4 bits, like nf4")
    account.use("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant",
               quantization=quantization)  # fmt: skip
    return True


def _targets(account: Account) -> None:
    key = "lora_target_modules"
    value = account.get(key)
    account.assume("peft's default", lora_targets="qv")
    if value is None:
        account.ignore(key, why="peft's default")
        return
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        raise ConfigError(key, value, "must be a list of module names")
    wanted = frozenset(names)
    if wanted in TARGETS:
        account.use(key, lora_targets=TARGETS[wanted])
        return
    larger = next((to for known, to in TARGETS.items() if wanted <= known), "all_head")
    account.options["lora_targets"] = larger
    account.refuse(key, why=f"modelled as {larger!r}, the next larger set of targets")


def _model(account: Account) -> Architecture | None:
    """Account for the model's name; return it if it is one of the presets."""
    key = "model_name_or_path"
    name = account.get(key)
    if name is None:
        return None
    for known, model in ARCHITECTURES.items():
        if _bare(str(name)) in (_bare(known), _bare(model.source.split("/blob/")[0])):
            account.note(key, text=f"architecture {known}")
            return model
    account.ignore(key, why=f"{describe(name)} is no preset: give the architecture yourself")
    return None


def _bare(name: str) -> str:
    """Return a hub name without owner, version and kind: `llama-3-8b`."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
    last = re.sub(r"(-(hf|instruct|chat|base|v0\.\d|intermediate.*))+$", "", last)
    return last.replace("llama-3.1", "llama-3")
