"""`TrainingMemoryWidget`: a thin shell that shows a `TrainingMemory` in a notebook.

Python is the source of truth. The browser asks for changes in numbered messages; each is
answered by one update of the traits, numbers and picture together. Views of another width, pixel
ratio or theme get a picture of theirs in a message of its own. Hosts without custom messages ask
through the `_request` trait instead.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack

import anywidget
from traitlets import Bytes, Dict, HasTraits, TraitError, Unicode, observe

from trainmem.config import FIELDS, ConfigError, TrainingConfig, in_words, takes
from trainmem.http.remote_check import RemoteCheck, Server
from trainmem.picture.figure import describe as figure_in_words
from trainmem.picture.figure import plot
from trainmem.picture.frames import FrameRenderer
from trainmem.simulate_step import simulate
from trainmem.simulation import Simulation
from trainmem.widget.ahead import Ahead
from trainmem.widget.channel import Channel, handle_message
from trainmem.widget.controls import tables
from trainmem.widget.edits import EditedMemory
from trainmem.widget.front_end import front_end
from trainmem.widget.inputs import OF_ANY_WIDGET, WidgetInputs
from trainmem.widget.state import EXTRA_INPUTS, State, next_state
from trainmem.widget.stills import renew_after_each_cell
from trainmem.widget.views import STILL, View, draw_step, read_view
from trainmem.widget.words import panel
from trainmem.words import Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TrainingMemoryWidget"]

THEIRS: Final = frozenset({"_request", "_view_count", "_dom_classes"})
"""Private traits that a browser sets: ours for messages, and those of every ipywidget."""

PAINTED: Final = ("error", "_panel", "_frame", "_alt", "_undrawn", "_undo", "_remote", "_told")
"""What a view paints beside the inputs."""

SERVED: Final = ("hello", "set", "undo", "reset", "open", "json", "remote", "timeline")
"""Kinds of messages; `_on_KIND` serves each."""

PADDING: Final = bytes(65_536)
"""Follows a picture that a browser on this machine wants at once.

