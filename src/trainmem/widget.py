"""`TrainingMemoryWidget`: a thin shell that shows a `TrainingMemory` in a notebook.

Python is the source of truth. The browser asks for changes in numbered messages; each is
answered by the traits (numbers first) and then by one picture for every distinct kind of
visible view. Hosts without custom messages ask through the `_request` trait instead.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anywidget
from traitlets import Bytes, Dict, HasTraits, Int, TraitError, Unicode, observe

from trainmem.asking import Asking, Server
from trainmem.config import FIELDS, ConfigError, TrainingConfig
from trainmem.figure import describe, plot
from trainmem.frames import FrameRenderer
from trainmem.model import OTHERS, State, TrainingMemory, check_gpu
from trainmem.presentation import panel, tables
from trainmem.request import NotCovered, check_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingMemoryWidget"]

MAX_CLIENTS: Final = 16
MAX_VIEWS: Final = 16
"""Front ends, and views of each, that are drawn for; the oldest make room for new ones."""

CLIENT_SECONDS: Final = 60.0
"""A front end not heard of for so long is gone: it says hello every ten seconds while seen."""

MAX_UNDO: Final = 100


@dataclass(frozen=True)
class View:
    """What one view wants drawn: CSS pixels wide, device pixels per CSS pixel, theme."""

    width: int
    ratio: float
    theme: str

    @property
    def key(self) -> str:
        """Name of the kind of picture, shared by all views alike."""
        return f"{self.width}x{self.ratio:g}-{self.theme}"


def _front_end(name: str) -> str | Path:
    """Return a file of the front end as text, or under ``ANYWIDGET_HMR=1`` as a live path."""
    packed = Path(__file__).parent / "static"
    path = (packed if packed.is_dir() else Path(__file__).parents[2] / "js") / name
    return path if os.environ.get("ANYWIDGET_HMR") == "1" else path.read_text(encoding="utf-8")


class TrainingMemoryWidget(TrainingMemory, anywidget.AnyWidget):
    """A live view of one training step: controls, verdict, numbers and the three panels.

    Parameters
    ----------
    config : TrainingConfig, optional
        Starting point, to which Reset returns.
    remote : trainmem.Client, optional
        A server to run the same request on: adds a button that asks it and compares.
    layout : ipywidgets.Layout or dict, optional
        As for every ipywidgets widget.
    **inputs
        Inputs that replace those of `config`, and `gpu`.

    Raises
    ------
    TypeError
        For a keyword that isn't an input.
    ConfigError
        For a bad value.

    Notes
    -----
    All traits of `TrainingMemory` work with ``observe``, ``link`` and ``jslink``. A bad value
    from the browser leaves the last good state and shows in `error`.
    """

    _panel = Dict(help="What the front end paints.").tag(sync=True)
    _remote = Dict(help="What the server was asked and said; empty without one.").tag(sync=True)
    _tables = Dict(help="Fields, presets and cards.").tag(sync=True)
    _alt = Unicode(help="The picture in words.").tag(sync=True)
    _undo = Int(0, help="How many changes can be undone.").tag(sync=True)
    _frame = Bytes(b"", help="Last picture at rest, for hosts without messages.").tag(
        sync=True, echo_update=False
    )
    _reply = Dict(help="Answer to `_request`.").tag(sync=True)
    _request = Dict(help="The last messages of a host without custom messages.").tag(
        sync=True, echo_update=False
    )

    # As text: a path would start a watcher that keeps every widget alive.
    _esm = _front_end("widget.js")
    _css = _front_end("widget.css")
    _by_trait = False

    def __init__(
        self, config: TrainingConfig | None = None, *, remote: Server | None = None, **inputs: Any
    ) -> None:
        layout = inputs.pop("layout", None)
        self._asking: Asking | None = None
        self._own_layout = not isinstance(layout, HasTraits)
        if layout is not None:
            self.set_trait("layout", layout)
        self._renderer = FrameRenderer()
        self._clients: dict[str, tuple[float, dict[str, View]]] = {}
        self._stamps: dict[str, int] = {}
        self._replies = 0
        self._frame_id = 0
        self._draft = False
        self._publications = 0
        self._answering: dict[str, Any] | None = None
        self._before: State | None = None
        self._history: list[State] = []
        self._tables = tables()
        super().__init__(config, **inputs)
        self._start = self._state
        if remote is not None:
            self._asking = Asking(remote, self._show_remote, self._lock)
        self.on_msg(_handle_message)

    def figure(self, theme: str = "light") -> Figure:
        """Return the picture as a plain matplotlib `Figure`, for ordinary output."""
        return plot(self.simulation, theme=theme)

    def close(self) -> None:
        """Close the comm and free the figure; the traits stay readable."""
        if self._asking is not None:
            self._asking.drop()
        with self._lock:
            self._renderer.close()
            self._clients.clear()
            super().close()
            if self._own_layout:
                self.layout.close()  # a widget of its own, which ipywidgets would keep

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the live view, and the picture for viewers that can't run it."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        view = View(900, 1.0, "light")
        data["text/plain"] = f"{panel(self.simulation)['headline']}: {self.simulation.banner}"
        data["image/png"] = base64.b64encode(self._draw(view, draft=False)).decode("ascii")
        return data, metadata

    # -- publishing: numbers first, then pictures ------------------------------------------

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Send all traits of one change in one message, then the pictures.

        A change made by an observer of this one is published with it; an observer that raises
        doesn't keep either from the browser.
        """
        self._publications += 1
        try:
            with self.hold_sync():
                try:
                    yield
                except Exception:  # an observer's: what comes after it wasn't announced
                    told = {*OTHERS, *self.traits(kind="input"), *self.traits(kind="output")}
                    self.send_state(told)
                    raise
                finally:
                    if self._asking is not None:
                        self._asking.drop()
                    self._frame_id += 1
                    self._panel = panel(self.simulation)
                    self._alt = describe(self.simulation)
        finally:
            self._publications -= 1
            if not self._publications:
                self._send_frames()

    def _views(self) -> dict[str, View]:
        """Return one view of each distinct kind that somebody sees."""
        now = time.monotonic()
        for client in [c for c, (seen, _) in self._clients.items() if now - seen > CLIENT_SECONDS]:
            del self._clients[client]
        return {view.key: view for _, views in self._clients.values() for view in views.values()}

    def _draw(self, view: View, *, draft: bool) -> bytes:
        return self._renderer.render(
            self.simulation, width=view.width, ratio=view.ratio, theme=view.theme, draft=draft
        )

    def _send_frames(self, only: set[str] | None = None) -> None:
        """Send the present picture to the visible views, or to those of some kinds only."""
        if self.comm is None:
            return
        for key, view in self._views().items():
            if only is None or key in only:
                frame = {"kind": "frame", "id": self._frame_id, "key": key, "draft": self._draft}
                self._answer(frame, self._draw(view, draft=self._draft))

    def _answer(self, content: dict[str, Any], png: bytes | None = None) -> None:
        if self._answering is not None and content["kind"] != "hello":
            content, self._answering = content | self._answering, None
        if self._by_trait:
            self._replies += 1
            with self.hold_sync():
                if png is not None:
                    self._frame = png
                self._reply = {**content, "n": self._replies}  # the same twice is no change
        else:
            self.send(content, [png] if png is not None else None)

    # -- requests from the browser ---------------------------------------------------------

    @observe("_request")
    def _requested(self, change: Mapping[str, Any]) -> None:
        client, messages = change["new"].get("client"), change["new"].get("messages")
        if not isinstance(client, str) or not isinstance(messages, list):
            return
        self._by_trait = True
        for message in messages:
            stamp = message.get("stamp") if isinstance(message, dict) else None
            if isinstance(stamp, int) and stamp > self._stamps.get(client, 0):
                self._stamps = _recent(self._stamps, client, stamp)
                _handle_message(self, message, [])

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take values set in the browser (``jslink``): inputs as a request, outputs never.

        What is refused is sent back, so the browser never keeps a value that Python hasn't.
        """
        ours = set(self.traits(kind="output"))
        ours |= {
            "error",
            "_panel",
            "_tables",
            "_remote",
            "_alt",
            "_undo",
            "_reply",
            "_frame",
            "_esm",
            "_css",
        }
        taken = {n: v for n, v in sync_data.items() if n not in ours}
        wrong = (sync_data.keys() & ours) - {"_frame"}  # the browser keeps the last picture itself
        with self._lock:
            try:
                with self.refusing():
                    for name, value in taken.items():  # all before any is set
                        if name == "gpu":
                            check_gpu(value)
                        elif name == "architecture":
                            self.find(value)
                        elif name == "plan":
                            check_plan(value)
                        elif name in FIELDS:
                            self.check_input(name, value)
            except ConfigError:
                refused = {n for n in taken if n in FIELDS or n in OTHERS}
                taken = {n: v for n, v in taken.items() if n not in refused}
                wrong |= refused
            try:
                super().set_state(taken)
            except (TraitError, ConfigError):  # the latter where values don't go together
                wrong |= taken.keys() & self.keys
            if wrong:
                self.send_state(wrong)

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        """Note which views a front end shows, answer it, and draw what it lacks."""
        client, wanted = message.get("client"), message.get("views")
        lacking: set[str] = set()
        if isinstance(client, str) and isinstance(wanted, list) and len(client) <= 64:
            views = {}
            for item in wanted[:MAX_VIEWS]:
                view = _view(item)
                if view is not None:
                    views[view.key] = view
                    if item.get("frame") != self._frame_id or item.get("key") != view.key:
                        lacking.add(view.key)
            self._clients = _recent(self._clients, client, (time.monotonic(), views))
        self._answer({"kind": "hello", "n": message.get("n")})
        self._draft = False
        self._send_frames(lacking)

    def _on_set(self, message: Mapping[str, Any]) -> None:
        """Change inputs; a draft (while dragging) is drawn cheaply and isn't undoable."""
        changes = message.get("changes")
        if not isinstance(changes, dict):
            raise ConfigError("changes", changes, "must be a mapping of inputs to values")
        self._draft = bool(message.get("draft"))
        with self._undoable(keep_open=self._draft):
            try:
                with self.refusing():
                    self._change(changes)
            finally:
                self._draft = False

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

    def _on_remote(self, _message: Mapping[str, Any]) -> None:
        if self._asking is not None:
            self._asking.ask(self.simulation)

    def _show_remote(self, status: dict[str, str]) -> None:
        self._remote = status

    def _on_open(self, message: Mapping[str, Any]) -> None:
        """Choose the architecture of a pasted or opened config.json."""
        text, name = message.get("config"), message.get("name", "")
        if not isinstance(text, str | Mapping) or not isinstance(name, str):
            raise ConfigError("config.json", text, "must be the text of a config.json")
        with self._undoable():
            self.open_config(text if isinstance(text, Mapping) else _as_json(text), name)

    def _on_json(self, _message: Mapping[str, Any]) -> None:
        self._answer({"kind": "json", "answer": self.simulation.to_dict()})


