"""The same API served from your own machine: FastAPI on uvicorn (extra `server`).

`serve` runs it; ``uvicorn --factory trainmem.http.server:app`` does too, under your own settings.
One simulation takes a tenth of a millisecond, less than a thread switch would: so it runs
right in the event loop.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
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
except ModuleNotFoundError as error:
    raise ImportError(
        f"the server needs {error.name}, which isn't installed: pip install 'trainmem[server]'"
    ) from error

from trainmem import __version__
from trainmem.config import ConfigError, json_schema
from trainmem.http.bodies import BODY_LIMIT, as_json, read_body, read_config
from trainmem.http.middleware import Counters, Hosts
from trainmem.http.protocol import Protocol
from trainmem.http.wire import ALIASES, PATH, answer_schema, encode, is_loopback
from trainmem.simulate_step import simulate
from trainmem.words import describe

__all__ = ["app", "create_app", "serve"]

STATUS_PATH: Final = "/edge/status"
STOP_SECONDS: Final = 10
"""Time in which requests in flight finish after a stop was asked for."""

# Settings reach the workers, which are processes of their own, through the environment.
NODE_VARIABLE: Final = "TRAINMEM_NODE"
ORIGINS_VARIABLE: Final = "TRAINMEM_ALLOW_ORIGIN"
HOSTS_VARIABLE: Final = "TRAINMEM_ALLOW_HOST"


UVICORN_OPTIONS: Final[dict[str, Any]] = {
    "factory": True,
    "http": Protocol,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": STOP_SECONDS,
}


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
        return as_json(
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
    uvicorn.run(
        "trainmem.http.server:app", host=host, port=port, workers=workers, **UVICORN_OPTIONS
    )


# Handlers take any exception by signature; Starlette passes those they are registered for.


async def _bad_config(_: Request, error: Exception) -> Response:
    assert isinstance(error, ConfigError)  # noqa: S101
    value = describe(error.value)
    detail = {"detail": str(error), "field": error.field, "value": value, "allowed": error.allowed}
    return as_json(detail, 422)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    detail = error.detail
    if error.status_code == 404:
        detail = f"nothing is at {describe(request.url.path)}; the API is POST {PATH}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{describe(request.method)} is not allowed here; use {allowed}"
    return as_json({"detail": detail}, error.status_code, error.headers)


async def _failure(_: Request, __: Exception) -> Response:
    return as_json({"detail": "internal error; the server's log says more"}, 500)


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
