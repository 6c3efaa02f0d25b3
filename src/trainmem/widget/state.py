"""All that an answer depends on, and how each change leads from one state to the next.

Nothing here has an effect: a state is a value, so that a refused change leaves the last one whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trainmem.cards import GPUS, PRESETS
from trainmem.config import FIELDS, ConfigError, TrainingConfig, check_names
from trainmem.memory_model import MemoryModel
from trainmem.reduced import REDUCED
from trainmem.request import (
    PLAN_OPTIONS,
    check_derived,
    check_plan,
    check_request,
    clamped,
    derived_inputs,
    find_architecture,
    stack_changes,
    stack_of,
)
from trainmem.transformer import Architecture, Plan, TransformerModel
from trainmem.transformer.inputs import inputs_of, options_of, plan_of

__all__ = ["EXTRA_INPUTS", "State", "check_gpu", "next_state"]

NOTHING: Final[Mapping[str, Any]] = {}
GPU_LABELS: Final = {gpu.label: gpu for gpu in GPUS}

EXTRA_INPUTS: Final = ("gpu", "architecture", "plan")
"""Inputs beside the ten."""


def check_gpu(value: object) -> str:
    """Return the label of a known card, or "", or raise `ConfigError`."""
    if not isinstance(value, str) or (value and value not in GPU_LABELS):
        raise ConfigError("gpu", value, 'must be "" or one of ' + ", ".join(GPU_LABELS))
    return value


@dataclass(frozen=True)
class State:
    """All that the answer depends on: what undo returns to.

    Attributes
    ----------
    config : TrainingConfig
        The ten inputs.
    gpu : str
        Label of the card, or "".
    architecture : Architecture or None
        The architecture, or None for the reduced-order model.
    options : dict
        Options of the plan that differ from the defaults; kept while no architecture is chosen.
    replaced : dict
        Inputs that choosing the architecture changed: name, (value before, value it gave).
    stacked : dict
        The same of inputs and options that choosing the training stack changed.
    """

    config: TrainingConfig = field(default_factory=TrainingConfig)
    gpu: str = PRESETS[0].gpu
    architecture: Architecture | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    replaced: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    stacked: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def model(self) -> MemoryModel:
        """The memory model that answers."""
        if self.architecture is None:
            return REDUCED
        card = GPU_LABELS.get(self.gpu)
        usable = card.usable_gib if card else None
        return TransformerModel(self.architecture, self.options, usable, self.gpu)


def next_state(
    state: State,
    changes: Mapping[str, Any],
    find: Callable[[Any], Architecture | None],
    also: Mapping[str, Any] = NOTHING,
) -> State:
    """Return the state after some changes, checked as a whole, and what they bring along.

    What a stack or an architecture brought along goes with it. `find` returns the architecture
    of a name.
    """
    plan = changes.get("plan")
    if isinstance(plan, Plan):  # which says some of the ten inputs too
        changes = {**inputs_of(plan), **changes, "plan": options_of(plan)}
    if not {"stack", "architecture"} & changes.keys():
        changes = {**changes, **also}
    options = {n: v for n, v in changes.items() if n in PLAN_OPTIONS}
    named = (*EXTRA_INPUTS, "stack", "preset")
    inputs = {n: v for n, v in changes.items() if n not in named and n not in options}
    check_names(inputs, (*named, *PLAN_OPTIONS))
    if "preset" in changes:
        state = from_preset(state, changes["preset"])
    if "architecture" in changes:
        state = under_architecture(state, find(changes["architecture"]), inputs, also)
    if "stack" in changes:
        state = under_stack(state, changes["stack"], also)
    if state.architecture is not None:
        for name, value in inputs.items():
            check_derived(state.architecture, name, value)
    if "gpu" in changes or inputs:
        chosen = {"gpu": changes["gpu"]} if "gpu" in changes else {}
        config, gpu = with_card(state.config, state.gpu, {**inputs, **chosen})
        state = replace(state, config=config, gpu=gpu)
    if "plan" in changes or options:
        given = check_plan(changes.get("plan", state.options))
        state = replace(state, options=check_plan({**given, **options}))
    if state.architecture is not None:
        check_request(state.config, state.architecture, state.options)
    return state


def under_architecture(
    state: State,
    architecture: Architecture | None,
    inputs: Mapping[str, Any],
    also: Mapping[str, Any] = NOTHING,
) -> State:
    """Return the state under another architecture, or none.

    What the last one replaced returns to what it was, unless it was changed since. What the
    training stack says of the inputs counts under an architecture alone.
    """
    config = given_back(state.config, state.replaced)
    if architecture is None:
        config = given_back(config, state.stacked)
        return replace(state, config=config, architecture=None, replaced={})
    if state.architecture is None:
        again = {n: (given, before) for n, (before, given) in state.stacked.items()}
        config = given_back(config, again)
    given: dict[str, float] = {**derived_inputs(architecture)}
    given |= {n: value for n, value in also.items() if n in FIELDS}
    if "seq_length" not in inputs:
        given["seq_length"] = clamped(architecture, config.seq_length)
    changed = config.replace(**given)
    replaced = {name: (getattr(config, name), getattr(changed, name)) for name in given}
    return replace(state, config=changed, architecture=architecture, replaced=replaced)


def given_back(config: TrainingConfig, taken: Mapping[str, tuple[Any, Any]]) -> TrainingConfig:
    """Return a config with the inputs that something took, unless they were changed since."""
    values = config.to_dict()
    back = {n: before for n, (before, given) in taken.items() if values.get(n) == given}
    return config.replace(**back)


def under_stack(state: State, name: object, also: Mapping[str, Any]) -> State:
    """Return the state under another training stack.

    What the last one changed returns to what it was, unless it was changed since; the options of
    one that came with the plan return to the defaults.
    """
    given = {"settings": (), **stack_changes(name), **also}  # settings are one framework's
    if state.architecture is None:
        raise ConfigError("stack", name, "it needs an architecture")
    defaults = {n: option.default for n, option in PLAN_OPTIONS.items()}
    last = stack_of(plan_of(state.config, state.options))
    came = (stack_changes(last) if last else {}).keys() & defaults.keys() - state.stacked.keys()
    now = {**defaults, **state.options, **state.config.to_dict()}
    back = {n: before for n, (before, value) in state.stacked.items() if now[n] == value}
    kept = {**now, **{n: defaults[n] for n in came}, **back}
    new = {**kept, **given}
    return replace(
        state,
        config=state.config.replace(**{n: new[n] for n in state.config.to_dict()}),
        options=check_plan({n: new[n] for n in defaults}),
        stacked={n: (kept[n], value) for n, value in given.items()},
    )


def from_preset(state: State, name: object) -> State:
    """Return the state that a preset names; under an architecture, that of its own and no plan."""
    found = next((p for p in PRESETS if p.name == name), None)
    if found is None:
        raise ConfigError("preset", name, "must be one of " + ", ".join(p.name for p in PRESETS))
    if state.architecture is None:
        return replace(state, config=found.config, gpu=found.gpu)
    return under_architecture(
        State(found.config, found.gpu), find_architecture(found.architecture), {}
    )


def with_card(
    config: TrainingConfig, gpu: str, changes: Mapping[str, Any]
) -> tuple[TrainingConfig, str]:
    """Return the config and the card after some changes, which may name a card.

    A chosen card brings its memory, unless a size is given too. The card stays while its size
    does; another size was typed, and is of no card.
    """
    inputs = {name: value for name, value in changes.items() if name != "gpu"}
    if "gpu" in changes:
        gpu = check_gpu(changes["gpu"])
        if gpu:
            inputs = {"gpu_memory_gb": GPU_LABELS[gpu].nominal_gb, **inputs}
    config = config.replace(**inputs)
    card = GPU_LABELS.get(gpu)
    return config, gpu if card and card.nominal_gb == config.gpu_memory_gb else ""
