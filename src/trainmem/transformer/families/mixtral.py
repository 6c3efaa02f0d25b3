"""Mixtral: Mistral's layers with a mixture of experts."""

from __future__ import annotations

from trainmem.transformer.families.config_json import NO_BIAS, Format, llama_sizes
from trainmem.transformer.families.family import EXPERTS, Family, llama_parameters, llama_root
from trainmem.transformer.families.llama import CODE

FAMILY = Family(
    name="mixtral",
    code=CODE,
    layer_parameters=lambda a: llama_parameters(mlp=EXPERTS),
    root_parameters=llama_root,
    format=Format(
        "MixtralForCausalLM",
        llama_sizes,
        131072,
        kv_heads=8,
        slides="all",
        only=NO_BIAS,
        experts=("num_local_experts", "num_experts"),
    ),
    experts=True,
)
