"""What the widget is measured against in the notebook; imported by the kernel."""

from __future__ import annotations

from typing import Any

import anywidget
import ipywidgets
import matplotlib.pyplot as plt
from traitlets import Bytes, Int, observe

from trainmem import TrainingMemoryWidget, simulate
from trainmem.picture.figure import Drawing, draw_budget, draw_gpu_sweep, draw_seq_sweep, frame_size
from trainmem.picture.frames import FrameRenderer

LAYERS = (1, 160)
START = 32
WIDTH = 900
INLINE = "module://matplotlib_inline.backend_inline"


def picture_size(widget: TrainingMemoryWidget | None = None) -> tuple[int, int]:
    """Return the size of the widget's picture in pixels, that all others draw too."""
    views = widget._channel.views() if widget else {}
    return frame_size(next(iter(views.values())).width if views else WIDTH)


class Echo(anywidget.AnyWidget):
    """One integer goes to the kernel and comes back."""

    asked = Int(START).tag(sync=True)
    answered = Int(START).tag(sync=True)
    _esm = """
    export default { render({ model, el }) {
      el.innerHTML = "<div class='bench-echo'><input type=range min=1 max=160 value=32>"
        + "<output></output></div>";
      const slider = el.querySelector("input"), output = el.querySelector("output");
      slider.addEventListener("keydown", (event) => event.stopPropagation());
      slider.addEventListener("input", () => {
        model.set("asked", Number(slider.value));
        model.save_changes();
      });
      model.on("change:answered", () => { output.textContent = model.get("answered"); });
    } };
    """

    @observe("asked")
    def _asked(self, change: Any) -> None:
        self.answered = change["new"]


class ByTrait(anywidget.AnyWidget):
    """The same frames by plain trait sync, throttled as ipywidgets does."""

    asked = Int(START).tag(sync=True)
    shown = Int(START).tag(sync=True)
    frame = Bytes().tag(sync=True)
    _esm = """
    export default { render({ model, el }) {
      el.innerHTML = "<div class='bench-trait'><input type=range min=1 max=160 value=32><br>"
        + "<img></div>";
      const slider = el.querySelector("input"), image = el.querySelector("img");
      slider.addEventListener("keydown", (event) => event.stopPropagation());
      slider.addEventListener("input", () => {
        model.set("asked", Number(slider.value));
        model.save_changes();
      });
      const paint = () => {
        const old = image.src;
        image.dataset.value = model.get("shown");
        image.src = URL.createObjectURL(new Blob([model.get("frame")], { type: "image/png" }));
        if (old) URL.revokeObjectURL(old);
      };
      model.on("change:frame", paint);
      if (model.get("frame").byteLength) paint();
    } };
    """

    def __init__(self, like: TrainingMemoryWidget) -> None:
        super().__init__()
        self.like = like
        self.renderer = FrameRenderer()
        self._asked({"new": START})

    @observe("asked")
    def _asked(self, change: Any) -> None:
        simulation = simulate(num_layers=change["new"])
        png = self.renderer.render(
            simulation, width=picture_size(self.like)[0], ratio=1, theme="light", draft=True
        )
        with self.hold_sync():
            self.shown = change["new"]
            self.frame = png


def interact(like: TrainingMemoryWidget) -> None:
    """Rebuild the same figure with pyplot at each move of an `interact` slider."""

    def show(layers: int) -> None:
        width, height = picture_size(like)
        _, axes = plt.subplots(1, 3, figsize=(width / 72, height / 72), dpi=72)
        simulation = simulate(num_layers=layers)
        for draw, ax in zip((draw_gpu_sweep, draw_seq_sweep, draw_budget), axes, strict=True):
            draw(ax, simulation)
        plt.show()

    slider = ipywidgets.IntSlider(START, *LAYERS)
    slider.add_class("bench-interact")
    ipywidgets.interact(show, layers=slider)


def ipympl_figure(like: TrainingMemoryWidget) -> ipywidgets.Widget:
    """Move the very artists of the widget's picture in an ipympl canvas."""
    from ipympl.backend_nbagg import Canvas, FigureManager

    plt.switch_backend(INLINE)  # the import took pyplot over
    width, height = picture_size(like)
    drawing = Drawing(width, height, "light", dpi=72)
    drawing.scale(simulate(num_layers=START))
    drawing.update(simulate(num_layers=START))
    canvas = Canvas(drawing.figure)
    FigureManager(canvas, 0)
    canvas.add_class("bench-ipympl")
    slider = ipywidgets.IntSlider(START, *LAYERS)

    def move(change: Any) -> None:
        drawing.update(simulate(num_layers=change["new"]))
        canvas.draw_idle()

    slider.observe(move, "value")
    slider.add_class("bench-ipympl-slider")
    return ipywidgets.VBox([slider, canvas])
