"""Frames: the same picture as the static figure, on any thread, whatever the rcParams."""

from __future__ import annotations

import gc
import io
import threading
import weakref

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from trainmem import preset, simulate
from trainmem.picture.figure import THEMES, PictureFigure, draw_gpu_sweep, frame_size, plot
from trainmem.picture.frames import FRAMES, FrameRenderer, _Surface, palette
from trainmem.picture.style import COLORS

REQUESTS = {
    "fits": {},
    "short": {"seq_length": 65_536},
    "405B on one GPU": preset("Llama-3-405B").replace(num_gpus=1).to_dict(),
    "a million GPUs": {"num_gpus": 1_000_000, "model_params_b": 100_000},
    "8B with its card": {"architecture": "Llama-3-8B", "seq_length": 8192},
    "405B with its card": {"architecture": "Llama-3-405B", "num_gpus": 512},
}


@pytest.fixture
def renderer():
    """A cold renderer of the test's own."""
    renderer = FrameRenderer()
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def shared():
    """A renderer for tests that ask only what a picture shows: warm or cold, it is the same."""
    renderer = FrameRenderer()
    yield renderer
    renderer.close()


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int16)


def colours(png):
    """Return the colours of a picture, and of how many pixels each is."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return {color: count for count, color in image.getcolors(image.width * image.height)}


def levels(color):
    """Return a colour as a picture has it."""
    return tuple(np.round(255 * np.array(to_rgb(color))).astype(int))


def palette_colours(theme, **options):
    return {tuple(color) for color in palette(theme, **options).tolist()}


def frame(renderer, simulation, **view):
    return renderer.render(simulation, **({"width": 440, "ratio": 1, "theme": "light"} | view))


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("width", "ratio"), [(660, 1), (440, 2)])
def test_frame_is_the_static_figure(shared, request_, theme, width, ratio):
    simulation = simulate(**REQUESTS[request_])
    png = shared.render(simulation, width=width, ratio=ratio, theme=theme)
    wide, tall = frame_size(width)
    buffer = io.BytesIO()
    figure = plot(simulation, theme=theme, size=(wide / 72, tall / 72))
    figure.savefig(buffer, dpi=72 * ratio)
    one, other = pixels(png), pixels(buffer.getvalue())
    assert one.shape == other.shape == (ratio * tall, ratio * wide, 3)
    # Up to the palette: nearly all pixels within a step of it, edges of two lines within a few.
    difference = np.abs(one - other).max(axis=-1)
    assert difference.mean() < 1
    assert np.mean(difference > 16) < 1e-3
    assert difference.max() < 64


@pytest.mark.parametrize("theme", THEMES)
def test_plain_colours_are_exact(shared, theme):
    png = shared.render(simulate(), width=900, ratio=2, theme=theme)
    assert tuple(pixels(png)[0, 0]) == levels(THEMES[theme].background)
    found = colours(png).keys()
    for name in COLORS:
        assert levels(COLORS[name]) in found, name
    assert len(palette(theme)) <= 256
    assert found <= palette_colours(theme)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("card", [False, True])
def test_palette_colours_map_to_themselves(theme, card):
    from trainmem.picture.frames import _cells

    colors = palette(theme, card=card)
    indices = Image.fromarray(colors[None]).quantize(palette=_cells(theme, card=card), dither=0)
    np.testing.assert_array_equal(np.asarray(indices)[0], np.arange(len(colors)))


@pytest.mark.parametrize("theme", THEMES)
def test_only_an_architecture_has_the_band_of_the_card(shared, theme):
    band = levels(THEMES[theme].card)
    for request, has in (({"architecture": "Llama-3-8B"}, True), ({}, False)):
        shown = colours(frame(shared, simulate(**request), width=900, ratio=2, theme=theme))
        part = shown.get(band, 0) / sum(shown.values())  # its colour is also that of soft edges
        assert part > 0.03 if has else part < 0.003
        assert shown.keys() <= palette_colours(theme, card=has)
        # Its lines and rim have edges of their own.
        assert (shown.keys() <= palette_colours(theme)) is not has
    assert len(palette(theme, card=True)) <= 256
    assert len(palette(theme)) < len(palette(theme, card=True))


def test_png_says_its_size_and_is_compact(shared):
    png = frame(shared, simulate(), width=900)
    image = Image.open(io.BytesIO(png))
    image.verify()
    assert image.size == frame_size(900)
    assert len(png) < 25_000


def test_a_frame_depends_on_nothing_drawn_before(renderer):
    """Every way to one picture gives the same bytes: warm, cold, other axes in between."""
    requests = [simulate(**changes) for changes in REQUESTS.values()]
    cold = []
    for simulation in requests:
        cold.append(frame(FrameRenderer(), simulation))
    for _ in range(2):
        warm = [frame(renderer, simulation) for simulation in requests]
        assert warm == cold
    frame(renderer, requests[0], theme="dark")
    frame(renderer, requests[0], width=300)
    assert frame(renderer, requests[0]) == cold[0]


# The view


@pytest.mark.parametrize(
    ("view", "size"),
    [
        ({"ratio": 2}, (880, 1000)),
        ({"ratio": 2, "draft": True}, (440, 500)),
        ({"ratio": 0.75, "draft": True}, (330, 375)),
        ({"ratio": 0.01}, (220, 250)),
        ({"ratio": 99}, (1760, 2000)),
        ({"width": 5}, (280, 660)),
        ({"width": 99_999}, frame_size(2000)),
        ({"width": 440.4}, (440, 500)),
    ],
)
def test_view_is_taken_into_range(shared, view, size):
    assert Image.open(io.BytesIO(frame(shared, simulate(), **view))).size == size


def test_pixels_are_bounded(shared):
    wide, tall = Image.open(io.BytesIO(frame(shared, simulate(), width=2000, ratio=4))).size
    assert 5_900_000 < wide * tall <= 6_000_000


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"width": float("nan")}, "width: nan"),
        ({"ratio": float("inf")}, "ratio: inf"),
        ({"ratio": "2"}, "ratio: '2'"),
        ({"width": None}, "width: None"),
        ({"theme": "sepia"}, "theme: 'sepia'"),
    ],
)
def test_bad_view_is_named(shared, view, message):
    with pytest.raises(ValueError, match=message):
        frame(shared, simulate(), **view)
    frame(shared, simulate())  # and nothing is broken by it


@pytest.fixture
def drawn(monkeypatch):
    """Count the backgrounds that are drawn: pictures whole, not what moves in them."""
    log = []
    draw = FigureCanvasAgg.draw
    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda canvas: log.append(canvas) or draw(canvas))
    return log


def test_figures_are_kept_for_the_last_few_sizes(renderer, drawn):
    for width in (300, 301, 302, 303, 300, 304):
        frame(renderer, simulate(num_gpus=8 + len(drawn)), width=width)
    assert len(renderer._surfaces) == 4
    born = len(set(drawn))
    assert born == 5
    for width in (302, 303, 304, 300):  # 301 made room: it was used longest ago
        frame(renderer, simulate(num_gpus=64), width=width)
    assert len(set(drawn)) == born
    frame(renderer, simulate(num_gpus=64), width=301)
    assert len(set(drawn)) == born + 1


def test_backgrounds_are_kept_to_a_limit(renderer, drawn):
    """Some 16 MB for each size, and those used last."""

    def show(capacity):
        # Another request with the same axes, so that no finished frame is given again.
        frame(renderer, simulate(gpu_memory_gb=capacity, seq_length=512 + len(drawn)), ratio=2)

    size = 4 * 880 * 1000
    many = [10 * 4**i for i in range(6)]
    for capacity in many:
        show(capacity)
    assert len(drawn) == len(many)  # axes differ by the card's size
    (surface,) = renderer._surfaces.values()
    assert 16_000_000 - size < len(surface.backgrounds) * size <= 16_000_000
    show(many[-4])
    assert len(drawn) == len(many)  # still there
    show(many[0])  # makes room where it is needed: not the one just used
    assert len(drawn) == len(many) + 1
    show(many[-4])
    assert len(drawn) == len(many) + 1
    show(many[-3])
    assert len(drawn) == len(many) + 2


def test_a_picture_larger_than_the_limit_has_one_background(renderer, drawn):
    for capacity in (10, 40, 160):
        frame(renderer, simulate(gpu_memory_gb=capacity), width=2000, ratio=4)
    (surface,) = renderer._surfaces.values()
    assert len(surface.backgrounds) == 1


def test_close_frees_and_render_starts_afresh(renderer):
    before = frame(renderer, simulate())
    renderer.close()
    assert not renderer._surfaces
    assert frame(renderer, simulate()) == before


# The world around


ODD = {
    "font.size": 30, "font.family": "serif", "font.weight": "bold", "font.style": "italic",
    "axes.grid": True, "axes.grid.which": "both", "axes.linewidth": 5,
    "axes.titlelocation": "center", "axes.titley": 0.5, "axes.titlepad": 40, "axes.labelpad": 40,
    "axes.titlesize": 40, "axes.unicode_minus": False, "axes.xmargin": 0.4,
    "axes.autolimit_mode": "round_numbers", "axes.axisbelow": False,
    "axes.formatter.use_locale": True, "axes.spines.top": False, "xtick.labelsize": 30,
    "xtick.minor.visible": True, "xtick.top": True, "xtick.labeltop": True,
    "xtick.direction": "inout", "xtick.alignment": "left", "xtick.major.pad": 30,
    "ytick.right": True, "ytick.labelright": True, "ytick.minor.visible": True,
    "ytick.alignment": "top", "ytick.color": "red", "grid.linestyle": ":", "grid.linewidth": 5,
    "grid.alpha": 0.2, "grid.color": "red", "lines.linewidth": 9, "lines.marker": "s",
    "lines.markersize": 20, "lines.scale_dashes": False, "lines.antialiased": False,
    "lines.markeredgecolor": "red", "patch.linewidth": 5, "patch.force_edgecolor": True,
    "patch.antialiased": False, "hatch.color": "red", "hatch.linewidth": 4, "figure.dpi": 50,
    "figure.autolayout": True, "figure.facecolor": "red", "figure.edgecolor": "red",
    "figure.frameon": False, "figure.subplot.left": 0.4, "text.color": "red",
    "text.antialiased": False, "text.parse_math": False, "savefig.dpi": 30,
    "savefig.facecolor": "red", "savefig.edgecolor": "red", "savefig.bbox": "tight",
    "savefig.pad_inches": 1, "savefig.transparent": True, "savefig.format": "svg",
    "path.sketch": (5, 50, 5), "path.simplify": False, "lines.solid_capstyle": "projecting",
    "lines.solid_joinstyle": "miter",
}  # fmt: skip

STYLES = {
    "dark_background": lambda: plt.style.context("dark_background"),
    "ggplot": lambda: plt.style.context("ggplot"),
    "fast": lambda: plt.style.context("fast"),
    "xkcd": plt.xkcd,
    "odd": lambda: mpl.rc_context(ODD),
}


@pytest.mark.parametrize("style", STYLES)
def test_rcparams_change_nothing(shared, style):
    """Neither those at the figure's birth nor those while it is drawn."""
    simulation = simulate()
    expected = frame(shared, simulation)
    born_outside = FrameRenderer()
    frame(born_outside, simulate(gpu_memory_gb=24))
    with STYLES[style]():
        born_inside = FrameRenderer()
        assert frame(born_inside, simulation) == expected
        assert frame(born_outside, simulation) == expected
    assert frame(born_inside, simulation) == expected


