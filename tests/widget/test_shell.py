"""The widget as ipywidgets has it: opened, put in boxes, saved, closed."""

from __future__ import annotations

import base64
import copy
import gc
import json
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import traitlets
from ipywidgets.widgets import widget as ipywidgets_widget

from trainmem.config import FIELDS, ConfigError
from trainmem.widget.shell import TrainingMemoryWidget

from .kit import OUTPUTS, PNG, VIEW, Browser

# -- opening


def test_opens_with_its_first_answer_in_one_message(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget(num_gpus=64)
    state = widget.comm.opening["data"]["state"]
    assert state["num_gpus"] == 64
    assert state["fits"] is True
    assert state["_panel"]["headline"] == "✓ Fits"
    assert state["_alt"]
    assert widget.comm.sent == []
    assert drawn == []


def test_state_is_json_with_every_input_and_output() -> None:
    state = TrainingMemoryWidget().get_state()
    assert state.keys() >= {*FIELDS, "gpu", *OUTPUTS, "error"}
    assert "simulation" not in state
    json.dumps({name: value for name, value in state.items() if name != "_frame"})


def test_unknown_keywords_are_type_errors() -> None:
    for keywords in ({"num_gpu": 8}, {"fits": True}, {"_panel": {}}, {"value": 1}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            TrainingMemoryWidget(**keywords)
    with pytest.raises(ConfigError, match="zero_stage"):
        TrainingMemoryWidget(zero_stage=4)


def test_takes_what_any_widget_takes() -> None:
    widget = TrainingMemoryWidget(tooltip="How much it needs", tabbable=True, num_gpus=64)
    assert (widget.tooltip, widget.tabbable, widget.num_gpus) == ("How much it needs", True, 64)
    state = widget.comm.opening["data"]["state"]  # which no view is without
    assert (state["tooltip"], state["tabbable"]) == ("How much it needs", True)
    assert TrainingMemoryWidget(tooltip=None, layout=None).tooltip is None
    with pytest.raises(traitlets.TraitError, match="'tooltip' trait"):
        TrainingMemoryWidget(tooltip=3)  # type: ignore[arg-type]


def test_takes_a_layout() -> None:
    assert TrainingMemoryWidget(layout={"width": "50%"}).layout.width == "50%"
    layout = ipywidgets.Layout(height="10px")
    widget = TrainingMemoryWidget(layout=layout)
    assert widget.layout is layout
    widget.close()
    assert layout.comm is not None  # the user's own, perhaps of other widgets too
    layout.close()


# -- what it shows where it can't run


def test_mimebundle_carries_the_view_the_picture_and_a_line() -> None:
    widget = TrainingMemoryWidget()
    data, _metadata = widget._repr_mimebundle_()
    view = data["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == widget.model_id
    assert base64.b64decode(data["image/png"]).startswith(PNG)
    assert data["text/plain"].startswith("✓ Fits: ")
    assert "\n" not in data["text/plain"]
    assert len(data["text/plain"]) < 300


def test_without_a_front_end_the_state_keeps_the_picture_of_the_bundle(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    data, _metadata = widget._repr_mimebundle_()
    assert widget._frame == base64.b64decode(data["image/png"]) == PNG + b"1"
    widget.num_gpus = 64
    assert widget._frame == b""  # never the picture of other numbers
    widget._repr_mimebundle_()
    assert drawn[-1]["simulation"] is widget.simulation
    assert widget._frame == PNG + b"2"
    browser = Browser(widget)
    browser.hello(VIEW)
    shown = widget._frame
    widget._repr_mimebundle_()
    assert widget._frame == shown  # the front end's own


def test_an_executed_notebook_is_saved_with_the_last_picture(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    cells = [
        "import trainmem\nw = trainmem.TrainingMemoryWidget()",
        "w",
        "w.update(seq_length=65536)",
        "for stage in (0, 1, 2): w.zero_stage = stage",
        "from base64 import b64encode; from trainmem.widget.views import STILL",
        "print(b64encode(w._draw(STILL, draft=False)).decode())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    (found,) = [s for s in states.values() if s["model_module"] == "anywidget"]
    assert found["state"]["zero_stage"] == 2
    (kept,) = [b["data"] for b in found["buffers"] if b["path"] == ["_frame"]]
    printed = notebook.cells[-1].outputs[0].text
    assert base64.b64decode(kept) == base64.b64decode(printed)


def test_repr_is_one_line() -> None:
    text = repr(TrainingMemoryWidget(num_gpus=64))
    assert text.startswith("<TrainingMemoryWidget ")
    assert text.endswith(" fits: num_gpus=64>")
    assert "\n" not in text


def test_figure_is_plain_matplotlib_and_no_frame_loads_pyplot() -> None:
    code = (
        "import sys; from trainmem import TrainingMemoryWidget as W; w = W();"
        "f = w.figure(theme='dark'); w._repr_mimebundle_(); w.num_gpus = 64;"
        "from trainmem.picture.frames import FrameRenderer;"
        "FrameRenderer().render(w.simulation, width=600, ratio=1, theme='dark');"
        "print(type(f).__mro__[-4:], 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "matplotlib.figure.Figure" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_lives_in_boxes_and_links() -> None:
    widget, other = TrainingMemoryWidget(), TrainingMemoryWidget()
    slider, label = ipywidgets.IntSlider(min=1, max=512), ipywidgets.FloatText()
    for box in (ipywidgets.HBox, ipywidgets.VBox):
        assert box([widget, slider, other]).children == (widget, slider, other)
    for name in [*FIELDS, "gpu"]:
        ipywidgets.jslink((other, name), (widget, name)).unlink()
    for name in OUTPUTS:
        ipywidgets.jsdlink((widget, name), (label, "value")).unlink()
    traitlets.link((slider, "value"), (widget, "num_gpus"))
    slider.value = 32
    assert widget.num_gpus == 32
    widget.num_gpus = 16
    assert slider.value == 16


def test_a_widget_says_why_it_is_not_copied() -> None:
    widget = TrainingMemoryWidget(num_gpus=16)
    for take in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a TrainingMemoryWidget is bound to its views"):
            take(widget)


# -- threads and lifetime


def test_close_frees_the_comm_and_the_figures_and_keeps_the_answer() -> None:
    widget = TrainingMemoryWidget(num_gpus=64)
    comm = widget.comm
    Browser(widget).hello(VIEW)
    assert widget._renderer._surfaces
    widget.close()
    assert comm.closed
    assert widget.comm is None
    assert not widget._renderer._surfaces
    assert widget._channel.clients == {}
    sent = len(comm.sent)
    widget.num_gpus = 32  # still a model
    assert widget.fits is True
    assert len(comm.sent) == sent
    assert not widget._renderer._surfaces
    widget.close()  # twice does no harm


def test_closed_widgets_leave_no_instance() -> None:
    known = set(ipywidgets_widget._instances)
    gone: list[weakref.ref[TrainingMemoryWidget]] = []
    for n in range(50):
        widget = TrainingMemoryWidget(num_gpus=n + 1)
        if n % 10 == 0:  # draws
            Browser(widget).hello(VIEW)
        widget.zero_stage = 1
        Browser(widget).set(num_gpus=64)
        with pytest.raises(ConfigError):
            widget.num_gpus = 0
        widget.close()
        gone.append(weakref.ref(widget))
    assert set(ipywidgets_widget._instances) == known  # nor their layouts
    del widget
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []
