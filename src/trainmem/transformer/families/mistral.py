"""Mistral: Llama's layers, with a window in its file."""

from __future__ import annotations

from trainmem.transformer.families.config_json import NO_BIAS, Format, llama_sizes
from trainmem.transformer.families.family import Family, llama_parameters, llama_root
from trainmem.transformer.families.llama import CODE

FAMILY = Family(
    name="mistral",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(),
    root_parameters=llama_root,
    format=Format(
        "MistralForCausalLM",
        llama_sizes,
        131072,
        kv_heads=8,
        window=4096,
        slides="all",
        only=NO_BIAS,
        layer_types=False,  # transformers takes it for a Ministral then
    ),
)
