"""Qwen3-MoE: Qwen3's layers with a mixture of experts."""

from __future__ import annotations

from trainmem.transformer.families.config_json import NO_BIAS, Format, llama_sizes
from trainmem.transformer.families.family import (
    EXPERTS,
    QK_NORM,
    Family,
    llama_parameters,
    llama_root,
)
from trainmem.transformer.families.llama import CODE

FAMILY = Family(
    name="qwen3_moe",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(norms=QK_NORM, mlp=EXPERTS),
    root_parameters=llama_root,
    format=Format(
        "Qwen3MoeForCausalLM",
        llama_sizes,
        32768,
        kv_heads=4,
        window=4096,
        slides="if used",
        only={**NO_BIAS, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
        ignored=frozenset({"intermediate_size", "max_window_layers", "norm_topk_prob"}),
        ffn="moe_intermediate_size",
        experts=("num_local_experts", "num_experts"),
    ),
    experts=True,
    qk_norm=True,
)
