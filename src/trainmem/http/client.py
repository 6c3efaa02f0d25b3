"""The same simulation from a server: `Client`, and its `AsyncClient` twin (extra `remote`).

`AsyncClient` holds all there is to know; `Client` runs one on an event loop in a thread of its
own. So every call has one deadline, can be cancelled at any moment, and works where a loop is
running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import threading
import weakref
from concurrent.futures import Future
from typing import Any, Final, Self, Unpack
from urllib.request import getproxies

try:
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(
        "the client needs httpx, which isn't installed: pip install 'trainmem[remote]'"
    ) from error

from trainmem import __version__
from trainmem.config import Inputs, TrainingConfig, takes
from trainmem.http.answer import (
    BadAnswer,
    CannotConnect,
    Comparison,
    Refused,
    RemoteError,
    TimedOut,
    compare,
    decode,
)
from trainmem.http.endpoint import authorities, check_proxies, endpoint
from trainmem.http.response import cause, keep_location, read_answer, redirect
from trainmem.http.wire import PATH, is_loopback
from trainmem.simulate_step import resolve, simulate
from trainmem.simulation import Simulation
from trainmem.words import describe

__all__ = ["AsyncClient", "Client"]

PUBLISHED_URL: Final = "https://www.chipfoundryservices.com"
BACK_OFF: Final = 0.2
"""Pause before the first retry, seconds; doubled each time, and varied by a half."""
AGAIN: Final = frozenset({502, 503, 504})
REDIRECTS: Final = frozenset({301, 302, 307, 308})
MAX_REDIRECTS: Final = 3


class AsyncClient:
    """Asks a server for simulations, from within one event loop (asyncio).

    Proxies come from the environment (`HTTPS_PROXY` and its like), but for a server on this
    machine, and authorities from `SSL_CERT_FILE` or `SSL_CERT_DIR` where they are set.

    Parameters
    ----------
    base_url : str
        Address of the server, http or https.
    path : str
        Path of the endpoint there.
    timeout : float
        Time for one call, retries included, seconds.
    connect_timeout : float
        Time for one attempt to connect, seconds.
    retries : int
        Further attempts after a failed connection or a status 502, 503 or 504. Asking twice
        is safe: the server keeps nothing.
    ssl_context : ssl.SSLContext, optional
        Whom to trust, where that isn't the usual authorities. Verification can't be turned off
        by accident: there is no switch for it.

    Raises
    ------
    ValueError
        For an address that can't be, naming what is wrong with it, and for a variable of the
        environment that can't, by its name.
    """

    def __init__(
        self,
        base_url: str = PUBLISHED_URL,
        *,
        path: str = PATH,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        retries: int = 2,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if not timeout > 0 or not connect_timeout > 0:
            given = f"{describe(timeout)} and {describe(connect_timeout)}"
            raise ValueError(f"timeout and connect_timeout: {given}; both must be above 0 s")
        if not 0 <= retries <= 10:
            raise ValueError(f"retries: {describe(retries)} is not allowed; must be from 0 to 10")
        self._url = endpoint(base_url, path)
        self.timeout = timeout
        self.retries = retries
        self._connect_timeout = connect_timeout
        self._trust = ssl_context or authorities()
        self._open()

    def _open(self) -> None:
        """Make the pool of connections of this process."""
        self._process = os.getpid()
        proxied = not is_loopback(self._url.host)  # no proxy leads to this machine
        if proxied:
            check_proxies()
        try:
            self._http = httpx.AsyncClient(
                verify=self._trust,
                trust_env=proxied,
                event_hooks={"response": [keep_location]},
                follow_redirects=False,
                timeout=httpx.Timeout(self.timeout, connect=self._connect_timeout),
                headers={
                    "User-Agent": f"trainmem/{__version__}",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",  # so that what is counted is what arrives
                },
            )
        except (ValueError, httpx.InvalidURL) as error:
            hosts = describe(getproxies().get("no"))
            raise ValueError(f"NO_PROXY: {hosts} is no list of hosts: {error}") from None

    @property
    def url(self) -> str:
        """Where requests go."""
        return str(self._url)

    @property
    def host(self) -> str:
        """The server's name in a word, for a button."""
        return self._url.netloc.decode("ascii")

    def __repr__(self) -> str:
        """One line: where requests go."""
        return f"<{type(self).__name__} {self.url}>"

    @takes(Inputs)
    async def simulate(
        self, config: TrainingConfig | None = None, **changes: Unpack[Inputs]
    ) -> Simulation:
        """Return the server's answer to a request; arguments as of `trainmem.simulate`.

        Raises
        ------
        CannotConnect
            No connection, or one that broke, at every attempt.
        TimedOut
            No complete answer in time.
        Refused
            The server said no; its words are shown.
        BadAnswer
            The answer isn't one to this request; the offending field is named.
        ConfigError
            For an unknown field or a bad value: nothing was sent.
        """
        config = resolve(config, changes)
        body = json.dumps(config.to_dict()).encode()
        try:
            async with asyncio.timeout(self.timeout):
                return decode(await self._ask(body), config)
        except RemoteError:
            raise
        except TimeoutError:
            problem = f"{self.host} gave no complete answer within {self.timeout:g} s"
            raise TimedOut(problem) from None

    @takes(Inputs)
    async def compare(
        self, config: TrainingConfig | None = None, **changes: Unpack[Inputs]
    ) -> Comparison:
        """Run the request here (reduced-order model) and there, and list what differs.

        Raises as `simulate`.
        """
        config = resolve(config, changes)
        return compare(simulate(config), await self.simulate(config))

    async def aclose(self) -> None:
        """Close the connections; the client can't be used any more."""
        if self._process == os.getpid():  # those of the process before a fork are its own
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client, to be closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self.aclose()

    async def _ask(self, body: bytes) -> bytes:
        """Return the body of the answer, after as many attempts as it takes."""
        for attempt in range(self.retries):
            try:
                return await self._post(body)
            except (CannotConnect, Refused) as error:
                if isinstance(error, Refused) and error.status not in AGAIN:
                    raise
            pause = BACK_OFF * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311  # no secret
            await asyncio.sleep(pause)
        return await self._post(body)

    async def _post(self, body: bytes) -> bytes:
        """Return the body of the answer to one attempt."""
        url = self._url
        headers = {"Content-Type": "application/json"}
        if self._process != os.getpid():  # the connections are those of the process before a fork
            self._open()
        try:
            for _ in range(1 + MAX_REDIRECTS):
                request = self._http.stream("POST", url, content=body, headers=headers)
                async with request as response:
                    if response.status_code not in REDIRECTS:
                        return await read_answer(response)
                    url = redirect(url, response)
        except httpx.ConnectTimeout:
            raise TimedOut(f"no connection to {self.host} in the time allowed") from None
        except httpx.TimeoutException:
            raise TimedOut(f"no answer from {self.host} in the time allowed") from None
        except httpx.TransportError as error:
            raise CannotConnect(f"cannot connect to {self.host}: {cause(error)}") from None
        raise BadAnswer("redirect", f"more than {MAX_REDIRECTS} in a row")


