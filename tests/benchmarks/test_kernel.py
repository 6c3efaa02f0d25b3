"""How fast the kernel side is: a frame beside a rebuilt figure, the model, the import."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from trainmem import TrainingMemoryWidget, simulate
from trainmem.picture.figure import (
    COLORS,
    THEMES,
    draw_budget,
    draw_gpu_sweep,
    draw_seq_sweep,
    frame_size,
)
from trainmem.picture.frames import FrameRenderer, _Surface
from trainmem.reduced import totals
from trainmem.widget import _handle_message

from .table import in_turn

SIZE = (900, 620)  # pixels
LENGTHS = itertools.cycle(range(2048, 8192, 64))  # a slider that moves


def pyplot_by_hand() -> bytes:
    """The same picture as one would write it in a notebook cell."""
    s, theme = simulate(seq_length=next(LENGTHS)), THEMES["light"]
    capacity, need = s.gpu_capacity_gb, s.per_gpu_total_gb
    states, floor = s.model_states_per_gpu_gb, s.activations_per_gpu_gb
    figure, (one, two, three) = plt.subplots(
        1, 3, sharey=True, figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100,
        gridspec_kw={"width_ratios": (5, 4, 2)},
    )  # fmt: skip
    for ax, sweep, here in ((one, s.gpu_sweep, 8), (two, s.seq_sweep, s.config.seq_length)):
        base = floor if ax is one else states
        ax.fill_between(sweep.x, 0, base, color=COLORS["activations"], alpha=0.28, lw=0)
        ax.fill_between(sweep.x, base, sweep.total_gb, color=COLORS["weights"], alpha=0.22, lw=0)
        ax.plot(sweep.x, sweep.total_gb, color=theme.ink, lw=1.8)
        ax.axhline(capacity, color=theme.capacity)
        ax.plot(here, need, "o", color=theme.ink)
        ax.set_xscale("log", base=2)
    one.axhline(floor, color=theme.floor, ls="--")
    one.plot(s.min_gpus_to_fit, 72.9, "D", color=theme.fits)
    one.annotate(
        "", (8, capacity), (8, need), arrowprops={"arrowstyle": "<->", "color": theme.fits}
    )
    one.text(9, (need + capacity) / 2, f"{s.headroom_gb:.1f} GB\nheadroom", color=theme.fits)
    one.text(2048, capacity + 1, "80 GB capacity", color=theme.capacity, ha="right")
    one.text(2048, floor + 1, f"activation floor {floor:.1f} GB", color=theme.floor, ha="right")
    one.text(2, 68, f"min {s.min_gpus_to_fit}", color=theme.fits, ha="right")
    two.plot(s.longest_sequence, capacity, "x", color=theme.capacity)
    two.text(s.longest_sequence, capacity + 2, f"OOM past {s.longest_sequence}", ha="right")
    one.set_xticks([1, 8, 64, 512, 2048], ["1", "8", "64", "512", "2048"])
    two.set_xticks([512, 4096, 32768, 131072], ["512", "4k", "32k", "128k"])
    base = 0.0
    for name in ("optimizer", "gradients", "weights", "activations"):
        size = getattr(s.components, name) / 1e9
        three.bar(0, size, bottom=base, color=COLORS[name])
        three.text(0.6, base + size / 2, f"{name} {size:.1f}", va="center")
        base += size
    three.bar(0, capacity - base, bottom=base, color=theme.free, hatch="///", edgecolor="white")
    three.text(0.6, (base + capacity) / 2, f"free {capacity - base:.1f}", color=theme.fits)
    three.axhline(capacity, color=theme.capacity)
    three.set_xticks([])
    titles = ("Memory per GPU vs GPU count", "… vs sequence length", "HBM budget")
    for ax, title in zip((one, two, three), titles, strict=True):
        ax.set_title(title, loc="left", weight="bold")
        ax.grid(axis="y")
        ax.set_ylim(0, 120)
        ax.spines[:].set_visible(False)
    one.set(xlabel="GPUs (log)", ylabel="GB per GPU")
    two.set(xlabel="tokens (log)")
    return saved(figure)


def pyplot_with_our_panels() -> bytes:
    """The very same picture, on axes that pyplot makes."""
    simulation = simulate(seq_length=next(LENGTHS))
    figure, axes = plt.subplots(1, 3, figsize=(SIZE[0] / 72, SIZE[1] / 72), dpi=72)
    for draw, ax in zip((draw_gpu_sweep, draw_seq_sweep, draw_budget), axes, strict=True):
        draw(ax, simulation)
    return saved(figure)


def saved(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    return buffer.getvalue()


def changing() -> Callable[[], object]:
    """A change of a trait of a widget that one browser shows, up to the finished PNG."""
    widget = TrainingMemoryWidget()
    views = [{"width": SIZE[0], "ratio": 1, "theme": "light"}]
    _handle_message(widget, {"kind": "hello", "client": "c", "views": views}, [])

    def change() -> bytes:
        widget.seq_length = next(LENGTHS)
        return widget._frame

    return change


def drawing() -> Callable[[], object]:
    """A frame with its simulation, at the size of the rebuilt figure."""
    surface = _Surface(SIZE, 1, "light")
    return lambda: surface.draw(simulate(seq_length=next(LENGTHS)))


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """Return what measures a call, ms."""

    def measure() -> float:
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)

    return measure


def test_frame_beside_a_rebuilt_figure(add: Callable[..., None]) -> None:
    names = ("by hand", "on our panels")
    rebuilds = [timed(rebuild) for rebuild in (pyplot_by_hand, pyplot_with_our_panels)]
    change, frame, *rebuilt = in_turn([timed(changing()), timed(drawing()), *rebuilds], 25)
    for name, times in zip(names, rebuilt, strict=True):
        against = f"pyplot {name}, savefig, {SIZE[0]}×{SIZE[1]}"
        add("trait → PNG in the kernel", "ms", change, times, against, "faster", "≥ 20×")
        add(
            f"simulation → frame, {SIZE[0]}×{SIZE[1]}",
            "ms",
            frame,
            times,
            against,
            "faster",
            "≥ 20×",
        )


@pytest.mark.parametrize(("width", "ratio"), [(440, 1), (660, 1), (900, 1), (900, 2)])
def test_frame_of_a_view(benchmark: Any, add: Callable[..., None], width: int, ratio: int) -> None:
    renderer = FrameRenderer()

    def draw() -> bytes:
        simulation = simulate(seq_length=next(LENGTHS))
        return renderer.render(simulation, width=width, ratio=ratio, theme="light")

    draw()
    benchmark(draw)
    add_benchmark(add, benchmark, f"frame of a view {width} wide at {ratio}×", "ms")


def test_first_frame(benchmark: Any, add: Callable[..., None]) -> None:
    """A new view: nothing is kept yet."""
    simulation = simulate()
    benchmark(lambda: FrameRenderer().render(simulation, width=900, ratio=1, theme="light"))
    add_benchmark(add, benchmark, "first frame of a view", "ms")


def test_axis_change(benchmark: Any, add: Callable[..., None]) -> None:
    """A frame whose axes were never drawn: the top of the GB axis moved."""
    surface = _Surface(frame_size(900), 1, "light")
    simulations = itertools.cycle([simulate(gpu_memory_gb=gb) for gb in np.geomspace(1, 1e5, 60)])
    benchmark(lambda: surface.draw(next(simulations)))
    add_benchmark(add, benchmark, "frame on new axes", "ms")


def test_simulate(benchmark: Any, add: Callable[..., None], reference: dict[str, Any]) -> None:
    """One request with both sweeps."""
    benchmark(lambda: simulate(seq_length=next(LENGTHS)))
    published = reference["compute_ms"]
    add_benchmark(
        add, benchmark, "simulate(), both sweeps", "ms", [published],
        "published answer, its own hardware", "faster", "≤ 0.11 ms",
    )  # fmt: skip


def add_benchmark(add: Callable[..., None], benchmark: Any, what: str, *rest: Any) -> None:
    """Add a row of what pytest-benchmark measured, ms."""
    if benchmark.stats is not None:  # None under --benchmark-disable
        unit, *rest = rest
        add(what, unit, [1e3 * seconds for seconds in benchmark.stats.stats.data], *rest)


def test_grid(add: Callable[..., None]) -> None:
    """Totals of a grid on one core, beside NumPy adding two arrays of that size."""
    grid = np.ix_(np.arange(1, 129), np.arange(1, 65) * 256, np.arange(4), np.arange(1, 65))
    micro, length, stage, gpus = grid
    size = np.broadcast(*grid).size
    one, two = np.ones(size), np.ones(size)

    def sweep() -> object:
        return totals(
            model_params_b=8.0, num_gpus=gpus, micro_batch=micro, seq_length=length,
            num_layers=32, hidden_dim=4096, precision_bits=16, zero_stage=stage, grad_ckpt=1,
        )  # fmt: skip

    here, plain = in_turn([timed(sweep), timed(lambda: one + two)], 9)
    rates = [[size / ms / 1e3 for ms in times] for times in (here, plain)]
    add(
        "configurations of a grid", "million/s", *rates, "NumPy, one addition each", "of it", "≥ 10"
    )


def test_import_beside_numpy(add: Callable[..., None]) -> None:
    def start(code: str) -> Callable[[], float]:
        return timed(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    programs = ("import trainmem", "import trainmem; trainmem.simulate()", "import numpy")
    bare, answered, numpy_alone = in_turn([start(code) for code in programs], 12)
    for what, times in (("import", bare), ("import, first answer", answered)):
        add(what, "ms", times, numpy_alone, "import numpy", "of it", "≤ 30 ms more")
