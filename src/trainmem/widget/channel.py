"""What passes between a widget and its front ends: who looks, and which request is answered.

A browser asks in numbered messages, as custom messages or, where a host has none, all through one
trait. Each is answered once, by whatever is sent first: a picture, data, or nothing but that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from trainmem.config import ConfigError
from trainmem.widget.views import View, read_view

__all__ = ["Channel", "handle_message"]

MAX_CLIENTS: Final = 16
MAX_VIEWS: Final = 16
"""Front ends, and views of each, that are drawn for; the oldest make room for new ones."""

CLIENT_SECONDS: Final = 60.0
"""A front end not heard of for so long is gone: one that is seen and idle says hello sooner."""

MAX_NAME: Final = 64
"""Longest name of a front end, characters."""


class Channel:
    """The front ends of one widget, and the bookkeeping of their requests.

    It sends nothing itself, so it knows no widget.

    Attributes
    ----------
    clients : dict
        By name of a front end: when it was last heard of, and its views by kind.
    by_trait : bool
        Whether the host has no custom messages.
    """

    def __init__(self) -> None:
        self.clients: dict[str, tuple[float, dict[str, View]]] = {}
        self.by_trait = False
        self._stamps: dict[str, int] = {}
        self._replies = 0
        self._answering: dict[str, Any] | None = None

    def views(self) -> dict[str, View]:
        """Return one view of each distinct kind that somebody sees."""
        now = time.monotonic()
        for client in [c for c, (seen, _) in self.clients.items() if now - seen > CLIENT_SECONDS]:
            del self.clients[client]
        return {view.key: view for _, views in self.clients.values() for view in views.values()}

    def keep_alive(self, client: object) -> None:
        """Note that a front end lives: one that is in use has no cause to say hello."""
        if isinstance(client, str) and client in self.clients:
            self.clients[client] = (time.monotonic(), self.clients[client][1])

    def hello(self, message: Mapping[str, Any], frame_id: int) -> set[str]:
        """Note which views a front end shows; return the kinds that lack the picture `frame_id`."""
        client, wanted = message.get("client"), message.get("views")
        lacking: set[str] = set()
        if isinstance(client, str) and isinstance(wanted, list) and len(client) <= MAX_NAME:
            views = {}
            for item in wanted[:MAX_VIEWS]:
                view = read_view(item)
                if view is not None:
                    views[view.key] = view
                    if item.get("frame") != frame_id or item.get("key") != view.key:
                        lacking.add(view.key)
            self.clients = _recent(self.clients, client, (time.monotonic(), views))
        return lacking

    def unserved(self, request: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the messages of a request through the trait that weren't served yet."""
        client, messages = request.get("client"), request.get("messages")
        if not isinstance(client, str) or not isinstance(messages, list) or not messages:
            return  # without a message it only tells marimo to run cells anew
        self.by_trait = True
        for message in messages:
            stamp = message.get("stamp") if isinstance(message, dict) else None
            if isinstance(stamp, int) and stamp > self._stamps.get(client, 0):
                self._stamps = _recent(self._stamps, client, stamp)
                yield message

    def begin(self, message: Mapping[str, Any]) -> None:
        """Take up a message, which is to be answered if it has a number."""
        number = message.get("id")
        self.keep_alive(message.get("client"))
        if isinstance(number, int) and not isinstance(number, bool):
            self._answering = {"client": message.get("client"), "answers": number}

    @property
    def owes_an_answer(self) -> bool:
        """Whether nothing sent since `begin` carried the answer."""
        return self._answering is not None

    def numbered(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with the number of the request that it is the first to answer."""
        if self._answering is None or content["kind"] == "hello":
            return content
        content, self._answering = content | self._answering, None
        return content

    def reply(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return an answer for the trait, where no two are the same."""
        self._replies += 1
        return {**self.numbered(content), "n": self._replies}


class Served(Protocol):
    """What is needed of a widget to serve a message."""

    _channel: Channel

    @property
    def _lock(self) -> AbstractContextManager[Any]:
        """What every change is made under."""

    def _handler(self, kind: str) -> Callable[[Mapping[str, Any]], None] | None:
        """Return what serves messages of a kind."""

    def _answer(self, content: dict[str, Any], png: bytes | None = None) -> None:
        """Send an answer."""

    def say_refused(self, error: Exception) -> None:
        """Show why a change is refused."""


def handle_message(widget: Served, content: Any, _buffers: Any) -> None:
    """Serve one message of a front end; whatever it holds, the kernel only ever answers."""
    if not isinstance(content, Mapping):
        return
    serve = widget._handler(str(content.get("kind")))
    if serve is None:
        return
    with widget._lock:
        widget._channel.begin(content)
        try:
            serve(content)
        except ConfigError as error:
            widget.say_refused(error)
        except Exception as error:  # no kind of failure is silent
            widget.say_refused(error)
            raise
        finally:
            if widget._channel.owes_an_answer:  # no picture or data carried the answer
                widget._answer({"kind": "done"})


def _recent(known: dict[str, Any], client: str, value: Any) -> dict[str, Any]:
    """Return what is known of the front ends with one of them renewed, the oldest dropped."""
    others = [(name, old) for name, old in known.items() if name != client]
    return dict([*others, (client, value)][-MAX_CLIENTS:])
