"""What is sent to the browser is the front end as it was written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmem.config import FIELDS
from trainmem.widget.front_end import packed_text
from trainmem.widget.shell import TrainingMemoryWidget

JS = Path(__file__).parents[2] / "js"


# Reads pairs of texts; prints the syntax tree of each program, and each style sheet minified.
SAME = """
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import ts from "typescript";
const { transform } = createRequire(import.meta.resolve("vite"))("lightningcss");
const { js, css } = JSON.parse(readFileSync(0, "utf8"));
const tree = (node) => {
  const own = node.text ?? node.operator ?? "";
  const parts = [node.kind, own, node.flags & ts.NodeFlags.BlockScoped];
  node.forEachChild((child) => { parts.push(tree(child)); });
  return parts;
};
const program = (text) => {
  const file = ts.createSourceFile("widget.js", text, ts.ScriptTarget.Latest);
  if (file.parseDiagnostics.length) throw new Error(JSON.stringify(file.parseDiagnostics[0]));
  return JSON.stringify(file.statements.map(tree));
};
const rules = (text) =>
  transform({ filename: "widget.css", code: Buffer.from(text), minify: true }).code.toString()
    .replace(/,\\s+/g, ",");  // var() keeps its fallback as it was written
console.log(JSON.stringify({ js: js.map(program), css: css.map(rules) }));
"""


TRICKY = 'a = b / 2 / c; x = (/[/ "]  y/g); z = "// no" + `/* ${a  + 1} */`; i++ + ++j; // go\n'


def test_what_is_sent_is_the_front_end_to_the_letter_of_its_program() -> None:
    """Comments and indentation may go, and nothing that a parser sees."""
    node = shutil.which("node")
    if node is None or not (JS / "node_modules").is_dir():
        pytest.skip("needs Node and the front end's packages (npm install in js)")
    widget = TrainingMemoryWidget()
    texts = {
        kind: [sent, (JS / f"widget.{kind}").read_text(encoding="utf-8")]
        for kind, sent in (("js", widget._esm), ("css", widget._css))
    }
    texts["js"] += [packed_text(TRICKY, script=True), TRICKY]
    done = subprocess.run(
        [node, "--input-type=module", "-e", SAME],
        input=json.dumps(texts),
        cwd=JS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind, (sent, whole, *odd) in json.loads(done.stdout).items():
        assert sent == whole, kind
        assert len(sent) > 5_000, kind
        assert odd[:1] == odd[1:]


def test_front_end_is_text_and_a_path_only_for_live_editing() -> None:
    widget = TrainingMemoryWidget()
    assert len((widget._esm + widget._css).encode()) < 40_000
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
