"""The ten inputs of a training step: one table of fields, from which all else derives.

`FIELDS` is the only place where a unit, a bound, a default or a label is written. Validation,
the widget's traits and sliders, the HTTP schema, the command line and the docs all read it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Final, Literal, SupportsIndex, TypedDict, TypeVar

from trainmem.words import Number, cut, describe, grouped, nearest

__all__ = [
    "FIELDS",
    "ConfigError",
    "Field",
    "Inputs",
    "TrainingConfig",
]

Given = float | SupportsIndex
"""What a number may be given as: an int, a float, or a scalar of NumPy."""

F = TypeVar("F", bound=Callable[..., Any])


class ConfigError(ValueError):
    """A bad input: which field, which value, and what is allowed.

    Parameters
    ----------
    field : str
        Name of the offending field.
    value : object
        What was given.
    allowed : str
        What would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{cut(field, 200)}: {describe(value)} is not allowed; {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


def in_words(error: Exception) -> str:
    """Return what an exception says, for people: whole where it is ours, else named and cut."""
    if isinstance(error, ConfigError):
        return str(error)
    said = cut(str(error), 300)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, refusing a key that is there twice: `object_pairs_hook` of `json`."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(cut(key), value, "must be there once, and is there twice")
        found[key] = value
    return found


@dataclass(frozen=True)
class Field:
    """One input: its name in the API, its meaning, and what it accepts.

    Attributes
    ----------
    name : str
        Name in the HTTP API and in `TrainingConfig`.
    label, help, unit : str
        Words for people; `unit` may be empty.
    group : str
        Heading under which the widget shows the field.
    kind : {"int", "float"}
        Type of a valid value.
    default : int or float
        Value of the published reference request.
    bounds : tuple of numbers
        Smallest and largest accepted value, both included.
    choices : tuple of numbers
        The only accepted values, where the field is a choice; else empty.
    slider : tuple of numbers
        First and last slider position. Typed values may lie beyond, within `bounds`.
    scale : {"log", "linear"}
        Spacing of the slider positions.
    """

    name: str
    label: str
    unit: str
    help: str
    group: str
    kind: Literal["int", "float"]
    default: Number
    bounds: tuple[Number, Number]
    choices: tuple[Number, ...] = ()
    slider: tuple[Number, Number] = (0, 1)
    scale: Literal["log", "linear"] = "log"

    @property
    def allowed(self) -> str:
        """What the field accepts, in words."""
        if self.choices:
            *most, last = (grouped(choice) for choice in self.choices)
            return f"must be {', '.join(most)} or {last}"
        noun = "a whole number" if self.kind == "int" else "a number"
        unit = f" ({self.unit})" if self.unit else ""
        return f"must be {noun} from {grouped(self.bounds[0])} to {grouped(self.bounds[1])}{unit}"

    def validate(self, value: object) -> Number:
        """Return `value` as a plain Python number of the field's kind.

        Integral floats and NumPy scalars count as integers; strings and booleans are not
        numbers, except that a switch (choices 0 and 1) also takes True and False.

        Raises
        ------
        ConfigError
            Naming the field, the value and what is allowed.
        """
        number: Any = value
        kind = type(value)
        if kind is not float and kind is not int:  # the usual two skip the slow ABC checks
            number = _plain(value)
            if isinstance(number, bool) and self.choices == (0, 1):
                number = int(number)
            elif isinstance(number, bool) or not isinstance(number, Real):
                raise ConfigError(self.name, value, self.allowed)
        low, high = self.bounds
        # Bounds before conversion: NaN fails them and huge integers never overflow.
        if not low <= number <= high:
            raise ConfigError(self.name, value, self.allowed)
        result = int(number) if self.kind == "int" else float(number)
        if (self.kind == "int" and result != number) or (
            self.choices and result not in self.choices
        ):
            raise ConfigError(self.name, value, self.allowed)
        return result

    def slider_values(self) -> list[Number]:
        """Return the value at each slider position, rising, powers of two included."""
        if self.choices:
            return list(self.choices)
        low, high = self.slider
        if self.scale == "linear":
            return list(range(int(low), int(high) + 1))
        octaves = round(math.log2(high / low))
        raw = [low * 2 ** (i / 16) for i in range(16 * octaves + 1)]
        if self.kind == "int":
            return sorted({_round_to(value, 3) for value in raw})
        return [value if i % 16 == 0 else float(f"{value:.3g}") for i, value in enumerate(raw)]

    def neighbours(self, value: Number) -> list[Number]:
        """Return the values one slider position above and below a value, where there are some."""
        values = self.slider_values()
        above = [other for other in values if other > value][:1]
        return above + [other for other in values if other < value][-1:]


def _round_to(value: float, bits: int) -> int:
    """Round to a whole number of `bits` + 1 significant bits: 1, 2, … 16, 18, 20 …."""
    step: int = 2 ** max(0, math.floor(math.log2(value)) - bits)
    return round(value / step) * step


def _plain(value: object) -> Any:
    """Return a number or boolean as Python's own type; None for anything else.

    NumPy scalars have to be converted before they meet a bound: comparing casts the bound to
    the scalar's type, and in a float16 every large one is infinity.
    """
    if isinstance(value, Real) or type(value).__name__ == "bool":
        return value.item() if hasattr(value, "item") else value
    return None


FIELDS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field(
            "model_params_b", "Parameters (B)", "10⁹ parameters",
            "Parameters of the model, in billions.",
            "Model", "float", 8.0, (0.001, 100_000), slider=(0.125, 2048),
        ),
        Field(
            "num_gpus", "GPUs", "",
            "GPUs that train together; the ZeRO stage says what they share.",
            "Cluster", "int", 8, (1, 1_000_000), slider=(1, 2048),
        ),
        Field(
            "gpu_memory_gb", "GPU memory", "10⁹ bytes",
            "Memory of one GPU (HBM), as it is sold.",
            "Cluster", "float", 80.0, (0.1, 100_000), slider=(8, 512),
        ),
        Field(
            "micro_batch", "Micro-batch", "sequences",
            "Sequences that one GPU processes at a time.",
            "Batch", "int", 4, (1, 65_536), slider=(1, 128),
        ),
        Field(
            "seq_length", "Sequence", "tokens",
            "Tokens in one sequence.",
            "Batch", "int", 4096, (1, 2**24), slider=(256, 262_144),
        ),
        Field(
            "num_layers", "Layers", "",
            "Transformer layers.",
            "Model", "int", 32, (1, 10_000), slider=(1, 160), scale="linear",
        ),
        Field(
            "hidden_dim", "Hidden size", "",
            "Width of the residual stream.",
            "Model", "int", 4096, (1, 2**20), slider=(256, 65_536),
        ),
        Field(
            "precision_bits", "Precision", "bits",
            "Bits of one weight and of one gradient; the optimizer keeps fp32 states.",
            "Training", "float", 16.0, (8, 32), choices=(8, 16, 32),
        ),
        Field(
            "zero_stage", "ZeRO stage", "",
            "What the GPUs share: 0 nothing, 1 optimizer states, 2 also gradients, "
            "3 also weights (FSDP).",
            "Training", "int", 3, (0, 3), choices=(0, 1, 2, 3),
        ),
        Field(
            "grad_ckpt", "Checkpointing", "",
            "Activation checkpointing: keep one input per layer, recompute the rest.",
            "Training", "int", 1, (0, 1), choices=(0, 1),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class TrainingConfig:
    """One training step to size: the ten published inputs, validated.

    Missing fields take the defaults, which are the published reference request.
    See `FIELDS` for the unit, the bounds and the meaning of each.

    Raises
    ------
    ConfigError
        Where a value isn't allowed.
    """

    model_params_b: float = 8.0
    num_gpus: int = 8
    gpu_memory_gb: float = 80.0
    micro_batch: int = 4
    seq_length: int = 4096
    num_layers: int = 32
    hidden_dim: int = 4096
    precision_bits: float = 16.0
    zero_stage: int = 3
    grad_ckpt: int = 1

    def __post_init__(self) -> None:
        values = self.__dict__  # frozen: normalised values are written past __setattr__
        for name, field in FIELDS.items():
            values[name] = field.validate(values[name])

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> TrainingConfig:
        """Build a config from a mapping, refusing names that aren't fields.

        Raises
        ------
        ConfigError
            For an unknown name (with the nearest known one) or a bad value.
        """
        check_names(values)
        return cls(**values)  # type: ignore[arg-type]  # validated in __post_init__

    def replace(self, **changes: object) -> TrainingConfig:
        """Return a copy with some fields changed; raises `ConfigError` as `from_mapping`."""
        check_names(changes)
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Number]:
        """Return the ten inputs in the published order."""
        return {name: getattr(self, name) for name in FIELDS}


class Inputs(TypedDict, total=False):
    """The ten inputs as keywords, for type checkers; `FIELDS` says what each accepts."""

    model_params_b: Given
    num_gpus: Given
    gpu_memory_gb: Given
    micro_batch: Given
    seq_length: Given
    num_layers: Given
    hidden_dim: Given
    precision_bits: Given
    zero_stage: Given
    grad_ckpt: Given


def takes(keywords: type) -> Callable[[F], F]:
    """Show the keywords of a `TypedDict` in the signature of a function that takes them as ``**``.

    Type checkers read ``Unpack``; notebooks complete, and `help` shows, what the signature names.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *own, _rest = signature.parameters.values()
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=...,
                annotation=getattr(kind, "__forward_arg__", kind),
            )
            for name, kind in keywords.__annotations__.items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *more]
        )
        return function

    return decorate


def check_names(names: Iterable[object], others: Iterable[str] = ()) -> None:
    """Raise `ConfigError` for the first name that isn't one of the ten fields.

    `others` are what else is accepted where the names were given, for the message.
    """
    for name in names:
        if name not in FIELDS:
            known = (*FIELDS, *others)
            allowed = f"must be one of {', '.join(known)}{nearest(name, known)}"
            raise ConfigError("unknown field", name, allowed)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a request body (no field is required)."""
    properties: dict[str, Any] = {}
    for field in FIELDS.values():
        kind: str | list[str] = "integer" if field.kind == "int" else "number"
        limits: dict[str, Any] = (
            {"enum": list(field.choices)}
            if field.choices
            else {"minimum": field.bounds[0], "maximum": field.bounds[1]}
        )
        if field.choices == (0, 1):  # a switch, as in Field.validate
            kind, limits = ["integer", "boolean"], {"enum": [0, 1, False, True]}
        properties[field.name] = {
            "type": kind,
            "title": field.label,
            "description": field.help + (f" Unit: {field.unit}." if field.unit else ""),
            "default": field.default,
            **limits,
        }
    return {
        "type": "object",
        "title": "TrainingConfig",
        "properties": properties,
        "additionalProperties": False,
    }


# The dataclass repeats names and defaults so that editors and type checkers see them.
assert {f.name: f.default for f in fields(TrainingConfig)} == {  # noqa: S101
    f.name: f.default for f in FIELDS.values()
}
