"""`TrainingMemoryWidget`: a thin shell that shows a `TrainingMemory` in a notebook.

Python is the source of truth. The browser asks for changes in numbered messages; each is
answered by one update of the traits, numbers and picture together. Views of another width, pixel
ratio or theme get a picture of theirs in a message of its own. Hosts without custom messages ask
through the `_request` trait instead.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack

import anywidget
from IPython.core.getipython import get_ipython
from traitlets import Bytes, Dict, HasTraits, Int, TraitError, Unicode, observe

from trainmem.config import FIELDS, ConfigError, Number, TrainingConfig, in_words, once, takes
from trainmem.http.remote_check import RemoteCheck, Server
from trainmem.model import OTHERS, State, TrainingMemory, check_gpu
from trainmem.picture.figure import describe as figure_in_words
from trainmem.picture.figure import plot
from trainmem.picture.frames import FrameRenderer
from trainmem.presentation import also_changed, in_labels, panel, tables
from trainmem.repair import brought_along
from trainmem.request import (
    PLAN_OPTIONS,
    AllInputs,
    NotCovered,
    as_changes,
    check_plan,
)
from trainmem.simulation import Simulation, simulate
from trainmem.transformer import STACKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingMemoryWidget"]

MAX_CLIENTS: Final = 16
MAX_VIEWS: Final = 16
"""Front ends, and views of each, that are drawn for; the oldest make room for new ones."""

CLIENT_SECONDS: Final = 60.0
"""A front end not heard of for so long is gone: one that is seen and idle says hello sooner."""

THEIRS: Final = frozenset({"_request", "_view_count", "_dom_classes"})
"""Private traits that a browser sets: ours for messages, and those of every ipywidget."""

MAX_UNDO: Final = 100

REST_SECONDS: Final = 0.05
"""After so long without a request, the next steps of the slider last moved are drawn ahead."""

PADDING: Final = bytes(65_536)
"""Follows a picture that a browser on this machine wants at once.

Jupyter Server leaves Nagle's algorithm on: a message shorter than a TCP segment waits until the
browser acknowledges the one before it, while a slider is dragged up to 40 ms. On loopback a
segment has 64 KiB.
"""


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


STILL: Final = View(900, 1.0, "light")
"""What is drawn for viewers that can't run the widget."""


def _front_end(name: str) -> str | Path:
    """Return a file of the front end as text, or under ``ANYWIDGET_HMR=1`` as a live path."""
    packed = Path(__file__).parent / "static"
    path = (packed if packed.is_dir() else Path(__file__).parents[2] / "js") / name
    if os.environ.get("ANYWIDGET_HMR") == "1":
        return path
    return packed_text(path.read_text(encoding="utf-8"), script=name.endswith(".js"))


_PIECES: Final = re.compile(
    r"""
    (?P<kept> '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*" | `(?:\\.|[^`\\])*`  # texts
    | (?<=[(,=:!&|?])[ ]?/(?![/*])(?:\\.|\[(?:\\.|[^]\\\n])*\]|[^/\\\n[])+/ )  # and patterns
    | (?P<gap> (?: \s | /\*.*?\*/ | //[^\n]* )+ )
    """,
    re.X | re.S,
)


def packed_text(text: str, *, script: bool) -> str:
    """Return a text of the front end without comments and needless space: all widgets send it.

    A script keeps its lines, at whose ends statements may end without a semicolon. It has no
    template within a template.
    """
    if not script:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        return re.sub(r"\s*([{};])\s*|(?<=[:,>])\s+", r"\1", text).strip()

    def close(found: re.Match[str]) -> str:
        if found["kept"]:
            return found["kept"]
        start, end = found.span()
        before, after = text[max(start - 1, 0) : start], text[end : end + 1]
        if "\n" in found["gap"]:
            return "" if before in "{,;(" or not before else "\n"
        apart = re.fullmatch(r"[\w$]{2}|\+\+|--", before + after)
        return " " if apart else ""

    return _PIECES.sub(close, text)


