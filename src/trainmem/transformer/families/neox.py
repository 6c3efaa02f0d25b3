"""GPT-NeoX, with attention and MLP side by side (Pythia, StableLM-alpha).

Phi is like it but for one norm and the bias of its head. Measured with litgpt's kernels; its fused
product of queries, keys and values (`GPTNeoXForCausalLM`) is written as three.
"""

from __future__ import annotations

from trainmem.transformer.engine.dims import SCALAR, F, H, K, Q
from trainmem.transformer.families.family import Code, Family, biased, gpt_root

LAYER = biased(
    ("norm1", H, SCALAR),
    ("norm2", H, SCALAR),
    ("q", Q, (H,)),
    ("k", K, (H,)),
    ("v", K, (H,)),
    ("o", H, (Q,)),
    ("up", F, (H,)),
    ("down", H, (F,)),
)

FAMILY = Family(
    name="neox",
    code=Code(layer_norm=True, side_by_side=True),
    layer_parameters=lambda a: LAYER,
    root_parameters=gpt_root,
    gated=lambda a: False,
    kernels=("litgpt",),
)
