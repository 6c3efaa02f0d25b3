"""What is asked of the architecture-aware model: names and options, checked against each other.

The ten inputs stay; an architecture takes three of them over, a plan adds what they don't say,
and a card brings the memory that `torch.cuda` reports for it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from typing import Any, Final, TypedDict

from trainmem.cards import PRESETS, Gpu, find_gpu
from trainmem.config import FIELDS, ConfigError, Given, Inputs, TrainingConfig, check_names
from trainmem.transformer import ARCHITECTURES, OPTIONS, STACKS, Architecture, Option, Plan, stack
from trainmem.transformer.architecture import MAX_NAME
from trainmem.transformer.families.config_json import parse
from trainmem.transformer.inputs import (
    SHARED,
    derived_inputs,
    inputs_of,
    options_of,
    plan_of,
    said_by,
)
from trainmem.transformer.layout import longest_length
from trainmem.transformer.model import TransformerModel
from trainmem.transformer.model_rules import check_model
from trainmem.transformer.option import Settings
from trainmem.transformer.rule import NotCovered
from trainmem.transformer.structure import zero_stage
from trainmem.words import describe, grouped, nearest

__all__ = [
    "CONTROLS",
    "DERIVED",
    "PLAN_OPTIONS",
    "AllInputs",
    "NotCovered",
    "PlanOptions",
    "as_changes",
    "card_of",
    "check_derived",
    "check_plan",
    "check_request",
    "clamped",
    "derived_inputs",
    "find_architecture",
    "read_config",
    "resolve",
    "stack_changes",
    "stack_of",
]


def _own_choices(option: Option) -> tuple[tuple[Any, str], ...]:
    """Return the choices that no input says, and the default."""
    return tuple(
        (value, label)
        for value, label in option.choices
        if value == option.default or said_by(option.name, value) is None
    )


PLAN_OPTIONS: Final[Mapping[str, Option]] = {
    name: replace(option, listed=_own_choices(option)) if name in SHARED else option
    for name, option in OPTIONS.items()
    if len(_own_choices(option)) > 1 or name not in SHARED
}
"""The options of a plan that the ten inputs don't say, with the choices that they don't."""


CONTROLS: Final[Mapping[str, Option]] = {
    name: option for name, option in PLAN_OPTIONS.items() if not isinstance(option, Settings)
}
"""Those of them that a control can set: choices and numbers."""


class PlanOptions(TypedDict, total=False):
    """The same options as keywords, for type checkers; `OPTIONS` says what each accepts."""

    precision: str
    optimizer: str
    attention: str
    loss_head: str
    loss_chunk: Given
    checkpointing: str
    accumulation: Given
    no_sync: bool
    keep_gradients: bool
    wrapping: str
    reduce_dtype: str
    dropout: bool
    use_cache: bool
    varying_lengths: bool
    framework: str
    kernels: str
    tp: Given
    sequence_parallel: bool
    pp: Given
    vpp: Given
    cp: Given
    ep: Given
    expert_load: Given
    lora_rank: Given
    lora_targets: str
    quantization: str
    offload: str
    settings: Mapping[str, Any]


class AllInputs(Inputs, PlanOptions, total=False):
    """All that an answer depends on, as keywords."""

    gpu: str
    architecture: Architecture | str
    plan: Plan | Mapping[str, Any]


DERIVED: Final = ("model_params_b", "num_layers", "hidden_dim")
"""The inputs that follow from an architecture."""


def find_architecture(value: Architecture | str) -> Architecture:
    """Return an architecture, or the preset of that name, whatever its case.

    One of your own never goes by the name of a preset: it is that preset, or gets a name apart.

    Raises
    ------
    ConfigError
        For an unknown name.
    """
    known = {name.lower(): found for name, found in ARCHITECTURES.items()}
    if isinstance(value, Architecture):
        preset = known.get(value.name.lower())
        if preset is None:
            return value
        same = replace(value, name=preset.name, source=preset.source) == preset
        return preset if same else replace(value, name=f"{value.name} (own)")
    if not isinstance(value, str) or value.lower() not in known:
        names = ", ".join(ARCHITECTURES)
        allowed = f"must be an Architecture or one of {names}{nearest(value, ARCHITECTURES)}"
        raise ConfigError("architecture", value, allowed)
    return known[value.lower()]


def read_config(source: Mapping[str, Any] | str | PathLike[str], name: str = "") -> Architecture:
    """Read a Hugging Face `config.json`: a mapping, its text, or the path of the file.

    Raises
    ------
    ConfigError
        Naming the field that is missing, wrong or not covered.
    """
    try:
        if isinstance(source, str) and source.lstrip().startswith("{"):
            source = parse(source)
        if isinstance(source, Mapping):
            name = name or _name_of(source)
        return Architecture.from_config(source, _shown(name) or None)
    except OSError as error:  # which names the whole path
        raise NotCovered(f"config.json: {describe(str(source))}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise NotCovered(f"config.json: {error}") from None


def _name_of(config: Mapping[str, Any]) -> str:
    """Return what a config calls its model: the last part of its path, else its family."""
    path = config.get("_name_or_path")
    if isinstance(path, str) and path.strip("/"):
        return path.strip("/").rpartition("/")[2][:MAX_NAME]
    return f"custom {config.get('model_type', 'model')}"[:MAX_NAME]


def _shown(name: str) -> str:
    """Return a name with what can't be shown, or sent as UTF-8, replaced."""
    whole = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in whole).split())


