"""The "Run on …" button in a real JupyterLab, against real sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Notebook

pytestmark = pytest.mark.lab
Open = Callable[..., Notebook]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server() -> Iterator[tuple[str, Any]]:
    """A running ``python -m trainmem serve``: its address and its process."""
    pytest.importorskip("fastapi")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainmem", "serve", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url + "/edge/status", timeout=2).close()
            break
        except OSError:
            assert process.poll() is None, "the server did not start"
            assert time.monotonic() < deadline, "the server did not answer"
            time.sleep(0.1)
    yield url, process
    process.kill()
    process.wait()


def remote_widget(url: str) -> str:
    return (
        f"import trainmem\nclient = trainmem.Client({url!r}, retries=0)\n"
        "w = trainmem.TrainingMemoryWidget(remote=client)\nw"
    )


def outcome(notebook: Notebook, *states: str) -> str:
    notebook.until(
        "(states) => states.includes(document.querySelector('.tm-remote').dataset.state)",
        list(states),
        timeout=40_000,
    )
    return str(notebook.page.locator(".tm-remote").inner_text())


def test_success_then_server_down(open_notebook: Open, server: tuple[str, Any]) -> None:
    url, process = server
    notebook = open_notebook(remote_widget(url))
    notebook.run()
    button = notebook.widget.locator("button", has_text="Run on 127.0.0.1")
    button.click()
    assert "agrees in every field" in outcome(notebook, "agrees")
    notebook.box("GPUs").fill("64")  # an answer for other inputs doesn't stay
    notebook.box("GPUs").press("Enter")
    outcome_gone = "() => document.querySelector('.tm-remote').hidden"
    notebook.until(outcome_gone)
    process.kill()
    process.wait()
    button.click()
    assert "connect" in outcome(notebook, "failed").lower()
    notebook.box("GPUs").fill("32")  # and nothing is blocked by it
    notebook.box("GPUs").press("Enter")
    notebook.wait_card("Per GPU", "12.9")


def test_killed_while_waiting(open_notebook: Open) -> None:
    with socket.socket() as mute:  # takes the request and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        notebook = open_notebook(remote_widget(url))
        notebook.run()
        notebook.widget.locator("button", has_text="Run on").click()
        assert "Waiting for" in outcome(notebook, "running")
        connection, _ = mute.accept()
        assert connection.recv(100).startswith(b"POST /edge/training")
        notebook.slider("GPUs").focus()
        notebook.page.keyboard.press("Tab")  # the controls stay alive meanwhile
        assert notebook.slider("GPUs").is_enabled()
        connection.close()
        mute.close()
        assert outcome(notebook, "failed")
