"""Servers for the tests: ours, in a process of its own, and one that misbehaves as told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url: str, timeout: float = 5) -> Any:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def wait_until(done: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: list[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> dict[str, Any]:
        return fetch(f"{self.url}/edge/status")

    def answers(self) -> bool:
        try:
            return bool(self.status())
        except OSError:
            return False

    def stop(self) -> None:
        """Stop gracefully, workers too; kill the group if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(prelude: str = "", *, port: int | None = None, **arguments: Any) -> Iterator[Server]:
    """Run `trainmem.http.server.serve` in a process (group) of its own."""
    port = port or free_port()
    call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    imports = "from trainmem.http import bodies, protocol, server"
    code = f"{imports}\n{prelude}\nserver.serve(port={port}, {call})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.PIPE
    )
    server = Server(process, port, log=[])
    # A pipe that nobody reads would block the server once full.
    reader = threading.Thread(target=lambda: server.log.extend(process.stderr), daemon=True)
    reader.start()
    try:
        wait_until(lambda: server.answers() or process.poll() is not None)
        assert process.poll() is None, b"".join(server.log).decode()
        yield server
    finally:
        server.stop()
        reader.join(timeout=5)
        process.stderr.close()


def needs(program: str) -> str:
    """Return the path of a program; without it the test is skipped."""
    beside = Path(sys.executable).parent  # where the environment keeps its programs
    path = shutil.which(program) or shutil.which(program, path=f"{beside}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"needs {program}")
    return path


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running() as one:
        yield one


@pytest.fixture(scope="session")
def published() -> dict[str, Any]:
    return json.loads((DATA / "api-response.json").read_text())


Reply = Callable[[socket.socket], None]


class Misbehaving:
    """A server whose n-th request meets the n-th reply, and all later ones the last."""

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.replies = replies
        self.tls = tls
        self.requests: list[bytes] = []
        self.hung_up = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        if self.tls is not None:
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:  # the client didn't like the certificate
                connection.close()
                return
        with connection:
            try:
                request = read_request(connection)
                if not request:
                    return
                with self._lock:
                    self.requests.append(request)
                    reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
                reply(connection)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass
            finally:
                self.hung_up.set()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def misbehaving() -> Iterator[Callable[..., Misbehaving]]:
    servers: list[Misbehaving] = []

    def start(*replies: Reply, **options: Any) -> Misbehaving:
        servers.append(Misbehaving(*replies, **options))
        return servers[-1]

    yield start
    for one in servers:
        one.close()


@pytest.fixture(scope="session")
def tools() -> Any:
    """The helpers above, for tests (which importlib mode keeps from importing this file)."""

    class Tools:
        pass

    for helper in (free_port, fetch, wait_until, running, needs):
        setattr(Tools, helper.__name__, staticmethod(helper))
    return Tools
