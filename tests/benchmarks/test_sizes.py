"""What is shipped to the browser, and what a saved notebook keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ipywidgets.embed import dependency_state

from trainmem import TrainingMemoryWidget
from trainmem.widget import _handle_message


def test_sizes(add: Callable[..., None], root: Path) -> None:
    widget = TrainingMemoryWidget()
    sent_text = len((widget._esm + widget._css).encode())
    add("front end as sent, JavaScript and CSS", "kB", [sent_text / 1e3], target="< 40 kB")
    source = sum(path.stat().st_size for path in (root / "js" / "src").iterdir())
    add("front end, source files", "kB", [source / 1e3])
    views = [{"width": 900, "ratio": 2, "theme": "light"}]
    _handle_message(widget, {"kind": "hello", "client": "c", "views": views}, [])
    assert widget._frame
    state = json.dumps(dependency_state(widget, drop_defaults=False))
    add("saved widget state, picture at 2× included", "kB", [len(state) / 1e3], target="< 150 kB")
