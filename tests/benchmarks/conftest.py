"""The benchmarks' table, printed once at the end; the browser tests' JupyterLab."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.conftest import artifacts, browser, lab, open_notebook, pages  # noqa: F401  (fixtures)

from .table import Row, markdown, records

ROWS = pytest.StashKey[list[Row]]()
CACHE = Path(__file__).parents[2] / ".benchmarks"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []
    config.option.benchmark_quiet = True  # its own table; ours shows its rows too


@pytest.fixture
def add(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add a row to the table: `add("what", "ms", here, baseline, …)`, as `Row` takes them."""

    def added(*values: Any, **named: Any) -> None:
        request.config.stash[ROWS].append(Row(*values, **named))

    return added


@pytest.fixture(scope="session")
def cache() -> Path:
    """A folder that git ignores, kept between runs."""
    CACHE.mkdir(exist_ok=True)
    return CACHE


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    terminalreporter.write_line("")
    terminalreporter.write_line(
        f"Medians, quartiles in brackets. Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {load:.1f}."
    )
    terminalreporter.write_line(markdown(rows))
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"table-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(records(rows), indent=1))
