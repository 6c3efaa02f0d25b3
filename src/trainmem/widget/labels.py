"""What stands on the screen for a name or a value, and refusals in those words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trainmem.config import FIELDS
from trainmem.transformer import OPTIONS
from trainmem.transformer.option import Settings
from trainmem.words import grouped

__all__ = [
    "CHOICE_LABELS",
    "LABELS",
    "changes_in_labels",
    "choice_labels",
    "field_on_screen",
    "in_labels",
]

CHOICE_LABELS: Final[dict[tuple[str, float], str]] = {
    ("precision_bits", 32): "32 bit",
    ("grad_ckpt", 0): "off",
    ("grad_ckpt", 1): "on",
}

LABELS: Final[Mapping[str, str]] = {
    **{name: option.label for name, option in OPTIONS.items()},
    **{name: field.label for name, field in FIELDS.items()},
    "sharding": FIELDS["zero_stage"].label,
    "gpu": FIELDS["gpu_memory_gb"].label,
    "architecture": "Architecture",
    "stack": "Stack",
    "preset": "Preset",
}
"""What stands on the screen for a name."""

_NAMED: Final = re.compile(
    r"""
    (?P<value> '(?P<quoted>[\w.]+)' )
    | \b (?P<name> {} ) \b (?= : | [ ]'[\w.]+' | [ ]\d | [ ](of|needs?|above|must|is|says|and)\b )
    | \b (?P<long> [a-z]+(_[a-z]+)+ ) \b
    """.format("|".join(sorted(LABELS, key=len, reverse=True))),
    re.X,
)


def field_on_screen(field: str) -> str:
    """Return the control at which a refusal of a field is said; "" where there is none."""
    name = field.removeprefix("plan: ")
    shown = name in LABELS and not isinstance(OPTIONS.get(name), Settings)
    return {"sharding": "zero_stage"}.get(name, name) if shown else ""


def in_labels(text: str) -> str:
    """Return a refusal in the words of the screen."""
    text = text.removeprefix("plan: ")
    last = ""

    def write(found: re.Match[str]) -> str:
        nonlocal last
        if found["value"]:
            labels = choice_labels(last) or {}
            for name in OPTIONS if found["quoted"] not in labels else ():
                labels = labels | choice_labels(name)
            label = labels.get(found["quoted"])
            return f"“{label}”" if label else found[0]
        name = found["name"] or found["long"]
        if name not in LABELS:
            return found[0]
        last = name
        return LABELS[name]

    text = _NAMED.sub(write, text)
    return text[:1].upper() + text[1:]


def choice_labels(name: str) -> dict[str, str]:
    """Return what stands on the screen for each choice of an option of the plan."""
    option = OPTIONS.get(name)
    return dict(option.choices) if option else {}


def changes_in_labels(also: Mapping[str, Any]) -> str:
    """Return in words what a choice brought along; nothing where that is nothing."""

    def written(name: str, value: Any) -> str:
        if isinstance(value, tuple):  # settings, which no control sets
            return ", ".join(f"{key} {setting}" for key, setting in value) or "as it has them"
        label = CHOICE_LABELS.get((name, value)) if name in FIELDS else None
        return label or choice_labels(name).get(value) or grouped(value)

    each = [f"{LABELS[name]} → {written(name, value)}" for name, value in also.items()]
    return f"Also changed: {'; '.join(each)}" if each else ""
