"""Every widget here talks to a recorded comm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ipywidgets.widgets import widget as ipywidgets_widget

import trainmem.widget.traits
from trainmem import simulate
from trainmem.config import TrainingConfig
from trainmem.picture.frames import FrameRenderer
from trainmem.widget.shell import TrainingMemoryWidget

from .kit import PNG, Comm


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[TrainingConfig]:
    """Record every simulation that the model computes."""
    made: list[TrainingConfig] = []

    def counted(config: TrainingConfig, **options: object) -> object:
        made.append(config)
        return simulate(config, **options)

    monkeypatch.setattr(trainmem.widget.traits, "simulate", counted)
    return made
