"""Views and the frames that are drawn for them."""

from __future__ import annotations

import time
from typing import Any

import pytest

import trainmem.picture.frames
import trainmem.simulation
from trainmem.widget import channel
from trainmem.widget.shell import PADDING, TrainingMemoryWidget

from .kit import PNG, UNDRAWN, VIEW, Browser, answers, consistent, failing, kinds

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


# -- drawing that fails


def test_a_drawing_that_raises_leaves_no_stale_picture_and_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = Browser(TrainingMemoryWidget())
    browser.hello(VIEW, {**VIEW, "width": 500})
    browser.take()
    assert browser.picture
    with monkeypatch.context() as broken:
        broken.setattr(trainmem.picture.frames.Drawing, "update", failing)
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
    monkeypatch.setattr(trainmem.picture.frames.Drawing, "update", failing)
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
    monkeypatch.setattr(trainmem.simulation.Simulation, "timeline", failing)
    browser.message(ask)
    arrived = browser.take()
    ((content, buffers),) = [(c, b) for kind, c, b in arrived if kind == "timeline"]
    assert (content["alt"], buffers) == ("", [b""])
    assert answers(arrived) == [9]
    assert browser.widget._undrawn == UNDRAWN
