"""A browser for the widget: what it would send, and all that it receives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trainmem import TrainingMemoryWidget, simulate
from trainmem.outputs import OUTPUT_NAMES
from trainmem.widget.words import panel


def message(widget: TrainingMemoryWidget, **content: Any) -> None:
    widget._handle_custom_msg(content, [])


PNG = b"\x89PNG\r\n\x1a\n"
VIEW = {"width": 640, "ratio": 2, "theme": "light", "frame": -1, "key": ""}
OUTPUTS = [name for name in OUTPUT_NAMES if name != "zero_stage"] + [
    "headroom_gb",
    "longest_sequence",
    "largest_micro_batch",
    "min_gpus_reason",
]


class Comm:
    """Stands in for the connection to a browser; keeps all that is sent, in order."""

    def __init__(self, **opening: Any) -> None:
        self.opening = opening
        self.comm_id = opening.get("comm_id") or f"comm-{id(self)}"
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.closed = False

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        json.dumps(data)  # what can't be written as JSON never reaches a browser
        self.sent.append((data, [bytes(b) for b in buffers or []]))

    def on_msg(self, handler: Callable[[dict[str, Any]], None]) -> None:
        self.handler = handler

    def close(self, *_args: Any, **_options: Any) -> None:
        self.closed = True


class Browser:
    """One front end of a widget."""

    def __init__(self, widget: TrainingMemoryWidget, client: str = "browser") -> None:
        self.widget, self.client, self.number = widget, client, 0
        self.picture = b""  # what `_frame` holds in the browser

    @property
    def sent(self) -> list[tuple[dict[str, Any], list[bytes]]]:
        return self.widget.comm.sent

    def message(self, content: Any) -> None:
        data = {"method": "custom", "content": content}
        self.widget.comm.handler({"content": {"data": data}, "buffers": []})

    def state(self, **values: Any) -> None:
        """Set traits as ``jslink`` does."""
        data = {"method": "update", "state": values, "buffer_paths": []}
        self.widget.comm.handler({"content": {"data": data}, "buffers": []})

    def hello(self, *views: Any) -> None:
        self.message({"kind": "hello", "client": self.client, "n": 1, "views": list(views)})

    def set(self, draft: bool = False, **changes: Any) -> int:
        self.number += 1
        self.message(
            {
                "kind": "set",
                "client": self.client,
                "id": self.number,
                "changes": changes,
                "draft": draft,
            }
        )
        return self.number

    def take(self) -> list[tuple[str, Any, list[bytes]]]:
        """Return what has arrived: (kind or "update", content, buffers), oldest first.

        An answer in an update of the traits follows it.
        """
        arrived = []
        for data, buffers in self.sent:
            if data["method"] == "custom":
                arrived.append((data["content"]["kind"], data["content"], buffers))
            else:
                state = dict(data["state"])
                for (name,), value in zip(data["buffer_paths"], buffers, strict=True):
                    state[name] = value
                reply = state.pop("_reply", None)
                self.picture = state.pop("_frame", self.picture)
                if state or reply is None:
                    arrived.append((data["method"], state, buffers))
                if reply is not None:
                    shown = [self.picture] if reply["kind"] == "frame" else []
                    arrived.append((reply["kind"], reply, shown))
        self.sent.clear()
        return arrived


def kinds(arrived: list[tuple[str, Any, list[bytes]]]) -> list[str]:
    return [kind for kind, _, _ in arrived]


def answers(arrived: list[tuple[str, Any, list[bytes]]]) -> list[int]:
    return [
        content["answers"]
        for kind, content, _ in arrived
        if kind != "update" and "answers" in content
    ]


def consistent(widget: TrainingMemoryWidget) -> None:
    answer = simulate(widget.config)
    for name in OUTPUTS:
        assert getattr(widget, name) == getattr(answer, name), name
    shown, wanted = widget._panel, panel(answer)
    for each in (shown, wanted):
        each.pop("footer", None)  # says how long it took
    assert shown == wanted


def failing(*_args: Any, **_options: Any) -> Any:
    raise IndexError("no such place")


UNDRAWN = "The picture could not be drawn: IndexError: no such place"


def own(memory: Any) -> Any:
    """What a person sees of a step: the ten inputs and the options."""
    return memory.config, memory.plan
