# ruff: noqa: E501 (scripts for the browser)
"""The widget in one host after another, dragged for real; `.ci/hosts` makes them and runs this."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cells import notebook_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).parents[2]
CELL = "import trainmem\nw = trainmem.TrainingMemoryWidget()\nw"
JUPYTER = ("--no-browser", "--allow-root", "--ServerApp.token=", "--ServerApp.ip=127.0.0.1")

MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    import trainmem

    return mo, trainmem


@app.cell
def _(mo, trainmem):
    widget = mo.ui.anywidget(trainmem.TrainingMemoryWidget())
    widget
    return (widget,)


@app.cell
def _(mo, widget):
    mo.Html(f"<p id='told'>{widget.value['num_gpus']} {widget.fits}</p>")
    return


if __name__ == "__main__":
    app.run()
"""

SHINY = """
from shiny.express import render, ui
from shinywidgets import reactive_read, render_widget

import trainmem


@render_widget
def widget():
    return trainmem.TrainingMemoryWidget()


@render.ui
def reading():
    w = widget.widget
    return ui.p(f"{reactive_read(w, 'num_gpus')} {reactive_read(w, 'fits')}", id="told")
"""


@dataclass(frozen=True)
class Host:
    """How to start a host and to come to the widget there.

    `open` runs the first cell, where the host doesn't; `reactive` hosts run what reads the
    widget anew by themselves.
    """

    file: str
    source: str
    command: Sequence[str]
    path: str = "/"
    open: Callable[[Page], None] = lambda _page: None
    reactive: bool = False


def run_cell(editor: str) -> Callable[[Page], None]:
    """Return what runs the cell whose editor is meant, as people do."""

    def run(page: Page) -> None:
        page.locator(editor).first.click(timeout=60_000)
        page.keyboard.press("Shift+Enter")

    return run


def run_classic(page: Page) -> None:
    page.wait_for_function("() => window.Jupyter?.notebook?.kernel?.is_connected()", timeout=60_000)
    run_cell(".code_cell .CodeMirror")(page)


HOSTS = {
    "marimo": Host(
        "app.py",
        MARIMO,
        (
            *("marimo", "run", "app.py", "--headless", "--no-token"),
            *("--host", "127.0.0.1", "--port", "{port}"),
        ),
        reactive=True,
    ),
    "shiny": Host("app.py", SHINY, ("shiny", "run", "app.py", "--port", "{port}"), reactive=True),
    "nbclassic": Host(
        "w.ipynb",
        notebook_of(CELL),
        ("nbclassic", *JUPYTER, "--ServerApp.port={port}"),
        "/notebooks/w.ipynb",
        run_classic,
    ),
    "notebook": Host(
        "w.ipynb",
        notebook_of(CELL),
        ("notebook", *JUPYTER, "--ServerApp.port={port}"),
        "/notebooks/w.ipynb",
        run_cell(".jp-CodeCell .cm-content"),
    ),
    "voila": Host(
        "w.ipynb",
        notebook_of(CELL),
        ("voila", "w.ipynb", "--no-browser", "--port={port}", "--Voila.ip=127.0.0.1"),
    ),
}


@contextmanager
def started(name: str, folder: Path) -> Iterator[str]:
    """Start a host on loopback; yield its address."""
    host = HOSTS[name]
    python = ROOT / ".venv-hosts" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`.ci/hosts {name}` makes the environment")
    (folder / host.file).write_text(host.source)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    homes = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    env = {**os.environ, **{each: str(folder / each.lower()) for each in homes}}
    (folder / "home").mkdir()
    log = folder / "host.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(python), "-m", *(part.format(port=port) for part in host.command)],
            **{"env": env, "cwd": folder, "stdout": out, "stderr": out},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await_start(process, url, log)
        yield url + host.path
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def await_start(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.3)
    raise RuntimeError("the host did not start:\n" + log.read_text())


# At each painting, after all that was laid out for it: Python's number, and the picture beside it.
WATCH = """(root) => {
  window.seen = [];
  const probe = document.createElement('div');
  probe.style.cssText = 'position:fixed;height:1px;width:0';
  document.body.append(probe);
  new ResizeObserver(() => {
    window.seen.push([root.querySelector('.tm-cards b').textContent, root.querySelector('img').src]);
  }).observe(probe);
  const turn = () => {
    probe.style.width = probe.style.width === '1px' ? '2px' : '1px';
    requestAnimationFrame(turn);
  };
  turn();
}"""

ALIVE = """(root) => root.dataset.status === 'live' && root.querySelector('img').naturalWidth > 0"""

# What of the widget is cut off by a box around it.
CUT_OFF = """(root) => {
  const own = root.getBoundingClientRect();
  const cut = root.scrollHeight > own.height + 1 ? [`${own.height} of ${root.scrollHeight}`] : [];
  for (let node = root; node; node = node.parentNode ?? node.host) {
    if (!(node instanceof Element) || [document.body, document.documentElement].includes(node)) continue;
    const { overflowX, overflowY } = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    const name = `${node.tagName}.${node.className}`;
    if (overflowY === 'hidden' && box.height + 1 < own.height) cut.push(`${name}: ${box.height} high`);
    if (overflowX === 'hidden' && box.width + 1 < own.width) cut.push(`${name}: ${box.width} wide`);
  }
  return cut;
}"""

# The widget as a text, its state included.
COPY = """(root) => {
  const copy = root.cloneNode(true);
  const radios = [...copy.querySelectorAll('[type=radio]')];
  root.querySelectorAll('[type=radio]').forEach((radio, i) => {
    radios[i].toggleAttribute('checked', radio.checked);
  });
  return [root.getBoundingClientRect().width, copy.outerHTML];
}"""

