"""The static figure: what it shows, where its labels stand, and how it looks."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from functools import cache

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from trainmem import FIELDS, preset, simulate
from trainmem.picture.budget import PARTS
from trainmem.picture.figure import (
    COLORS,
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
from trainmem.picture.placing import Places, Spot, spread
from trainmem.picture.seq_sweep import longest_sequence
from trainmem.picture.style import (
    TOPS,
    axis_ticks,
    axis_top,
    write_binary,
    write_count,
    write_tick,
)
from trainmem.reduced import REDUCED, Components
from trainmem.words import write_capacity, write_gb

PRESETS = ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B")
EXTREMES = {
    "405B on one GPU": {"model_params_b": 405, "num_gpus": 1, "hidden_dim": 16384},
    "nothing fits": {"zero_stage": 0, "seq_length": 8192},
    "tiny": {"model_params_b": 0.001, "gpu_memory_gb": 0.1, "micro_batch": 1, "hidden_dim": 64},
    "huge cards": {"model_params_b": 100_000, "gpu_memory_gb": 100_000, "num_gpus": 64},
    "one GPU": {"num_gpus": 1},
    "2048 GPUs": {"num_gpus": 2048},
    "a million GPUs": {"num_gpus": 1_000_000, "model_params_b": 100_000},
    "one token": {"seq_length": 1},
    "2^24 tokens": {"seq_length": 2**24},
    "just fits": {"seq_length": 29_592},
    "just not": {"seq_length": 29_593},
    "minimum out of sight": {"model_params_b": 100_000, "num_gpus": 64},
    "largest of all": {name: field.bounds[1] for name, field in FIELDS.items()}
    | {"num_gpus": 1, "gpu_memory_gb": 0.1, "grad_ckpt": 0},
    "smallest of all": {name: field.bounds[0] for name, field in FIELDS.items()}
    | {"num_gpus": 1_000_000, "gpu_memory_gb": 100_000},
}


@cache
def drawing_of(width):
    """The one drawing of a width: a new one would look the same, as is tested below."""
    return Drawing(*frame_size(width), "light", dpi=72)


def drawn(simulation, width=660, drawing=None):
    """A drawing that shows `simulation` at the size of a frame, and its panels by name."""
    drawing = drawing_of(width) if drawing is None else drawing
    drawing.scale(simulation)
    drawing.update(simulation)
    return drawing, dict(zip(("gpus", "seq", "budget"), drawing.panels, strict=True))


def points(line):
    """x and y of a line as they are drawn: `get_data` has those that it was made with."""
    return line.get_xydata().T.copy()


def labels(panel):
    """Visible labels of a panel that move, with their boxes in pixels."""
    found = [a for a in panel.moving if hasattr(a, "get_text") and a.get_visible()]
    return [(label.get_text(), label.get_window_extent()) for label in found]


# The axis


@given(st.floats(1e-9, 1e18), st.floats(0.1, 1e5))
def test_axis_top_is_round_and_above_everything(need, capacity):
    top = axis_top(need, capacity)
    assert top > need
    assert top >= 1.5 * capacity * (1 - 1e-8)
    power = 10.0 ** np.floor(np.log10(top * (1 + 1e-9)))
    assert min(abs(top / power - mantissa) for mantissa, _ in TOPS) < 1e-9
    assert top <= 1.5 * max(1.5 * capacity, 1.06 * need)  # no more empty room than a step
    ticks = axis_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(top)
    assert 5 <= len(ticks) <= 10


def test_axis_stays_still_while_a_slider_moves():
    tops = [axis_top(need, 80) for need in np.linspace(100, 200, 500)]
    assert set(tops) == {120, 150, 180, 200, 240}
    assert axis_top(24.9, 80) == 120
    assert axis_top(157.7, 80) == 180


# Numbers in words


@pytest.mark.parametrize(
    ("write", "value", "words"),
    [
        (write_gb, 55.14, "55.1"), (write_gb, 0.0, "0.0"), (write_gb, 0.0156, "0.016"),
        (write_gb, 1e-12, "<0.001"),
        (write_gb, 999.9, "999.9"), (write_gb, 16_200, "16 200"), (write_gb, 7.83e14, "7.8×10¹⁴"),
        (write_capacity, 80.0, "80"), (write_capacity, 84.93, "84.9"), (write_capacity, 0.1, "0.1"),
        (write_tick, 120.0, "120"), (write_tick, 0.1 + 0.2, "0.3"), (write_tick, 150_000, "150k"),
        (write_tick, 2e14, "2e14"), (write_tick, 1e6, "1e6"),
        (write_count, 600, "600"), (write_count, 29_592, "29.6k"),
        (write_count, 4_194_304, "4.19M"), (write_count, 999_999, "1M"),
        (write_binary, 512, "512"), (write_binary, 2**17, "128k"), (write_binary, 2**24, "16M"),
    ],
)  # fmt: skip
def test_numbers_in_words(write, value, words):
    assert write(value).replace(" ", " ") == words


# What the panels show


@pytest.mark.parametrize("changes", [{}, {"zero_stage": 1}, {"grad_ckpt": 0}, {"num_gpus": 37}])
def test_curves_pass_through_the_sweeps_and_the_request(changes):
    simulation = simulate(**changes)
    _, panels = drawn(simulation)
    for name, sweep, here in (
        ("gpus", simulation.gpu_sweep, simulation.config.num_gpus),
        ("seq", simulation.seq_sweep, simulation.config.seq_length),
    ):
        panel = panels[name]
        x, y = points(panel.total)
        shown = sweep.total_gb < 2 * panel.top
        curve = np.interp(np.log2(sweep.x[shown]), x, y)  # x is on the axis' own log scale
        np.testing.assert_allclose(curve, sweep.total_gb[shown], rtol=2e-3)
        (at,), (height,) = points(panel.point)
        assert 2**at == pytest.approx(here)
        assert height == pytest.approx(simulation.per_gpu_total_gb, abs=1e-3)
        # And on the screen, where matplotlib itself puts the request.
        np.testing.assert_allclose(
            panel.point.get_transform().transform((at, height)),
            panel.ax.transData.transform((here, height)),
        )
        # The areas: one from 0 to a border, the other from there to the curve.
        lower, upper = (area.get_xy() for area in panel.areas)
        n = len(x)
        np.testing.assert_array_equal(lower[:n, 1], 0)
        np.testing.assert_array_equal(lower[:n, 0], x)
        np.testing.assert_array_equal(lower[n : 2 * n, 1], upper[:n, 1][::-1])
        np.testing.assert_array_equal(upper[n : 2 * n, 1][::-1], y)


def test_marks_of_the_reference_request():
    simulation = simulate()
    _, panels = drawn(simulation)
    gpus, seq, budget = panels.values()
    (count,), (total,) = points(gpus.diamond)
    assert 2**count == simulation.min_gpus_to_fit == 2
    assert total == pytest.approx(simulate(num_gpus=2).per_gpu_total_gb, abs=0.02)
    (length,), (height,) = points(seq.cross)
    assert (round(2**length), height) == (simulation.longest_sequence, 80.0)
    assert np.nanmax(points(gpus.arrow)[1]) == pytest.approx(80)
    assert [words for words, _ in labels(gpus)] == [
        "80 GB capacity", "min 2", "55.1 GB\nheadroom", "activation floor 8.9 GB",
    ]  # fmt: skip
    assert [words for words, _ in labels(seq)] == ["OOM past 29.6k"]
    assert [words for words, _ in labels(budget)] == [
        "optimizer 12.0", "grads 2.0", "weights 2.0", "activations 8.9", "free 55.1",
    ]  # fmt: skip


def test_budget_stacks_the_components_up_to_the_capacity():
    simulation = simulate()
    _, panels = drawn(simulation)
    budget = panels["budget"]
    *parts, free = (path.get_extents() for path in budget.parts.get_paths())
    base = 0.0
    for name, part, color in zip(PARTS, parts, budget.parts.get_facecolors(), strict=False):
        assert part.y0 == pytest.approx(base)
        assert part.height == pytest.approx(getattr(simulation.components, name, 0) / 1e9)
        assert to_rgb(color) == to_rgb(COLORS[name])
        base = part.y1
    assert (free.y0, free.y1) == pytest.approx((base, 80))
    hatching = points(budget.hatching)[1]  # not by colour alone
    assert np.nanmin(hatching) == pytest.approx(base, abs=1)
    assert np.nanmax(hatching) == pytest.approx(80, abs=1)


def test_out_of_memory_shows_what_is_missing_and_no_free_memory():
    simulation = simulate(seq_length=65_536)
    _, panels = drawn(simulation)
    gpus, _, budget = panels.values()
    assert not gpus.diamond.get_visible()  # no count fits
    words = [words for words, _ in labels(gpus)]
    assert words == ["80 GB capacity", "77.7 GB\nshort", "activation floor 141.7 GB"]
    assert budget.parts.get_paths()[-1].get_extents().height == 0
    assert len(points(budget.hatching)[1]) == 0
    assert not any(words.startswith("free") for words, _ in labels(budget))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zero_stage": 0}, "no length fits"),
        ({"gpu_memory_gb": 100_000}, "every length fits →"),
        ({"gpu_memory_gb": 1000}, "OOM past 455k →"),
        ({"gpu_memory_gb": 16.1}, "← OOM past 46"),
    ],
)
def test_crossing_beyond_the_axis_is_named_at_its_end(changes, words):
    _, panels = drawn(simulate(**changes))
    assert not panels["seq"].cross.get_visible()
    assert [text for text, _ in labels(panels["seq"])] == [words]


def test_minimum_beyond_the_axis_is_named_at_its_end():
    _, panels = drawn(simulate(model_params_b=100_000))
    assert not panels["gpus"].diamond.get_visible()
    assert "min 22 491 →" in [words.replace(" ", " ") for words, _ in labels(panels["gpus"])]


def test_activations_may_vary_with_the_gpu_count():
    class Gathering:
        """The reduced model, plus activations that fall with the GPU count."""

        description = "test"
        capacity_bytes = staticmethod(REDUCED.capacity_bytes)
        bytes_per_param = staticmethod(REDUCED.bytes_per_param)

        def components(self, config, **axes):
            found = REDUCED.components(config, **axes)
            count = axes.get("num_gpus", config.num_gpus)
            return found._replace(activations=found.activations + 4e9 / np.sqrt(count))

    simulation = simulate(model=Gathering())
    _, panels = drawn(simulation)
    x, floor = points(panels["gpus"].floor)
    expected = simulation.gpu_sweep.components.activations / 1e9
    np.testing.assert_allclose(
        np.interp(np.log2(simulation.gpu_sweep.x), x, floor), expected, rtol=0.01
    )
    assert floor[0] - floor[-1] > 3.8


def test_component_that_is_a_number_along_a_sweep():
    simulation = simulate()
    sweep = simulation.seq_sweep
    parts = Components(
        *(np.float64(np.min(part)) for part in sweep.components[:3]), sweep.components.activations
    )
    flat = replace(simulation, seq_sweep=replace(sweep, components=parts))
    one, other = (points(drawn(s)[1]["seq"].total)[1] for s in (simulation, flat))
    np.testing.assert_array_equal(one, other)


# Without a model to ask (an answer from elsewhere)


@pytest.mark.parametrize(
    "changes",
    [{}, {"micro_batch": 16}, {"gpu_memory_gb": 1000}, {"gpu_memory_gb": 16.1}, {"zero_stage": 0}],
)
def test_longest_sequence_is_read_off_the_sweep(changes):
    simulation = simulate(**changes)
    remote = replace(simulation, model=None)
    expected = simulation.longest_sequence
    assert longest_sequence(remote) == (expected and pytest.approx(expected, abs=1))
    assert describe(remote) == describe(simulation)
    plot(remote)


def test_longest_sequence_at_the_ends():
    roomy = simulate(gpu_memory_gb=100_000)
    assert longest_sequence(replace(roomy, model=None)) == roomy.longest_sequence == 2**24
    flat = replace(roomy.seq_sweep, components=Components(*(np.full(48, 1e9) for _ in range(4))))
    remote = replace(roomy, model=None, seq_sweep=flat)
    assert longest_sequence(remote) == 2**24
    assert longest_sequence(replace(remote, gpu_capacity_gb=3.9)) is None


# Where labels stand


@pytest.mark.parametrize("width", [280, 440, 660, 900])
@pytest.mark.parametrize("name", EXTREMES)
def test_nothing_is_cut_off(name, width):
    drawing, panels = drawn(simulate(**EXTREMES[name]), width)
    size = drawing.figure.bbox
    for panel in panels.values():
        ax = panel.ax
        texts = [
            *labels(panel),
            *((t.get_text(), t.get_window_extent()) for t in ax.get_xticklabels()),
        ]
        texts += [(t.get_text(), t.get_window_extent()) for t in ax.get_yticklabels()]
        texts.append((ax.get_title("left"), ax._left_title.get_window_extent()))
        for words, box in texts:
            if words:
                assert box.x0 >= -1, words
                assert box.x1 <= size.x1 + 1, words
                assert box.y0 >= -1, words
                assert box.y1 <= size.y1 + 1, words


@pytest.mark.parametrize("width", [440, 660, 900])
@pytest.mark.parametrize("request_", [*PRESETS, "short", "2048", "few GPUs"])
def test_labels_cover_neither_each_other_nor_the_point(request_, width):
    others = {
        "short": {"seq_length": 65_536},
        "2048": {"num_gpus": 2048},
        "few GPUs": {"num_gpus": 2},
    }
    config = (
        preset(request_)
        if request_ in PRESETS
        else preset("Llama-3-8B").replace(**others[request_])
    )
    _, panels = drawn(simulate(config), width)
    for name, panel in panels.items():
        boxes = labels(panel)
        for (a, one), (b, two) in itertools.combinations(boxes, 2):
            wide = min(one.x1, two.x1) - max(one.x0, two.x0)
            tall = min(one.y1, two.y1) - max(one.y0, two.y0)
            assert wide <= 0 or tall <= 1, (name, a, b)
        if name != "budget":
            (x,), (y,) = points(panel.point)
            px, py = panel.point.get_transform().transform((x, y))
            for words, box in boxes:
                assert not (box.x0 < px < box.x1 and box.y0 < py < box.y1), words


@pytest.mark.parametrize("name", EXTREMES)
def test_budget_labels_never_overlap(name):
    _, panels = drawn(simulate(**EXTREMES[name]), 440)
    boxes = sorted((box.y0, box.y1) for _, box in labels(panels["budget"]))
    for (_, top), (bottom, _) in itertools.pairwise(boxes):
        assert bottom >= top - 1


@given(st.lists(st.floats(0, 300), min_size=1, max_size=6))
def test_spread_keeps_order_distance_and_range(heights):
    moved = spread(np.array(sorted(heights)), 13, 5, 295)
    assert np.all(np.diff(moved) >= 13 - 1e-9)
    assert moved[0] >= 5 - 1e-9
    assert moved[-1] <= 295 + 1e-9


def test_spread_leaves_what_is_apart():
    np.testing.assert_allclose(spread(np.array([10.0, 50, 90]), 13, 5, 295), [10, 50, 90])


def test_labels_take_the_first_free_spot():
    places = Places(100, 100, spill=0)
    places.block(0, 0, 50, 20)
    taken, free = Spot(10, 5, "left", "bottom"), Spot(60, 5, "left", "bottom")
    assert places.take(20, 10, [taken, free]) == free
    assert places.take(20, 10, [free, Spot(60, 40, "left", "bottom")]).y == 40  # now taken too
    assert (
        places.take(50, 10, [Spot(60, 60, "left", "bottom"), Spot(100, 60, "right", "bottom")]).x
        == 100
    )


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


# The look


@pytest.mark.parametrize("theme", THEMES)
def test_text_contrasts_with_the_background(theme):
    def luminance(color):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)
        ]
        return np.dot((0.2126, 0.7152, 0.0722), linear)

    colors = THEMES[theme]
    ground = luminance(colors.background)
    for name in ("ink", "muted", "capacity", "fits", "floor"):
        high, low = sorted((ground, luminance(getattr(colors, name))), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_components_have_a_colour_each():
    assert set(COLORS) == set(Components._fields)
    assert len(set(COLORS.values())) == 4


@pytest.mark.parametrize("width", [280, 440, 660])
def test_no_text_is_smaller_than_ten_points(width):
    drawing, _ = drawn(simulate(), width)
    texts = drawing.figure.findobj(mpl.text.Text)
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 10


# As a matplotlib figure


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
        "Memory per GPU vs GPU count", "… vs sequence length", "HBM budget",
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


# In words


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


def test_the_budget_of_an_architecture_tells_the_loss_and_gathered_parameters_apart():
    simulation = simulate(architecture="Llama-3-8B", gpu_memory_gb=80)
    _, panels = drawn(simulation)
    kinds, need = simulation.peak_case.peak.bytes_by_kind, float(simulation.components.total) / 1e9
    parts = [path.get_extents() for path in panels["budget"].parts.get_paths()]
    assert [part.height for part in parts[3:]] == pytest.approx(
        [
            kinds["gathered parameters"] / 1e9,
            (kinds["saved activations"] + kinds["recomputation"] + kinds["temporaries"]) / 1e9,
            kinds["logits and loss"] / 1e9,
            80 - need,
        ]
    )
    assert parts[5].y1 == pytest.approx(need)
    assert len({tuple(color) for color in panels["budget"].parts.get_facecolors()}) == 7


CARDS = {
    "8B": {"architecture": "Llama-3-8B", "num_gpus": 8, "seq_length": 8192},
    "405B": {"architecture": "Llama-3-405B", "num_gpus": 512},
    "not sharded": {"architecture": "Llama-3-8B", "zero_stage": 0},
    "tensor parallel": {
        "architecture": "Llama-3-70B",
        "num_gpus": 64,
        "plan": {"tp": 8, "kernels": "torchtitan"},
    },
    "GPT-2": {"architecture": "GPT-2", "seq_length": 1024},
}


@pytest.mark.parametrize("request_", CARDS)
def test_the_band_is_the_card_level_along_both_sweeps(request_):
    """Against the level computed at every sweep point, which the band interpolates."""
    simulation = simulate(**CARDS[request_])
    model, config, (_, panels) = simulation.model, simulation.config, drawn(simulation)
    multiple = model.gpu_multiple
    for name, sweep in (("gpus", simulation.gpu_sweep), ("seq", simulation.seq_sweep)):
        panel = panels[name]
        assert panel.card.get_visible()
        for x, need in zip(sweep.x, sweep.components.total, strict=True):
            value = round(x) if name == "seq" else int(np.ceil(x / multiple)) * multiple
            try:
                card = model.levels(config.replace(**{panel.name: value}), need)[2]
            except ValueError:  # longer than GPT-2's table of positions
                continue
            *ends, total = (
                np.interp(np.log2(x), panel.octaves, gb) for gb in (*panel.band, panel.high)
            )
            if ends[1] > 15 * panel.top:  # where curves end, out of sight
                continue
            shares = [card.low_bytes / need, card.high_bytes / need]
            assert [end / total for end in ends] == pytest.approx(shares, rel=0.05), (name, x)
        for rim, gb in zip(panel.rims, panel.band, strict=True):
            np.testing.assert_array_equal(points(rim)[1], gb)
        here = np.log2(panel.value(simulation))
        ends = [np.interp(here, panel.octaves, gb) for gb in panel.band]
        card = simulation.peak_case.levels[2]
        assert ends == pytest.approx([card.low_bytes / 1e9, card.high_bytes / 1e9], rel=0.02)


@pytest.mark.parametrize("width", [280, 440, 660, 900])
@pytest.mark.parametrize("request_", CARDS)
def test_the_card_is_named_in_the_budget_and_covers_nothing(request_, width):
    simulation = simulate(**CARDS[request_])
    drawing, panels = drawn(simulation, width)
    card, budget = simulation.peak_case.levels[2], panels["budget"]
    low, high = card.low_bytes / 1e9, card.high_bytes / 1e9
    assert f"card {write_gb(low)}–{write_gb(high)}" in [words for words, _ in labels(budget)]
    heights = points(budget.card)[1]
    assert (np.nanmin(heights), np.nanmax(heights)) == pytest.approx((low, high))
    assert high <= budget.top
    for panel in panels.values():
        boxes = labels(panel)
        for _, box in boxes:
            assert box.x0 >= -1
            assert box.x1 <= drawing.figure.bbox.x1 + 1
        if panel is budget:
            continue
        named = [box for words, box in boxes if words == "card, likely"]
        for box in named:
            for words, other in boxes:
                wide = min(box.x1, other.x1) - max(box.x0, other.x0)
                tall = min(box.y1, other.y1) - max(box.y0, other.y0)
                assert other is box or wide <= 0 or tall <= 1, words
    if request_ == "8B":
        for name in ("gpus", "seq"):
            assert "card, likely" in [words for words, _ in labels(panels[name])]


def test_the_card_goes_with_the_architecture():
    drawing, panels = drawn(simulate(**CARDS["8B"]))
    simulation = simulate()
    drawing.scale(simulation)
    drawing.update(simulation)
    for name in ("gpus", "seq"):
        panel = panels[name]
        hidden = (panel.card, *panel.rims, panel.card_label)
        assert not any(artist.get_visible() for artist in hidden)
    assert not panels["budget"].card.get_visible()
    assert not any("card" in words for panel in panels.values() for words, _ in labels(panel))
