"""How fast the picture follows the finger, in a real JupyterLab and a real Chromium.

One notebook holds the widget and its rivals, so that all share kernel, server and page; they
take turns, so that a busy machine slows all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from lab.conftest import Notebook

from .table import in_turn

HERE = Path(__file__).parent
CELLS = {
    "widget": f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
    "%matplotlib inline\n"
    "import rivals, trainmem\n"
    "w = trainmem.TrainingMemoryWidget()\nw",
    "trait": "by_trait = rivals.ByTrait(w)\nby_trait",
    "echo": "rivals.Echo()",
    "interact": "rivals.interact(w)",
    "ipympl": "rivals.ipympl_figure(w)",
}
SUBJECTS = {  # how a change of the picture is seen, where it is, and the slider that is pressed
    "widget": ("img", ".trainmem img", ".trainmem input[type=range][aria-label=Layers]"),
    "trait": ("img", ".bench-trait img", ".bench-trait input"),
    "echo": ("text", ".bench-echo output", ".bench-echo input"),
    "interact": (
        "output",
        ".widget-interact .widget-output",
        ".bench-interact .noUi-handle",
    ),
    "ipympl": (
        "canvas",
        ".bench-ipympl canvas",
        ".bench-ipympl-slider .noUi-handle",
    ),
}
TRIALS = 30
EVENTS, HZ, DRAGS = 120, 60, 5

# Notes in the kernel which value each numbered frame shows.
RECORD = """
values = {}
def record(change):
    if change["new"].get("kind") == "frame":
        values[str(change["new"]["id"])] = w.num_layers
w.observe(record, "_reply")
"""


@pytest.fixture
def page(
    request: pytest.FixtureRequest, open_notebook: Callable[..., Notebook]
) -> Iterator[Notebook]:
    """A notebook with the subjects that a test names, all in sight."""
    names = request.param
    tall = (1400, 400 + 450 * len(names))
    notebook = open_notebook(*(CELLS[name] for name in names), viewport=tall)
    notebook.page.evaluate((HERE / "stopwatch.js").read_text())
    notebook.run("notebook:run-cell-and-select-next")  # the others take their size from it
    notebook.command("notebook:run-all-below")
    for name in names:
        _, picture, slider = SUBJECTS[name]
        notebook.page.wait_for_selector(slider, timeout=60_000)
        notebook.page.wait_for_selector(picture, timeout=60_000, state="attached")
    notebook.page.wait_for_timeout(2000)
    for name in names:
        kind, picture, _ = SUBJECTS[name]
        notebook.page.evaluate(
            "([kind, picture, name]) => stopwatch.watch(kind, picture, name)", [kind, picture, name]
        )
    yield notebook
    assert notebook.errors == []


def pressing(notebook: Notebook, name: str) -> Callable[[], float]:
    """Return what moves a slider by one key press and tells the ms until it was seen."""

    def press() -> float:
        page = notebook.page
        page.locator(SUBJECTS[name][2]).focus()
        page.evaluate("(name) => stopwatch.arm(name)", name)
        page.keyboard.down("ArrowRight")
        took = page.wait_for_function("() => stopwatch.took()", timeout=20_000).json_value()
        page.keyboard.up("ArrowRight")
        page.wait_for_function("() => stopwatch.quiet(250)")
        return float(took)

    return press


@pytest.mark.parametrize("page", [list(SUBJECTS)], indirect=True, ids=["all"])
def test_event_to_pixels(page: Notebook, add: Callable[..., None]) -> None:
    presses = [pressing(page, name) for name in SUBJECTS]
    times = dict(zip(SUBJECTS, in_turn(presses, TRIALS, warm=2), strict=True))
    against = {
        "echo": ("bare echo of one integer trait", "of it", "≤ 1.3×"),
        "trait": ("the same frame by trait sync", "faster", ""),
        "interact": ("interact, inline backend", "faster", "≥ 4×"),
        "ipympl": ("ipympl, the same artists", "faster", "≥ 2×"),
    }
    here = times["widget"]
    for name, (text, reading, target) in against.items():
        add("event → pixels", "ms", here, times[name], text, reading, target)
        late = [[np.percentile(values, 95)] for values in (here, times[name])]
        add("… 95th percentile", "ms", *late, text, reading)


def dragging(notebook: Notebook, name: str, values: dict[str, int]) -> dict[str, Any]:
    """Drag; return frames a second, latencies, how late the last was, how many were stale."""
    _, picture, slider = SUBJECTS[name]
    first = 21
    position = first - 1 if name == "widget" else first  # its slider counts from 0
    found = notebook.page.evaluate(
        "(all) => stopwatch.drag(...all)", [slider, picture, position, EVENTS, HZ]
    )
    if name == "widget":  # which value each numbered frame shows
        values |= json.loads(notebook.evaluate("import json; print(json.dumps(values))"))
    else:
        values = {str(v): v for v in range(1, 161)}
    asked = {first + i: time for i, time in enumerate(found["asked"])}
    start, end = found["asked"][0], found["asked"][-1]
    shown = {time: values[label] for label, time in found["shown"]}  # one a screen frame
    last = first + EVENTS - 1
    order = list(shown.values())
    assert values[found["final"]] == last, f"{name}: the last frame is stale, {order}"
    assert order == sorted(order), f"{name}: an older frame replaced a newer one, {order}"
    fresh: dict[int, float] = {}
    for time, value in shown.items():
        fresh.setdefault(value, time)
    return {
        "rate": 1000 * sum(time <= end for time in fresh.values()) / (end - start),
        "latency": [time - asked[value] for value, time in fresh.items()],
        "last": fresh[last] - end,
    }


@pytest.mark.parametrize("page", [["widget", "trait"]], indirect=True, ids=["two"])
def test_drag(page: Notebook, add: Callable[..., None]) -> None:
    """A drag at 60 Hz, beside the same one through plain trait sync."""
    page.evaluate(RECORD)
    seen: dict[str, int] = {}
    runs: dict[str, list[dict[str, Any]]] = {"widget": [], "trait": []}
    for turn in range(DRAGS + 1):
        for name in sorted(runs, reverse=turn % 2 == 0):
            run = dragging(page, name, seen)
            if turn:  # the first warms up
                runs[name].append(run)
    here, there = runs["widget"], runs["trait"]
    plain = "plain trait sync, ipywidgets' throttle"
    add(
        f"{HZ} Hz drag of {EVENTS}: frames shown",
        "/s",
        *([r["rate"] for r in rs] for rs in (here, there)),
        plain,
        "more",
        "≥ 1.8×",
    )
    for what, find in (
        ("… event → pixels", lambda run: median(run["latency"])),
        ("… 95th percentile", lambda run: float(np.percentile(run["latency"], 95))),
        ("… last frame after the last event", lambda run: run["last"]),
    ):
        add(what, "ms", [find(r) for r in here], [find(r) for r in there], plain)
