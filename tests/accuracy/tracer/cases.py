"""What is traced: one model geometry and one way to run its training step.

Records are plain JSON dictionaries, because the same schema is read by the tests of the memory
model. A field that a record leaves out has the value given here.
"""

import random
from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
GEOMETRY = (
    "family",
    "hidden_dim",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",  # may be left out: hidden_dim / num_heads
    "ffn_dim",
    "vocab_size",
    "tie_embeddings",
)
DEFAULTS: Case = {
    "shard": "none",  # none | ddp | zero1 | zero2 | zero3
    "world": 1,  # GPUs that share the states
    # mixed: FSDP computes in bf16 over fp32 shards | amp: bf16 autocast over fp32 |
    # bf16_master: bf16 weights and gradients, fp32 master | bf16 | fp32
    "precision": "mixed",
    "ckpt": False,  # every layer checkpointed
    "mbs": 1,
    "seq": 2048,
    "attn": "sdpa",  # sdpa | eager
    # fused | foreach | forloop: AdamW that way | sgd | sgd_momentum: foreach
    "optim": "fused",
    "reduce": "float32",  # type of the gradient reduction under `mixed`
    "wrap": "layers",  # FSDP groups: each layer | split: embedding and head in groups of their own
    "accum": 1,  # micro batches in a step
    "no_sync": False,  # gradients are reduced in the last micro batch only
    "keep_grads": False,  # gradients are zeroed, not set to None
    "dropout": 0.0,  # GPT-2 only
    # full: as transformers computes it | chunked: recomputed in pieces of loss_chunk tokens |
    # liger: Liger's fused linear cross entropy
    "loss": "full",
    "loss_chunk": 1024,
    "lora_rank": 0,  # > 0: frozen base, adapters of this rank on every linear layer of a block
}


def complete(record: Case) -> Case:
    """Return `record` with every field of `DEFAULTS` in its case."""
    unknown = set(record["case"]) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"unknown case fields {sorted(unknown)}; allowed: {sorted(DEFAULTS)}")
    return {**record, "case": DEFAULTS | record["case"]}


def draw(seed: int, count: int) -> Iterator[Case]:
    """Yield `count` records drawn over the whole plan space, the same ones for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        model = _draw_model(rng)
        yield {"name": f"random-{seed}-{number}", "model": model, "case": _draw_case(rng, model)}


def _draw_model(rng: random.Random) -> Case:
    family = rng.choice(FAMILIES)
    heads = rng.choice((4, 6, 8, 12, 14, 16, 20, 25, 32))
    head_dim = rng.choice((32, 64, 64, 80, 96, 128))
    hidden = heads * head_dim
    if family == "qwen3":  # the one family whose heads need not span the hidden size
        hidden = rng.choice((hidden, 64 * rng.randint(8, 48)))
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    return {
        "family": family,
        "hidden_dim": hidden,
        "num_layers": rng.randint(2, 16),
        "num_heads": heads,
        "num_kv_heads": heads if family == "gpt2" else rng.choice((heads, *divisors)),
        "head_dim": head_dim,
        "ffn_dim": rng.choice((4 * hidden, 8 * int(hidden * rng.uniform(1.5, 6) / 8))),
        "vocab_size": rng.choice((10007, 32000, 50257, 128256, 151936)),
        "tie_embeddings": rng.random() < (0.8 if family == "gpt2" else 0.3),
    }


def _draw_case(rng: random.Random, model: Case) -> Case:
    shard = rng.choice(("none", "ddp", "zero1", "zero2", "zero3", "zero3"))
    sharded = shard.startswith("zero")
    worlds = {"none": (1,), "ddp": (2, 8, 48)}.get(shard, (1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 48, 64))
    precisions = ("amp", "bf16_master", "bf16", "fp32")
    precision = rng.choice(("mixed", "mixed", "mixed", *precisions) if sharded else precisions)
    attn = rng.choice(("sdpa", "sdpa", "eager"))
    optims = ("fused", "fused", "foreach", "forloop", "sgd", "sgd_momentum")
    untied = not model["tie_embeddings"] and model["family"] != "gpt2"
    accum = rng.choice((1, 1, 2, 4))
    return {
        "shard": shard,
        "world": rng.choice(worlds),
        "precision": precision,
        "ckpt": rng.random() < 0.5,
        "mbs": rng.choice((1, 1, 2, 3, 4, 8)),
        "seq": rng.choice((128, 500, 512, 1024, 2048) + (3000, 4096, 8192) * (attn == "sdpa")),
        "attn": attn,
        "optim": "fused" if precision == "bf16_master" else rng.choice(optims),
        "reduce": rng.choice(("float32", "bfloat16")) if precision == "mixed" else "float32",
        "wrap": "split" if sharded and untied and rng.random() < 0.4 else "layers",
        "accum": accum,
        "no_sync": shard != "none" and accum > 1 and (shard == "zero1" or rng.random() < 0.5),
        "keep_grads": rng.random() < 0.3,
        "dropout": 0.1 if model["family"] == "gpt2" and rng.random() < 0.4 else 0.0,
        "loss": rng.choice(("full",) * 7 + ("chunked", "chunked", "liger")),
        "loss_chunk": rng.choice((256, 1000, 1024)),
        "lora_rank": 0,
    }
