"""Qwen3: Llama's layers with norms of queries and keys."""

from __future__ import annotations

from trainmem.transformer.families.config_json import NO_BIAS, Format, llama_sizes
from trainmem.transformer.families.family import QK_NORM, Family, llama_parameters, llama_root
from trainmem.transformer.families.llama import CODE

FAMILY = Family(
    name="qwen3",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(norms=QK_NORM),
    root_parameters=llama_root,
    format=Format(
        "Qwen3ForCausalLM",
        llama_sizes,
        32768,
        kv_heads=32,
        head_dim=128,
        window=4096,
        slides="by layer",
        only=NO_BIAS,
    ),
    qk_norm=True,
)
