"""A real JupyterLab and a real Chromium, shared by all tests of this folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cells import notebook_of

TOKEN = "only-on-loopback"
WIDGET = "import trainmem\nw = trainmem.TrainingMemoryWidget()\nw"


@pytest.fixture(scope="session")
def artifacts() -> Path:
    folder = Path(__file__).parents[2] / "artifacts"
    folder.mkdir(exist_ok=True)
    return folder


class Lab:
    """A JupyterLab server on loopback, with a folder of notebooks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        settings = folder / "settings"
        news = settings / "@jupyterlab" / "apputils-extension"
        news.mkdir(parents=True)
        (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
        home = {
            name: str(folder / name.lower())
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        }
        env = {
            **os.environ,
            **home,
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self.log = (folder / "lab.log").open("w")
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
                *("--ip", "127.0.0.1", "--port", str(port), f"--IdentityProvider.token={TOKEN}"),
                *("--ServerApp.root_dir", str(folder), "--ServerApp.port_retries=0"),
            ],
            env=env,
            cwd=folder,
            stdout=self.log,
            stderr=self.log,
        )
        self._await_start()

    def _await_start(self) -> None:
        deadline = time.monotonic() + 300  # a busy machine takes its time; a crash is seen at once
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(self.url + "/api", timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.2)
        raise RuntimeError("JupyterLab did not start:\n" + (self.folder / "lab.log").read_text())

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook of code cells; return its name."""
        (self.folder / name).write_text(notebook_of(*cells))
        return name

    def api(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/{path}", method=method, headers={"Authorization": f"token {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    def shut_down_kernels(self) -> None:
        for session in self.api("sessions"):
            self.api(f"sessions/{session['id']}", "DELETE")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab")
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


class Notebook:
    """A notebook open in JupyterLab: a page and the few things that users do to it."""

    def __init__(self, page: Any, lab: Lab, name: str) -> None:
        self.page = page
        self.lab = lab
        self.errors: list[str] = []
        page.on("pageerror", self._note)
        if page.url.startswith(lab.url):
            self.command("docmanager:open", {"path": name})
        else:
            page.goto(f"{lab.url}/lab/tree/{name}?reset&token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.command(
            "application:toggle-left-area", only_if=".jp-SideBar.lm-mod-left .lm-mod-current"
        )

    def _note(self, error: Any) -> None:
        self.errors.append(str(error))

    def close(self) -> bool:
        """Take the notebook off the page; return whether that is as good as a new one then."""
        if self.page.is_closed():
            return False
        self.page.remove_listener("pageerror", self._note)
        self.page.evaluate(
            "() => { for (const shown of [...window.jupyterapp.shell.widgets('main')])"
            " shown.dispose(); }"
        )
        return self.page.locator(".jp-Dialog, .trainmem").count() == 0 and self.errors == []

    def command(self, name: str, args: dict[str, Any] | None = None, only_if: str = "") -> None:
        if only_if and self.page.locator(only_if).count() == 0:
            return
        self.page.evaluate(
            "([name, args]) => { window.jupyterapp.commands.execute(name, args); }",
            [name, args or {}],
        )

    def run(self, command: str = "notebook:run-all-cells", timeout: float = 60_000) -> None:
        """Run all cells, or some; wait for a widget that has heard from its kernel."""
        self.until(
            "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
            " === 'idle'",
            timeout=timeout,
        )
        self.command(command)
        self.alive(timeout=timeout)

    def alive(self, index: int = 0, timeout: float = 60_000) -> None:
        self.until(
            "(index) => { const root = document.querySelectorAll('.trainmem')[index];"
            " return root?.dataset.status === 'live' &&"
            " root.querySelector('img').naturalWidth > 0; }",
            index,
            timeout=timeout,
        )

    def until(self, condition: str, argument: Any = None, timeout: float = 15_000) -> None:
        self.page.wait_for_function(condition, arg=argument, timeout=timeout)

    @property
    def widget(self) -> Any:
        return self.page.locator(".trainmem").first

    def box(self, label: str, index: int = 0) -> Any:
        return (
            self.page.locator(".trainmem")
            .nth(index)
            .locator(f"input[type=text][aria-label^='{label}']")
        )

    def slider(self, label: str, index: int = 0) -> Any:
        return (
            self.page.locator(".trainmem")
            .nth(index)
            .locator(f"input[type=range][aria-label='{label}']")
        )

    def card(self, title: str, index: int = 0) -> str:
        card = (
            self.page.locator(".trainmem")
            .nth(index)
            .locator(".tm-cards > div")
            .filter(has=self.page.get_by_text(title, exact=True))
        )
        return str(card.locator("b").inner_text())

    def wait_card(self, title: str, value: str, index: int = 0) -> None:
        self.until(
            "([title, value, index]) => [...document.querySelectorAll('.trainmem')[index]"
            ".querySelectorAll('.tm-cards > div')].some((card) => card.textContent.includes(title)"
            " && card.querySelector('b').textContent === value)",
            [title, value, index],
        )

    def wait_box(self, label: str, value: str, index: int = 0) -> None:
        self.until(
            "([label, value, index]) => document.querySelectorAll('.trainmem')[index]"
            ".querySelector(`input[type=text][aria-label^='${label}']`).value === value",
            [label, value, index],
        )

    def wait_python(self, expression: str, value: str, timeout: float = 15) -> None:
        """Wait until an expression prints a value in the kernel."""
        end = time.monotonic() + timeout
        while (found := self.evaluate(f"print({expression})")) != value:
            assert time.monotonic() < end, f"{expression} is {found}, not {value}"
            self.page.wait_for_timeout(100)

    def wait_newest(self, index: int = 0, timeout: float = 15) -> int:
        """Wait until a view shows the newest frame; return its number."""
        end = time.monotonic() + timeout
        while (newest := int(self.evaluate("print(w._frame_id)"))) != self.shown_frame(index):
            assert time.monotonic() < end, f"frame {self.shown_frame(index)}, not {newest}"
            self.page.wait_for_timeout(100)
        return newest

    def shown_frame(self, index: int = 0) -> int:
        image = self.page.locator(".trainmem").nth(index).locator(".tm-figure img")
        return int(image.get_attribute("data-frame") or -1)

    def evaluate(self, code: str) -> str:
        """Run Python in the kernel, in a new last cell, and return what it prints."""
        self.page.evaluate(
            """async (code) => {
              const panel = window.jupyterapp.shell.currentWidget;
              const kernel = panel.sessionContext.session.kernel;
              const future = kernel.requestExecute({ code, store_history: false });
              window.printed = "";
              future.onIOPub = (message) => {
                if (message.header.msg_type === "stream") window.printed += message.content.text;
                if (message.header.msg_type === "error") {
                  window.printed += message.content.ename + ": " + message.content.evalue;
                }
              };
              await future.done;
            }""",
            code,
        )
        return str(self.page.evaluate("() => window.printed")).strip()


Open = Callable[..., Notebook]


class Pages:
    """Pages of JupyterLab: one serves test after test, as loading it takes longer than most."""

    def __init__(self, browser: Any) -> None:
        self.context = browser.new_context()
        self.ready: list[Any] = []

    def take(self) -> Any:
        """Return a page, one that is loaded where there is one."""
        return self.ready.pop() if self.ready else self.context.new_page()

    def give(self, notebook: Notebook) -> None:
        """Keep the page of a notebook that is done with, unless something was left on it."""
        if notebook.close():
            self.ready.append(notebook.page)
        else:
            notebook.page.close()


@pytest.fixture(scope="module")
def pages(browser: Any) -> Iterator[Pages]:
    pages = Pages(browser)
    yield pages
    pages.context.close()


@pytest.fixture
def open_notebook(pages: Pages, lab: Lab) -> Iterator[Callable[..., Notebook]]:
    opened: list[Notebook] = []

    def open_(
        *cells: str,
        name: str | None = None,
        viewport: tuple[int, int] = (1400, 1000),
        forced_colors: str = "none",
        color_scheme: str = "light",
    ) -> Notebook:
        if name is None:
            name = lab.notebook(f"test-{time.time_ns()}.ipynb", *cells)
        page = pages.take()
        page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
        page.emulate_media(forced_colors=forced_colors, color_scheme=color_scheme)
        opened.append(Notebook(page, lab, name))
        return opened[-1]

    yield open_
    for notebook in opened:
        pages.give(notebook)
    lab.shut_down_kernels()
