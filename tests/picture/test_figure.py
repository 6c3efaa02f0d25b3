"""The static figure, as matplotlib has it and in words."""

from __future__ import annotations

import io
import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from trainmem import simulate
from trainmem.picture.figure import (
    THEMES,
    Drawing,
    describe,
    draw_budget,
    draw_gpu_sweep,
    draw_seq_sweep,
    draw_timeline,
    frame_size,
    layout,
    plot,
)

from .kit import EXTREMES, drawn

# -- Where panels stand


@pytest.mark.parametrize("width", range(280, 2001, 43))
def test_layout_keeps_panels_apart_and_inside(width):
    size = frame_size(width)
    assert size[0] == width
    rects = list(layout(*size).values())
    for rect in rects:
        assert rect.left >= 40
        assert rect.bottom >= 30
        assert rect.left + rect.width <= size[0]
        assert rect.bottom + rect.height <= size[1] - 20
        assert rect.width >= 120
        assert rect.height >= 120
    for a, b in itertools.combinations(rects, 2):
        beside = a.left + a.width + 15 <= b.left
        above = a.bottom >= b.bottom + b.height + 40
        assert beside or above


def test_frame_size_ends():
    assert frame_size(10) == frame_size(280)
    assert frame_size(10_000) == frame_size(2000)


# -- As a matplotlib figure


def test_plot_is_unknown_to_pyplot_and_shows_itself():
    before = plt.get_fignums()
    figure = plot(simulate(), theme="dark", size=(9.0, 4.2))
    assert isinstance(figure, Figure)
    assert plt.get_fignums() == before
    assert tuple(figure.get_size_inches()) == pytest.approx((9.0, 4.2))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert to_rgb(figure.get_facecolor()) == to_rgb(THEMES["dark"].background)


def test_simulation_plot_is_the_same_figure():
    assert [ax.get_title("left") for ax in simulate().plot("dark").axes] == [
        "Memory vs GPU count", "Memory vs sequence", "HBM budget",
    ]  # fmt: skip


def test_vector_output_keeps_text():
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot(simulate()).savefig(buffer, format="svg")
    for words in ("80 GB capacity", "headroom", "OOM past 29.6k", "optimizer 12.0"):
        assert words in buffer.getvalue()


@pytest.mark.parametrize("draw", [draw_gpu_sweep, draw_seq_sweep, draw_budget])
def test_panels_draw_on_axes_of_yours(draw):
    figure = Figure(figsize=(4, 3), layout="constrained")
    ax = figure.add_subplot()
    draw(ax, simulate(), theme="dark", top=200)
    assert ax.get_ylim() == (0, 200)
    draw(figure.add_subplot(), simulate())
    assert figure.axes[1].get_ylim() == (0, 120)
    figure.savefig(io.BytesIO())


@pytest.mark.parametrize("draw", [draw_gpu_sweep, draw_seq_sweep, draw_budget, draw_timeline])
@pytest.mark.parametrize(
    ("ground", "theme"),
    [("#111", "dark"), ("navy", "dark"), ("white", "light"), ("none", "light"), ("#eee", "light")],
)
def test_panels_take_the_theme_of_your_figure(draw, ground, theme):
    simulation = simulate(architecture="Llama-3-8B")
    ax = Figure(facecolor=ground).add_subplot()
    draw(ax, simulation)
    assert to_rgb(ax.get_facecolor()) == to_rgb(THEMES[theme].background)
    with plt.style.context("dark_background"):
        ax = Figure().subfigures(1, 2)[0].add_subplot()
        draw(ax, simulation)
        assert to_rgb(ax.get_facecolor()) == to_rgb(THEMES["dark"].background)
        named = Figure().add_subplot()
        draw(named, simulation, theme="light")
    assert to_rgb(named.get_facecolor()) == to_rgb(THEMES["light"].background)


def test_one_figure_shows_one_simulation_after_another():
    drawing, _ = drawn(simulate())
    for changes in EXTREMES.values():
        simulation = simulate(**changes)
        drawn(simulation)
        fresh, _ = drawn(simulation, drawing=Drawing(*frame_size(660), "light", dpi=72))
        for moved, new in zip(drawing.moving, fresh.moving, strict=True):
            assert moved.get_visible() == new.get_visible()
            if hasattr(moved, "get_text") and moved.get_visible():
                assert moved.get_text() == new.get_text()
                assert moved.get_position() == new.get_position()


@pytest.mark.parametrize(
    "call", [plot, lambda s, theme: draw_budget(Figure().add_subplot(), s, theme=theme)]
)
def test_unknown_theme(call):
    with pytest.raises(ValueError, match=r"theme: 'solarized' .* one of light, dark"):
        call(simulate(), theme="solarized")


@pytest.mark.parametrize("size", [(9, 1.0), (2, 9), (5, 3)])
def test_size_too_small(size):
    with pytest.raises(ValueError, match=r"size: .* must be at least"):
        plot(simulate(), size=size)


def test_describe_says_the_result():
    assert describe(simulate()) == (
        "Memory per GPU: 24.9 of 80 GB, fits, 55.1 GB of headroom. "
        "GB by kind: weights 2.0, gradients 2.0, optimizer 12.0, activations 8.9. "
        "At this setting at least 2 GPUs fit it; sequences fit up to 29 592 tokens."
    )
    assert "does not fit, 77.7 GB short" in describe(simulate(seq_length=65_536))
    assert "no GPU count fits" in describe(simulate(seq_length=65_536))
    assert "no sequence length fits" in describe(simulate(zero_stage=0))
    assert "every sequence length fits" in describe(simulate(gpu_memory_gb=100_000))
