"""One connection to the server: no waiting for small packets, and a time limit on heads."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["Protocol"]

HEAD_SECONDS: Final = 10.0
"""Time in which a request's head must arrive, from when the server could have read it."""


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # known at run time
    """HTTP as uvicorn speaks it, with Nagle's algorithm off, and a time limit on heads.

    asyncio turns the former off only on sockets opened as IPPROTO_TCP, which those that uvicorn
    hands to its workers are not; each answer then waits some 40 ms between its head and its body.
    uvicorn itself closes a connection that is idle after an answer, but neither one that never
    asked nor one whose head goes on and on.
    """

    head_timer: asyncio.TimerHandle | None = None
    head_begun = False

    def connection_made(self, transport: Any) -> None:
        """Set up a new connection."""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; whatever it is, the limit on a head counts on."""
        super().data_received(data)
        self.head_begun = True
        self.watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.head_begun = False
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.stop_watching()
        super().connection_lost(exc)

    def watch(self) -> None:
        """Start the time for a head, where none is served and it doesn't run yet."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_watching()
        elif self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def stop_watching(self) -> None:
        """Stop the time for a head."""
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def give_up(self) -> None:
        """Close the connection; one that has begun to ask is told why."""
        if self.transport.is_closing():
            return
        if self.head_begun:
            problem = f"the request's head did not arrive within {HEAD_SECONDS:g} s"
            body = json.dumps({"detail": problem}).encode()
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()
