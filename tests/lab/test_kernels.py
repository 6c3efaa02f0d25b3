"""The widget while its kernel is busy, lost, gone or not there yet."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import WIDGET, Lab, Open

pytestmark = pytest.mark.lab


def test_a_busy_kernel_shows_waiting_and_loses_nothing(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    notebook.page.evaluate(
        """() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
             .requestExecute({ code: "import time\\nfor _ in range(50): time.sleep(0.1)" }); }"""
    )
    notebook.page.wait_for_timeout(300)
    notebook.box("GPUs").fill("32")
    notebook.box("GPUs").press("Enter")
    # JupyterLab with subshells answers at once; without, the widget waits and says so.
    notebook.until(
        "() => document.querySelector('.trainmem').dataset.status === 'waiting' ||"
        " [...document.querySelectorAll('.tm-cards b')][0].textContent === '12.9'",
        timeout=8000,
    )
    notebook.wait_card("Per GPU", "12.9")
    notebook.until("() => document.querySelector('.trainmem').dataset.status === 'live'")
    assert notebook.evaluate("print(w.num_gpus)") == "32"


def test_busy_before_its_first_picture_it_says_so(open_notebook: Open) -> None:
    busy = "import time\ntime.sleep(6)"
    show = "import ipywidgets\nfrom IPython.display import display\ndisplay(ipywidgets.HBox([w]))"
    notebook = open_notebook(f"{WIDGET[:-2]}\n{show}\n{busy}")
    notebook.until(
        "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
        " === 'idle'"
    )
    notebook.command("notebook:run-all-cells")
    figure = notebook.widget.locator(".tm-figure")
    figure.get_by_text("once the kernel is free").wait_for(timeout=30_000)
    assert not figure.locator("img").is_visible()
    notebook.alive()
    assert figure.locator("img").is_visible()
    assert figure.inner_text() == ""


@pytest.mark.parametrize("how", ["restart", "kill", "shut down"])
def test_a_lost_kernel_disables_the_controls(open_notebook: Open, lab: Lab, how: str) -> None:
    notebook = open_notebook(WIDGET)
    notebook.run()
    if how == "restart":
        notebook.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
    elif how == "kill":
        os.kill(int(notebook.evaluate("import os; print(os.getpid())")), signal.SIGKILL)
    else:
        lab.shut_down_kernels()
    notebook.until(
        "() => document.querySelector('.trainmem').dataset.status === 'disconnected'",
        timeout=30_000,
    )
    assert notebook.slider("GPUs").is_disabled()
    assert notebook.box("GPUs").is_disabled()
    assert "Disconnected" in notebook.widget.inner_text()
    if how == "restart":  # and running the cell again brings a live one
        notebook.page.wait_for_timeout(2000)
        notebook.run()
        assert notebook.slider("GPUs").is_enabled()


def test_reopened_without_a_kernel(open_notebook: Open, lab: Lab, artifacts: Path) -> None:
    name = lab.notebook("saved.ipynb", WIDGET)
    notebook = open_notebook(name=name)
    notebook.run()
    notebook.page.wait_for_timeout(1000)
    save_state = "@jupyter-widgets/jupyterlab-manager:saveWidgetState"
    notebook.page.evaluate("(c) => window.jupyterapp.commands.execute(c).then(() => 1)", save_state)
    notebook.page.wait_for_timeout(500)
    notebook.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.context.save().then(() => 1)"
    )
    state = json.loads((lab.folder / name).read_text())["metadata"]["widgets"]
    assert len(json.dumps(state)) < 150_000
    notebook.page.close()
    lab.shut_down_kernels()
    again = open_notebook(name=name)
    again.until(
        "() => document.querySelector('.trainmem')?.dataset.status === 'disconnected'",
        timeout=60_000,
    )
    assert again.slider("GPUs").is_disabled()
    assert again.card("Per GPU") == "24.9"
    again.until("() => document.querySelector('.trainmem img').naturalWidth > 0")
    assert "Static copy" in again.widget.inner_text()
    assert "run the cell" not in again.widget.inner_text()
    again.widget.screenshot(path=artifacts / "reopened.png")


def test_closing_leaves_nothing_behind(open_notebook: Open) -> None:
    notebook = open_notebook(WIDGET, "w")
    notebook.run()
    for gpus in (16, 32, 64):
        notebook.box("GPUs").fill(str(gpus))
        notebook.box("GPUs").press("Enter")
        notebook.page.wait_for_timeout(150)
    notebook.evaluate("w.close()")
    notebook.until("() => document.querySelectorAll('.trainmem').length === 0")
    assert notebook.errors == []


def test_the_readmes_first_line_prints_the_address_of_its_notebook(
    root: Path, tmp_path: Path, browser: Any
) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    first = readme.split("```sh\n")[1].split("```")[0]
    assert "pip install -q" not in first  # minutes in silence
    _, _, options = first.strip().partition(".venv/bin/jupyter lab ")
    (tmp_path / "notebooks").mkdir()
    shutil.copy(root / "notebooks" / "quickstart.ipynb", tmp_path / "notebooks")
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    folders += ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options.split(), "--no-browser", "--port=0"],
        cwd=tmp_path,
        env=os.environ | {name: str(tmp_path / name.lower()) for name in folders},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        printed = (re.search(r"http://127\S+token=\S+", line) for line in server.stderr)
        address = next(match[0] for match in printed if match)
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        assert "quickstart" in page.title()
        context.close()
    finally:
        server.terminate()
        try:
            server.communicate(timeout=15)
        except subprocess.TimeoutExpired:  # it waits for the kernel, which may be starting still
            server.kill()
            server.communicate()
