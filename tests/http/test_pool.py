"""Two servers behind nginx: they take turns, and one may die in the middle of a load."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from trainmem import Client, Refused

# What the guide shows, but for the addresses.
PAGE = Path(__file__).parents[2] / "notebooks" / "guide" / "server.md"
POOL = PAGE.read_text(encoding="utf-8").split("```nginx\n")[1].split("```")[0]
# What a system's own nginx.conf holds around it.
AROUND = """
daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    {pool}
}}
"""


@pytest.fixture
def nginx(tools: Any, tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """Run nginx; yield its address and the ports it passes requests on to."""
    program = tools.needs("nginx")
    ports = {name: tools.free_port() for name in ("8000", "8001", "8002")}
    pool = POOL
    for name, port in ports.items():
        pool = pool.replace(f":{name}", f":{port}")
    config = tmp_path / "nginx.conf"
    config.write_text(AROUND.format(dir=tmp_path, pool=pool))
    command = [program, "-p", tmp_path, "-c", config, "-e", tmp_path / "error.log"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        tools.wait_until((tmp_path / "nginx.pid").exists, 10)
        yield f"http://127.0.0.1:{ports['8000']}", [ports["8001"], ports["8002"]]
    finally:
        process.terminate()
        process.wait(timeout=10)


class Load:
    """Users who ask again and again, each at its own pace, and never retry."""

    def __init__(self, url: str, users: int = 4, pause: float = 0.02) -> None:
        self.url, self.pause = url, pause
        self.nodes: list[str] = []
        self.failures: list[BaseException] = []
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.user) for _ in range(users)]

    def user(self) -> None:
        with Client(self.url, retries=0, timeout=10) as client:
            while not self.ended.is_set():
                try:
                    self.nodes.append(client.simulate().node)
                except Exception as error:
                    self.failures.append(error)
                time.sleep(self.pause)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def test_pool_takes_turns_and_survives_a_death(nginx: Any, tools: Any) -> None:
    url, (port_a, port_b) = nginx
    with ExitStack() as stack:
        stack.enter_context(tools.running(port=port_a, node="a"))
        second = stack.enter_context(tools.running(port=port_b, node="b"))
        with Client(url, retries=0) as client:
            nodes = [client.simulate().node for _ in range(10)]
            assert nodes in (["a", "b"] * 5, ["b", "a"] * 5)

            with Load(url) as load:
                tools.wait_until(lambda: len(load.nodes) >= 60)
                os.killpg(second.process.pid, signal.SIGKILL)  # perhaps in the middle of an answer
                killed_at = len(load.nodes)
                tools.wait_until(lambda: len(load.nodes) >= killed_at + 100)
                alone_from = len(load.nodes) - 50
                stack.enter_context(tools.running(port=port_b, node="b again"))
                tools.wait_until(lambda: load.nodes[-20:].count("b again") >= 8)
            assert all("complete message body" in str(failure) for failure in load.failures)
            assert len(load.failures) <= len(load.threads)
            counts = Counter(load.nodes[:killed_at])
            assert min(counts["a"], counts["b"]) >= 0.4 * killed_at
            assert set(load.nodes[alone_from : alone_from + 50]) == {"a"}

            nodes = [client.simulate().node for _ in range(10)]
            assert nodes in (["a", "b again"] * 5, ["b again", "a"] * 5)


def test_pool_without_a_node_says_so(nginx: Any) -> None:
    with (
        Client(nginx[0], retries=1) as client,
        pytest.raises(Refused, match=r"\(502\): Bad Gateway"),
    ):
        client.simulate()
