"""The widget in a real JupyterLab: what a user does, and what a user sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import WIDGET, Open, Pages

pytestmark = pytest.mark.lab

PUBLISHED = Path(__file__).parents[1] / "data" / "curl.txt"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_opens_alive_and_looks_right(open_notebook: Open, artifacts: Path, theme: str) -> None:
    notebook = open_notebook(WIDGET)
    if theme == "dark":
        notebook.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
    notebook.run()
    notebook.until(f"() => document.querySelector('.trainmem').dataset.theme === '{theme}'")
    notebook.page.wait_for_timeout(500)
    assert notebook.card("Per GPU") == "24.9"
    assert notebook.card("Minimum GPUs") == "2"
    assert "✓ Fits" in notebook.widget.inner_text()
    notebook.widget.screenshot(path=artifacts / f"fits-{theme}.png")
    before = notebook.shown_frame()
    notebook.box("Sequence").fill("65536")
    notebook.box("Sequence").press("Enter")
    notebook.wait_card("Minimum GPUs", "none")
    notebook.until(f"() => +document.querySelector('.trainmem img').dataset.frame > {before}")
    notebook.page.wait_for_timeout(500)
    assert "✗ Out of memory" in notebook.widget.inner_text()
    notebook.widget.screenshot(path=artifacts / f"oom-{theme}.png")
    background = notebook.page.evaluate(
        "() => getComputedStyle(document.querySelector('.trainmem')).backgroundColor"
    )
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 380
    assert light == (theme == "light")
    assert notebook.errors == []


def test_drag_moves_numbers_and_picture_at_once(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    box = notebook.slider("GPUs").bounding_box()
    y = box["y"] + box["height"] / 2
    mouse = notebook.page.mouse
    first = notebook.shown_frame()
    mouse.move(box["x"] + box["width"] * 0.3, y)
    mouse.down()
    seen = set()
    for step in range(30):
        mouse.move(box["x"] + box["width"] * (0.3 + 0.02 * step), y)
        notebook.page.wait_for_timeout(16)
        seen.add((notebook.card("Per GPU"), notebook.shown_frame()))
    assert len({number for number, _ in seen}) > 5, "the numbers did not follow"
    assert len({frame for _, frame in seen}) > 5, "the picture did not follow"
    mouse.up()
    gpus = notebook.box("GPUs").input_value()
    notebook.wait_python("w.num_gpus", gpus)
    assert notebook.wait_newest() > first
    assert notebook.slider("GPUs").evaluate("(s) => s.matches(':focus')")


def test_typed_values_are_exact(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    box = notebook.box("Parameters (B)")
    for text, value in (("70.6", 70.6), ("2.5e-3", 0.0025)):
        box.fill(text)
        box.press("Enter")
        notebook.until(
            "(value) => Number(document.querySelector('.trainmem input[aria-label^=Parameters]"
            "[type=text]').value) === value",
            value,
        )
        notebook.wait_python("w.model_params_b", str(value))
        assert float(box.input_value()) == value


def test_nonsense_is_refused_and_nothing_is_lost(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    box = notebook.box("GPUs")
    alert = notebook.widget.locator("[role=alert]")
    for text in ("nonsense", "0", "-3", "1e999", "8.5", "NaN", "<b>8</b>", "0x10", "9" * 400):
        box.fill(text)
        box.press("Enter")
        alert.wait_for(state="visible")
        message = alert.inner_text()
        assert message.startswith("GPUs: ")
        assert "whole number from 1 to 1 000 000" in message
        notebook.wait_box("GPUs", text)  # to be mended
        assert box.get_attribute("aria-invalid") == "true"
        assert notebook.evaluate("print(w.num_gpus)") == "8"
        box.fill("16")
        box.press("Enter")
        alert.wait_for(state="hidden")
        assert box.get_attribute("aria-invalid") == "false"
        box.fill("8")
        box.press("Enter")
        notebook.wait_card("Per GPU", "24.9")


def test_presets_fixes_undo_and_reset(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.widget.locator("select[aria-label=Preset]").select_option("Llama-3-70B · 64×H100")
    notebook.wait_card("Model states", "17.5")
    notebook.wait_box("Layers", "80")
    notebook.widget.locator("button", has_text="Reset").click()
    notebook.wait_card("Model states", "16.0")
    notebook.box("Sequence").fill("65536")
    notebook.box("Sequence").press("Enter")
    notebook.wait_card("Minimum GPUs", "none")
    notebook.widget.locator("button", has_text="micro batch 1 →").click()
    notebook.wait_card("Per GPU", "51.4")
    assert notebook.evaluate("print(w.micro_batch, w.fits)") == "1 True"
    notebook.widget.locator("button", has_text="Undo").click()
    notebook.wait_card("Per GPU", "157.7")
    assert notebook.evaluate("print(w.micro_batch, w.seq_length)") == "4 65536"


def test_every_fix_button_makes_it_fit(open_notebook: Open) -> None:
    notebook = open_notebook(
        "import trainmem\nw = trainmem.TrainingMemoryWidget(grad_ckpt=0, num_gpus=2)\nw"
    )
    notebook.run()
    buttons = notebook.widget.locator(".tm-fixes button:not(:has-text('Undo'))")
    count = buttons.count()
    assert count >= 3
    for i in range(count):
        promised = buttons.nth(i).inner_text().split("→")[1].strip()
        buttons.nth(i).click()
        notebook.until("() => document.querySelector('.trainmem').dataset.fits === 'true'")
        assert notebook.card("Per GPU") + " GB" == promised
        notebook.widget.locator("button", has_text="Undo").click()
        notebook.until("() => document.querySelector('.trainmem').dataset.fits === 'false'")


def test_two_views_stay_in_step_and_widgets_stay_apart(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET, "w", "other = trainmem.TrainingMemoryWidget()\nother")
    notebook.run()
    notebook.alive(1)
    notebook.page.locator(".trainmem").nth(2).scroll_into_view_if_needed()
    notebook.alive(2)
    notebook.page.locator(".trainmem").nth(0).scroll_into_view_if_needed()
    notebook.box("GPUs", 0).fill("64")
    notebook.box("GPUs", 0).press("Enter")
    notebook.wait_card("Per GPU", "10.9", 0)
    notebook.wait_card("Per GPU", "10.9", 1)
    notebook.page.locator(".trainmem").nth(1).scroll_into_view_if_needed()
    notebook.wait_newest(1)
    assert notebook.card("Per GPU", 2) == "24.9"
    assert notebook.evaluate("print(other.num_gpus)") == "8"


def test_python_moves_the_browser(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.evaluate("w.update(num_gpus=64, zero_stage=2)")
    notebook.wait_card("Per GPU", "26.6")
    notebook.wait_box("GPUs", "64")
    assert notebook.widget.locator("input[type=radio][value='2']").is_checked()


def test_jslink_works_and_a_refused_value_is_taken_back(open_notebook: Open) -> None:
    notebook = open_notebook(
        "import trainmem, ipywidgets as ipw\n"
        "w = trainmem.TrainingMemoryWidget()\n"
        "t = ipw.IntText(value=8, description='linked')\n"
        "f = ipw.FloatText(description='need')\n"
        "l = ipw.jslink((t, 'value'), (w, 'num_gpus'))\n"
        "k = ipw.jsdlink((w, 'per_gpu_total_gb'), (f, 'value'))\n"
        "ipw.VBox([t, f, ipw.HBox([w])])"
    )
    notebook.run()
    linked = notebook.page.locator(".widget-text input").nth(0)
    linked.fill("64")
    linked.press("Tab")
    notebook.wait_card("Per GPU", "10.9")
    notebook.until("() => document.querySelectorAll('.widget-text input')[1].value === '10.858'")
    outside, inside = notebook.page.evaluate(
        "() => ['.jp-OutputArea-output', '.trainmem'].map((s) => "
        "document.querySelector(s).getBoundingClientRect().right)"
    )
    assert inside <= outside + 1, "in boxes, the widget is cut off"
    linked.fill("0")
    linked.press("Tab")
    notebook.widget.locator("[role=alert]").wait_for(state="visible")
    notebook.until("() => document.querySelectorAll('.widget-text input')[0].value === '64'")
    assert notebook.evaluate("print(w.num_gpus)") == "64"


def test_copies_the_published_request(open_notebook: Open, pages: Pages) -> None:
    pages.context.grant_permissions(["clipboard-read", "clipboard-write"])
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.widget.locator("button", has_text="Copy curl").click()
    notebook.until("() => document.querySelector('.trainmem').textContent.includes('Copied')")
    copied = notebook.page.evaluate("() => navigator.clipboard.readText()")
    assert copied.strip() == PUBLISHED.read_text().strip()
    notebook.widget.locator("button", has_text="Copy Python").click()
    read = "navigator.clipboard.readText()"
    notebook.until(f"async () => (await {read}).startsWith('import trainmem')")
    code = notebook.page.evaluate(f"() => {read}")
    space: dict[str, Any] = {}
    exec(code, space)
    assert space["simulation"].per_gpu_total_gb == 24.858
    notebook.widget.locator("button", has_text="JSON").click()
    notebook.until("() => document.querySelector('.tm-drawer pre').textContent !== ''")
    with notebook.page.expect_download() as download:
        notebook.widget.locator("button", has_text="Download").click()
    answer = json.loads(Path(download.value.path()).read_text())
    assert answer["outputs"]["per_gpu_total_gb"] == 24.858


def test_keyboard_alone_is_enough(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.slider("GPUs").focus()
    before = int(notebook.box("GPUs").input_value())
    for _ in range(3):
        notebook.page.keyboard.press("ArrowRight")
    after = notebook.box("GPUs").input_value()
    assert int(after) > before
    notebook.wait_python("w.num_gpus", after)
    notebook.widget.locator("input[type=radio][value='3']").focus()
    notebook.page.keyboard.press("ArrowLeft")
    notebook.wait_python("w.zero_stage", "2")
    # The notebook's own keys did nothing meanwhile: no cell was added or removed.
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == 1


def test_two_hundred_events_then_silence(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.evaluate(
        "import time\nsent = []\n"
        "def record(change):\n"
        "    if change['new'].get('kind') == 'frame':\n"
        "        sent.append((1000 * time.time(), change['new']['draft'], w.num_gpus))\n"
        "w.observe(record, '_reply')"
    )
    notebook.page.evaluate(
        """async () => {
          const slider = document.querySelector('.trainmem input[type=range][aria-label=GPUs]');
          slider.dispatchEvent(new PointerEvent('pointerdown'));
          for (let i = 0; i < 200; i++) {
            slider.value = String(20 + (i % 60));
            slider.dispatchEvent(new Event('input'));
            await new Promise((done) => setTimeout(done, 10));
          }
          slider.value = '42';
          slider.dispatchEvent(new Event('input'));
          slider.dispatchEvent(new PointerEvent('pointerup'));
          window.released = Date.now();
        }"""
    )
    value = notebook.box("GPUs").input_value()
    released = notebook.page.evaluate("() => window.released")
    notebook.wait_python("sent[-1][1:]", str((False, int(value))))
    newest = notebook.wait_newest()
    notebook.page.wait_for_timeout(500)  # in which more would arrive
    late = json.loads(
        notebook.evaluate(f"import json; print(json.dumps([f for f in sent if f[0] > {released}]))")
    )
    # Two in flight, the last value's draft, one at rest.
    assert 1 <= len(late) <= 4
    assert late[-1][1:] == [False, int(value)]
    assert notebook.shown_frame() == newest
    assert len(late) < int(notebook.evaluate("print(len(sent))")), "none was drawn in the drag"


def test_the_architecture_aware_model(open_notebook: Open, artifacts: Path) -> None:
    notebook = open_notebook(WIDGET, viewport=(1400, 1700))
    notebook.run()
    choose = notebook.widget.locator("select[id$=architecture]")
    notebook.widget.locator(".tm-note button").click()
    assert choose.evaluate("(s) => s === document.activeElement")
    choose.select_option("Llama-3-8B")
    notebook.wait_card("Per GPU", "44.6")
    assert notebook.slider("Layers").is_disabled()
    notebook.box("Sequence").fill("7500")
    notebook.box("Sequence").press("Enter")
    notebook.until("() => document.querySelector('.trainmem').dataset.grade === 'uncertain'")
    for summary in notebook.widget.locator("summary").all()[:2]:  # the plan, its first group
        summary.click()
    notebook.widget.get_by_role("button", name="Timeline").click()
    notebook.until("() => document.querySelector('.tm-drawer img').naturalWidth > 0")
    notebook.widget.screenshot(path=artifacts / "architecture-light.png")
    notebook.widget.locator("select[id$=loss_head]").select_option('"chunked"')
    notebook.until("() => document.querySelector('.trainmem').dataset.grade === 'fits'")
    assert notebook.evaluate("print(w.plan)") == "{'loss_head': 'chunked'}"
    notebook.widget.locator("button", has_text="Undo").click()
    notebook.until("() => document.querySelector('.trainmem').dataset.grade === 'uncertain'")
    choose.select_option("open")
    notebook.widget.locator("textarea").fill('{"model_type": "mamba"}')
    notebook.widget.locator("textarea").press("Tab")
    notebook.widget.locator("[role=alert]").wait_for(state="visible")
    assert "model_type" in notebook.widget.locator("[role=alert]").inner_text()
    choose.select_option("")
    notebook.wait_card("Per GPU", "32.2")  # the shared inputs stay: 7500 tokens
    assert notebook.slider("Layers").is_enabled()
    assert notebook.errors == []
