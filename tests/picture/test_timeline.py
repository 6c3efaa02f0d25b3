"""One step over time, as a figure."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from steps import llama
from trainmem import ConfigError, simulate
from trainmem.picture.figure import draw_timeline, plot_timeline
from trainmem.request import PLAN_OPTIONS
from trainmem.transformer import STACKS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_timeline_is_a_figure_that_pyplot_does_not_know(theme):
    figure = llama().timeline(theme)
    figure.savefig(io.BytesIO(), format="png")
    words = " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))
    for expected in (
        "forward",
        "loss",
        "backward, layer 32 → 1",
        "optimizer",
        "alive at the peak",
        "peak 44.6 GB, in the backward pass of the loss",
        "logits and loss  25.2",
    ):
        assert expected in words


def test_the_timeline_draws_the_peak_where_it_is():
    s = llama()
    figure = s.timeline()
    line = max(figure.axes[0].lines or figure.axes[0].findobj(), key=_points)
    assert np.max(line.get_ydata()) == pytest.approx(float(s.components.total) / 1e9)


def _points(artist: Any) -> int:
    return len(artist.get_xdata()) if hasattr(artist, "get_xdata") else 0


def test_the_timeline_draws_on_axes_of_yours():
    ax = Figure().add_subplot()
    draw_timeline(ax, llama(plan={"accumulation": 3, "no_sync": True}), legend="")
    assert ax.get_ylim()[1] > 54


def test_the_timeline_needs_an_architecture_and_room():
    with pytest.raises(ValueError, match="the reduced-order model has no timeline"):
        simulate().timeline()
    with pytest.raises(ValueError, match=r"size: 2\.0 × 2\.0 inches"):
        llama().timeline(size=(2, 2))
    with pytest.raises(ValueError, match="theme: 'x'"):
        plot_timeline(llama(), theme="x")


def _refused(stack: Any, **inputs: Any) -> Any:
    """Return the answer for a training stack, or None where it doesn't have that."""
    plan = {n: v for n, v in stack.options.items() if n in PLAN_OPTIONS}
    plan = {n: v for n, v in plan.items() if n != "checkpointing" or inputs["grad_ckpt"]}
    gpt2 = stack.name == "llm.c"
    try:
        return simulate(
            architecture="GPT-2" if gpt2 else "Llama-3-8B", plan=plan, seq_length=512, **inputs
        )
    except ConfigError:
        return None


@pytest.mark.parametrize("name", list(STACKS))
def test_every_stack_draws_its_timeline(name):
    """However it shards and checkpoints, an optimizer step without an allocation too."""
    drawn = 0
    for zero_stage in (0, 1, 2, 3):
        for grad_ckpt in (0, 1):
            s = _refused(STACKS[name], zero_stage=zero_stage, grad_ckpt=grad_ckpt)
            if s is None:
                continue
            drawn += 1
            figure = s.timeline()
            figure.draw_without_rendering()
            ax = figure.axes[0]
            line = max(ax.findobj(), key=_points)
            x, y = line.get_data()
            assert x[-1] == pytest.approx(ax.get_xlim()[1])  # to the very end of the step
            assert np.max(y) == pytest.approx(float(s.components.total) / 1e9)
            steps = s.model.timeline(s.config)
            assert y[-1] == pytest.approx(steps.total_bytes[-1] / 1e9)
    assert drawn >= 2
    figure.savefig(io.BytesIO(), format="png", dpi=30)
