"""Rows of `measured.json` as a model and a plan: the one place where they are mapped.

A row that cannot be modelled raises a `ValueError` that says why. Rules are by stack, never by row:
what a row leaves open is filled in as its stack did by default at the time.
"""

from __future__ import annotations

import re
from typing import Any

from trainmem.transformer import Architecture, Plan, stack

Row = dict[str, Any]

#: Family by how a model's name begins; the first that matches.
FAMILIES = {
    "Mixtral": "mixtral",
    "Qwen3": "qwen3",
    "Qwen": "qwen2",
    "llama": "llama",
    "TinyLlama": "llama",
    "Llama": "llama",
    "Yi": "llama",
    "Mistral": "mistral",
    "Gemma": "gemma",
    "Phi": "neox",
    "StableLM": "neox",
    "Pythia": "neox",
    "Falcon": "neox",
    "GPT-3": "gpt",
    "Nemotron": "gpt",
    "tiny GPT": "gpt",
    "bert": "bert",
    "GPT-2": "gpt2",
    "gpt2": "gpt2",
}

#: torchtitan's tensor parallelism of 2024 kept more than today's: documents that it is in.
TITAN_2024 = ("202412", "83c879f18", "performance.md (2024")


def family_of(row: Row) -> str:
    """Which family a row's model is of."""
    for start, family in FAMILIES.items():
        if row["model"].lower().startswith(start.lower()):
            return family
    if row.get("gated_mlp"):  # Vicuna, OpenLLaMA and other names of the same layers
        return "llama"
    raise ValueError(f"model {row['model']} is of no covered family")


def software_month(row: Row) -> str:
    """When a row's software is from, as year and month, as far as the row says; else ""."""
    found = re.search(r"(20\d\d)-?(\d\d)\b", row["source"]) or re.search(
        r"-(2\d)(\d\d)-", row["id"]
    )
    if found:
        return f"20{found[1][-2:]}-{found[2]}"
    newest = row["norm"]["graph"] == "traced" or "B200" in row["gpu"]  # neither was there before
    return "2025-06" if newest else ""


def architecture_of(row: Row) -> Architecture:
    """The geometry that a row gives."""
    family = family_of(row)
    experts = {"num_experts": 8, "experts_per_token": 2} if family == "mixtral" else {}
    return Architecture(
        name=row["model"],
        family=family,
        num_layers=row["layers"],
        hidden_dim=row["hidden"],
        num_heads=row["heads"],
        num_kv_heads=row.get("kv_heads") or row["heads"],
        head_dim=row.get("head_dim") or row["hidden"] // row["heads"],
        ffn_dim=row["ffn"],
        vocab_size=row["vocab"],
        tie_embeddings=bool(row.get("tied")),
        max_positions=max(1024, row.get("seq_len") or 0),
        source=row["source"],
        **experts,
    )


def sharding_of(row: Row) -> str:
    """ZeRO stage, DDP or nothing."""
    stage, gpus = row.get("zero_stage") or 0, row.get("n_gpus") or 1
    if stage:
        return f"zero{stage}"
    return "ddp" if gpus > (row.get("tp") or 1) * (row.get("pp") or 1) else "none"


def common(row: Row) -> dict[str, Any]:
    """Options that every stack's rows give in the same words."""
    if not row.get("seq_len"):
        raise ValueError("seq_len is not published")
    if not row.get("n_gpus"):
        raise ValueError("n_gpus is not published")
    offload = (row.get("offload") or "none").lower()
    if "activation" in offload or "disk" in offload or "nvme" in offload:
        raise ValueError(f"offload {offload!r} is not covered")
    if "fp4" in str(row.get("notes", "")).lower() + str(row.get("compute_dtype")).lower():
        raise ValueError("FP4 is not covered")
    if "vary" in str(row.get("notes", "")).lower():
        raise ValueError("varying lengths are not covered")
    return {
        "num_gpus": row["n_gpus"],
        "micro_batch": row["micro_batch"],
        "seq_length": row["seq_len"],
        "accumulation": row.get("grad_accum") or 1,
        "sharding": sharding_of(row),
        "tp": row.get("tp") or 1,
        "pp": row.get("pp") or 1,
        "cp": row.get("cp_sp") or 1,
        "ep": row.get("ep") or 1,
        "sequence_parallel": row.get("sequence_parallel") is not False,
        "checkpointing": {"per_op_selective": "selective", "every_2nd_layer": "every_2nd"}.get(
            row["norm"]["ckpt"], row["norm"]["ckpt"]
        ),
        "offload": "all" if "param" in offload else "optimizer" if "optim" in offload else "none",
    }


def torchtitan(row: Row) -> Plan:
    """Rows of torchtitan and of torchao's documents, which use it."""
    norm, options = row["norm"], common(row)
    eager = norm["kernels"] == "eager"
    if options["tp"] > 1 and any(text in row["source"] for text in TITAN_2024):
        raise ValueError("2-D parallel software of 2024 is not covered")
    if eager and "float8" in str(row.get("notes")).lower():
        raise ValueError("eager float8 is not covered")
    if options["pp"] > 1:  # a local batch is split into micro batches of one sequence
        options |= {"accumulation": options["micro_batch"], "micro_batch": 1}
    losses = {"full": "transformers", "unknown": "transformers", "chunked": "pieces"}
    return stack(
        "torchtitan" if eager else "torchtitan-compile",
        **options,
        loss_head=losses.get(norm["loss"], norm["loss"]),
        # Embedding and head have been in groups of their own since 2025-03.
        wrapping="split" if software_month(row) >= "2025-03" else "layers",
    )


