"""What a rule of validity is: a condition with a name, a message, and what would grant it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmem.config import ConfigError

if TYPE_CHECKING:
    from trainmem.transformer.architecture import Architecture
    from trainmem.transformer.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a plan.

    Attributes
    ----------
    name
        What it says, in a few words.
    fields
        The options that it is about. A refusal names the first; a remedy changes one of them,
        tried in this order.
    broken
        Whether a plan breaks it.
    message
        What is wrong: the options, their values, and what is covered.
    grants
        Values that keep the rule, by option, the best first; others are tried after them.
    """

    name: str
    fields: tuple[str, ...]
    broken: Callable[[Plan], bool]
    message: Callable[[Plan], str]
    grants: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRule:
    """One condition on an architecture and a plan; attributes as of :class:`Rule`."""

    name: str
    fields: tuple[str, ...]
    broken: Callable[[Architecture, Plan], bool]
    message: Callable[[Architecture, Plan], str]


class NotCovered(ConfigError):
    """A request that the architecture-aware model doesn't cover, or that contradicts itself.

    Parameters
    ----------
    reason : str
        Which option, its value, and what is covered.
    field : str
        The option, or the input.
    """

    def __init__(self, reason: str, field: str = "plan") -> None:
        ValueError.__init__(self, reason)
        self.field = field
        self.value = None
        self.allowed = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.field)