# What rules of a host must not change, element by element.
LOOK = """(root) => [...root.querySelectorAll(':not(.tm-hidden, .tm-hidden *)')].map((node) => {
  const style = getComputedStyle(node);
  const names = ['display', 'float', 'margin', 'padding', 'borderWidth', 'fontSize', 'fontWeight',
    'fontStyle', 'lineHeight', 'letterSpacing', 'textAlign', 'textTransform', 'textDecorationLine',
    'whiteSpace', 'boxSizing', 'boxShadow', 'verticalAlign', 'opacity', 'minHeight', 'borderRadius'];
  return [`${node.tagName}.${node.className}`, names.map((name) => `${name}: ${style[name]}`)];
})"""


def bled_in(browser: Browser, widget: Locator) -> set[str]:
    """Return what looks otherwise than in a page without any rules but the widget's own."""
    width, markup = widget.evaluate(COPY)
    css = (ROOT / "src" / "trainmem" / "static" / "widget.css").read_text()
    page = browser.new_page(viewport={"width": 1400, "height": 1400})
    page.set_content(f"<!doctype html><style>{css}</style><div style='width:{width}px'>{markup}")
    plain = page.locator(".trainmem").evaluate(LOOK)
    page.close()
    here = widget.evaluate(LOOK)
    assert [name for name, _ in here] == [name for name, _ in plain]
    return {
        f"{name} has {mine}, not {its}"
        for (name, styles), (_, wanted) in zip(here, plain, strict=True)
        for mine, its in zip(styles, wanted, strict=True)
        if mine != its
    }


def drag(page: Page, slider: Locator) -> None:
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    for step in range(30):
        page.mouse.move(box["x"] + box["width"] * (0.3 + 0.015 * step), y)
        page.wait_for_timeout(30)
    page.mouse.up()


def resting_picture(page: Page, widget: Locator) -> str:
    """Wait until nothing has changed for a while; return the picture."""
    before, since = "", time.monotonic()
    while time.monotonic() - since < 1.5:
        page.wait_for_timeout(100)
        now = widget.locator("img").first.evaluate("(image) => image.src")
        if now != before:
            before, since = now, time.monotonic()
    return before


def enter(page: Page, widget: Locator, value: str) -> tuple[str, str]:
    """Type a number of GPUs; return the resting picture, and Python's number."""
    box = widget.locator("input[type=text][aria-label^='GPUs']")
    box.fill(value)
    box.press("Enter")
    return resting_picture(page, widget), widget.locator(".tm-cards b").first.inner_text()


def use(page: Page, widget: Locator, *, reactive: bool) -> None:
    """Drag and type, as people do; the picture has to be that of the numbers at every moment."""
    told = page.locator("#told")
    if reactive:
        assert told.inner_text(timeout=30_000) == "8 True"
    first = resting_picture(page, widget)
    widget.evaluate(WATCH)
    drag(page, widget.locator("input[type=range][aria-label='GPUs']"))
    dragged = resting_picture(page, widget)
    seen = {tuple(each) for each in page.evaluate("() => window.seen")}
    numbers = {number for number, _ in seen}
    pictures = {picture for _, picture in seen}
    assert len(numbers) > 3, "the numbers did not follow"
    assert len(pictures) > 3, "the picture did not follow"
    assert len(seen) == len(pictures), "a picture stood beside numbers of another state"
    gpus = widget.locator("input[type=text][aria-label^='GPUs']").input_value()
    assert gpus != "8"
    if reactive:
        told.get_by_text(f"{gpus} True").wait_for(timeout=10_000)
    # The same numbers have the same picture, whatever was shown before.
    number = widget.locator(".tm-cards b").first.inner_text()
    other, other_number = enter(page, widget, "3")
    again, again_number = enter(page, widget, gpus)
    assert (again, again_number) == (dragged, number), "the picture is of other numbers"
    assert len({first, dragged, other}) == 3
    assert other_number != number
    if reactive:
        told.get_by_text(f"{gpus} True").wait_for(timeout=10_000)
        widget.get_by_role("button", name="Reset").click()
        told.get_by_text("8 True").wait_for(timeout=10_000)
        assert resting_picture(page, widget) == first


@pytest.mark.parametrize("name", HOSTS)
def test_dragged(name: str, browser: Browser, tmp_path: Path) -> None:
    shots = ROOT / "artifacts" / "hosts"
    shots.mkdir(parents=True, exist_ok=True)
    host = HOSTS[name]
    errors: list[str] = []
    with started(name, tmp_path) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        try:
            page.goto(url)
            host.open(page)
            widget = page.locator(".trainmem").first
            widget.wait_for(timeout=45_000)
            deadline = time.monotonic() + 30
            while not widget.evaluate(ALIVE):
                assert time.monotonic() < deadline, "the widget heard nothing from Python"
                page.wait_for_timeout(200)
            page.on("pageerror", lambda error: errors.append(str(error)))  # not hosts' own at start
            use(page, widget, reactive=host.reactive)
            cut, bled = widget.evaluate(CUT_OFF), bled_in(browser, widget)
        finally:
            page.screenshot(path=shots / f"{name}.png")
            (shots / f"{name}.log").write_text((tmp_path / "host.log").read_text())
        page.close()
    assert errors == []
    assert cut == []
    assert not bled, "\n".join(sorted(bled))
