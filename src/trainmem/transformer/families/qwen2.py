"""Qwen2 and Qwen2.5: Llama's layers with biases of queries, keys and values."""

from __future__ import annotations

from trainmem.transformer.families.config_json import SILU, Format, llama_sizes
from trainmem.transformer.families.family import QKV_BIAS, Family, llama_parameters, llama_root
from trainmem.transformer.families.llama import CODE

FAMILY = Family(
    name="qwen2",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(biases=QKV_BIAS),
    root_parameters=llama_root,
    format=Format(
        "Qwen2ForCausalLM",
        llama_sizes,
        32768,
        kv_heads=32,
        window=4096,
        slides="by layer",
        only=SILU,
        ignored=frozenset({"attention_bias"}),  # its queries, keys and values always have one
    ),
)
