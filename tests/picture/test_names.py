"""Every architecture has its pictures, whatever its name is."""

from __future__ import annotations

import io

import pytest
from matplotlib.text import Text

from steps import TINY
from trainmem import ARCHITECTURES, TrainingMemory, simulate


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_every_architecture_has_both_figures(name):
    s = simulate(architecture=name, num_gpus=64, micro_batch=1, seq_length=1024)
    s.timeline(size=(6.0, 4.0)).savefig(io.BytesIO(), format="png", dpi=30)
    s.plot().savefig(io.BytesIO(), format="png", dpi=30)


@pytest.mark.parametrize("name", ["$$", r"$\frac{1}{$", "a $x_1$ b", "\ud800", "a\nb\x00c", "%_^"])
def test_a_name_is_lettered_as_it_is_in_every_picture(name):
    memory = TrainingMemory()
    opened = memory.open_config(TINY, name)
    assert memory.architecture == opened.name
    opened.name.encode("utf-8")  # as it is sent to a browser
    for figure in (memory.simulation.timeline(), memory.simulation.plot()):
        for form in ("png", "svg", "pdf"):
            figure.savefig(io.BytesIO(), format=form)
        texts = figure.findobj(Text)
        assert not any(text.get_parse_math() or text.get_usetex() for text in texts)
    title = memory.simulation.timeline().axes[0].get_title("left")
    assert name in title if name.isprintable() else "\ufffd" in title or "a b c" in title
