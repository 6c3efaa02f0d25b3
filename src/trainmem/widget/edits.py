"""Changes as a person makes them: with what they bring along, refused in plain words, undone.

No browser, no IPython: the widget is this and what it shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from traitlets import Dict, Int

from trainmem.config import FIELDS, ConfigError, TrainingConfig, once
from trainmem.repair import brought_along
from trainmem.request import PLAN_OPTIONS, NotCovered, as_changes, check_plan
from trainmem.transformer import STACKS
from trainmem.widget.labels import changes_in_labels, field_on_screen, in_labels
from trainmem.widget.state import State, check_gpu, next_state
from trainmem.widget.traits import TrainingMemory

__all__ = ["EditedMemory"]

MAX_UNDO: Final = 100


class EditedMemory(TrainingMemory):
    """A `TrainingMemory` that tells a person what a choice changed beside itself, and undoes it."""

    _told = Dict(help="The field and the words of a refusal; what a choice brought along.").tag(
        sync=True
    )
    _undo = Int(0, help="How many changes can be undone.").tag(sync=True)

    def __init__(self, config: TrainingConfig | None = None, **inputs: Any) -> None:
        self._asked: Mapping[str, Any] = {}
        self._told = {"field": "", "error": "", "also": ""}
        self._before: State | None = None
        self._history: list[State] = []
        super().__init__(config, **inputs)
        self._start = self._state

    def _check_each(self, values: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for the first input that can't have its value."""
        for name, value in values.items():
            if name == "gpu":
                check_gpu(value)
            elif name == "architecture":
                self.find(value)
            elif name == "plan":
                check_plan(value)
            elif name in FIELDS:
                self.check_input(name, value)

    def _edit(self, changes: Any, *, keep_open: bool = False) -> Mapping[str, Any]:
        """Change inputs, with what has to change with them; return what was asked.

        A change that is kept open, one of a drag, isn't undoable by itself.
        """
        if not isinstance(changes, dict):
            raise ConfigError("changes", changes, "must be a mapping of inputs to values")
        length = self.seq_length
        # A control of the plan may show what one of the ten inputs says.
        planned = {n: v for n, v in changes.items() if n in PLAN_OPTIONS}
        asked = {n: v for n, v in changes.items() if n not in planned} | as_changes(planned)
        self._asked = asked
        with self._undoable(keep_open=keep_open):
            try:
                also = self._brought_along(asked, planned)
                with self.refusing():
                    self._change(asked, also)
            finally:
                self._asked = {}
        cut = {"seq_length": self.seq_length} if "architecture" in asked else {}
        if cut and cut["seq_length"] < length:
            also = {**also, **cut}
        if also:
            self._told = {**self._told, "also": changes_in_labels(also)}
        return asked

    def _brought_along(
        self, changes: Mapping[str, Any], planned: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return what has to change with what a person chose from a list, so that it can be had.

        Nothing where it can be had as it is, or not at all: then the refusal says why.
        """
        plan = self.simulation.plan
        if changes.get("architecture") and plan is None and self.precision_bits == 8:
            return {"precision_bits": 16}
        if plan is None or not (planned or "stack" in changes):
            return {}
        stack = STACKS.get(str(changes.get("stack")))
        if stack is not None:
            with suppress(ConfigError):
                next_state(self._state, changes, self.find)
                return {}
        wanted = {**(stack.options if stack else {}), **planned}
        also = as_changes(brought_along(plan, wanted) or {})
        return {n: v for n, v in also.items() if n not in FIELDS or getattr(self, n) != v}

    def _refused(self, change: Mapping[str, Any]) -> None:
        """Say at the field, in the words of the screen, what was refused."""
        text = in_labels(change["new"])
        field = field_on_screen(self._refused_field) if text else ""
        if len(self._asked) == 1 and text:
            field = next(iter(self._asked))
        self._told = {"field": field, "error": text, "also": ""}

    @contextmanager
    def _undoable(self, *, keep_open: bool = False) -> Iterator[None]:
        """Note the state before a change, for undo; all drafts of a drag count as one."""
        if self._before is None:
            self._before = self._state
        try:
            yield
        finally:
            if not keep_open:
                if self._before != self._state:
                    self._history = [*self._history, self._before][-MAX_UNDO:]
                    self._undo = len(self._history)
                self._before = None

    def _go_to(self, state: State) -> None:
        with self._lock:
            self._apply(state)

    def _on_undo(self, _message: Mapping[str, Any]) -> None:
        with self._undoable():
            pass  # ends a drag that was never let go
        if self._history:
            state = self._history.pop()
            self._undo = len(self._history)
            self._go_to(state)

    def _on_reset(self, _message: Mapping[str, Any]) -> None:
        with self._undoable():
            self._go_to(self._start)

    def _on_open(self, message: Mapping[str, Any]) -> None:
        """Choose the architecture of a pasted or opened config.json."""
        text, name = message.get("config"), message.get("name", "")
        if not isinstance(text, str | Mapping) or not isinstance(name, str):
            raise ConfigError("config.json", text, "must be the text of a config.json")
        with self._undoable():
            self.open_config(text if isinstance(text, Mapping) else _as_json(text), name)


def _as_json(text: str) -> Mapping[str, Any]:
    """Parse what a browser sent: never a path to be read here."""
    try:
        content = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise NotCovered(f"config.json is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise NotCovered("config.json must hold one JSON object")
    return content
