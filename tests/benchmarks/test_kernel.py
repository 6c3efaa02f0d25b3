"""How fast the kernel side is: a frame beside a rebuilt figure, the model, the import.

Run with ``pytest tests/benchmarks/test_kernel.py``. Nothing is asserted about time: ratios are
printed with their spread, both sides measured in turn so that a busy machine slows both.
"""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import pytest

from trainmem import simulate
from trainmem.figure import COLORS, THEMES, draw_budget, draw_gpu_sweep, draw_seq_sweep, frame_size
from trainmem.frames import FrameRenderer, _Surface
from trainmem.reduced import totals

SIZE = (900, 620)  # pixels
LENGTHS = itertools.cycle(range(2048, 8192, 64))  # a slider that moves


def pyplot_by_hand(**how) -> bytes:
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
    return saved(figure, **how)


def pyplot_inline() -> bytes:
    """The same as ``%matplotlib inline`` shows it, which crops to what was drawn."""
    return pyplot_by_hand(bbox_inches="tight")


def pyplot_with_our_panels() -> bytes:
    """The very same picture, on axes that pyplot makes."""
    simulation = simulate(seq_length=next(LENGTHS))
    figure, axes = plt.subplots(1, 3, figsize=(SIZE[0] / 72, SIZE[1] / 72), dpi=72)
    for draw, ax in zip((draw_gpu_sweep, draw_seq_sweep, draw_budget), axes, strict=True):
        draw(ax, simulation)
    return saved(figure)


def saved(figure, **how) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **how)
    plt.close(figure)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def frame():
    """A frame of the same size, with its simulation: what follows a change of a trait."""
    surface = _Surface(SIZE, 1, "light")

    def draw() -> bytes:
        return surface.draw(simulate(seq_length=next(LENGTHS)))

    draw()
    return draw


def milliseconds(call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def report(capsys, text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}")


def spread(values) -> str:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{middle:.4g} (quartiles {low:.4g} to {high:.4g})"


@pytest.mark.parametrize("rebuild", [pyplot_by_hand, pyplot_inline, pyplot_with_our_panels])
def test_frame_beside_a_rebuilt_figure(capsys, frame, rebuild):
    """A frame follows frames as a slider is dragged: ten of them beside each rebuilt figure."""
    rebuild()
    rounds = [(milliseconds(rebuild), [milliseconds(frame) for _ in range(10)]) for _ in range(20)]
    slow = np.array([rebuilt for rebuilt, _ in rounds])
    fast = np.array([np.mean(frames) for _, frames in rounds])
    report(
        capsys,
        f"{rebuild.__name__}, {SIZE[0]} × {SIZE[1]} pixels, simulation included: "
        f"rebuilt {spread(slow)} ms, frame {spread(fast)} ms, ratio {spread(slow / fast)}; "
        f"PNG {len(rebuild())} and {len(frame())} bytes",
    )


def test_frame(benchmark, frame):
    benchmark.group = "frame"
    benchmark(frame)


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("width", [440, 660, 900])
def test_frame_of_a_view(benchmark, width, ratio):
    benchmark.group = "frame"
    benchmark.extra_info["pixels"] = [ratio * side for side in frame_size(width)]
    renderer = FrameRenderer()

    def draw() -> bytes:
        simulation = simulate(seq_length=next(LENGTHS))
        return renderer.render(simulation, width=width, ratio=ratio, theme="light")

    draw()
    benchmark(draw)


def test_first_frame(benchmark):
    """A new view: nothing is kept yet."""
    benchmark.group = "frame"
    simulation = simulate()
    benchmark(lambda: FrameRenderer().render(simulation, width=900, ratio=1, theme="light"))


def test_axis_change(benchmark):
    """A frame whose axes were never drawn: the top of the GB axis moved."""
    benchmark.group = "frame"
    surface = _Surface(frame_size(900), 1, "light")
    simulations = itertools.cycle([simulate(gpu_memory_gb=gb) for gb in np.geomspace(1, 1e5, 60)])
    benchmark(lambda: surface.draw(next(simulations)))


def test_simulate(benchmark):
    """One request with both sweeps."""
    benchmark.group = "model"
    benchmark(lambda: simulate(seq_length=next(LENGTHS)))


def test_grid(benchmark, capsys):
    """Totals of a grid, on one core."""
    benchmark.group = "model"
    grid = np.ix_(np.arange(1, 129), np.arange(1, 65) * 256, np.arange(4), np.arange(1, 65))
    micro, length, stage, gpus = grid

    def sweep():
        return totals(
            model_params_b=8.0, num_gpus=gpus, micro_batch=micro, seq_length=length,
            num_layers=32, hidden_dim=4096, precision_bits=16, zero_stage=stage, grad_ckpt=1,
        )  # fmt: skip

    found = benchmark(sweep)
    times = [milliseconds(sweep) for _ in range(5)]
    report(
        capsys, f"grid: {spread([found.size / ms / 1e3 for ms in times])} million configurations/s"
    )


def test_import_beside_numpy(capsys):
    def start(code: str) -> float:
        return milliseconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    programs = ("import numpy", "import trainmem", "import trainmem; trainmem.simulate()")
    times = np.array([[start(code) for code in programs] for _ in range(12)])
    numpy_alone, bare, first_answer = times.T
    report(
        capsys,
        f"import numpy {spread(numpy_alone)} ms, import trainmem {spread(bare)} ms; "
        f"trainmem with its first answer less numpy alone: {spread(first_answer - numpy_alone)} ms",
    )
