"""Steps of the architecture-aware model that many tests ask about."""

from __future__ import annotations

from typing import Any

from trainmem import simulate
from trainmem.transformer import stack

H100 = "H100 · 80 GB"
GIB = 2**30
TINY = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "_name_or_path": "someone/tiny",
}  # fmt: skip


def llama(**given: Any) -> Any:
    return simulate(**{"architecture": "Llama-3-8B", "gpu": H100, **given})


OFFERED = (
    {"grad_ckpt": 0},
    {"micro_batch": 12},
    {"micro_batch": 8, "seq_length": 3900},
    {"micro_batch": 1, "grad_ckpt": 0, "seq_length": 8192, "plan": {"attention": "eager"}},
    {"zero_stage": 0},
    {"zero_stage": 0, "num_gpus": 1, "micro_batch": 1, "seq_length": 512},
    {"architecture": "Llama-3-70B", "num_gpus": 16, "micro_batch": 1, "seq_length": 8192},
    {"plan": stack("deepspeed-zero2", num_gpus=1, seq_length=128)},
    {"plan": stack("deepspeed-zero3", seq_length=1024), "gpu": "RTX 3090 · 24 GB"},
    {"plan": {"accumulation": 2, "no_sync": True}, "gpu": "A100 · 40 GB"},
    {"zero_stage": 0, "plan": {"optimizer": "adam8bit"}},  # which ZeRO-3 does not have
)


PIPELINE = {
    "framework": "megatron", "kernels": "transformer_engine", "precision": "bf16_master",
    "loss_head": "in_place", "tp": 8, "pp": 16,
}  # fmt: skip


def planned(**changes):
    return simulate(
        architecture="Llama-3-405B", num_gpus=512, micro_batch=1, seq_length=8192, zero_stage=1,
        gpu="H100 · 80 GB", plan=PIPELINE, **changes,
    )  # fmt: skip