class WidgetInputs(AllInputs, total=False):
    """What the widget takes: the inputs, and what every widget of ipywidgets does."""

    layout: Any
    tooltip: str | None
    tabbable: bool | None


OF_ANY_WIDGET: Final = tuple(
    n for n in WidgetInputs.__annotations__ if n not in AllInputs.__annotations__
)


class TrainingMemoryWidget(TrainingMemory, anywidget.AnyWidget):
    """A live view of one training step: controls, verdict, numbers and the three panels.

    Parameters
    ----------
    config : TrainingConfig, optional
        Starting point, to which Reset returns.
    remote : trainmem.Client, optional
        A server to run the same request on: adds a button that asks it and compares.
    **inputs
        As for `TrainingMemory`: inputs that replace those of `config`, `gpu`, `architecture`,
        `plan`, and options of the plan by name. And as for every widget of ipywidgets:
        `layout`, `tooltip`, `tabbable`.

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
    _told = Dict(help="The field and the words of a refusal; what a choice brought along.").tag(
        sync=True
    )
    _alt = Unicode(help="The picture in words.").tag(sync=True)
    _undrawn = Unicode(help="Why a picture is missing; empty where none is.").tag(sync=True)
    _undo = Int(0, help="How many changes can be undone.").tag(sync=True)
    _frame = Bytes(b"", help="The last picture.").tag(sync=True, echo_update=False)
    _reply = Dict(help="What `_frame` shows, or another answer to `_request`.").tag(sync=True)
    _request = Dict(help="The last messages of a host without custom messages.").tag(
        sync=True, echo_update=False
    )

    # As text: a path would start a watcher that keeps every widget alive.
    _esm = _front_end("widget.js")
    _css = _front_end("widget.css")
    _by_trait = False

    @takes(WidgetInputs)
    def __init__(
        self,
        config: TrainingConfig | None = None,
        *,
        remote: Server | None = None,
        **inputs: Unpack[WidgetInputs],
    ) -> None:
        self._remote_check: RemoteCheck | None = None
        self._own_layout = not isinstance(inputs.get("layout"), HasTraits)
        self._renderer = FrameRenderer()
        self._said: tuple[dict[str, Any], str] = ({}, "")
        self._clients: dict[str, tuple[float, dict[str, View]]] = {}
        self._stamps: dict[str, int] = {}
        self._replies = 0
        self._frame_id = 0
        self._renewed = False
        self._asked: Mapping[str, Any] = {}
        self._told = {"field": "", "error": "", "also": ""}
        self._draft = self._padded = False
        self._ahead: asyncio.TimerHandle | None = None
        self._publications = 0
        self._answering: dict[str, Any] | None = None
        self._before: State | None = None
        self._history: list[State] = []
        self._tables = tables()
        super().__init__(config, **inputs)  # type: ignore[misc]  # some are of any widget
        self._start = self._state
        if remote is not None:
            self._remote_check = RemoteCheck(remote, self._show_remote, self._lock)
        self.on_msg(_handle_message)

    @classmethod
    def _keywords(cls) -> tuple[str, ...]:
        return (*super()._keywords(), "remote", *OF_ANY_WIDGET)

    def _starting_point(self, config: TrainingConfig | None, inputs: Mapping[str, Any]) -> State:
        """Set what any widget takes, before this one opens, and return the state to start from."""
        ours = dict(inputs)
        for name in OF_ANY_WIDGET:
            value = ours.pop(name, None)
            if value is not None:
                self.set_trait(name, value)
        return super()._starting_point(config, ours)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is bound to its views and can't be copied or pickled; its "
            "inputs can: trainmem.TrainingMemory(w.config, gpu=w.gpu, architecture=w.architecture, "
            "plan=w.plan)"
        )

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce__()

    def figure(self, theme: str = "light") -> Figure:
        """Return the picture as a plain matplotlib `Figure`, for ordinary output."""
        return plot(self.simulation, theme=theme)

    def close(self) -> None:
        """Close the comm and free the figure; the traits stay readable."""
        if self._remote_check is not None:
            self._remote_check.drop()
        with self._lock:
            if self._ahead is not None:
                self._ahead.cancel()
            self._renderer.close()
            self._clients.clear()
            super().close()
            if self._own_layout:
                self.layout.close()  # a widget of its own, which ipywidgets would keep

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the live view, and the picture for viewers that can't run it."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        data["text/plain"] = f"{self._panel['headline']}: {self.simulation.banner}"
        with self._lock:
            png = self._drawn(partial(self._draw, STILL, draft=False))
            if self._keep_still(png):
                _after_each_cell(self)
        if png:
            data["image/png"] = base64.b64encode(png).decode("ascii")
        return data, metadata

    def _keep_still(self, png: bytes | None = None) -> bool:
        """Keep the present picture in the state while no front end asks for one.

        So a notebook that is executed without a browser is saved with a picture. Returns whether
        there may be another to keep.
        """
        if self.comm is None or self._clients:
            return False
        if not self._frame:
            self._frame = png or self._drawn(partial(self._draw, STILL, draft=False))
        return True

    # -- publishing: numbers and pictures ---------------------------------------------------

    def _prepare(self, simulation: Simulation) -> None:
        """Put an answer in words, before anything of it is published."""
        self._said = panel(simulation), figure_in_words(simulation)

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Send all traits of one change and a picture in one message, then other pictures.

        A change made by an observer of this one is published with it; an observer that raises
        doesn't keep either from the browser.
        """
        self._publications += 1
        frames = self._frames()
        try:
            with self.hold_sync():
                try:
                    yield
                except Exception:  # an observer's: what comes after it wasn't announced
                    told = {*OTHERS, *self.traits(kind="input"), *self.traits(kind="output")}
                    self.send_state(told)
                    raise
                finally:
                    if self._remote_check is not None:
                        self._remote_check.drop()
                    self._frame_id += 1
                    self._panel, self._alt = self._said
                    self._undrawn = ""
                    if self._told["also"]:
                        self._told = {**self._told, "also": ""}
                    if self._publications == 1:
                        first = next(frames, None)
                        if first is not None:
                            self._show(*first)
                        else:  # nobody looks; a picture of other numbers shall not be saved
                            self._frame = b""
        finally:
            self._publications -= 1
            if not self._publications:
                for frame in frames:
                    self._answer(*frame)

    def _views(self) -> dict[str, View]:
        """Return one view of each distinct kind that somebody sees."""
        now = time.monotonic()
        for client in [c for c, (seen, _) in self._clients.items() if now - seen > CLIENT_SECONDS]:
            del self._clients[client]
        return {view.key: view for _, views in self._clients.values() for view in views.values()}

    def _heard_of(self, client: object) -> None:
        """Note that a front end lives: one that is in use has no cause to say hello."""
        if isinstance(client, str) and client in self._clients:
            self._clients[client] = (time.monotonic(), self._clients[client][1])

    def _draw(self, view: View, *, draft: bool, simulation: Simulation | None = None) -> bytes:
        shown = simulation or self.simulation
        return self._renderer.render(
            shown, width=view.width, ratio=view.ratio, theme=view.theme, draft=draft
        )

    def _frames(self, only: set[str] | None = None) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Draw the present picture for the visible views, or for those of some kinds only."""
        if self.comm is None:
            return
        for key, view in self._views().items():
            if only is None or key in only:
                png = self._drawn(partial(self._draw, view, draft=self._draft))
                yield (
                    {
                        "kind": "frame",
                        "id": self._frame_id,
                        "key": key,
                        "draft": self._draft,
                        "size": len(png),
                    },
                    png + PADDING if self._padded else png,
                )

    def _drawn(self, draw: Callable[[], bytes]) -> bytes:
        """Return a picture, or nothing where drawing fails, which is said instead.

        The numbers are right all the same, and a picture of others must not stay.
        """
        try:
            return draw()
        except Exception as error:
            logging.getLogger(__name__).exception("drawing failed")
            self._undrawn = f"The picture could not be drawn: {in_words(error)}"
            return b""

    def _show(self, content: dict[str, Any], png: bytes | None = None) -> None:
        """Answer through the traits, which a notebook saves."""
        self._replies += 1
        with self.hold_sync():
            if png is not None:
                self._frame = png
            self._reply = {**self._taken(content), "n": self._replies}  # no two are the same

    def _answer(self, content: dict[str, Any], png: bytes | None = None) -> None:
        """Answer with a message of its own where the host has them."""
        if self._by_trait:
            self._show(content, png)
        else:
            self.send(self._taken(content), [png] if png is not None else None)

    def _taken(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the number of the request that it is the first to answer."""
        if self._answering is None or content["kind"] == "hello":
            return content
        content, self._answering = content | self._answering, None
        return content

    # -- requests from the browser ---------------------------------------------------------

    @observe("_request")
    def _requested(self, change: Mapping[str, Any]) -> None:
        client, messages = change["new"].get("client"), change["new"].get("messages")
        if not isinstance(client, str) or not isinstance(messages, list) or not messages:
            return  # without a message it only tells marimo to run cells anew
        self._by_trait = True
        for message in messages:
            stamp = message.get("stamp") if isinstance(message, dict) else None
            if isinstance(stamp, int) and stamp > self._stamps.get(client, 0):
                self._stamps = _recent(self._stamps, client, stamp)
                _handle_message(self, message, [])

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take values set in the browser (``jslink``): inputs as a request, outputs never.

        What is refused is sent back, so the browser never keeps a value that Python hasn't.
        Private names are refused too but for three: `_view_module` and its like would load code.
        """
        ours = {"error", *self.traits(kind="output")}
        ours |= {n for n in sync_data if n.startswith("_") and n not in THEIRS}
        taken = {n: v for n, v in sync_data.items() if n not in ours}
        wrong = sync_data.keys() & ours
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
            except Exception as error:
                wrong |= taken.keys() & self.keys
                self.set_trait("error", in_words(error))
                raise
            finally:
                if wrong := wrong & set(self.keys):
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
        if lacking:
            self._undrawn = ""  # it is tried again
        frames = self._frames(lacking)
        for frame in islice(frames, 1):
            self._show(*frame)
        for frame in frames:
            self._answer(*frame)

    def _on_set(self, message: Mapping[str, Any]) -> None:
        """Change inputs; a draft (while dragging) is drawn cheaply and isn't undoable."""
        changes = message.get("changes")
        if not isinstance(changes, dict):
            raise ConfigError("changes", changes, "must be a mapping of inputs to values")
        length = self.seq_length
        # A control of the plan may show what one of the ten inputs says.
        planned = {n: v for n, v in changes.items() if n in PLAN_OPTIONS}
        changes = {n: v for n, v in changes.items() if n not in planned} | as_changes(planned)
        self._draft = bool(message.get("draft"))
        self._padded = self._draft and message.get("pad") is True
        self._asked = changes
        with self._undoable(keep_open=self._draft):
            try:
                also = self._brought_along(changes, planned)
                with self.refusing():
                    self._change(changes, also)
            finally:
                self._draft = self._padded = False
                self._asked = {}
        cut = {"seq_length": self.seq_length} if "architecture" in changes else {}
        if cut and cut["seq_length"] < length:
            also = {**also, **cut}
        if also:
            self._told = {**self._told, "also": also_changed(also)}
        self._look_ahead(changes)

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
                self._changed(self._state, changes)
                return {}
        wanted = {**(stack.options if stack else {}), **planned}
        also = as_changes(brought_along(plan, wanted) or {})
        return {n: v for n, v in also.items() if n not in FIELDS or getattr(self, n) != v}

    def _refused(self, change: Mapping[str, Any]) -> None:
        """Say at the field, in the words of the screen, what was refused."""
        field, text = in_labels(change["new"])
        if len(self._asked) == 1 and text:
            field = next(iter(self._asked))
        self._told = {"field": field, "error": text, "also": ""}

    def notify_change(self, change: Any) -> None:
        """Send a refusal and its words on the screen in one message: alone each would be wrong."""
        if change["name"] != "error":
            super().notify_change(change)
            return
        with self.hold_sync():
            self._refused(change)
            super().notify_change(change)

    def _look_ahead(self, changes: Mapping[str, Any]) -> None:
        """Plan to draw what one step of the same slider would show, once the kernel rests.

        Not with an architecture, where the computing takes longest and would delay a request.
        """
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
        name = next(iter(changes), "")
        if name not in FIELDS or len(changes) > 1 or self._state.architecture is not None:
            return
        with suppress(RuntimeError):  # no event loop here
            loop = asyncio.get_running_loop()
            self._ahead = loop.call_later(REST_SECONDS, self._draw_ahead, name)

    def _draw_ahead(self, name: str, values: list[Number] | None = None) -> None:
        """Draw frames of an input's next values, one each time the kernel has nothing to do."""
        if values is None:
            values = FIELDS[name].neighbours(getattr(self._state.config, name))
        value, *others = values
        with self._lock, suppress(Exception):  # it will be said when it is asked for
            state = self._changed(self._state, {name: value})
            simulation = simulate(state.config, model=state.model)
            for view in self._views().values():
                self._draw(view, draft=True, simulation=simulation)
        self._ahead = None
        if others:
            self._ahead = asyncio.get_running_loop().call_later(0, self._draw_ahead, name, others)

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

    def _on_timeline(self, message: Mapping[str, Any]) -> None:
        """Draw one step over time for one view; only an architecture has one."""
        view = _view(message)
        if view is None or self.simulation.architecture is None:
            return
        png = self._drawn(partial(self._timeline, view))
        alt = self.simulation.moment.peak.explanation if self.simulation.moment and png else ""
        self._answer({"kind": "timeline", "id": self._frame_id, "key": view.key, "alt": alt}, png)

    def _timeline(self, view: View) -> bytes:
        size = (max(view.width / 72, 5.5), 4.2)  # a point is a CSS pixel, as in the frames
        png = BytesIO()
        figure = self.simulation.timeline(view.theme, size=size)
        figure.savefig(png, format="png", dpi=72 * min(view.ratio, 2.0))
        return png.getvalue()

    def _on_remote(self, _message: Mapping[str, Any]) -> None:
        if self._remote_check is not None:
            self._remote_check.ask(self.simulation)

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
        "timeline": widget._on_timeline,
    }.get(str(content.get("kind")))
    if serve is None:
        return
    number = content.get("id")
    with widget._lock:
        widget._heard_of(content.get("client"))
        if isinstance(number, int) and not isinstance(number, bool):
            widget._answering = {"client": content.get("client"), "answers": number}
        try:
            serve(content)
        except ConfigError as error:
            widget.set_trait("error", str(error))
        except Exception as error:  # no kind of failure is silent
            widget.set_trait("error", in_words(error))
            raise
        finally:
            if widget._answering is not None:  # no picture or data carried the answer
                widget._answer({"kind": "done"})


def _after_each_cell(widget: TrainingMemoryWidget) -> None:
    """Renew the still of a widget at the end of each cell, until a front end draws for itself."""
    shell = get_ipython()
    if shell is None or widget._renewed:
        return
    widget._renewed = True
    known = weakref.ref(widget)

    def renew(_result: object) -> None:
        found = known()
        if found is None or not found._keep_still():
            shell.events.unregister("post_run_cell", renew)

    shell.events.register("post_run_cell", renew)


def _as_json(text: str) -> Mapping[str, Any]:
    """Parse what a browser sent: never a path to be read here."""
    try:
        content = json.loads(text, object_pairs_hook=once)
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
    ratio = round(min(max(float(ratio), 0.5), 4.0), 2)  # type: ignore[arg-type]
    return View(round(width), ratio, theme)  # type: ignore[arg-type]
