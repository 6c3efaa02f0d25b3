"""Geometry of a transformer: what its tensors measure, and how many parameters it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from trainmem.config import describe
from trainmem.transformer.config_json import parse, read_fields

#: One parameter tensor: (dimension 0, the other dimensions), in one-letter dimensions.
Parameter = tuple[str, str]

#: The one-letter dimensions from which every tensor's size is a product.
DIMENSIONS = {
    "b": "micro batch, sequences",
    "s": "sequence length, tokens",
    "h": "hidden size",
    "a": "attention heads",
    "g": "key/value heads",
    "d": "head size",
    "q": "query width, heads × head size",
    "k": "key (and value) width, key/value heads × head size",
    "w": "fused query, key and value width, q + 2k",
    "f": "FFN size",
    "V": "vocabulary size",
    "p": "learned positions",
    "n": "experts",
    "e": "experts on one GPU",
    "y": "token types, and classes, of an encoder: two each",
}

#: Dense families, then mixtures of experts. `gpt` is Megatron's GPT (layer norms, no gate), `neox`
#: GPT-NeoX, with attention and MLP side by side (Pythia, StableLM-alpha; Phi but for one norm and
#: the bias of its head), `bert` an encoder with a pooler and a head for two classes.
DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "gpt", "neox", "bert")
EXPERTS = ("mixtral", "qwen3_moe")
FAMILIES = DENSE + EXPERTS

#: Families whose tables are traced: the code of transformers, to the byte.
TRACED = ("llama", "mistral", "qwen2", "qwen3", "gpt2")

#: A config.json larger than this is not one (real ones are a few kB).
MAX_CONFIG_BYTES = 1_000_000

#: Characters of a name.
MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class Architecture:
    """The geometry of a transformer, as Hugging Face transformers names it.

    Attributes
    ----------
    name
        What to call it, at most `MAX_NAME` characters.
    family
        One of `FAMILIES`: which code runs, hence which tensors exist.
    num_layers, hidden_dim, num_heads, num_kv_heads, head_dim, ffn_dim, vocab_size
        The usual sizes, in elements.
    tie_embeddings
        Whether the head is the embedding.
    max_positions
        Longest sequence; for GPT-2 also the rows of its position table.
    sliding_window
        Attention window in tokens, or None for full attention.
    source
        Where the numbers come from.
    num_experts, experts_per_token
        Of a mixture of experts, whose `ffn_dim` is one expert's; 0 in a dense model.
    dropout
        Whether the model's own configuration drops values in training, where transformers' code
        runs: GPT-2's three kinds, attention weights in the others. A plan may say dropout too.
    gate, linear_bias, learned_positions
        What Megatron's arguments give to `gpt`: SwiGLU, biases of all products, and a table of
        positions instead of rotary ones. Only for that family; the others have what they have.

    Raises
    ------
    ValueError
        For an unknown family, a size that is not a positive integer, or heads that do not divide.
    """

    name: str
    family: str
    num_layers: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    tie_embeddings: bool = False
    max_positions: int = 131072
    sliding_window: int | None = None
    source: str = "given by hand"
    num_experts: int = 0
    experts_per_token: int = 0
    dropout: bool = False
    gate: bool = False
    linear_bias: bool = False
    learned_positions: bool = False

    def __post_init__(self) -> None:
        self._check_names()
        for field, limit in _LIMITS.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ValueError(
                    f"{field} must be an integer from 1 to {limit}, got {describe(value)}"
                )
        for field in ("num_experts", "experts_per_token"):
            value, low = getattr(self, field), 1 if self.experts else 0
            limit = _LIMITS["num_heads"] if self.experts else 0
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limit:
                raise ValueError(
                    f"{field} must be an integer from {low} to {limit} for family "
                    f"{self.family!r}, got {describe(value)}"
                )
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token must be at most num_experts = {self.num_experts}, "
                f"got {self.experts_per_token}"
            )
        for field in ("tie_embeddings", "dropout", *_GPT_FIELDS):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ValueError(f"{field} must be True or False, got {describe(value)}")
            if value and field in _GPT_FIELDS and self.family != "gpt":
                raise ValueError(f"{field} is for family 'gpt' to say, got {self.family!r}")
        window, limit = self.sliding_window, _LIMITS["max_positions"]
        whole = isinstance(window, int) and not isinstance(window, bool)
        if window is not None and not (whole and 1 <= window <= limit):
            raise ValueError(
                f"sliding_window must be an integer from 1 to {limit} or null, "
                f"got {describe(window)}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}"
            )
        if self.family == "gpt2" and (
            self.num_kv_heads != self.num_heads or self.num_heads * self.head_dim != self.hidden_dim
        ):
            raise ValueError(
                "gpt2 needs num_kv_heads = num_heads and num_heads × head_dim = hidden_dim"
            )

    def _check_names(self) -> None:
        name = self.name
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError(
                f"name must be 1 to {MAX_NAME} characters that can be shown, got {describe(name)}"
            )
        if not isinstance(self.family, str) or self.family not in FAMILIES:
            raise ValueError(
                f"family must be one of {', '.join(FAMILIES)}, got {describe(self.family)}"
            )

    @property
    def experts(self) -> bool:
        """Whether the MLP is a mixture of experts."""
        return self.family in EXPERTS

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate (SwiGLU, GeGLU)."""
        return self.gate if self.family == "gpt" else self.family not in ("gpt2", "neox", "bert")

    @property
    def dims(self) -> dict[str, int]:
        """The sizes by their one-letter names (see `DIMENSIONS`)."""
        q, k = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "h": self.hidden_dim,
            "a": self.num_heads,
            "g": self.num_kv_heads,
            "d": self.head_dim,
            "q": q,
            "k": k,
            "w": q + 2 * k,
            "f": self.ffn_dim,
            "V": self.vocab_size,
            "p": self.max_positions,
            "n": self.num_experts,
            "e": self.num_experts,
            "y": 2,
        }

    @property
    def layer_parameters(self) -> dict[str, Parameter]:
        """Parameter tensors of one layer, in the model's order."""
        if self.family == "gpt2":
            return _GPT2_LAYER
        if self.family == "bert":
            return _BERT_LAYER
        if self.family == "gpt":
            gate: dict[str, Parameter] = {"gate.weight": ("f", "h")} if self.gate else {}
            table = _GPT_LAYER | gate
            weights = {n: p for n, p in table.items() if p[1]}
            biases = {n.replace("weight", "bias"): (p[0], "") for n, p in weights.items()}
            return table | (biases if self.linear_bias else {})
        if self.family == "neox":
            return _NEOX_LAYER
        bias = {"q.bias": ("q", ""), "k.bias": ("k", ""), "v.bias": ("k", "")}
        norms = {"q_norm": ("d", ""), "k_norm": ("d", "")}
        table = {
            "q.weight": ("q", "h"),
            "k.weight": ("k", "h"),
            "v.weight": ("k", "h"),
            **(bias if self.family == "qwen2" else {}),
            "o.weight": ("h", "q"),
            **(norms if self.family in ("qwen3", "qwen3_moe") else {}),
            **(_EXPERTS if self.experts else _GATED),
            "norm1": ("h", ""),
            "norm2": ("h", ""),
        }
        return table

    @property
    def root_parameters(self) -> dict[str, Parameter]:
        """Parameter tensors outside the layers, in the model's order."""
        head = {} if self.tie_embeddings else {"head.weight": ("V", "h")}
        if self.family == "gpt2":
            norm = {"norm.weight": ("h", ""), "norm.bias": ("h", "")}
            return {"embed": ("V", "h"), "position": ("p", "h"), **norm, **head}
        if self.family == "bert":
            return _BERT_ROOT
        if self.family in ("gpt", "neox"):
            norm = {"norm.weight": ("h", ""), "norm.bias": ("h", "")}
            positions = {"position": ("p", "h")} if self.learned_positions else {}
            return {"embed": ("V", "h"), **positions, **norm, **head}
        return {"embed": ("V", "h"), "norm": ("h", ""), **head}

    @property
    def layer_params(self) -> int:
        """Parameters of one layer."""
        return self._count(self.layer_parameters)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model, tied ones counted once (as transformers counts)."""
        return self.num_layers * self.layer_params + self._count(self.root_parameters)

    def _count(self, table: Mapping[str, Parameter]) -> int:
        dims, total = self.dims, 0
        for rows, cols in table.values():
            n = 1
            for letter in rows + cols:
                n *= dims[letter]
            total += n
        return total

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | PathLike[str], name: str | None = None
    ) -> Architecture:
        """Read a Hugging Face `config.json`.

        Parameters
        ----------
        config
            The path of the file, or its contents as a mapping.
        name
            What to call the model; by default what the file says.

        Raises
        ------
        ValueError
            Naming the field that is missing or wrong, or `model_type` for a family not covered.
        OSError
            If the file cannot be read.
        """
        if isinstance(config, Mapping):
            return _from_mapping(config, name or "config", "config given as a mapping")
        path = Path(config)
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise ValueError(
                f"{describe(str(path))} is larger than {MAX_CONFIG_BYTES} bytes: not a config.json"
            )
        try:
            content = parse(data)
        except ValueError as error:
            raise ValueError(f"{describe(str(path))} is not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(
                f"{describe(str(path))} must hold one JSON object, got {type(content).__name__}"
            )
        own = (path.parent.name or path.stem)[:MAX_NAME]
        return _from_mapping(content, name or own, str(path))


_LIMITS = {
    "num_layers": 10_000,
    "hidden_dim": 2**20,
    "num_heads": 2**16,
    "num_kv_heads": 2**16,
    "head_dim": 2**16,
    "ffn_dim": 2**24,
    "vocab_size": 2**24,
    "max_positions": 2**28,
}

_GATED: dict[str, Parameter] = {
    "gate.weight": ("f", "h"),
    "up.weight": ("f", "h"),
    "down.weight": ("h", "f"),
}

#: Experts are one tensor each of gate, up and down (transformers 5, torchtitan, Megatron).
_EXPERTS: dict[str, Parameter] = {
    "router.weight": ("n", "h"),
    "gate.weight": ("e", "fh"),
    "up.weight": ("e", "fh"),
    "down.weight": ("e", "hf"),
}

_GPT_FIELDS = ("gate", "linear_bias", "learned_positions")

_GPT_LAYER: dict[str, Parameter] = {
    "norm1.weight": ("h", ""),
    "norm1.bias": ("h", ""),
    "q.weight": ("q", "h"),
    "k.weight": ("k", "h"),
    "v.weight": ("k", "h"),
    "o.weight": ("h", "q"),
    "norm2.weight": ("h", ""),
    "norm2.bias": ("h", ""),
    "up.weight": ("f", "h"),
    "down.weight": ("h", "f"),
}


def _biased(*rows: tuple[str, str, str]) -> dict[str, Parameter]:
    """Return a weight and a bias for every (name, dimension 0, the other dimensions)."""
    return {
        name + part: shape
        for name, rows, cols in rows
        for part, shape in ((".weight", (rows, cols)), (".bias", (rows, "")))
    }


#: `GPTNeoXForCausalLM`, whose fused product of queries, keys and values is written as three.
_NEOX_LAYER = _biased(
    ("norm1", "h", ""),
    ("norm2", "h", ""),
    ("q", "q", "h"),
    ("k", "k", "h"),
    ("v", "k", "h"),
    ("o", "h", "q"),
    ("up", "f", "h"),
    ("down", "h", "f"),
)

#: `BertForSequenceClassification` with its default of two classes.
_BERT_LAYER = _biased(
    ("q", "q", "h"),
    ("k", "k", "h"),
    ("v", "k", "h"),
    ("o", "h", "q"),
    ("norm1", "h", ""),
    ("up", "f", "h"),
    ("down", "h", "f"),
    ("norm2", "h", ""),
)
_BERT_ROOT: dict[str, Parameter] = {
    "embed": ("V", "h"),
    "position": ("p", "h"),
    "token_type": ("y", "h"),
    **_biased(("embed_norm", "h", ""), ("pooler", "h", "h"), ("classifier", "y", "h")),
}

_GPT2_LAYER: dict[str, Parameter] = {
    "norm1.weight": ("h", ""),
    "norm1.bias": ("h", ""),
    "qkv.weight": ("h", "w"),
    "qkv.bias": ("w", ""),
    "o.weight": ("h", "h"),
    "o.bias": ("h", ""),
    "norm2.weight": ("h", ""),
    "norm2.bias": ("h", ""),
    "up.weight": ("h", "f"),
    "up.bias": ("f", ""),
    "down.weight": ("f", "h"),
    "down.bias": ("h", ""),
}


def _from_mapping(config: Mapping[str, Any], name: str, source: str) -> Architecture:
    return Architecture(name=name, source=source, **read_fields(config))


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
