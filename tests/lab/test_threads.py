"""Frames drawn while a long cell runs, and while others draw with pyplot, are as ever."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from .conftest import Notebook

pytestmark = pytest.mark.lab

WIDGET = """
import base64, io, json, threading, time
import ipykernel
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
import trainmem
from trainmem.picture.frames import FrameRenderer

busy = False
frames = []  # what was drawn, of what, whether meanwhile a cell ran, and on which thread
w = trainmem.TrainingMemoryWidget()
draw = w._draw
def record(view, *, draft, simulation=None):
    png = draw(view, draft=draft, simulation=simulation)
    if simulation is None:  # else drawn ahead, for nobody yet
        frames.append((png, w.simulation, view, draft, busy, threading.current_thread()))
    return png
w._draw = record

drawn = {}
def scribble(number):
    figure, axes = plt.subplots(2, 2, num=number)
    for ax in axes.flat:
        ax.plot(np.random.rand(50).cumsum(), "--")
        ax.set_title(r"$\\sum_i x_i^2$", fontsize=8 + number)
    figure.savefig(io.BytesIO(), dpi=50 + 50 * number)
    plt.close(figure)
    drawn[number] = drawn.get(number, 0) + 1
w
"""

LONG_CELL = """
busy = True
stop = threading.Event()
def other():
    while not stop.is_set():
        scribble(2)
thread = threading.Thread(target=other)
thread.start()
longest = time.monotonic() + (60 if ipykernel.version_info >= (7,) else 5)
while time.monotonic() < longest and sum(frame[4] for frame in frames) < 8:
    scribble(1)
stop.set()
thread.join()
busy = False
"""

# Draws every frame once more, with nothing else going on.
COMPARE = """
def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
quiet = FrameRenderer()
wrong = 0
for png, simulation, view, draft, *_ in frames:
    again = quiet.render(
        simulation, width=view.width, ratio=view.ratio, theme=view.theme, draft=draft
    )
    wrong += not np.array_equal(pixels(png), pixels(again))
print(json.dumps({
    "wrong": wrong,
    "distinct": len({png for png, *_ in frames}),
    "while busy": sum(busy for *_, busy, _ in frames),
    "elsewhere": sum(thread is not threading.main_thread() for *_, thread in frames),
    "drawn": drawn,
    "last": base64.b64encode(again).decode(),
}))
"""

# Whether the picture on the page has the pixels of a PNG.
SAME_AS = """async (base64) => {
  const read = async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height).data.join();
  };
  const shown = await read(document.querySelector('.trainmem img').src);
  return shown === await read('data:image/png;base64,' + base64);
}"""


def test_frames_are_right_while_others_draw(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.evaluate("frames.clear(); scribble(1)")
    notebook.page.evaluate(
        """(code) => {
          const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
          window.finished = false;
          kernel.requestExecute({ code }).done.then(() => { window.finished = true; });
        }""",
        LONG_CELL,
    )
    notebook.page.wait_for_timeout(500)
    notebook.page.evaluate(
        """async () => {
          const slider = document.querySelector('.trainmem input[type=range][aria-label=Layers]');
          slider.dispatchEvent(new PointerEvent('pointerdown'));
          for (let i = 10; !window.finished; i = i < 110 ? i + 1 : 10) {
            slider.value = String(i);
            slider.dispatchEvent(new Event('input'));
            await new Promise((done) => setTimeout(done, 45));
          }
          slider.dispatchEvent(new PointerEvent('pointerup'));
        }"""
    )
    notebook.wait_python("w.num_layers", notebook.box("Layers").input_value(), timeout=30)
    notebook.wait_newest()
    found = json.loads(notebook.evaluate(COMPARE))
    assert found["wrong"] == 0
    assert found["distinct"] >= 3
    assert min(found["drawn"]["1"], found["drawn"]["2"]) >= 2, "nobody else drew"
    if notebook.evaluate("print(ipykernel.version_info >= (7,))") == "True":  # has subshells
        assert found["while busy"] >= 8
        assert found["elsewhere"] >= 8
    assert notebook.page.evaluate(SAME_AS, found["last"]), "the page shows something else"
    assert notebook.errors == []