def _handle_message(widget: TrainingMemoryWidget, content: Any, _buffers: Any) -> None:
    """Serve one message of a front end; whatever it holds, the kernel only ever answers."""
    if not isinstance(content, Mapping):
        return
    serve = {
        "hello": widget._on_hello,
        "set": widget._on_set,
        "undo": widget._on_undo,
        "reset": widget._on_reset,
        "open": widget._on_open,
        "json": widget._on_json,
        "remote": widget._on_remote,
    }.get(str(content.get("kind")))
    if serve is None:
        return
    number = content.get("id")
    with widget._lock:
        if isinstance(number, int) and not isinstance(number, bool):
            widget._answering = {"client": content.get("client"), "answers": number}
        try:
            serve(content)
        except ConfigError as error:
            widget.set_trait("error", str(error))
        finally:
            if widget._answering is not None:  # no picture or data carried the answer
                widget._answer({"kind": "done"})


def _as_json(text: str) -> Mapping[str, Any]:
    """Parse what a browser sent: never a path to be read here."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotCovered(f"config.json is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise NotCovered("config.json must hold one JSON object")
    return content


def _recent(known: dict[str, Any], client: str, value: Any) -> dict[str, Any]:
    """Return what is known of the front ends with one of them renewed, the oldest dropped."""
    others = [(name, old) for name, old in known.items() if name != client]
    return dict([*others, (client, value)][-MAX_CLIENTS:])


def _view(item: Any) -> View | None:
    """Read one view of a hello; None where it is hidden or isn't one."""
    if not isinstance(item, Mapping):
        return None
    width, ratio, theme = item.get("width"), item.get("ratio"), item.get("theme")
    numbers = isinstance(width, int | float) and isinstance(ratio, int | float)
    if not numbers or theme not in ("light", "dark"):
        return None
    if not (100 <= width <= 10_000 and 0.1 <= ratio <= 10):  # type: ignore[operator]
        return None
    return View(round(width), round(min(max(float(ratio), 0.5), 4.0), 2), theme)  # type: ignore[arg-type]
