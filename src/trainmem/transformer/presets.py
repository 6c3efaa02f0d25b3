"""Architectures by name, from the `config.json` that is published with each."""

from __future__ import annotations

from trainmem.transformer.architecture import Architecture
from trainmem.words import describe


def _hub(path: str) -> str:
    return f"https://huggingface.co/{path}/blob/main/config.json"


def _preset(
    name: str,
    family: str,
    sizes: tuple[int, int, int, int, int, int],
    positions: int,
    path: str,
    *,
    tied: bool = False,
    head_dim: int | None = None,
    experts: tuple[int, int] = (0, 0),
) -> Architecture:
    layers, hidden, heads, kv_heads, ffn, vocab = sizes
    return Architecture(
        name=name,
        family=family,
        num_layers=layers,
        hidden_dim=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        ffn_dim=ffn,
        vocab_size=vocab,
        tie_embeddings=tied,
        max_positions=positions,
        source=_hub(path),
        num_experts=experts[0],
        experts_per_token=experts[1],
    )


#: Presets by name. Columns: layers, hidden, heads, key/value heads, FFN, vocabulary; positions.
ARCHITECTURES: dict[str, Architecture] = {
    a.name: a
    for a in (
        _preset("GPT-2", "gpt2", (12, 768, 12, 12, 3072, 50257), 1024,
                "openai-community/gpt2", tied=True),
        _preset("GPT-2-medium", "gpt2", (24, 1024, 16, 16, 4096, 50257), 1024,
                "openai-community/gpt2-medium", tied=True),
        _preset("GPT-2-large", "gpt2", (36, 1280, 20, 20, 5120, 50257), 1024,
                "openai-community/gpt2-large", tied=True),
        _preset("GPT-2-XL", "gpt2", (48, 1600, 25, 25, 6400, 50257), 1024,
                "openai-community/gpt2-xl", tied=True),
        _preset("TinyLlama-1.1B", "llama", (22, 2048, 32, 4, 5632, 32000), 2048,
                "TinyLlama/TinyLlama_v1.1"),
        _preset("Llama-2-7B", "llama", (32, 4096, 32, 32, 11008, 32000), 4096,
                "meta-llama/Llama-2-7b-hf"),
        _preset("Llama-2-13B", "llama", (40, 5120, 40, 40, 13824, 32000), 4096,
                "meta-llama/Llama-2-13b-hf"),
        _preset("Llama-2-70B", "llama", (80, 8192, 64, 8, 28672, 32000), 4096,
                "meta-llama/Llama-2-70b-hf"),
        _preset("Llama-3-8B", "llama", (32, 4096, 32, 8, 14336, 128256), 8192,
                "meta-llama/Meta-Llama-3-8B"),
        _preset("Llama-3-70B", "llama", (80, 8192, 64, 8, 28672, 128256), 8192,
                "meta-llama/Meta-Llama-3-70B"),
        _preset("Llama-3-405B", "llama", (126, 16384, 128, 8, 53248, 128256), 131072,
                "meta-llama/Llama-3.1-405B"),
        _preset("Llama-3.2-1B", "llama", (16, 2048, 32, 8, 8192, 128256), 131072,
                "meta-llama/Llama-3.2-1B", tied=True),
        _preset("Llama-3.2-3B", "llama", (28, 3072, 24, 8, 8192, 128256), 131072,
                "meta-llama/Llama-3.2-3B", tied=True),
        _preset("Mistral-7B", "mistral", (32, 4096, 32, 8, 14336, 32768), 32768,
                "mistralai/Mistral-7B-v0.3"),
        _preset("Qwen2.5-0.5B", "qwen2", (24, 896, 14, 2, 4864, 151936), 32768,
                "Qwen/Qwen2.5-0.5B", tied=True),
        _preset("Qwen2.5-7B", "qwen2", (28, 3584, 28, 4, 18944, 152064), 131072,
                "Qwen/Qwen2.5-7B"),
        _preset("Qwen2.5-14B", "qwen2", (48, 5120, 40, 8, 13824, 152064), 131072,
                "Qwen/Qwen2.5-14B"),
        _preset("Qwen2.5-72B", "qwen2", (80, 8192, 64, 8, 29568, 152064), 131072,
                "Qwen/Qwen2.5-72B"),
        _preset("Qwen3-8B", "qwen3", (36, 4096, 32, 8, 12288, 151936), 40960,
                "Qwen/Qwen3-8B", head_dim=128),
        _preset("Qwen3-32B", "qwen3", (64, 5120, 64, 8, 25600, 151936), 40960,
                "Qwen/Qwen3-32B", head_dim=128),
        _preset("Mixtral-8x7B", "mixtral", (32, 4096, 32, 8, 14336, 32000), 32768,
                "mistralai/Mixtral-8x7B-v0.1", experts=(8, 2)),
        _preset("Qwen3-30B-A3B", "qwen3_moe", (48, 2048, 32, 4, 768, 151936), 40960,
                "Qwen/Qwen3-30B-A3B", head_dim=128, experts=(128, 8)),
    )
}  # fmt: skip


def architecture(name: str) -> Architecture:
    """Look a preset up by name, regardless of case.

    Raises
    ------
    ValueError
        Listing the choices.
    """
    for known, value in ARCHITECTURES.items():
        if isinstance(name, str) and name.lower() == known.lower():
            return value
    known = ", ".join(ARCHITECTURES)
    raise ValueError(f"model {describe(name)} is not known; choose one of {known}")
