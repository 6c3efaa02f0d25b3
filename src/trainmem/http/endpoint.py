"""Where a client's requests go: the address, the proxies on the way, and whom to trust."""

from __future__ import annotations

import os
import re
import ssl
from importlib.util import find_spec
from typing import Final
from urllib.request import getproxies

import httpx

from trainmem.http.response import cause
from trainmem.words import describe

__all__ = ["authorities", "check_proxies", "endpoint"]

MAX_PORT: Final = 65_535


def endpoint(base_url: str, path: str) -> httpx.URL:
    """Return the address of an endpoint, or raise `ValueError` that says what is wrong with it."""

    def refuse(problem: str) -> ValueError:
        return ValueError(f"base_url: {describe(base_url)} {problem}")

    try:
        url = httpx.URL(base_url)
        host = url.host  # decodes a name that isn't ASCII
    except (httpx.InvalidURL, TypeError, ValueError):
        raise refuse("is not an address") from None
    if b"%" in url.netloc:  # what httpx makes of characters that no host has
        raise refuse("is not an address")
    if url.scheme not in ("http", "https") or not host:
        raise refuse("must begin with http:// or https:// and name a host")
    if url.port is not None and not 0 < url.port <= MAX_PORT:
        raise refuse(f"must have a port from 1 to {MAX_PORT}")
    if url.userinfo or url.query or url.fragment:
        raise refuse("must be a plain address: no user, query or fragment")
    try:
        return url.copy_with(path=url.path.rstrip("/") + "/" + path.lstrip("/"))
    except (httpx.InvalidURL, AttributeError):
        raise ValueError(f"path: {describe(path)} is not a path") from None


def authorities() -> ssl.SSLContext:
    """Return whom to trust: as the environment says, else httpx's own list."""
    for name, option in (("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")):
        path = os.environ.get(name)
        if path:
            try:
                os.stat(path)  # OpenSSL takes a folder that isn't there
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**{option: path})
            except (OSError, ValueError) as error:
                raise _unusable(name, path, error) from None
            break  # as httpx does, the first of the two
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:
        name = "SSLKEYLOGFILE"
        raise _unusable(name, os.environ.get(name, ""), error) from None


def _unusable(name: str, value: str, error: Exception) -> ValueError:
    return ValueError(f"{name}: {describe(value)} can't be used: {cause(error)}")


def check_proxies() -> None:
    """Raise `ValueError` that names the variable whose proxy can't be used."""
    for scheme, address in getproxies().items():
        if scheme not in ("http", "https", "all") or not address:
            continue
        name = f"{scheme.upper()}_PROXY"
        shown = describe(re.sub(r"//[^/]*@", "//…@", address))  # no password in a message
        try:
            url = httpx.Proxy(address if "://" in address else f"http://{address}").url
            good = bool(url.host) and b"%" not in url.netloc and (url.port or 1) <= MAX_PORT
        except (ValueError, httpx.InvalidURL):
            good = False
        if not good:
            raise ValueError(f"{name}: {shown} is not the address of a proxy")
        if url.scheme.startswith("socks") and find_spec("socksio") is None:
            raise ValueError(f"{name}: {shown} needs a package: pip install 'httpx[socks]'")
