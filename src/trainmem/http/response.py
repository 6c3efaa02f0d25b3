"""What comes back from a server, read with no trust: redirects, bodies and errors in words."""

from __future__ import annotations

import os
import ssl
from http import HTTPStatus
from typing import Final

import httpx

from trainmem.http.answer import BadAnswer, Refused
from trainmem.http.wire import parse
from trainmem.words import describe

__all__ = ["cause", "keep_location", "read_answer", "redirect"]

ANSWER_LIMIT: Final = 2**20
"""Longest answer read, bytes; the published one has 3000."""
MESSAGE_LIMIT: Final = 300


async def keep_location(response: httpx.Response) -> None:
    """Put aside where a redirect leads: httpx would read it, and fail in many ways."""
    response.extensions["location"] = response.headers.pop("location", "")


def redirect(url: httpx.URL, response: httpx.Response) -> httpx.URL:
    """Return where a redirect leads, if that is the same server (or its https twin)."""
    location = response.extensions["location"]
    try:
        target = url.join(location)
        # As it travels: decoding a foreign name may fail, and two may look the same.
        same_host = target.raw_host == url.raw_host and not target.userinfo
    except (httpx.InvalidURL, ValueError):  # the latter: urllib's, and a name's that isn't ASCII
        raise BadAnswer("redirect", f"{describe(location)} is not an address") from None
    upgrade = url.scheme == "http" and target.scheme == "https"
    same_port = (target.port == url.port) or (upgrade and target.port is None)
    same_scheme = target.scheme == url.scheme or upgrade
    if not same_host or not same_port or not same_scheme:
        problem = f"leads away from {url.scheme}://{url.netloc.decode('ascii')}, to "
        raise BadAnswer("redirect", problem + describe(_line(location)))
    return target


async def read_answer(response: httpx.Response) -> bytes:
    """Return the body of an answer of status 200."""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > ANSWER_LIMIT:
            break
    status = response.status_code
    if status >= 400:
        raise Refused(status, _message(bytes(data)) or _phrase(status))
    if status != 200:
        raise BadAnswer("status", f"{status} {_phrase(status)} instead of 200")
    if len(data) > ANSWER_LIMIT:
        raise BadAnswer("the body", "longer than 1 MiB")
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise BadAnswer("the body", f"encoded ({describe(encoding)}), which was not asked for")
    return bytes(data)


def _message(data: bytes) -> str:
    """Return the server's own words, from the usual shapes of a JSON error; else nothing."""
    try:
        answer = parse(data)
    except ValueError:
        return ""
    for name in ("detail", "error", "message"):
        words = answer.get(name) if isinstance(answer, dict) else None
        if isinstance(words, list) and words and isinstance(words[0], dict):
            place, words = words[0].get("loc"), words[0].get("msg")  # FastAPI's own shape
            if isinstance(words, str) and isinstance(place, list):
                words = ".".join(map(str, place)) + ": " + words
        if isinstance(words, str) and words.strip():
            return _line(words)
    return ""


def cause(error: BaseException) -> str:
    """Return what lies at the bottom of an error, in words ("Connection refused")."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    number = error.errno if isinstance(error, OSError) else None
    if number and number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)
    return _line(str(error)) or type(error).__name__


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _line(text: str) -> str:
    """Return foreign text as one short line that no terminal takes for a command."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"
