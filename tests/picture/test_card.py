"""What the card may show, beside what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from trainmem import simulate
from trainmem.words import write_gb

from .kit import CARDS, drawn, labels, points


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
