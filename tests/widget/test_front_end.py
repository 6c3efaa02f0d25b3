"""What is sent to the browser: the bundle, as text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainmem.config import FIELDS
from trainmem.widget.shell import TrainingMemoryWidget

JS = Path(__file__).parents[2] / "js"


def test_front_end_is_text_and_a_path_only_for_live_editing() -> None:
    widget = TrainingMemoryWidget()
    assert 10_000 < len((widget._esm + widget._css).encode()) < 40_000
    code = """if True:
        import importlib, os
        import trainmem.widget.shell as shell
        for flag in ("", "0", "1"):
            os.environ["ANYWIDGET_HMR"] = flag
            kind = importlib.reload(shell).TrainingMemoryWidget
            print(type(kind._esm).__name__, type(kind._css).__name__)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["str str", "str str", "FileContents FileContents"]


def test_the_front_ends_test_data_has_the_present_shape() -> None:
    """The fixture of the JavaScript tests is what Python sends."""
    fixture = json.loads((JS / "test" / "state.json").read_text(encoding="utf-8"))

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [shape(item) for item in value[:1]]
        return "number" if isinstance(value, int | float) else type(value).__name__

    widget = TrainingMemoryWidget()
    assert shape(fixture["fits"]) == shape({n: getattr(widget, n) for n in fixture["fits"]})
    assert [f["name"] for f in fixture["fits"]["_tables"]["fields"]] == list(FIELDS)
    widget.update(model_params_b=70.0)
    assert shape(fixture["short"]) == shape({n: getattr(widget, n) for n in fixture["short"]})