def torchtune(row: Row) -> Plan:
    """Rows of torchtune: one GPU, everything in bf16."""
    norm, options = row["norm"], common(row)
    eight = "8" in str(row.get("optimizer"))
    loss = {"chunked": "pieces", "compiled": "compiled"}.get(norm["loss"], "transformers")
    return stack(
        "torchtune",
        **options,
        **adapters(row),
        kernels="torchtitan" if norm["kernels"] == "eager" else "compiled",
        optimizer="adam8bit" if eight else "adamw",
        loss_head=loss,
    )


def megatron(row: Row) -> Plan:
    """Rows of Megatron-LM's own tests and of SimuMax, which runs it."""
    options = common(row)
    if "GPT" in row["model"]:  # argument defaults: dropout 0.1, cross entropy not fused
        options |= {"dropout": True, "loss_head": "parallel"}
    elif row["norm"]["loss"] != "vocab_parallel_fused":
        options |= {"loss_head": "parallel"}
    if "interleaved" in str(row.get("pp_schedule")):
        options["vpp"] = row["layers"] // options["pp"]  # a layer per chunk
    if not row["zero_stage"]:
        options["sharding"] = "ddp" if options["num_gpus"] > 1 else "none"
    return stack("megatron", **options)


def deepspeed(row: Row) -> Plan:
    """Rows of DeepSpeed under transformers of 2023 and 2024, whose logits stay in fp32.

    Buckets are "auto", as in the configuration that transformers' documentation gives.
    """
    options = common(row)
    auto = ["reduce_bucket_size"]
    if row["zero_stage"] == 3:
        auto += ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"]
    loss = {"liger": "fused", "unknown": "returned", "full": "returned", "chunked": "chunked"}
    return stack(
        f"deepspeed-zero{row['zero_stage']}",
        **{k: v for k, v in options.items() if k != "sharding"},
        **adapters(row),
        loss_head=loss.get(row["norm"]["loss"], "returned"),
        settings=dict.fromkeys(auto, "auto") if "HF" in row["framework"] else {},
        kernels="liger" if row["norm"]["loss"] == "liger" else "transformers",
    )


def litgpt(row: Row) -> Plan:
    """Rows of litgpt: bf16-true, cross entropy in pieces, several micro batches per step."""
    options = common(row)
    if not row.get("grad_accum"):
        options["accumulation"] = 4
    return stack("litgpt", **options, **adapters(row))


def transformers(row: Row) -> Plan:
    """Rows of transformers' Trainer, of ms-swift and of fsdp_qlora, which use it."""
    options = common(row)
    pure = row.get("param_dtype") == "bf16"
    if row.get("param_dtype") == row.get("compute_dtype") == "fp32":
        precision = "fp32"
    else:
        precision = "bf16" if pure else "mixed" if row.get("zero_stage") else "amp"
    optimizer = str(row.get("optimizer"))
    loss = "transformers" if row["norm"]["loss"] == "full" else "returned"
    if family_of(row) == "bert":
        loss = "compiled"
    # PyTorch's, which is foreach by default, has been the Trainer's since 2022.
    optimizers = {True: "adamw_foreach", False: "adamw_forloop"}
    if "Adafactor" in optimizer:
        raise ValueError("optimizer Adafactor is not covered")
    return stack(
        "transformers",
        **options,
        **adapters(row),
        precision=precision,
        optimizer=optimizers[pure] if "8-bit" not in optimizer else "adam8bit",
        attention="eager" if row.get("attention") == "eager" else "flash",
        loss_head=loss,
        varying_lengths="truncated" in str(row.get("assumption")),
    )


def adapters(row: Row) -> dict[str, Any]:
    """Options of LoRA and QLoRA, from the words of `peft`."""
    tuning, words = row["norm"]["tuning"], str(row.get("peft"))
    if tuning == "full":
        return {}
    if tuning == "other":
        raise ValueError(f"tuning {words!r} is not covered")
    rank = next(
        (int(w[1:]) for w in words.replace("(", " ").split() if w[:1] == "r" and w[1:].isdigit()), 0
    )
    targets = "qv"
    if "all linears" in words:
        targets = "all_head"
    elif "c_attn" in words or (row["model"].startswith("Qwen-") and not rank):
        targets = "qkv"
    elif not rank and "fsdp_qlora" in row["source"].lower():
        targets = "all"
    quantization = "none"
    if tuning == "qlora":
        quantization = "int8" if "int8" in words else "nf4_double" if "dq" in words else "nf4"
    return {
        "lora_rank": rank or (64 if targets == "all" else 8),
        "lora_targets": targets,
        "quantization": quantization,
    }


def llmc(row: Row) -> Plan:
    """Rows of llm.c: ZeRO-1 where there are several GPUs."""
    options = common(row)
    options["sharding"] = "zero1" if options["num_gpus"] > 1 else "none"
    return stack("llm.c", **options)


STACKS = {
    "llm.c": llmc,
    "deepspeed": deepspeed,
    "litgpt": litgpt,
    "megatron": megatron,
    "torchtitan": torchtitan,
    "torchtune": torchtune,
    "transformers": transformers,
}


def measured_inputs(row: Row) -> tuple[Architecture, Plan]:
    """The model and plan of a measured row.

    Raises
    ------
    ValueError
        Saying why the row cannot be modelled.
    """
    norm = row["norm"]
    if norm["stack"] not in STACKS:
        raise ValueError(f"stack {norm['stack']} is not covered")
    if norm["moe"] and not row["model"].startswith("Mixtral"):
        raise ValueError("mixture of experts other than Mixtral")
    if norm["tuning"] != "full" and norm["stack"] in ("torchtitan", "megatron", "llm.c"):
        raise ValueError(f"tuning {norm['tuning']} is not covered with {norm['stack']}")
    try:
        return architecture_of(row), STACKS[norm["stack"]](row)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}, in what the row says") from None
