"""Messages and traits from a browser, and an answer to each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import trainmem.widget.shell
import trainmem.widget.traits
from trainmem.config import FIELDS, TrainingConfig
from trainmem.simulate_step import simulate
from trainmem.widget.shell import TrainingMemoryWidget

from .kit import OUTPUTS, PNG, VIEW, Browser, answers, consistent, failing, kinds

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


# -- drawing that fails


@pytest.mark.usefixtures("drawn", "remembering")
@pytest.mark.parametrize("kind", ["set", "json", "undo", "reset", "open", "timeline", "hello"])
def test_whatever_raises_while_a_message_is_answered_is_said(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser = Browser(TrainingMemoryWidget(architecture="Llama-3-8B"))
    browser.hello(VIEW)
    browser.set(num_gpus=16)
    browser.take()
    monkeypatch.setattr(browser.widget, f"_on_{kind}", failing)
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
            broken.setattr(place, name, failing)
            before = browser.picture
            browser.set(num_gpus=64)
            assert browser.widget.error == "IndexError: no such place"
            browser.state(num_gpus=65)
            told = [c for kind, c, _ in browser.take() if kind == "update" and "num_gpus" in c]
            assert told[-1]["num_gpus"] == browser.widget.num_gpus == 8
            assert browser.picture == before
            consistent(browser.widget)
            caplog.clear()
