"""What the panels show: sweeps, marks, the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from trainmem import simulate
from trainmem.picture.budget import PARTS
from trainmem.picture.figure import COLORS, describe, plot
from trainmem.picture.seq_sweep import longest_sequence
from trainmem.reduced import REDUCED, Components

from .kit import drawn, labels, points

# -- What the panels show


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


# -- Without a model to ask (an answer from elsewhere)


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
