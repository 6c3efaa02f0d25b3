"""What reading a configuration gives, and the book in which every key is accounted for once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, time
from fnmatch import fnmatchcase
from numbers import Real
from types import MappingProxyType
from typing import Any

from trainmem.config import ConfigError, TrainingConfig
from trainmem.transformer.architecture import Architecture
from trainmem.transformer.inputs import SHARED, derived_inputs, inputs_of
from trainmem.transformer.options import OPTIONS
from trainmem.transformer.plan import Plan
from trainmem.words import describe

#: Value that means "the trainer decides" in DeepSpeed's files.
AUTO = "auto"

#: Reason → keys, separated by blanks. Of what is ignored, `section.*` stands for a whole section
#: that is about something else than the step, and `*.key` for a key that has stood in several;
#: any other prefix might swallow a key that matters.
Reasons = Mapping[str, str]

#: Why a key that no table has is not supported.
UNKNOWN = "unknown key: it may change memory"

#: Levels to which a configuration may be nested.
MAX_DEPTH = 10

#: What the values of parsed JSON, TOML and YAML are.
PLAIN = (str, int, float, bool, type(None), date, time)

#: Values by which a switch or a size says "not used".
OFF = ("none", "false", "0", "0.0", "", "[]", "{}", "()", "no", "off", "disabled", "disable", "-1")


@dataclass(frozen=True)
class Reading:
    """A configuration read: how the step is run, and what became of every key.

    Attributes
    ----------
    format
        `deepspeed`, `accelerate`, `trainer`, `torchtitan` or `megatron`.
    plan
        How the step is run.
    inputs
        Those of the ten inputs that the configuration sets: `TrainingConfig(**reading.inputs)`.
    used
        Key → what it became.
    ignored
        Key → why it doesn't affect memory.
    unsupported
        Key → why what it asks for is not modelled, so that the answer lacks its effect; also keys
        that are not known, and one whose absence asks for it.
    assumed
        Option of the plan → why it has its value although no key sets it.
    architecture
        The model, where the configuration gives or names one that is known.
    """

    format: str
    plan: Plan
    inputs: Mapping[str, int | float]
    used: Mapping[str, str]
    ignored: Mapping[str, str]
    unsupported: Mapping[str, str]
    assumed: Mapping[str, str] = field(default_factory=dict)
    architecture: Architecture | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Mapping):
                object.__setattr__(self, f.name, MappingProxyType(dict(value)))

    def training_config(self, **changes: Any) -> TrainingConfig:
        """Return the ten inputs that go with the plan, assumptions included.

        Parameters
        ----------
        **changes
            Inputs that the configuration doesn't have, such as `gpu_memory_gb`.

        Raises
        ------
        ConfigError
            For an input out of its bounds.
        """
        everything = _inputs(self.plan, set(OPTIONS), self.architecture)
        return TrainingConfig(**{**everything, **changes})

    def __str__(self) -> str:
        """Return the report as lines of text, one for every key."""
        lines = [f"{self.format} configuration"]
        for title in ("used", "unsupported", "ignored", "assumed"):
            entries: Mapping[str, str] = getattr(self, title)
            if entries:
                lines.append(f"{title}:")
                lines += [f"  {key}: {text}" for key, text in entries.items()]
        return "\n".join(lines)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; an empty mapping is a leaf.

    Raises
    ------
    ConfigError
        For a key that is not a string, a value that no JSON, TOML or YAML has, or nesting deeper
        than any real file's.
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ConfigError(f"{prefix}{describe(key)}", value, "keys must be strings")
        if prefix.count(".") > MAX_DEPTH:
            raise ConfigError(prefix + key, value, "must not be nested deeper than ten levels")
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{prefix}{key}.")
        else:
            leaf = _own_type(value)
            leaves[prefix + key] = leaf
            _check_plain(prefix + key, leaf)
    return leaves


def _own_type(value: Any) -> Any:
    """Return a number of NumPy's as Python's own, and anything else as it is."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


