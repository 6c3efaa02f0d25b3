"""The inputs as traits: each checked by the table that it comes from, none coerced from text."""

from __future__ import annotations

from typing import Any, Final

from traitlets import Dict, TraitType, Unicode

from trainmem.config import FIELDS, ConfigError
from trainmem.request import AllInputs, check_plan
from trainmem.transformer import Plan
from trainmem.widget.state import check_gpu

__all__ = ["OF_ANY_WIDGET", "Chosen", "Gpu", "Input", "LockedTrait", "Options", "WidgetInputs"]


class LockedTrait(TraitType[Any, Any]):
    """A trait that one thread sets at a time, so that no change is lost to another's."""

    def set(self, obj: Any, value: Any) -> None:
        """Set the value, observers included; a good one clears `error`."""
        with obj._lock:
            super().set(obj, value)
            obj.set_trait("error", "")


class Input(LockedTrait):
    """One of the ten inputs: validated by the field table, never coerced from a string."""

    def __init__(self, name: str) -> None:
        self.field = FIELDS[name]
        super().__init__(self.field.default, help=f"{self.field.help} {self.field.allowed}.")
        self.tag(sync=True, kind="input")

    def validate(self, obj: Any, value: Any) -> int | float:
        """Return the value as the field's plain number, or raise `ConfigError`."""
        with obj.refusing():
            number: int | float = obj.check_input(self.field.name, value)
            return number


class Gpu(LockedTrait, Unicode[str, str]):
    """Label of a card in the GPU table, or "" for a size that was typed."""

    def validate(self, obj: Any, value: Any) -> str:
        """Return the label, or raise `ConfigError` with the known ones."""
        with obj.refusing():
            return check_gpu(value)


class Chosen(LockedTrait, Unicode[str, str]):
    """Name of an architecture, or "" for the reduced-order model."""

    def validate(self, obj: Any, value: Any) -> str:
        """Return the preset's own spelling, or raise `ConfigError` with the known names."""
        with obj.refusing():
            found = obj.find(value)
            return found.name if found is not None else ""


class Options(LockedTrait, Dict):
    """The options of a plan that differ from the defaults."""

    def validate(self, obj: Any, value: Any) -> dict[str, Any]:
        """Return the options, each checked by itself, or raise `ConfigError`."""
        with obj.refusing():
            if isinstance(value, Plan):
                allowed = "must be a dict of options; update(plan=…) takes a whole Plan"
                raise ConfigError("plan", value, allowed)
            return check_plan(value)


class WidgetInputs(AllInputs, total=False):
    """What the widget takes: the inputs, and what every widget of ipywidgets does."""

    layout: Any
    tooltip: str | None
    tabbable: bool | None


OF_ANY_WIDGET: Final = tuple(
    n for n in WidgetInputs.__annotations__ if n not in AllInputs.__annotations__
)