def saved(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer)
    return pixels(buffer.getvalue())


def own_axes(simulation):
    figure = PictureFigure(figsize=(4, 3), dpi=100, facecolor="white", edgecolor="none",
                           frameon=True, linewidth=0)  # fmt: skip
    figure.set_layout_engine("none")
    draw_gpu_sweep(figure.add_axes((0.2, 0.2, 0.7, 0.6)), simulation, theme="light")
    return figure


def pictures():
    """The static figure, the timeline and panels on axes of yours, however they are saved."""
    simulation = simulate(architecture="Llama-3-8B")
    timeline = simulation.timeline()
    return [
        saved(simulation.plot()),
        saved(timeline),
        pixels(timeline._repr_png_()),
        saved(own_axes(simulation)),
    ]


@pytest.fixture(scope="module")
def plain_pictures():
    return pictures()


@pytest.mark.parametrize("style", STYLES)
def test_rcparams_change_no_figure(plain_pictures, style):
    born_outside = simulate(architecture="Llama-3-8B").timeline()
    with STYLES[style]():
        for one, other in zip(pictures(), plain_pictures, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(saved(born_outside), plain_pictures[1])


def test_frames_are_right_while_another_thread_uses_pyplot():
    simulations = [simulate(seq_length=length) for length in (1024, 4096, 16_384, 65_536)]
    expected = [frame(FrameRenderer(), simulation) for simulation in simulations]
    failures = []
    done = threading.Event()

    def draw_with_pyplot():
        while not done.is_set():
            with plt.style.context("dark_background"):
                figure, axes = plt.subplots(1, 2, figsize=(3, 2))
                axes[0].plot([1, 2, 3])
                axes[1].set_title(r"$\beta\,s\,b\,h$ and GB per GPU 1024")
                figure.savefig(io.BytesIO())
                plt.close(figure)

    def draw_frames(renderer):
        for _ in range(6):
            for simulation, png in zip(simulations, expected, strict=True):
                if frame(renderer, simulation) != png:
                    failures.append(simulation.config.seq_length)

    shared = FrameRenderer()
    frames = [
        threading.Thread(target=draw_frames, args=(r,)) for r in (shared, shared, FrameRenderer())
    ]
    other = threading.Thread(target=draw_with_pyplot)
    other.start()
    for thread in frames:
        thread.start()
    for thread in frames:
        thread.join()
    done.set()
    other.join()
    assert failures == []


def test_no_figure_outlives_its_renderer():
    simulation = simulate()
    frame(FrameRenderer(), simulation)
    gc.collect()

    def live():
        gc.collect()
        return sum(isinstance(thing, Figure) for thing in gc.get_objects())

    before, seen = live(), weakref.WeakSet()
    for _ in range(5):
        renderer = FrameRenderer()
        frame(renderer, simulation, width=280, ratio=0.5)
        seen.add(renderer)
        renderer.close()
        del renderer
    assert live() == before
    assert len(seen) == 0
    assert plt.get_fignums() == []


def test_a_frame_that_was_drawn_is_not_drawn_again(renderer, monkeypatch):
    drawn = []
    draw = _Surface.draw
    monkeypatch.setattr(
        _Surface, "draw", lambda self, simulation: drawn.append(1) or draw(self, simulation)
    )
    first = renderer.render(simulate(num_gpus=16), width=640, ratio=1, theme="light")
    for theme, count in (("light", 1), ("dark", 2)):
        again = renderer.render(simulate(num_gpus=16), width=640, ratio=1, theme=theme)
        assert (again == first) == (theme == "light")
        assert len(drawn) == count
    for gpus in range(32, 32 + FRAMES):
        renderer.render(simulate(num_gpus=gpus), width=640, ratio=1, theme="light")
    renderer.render(simulate(num_gpus=16), width=640, ratio=1, theme="light")
    assert len(drawn) == 3 + FRAMES  # the oldest made room


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": {"loss_head": "chunked"}},
        {"architecture": None},
        {"gpu": "H100 · 80 GB"},
    ],
)
def test_a_frame_is_of_all_that_was_asked(renderer, changes):
    """The same ten inputs with another plan, model or card: another picture."""
    given = {"architecture": "Llama-3-8B", "gpu_memory_gb": 80}
    one = simulate(**given)
    other = simulate(one.config, **{**given, **changes})
    assert one.config == other.config
    first = frame(renderer, one)
    second = frame(renderer, other)
    assert second == frame(FrameRenderer(), other) != first
    assert frame(renderer, one) == first