def _check_plain(key: str, value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(key, value, "must not be nested deeper than ten levels")
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        for one in value:
            _check_plain(key, one, depth + 1)
    elif not isinstance(value, PLAIN):
        raise ConfigError(key, value, "must be a number, a switch, text, or a list of those")


@dataclass
class Account:
    """Accounts for every key of one configuration, each exactly once.

    Parameters
    ----------
    leaves
        Values by full key.
    given
        Options of the plan that the caller sets; they win over the configuration.
    prefix
        Put before every key that the methods are given (see :meth:`under`).

    Raises
    ------
    TypeError
        For a given name that is not an option of the plan.
    """

    leaves: Mapping[str, Any]
    given: Mapping[str, Any]
    prefix: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wishes: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if name not in OPTIONS:
                raise TypeError(
                    f"{describe(name)} is not an option of the plan; "
                    f"choose from {', '.join(OPTIONS)}"
                )
            OPTIONS[name].check(value)

    def under(self, prefix: str) -> Account:
        """Return the same account, with `prefix` put before every key."""
        return replace(self, prefix=self.prefix + prefix)

    # Values

    def get(self, key: str, default: Any = None) -> Any:
        """Return a raw value; `null` counts as absent."""
        value = self.leaves.get(self.prefix + key)
        return default if value is None else value

    def integer(self, key: str, low: int = 1, high: int = 2**63) -> int | None:
        """Return a whole number, also one written `5e8` or `"8"`; None where absent or "auto"."""
        value = self.get(key)
        if value is None or value == AUTO:
            return None
        number: Any = value
        if isinstance(value, str):
            try:
                number = float(value) if len(value) < 40 else None
            except ValueError:
                number = None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            upper = f" to {high}" if high < 2**63 else " up"
            raise ConfigError(self.prefix + key, value, f"must be a whole number from {low}{upper}")
        return number

    def flag(self, key: str) -> bool | None:
        """Return a switch, also one written `"yes"` or `"false"`; None where absent or "auto"."""
        value = self.get(key)
        if value is None or value == AUTO:
            return None
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise ConfigError(self.prefix + key, value, "must be true or false")
        return words[str(value).lower()]

    def choice(self, key: str, choices: Mapping[str, Any] | tuple[str, ...]) -> str | None:
        """Return one of `choices` regardless of case, or None where absent or "auto"."""
        value = self.get(key)
        if value is None or value == AUTO:
            return None
        for choice in choices:
            if str(value).lower() == choice.lower():
                return choice
        raise ConfigError(self.prefix + key, value, f"must be one of {', '.join(choices)}")

    # Accounts

    def use(self, *keys: str, **options: Any) -> None:
        """Account for those of `keys` that are there as the source of `options`."""
        self.options |= options
        for key in self._open(keys):
            self.claims[key] = tuple(options)
            for name, value in options.items():
                self.assumed.pop(name, None)
                try:
                    OPTIONS[name].check(value)
                except ValueError as error:
                    raise ConfigError(key, self.leaves[key], str(error)) from None

    def wish(self, *keys: str, **options: Any) -> None:
        """Like :meth:`use`, but where the plan refuses `options`, `keys` are not supported."""
        for key in self._open(keys):
            self.wishes[key] = options
            self.claims[key] = tuple(options)

    def note(self, *keys: str, text: str) -> None:
        """Account for `keys` as used for something that is not an option of the plan."""
        self.notes |= dict.fromkeys(self._open(keys), text)

    def ignore(self, *keys: str, why: str) -> None:
        """Account for `keys` as without effect on memory."""
        self.ignored |= dict.fromkeys(self._open(keys), why)

    def refuse(self, *keys: str, why: str) -> None:
        """Account for `keys` as not supported."""
        self.unsupported |= dict.fromkeys(self._open(keys), why)

    def miss(self, key: str, why: str) -> None:
        """List a key as not supported, also one that isn't there: its absence asks for it."""
        self.unsupported[self.prefix + key] = why

    def assume(self, why: str, **options: Any) -> None:
        """Set what no key says."""
        self.options |= options
        self.assumed |= dict.fromkeys(options, why)

    def value(self, option: str) -> Any:
        """Return an option of the plan as it stands: given, set, or its default."""
        default = OPTIONS[option].default
        return self.given.get(option, self.options.get(option, default))

    def count_gpus(self, found: int | None = None, *keys: str, replicas: int = 1) -> int:
        """Settle `num_gpus`: given, or `found` in `keys`, or 8, or what `replicas` need."""
        if found is not None:
            self.use(*keys, num_gpus=found)
        elif "num_gpus" not in self.options:
            axes = self.value("cp"), self.value("ep")
            multiple = self.value("tp") * self.value("pp") * math.lcm(*axes)
            least = max(replicas, math.ceil(OPTIONS["num_gpus"].default / multiple)) * multiple
            self.assume("the launcher decides; give num_gpus=", num_gpus=least)
        number: int = self.value("num_gpus")
        return number

    def replicated(self) -> str:
        """Return the sharding that shards nothing: none, or ddp where there are replicas."""
        return "none" if self.value("num_gpus") <= self.value("tp") * self.value("pp") else "ddp"

    def rest(self, ignored: Reasons, unsupported: Reasons) -> None:
        """Account for all keys under the prefix that are still open.

        Keys of `unsupported` are so only where they are switched on: a key written `key=value`
        there is off at that value too. What neither table has may change memory, and is not
        supported; `null` is as good as absent.
        """
        refused = [
            (key.partition("=")[0], key.partition("=")[2].lower(), why)
            for why, keys in unsupported.items()
            for key in keys.split()
        ]
        free = [(key, why) for why, keys in ignored.items() for key in keys.split()]
        for full in [key for key in self.leaves if key.startswith(self.prefix)]:
            key = full.removeprefix(self.prefix)
            value = str(self.leaves[full]).lower()
            if not self._open((key,)):
                continue
            for pattern, neutral, why in refused:
                if fnmatchcase(key, pattern):
                    off = value in OFF or value in neutral.split("|") or value == AUTO
                    (self.ignore if off else self.refuse)(key, why="not used" if off else why)
                    break
            else:
                reasons = (why for pattern, why in free if fnmatchcase(key, pattern))
                known = next(reasons, None)
                if known is None and self.leaves[full] is None:
                    known = "null, as good as absent"
                if known is not None:
                    self.ignore(key, why=known)
                else:
                    self.refuse(key, why=UNKNOWN)

    def _open(self, keys: tuple[str, ...]) -> list[str]:
        done = (self.claims, self.notes, self.ignored, self.unsupported)
        full = (self.prefix + key for key in keys)
        return [k for k in full if k in self.leaves and not any(k in book for book in done)]

    # The end

    def close(self, format: str, architecture: Architecture | None = None) -> Reading:
        """Settle the plan and return the reading.

        Raises
        ------
        ValueError
            For a combination that the plan does not cover, in the plan's words.
        """
        plan = Plan(**(self.options | dict(self.given)))
        refused: dict[str, str] = {}
        for key, options in self.wishes.items():
            kept = {name: value for name, value in options.items() if name not in self.given}
            try:
                plan = replace(plan, **kept)
            except ValueError as error:
                refused[key] = str(error)
        used, ignored = dict(self.notes), dict(self.ignored)
        for key, names in self.claims.items():
            if key in refused:
                continue
            kept_names = [name for name in names if name not in self.given]
            if kept_names:
                used[key] = ", ".join(f"{name} = {getattr(plan, name)!r}" for name in kept_names)
            else:
                ignored[key] = "overridden by " + ", ".join(
                    f"{name}={self.given[name]!r}" for name in names
                )
        said = {name for key, names in self.claims.items() if key in used for name in names}
        return Reading(
            format=format,
            plan=plan,
            inputs=_inputs(plan, said | set(self.given), architecture),
            used=used,
            ignored=ignored,
            unsupported=self.unsupported | refused,
            assumed={
                name: f"{getattr(plan, name)!r}: {why}"
                for name, why in self.assumed.items()
                if name not in self.given and name not in said
            },
            architecture=architecture,
        )


def _inputs(
    plan: Plan, said: set[str], architecture: Architecture | None
) -> dict[str, int | float]:
    """Return those of the ten inputs that are known."""
    out = {} if architecture is None else derived_inputs(architecture)
    inputs = inputs_of(plan)
    return out | {field: inputs[field] for name, (field, _) in SHARED.items() if name in said}
