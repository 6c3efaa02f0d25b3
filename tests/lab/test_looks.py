"""How the widget looks in JupyterLab: scenes, colours, rules."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainmem.config import FIELDS

from .conftest import WIDGET, Open

pytestmark = pytest.mark.lab

LLAMA_405B = {
    "model_params_b": 405, "micro_batch": 1, "seq_length": 8192, "num_layers": 126,
    "hidden_dim": 16384,
}  # fmt: skip
SCENES = {
    "llama-8b": {},
    "llama-70b": {
        "model_params_b": 70, "num_gpus": 64, "micro_batch": 1, "seq_length": 8192,
        "num_layers": 80, "hidden_dim": 8192,
    },
    "llama-405b": {**LLAMA_405B, "num_gpus": 512},
    "405b-on-1-gpu": {**LLAMA_405B, "num_gpus": 1},
    "nothing-fits": {"seq_length": 2**24, "micro_batch": 64, "zero_stage": 0, "grad_ckpt": 0},
}  # fmt: skip


CUT_OR_OVERLAPPING = """() => {
  const root = document.querySelector('.trainmem'), box = root.getBoundingClientRect();
  const seen = [...root.querySelectorAll('*')].filter((node) => node.offsetParent !== null
    && !node.closest('.tm-hidden') && !node.matches('option'));
  const name = (node) => node.tagName + ':' + node.textContent.slice(0, 40);
  const cut = seen.filter((node) => {
    const r = node.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1
      || (node.matches('button, label, small, b, span, strong, p') && node.clientWidth > 0
        && node.scrollWidth > node.clientWidth + 1);
  });
  const leaves = seen.filter((node) => node.children.length === 0 && node.textContent.trim());
  const over = leaves.filter((a, i) => leaves.slice(i + 1).some((b) => {
    const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    return Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
      && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1;
  }));
  return [...cut, ...over].map(name);
}"""


@pytest.mark.parametrize(("width", "theme"), [(1000, "Light"), (480, "Dark")])
def test_scenes_are_neither_clipped_nor_overlapping(
    open_notebook: Open, artifacts: Path, width: int, theme: str
) -> None:
    notebook = open_notebook(WIDGET, viewport=(1700, 1500))
    notebook.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
    notebook.run()
    notebook.page.evaluate(
        "(width) => { document.querySelector('.trainmem').parentElement.style.width = width; }",
        f"{width}px",
    )
    notebook.page.wait_for_timeout(800)
    for scene, values in SCENES.items():
        start = {**notebook_defaults(), **values}
        notebook.evaluate(f"w.update(**{start!r})")
        frame = notebook.evaluate("print(w._frame_id)")
        notebook.until(
            "(frame) => document.querySelector('.trainmem img').dataset.frame === frame", frame
        )
        notebook.page.wait_for_timeout(200)
        notebook.widget.screenshot(path=artifacts / f"{scene}-{width}.png")
        assert notebook.page.evaluate(CUT_OR_OVERLAPPING) == [], scene
        assert notebook.widget.bounding_box()["width"] == pytest.approx(width, abs=2)
        for title in ("Per GPU", "Minimum GPUs", "Model states", "Activations"):
            assert notebook.card(title)


def notebook_defaults() -> dict[str, float]:
    return {name: field.default for name, field in FIELDS.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_leave_the_sliders_and_the_choice(
    open_notebook: Open, artifacts: Path, scheme: str
) -> None:
    notebook = open_notebook(WIDGET, forced_colors="active", color_scheme=scheme)
    notebook.run()
    notebook.widget.screenshot(path=artifacts / f"forced-{scheme}.png")
    colour = "(node) => getComputedStyle(node).backgroundColor"
    chosen = notebook.widget.locator(".tm-choice input:checked + span").first.evaluate(colour)
    other = notebook.widget.locator(".tm-choice input:not(:checked) + span").first.evaluate(colour)
    assert chosen != other
    assert notebook.widget.get_attribute("data-theme") == scheme
    png = notebook.slider("GPUs").screenshot()
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=int)
    assert np.ptp(pixels) > 60, "the slider is of one colour with the page"


@pytest.mark.parametrize("width", [1000, 480])
def test_no_change_of_numbers_moves_the_figure(open_notebook: Open, width: int) -> None:
    notebook = open_notebook(WIDGET, viewport=(1700, 1500))
    notebook.run()
    notebook.page.evaluate(
        "(width) => { document.querySelector('.trainmem').parentElement.style.width = width; }",
        f"{width}px",
    )
    where = """() => { const [root, figure] = ['.trainmem', '.tm-figure'].map((each) =>
      document.querySelector(each).getBoundingClientRect()); return figure.top - root.top; }"""
    tops = set()
    for length in (4096, 65_536, 29_592):
        notebook.evaluate(f"w.seq_length = {length}")
        notebook.wait_box("Sequence", str(length))
        notebook.wait_newest()
        tops.add(round(notebook.page.evaluate(where)))
    assert len(tops) == 1, tops


def test_in_a_narrow_place_the_verdict_is_in_sight_of_every_control(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET, viewport=(1700, 900))
    notebook.run()
    notebook.page.evaluate(
        "() => { document.querySelector('.trainmem').parentElement.style.width = '480px'; }"
    )
    notebook.until("() => document.querySelector('.tm-body').clientWidth < 480")
    for control in notebook.widget.locator(".tm-controls input[type=range]").all():
        control.evaluate("(node) => node.scrollIntoView({ block: 'center' })")
        banner = notebook.widget.locator(".tm-banner").bounding_box()
        assert banner["y"] >= 0
        assert banner["y"] + banner["height"] <= 900
