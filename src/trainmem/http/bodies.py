"""Bodies of requests and answers: read within limits, checked, and written as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from fastapi import Request, Response
from starlette.exceptions import HTTPException

from trainmem.config import TrainingConfig
from trainmem.http.wire import parse
from trainmem.words import describe

__all__ = ["as_json", "read_body", "read_config"]

BODY_LIMIT: Final = 64_000
"""Longest request body, bytes; the published request has 200."""
DRAIN_LIMIT: Final = 1_000_000
"""How much of a longer one is read and dropped, so that its sender gets to see the refusal."""
BODY_SECONDS: Final = 10.0
"""Time in which a request body must arrive."""


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


def as_json(value: Any, status: int = 200, headers: Any = None) -> Response:
    """Return an answer of the server's own as JSON."""
    return Response(json.dumps(value), status, headers, "application/json")
