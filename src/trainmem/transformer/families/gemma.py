"""Gemma as litgpt runs it: Llama's tensors, a norm of 1 + w in fp32, GeGLU, an untied head.

`RMSNorm` and `GemmaMLP` in litgpt's `model.py`, measured on it; transformers' own code is not
described.
"""

from __future__ import annotations

from trainmem.transformer.families.family import Code, Family, llama_parameters, llama_root

FAMILY = Family(
    name="gemma",
    code=Code(),
    layer_parameters=lambda a: llama_parameters(),
    root_parameters=llama_root,
    kernels=("litgpt",),
)
