"""The keywords that are taken: as typed, completed, and named where one is refused."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import ipywidgets
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.terminal.interactiveshell import TerminalInteractiveShell

from trainmem import ConfigError, TrainingMemory, TrainingMemoryWidget, simulate
from trainmem.config import FIELDS, Inputs
from trainmem.request import PLAN_OPTIONS, AllInputs, PlanOptions
from trainmem.widget.inputs import WidgetInputs


def typed(keywords):
    """Return what a `TypedDict` says of each keyword."""
    return {name: getattr(kind, "__forward_arg__", kind) for name, kind in keywords.items()}


def test_the_typed_keywords_are_the_tables():
    assert typed(Inputs.__annotations__) == dict.fromkeys(FIELDS, "Given")
    kinds = {bool: "bool", str: "str", int: "Given", tuple: "Mapping[str, Any]"}
    expected = {name: kinds[type(option.default)] for name, option in PLAN_OPTIONS.items()}
    assert list(expected) == list(PlanOptions.__annotations__)
    assert typed(PlanOptions.__annotations__) == expected
    beside = AllInputs.__annotations__.keys() - {*FIELDS, *PLAN_OPTIONS}
    assert beside == {"gpu", "architecture", "plan"}
    of_any = {n for n in ipywidgets.DOMWidget.class_own_traits() if not n.startswith("_")}
    assert WidgetInputs.__annotations__.keys() - AllInputs.__annotations__.keys() == of_any


EVERY = {*FIELDS, *PLAN_OPTIONS, "gpu", "architecture", "plan"}


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (simulate, {*FIELDS, "config", "model", "architecture", "plan", "gpu"}),
        (TrainingMemory, {*EVERY, "config"}),
        (TrainingMemory().update, {*EVERY, "stack", "preset"}),
        (TrainingMemoryWidget, {*EVERY, "config", "remote", "layout", "tooltip", "tabbable"}),
    ],
    ids=["simulate", "TrainingMemory", "update", "TrainingMemoryWidget"],
)
def test_completion_help_and_the_refusal_know_every_keyword(function, keywords):
    assert inspect.signature(function).parameters.keys() == keywords
    with pytest.raises((TypeError, ConfigError)) as refused:
        function(nonsense=1)
    named = str(refused.value).partition("must be one of ")[2].split(", ")
    assert sorted(named) == sorted(keywords)  # each once
    shell = TerminalInteractiveShell()
    shell.user_ns["function"] = function
    for use_jedi in (False, True):
        shell.Completer.use_jedi = use_jedi
        with provisionalcompleter():
            found = {c.text for c in shell.Completer.completions("function(", len("function("))}
        assert {f"{name}=" for name in keywords} <= found


TYPED = """
import numpy as np
import trainmem

trainmem.simulate(num_gpus=np.int64(64), precision_bits=16, gpu="H100 · 80 GB")
trainmem.simulate(num_gpu=64)  # wrong
trainmem.simulate(num_gpus="64")  # wrong
memory = trainmem.TrainingMemory(architecture="Llama-3-8B", tp=2, sequence_parallel=False)
memory.update(zero_stage=3, stack="torchtitan", loss_head="chunked")
memory.update(loss_heed="chunked")  # wrong
memory.update(tooltip="")  # wrong
trainmem.TrainingMemory(dropout="yes")  # wrong
trainmem.TrainingMemoryWidget(tooltip="Memory", layout={"width": "50%"}, micro_batch=2)
trainmem.TrainingMemoryWidget(tool_tip="Memory")  # wrong
"""


def test_a_type_checker_flags_wrong_keywords_and_no_others(root, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", tmp_path / "typed.py"],
        cwd=root,  # its cache is there
        env=os.environ | {"MYPYPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stderr == ""
    flagged = {int(found[1]) for found in re.finditer(r"typed\.py:(\d+): error", done.stdout)}
    wrong = {n for n, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert flagged == wrong, done.stdout
