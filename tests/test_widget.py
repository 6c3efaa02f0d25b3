"""`TrainingMemoryWidget` against a recorded comm: what a browser would send and receive."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import traitlets
from ipywidgets.widgets import widget as ipywidgets_widget

import trainmem.picture.frames
import trainmem.simulation
import trainmem.widget.shell
import trainmem.widget.traits
from trainmem.config import FIELDS, ConfigError, TrainingConfig
from trainmem.outputs import OUTPUT_NAMES
from trainmem.picture.frames import FrameRenderer
from trainmem.request import DERIVED
from trainmem.simulate_step import simulate
from trainmem.transformer import STACKS
from trainmem.widget import channel
from trainmem.widget.ahead import REST_SECONDS
from trainmem.widget.controls import tables
from trainmem.widget.edits import MAX_UNDO
from trainmem.widget.front_end import packed_text
from trainmem.widget.shell import PADDING, TrainingMemoryWidget
from trainmem.widget.words import panel

JS = Path(__file__).parents[1] / "js"
PNG = b"\x89PNG\r\n\x1a\n"
VIEW = {"width": 640, "ratio": 2, "theme": "light", "frame": -1, "key": ""}
OUTPUTS = [name for name in OUTPUT_NAMES if name != "zero_stage"] + [
    "headroom_gb",
    "longest_sequence",
    "largest_micro_batch",
    "min_gpus_reason",
]


class Comm:
    """Stands in for the connection to a browser; keeps all that is sent, in order."""

    def __init__(self, **opening: Any) -> None:
        self.opening = opening
        self.comm_id = opening.get("comm_id") or f"comm-{id(self)}"
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.closed = False

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        json.dumps(data)  # what can't be written as JSON never reaches a browser
        self.sent.append((data, [bytes(b) for b in buffers or []]))

    def on_msg(self, handler: Callable[[dict[str, Any]], None]) -> None:
        self.handler = handler

    def close(self, *_args: Any, **_options: Any) -> None:
        self.closed = True


class Browser:
    """One front end of a widget."""

    def __init__(self, widget: TrainingMemoryWidget, client: str = "browser") -> None:
        self.widget, self.client, self.number = widget, client, 0
        self.picture = b""  # what `_frame` holds in the browser

    @property
    def sent(self) -> list[tuple[dict[str, Any], list[bytes]]]:
        return self.widget.comm.sent

    def message(self, content: Any) -> None:
        data = {"method": "custom", "content": content}
        self.widget.comm.handler({"content": {"data": data}, "buffers": []})

    def state(self, **values: Any) -> None:
        """Set traits as ``jslink`` does."""
        data = {"method": "update", "state": values, "buffer_paths": []}
        self.widget.comm.handler({"content": {"data": data}, "buffers": []})

    def hello(self, *views: Any) -> None:
        self.message({"kind": "hello", "client": self.client, "n": 1, "views": list(views)})

    def set(self, draft: bool = False, **changes: Any) -> int:
        self.number += 1
        self.message(
            {
                "kind": "set",
                "client": self.client,
                "id": self.number,
                "changes": changes,
                "draft": draft,
            }
        )
        return self.number

    def take(self) -> list[tuple[str, Any, list[bytes]]]:
        """Return what has arrived: (kind or "update", content, buffers), oldest first.

        An answer in an update of the traits follows it.
        """
        arrived = []
        for data, buffers in self.sent:
            if data["method"] == "custom":
                arrived.append((data["content"]["kind"], data["content"], buffers))
            else:
                state = dict(data["state"])
                for (name,), value in zip(data["buffer_paths"], buffers, strict=True):
                    state[name] = value
                reply = state.pop("_reply", None)
                self.picture = state.pop("_frame", self.picture)
                if state or reply is None:
                    arrived.append((data["method"], state, buffers))
                if reply is not None:
                    shown = [self.picture] if reply["kind"] == "frame" else []
                    arrived.append((reply["kind"], reply, shown))
        self.sent.clear()
        return arrived


@pytest.fixture(autouse=True)
def comms(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(ipywidgets_widget.comm, "create_comm", Comm)
    yield
    TrainingMemoryWidget.close_all()
    # ipywidgets logs what a message handler raises, and goes on.
    assert "Exception in callback" not in caplog.text


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the renderer by one that only notes what it was asked for."""
    log: list[dict[str, Any]] = []

    def render(_self: FrameRenderer, simulation: object, **options: Any) -> bytes:
        log.append({"simulation": simulation, **options})
        return PNG + str(len(log)).encode()

    monkeypatch.setattr(FrameRenderer, "render", render)
    return log


def kinds(arrived: list[tuple[str, Any, list[bytes]]]) -> list[str]:
    return [kind for kind, _, _ in arrived]


def answers(arrived: list[tuple[str, Any, list[bytes]]]) -> list[int]:
    return [
        content["answers"]
        for kind, content, _ in arrived
        if kind != "update" and "answers" in content
    ]


def consistent(widget: TrainingMemoryWidget) -> None:
    answer = simulate(widget.config)
    for name in OUTPUTS:
        assert getattr(widget, name) == getattr(answer, name), name
    shown, wanted = widget._panel, panel(answer)
    for each in (shown, wanted):
        each.pop("footer", None)  # says how long it took
    assert shown == wanted


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