class Client:
    """Asks a server for simulations; the twin of `AsyncClient` for ordinary code.

    Takes the arguments of `AsyncClient`. It may be shared between threads, and works in a
    notebook, whose own event loop is running. Close it, or use it in a ``with`` block.
    """

    def __init__(
        self,
        base_url: str = PUBLISHED_URL,
        *,
        path: str = PATH,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        retries: int = 2,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._twin = AsyncClient(
            base_url,
            path=path,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            ssl_context=ssl_context,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stop: weakref.finalize[..., Any] | None = None
        self._closed = False
        _CLIENTS.add(self)

    @property
    def url(self) -> str:
        """Where requests go."""
        return self._twin.url

    @property
    def host(self) -> str:
        """The server's name in a word, for a button."""
        return self._twin.host

    def __repr__(self) -> str:
        """One line: where requests go."""
        return f"<{type(self).__name__} {self.url}>"

    @takes(Inputs)
    def submit(
        self, config: TrainingConfig | None = None, **changes: Unpack[Inputs]
    ) -> Future[Simulation]:
        """Ask without waiting: return a future of what `simulate` returns or raises.

        Cancelling it drops the connection. Its callbacks run in the client's thread.

        Raises
        ------
        ConfigError
            For an unknown field or a bad value, right away.
        RuntimeError
            Where the client is closed.
        """
        config = resolve(config, changes)
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._loop is None:
                self._start()
            assert self._loop is not None  # noqa: S101
            return asyncio.run_coroutine_threadsafe(self._twin.simulate(config), self._loop)

    @takes(Inputs)
    def simulate(
        self, config: TrainingConfig | None = None, **changes: Unpack[Inputs]
    ) -> Simulation:
        """Return the server's answer to a request; see `AsyncClient.simulate`."""
        future = self.submit(config, **changes)
        try:
            return future.result()
        finally:
            future.cancel()  # of use only where the wait was interrupted

    @takes(Inputs)
    def compare(
        self, config: TrainingConfig | None = None, **changes: Unpack[Inputs]
    ) -> Comparison:
        """Run the request here and there, and list what differs; see `AsyncClient.compare`."""
        config = resolve(config, changes)
        return compare(simulate(config), self.simulate(config))

    def close(self) -> None:
        """Cancel what is under way and close the connections."""
        with self._lock:
            self._closed = True
            if self._stop is not None:
                self._stop()

    def __enter__(self) -> Self:
        """Return the client, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        self.close()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        # The thread knows the loop and the twin, not the client: one forgotten is collected,
        # and its thread ends.
        thread = threading.Thread(
            target=_run, args=(self._loop, self._twin), name="trainmem-client", daemon=True
        )
        thread.start()
        self._stop = weakref.finalize(self, _end, self._loop, thread)

    def _forked(self) -> None:
        """Forget what a fork left with the parent: the thread, its loop, and who held the lock."""
        self._lock = threading.Lock()
        self._loop = None
        if self._stop is not None:
            self._stop.detach()
            self._stop = None


_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client._forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _run(loop: asyncio.AbstractEventLoop, twin: AsyncClient) -> None:
    """Run the loop until it is stopped, then cancel its tasks and close all."""
    try:
        loop.run_forever()
        loop.run_until_complete(_wind_up(twin))
    finally:
        loop.close()


async def _wind_up(twin: AsyncClient) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await twin.aclose()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():  # the collector may call from anywhere
        thread.join(timeout=5)