Jupyter Server leaves Nagle's algorithm on: a message shorter than a TCP segment waits until the
browser acknowledges the one before it, while a slider is dragged up to 40 ms. On loopback a
segment has 64 KiB.
"""


class TrainingMemoryWidget(EditedMemory, anywidget.AnyWidget):
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
    _alt = Unicode(help="The picture in words.").tag(sync=True)
    _undrawn = Unicode(help="Why a picture is missing; empty where none is.").tag(sync=True)
    _frame = Bytes(b"", help="The last picture.").tag(sync=True, echo_update=False)
    _reply = Dict(help="What `_frame` shows, or another answer to `_request`.").tag(sync=True)
    _request = Dict(help="The last messages of a host without custom messages.").tag(
        sync=True, echo_update=False
    )

    # As text: a path would start a watcher that keeps every widget alive.
    _esm = front_end("widget.js")
    _css = front_end("widget.css")

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
        self._channel = Channel()
        self._ahead = Ahead()
        self._frame_id = 0
        self._renewed = False
        self._draft = self._padded = False
        self._publications = 0
        self._tables = {**tables(), "watched": [*FIELDS, *EXTRA_INPUTS, *PAINTED]}
        super().__init__(config, **inputs)
        if remote is not None:
            self._remote_check = RemoteCheck(remote, self._show_remote, self._lock)
        self.on_msg(handle_message)

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
            self._ahead.cancel()
            self._renderer.close()
            self._channel.clients.clear()
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
                renew_after_each_cell(self)
        if png:
            data["image/png"] = base64.b64encode(png).decode("ascii")
        return data, metadata

    def _keep_still(self, png: bytes | None = None) -> bool:
        """Keep the present picture in the state while no front end asks for one.

        So a notebook that is executed without a browser is saved with a picture. Returns whether
        there may be another to keep.
        """
        if self.comm is None or self._channel.clients:
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
                    told = {*EXTRA_INPUTS, *self.traits(kind="input"), *self.traits(kind="output")}
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

    def _draw(self, view: View, *, draft: bool, simulation: Simulation | None = None) -> bytes:
        shown = simulation or self.simulation
        return self._renderer.render(
            shown, width=view.width, ratio=view.ratio, theme=view.theme, draft=draft
        )

    def _frames(self, only: set[str] | None = None) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Draw the present picture for the visible views, or for those of some kinds only."""
        if self.comm is None:
            return
        for key, view in self._channel.views().items():
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
        reply = self._channel.reply(content)
        with self.hold_sync():
            if png is not None:
                self._frame = png
            self._reply = reply

    def _answer(self, content: dict[str, Any], png: bytes | None = None) -> None:
        """Answer with a message of its own where the host has them."""
        if self._channel.by_trait:
            self._show(content, png)
        else:
            self.send(self._channel.numbered(content), [png] if png is not None else None)

    # -- requests from the browser ---------------------------------------------------------

    @observe("_request")
    def _requested(self, change: Mapping[str, Any]) -> None:
        for message in self._channel.unserved(change["new"]):
            handle_message(self, message, [])

    def _handler(self, kind: str) -> Callable[[Mapping[str, Any]], None] | None:
        """Return what serves messages of a kind, if anything does."""
        return getattr(self, f"_on_{kind}") if kind in SERVED else None

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
                    self._check_each(taken)  # all before any is set
            except ConfigError:
                refused = {n for n in taken if n in FIELDS or n in EXTRA_INPUTS}
                taken = {n: v for n, v in taken.items() if n not in refused}
                wrong |= refused
            try:
                super().set_state(taken)
            except (TraitError, ConfigError):  # the latter where values don't go together
                wrong |= taken.keys() & self.keys
            except Exception as error:
                wrong |= taken.keys() & self.keys
                self.say_refused(error)
                raise
            finally:
                if wrong := wrong & set(self.keys):
                    self.send_state(wrong)

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        """Note which views a front end shows, answer it, and draw what it lacks."""
        lacking = self._channel.hello(message, self._frame_id)
        self._answer({"kind": "hello", "n": message.get("n")})
        self._draft = False
        if lacking:
            self._undrawn = ""  # it is tried again
        frames = self._frames(lacking)
        for frame in islice(frames, 1):
            self._show(*frame)
        for frame in frames:
            self._answer(*frame)

    def notify_change(self, change: Any) -> None:
        """Send a refusal and its words on the screen in one message: alone each would be wrong."""
        if change["name"] != "error":
            super().notify_change(change)
            return
        with self.hold_sync():
            self._refused(change)
            super().notify_change(change)

    def _on_set(self, message: Mapping[str, Any]) -> None:
        """Change inputs; a draft (while dragging) is drawn cheaply and isn't undoable."""
        self._draft = bool(message.get("draft"))
        self._padded = self._draft and message.get("pad") is True
        try:
            changes = self._edit(message.get("changes"), keep_open=self._draft)
        finally:
            self._draft = self._padded = False
        self._look_ahead(changes)

    def _look_ahead(self, changes: Mapping[str, Any]) -> None:
        """Plan to draw what one step of the same slider would show, once the kernel rests.

        Not with an architecture, where the computing takes longest and would delay a request.
        """
        self._ahead.cancel()
        name = next(iter(changes), "")
        if name in FIELDS and len(changes) == 1 and self._state.architecture is None:
            field = FIELDS[name]
            self._ahead.plan(
                lambda: field.neighbours(getattr(self._state.config, name)),
                partial(self._draw_ahead, name),
            )

    def _draw_ahead(self, name: str, value: Number) -> None:
        """Draw frames of another value of an input, for `render` to have when it is asked for."""
        with self._lock, suppress(Exception):  # it will be said when it is asked for
            state = next_state(self._state, {name: value}, self.find)
            simulation = simulate(state.config, model=state.model)
            for view in self._channel.views().values():
                self._draw(view, draft=True, simulation=simulation)

    def _on_timeline(self, message: Mapping[str, Any]) -> None:
        """Draw one step over time for one view; only an architecture has one."""
        view = read_view(message)
        if view is None or self.simulation.architecture is None:
            return
        png = self._drawn(partial(draw_step, self.simulation, view))
        case = self.simulation.peak_case
        alt = case.peak.explanation if case and png else ""
        self._answer({"kind": "timeline", "id": self._frame_id, "key": view.key, "alt": alt}, png)

    def _on_remote(self, _message: Mapping[str, Any]) -> None:
        if self._remote_check is not None:
            self._remote_check.ask(self.simulation)

    def _show_remote(self, status: dict[str, str]) -> None:
        self._remote = status

    def _on_json(self, _message: Mapping[str, Any]) -> None:
        self._answer({"kind": "json", "answer": self.simulation.to_dict()})
