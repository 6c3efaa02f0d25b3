"""Fixtures shared by all tests, and the rule that a full run skips nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATA = Path(__file__).parent / "data"
# Whatever reads a notebook or runs Jupyter imports jsonschema, and that, where it is installed, a
# grammar of internationalised addresses, which takes seconds and which nothing here has a use for.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "absent"), os.environ.get("PYTHONPATH")))
)
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
REQUIRE_ALL = os.environ.get("TRAINMEM_REQUIRE_ALL") == "1"

# No deadlines: a busy machine is no bug. Full runs try the same examples every time.
settings.register_profile("trainmem", deadline=None, derandomize=REQUIRE_ALL)
settings.load_profile("trainmem")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[1]


@pytest.fixture
def reference() -> dict[str, Any]:
    """The published API answer to the reference request."""
    return json.loads((DATA / "api-response.json").read_text())


@pytest.fixture(scope="module")
def answers() -> list[tuple[Any, Any]]:
    """What `remembering` has: questions and their answers."""
    return []


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch, answers: list[tuple[Any, Any]]) -> None:
    """Let the traits remember, over a module, what they were answered: to go on from there.

    For tests that come to the same few steps again and again, as many as there are stacks.
    """
    from trainmem import simulate

    def remembered(*arguments: Any, **named: Any) -> Any:
        for asked, answer in answers:
            if asked == (arguments, named):
                return answer
        answer = simulate(*arguments, **named)
        answers.append(((arguments, named), answer))
        return answer

    monkeypatch.setattr("trainmem.widget.traits.simulate", remembered)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; without one the test is skipped."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium on the PATH")
    return path


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A running Chromium, closed after the module, before tests without one."""
    pytest.importorskip("playwright")
    with browsers.chromium(chromium) as running:
        yield running


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`: a file is one worker's, and all that needs JupyterLab is: it starts once."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "lab" if file.startswith("tests/lab/") else file

    config.option.loadscopereorder = False  # JupyterLab has few tests and takes longest: not last
    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail what would be skipped where everything is required (TRAINMEM_REQUIRE_ALL=1)."""
    report = yield
    return _refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """The same for a module that skips itself, as `importorskip` does."""
    report = yield
    return _refuse_skip(report)


def _refuse_skip(report: Any) -> Any:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but everything is required here: {report.longrepr}"
    return report
