"""The axis, numbers in words, and the look."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from trainmem import simulate
from trainmem.picture.figure import COLORS, THEMES
from trainmem.picture.style import TOPS, axis_ticks, axis_top, write_binary, write_count, write_tick
from trainmem.reduced import Components
from trainmem.words import write_capacity, write_gb

from .kit import drawn

# -- The axis


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


@pytest.mark.parametrize(
    ("write", "value", "words"),
    [
        (write_gb, 55.14, "55.1"), (write_gb, 0.0, "0.0"), (write_gb, 0.0156, "0.016"),
        (write_gb, 1e-12, "<0.001"),
        (write_gb, 999.9, "999.9"), (write_gb, 16_200, "16 200"), (write_gb, 7.83e14, "7.8×10¹⁴"),
        (write_capacity, 80.0, "80"), (write_capacity, 84.93, "84.9"), (write_capacity, 0.1, "0.1"),
        (write_tick, 120.0, "120"), (write_tick, 0.1 + 0.2, "0.3"), (write_tick, 150_000, "150k"),
        (write_tick, 2e14, "2e14"), (write_tick, 1e6, "1e6"),
        (write_count, 600, "600"), (write_count, 9_600, "9.6k"), (write_count, 999.7, "1k"),
        (write_count, 29_592, "29.6k"),
        (write_count, 4_194_304, "4.19M"), (write_count, 999_999, "1M"),
        (write_binary, 512, "512"), (write_binary, 2**17, "128k"), (write_binary, 2**24, "16M"),
    ],
)  # fmt: skip
def test_numbers_in_words(write, value, words):
    assert write(value).replace(" ", " ") == words


# -- The look


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


def contrast(one, other):
    """Contrast of two colours as WCAG 2 has it."""

    def light(color):
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
        return float(np.dot((0.2126, 0.7152, 0.0722), parts))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_text_is_readable_on_every_ground(name):
    theme = THEMES[name]
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for text in (theme.ink, theme.muted, theme.capacity, theme.fits, theme.floor):
        for ground in (theme.background, theme.states, theme.activations, theme.card):
            assert contrast(text, ground) >= 4.5, (text, ground)
