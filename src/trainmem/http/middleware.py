"""What every request passes through: counting, and a guard against foreign host names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from trainmem.http.bodies import as_json
from trainmem.http.wire import is_loopback
from trainmem.words import describe

__all__ = ["Counters", "Hosts"]


class Counters:
    """Middleware that counts requests: served so far, and in flight."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counted."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope["app"].state
        state.in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            state.in_flight -= 1
            state.served += 1


class Hosts:
    """Middleware that refuses names under which a web page elsewhere could reach this machine.

    A page may have its own name lead to a loopback address (DNS rebinding), and is then no
    stranger to the browser. What nobody elsewhere can own passes: an address, a name without a
    dot, `localhost`. Only connections over loopback are checked, where other names are allowed
    one by one: a machine that serves others has names that it doesn't know.

    Parameters
    ----------
    app : ASGI application
        What to guard.
    allowed : sequence of str
        Further names, or `*` for all.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self.app = app
        self.allowed = {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and is_loopback((scope.get("server") or ("",))[0]):
            for name, value in scope["headers"]:
                if name == b"host" and not self.allows(value.decode("latin-1")):
                    problem = (
                        f"the host {describe(value.decode('latin-1'))} is not one of this server's "
                        "names; start it with --allow-host NAME to add one"
                    )
                    await as_json({"detail": problem}, 421)(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this machine."""
        found = HOST.fullmatch(host.lower())
        if found is None:
            return "*" in self.allowed
        name = (found["address"] or found["name"]).removesuffix(".")
        if "." not in name or name.endswith(".localhost") or {name, "*"} & self.allowed:
            return True
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return False


HOST: Final = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[\w.-]+))(?::\d+)?")
