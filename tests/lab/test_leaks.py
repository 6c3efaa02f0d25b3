"""Two hundred widgets made, shown, changed and closed leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable

import ipywidgets
import pytest

import trainmem

from .conftest import Notebook

pytestmark = pytest.mark.lab

CELL = """
import gc, json
import comm, ipywidgets, matplotlib.figure, matplotlib.pyplot as plt, psutil
import trainmem

def count():
    gc.collect()
    alive = [type(thing) for thing in gc.get_objects()]
    registry = ipywidgets.widgets.widget._instances
    return json.dumps({
        "widgets": sum(issubclass(kind, trainmem.TrainingMemoryWidget) for kind in alive),
        "renderers": sum(kind.__name__ == "FrameRenderer" for kind in alive),
        "figures": sum(issubclass(kind, matplotlib.figure.Figure) for kind in alive),
        "pyplot": len(plt.get_fignums()),
        "registered": len(registry),
        "comms": len(comm.get_comm_manager().comms),
        "resident MB": psutil.Process().memory_info().rss / 1e6,
    })

first = trainmem.TrainingMemoryWidget()
shelf = ipywidgets.VBox([first])
shelf
"""
AT_ONCE, BATCHES, WARM = 10, 20, 3

SHOW = f"""
made = [trainmem.TrainingMemoryWidget(num_gpus=2 + i) for i in range({AT_ONCE})]
shelf.children = made
"""
CHANGE = "for w in made: w.update(seq_length=8192, zero_stage=2)"
CLOSE = """
shelf.children = []
for w in made: w.close()
del made, w
"""
ALL_SHOW = """([count, length]) => {
  const roots = [...document.querySelectorAll('.trainmem')];
  return roots.length === count && roots.every((root) => root.dataset.status === 'live'
    && root.querySelector('input[type=text][aria-label^=Sequence]').value === length);
}"""
MOVE_ALL = """() => {
  for (const slider of document.querySelectorAll('.trainmem input[aria-label=Layers]')) {
    slider.value = '40';
    slider.dispatchEvent(new Event('input'));
  }
}"""


def page_counts(notebook: Notebook) -> dict[str, float]:
    """Count what the page holds after a collection of its garbage."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {
        "listeners": metrics["JSEventListeners"],
        "nodes": metrics["Nodes"],
        "views": notebook.page.locator(".trainmem").count(),
    }


def test_two_hundred_widgets_leave_nothing_behind(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook(CELL, viewport=(1400, 1600))
    notebook.run()
    notebook.evaluate("shelf.children = []\nfirst.close()\ndel first")
    counts = []
    for batch in range(BATCHES):
        notebook.evaluate(SHOW)
        notebook.until(ALL_SHOW, [AT_ONCE, "4096"], timeout=60_000)
        notebook.evaluate(CHANGE)
        notebook.until(ALL_SHOW, [AT_ONCE, "8192"])
        notebook.page.evaluate(MOVE_ALL)
        notebook.page.wait_for_timeout(200)
        notebook.evaluate(CLOSE)
        notebook.until("() => document.querySelectorAll('.trainmem').length === 0")
        if batch in (WARM - 1, BATCHES - 1):
            notebook.page.wait_for_timeout(1500)
            counts.append(json.loads(notebook.evaluate("print(count())")) | page_counts(notebook))
    before, after = counts
    for what in ("widgets", "renderers", "figures", "pyplot", "views"):
        assert after[what] == 0, what
    assert after["registered"] == before["registered"] == 2  # the shelf and its layout
    assert after["comms"] == before["comms"]
    more = {what: after[what] - before[what] for what in after}
    closed = AT_ONCE * (BATCHES - WARM)
    assert more["listeners"] < closed / 4, more  # of about sixty in each
    assert more["nodes"] < 4 * closed, more  # of about four hundred; anywidget keeps a <style>
    assert more["resident MB"] < 0.25 * closed, more  # a figure alone has several
    assert notebook.errors == []


def test_a_layout_that_was_given_outlives_the_widget() -> None:
    given = ipywidgets.Layout(width="50%")
    widget = trainmem.TrainingMemoryWidget(layout=given)
    widget.close()
    assert given.comm is not None
    own = trainmem.TrainingMemoryWidget(layout={"width": "50%"})
    layout = own.layout
    own.close()
    assert layout.comm is None