def check_plan(options: object) -> dict[str, Any]:
    """Return the options of a plan that differ from the defaults, each checked by itself.

    Raises
    ------
    ConfigError
        For an unknown option (with the nearest known one) or a bad value.
    """
    if not isinstance(options, Mapping):
        raise ConfigError("plan", options, "must be a Plan, or a dict of options")
    options = _plain(options)
    checked: dict[str, Any] = {}
    for name, value in options.items():
        field = said_by(name, value)
        if field is not None and value != OPTIONS[name].default:
            raise ConfigError(f"plan: {name}", value, f"{field} says it: change that input")
        if name not in PLAN_OPTIONS:
            allowed = f"must be one of {', '.join(PLAN_OPTIONS)}{nearest(name, PLAN_OPTIONS)}"
            raise ConfigError("unknown option", name, allowed)
        checked[name] = PLAN_OPTIONS[name].check(value)
    return options_of(checked)


def _plain(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return options with each value in its option's own type: foreign ones can't be compared.

    Raises
    ------
    ConfigError
        For a bad value.
    """
    return {n: OPTIONS[n].check(v) if n in OPTIONS else v for n, v in options.items()}


def check_derived(architecture: Architecture, name: str, value: object) -> None:
    """Raise `ConfigError` where an input that follows from the architecture is another."""
    derived = derived_inputs(architecture)
    if name in derived and FIELDS[name].validate(value) != derived[name]:
        is_now = grouped(derived[name])
        raise ConfigError(name, value, f"it is {is_now}, derived from {architecture.name}")


def check_request(
    config: TrainingConfig, architecture: Architecture, options: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` where the combination isn't covered."""
    most = longest_length(architecture)
    if most is not None and config.seq_length > most:
        allowed = f"must be at most {grouped(most)} with {architecture.name}"
        raise ConfigError("seq_length", config.seq_length, allowed)
    check_model(architecture, plan_of(config, options))


def clamped(architecture: Architecture, seq_length: int) -> int:
    """Return a sequence length, or the longest that the architecture takes."""
    return min(seq_length, longest_length(architecture) or seq_length)


def resolve(
    config: TrainingConfig | None,
    changes: Mapping[str, object],
    architecture: Architecture | str,
    plan: Plan | Mapping[str, Any] | None = None,
    gpu: str | None = None,
) -> tuple[TrainingConfig, TransformerModel]:
    """Return the config and the model of a request, as `trainmem.simulate` documents it.

    Raises
    ------
    ConfigError
        For a bad name or value, an input that contradicts the architecture, the plan or the card,
        or a combination that isn't covered.
    """
    check_names(changes)
    found = find_architecture(architecture)
    for name, value in changes.items():
        check_derived(found, name, value)
    gpu = gpu if gpu is not None else card_of(config, changes)
    card = None if isinstance(gpu, str) and not gpu else find_gpu(gpu)
    if card is not None:
        changes = with_memory(changes, card)
    if config is None:
        length = FIELDS["seq_length"].default
        config = TrainingConfig(seq_length=clamped(found, int(length)))
        if isinstance(plan, Plan):
            config = config.replace(**inputs_of(plan))
    config = config.replace(**{**changes, **derived_inputs(found)})
    options = _options(config, plan)
    check_request(config, found, options)
    usable = None if card is None else card.usable_gib
    return config, TransformerModel(found, options, usable, gpu)


def card_of(config: TrainingConfig | None, changes: Container[str]) -> str:
    """Return the label of the card that a request is for where it names none, or "".

    A preset has a card, and no request at all is the first one. Any other size was typed, and is
    of no card: it counts as it is, 10⁹ bytes each GB.
    """
    if "gpu_memory_gb" in changes:
        return ""
    return next((p.gpu for p in PRESETS if config is None or config == p.config), "")


def with_memory(changes: Mapping[str, object], card: Gpu) -> dict[str, object]:
    """Return changes with the nominal memory of a card, or raise `ConfigError` for another."""
    memory = changes.get("gpu_memory_gb", card.nominal_gb)
    if memory != card.nominal_gb:
        allowed = f"must be {card.nominal_gb:g} for {card.label}, or leave out the card"
        raise ConfigError("gpu_memory_gb", memory, allowed)
    return {**changes, "gpu_memory_gb": card.nominal_gb}


def as_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a plan as changes of what says them: one of the ten inputs, or the option.

    An option that an input would overrule brings that input along.
    """
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name == "sharding":
            changes["zero_stage"] = zero_stage(str(value))
        elif name == "precision":
            changes["precision_bits"] = 32 if value == "fp32" else 16
        elif name == "checkpointing":
            changes["grad_ckpt"] = int(value != "none")
        elif name in FIELDS:
            changes[name] = value
        own = PLAN_OPTIONS.get(name)
        if own and (value == own.default or said_by(name, value) is None):
            changes[name] = value
    return changes


def stacks_lacking(architecture: Architecture) -> Mapping[str, str]:
    """Return the training stacks that an architecture can't be run with, each with the reason."""
    return _lacking(architecture, tuple(STACKS))


@lru_cache(maxsize=64)
def _lacking(architecture: Architecture, stacks: tuple[str, ...]) -> Mapping[str, str]:
    found = {}
    for name in stacks:
        try:
            check_model(architecture, stack(name))
        except ValueError as error:
            found[name] = str(error)
    return found


def stack_changes(name: object) -> dict[str, Any]:
    """Return what choosing a training stack changes; raises `ConfigError` for an unknown one."""
    if not isinstance(name, str) or name not in STACKS:
        raise ConfigError("stack", name, "must be one of " + ", ".join(STACKS))
    return as_changes(STACKS[name].options)


def stack_of(plan: Plan) -> str:
    """Return the name of the training stack that a plan is, the one that says most; "" for none."""
    fitting = [
        stack
        for stack in STACKS.values()
        if all(
            getattr(plan, name) == value or (name == "no_sync" and plan.sharding == "none")
            for name, value in stack.options.items()
        )
    ]
    return max(fitting, key=lambda stack: len(stack.options)).name if fitting else ""


def _options(config: TrainingConfig, plan: Plan | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that the inputs don't say; those that they do must agree with them."""
    if plan is None or isinstance(plan, Plan):
        return options_of(plan or {})
    if not isinstance(plan, Mapping):
        return check_plan(plan)
    plan = _plain(plan)
    own = check_plan({n: v for n, v in plan.items() if said_by(n, v) is None})
    said = plan_of(config, own)
    for name, value in plan.items():
        field = said_by(name, value)
        if field is not None and value != getattr(said, name):
            is_now = f"{field} is {getattr(config, field):g}: change that input"
            raise ConfigError(f"plan: {name}", value, is_now)
    plain = plan_of(config, {})
    return {name: value for name, value in own.items() if value != getattr(plain, name)}
