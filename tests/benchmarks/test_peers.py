"""One point of a sweep, beside other simulators from PyPI in an environment of their own."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainmem import simulate

from .table import in_turn

VERSIONS = {"mlsysim": "0.3.0", "llm-analysis": "0.2.2"}
# llm-analysis asks for transformers, which it needs for other models than the built-in ones.
BESIDE = ["fire==0.5.0", "numpy==2.2.6", "pint==0.24.4", "pydantic==2.10.5", "pyyaml", "rich",
          "typer"]  # fmt: skip
POINTS = 48


@pytest.fixture(scope="module")
def peers(cache: Path) -> Iterator[Callable[[str], float]]:
    """A process in the peers' environment, made on first use: seconds a point, by name."""
    folder = cache / "peers-{mlsysim}-{llm-analysis}".format(**VERSIONS)
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *BESIDE], check=True)
        pinned = [f"{name}=={version}" for name, version in VERSIONS.items()]
        subprocess.run([*pip, "--no-deps", *pinned], check=True)
        (folder / "complete").touch()
    process = subprocess.Popen(
        [str(python), "-W", "ignore", str(Path(__file__).with_name("peer.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    while (line := process.stdout.readline()) != "ready\n":
        assert line, "the peers did not start"

    def seconds(name: str) -> float:
        print(name, POINTS, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    yield seconds
    process.stdin.close()
    process.wait(30)


def test_sweep_point(peers: Callable[[str], float], add: Callable[..., None]) -> None:
    """Ours is a whole `simulate()` over its 96 points, limits and verdict included."""
    lengths = itertools.cycle(range(1024, 8192, 64))

    def ours() -> float:
        points = 0
        start = time.perf_counter()
        for _ in range(20):
            found = simulate(seq_length=next(lengths))
            points += len(found.gpu_sweep.x) + len(found.seq_sweep.x)
        return (time.perf_counter() - start) / points

    measured = in_turn([ours, *(lambda name=name: peers(name) for name in VERSIONS)], 15)
    here = [1e6 * seconds for seconds in measured[0]]
    for (name, version), times in zip(VERSIONS.items(), measured[1:], strict=True):
        add(
            "one sweep point", "µs", here, [1e6 * seconds for seconds in times],
            f"{name} {version}", "faster", "≥ 100×",
        )  # fmt: skip
