"""Load figures of the HTTP endpoint, beside a route that does all but compute.

    python tests/benchmarks/load.py [--seconds 1] [--rounds 10] [--connections 8]

It stands beside two routes on the same server that return an answer of the same bytes made
beforehand: a plain FastAPI route, whose body FastAPI parses and validates by a pydantic model of
the same fields and bounds, and one that reads the body by the very functions of the endpoint.
Rounds alternate, so that all meet the same weather. Client and server share one machine: on a
busy one, trust the best round and the CPU time rather than the median.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, create_model

import trainmem
from trainmem.config import FIELDS
from trainmem.http.bodies import read_body, read_config
from trainmem.http.server import create_app
from trainmem.http.wire import PATH, encode

PLAIN, CEILING = "/plain", "/ceiling"


def body_model() -> type[BaseModel]:
    """Return the request as a pydantic model."""
    kinds = {"int": int, "float": float}
    fields = {
        name: (Literal[field.choices], field.default)
        if field.choices
        else (kinds[field.kind], Field(field.default, ge=field.bounds[0], le=field.bounds[1]))
        for name, field in FIELDS.items()
    }
    config = ConfigDict(extra="forbid", protected_namespaces=())
    return create_model("Body", __config__=config, **fields)


Body = body_model()


def app() -> FastAPI:
    """Return the server under test, with the ceiling beside its endpoint."""
    application = create_app()
    answer = encode(trainmem.simulate())

    async def ceiling(request: Request) -> Response:
        read_config(await read_body(request))
        return Response(answer, media_type="application/json")

    async def plain(config: Body) -> Response:
        return Response(answer, media_type="application/json")

    for path, route in ((CEILING, ceiling), (PLAIN, plain)):
        application.add_api_route(path, route, methods=["POST"], response_class=Response)
    return application


@contextmanager
def serving(workers: int) -> Iterator[tuple[int, set[int]]]:
    """Run the server; yield its port and its workers' process ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import uvicorn; from trainmem.http.server import UVICORN_OPTIONS as options\n"
        f"uvicorn.run('load:app', app_dir={str(Path(__file__).parent)!r}, port={port}, "
        f"workers={workers}, log_level='warning', **options)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        pids: set[int] = set()
        deadline = time.monotonic() + 60
        while len(pids) < workers:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
            with suppress(OSError):
                url = f"http://127.0.0.1:{port}/edge/status"
                pids.add(json.load(urllib.request.urlopen(url, timeout=5))["pid"])
        yield port, pids
    finally:
        process.terminate()
        process.wait(timeout=30)


def requests(path: str) -> list[bytes]:
    """Return the bytes of requests that all differ."""
    found = []
    for gpus in (1, 2, 3, 4, 8, 16, 24, 32, 64):
        for length in (512, 1000, 2048, 4096, 10_000, 32_768):
            config = trainmem.TrainingConfig(num_gpus=gpus, seq_length=length)
            body = json.dumps(config.to_dict()).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


@dataclass
class Tally:
    """One round: seconds of each request, requests lost, and what the server spent on them."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    rate: float = 0.0
    cpu: float = 0.0


def cpu_seconds(pids: set[int]) -> float:
    """Return the CPU time that processes have used so far (Linux)."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def user(port: int, texts: list[bytes], first: int, until: float, tally: Tally) -> None:
    """Ask one request after the other on one connection, until the time is up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for text in islice(cycle(texts), first, None):
            start = time.perf_counter()
            if start > until:
                return
            connection.sendall(text)
            data = connection.recv(65536)
            end = data.find(b"\r\n\r\n") + 4
            at = data.find(b"content-length: ") + 16
            length = end + int(data[at : data.find(b"\r", at)])
            while len(data) < length:
                more = connection.recv(65536)
                if not more:
                    break
                data += more
            if data.startswith(b"HTTP/1.1 200") and len(data) == length:
                tally.seconds.append(time.perf_counter() - start)
            else:
                tally.lost += 1


def load(port: int, pids: set[int], path: str, options: argparse.Namespace) -> Tally:
    """Run one round."""
    texts, tally, before = requests(path), Tally(), cpu_seconds(pids)
    start = time.perf_counter()
    threads = [
        threading.Thread(target=user, args=(port, texts, 7 * n, start + options.seconds, tally))
        for n in range(options.connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.rate = len(tally.seconds) / (time.perf_counter() - start)
    tally.cpu = (cpu_seconds(pids) - before) / len(tally.seconds)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    parts = [n for n in ("httptools", "uvloop") if importlib.util.find_spec(n)] or ["h11, asyncio"]
    print(f"{os.cpu_count()} cores shared by client and server, {options.connections} connections,")
    print(f"uvicorn on {', '.join(parts)}; {options.rounds} rounds of {options.seconds:g} s")
    print(f"machine's load before: {os.getloadavg()[0]:.1f}\n")
    print("                          requests/s                   server CPU      ")
    print("workers  route           median   best  p50 ms  p99 ms  µs/request  lost")
    for workers in (1, 2):
        with serving(workers) as (port, pids):
            paths = (PLAIN, CEILING, PATH)
            for path in paths:
                load(port, pids, path, options)  # warm up
            rounds = [
                [load(port, pids, path, options) for path in paths] for _ in range(options.rounds)
            ]
        for path, runs in zip(paths, zip(*rounds, strict=True), strict=True):
            ms = sorted(1e3 * second for run in runs for second in run.seconds)
            rates = [run.rate for run in runs]
            print(
                f"{workers:7}  {path:15}{median(rates):7.0f}{max(rates):7.0f}"
                f"{ms[len(ms) // 2]:8.2f}{ms[len(ms) * 99 // 100]:8.2f}"
                f"{1e6 * median(run.cpu for run in runs):12.0f}{sum(run.lost for run in runs):6}"
            )
        ours = [run[-1] for run in rounds]
        for place, path in enumerate(paths[:-1]):
            beside = [run[place] for run in rounds]
            pairs = median(a.rate / b.rate for a, b in zip(ours, beside, strict=True))
            best = max(run.rate for run in ours) / max(run.rate for run in beside)
            cpu = median(b.cpu / a.cpu for a, b in zip(ours, beside, strict=True))
            print(f"         {'of ' + path:15}{pairs:7.0%}{best:7.0%}{cpu:28.0%}")
        print()


if __name__ == "__main__":
    main()
