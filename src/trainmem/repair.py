"""What else has to change so that options of a plan can be had: found by the rules they break."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from trainmem.transformer import OPTIONS, Plan
from trainmem.transformer.plan import gpu_multiple, unchecked
from trainmem.transformer.rule import Rule
from trainmem.transformer.rules import broken_by

__all__ = ["brought_along"]


def brought_along(plan: Plan, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fewest other options that have to change so that those wanted can be had.

    The options that a broken rule is about are tried first, with the values that grant it; then
    any. None where no such change is found.
    """
    start = asdict(plan) | dict(wanted)
    if _refusal(start) is None:
        return {}
    found = _search(start, wanted, anything=False)
    return found if found is not None else _search(start, wanted, anything=True)


MAX_TRIES: Final = 2000
"""Plans that are tried at most, some 50 µs each."""


class Refusal(NamedTuple):
    """What stands in the way of a plan: the rule, and its words."""

    rule: Rule
    words: str


def _search(
    start: Mapping[str, Any], wanted: Mapping[str, Any], *, anything: bool
) -> dict[str, Any] | None:
    first = _refusal(start)
    if first is None:
        return {}
    waiting: deque[tuple[dict[str, Any], Rule]] = deque([({}, first.rule)])
    seen, tries = {first.words}, 0
    while waiting and tries < MAX_TRIES:
        also, rule = waiting.popleft()
        for name, value in _candidates({**start, **also}, rule, anything=anything):
            if name in wanted or name in also:
                continue
            more = {**also, name: value}
            now, tries = _refusal({**start, **more}), tries + 1
            if now is None:
                return more
            if now.words not in seen:  # another refusal: a step on the way, perhaps
                seen.add(now.words)
                waiting.append((more, now.rule))
    return None


def _refusal(options: Mapping[str, Any]) -> Refusal | None:
    plan = unchecked(options)
    rule = broken_by(plan)
    return None if rule is None else Refusal(rule, rule.message(plan))


def _candidates(
    options: Mapping[str, Any], rule: Rule, *, anything: bool
) -> Iterator[tuple[str, Any]]:
    """Yield other values of the options that a rule is about, those that grant it first."""
    others = [
        name for name, option in OPTIONS.items() if option.choices and name not in rule.fields
    ]
    for name in [*rule.fields, *(others if anything else ())]:
        best = rule.grants.get(name, ())
        values = [*best, *(value for value, _ in OPTIONS[name].choices if value not in best)]
        if name == "num_gpus":
            multiple = gpu_multiple(options)
            values = [-(-options[name] // multiple) * multiple]
        elif name == "accumulation":
            values = [-(-options[name] // options["pp"]) * options["pp"]]
        elif name in SMALLEST:
            values = [SMALLEST[name], OPTIONS[name].default]
        yield from ((name, value) for value in values if value != options[name])


SMALLEST: Final = {"tp": 2, "pp": 2, "vpp": 2, "cp": 2, "ep": 2, "lora_rank": 8}
"""The usual first step of a number that others may need to be above its default."""
