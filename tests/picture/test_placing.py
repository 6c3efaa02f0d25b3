"""Where labels stand."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.transforms import Bbox

from trainmem import FIELDS, preset, simulate
from trainmem.picture.figure import Drawing, frame_size
from trainmem.picture.placing import Places, Spot, spread

from .kit import CARDS, EXTREMES, PRESETS, drawn, labels, points


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


@pytest.mark.parametrize("width", [380, 480, 600, 660, 900])
def test_titles_stand_apart(width):
    _, panels = drawn(simulate(), width)
    boxes = [panel.ax._left_title.get_window_extent() for panel in panels.values()]
    for one, two in itertools.combinations(boxes, 2):
        assert not one.padded(6).overlaps(two)


def random_state(seed):
    """A request anywhere in the sliders' ranges, or near one with an architecture."""
    draw = random.Random(seed)
    if seed % 20 == 0:
        given = dict(draw.choice([CARDS["8B"], CARDS["405B"], CARDS["not sharded"]]))
        given["gpu_memory_gb"] = draw.choice([24, 40, 80, 141, 180])
        given["micro_batch"] = draw.choice([1, 2, 4, 8])
        return given
    names = ("model_params_b", "num_gpus", "gpu_memory_gb", "micro_batch", "seq_length")
    given = {n: draw.choice(FIELDS[n].slider_values()) for n in names}
    return given | {"zero_stage": draw.randrange(4), "grad_ckpt": draw.randrange(2)}


def marks(panel):
    """Boxes of the arrow and the marks of a panel that are on the screen, in pixels."""
    for name in ("point", "diamond", "cross"):
        mark = getattr(panel, name, None)
        if mark is not None and mark.get_visible():
            (x, y) = mark.get_transform().transform(points(mark).T)[0]
            if panel.ax.bbox.contains(x, y):
                yield name, Bbox([[x - 2, y - 2], [x + 2, y + 2]])
    arrow = getattr(panel, "arrow", None)
    if arrow is not None and arrow.get_visible():
        xy = arrow.get_transform().transform(points(arrow).T[:2])
        yield "arrow", Bbox([xy.min(0), xy.max(0)]).padded(0.5, 0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 660, 900])
def test_labels_never_meet_in_two_thousand_states(width, theme):
    """All states at each width; which theme has which half changes no place of a label."""
    drawing = Drawing(*frame_size(width), theme, dpi=72)
    met, named = [], 0
    for seed in range(theme == "dark", 2000, 2):
        _, panels = drawn(simulate(**random_state(seed)), width, drawing)
        for panel in panels.values():
            boxes = labels(panel)
            named += len(boxes)
            for (a, one), (b, two) in itertools.combinations([*boxes, *marks(panel)], 2):
                if {a, b} <= {"point", "diamond", "cross", "arrow"}:
                    continue  # marks stand where the numbers are
                wide = min(one.x1, two.x1) - max(one.x0, two.x0)
                tall = min(one.y1, two.y1) - max(one.y0, two.y0)
                if wide > 1 and tall > 2:
                    met.append((seed, a, b))
    assert not met, (len(met), met[:20])
    assert named > 6 * 1000  # and few are left out


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
