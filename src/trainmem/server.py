"""The same API served from your own machine: FastAPI on uvicorn (extra `server`).

`serve` runs it; ``uvicorn --factory trainmem.server:app`` does too, under your own settings.
One simulation takes a tenth of a millisecond, less than a thread switch would: so it runs
right in the event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import multiprocessing
import os
import platform
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.middleware.cors import CORSMiddleware
    from starlette.exceptions import HTTPException
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ModuleNotFoundError as error:
    raise ImportError(
        f"the server needs {error.name}, which isn't installed: pip install 'trainmem[server]'"
    ) from error

from trainmem import __version__
from trainmem.config import ConfigError, TrainingConfig, describe, json_schema
from trainmem.simulation import simulate
from trainmem.wire import ALIASES, PATH, answer_schema, encode, is_loopback, parse

__all__ = ["app", "create_app", "serve"]

STATUS_PATH: Final = "/edge/status"
BODY_LIMIT: Final = 64_000
"""Longest request body, bytes; the published request has 200."""
DRAIN_LIMIT: Final = 1_000_000
"""How much of a longer one is read and dropped, so that its sender gets to see the refusal."""
HEAD_SECONDS: Final = 10.0
"""Time in which a request's head must arrive, from when the server could have read it."""
BODY_SECONDS: Final = 10.0
"""Time in which a request body must arrive."""
STOP_SECONDS: Final = 10
"""Time in which requests in flight finish after a stop was asked for."""

# Settings reach the workers, which are processes of their own, through the environment.
NODE_VARIABLE: Final = "TRAINMEM_NODE"
ORIGINS_VARIABLE: Final = "TRAINMEM_ALLOW_ORIGIN"
HOSTS_VARIABLE: Final = "TRAINMEM_ALLOW_HOST"


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


UVICORN_OPTIONS: Final[dict[str, Any]] = {
    "factory": True,
    "http": Protocol,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": STOP_SECONDS,
}


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
                    await _json({"detail": problem}, 421)(scope, receive, send)
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


def create_app(
    *,
    node: str | None = None,
    allow_origin: Sequence[str] = (),
    allow_host: Sequence[str] = (),
) -> FastAPI:
    """Return the API as an ASGI application.

    Parameters
    ----------
    node : str, optional
        Who `node` in the answers says computed them; the host's name where omitted.
    allow_origin : sequence of str
        Origins whose web pages may call the API (CORS); none by default.
    allow_host : sequence of str
        Names beside addresses, `localhost` and names without a dot under which the API answers
        over loopback, such as that of a proxy on this machine; `*` for all.
    """
    node = node or platform.node() or "localhost"
    app = FastAPI(
        title="trainmem",
        version=__version__,
        description="Does this LLM training step fit in GPU memory, and if not, what would?",
        docs_url=None,  # both pages of FastAPI load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.started, app.state.in_flight, app.state.served = time.monotonic(), 0, 0

    async def training(request: Request) -> Response:
        config = read_config(await read_body(request))
        return Response(encode(simulate(config), node=node), media_type="application/json")

    async def status() -> Response:
        return _json(
            {
                "node": node,
                "pid": os.getpid(),
                "version": __version__,
                "uptime_s": round(time.monotonic() - app.state.started, 3),
                "requests_served": app.state.served,
                "in_flight": app.state.in_flight,
            }
        )

    for path in (PATH, *ALIASES):
        app.add_api_route(
            path,
            training,
            methods=["POST"],
            response_class=Response,
            operation_id=path.rsplit("/", 1)[1],
            summary="Simulate one training step",
            responses=TRAINING_RESPONSES,
            openapi_extra={"requestBody": {"required": True, "content": _content(json_schema())}},
        )
    app.add_api_route(
        STATUS_PATH,
        status,
        methods=["GET"],
        response_class=Response,
        operation_id="status",
        summary="Who answers (one worker of perhaps several), and how busy it is",
        responses={200: {"description": "The worker's state", "content": _content(STATUS_SCHEMA)}},
    )
    app.add_exception_handler(ConfigError, _bad_config)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(Exception, _failure)
    app.add_middleware(Hosts, allowed=allow_host)
    app.add_middleware(Counters)
    if allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allow_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type"],
        )
    return app


