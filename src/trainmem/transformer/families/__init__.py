"""Families of models, one file each: parameters, layers, the format of their `config.json`."""

from __future__ import annotations

from trainmem.transformer.families import (
    bert,
    gemma,
    gpt,
    gpt2,
    llama,
    mistral,
    mixtral,
    neox,
    qwen2,
    qwen3,
    qwen3_moe,
)
from trainmem.transformer.families.family import Code, Family

#: Families by name, dense ones first; :func:`trainmem.transformer.add` adds one.
FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        llama,
        mistral,
        qwen2,
        qwen3,
        gemma,
        gpt2,
        gpt,
        neox,
        bert,
        mixtral,
        qwen3_moe,
    )
}

__all__ = ["FAMILIES", "Code", "Family"]