# Reads pairs of texts; prints the syntax tree of each program, and each style sheet minified.
SAME = """
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import ts from "typescript";
const { transform } = createRequire(import.meta.resolve("vite"))("lightningcss");
const { js, css } = JSON.parse(readFileSync(0, "utf8"));
const tree = (node) => {
  const own = node.text ?? node.operator ?? "";
  const parts = [node.kind, own, node.flags & ts.NodeFlags.BlockScoped];
  node.forEachChild((child) => { parts.push(tree(child)); });
  return parts;
};
const program = (text) => {
  const file = ts.createSourceFile("widget.js", text, ts.ScriptTarget.Latest);
  if (file.parseDiagnostics.length) throw new Error(JSON.stringify(file.parseDiagnostics[0]));
  return JSON.stringify(file.statements.map(tree));
};
const rules = (text) =>
  transform({ filename: "widget.css", code: Buffer.from(text), minify: true }).code.toString()
    .replace(/,\\s+/g, ",");  // var() keeps its fallback as it was written
console.log(JSON.stringify({ js: js.map(program), css: css.map(rules) }));
"""


TRICKY = 'a = b / 2 / c; x = (/[/ "]  y/g); z = "// no" + `/* ${a  + 1} */`; i++ + ++j; // go\n'


def test_what_is_sent_is_the_front_end_to_the_letter_of_its_program() -> None:
    """Comments and indentation may go, and nothing that a parser sees."""
    node = shutil.which("node")
    if node is None or not (JS / "node_modules").is_dir():
        pytest.skip("needs Node and the front end's packages (npm install in js)")
    widget = TrainingMemoryWidget()
    texts = {
        kind: [sent, (JS / f"widget.{kind}").read_text(encoding="utf-8")]
        for kind, sent in (("js", widget._esm), ("css", widget._css))
    }
    texts["js"] += [packed_text(TRICKY, script=True), TRICKY]
    done = subprocess.run(
        [node, "--input-type=module", "-e", SAME],
        input=json.dumps(texts),
        cwd=JS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind, (sent, whole, *odd) in json.loads(done.stdout).items():
        assert sent == whole, kind
        assert len(sent) > 5_000, kind
        assert odd[:1] == odd[1:]


def test_front_end_is_text_and_a_path_only_for_live_editing() -> None:
    widget = TrainingMemoryWidget()
    assert len((widget._esm + widget._css).encode()) < 40_000
    code = """if True:
        import importlib, os
        import trainmem.widget.shell as shell
        for flag in ("", "0", "1"):
            os.environ["ANYWIDGET_HMR"] = flag
            kind = importlib.reload(shell).TrainingMemoryWidget
            print(type(kind._esm).__name__, type(kind._css).__name__)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["str str", "str str", "FileContents FileContents"]


def test_the_front_ends_test_data_has_the_present_shape() -> None:
    """The fixture of the JavaScript tests is what Python sends."""
    fixture = json.loads((JS / "test" / "state.json").read_text(encoding="utf-8"))

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [shape(item) for item in value[:1]]
        return "number" if isinstance(value, int | float) else type(value).__name__

    widget = TrainingMemoryWidget()
    assert shape(fixture["fits"]) == shape({n: getattr(widget, n) for n in fixture["fits"]})
    assert [f["name"] for f in fixture["fits"]["_tables"]["fields"]] == list(FIELDS)
    widget.update(model_params_b=70.0)
    assert shape(fixture["short"]) == shape({n: getattr(widget, n) for n in fixture["short"]})


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


# -- hello, views and frames


def test_hello_is_answered_and_then_drawn_for(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    (_, hello, _), (_, frame, buffers) = arrived = browser.take()
    assert kinds(arrived) == ["hello", "frame"]
    assert hello["n"] == 1
    assert frame["key"] == "640x2-light"
    assert frame["draft"] is False
    assert buffers == [PNG + b"1"]
    assert [(d["width"], d["ratio"], d["theme"]) for d in drawn] == [(640, 2.0, "light")]
    browser.hello({**VIEW, "frame": frame["id"], "key": frame["key"]})
    assert kinds(browser.take()) == ["hello"]  # nothing is lacking
    assert len(drawn) == 1


def test_frames_are_real_pictures() -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.set(num_gpus=64)
    frames = [buffers for kind, _, buffers in browser.take() if kind == "frame"]
    assert len(frames) == 2
    assert frames[0] != frames[1]
    for (png,) in frames:
        assert png.startswith(PNG)
        assert int.from_bytes(png[16:20], "big") == 1280  # device pixels


def test_numbers_arrive_with_the_picture(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    for change in (
        lambda: browser.set(num_gpus=64),
        lambda: browser.set(draft=True, num_gpus=65),
        lambda: setattr(browser.widget, "num_gpus", 66),
        lambda: browser.widget.update(num_gpus=67, seq_length=1024),
        lambda: browser.state(num_gpus=68),
    ):
        change()
        arrived = browser.take()
        numbers = [
            content for kind, content, _ in arrived if kind == "update" and "_panel" in content
        ]
        assert len(numbers) == 1  # all of a change in one message
        first = max(i for i, (_, content, _) in enumerate(arrived) if "_panel" in content)
        assert kinds(arrived)[first + 1] == "frame"
        assert {"global_batch", "aggregate_cluster_gb", "_alt"} <= numbers[0].keys()
    assert [d["draft"] for d in drawn] == [False, False, True, False, False, False]


def test_one_frame_for_each_distinct_kind_of_visible_view(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    browser, other = Browser(widget), Browser(widget, "other")
    dark = {**VIEW, "theme": "dark"}
    browser.hello(VIEW, VIEW, dark)
    other.hello(dark, {**VIEW, "width": 500})
    browser.take()
    del drawn[:]
    browser.set(num_gpus=64)
    arrived = browser.take()
    keys = [content["key"] for kind, content, _ in arrived if kind == "frame"]
    assert sorted(keys) == ["500x2-light", "640x2-dark", "640x2-light"]
    assert len(drawn) == 3
    assert answers(arrived) == [browser.number]  # one answer, however many pictures


def test_hidden_views_cost_nothing(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    widget.num_gpus = 64  # never shown
    browser.hello(VIEW)
    browser.hello()  # out of sight
    del drawn[:]
    browser.take()
    widget.num_gpus = 65
    browser.set(num_gpus=66)
    arrived = browser.take()
    assert drawn == []
    assert "frame" not in kinds(arrived)
    assert answers(arrived) == [browser.number]
    browser.hello(VIEW)
    assert kinds(browser.take()) == ["hello", "frame"]  # back in sight, at once up to date
    assert drawn[0]["simulation"].config.num_gpus == 66


def test_silent_front_ends_are_forgotten(drawn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    later = time.monotonic() + channel.CLIENT_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    del drawn[:]
    browser.widget.num_gpus = 64
    assert drawn == []


def test_a_front_end_in_use_is_drawn_for_without_another_hello(
    drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    start = time.monotonic()
    for minute in range(1, 5):
        later = start + 0.9 * minute * channel.CLIENT_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda now=later: now)
        del drawn[:]
        browser.set(num_gpus=10 + minute)
        assert len(drawn) == 1


def test_front_ends_and_views_are_bounded(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    for i in range(100):
        Browser(widget, f"browser {i}").hello({**VIEW, "width": 400 + i})
    assert len(widget._channel.clients) == channel.MAX_CLIENTS
    assert "browser 99" in widget._channel.clients
    Browser(widget).hello(*({**VIEW, "width": 1000 + i} for i in range(1000)))
    _, views = widget._channel.clients["browser"]
    assert len(views) == channel.MAX_VIEWS


@pytest.mark.parametrize(
    "view",
    [
        None,
        5,
        "view",
        [],
        {},
        {"width": 640},
        {**VIEW, "width": "640"},
        {**VIEW, "width": float("nan")},
        {**VIEW, "width": float("inf")},
        {**VIEW, "width": -640},
        {**VIEW, "width": 10**9},
        {**VIEW, "width": True},
        {**VIEW, "ratio": None},
        {**VIEW, "ratio": 0},
        {**VIEW, "ratio": 10**400},
        {**VIEW, "theme": "pink"},
        {**VIEW, "theme": ["light"]},
        {**VIEW, "theme": None},
    ],
)
def test_what_is_no_view_is_left_out(view: Any, drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(view, VIEW)
    assert kinds(browser.take()) == ["hello", "frame"]
    assert len(drawn) == 1


# -- requests


def test_a_set_computes_once_and_is_answered(
    drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    computed = []

    def counted(config: TrainingConfig, **options: Any) -> Any:
        computed.append(config)
        return simulate(config, **options)

    monkeypatch.setattr(trainmem.widget.traits, "simulate", counted)
    browser.set(num_gpus=64, seq_length=8192, gpu="H200 · 141 GB")
    assert len(computed) == 1
    widget = browser.widget
    assert (widget.num_gpus, widget.seq_length, widget.gpu_memory_gb) == (64, 8192, 141.0)
    assert answers(browser.take()) == [1]
    consistent(widget)


def test_every_numbered_request_is_answered_exactly_once_to_who_asked(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget, "me")
    for views in ([], [VIEW], [VIEW, {**VIEW, "theme": "dark"}]):
        browser.hello(*views)
        browser.take()
        for changes in (
            {"num_gpus": 64},
            {"num_gpus": 64},  # nothing changes
            {"num_gpus": 0},  # refused
            {"nonsense": 1},
            {},
        ):
            for draft in (True, False):
                number = browser.set(draft=draft, **changes)
                arrived = browser.take()
                assert answers(arrived) == [number]
                who = {c["client"] for k, c, _ in arrived if k != "update" and "answers" in c}
                assert who == {"me"}
    for kind in ("undo", "reset", "json", "hello", "set"):
        browser.message({"kind": kind, "client": "me", "id": 1000})
        assert answers(browser.take()) == [1000], kind


def test_an_observer_that_raises_is_heard_of_and_the_browser_still_answered(
    drawn: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()

    def fail(_change: object) -> None:
        raise RuntimeError("mine")

    browser.widget.observe(fail, "num_gpus")
    browser.set(num_gpus=64, seq_length=8192)
    assert "RuntimeError: mine" in caplog.text
    caplog.clear()
    arrived = browser.take()
    assert answers(arrived) == [1]
    assert "frame" in kinds(arrived)
    told: dict[str, Any] = {}
    for kind, content, _ in arrived:
        if kind == "update":
            told |= content
    for name in [*FIELDS, *OUTPUTS]:  # those too that the observer kept from being announced
        assert told.get(name) == getattr(browser.widget, name), name
    assert browser.widget.num_gpus == 64
    consistent(browser.widget)


def test_an_observer_that_changes_more_is_published_together(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    del drawn[:]
    widget = browser.widget
    widget.observe(lambda _: setattr(widget, "seq_length", 1024), "num_gpus")
    browser.set(num_gpus=64)
    arrived = browser.take()
    assert kinds(arrived) == ["update", "frame", "update"]  # then the count of undos
    assert arrived[0][1]["seq_length"] == 1024
    assert arrived[2][1] == {"_undo": 1}
    assert len(drawn) == 1
    consistent(widget)


def test_a_draft_is_drawn_cheaply_and_the_release_in_full(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    del drawn[:]
    for n in (9, 10, 11):
        browser.set(draft=True, num_gpus=n)
    browser.set(num_gpus=11)
    frames = [content for kind, content, _ in browser.take() if kind == "frame"]
    assert [d["draft"] for d in drawn] == [True, True, True, False]
    assert [frame["draft"] for frame in frames] == [True, True, True, False]
    ids = [frame["id"] for frame in frames]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_gpus": 0},
        {"num_gpus": "64"},
        {"num_gpus": None},
        {"num_gpus": {"a": 1}},
        {"num_gpus": 10**5000},
        {"num_gpus": 64, "zero_stage": 4},
        {"gpu": "nonsense"},
        {"gpu": None},
        {"gpu": ["a"]},
        {"nonsense": 1},
        {"self": 1},
        {"config": 1},
        {"fits": True},
        {"_panel": {}},
        {5: 6},
        None,
        5,
        "num_gpus",
        [["num_gpus", 64]],
    ],
)
def test_a_refused_set_shows_why_and_keeps_the_last_state(changes: Any) -> None:
    browser = Browser(TrainingMemoryWidget(num_gpus=16))
    widget = browser.widget
    before = widget.config, widget.gpu, widget.fits
    browser.message({"kind": "set", "id": 1, "changes": changes, "draft": "maybe"})
    assert (widget.config, widget.gpu, widget.fits) == before
    assert "is not allowed; must be " in widget.error
    arrived = browser.take()
    updates = [content for kind, content, _ in arrived if kind == "update"]
    assert {"error": widget.error, "_told": widget._told} in updates  # never one without the other
    assert answers(arrived) == [1]
    assert widget._undo == 0
    browser.set(num_gpus=32)
    assert widget.error == ""
    assert widget.num_gpus == 32


@pytest.mark.parametrize(
    "content",
    [
        None,
        5,
        "hello",
        [],
        {},
        {"kind": None},
        {"kind": ["set"]},
        {"kind": {"set": 1}},
        {"kind": "nonsense", "id": 1},
        {"kind": "_commit"},
        {"kind": "ack"},
        {"kind": "hello"},
        {"kind": "hello", "client": 5, "views": [VIEW]},
        {"kind": "hello", "client": "x" * 1000, "views": [VIEW]},
        {"kind": "hello", "client": "x", "views": {"a": 1}},
        {"kind": "hello", "client": "x", "views": None},
        {"kind": "hello", "client": "x", "views": [[[]]]},
        {"kind": "set"},
        {"kind": "set", "id": True},
        {"kind": "set", "id": "five", "changes": {}},
        {"kind": "set", "id": 1.5, "changes": {}},
        {"kind": "undo", "id": None},
        {"kind": "json", "id": [1]},
        {"kind": "reset", "extra": "x" * 10_000},
    ],
)
def test_malformed_messages_do_no_harm(content: Any) -> None:
    browser = Browser(TrainingMemoryWidget(num_gpus=16))
    before = browser.widget.config
    browser.message(content)
    assert browser.widget.config == before
    arrived = browser.take()
    assert answers(arrived) == []
    assert browser.widget._channel.views() == {}
    browser.set(num_gpus=64)
    assert browser.widget.num_gpus == 64


# -- undo, reset, JSON


def test_undo_goes_back_change_by_change_and_a_drag_is_one() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(num_gpus=64)
    for n in range(33, 48):
        browser.set(draft=True, num_layers=n)
    assert widget._undo == 1  # not before it is let go
    browser.set(num_layers=47)
    browser.set(gpu="H200 · 141 GB")
    browser.set(num_gpus=0)  # refused
    browser.set(num_gpus=64)  # no change
    assert widget._undo == 3
    seen = []
    for _ in range(4):
        browser.message({"kind": "undo"})
        seen.append((widget.num_gpus, widget.num_layers, widget.gpu, widget._undo))
    card = "H100 · 80 GB"
    assert seen == [(64, 47, card, 2), (64, 32, card, 1), (8, 32, card, 0), (8, 32, card, 0)]
    consistent(widget)


def test_undo_keeps_what_python_changed_before() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(num_gpus=64)
    widget.seq_length = 8192
    browser.set(zero_stage=1)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget.seq_length, widget.zero_stage) == (64, 8192, 3)


def test_undo_in_the_middle_of_a_drag_returns_to_its_start() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.set(draft=True, num_gpus=9)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget._undo) == (8, 0)


def test_the_number_of_undos_is_bounded() -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    for n in range(1, 150):
        browser.set(num_layers=n)
    assert widget._undo == len(widget._history) == MAX_UNDO


def test_reset_returns_to_the_constructors_inputs_and_can_be_undone() -> None:
    widget = TrainingMemoryWidget(num_gpus=16, gpu="H200 · 141 GB")
    browser = Browser(widget)
    browser.set(num_gpus=64, gpu_memory_gb=50)
    assert widget.gpu == ""
    browser.message({"kind": "reset"})
    assert (widget.num_gpus, widget.gpu, widget.gpu_memory_gb) == (16, "H200 · 141 GB", 141.0)
    browser.message({"kind": "undo"})
    assert (widget.num_gpus, widget.gpu, widget.gpu_memory_gb) == (64, "", 50.0)


def test_json_is_the_api_answer() -> None:
    widget = TrainingMemoryWidget(num_gpus=64)
    browser = Browser(widget)
    browser.message({"kind": "json"})
    ((kind, content, _),) = browser.take()
    assert kind == "json"
    assert content["answer"] == widget.simulation.to_dict()


# -- traits set in the browser


def test_jslinked_inputs_are_taken_without_an_echo_into_the_drag() -> None:
    browser = Browser(TrainingMemoryWidget())
    widget = browser.widget
    browser.state(num_gpus=64, seq_length=8192)
    assert (widget.num_gpus, widget.seq_length) == (64, 8192)
    arrived = browser.take()
    assert kinds(arrived) == ["echo_update", "update"]  # the echo is for other front ends
    assert arrived[0][1] == {"num_gpus": 64, "seq_length": 8192}
    assert not arrived[1][1].keys() & {"num_gpus", "seq_length"}
    assert arrived[1][1]["global_batch"] == 256
    consistent(widget)


@pytest.mark.parametrize(
    "values",
    [
        {"num_gpus": 0},
        {"num_gpus": 64, "seq_length": "long"},
        {"gpu": "nonsense"},
        {"gpu": 5, "num_gpus": 4},
    ],
)
def test_bad_values_from_the_browser_send_the_good_state_back(values: dict[str, Any]) -> None:
    browser = Browser(TrainingMemoryWidget(num_gpus=16))
    widget = browser.widget
    before = widget.config
    browser.state(**values)
    assert widget.config == before
    assert widget.error
    back: dict[str, Any] = {}
    for kind, content, _ in browser.take():
        if kind == "update":
            back |= content
    assert back.pop("_told") == widget._told
    assert back == {"error": widget.error, **{name: getattr(widget, name) for name in values}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fits", False),
        ("per_gpu_total_gb", 1.0),
        ("verdict", "all is well"),
        ("min_gpus_to_fit", None),
        ("error", "hacked"),
        ("_panel", {}),
        ("_told", {}),
        ("_tables", {}),
        ("_undo", 99),
        ("_esm", "alert(1)"),
        ("_css", "* {}"),
        ("_view_module", "https://evil.example/x.js"),
        ("_view_name", "Evil"),
        ("_view_module_version", "9"),
        ("_model_module", "evil"),
        ("_model_name", "Evil"),
        ("_model_module_version", "9"),
        ("_anywidget_id", "evil"),
        ("simulation", 5),
    ],
)
def test_outputs_set_in_the_browser_are_refused(name: str, value: Any) -> None:
    browser = Browser(TrainingMemoryWidget())
    good = getattr(browser.widget, name)
    browser.state(**{name: value})
    assert getattr(browser.widget, name) == good
    sent_back = [content for kind, content, _ in browser.take() if kind == "update"]
    synced = name in browser.widget.keys  # a trait
    assert [content[name] for content in sent_back] == ([good] if synced else [])


def test_what_every_widget_lets_a_browser_set_is_taken() -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.state(_view_count=2, _dom_classes=["wide"], tooltip="memory", tabbable=True)
    widget = browser.widget
    assert (widget._view_count, list(widget._dom_classes)) == (2, ["wide"])
    assert (widget.tooltip, widget.tabbable) == ("memory", True)


def test_a_widget_says_why_it_is_not_copied() -> None:
    widget = TrainingMemoryWidget(num_gpus=16)
    for take in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a TrainingMemoryWidget is bound to its views"):
            take(widget)


def test_malformed_state_does_no_harm() -> None:
    browser = Browser(TrainingMemoryWidget())
    for values in (
        {"_request": 5},
        {"_request": {}},
        {"_request": {"client": 5, "messages": []}},
        {"_request": {"client": "x", "messages": 5}},
        {"_request": {"client": "x", "messages": [None, 5, {}, {"stamp": "a"}]}},
        {"nonsense": 1},
        {"_frame": b"picture"},
        {},
    ):
        browser.state(**values)
    assert browser.widget._frame == b""
    assert browser.widget.config == TrainingConfig()
    browser.set(num_gpus=64)
    assert browser.widget.num_gpus == 64


def test_a_draft_is_padded_where_the_browser_asks_for_it(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    sizes = []
    for draft, pad in ((True, True), (True, False), (False, True), (True, "yes")):
        number = browser.number = browser.number + 1
        changes = {"num_gpus": 8 + number}
        browser.message(
            {"kind": "set", "client": "browser", "id": number, "changes": changes}
            | {"draft": draft, "pad": pad}
        )
        ((content, (png,)),) = [(c, b) for kind, c, b in browser.take() if kind == "frame"]
        assert png[: content["size"]] == PNG + str(len(drawn)).encode()
        assert not any(png[content["size"] :])
        sizes.append(len(png) > 65_536)
    assert sizes == [True, False, False, False]


# -- drawing ahead


def steps_drawn(drawn: list[Any]) -> list[tuple[int, bool]]:
    return [(d["simulation"].config.num_gpus, d["draft"]) for d in drawn]


def test_one_step_of_a_slider_is_drawn_ahead_at_rest(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def press() -> None:
        del drawn[:]
        browser.set(num_gpus=64)
        assert steps_drawn(drawn) == [(64, False)]
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(press())
    assert steps_drawn(drawn) == [(64, False), (72, True), (60, True)]
    assert browser.widget.num_gpus == 64  # and nothing of it is told
    browser.take()
    assert steps_drawn(drawn)[1:] == [(72, True), (60, True)]


def test_nothing_is_drawn_ahead_while_requests_come(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def drag() -> None:
        del drawn[:]
        for n in range(10, 16):
            browser.set(draft=True, num_gpus=n)
            await asyncio.sleep(REST_SECONDS / 5)
        browser.set(num_gpus=16, seq_length=2048)  # no step of a slider
        await asyncio.sleep(3 * REST_SECONDS)
        browser.set(architecture="Llama-3-8B")
        browser.set(num_gpus=32)  # its steps would take longer than they save
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(drag())
    asked = [*((n, True) for n in range(10, 16)), (16, False), (16, False), (32, False)]
    assert steps_drawn(drawn) == asked


def test_a_closed_widget_draws_nothing_ahead(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)

    async def leave() -> None:
        browser.set(num_gpus=64)
        browser.widget.close()
        del drawn[:]
        await asyncio.sleep(3 * REST_SECONDS)

    asyncio.run(leave())
    assert drawn == []


# -- hosts without custom messages


def test_requests_by_trait_are_served_once_each_in_order(drawn: list[Any]) -> None:
    browser = Browser(TrainingMemoryWidget())
    widget = browser.widget
    hello = {"kind": "hello", "client": "x", "views": [VIEW], "stamp": 1}
    browser.state(_request={"client": "x", "messages": [hello]})
    assert kinds(browser.take()) == ["hello", "frame"]
    assert widget._frame == PNG + b"1"

    served = []
    widget.observe(lambda change: served.append(change["new"]), "num_gpus")
    requests = [
        {"kind": "set", "client": "x", "id": n, "changes": {"num_gpus": n}, "stamp": n}
        for n in (2, 3, 4)
    ]
    browser.state(_request={"client": "x", "messages": [hello, *requests[:2]]})
    browser.state(_request={"client": "x", "messages": [hello, *requests]})
    assert served == [2, 3, 4]
    arrived = browser.take()
    assert answers(arrived) == [2, 3, 4]
    assert [content["id"] for kind, content, _ in arrived if kind == "frame"] == [2, 3, 4]
    numbers = [content["_panel"] for _, content, _ in arrived if "_panel" in content]
    assert len(numbers) == 3


def test_the_same_answer_by_trait_arrives_each_time() -> None:
    browser = Browser(TrainingMemoryWidget())
    for stamp in (1, 2, 3):
        message = {"kind": "json", "stamp": stamp}
        browser.state(_request={"client": "x", "messages": [message]})
        assert kinds(browser.take()) == ["json"]


# -- threads and lifetime


def test_threads_lose_nothing_and_keep_the_order(drawn: list[Any]) -> None:
    widget = TrainingMemoryWidget()
    browser = Browser(widget)
    browser.hello(VIEW)
    browser.take()
    failures: list[BaseException] = []
    start = threading.Barrier(3)

    def run(step: Callable[[int], object], count: int) -> None:
        try:
            start.wait()
            for n in range(1, count + 1):
                step(n)
        except BaseException as error:
            failures.append(error)

    jobs = [
        (lambda n: setattr(widget, "seq_length", 100 + n), 60),
        (lambda n: browser.set(num_gpus=n), 60),
        (lambda n: widget.update(micro_batch=n, num_layers=n), 60),
    ]
    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    found = (widget.seq_length, widget.num_gpus, widget.micro_batch, widget.num_layers)
    assert found == (160, 60, 60, 60)
    consistent(widget)
    arrived = browser.take()
    assert answers(arrived) == list(range(1, 61))
    ids = [content["id"] for kind, content, _ in arrived if kind == "frame"]
    assert ids == sorted(ids)
    # The last numbers are out before the last picture.
    last = max(i for i, (kind, content, _) in enumerate(arrived) if "_panel" in content)
    assert max(i for i, (kind, _, _) in enumerate(arrived) if kind == "frame") > last
    assert drawn[-1]["simulation"] is widget.simulation


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


# -- words for the front end


def test_tables_offer_only_what_the_model_takes() -> None:
    offered = tables()
    json.dumps(offered)
    for field in offered["fields"]:
        for value in [*field["values"], *(choice["value"] for choice in field["choices"])]:
            assert FIELDS[field["name"]].validate(value) == value
        assert field["values"] == sorted(field["values"])
    widget = TrainingMemoryWidget()
    for preset in offered["presets"]:
        widget.update(preset=preset)
        assert widget._panel["preset"] == preset
    for gpu in offered["gpus"]:
        widget.gpu = gpu["label"]
        assert widget.gpu_memory_gb == gpu["gb"]


@pytest.mark.parametrize(
    "inputs", [{"model_params_b": 70}, {"zero_stage": 1, "seq_length": 32_768}, {"grad_ckpt": 0}]
)
def test_every_fix_of_the_panel_fits(inputs: dict[str, Any]) -> None:
    widget = TrainingMemoryWidget(**inputs)
    assert widget._panel["headline"] == "✗ Out of memory"
    (group,) = widget._panel["fixes"]
    assert group["offer"] == "Fits with"
    for fix in group["items"]:
        each = TrainingMemoryWidget(widget.config)
        Browser(each).set(**fix["changes"])
        assert each.fits, fix
        assert each._panel["fixes"] == []


def test_python_and_curl_repeat_the_request() -> None:
    widget = TrainingMemoryWidget(model_params_b=70.6, num_gpus=12_500, grad_ckpt=0)
    scope: dict[str, Any] = {}
    exec(widget._panel["python"], scope)
    assert scope["simulation"].config == widget.config
    body = widget._panel["curl"].split("-d '")[1].rstrip("'")
    assert TrainingConfig.from_mapping(json.loads(body)) == widget.config


# -- refusals and what comes along, in the words of the screen


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"num_gpus": "many"}, "num_gpus", "GPUs: 'many' is not allowed; must be a whole number"),
        ({"gpu": "nonsense"}, "gpu", "GPU memory: 'nonsense' is not allowed"),
        ({"loss_chunk": "x"}, "loss_chunk", "Loss chunk must be an integer from 1 to 1048576"),
        ({"stack": "x"}, "stack", "Stack: 'x' is not allowed"),
        ({"num_layers": 3}, "num_layers", "Layers: 3 is not allowed; it is 32, derived from"),
        ({"num_gpus": 9}, "num_gpus", "GPUs 9 is not a multiple of 8 (Tensor parallel 8"),
        ({"precision_bits": 8}, "precision_bits", "Precision: 8 is not allowed; must be 16 or 32"),
    ],
)
def test_a_refusal_names_its_field_as_the_screen_does(
    changes: dict[str, Any], field: str, words: str
) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B", kernels="torchtitan", tp=8)
    browser = Browser(widget)
    browser.set(**changes)
    assert widget._told["field"] == field
    assert widget._told["error"].startswith(words)
    assert widget.error  # as Python has it
    browser.set(num_gpus=16)
    assert widget._told == {"field": "", "error": "", "also": ""}


def test_a_refusal_from_python_names_its_field() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    for changes, field in (
        ({"tp": 8}, "tp"),
        ({"kernels": "torchtitan", "attention": "eager"}, "kernels"),
        ({"num_gpus": 0}, "num_gpus"),
    ):
        with pytest.raises(ConfigError):
            widget.update(**changes)
        assert widget._told["field"] == field
    widget.update(kernels="torchtitan")
    with pytest.raises(ConfigError, match="kernels 'torchtitan' need attention 'flash'"):
        widget.update(attention="eager")
    words = "Kernels “torchtitan, eager” need Attention kernel “flash (SDPA)”, got “eager”"
    assert widget._told["error"] == words


@pytest.mark.parametrize(
    ("changes", "also"),
    [
        ({"tp": 8}, "Kernels → torchtitan, eager"),
        ({"pp": 16}, "GPUs → 16; Kernels → torchtitan, eager"),
        ({"checkpointing": "selective"}, "Kernels → torchtitan, eager"),
        ({"kernels": "liger"}, ""),
        ({"quantization": "nf4"}, "LoRA rank → 8; Precision → everything in bf16"),
        ({"optimizer": "adam8bit"}, "ZeRO stage → 0; Precision → bf16 autocast"),
    ],
)
def test_what_a_choice_needs_comes_along_and_is_told(changes: dict[str, Any], also: str) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    browser = Browser(widget)
    browser.set(**changes)
    assert widget.error == ""
    told = f"Also changed: {also}" if also else ""
    assert widget._told["also"].startswith(told)
    assert bool(widget._told["also"]) == bool(also)
    for name, value in changes.items():
        assert widget._panel["plan"][name] == value
    assert widget._undo == 1  # one change, whatever came along
    browser.set(micro_batch=2)
    assert widget._told["also"] == ""


def test_python_is_refused_what_the_screen_brings_along() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    with pytest.raises(ConfigError, match="tp 8 needs kernels"):
        widget.update(tp=8)


@pytest.mark.usefixtures("remembering")
@pytest.mark.parametrize("name", [n for n in STACKS if n != "llm.c"])
@pytest.mark.parametrize("had", [{"attention": "eager"}, {"precision_bits": 32}])
def test_every_stack_can_be_chosen_and_left_again(name: str, had: dict[str, Any]) -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B", **had)
    browser = Browser(widget)
    before = widget.config, widget.plan
    browser.set(stack=name)
    assert (widget.error, widget._panel["stack"]) == ("", name)
    browser.set(stack="transformers")
    assert (widget.config, widget.plan) == before


def test_an_architecture_brings_16_bits_and_a_shorter_sequence_and_gives_both_back() -> None:
    widget = TrainingMemoryWidget(precision_bits=8)
    browser = Browser(widget)
    before = widget.config
    browser.set(architecture="GPT-2")
    assert (widget.precision_bits, widget.seq_length) == (16, 1024)
    assert widget._told["also"] == "Also changed: Precision → 16; Sequence → 1024"
    browser.set(architecture="")
    assert widget.config == before


def test_what_cannot_be_had_says_why() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    browser = Browser(widget)
    assert widget._panel["unavailable"] == {
        **{name: {"": "Follows from Llama-3-8B"} for name in DERIVED},
        "precision_bits": {
            "8": "Precision: 8 is not allowed; must be 16 or 32 with an architecture"
        },
        "stack": {"llm.c": "Kernels “llm.c” are GPT-2's, got family 'llama'"},
    }
    browser.set(stack="megatron")
    why = "Megatron-Core has stage 1 alone"
    assert widget._panel["unavailable"]["zero_stage"] == {"2": why, "3": why}
    assert widget._panel["unavailable"]["precision_bits"].keys() == {"8", "32"}
    for name, reasons in widget._panel["unavailable"].items():
        for value in reasons:
            if name == "precision_bits":
                with pytest.raises(ConfigError):
                    widget.update(**{name: float(value)})
            if name == "stack":
                with pytest.raises(ConfigError):
                    widget.update(stack=value)
    browser.set(architecture="")
    assert widget._panel["unavailable"] == {}


# -- the architecture-aware model


def test_one_step_over_time_is_drawn_on_demand() -> None:
    widget = TrainingMemoryWidget(architecture="Llama-3-8B")
    sent: list[tuple[dict[str, Any], list[bytes] | None]] = []
    widget.send = lambda content, buffers=None: sent.append((content, buffers))  # type: ignore[method-assign]
    widget._on_timeline({"width": 700, "ratio": 1, "theme": "dark"})
    ((content, buffers),) = sent
    assert content["kind"] == "timeline"
    assert content["key"] == "700x1-dark"
    assert "peak" in content["alt"].lower()
    assert buffers is not None
    assert buffers[0].startswith(PNG)
    for nonsense in ({}, {"width": 1e9, "ratio": 1, "theme": "dark"}, {"width": "700"}):
        widget._on_timeline(nonsense)
    widget.update(architecture="")
    widget._on_timeline({"width": 700, "ratio": 1, "theme": "dark"})
    assert len([c for c, _ in sent if c["kind"] == "timeline"]) == 1


def test_a_config_json_from_the_browser_is_never_a_path(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    widget = TrainingMemoryWidget()
    with pytest.raises(ConfigError, match=r"config\.json"):
        widget._on_open({"config": str(path)})
    assert widget.architecture == ""


# -- drawing that fails


def _raise(*_args: Any, **_options: Any) -> Any:
    raise IndexError("no such place")


UNDRAWN = "The picture could not be drawn: IndexError: no such place"


def test_a_drawing_that_raises_leaves_no_stale_picture_and_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW, {**VIEW, "width": 500})
    browser.take()
    assert browser.picture
    with monkeypatch.context() as broken:
        broken.setattr(trainmem.picture.frames.Drawing, "update", _raise)
        for change in (
            lambda: browser.set(num_gpus=64),
            lambda: setattr(browser.widget, "num_gpus", 65),
            lambda: browser.state(num_gpus=66),
            lambda: browser.set(draft=True, num_gpus=67),
            lambda: browser.hello({**VIEW, "width": 700}),
        ):
            change()
            arrived = browser.take()
            frames = [(content, b) for kind, content, b in arrived if kind == "frame"]
            assert frames, kinds(arrived)
            assert all(content["size"] == 0 for content, _ in frames)
            assert browser.picture in (b"", PADDING)
            assert browser.widget._undrawn == UNDRAWN
            assert browser.widget.error == ""  # the change itself was taken
            consistent(browser.widget)
        assert browser.widget.num_gpus == 67
        browser.state(_undrawn="")  # not the browser's to say
        assert browser.widget._undrawn == UNDRAWN
    browser.take()
    browser.set(num_gpus=68)
    browser.take()
    assert browser.picture.startswith(PNG)
    assert browser.widget._undrawn == ""


def test_a_view_opens_though_its_picture_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainmem.picture.frames.Drawing, "update", _raise)
    widget = TrainingMemoryWidget()
    data, _metadata = widget._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id
    assert data["text/plain"].startswith("✓ Fits: ")
    assert "image/png" not in data
    assert widget._undrawn == UNDRAWN


def test_a_timeline_that_raises_is_said_and_takes_the_old_one_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = Browser(TrainingMemoryWidget(architecture="Llama-3-8B"))
    ask = {"kind": "timeline", "client": "browser", "id": 9, "width": 640, "ratio": 1,
           "theme": "light"}  # fmt: skip
    for plan, zero_stage in (({}, 3), ({"framework": "deepspeed"}, 2)):
        browser.widget.update(zero_stage=zero_stage, plan=plan)
        browser.take()
        browser.message(ask)
        ((content, (png,)),) = [(c, b) for kind, c, b in browser.take() if kind == "timeline"]
        assert png.startswith(PNG)
        assert content["alt"]
        assert browser.widget._undrawn == ""
    monkeypatch.setattr(trainmem.simulation.Simulation, "timeline", _raise)
    browser.message(ask)
    arrived = browser.take()
    ((content, buffers),) = [(c, b) for kind, c, b in arrived if kind == "timeline"]
    assert (content["alt"], buffers) == ("", [b""])
    assert answers(arrived) == [9]
    assert browser.widget._undrawn == UNDRAWN


@pytest.mark.usefixtures("drawn", "remembering")
@pytest.mark.parametrize("kind", ["set", "json", "undo", "reset", "open", "timeline", "hello"])
def test_whatever_raises_while_a_message_is_answered_is_said(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser = Browser(TrainingMemoryWidget(architecture="Llama-3-8B"))
    browser.hello(VIEW)
    browser.set(num_gpus=16)
    browser.take()
    monkeypatch.setattr(browser.widget, f"_on_{kind}", _raise)
    browser.message({"kind": kind, "client": "browser", "id": 77})
    assert "IndexError: no such place" in caplog.text
    caplog.clear()
    assert browser.widget.error == "IndexError: no such place"
    assert answers(browser.take()) == [77]


def test_a_model_that_raises_leaves_numbers_and_picture_of_the_state_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW)
    browser.take()
    for name in ("simulate", "panel"):
        with monkeypatch.context() as broken:
            place = trainmem.widget.traits if name == "simulate" else trainmem.widget.shell
            broken.setattr(place, name, _raise)
            before = browser.picture
            browser.set(num_gpus=64)
            assert browser.widget.error == "IndexError: no such place"
            browser.state(num_gpus=65)
            told = [c for kind, c, _ in browser.take() if kind == "update" and "num_gpus" in c]
            assert told[-1]["num_gpus"] == browser.widget.num_gpus == 8
            assert browser.picture == before
            consistent(browser.widget)
            caplog.clear()