def app() -> FastAPI:
    """Return the application as `serve` set it up, for uvicorn's workers (a factory)."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def stop_with_parent() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        # Else workers of a parent that was killed would keep the port for ever.
        threading.Thread(target=stop_with_parent, daemon=True).start()
    origins = os.environ.get(ORIGINS_VARIABLE, "").split()
    hosts = os.environ.get(HOSTS_VARIABLE, "").split()
    node = os.environ.get(NODE_VARIABLE)
    return create_app(node=node, allow_origin=origins, allow_host=hosts)


def serve(
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    allow_origin: Sequence[str] = (),
    *,
    node: str | None = None,
    allow_host: Sequence[str] = (),
) -> None:
    """Serve the API until interrupted or terminated; requests in flight then finish.

    Parameters
    ----------
    host : str
        Address to listen on. Anything but loopback gives a warning on stderr: the API has
        no login.
    port : int
        TCP port; 0 for any free one.
    workers : int
        Processes that share the port.
    allow_origin : sequence of str
        Origins whose web pages may call the API (CORS); none by default.
    node : str, optional
        Who `node` in the answers says computed them; else the environment's
        ``TRAINMEM_NODE``, else the host's name.
    allow_host : sequence of str
        Further names under which it answers over loopback (see `create_app`).

    Raises
    ------
    ValueError
        For a port or a worker count that can't be.
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"port: {describe(port)} is not allowed; must be from 0 to 65535")
    if workers < 1:
        raise ValueError(f"workers: {describe(workers)} is not allowed; must be at least 1")
    if not is_loopback(host):
        print(
            f"warning: listening on {host}: whoever can reach this machine can use the server, "
            "which has no login and no TLS; put a proxy in front, or use --host 127.0.0.1",
            file=sys.stderr,
        )
    os.environ[ORIGINS_VARIABLE] = " ".join(allow_origin)
    os.environ[HOSTS_VARIABLE] = " ".join(allow_host)
    if node:
        os.environ[NODE_VARIABLE] = node
    uvicorn.run("trainmem.server:app", host=host, port=port, workers=workers, **UVICORN_OPTIONS)


async def read_body(request: Request) -> bytes:
    """Return the body of a JSON request.

    Raises
    ------
    HTTPException
        415 for another media type or an encoded body, 413 for one beyond `BODY_LIMIT` however it
        is sent, 408 for one that doesn't arrive in time.
    """
    _check_media_type(request.headers.get("content-type"))
    _check_encoding(request.headers.get("content-encoding", ""))
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > DRAIN_LIMIT:
                    break
    except TimeoutError:
        problem = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise HTTPException(408, problem, {"Connection": "close"}) from None
    if len(body) > BODY_LIMIT:
        problem = f"the body is longer than {BODY_LIMIT} bytes"
        raise HTTPException(413, problem, {"Connection": "close"})
    return bytes(body)


def _check_media_type(given: str | None) -> None:
    media_type, *parameters = (part.strip().lower() for part in (given or "").split(";"))
    if media_type != "application/json":
        found = "there is no Content-Type" if given is None else f"it is {describe(given)}"
        raise HTTPException(415, f"the media type must be application/json, and {found}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise HTTPException(415, f"the charset must be utf-8, not {describe(value)}")


def _check_encoding(given: str) -> None:
    if given.strip().lower() not in ("", "identity"):
        problem = f"the body must not be encoded, and its Content-Encoding is {describe(given)}"
        raise HTTPException(415, problem, {"Accept-Encoding": "identity"})


def read_config(body: bytes) -> TrainingConfig:
    """Return the request that a body holds.

    Raises
    ------
    HTTPException
        400 for a body that isn't JSON, 422 for JSON that isn't an object.
    ConfigError
        For an unknown field or a bad value.
    """
    try:
        values = parse(body)
    except ValueError as error:
        raise HTTPException(400, f"the body is {error}") from None
    if not isinstance(values, dict):
        raise HTTPException(422, f"the body must be a JSON object, not {describe(values)}")
    return TrainingConfig.from_mapping(values)


# Handlers take any exception by signature; Starlette passes those they are registered for.


async def _bad_config(_: Request, error: Exception) -> Response:
    assert isinstance(error, ConfigError)  # noqa: S101
    value = describe(error.value)
    detail = {"detail": str(error), "field": error.field, "value": value, "allowed": error.allowed}
    return _json(detail, 422)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    detail = error.detail
    if error.status_code == 404:
        detail = f"nothing is at {describe(request.url.path)}; the API is POST {PATH}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{describe(request.method)} is not allowed here; use {allowed}"
    return _json({"detail": detail}, error.status_code, error.headers)


async def _failure(_: Request, __: Exception) -> Response:
    return _json({"detail": "internal error; the server's log says more"}, 500)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(json.dumps(value), status, headers, "application/json")


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


STATUS_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "node": {"type": "string"},
        "pid": {"type": "integer"},
        "version": {"type": "string"},
        "uptime_s": {"type": "number", "description": "Seconds since the worker started."},
        "requests_served": {"type": "integer", "description": "By this worker, of any kind."},
        "in_flight": {"type": "integer", "description": "This request included."},
    },
    "required": ["node", "pid", "version", "uptime_s", "requests_served", "in_flight"],
}
ERROR_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "detail": {"type": "string", "description": "What is wrong, in a sentence."},
        "field": {"type": "string", "description": "The offending input, where it is one."},
        "value": {"type": "string", "description": "What was given there."},
        "allowed": {"type": "string", "description": "What would have been accepted."},
    },
    "required": ["detail"],
}
TRAINING_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The simulation", "content": _content(answer_schema())},
    **{
        status: {"description": description, "content": _content(ERROR_SCHEMA)}
        for status, description in {
            400: "The body is not JSON",
            408: "The body did not arrive in time",
            413: f"The body is longer than {BODY_LIMIT} bytes",
            415: "The media type is not application/json, or the body is encoded",
            421: "The Host is none of this server's names",
            422: "An input is unknown or not allowed",
        }.items()
    },
}
