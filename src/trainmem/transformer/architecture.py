"""Geometry of a transformer: what its tensors measure, and how many parameters it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from trainmem.transformer.engine.dims import A, D, Dim, E, F, G, H, K, N, P, Q, V, W, Y
from trainmem.transformer.engine.tape import Parameters
from trainmem.transformer.families import FAMILIES
from trainmem.transformer.families.config_json import Format, parse, read_fields
from trainmem.words import describe

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
        for field in ("tie_embeddings", "dropout", *_OWN_FIELDS):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ValueError(f"{field} must be True or False, got {describe(value)}")
            if value and field in _OWN_FIELDS and field not in FAMILIES[self.family].fields:
                whose = " or ".join(repr(f.name) for f in FAMILIES.values() if field in f.fields)
                raise ValueError(f"{field} is for family {whose} to say, got {self.family!r}")
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
        FAMILIES[self.family].check(self)

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
        return FAMILIES[self.family].experts

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate (SwiGLU, GeGLU)."""
        return FAMILIES[self.family].gated(self)

    @property
    def has_positions(self) -> bool:
        """Whether positions are looked up in a table, whose rows end the sequence."""
        return "position" in self.root_parameters

    @property
    def dims(self) -> dict[Dim, int]:
        """The dimensions that the geometry gives."""
        q, k = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            H: self.hidden_dim,
            A: self.num_heads,
            G: self.num_kv_heads,
            D: self.head_dim,
            Q: q,
            K: k,
            W: q + 2 * k,
            F: self.ffn_dim,
            V: self.vocab_size,
            P: self.max_positions,
            N: self.num_experts,
            E: self.num_experts,
            Y: 2,
        }

    @property
    def layer_parameters(self) -> Parameters:
        """Parameter tensors of one layer, in the model's order."""
        return FAMILIES[self.family].layer_parameters(self)

    @property
    def root_parameters(self) -> Parameters:
        """Parameter tensors outside the layers, in the model's order."""
        return FAMILIES[self.family].root_parameters(self)

    @property
    def layer_params(self) -> int:
        """Parameters of one layer."""
        return self._count(self.layer_parameters)

    @property
    def num_params(self) -> int:
        """Parameters of the whole model, tied ones counted once (as transformers counts)."""
        return self.num_layers * self.layer_params + self._count(self.root_parameters)

    def _count(self, table: Parameters) -> int:
        dims = self.dims
        return sum(math.prod(dims[dim] for dim in p.shape) for p in table.values())

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

#: Fields that only some families have.
_OWN_FIELDS = ("gate", "linear_bias", "learned_positions")


def _from_mapping(config: Mapping[str, Any], name: str, source: str) -> Architecture:
    return Architecture(name=name, source=source, **read_fields(config, _formats()))


def _formats() -> dict[str, Format]:
    return {name: family.format for name, family in FAMILIES.items() if family.format}
