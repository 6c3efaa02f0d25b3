"""A check against a server in the background: nothing blocks, and no late answer shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from trainmem.config import TrainingConfig
from trainmem.http.answer import RemoteError, compare
from trainmem.simulation import Simulation

__all__ = ["RemoteCheck", "Server"]

MOST_DIFFERENCES: Final = 6
"""Differing fields named in full; the others are counted."""


class Server(Protocol):
    """What is needed of `trainmem.Client`."""

    @property
    def host(self) -> str:
        """Name of the server, for the button."""

    def submit(self, config: TrainingConfig) -> Future[Simulation]:
        """Ask without waiting; cancelling the future drops the connection."""


class RemoteCheck:
    """Asks one server for the answer to a request, one at a time, and says whether it agrees.

    Parameters
    ----------
    server : Server
        Whom to ask.
    publish : callable
        Takes each new status: a dict of `host`, `state` ("idle", "running", "agrees",
        "differs" or "failed") and `text`. Called from the server's thread too.
    lock : reentrant lock
        The asker's own, held around every status: two locks could wait for each other.
    """

    def __init__(
        self,
        server: Server,
        publish: Callable[[dict[str, str]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._server = server
        self._publish = publish
        self._lock = lock
        self._future: Future[Simulation] | None = None
        self._shown = False
        self._tell("idle", "")

    def ask(self, local: Simulation) -> None:
        """Send the request of `local`; its answer is compared with `local` when it comes."""
        with self._lock:
            self.drop()
            self._tell("running", f"Waiting for {self._server.host} …")
            try:
                future = self._future = self._server.submit(local.config)
            except (RemoteError, RuntimeError) as error:
                self._tell("failed", _sentence(error))
                return
        future.add_done_callback(lambda done: self._answered(done, local))

    def drop(self) -> None:
        """Forget the question and its answer: the inputs have changed, or the widget closed."""
        with self._lock:
            future, self._future = self._future, None
            if future is not None:
                future.cancel()
            if self._shown:
                self._tell("idle", "")

    def _answered(self, future: Future[Simulation], local: Simulation) -> None:
        with self._lock:
            if future is not self._future:
                return  # it answers inputs of the past
            self._future = None
            try:
                remote = future.result()
            except CancelledError:
                self._tell("idle", "")
            except Exception as error:  # whatever went wrong there is said, never raised here
                self._tell("failed", _sentence(error))
            else:
                self._tell(*_verdict(local, remote))

    def _tell(self, state: str, text: str) -> None:
        self._shown = state != "idle"
        self._publish({"host": self._server.host, "state": state, "text": text})


def _verdict(local: Simulation, remote: Simulation) -> tuple[str, str]:
    """Say who answered, how fast, and whether it agrees."""
    who = f"{remote.node} answered in {remote.compute_ms:g} ms"
    found = compare(local, remote).differences
    if not found:
        return "agrees", f"{who} and agrees in every field."
    named = "; ".join(str(difference) for difference in found[:MOST_DIFFERENCES])
    more = len(found) - MOST_DIFFERENCES
    return "differs", f"{who} and differs: {named}{f'; and {more} more' if more > 0 else ''}."


def _sentence(error: Any) -> str:
    text = str(error) or type(error).__name__
    return f"{text[0].upper()}{text[1:]}".rstrip(".") + "."
