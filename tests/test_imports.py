"""The house: a cheap `import trainmem`, and imports that flow one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trainmem

PACKAGE = Path(trainmem.__file__).parent

# In reading order, the rooms and the modules in them: a module imports only from those above it.
# A folder named as a whole is one module here. Beside each, the third-party packages that it loads.
HOUSE = {
    "words": "",
    "config": "",
    "cards": "",
    "limits": "",
    "verdict": "",
    "fixes": "",
    "memory_model": "",
    "reduced": "numpy",
    "transformer.engine.dims": "",
    "transformer.engine.tape": "",
    "transformer.engine.graph": "",
    "transformer.engine.ops": "",
    "transformer.engine.fused_ops": "",
    "transformer.engine.tables": "",
    "transformer.rule": "",
    "transformer.option": "",
    "transformer.families": "",
    "transformer.architecture": "",
    "transformer.presets": "",
    "transformer.optimizers": "",
    "transformer.losses": "",
    "transformer.stacks": "numpy",
    "transformer.structure": "",
    "transformer.rules": "",
    "transformer.options": "",
    "transformer.plan": "",
    "transformer.layout": "",
    "transformer.model_rules": "numpy",
    "transformer.inputs": "",
    "transformer.writer": "",
    "transformer.layer": "",
    "transformer.heads": "",
    "transformer.micro": "",
    "transformer.step": "",
    "transformer.sizes": "numpy",
    "transformer.cache": "",
    "transformer.program": "numpy",
    "transformer.peak": "numpy",
    "transformer.timeline": "numpy",
    "transformer.levels": "",
    "transformer.calibration": "",
    "transformer.remedies": "",
    "transformer.peak_case": "",
    "transformer.model": "numpy",
    "transformer.registry": "",
    "transformer": "",
    "readers": "",
    "request": "",
    "repair": "",
    "outputs": "",
    "sweeps": "numpy",
    "simulation": "",
    "simulate_step": "",
    "picture.style": "matplotlib",
    "picture.lettering": "numpy matplotlib",
    "picture.placing": "numpy",
    "picture.panel": "numpy matplotlib",
    "picture.card": "numpy",
    "picture.sweep": "numpy matplotlib",
    "picture.gpu_sweep": "numpy matplotlib",
    "picture.seq_sweep": "numpy matplotlib",
    "picture.budget": "numpy matplotlib",
    "picture.timeline": "numpy matplotlib",
    "picture.figure": "matplotlib",
    "picture.frames": "numpy matplotlib PIL",  # Pillow comes with matplotlib
    "http.wire": "numpy",
    "http.answer": "numpy",
    "http.remote_check": "",
    "http.response": "httpx",
    "http.endpoint": "httpx",
    "http.client": "httpx",
    "http.bodies": "fastapi starlette",
    "http.protocol": "uvicorn",
    "http.middleware": "starlette",
    "http.server": "fastapi uvicorn starlette",
    "widget.state": "",
    "widget.inputs": "traitlets",
    "widget.traits": "traitlets",
    "widget.labels": "",
    "widget.controls": "",
    "widget.calls": "",
    "widget.words": "",
    "widget.edits": "traitlets",
    "widget.views": "",
    "widget.channel": "",
    "widget.ahead": "",
    "widget.stills": "IPython",
    "widget.front_end": "",
    "widget.shell": "traitlets anywidget",
    "course.exercise": "",
    "course.check": "",
    "course.numbers": "",
    "course.__main__": "",
    "__main__": "",
}
ON_USE = {  # addresses of old
    ("transformer", "readers"),
    ("transformer.stacks", "transformer.plan"),
}
ROOMS = {module.split(".")[0] for module in HOUSE if "." in module} - HOUSE.keys()
BY_NAME = {"trainmem.widget.channel.handle_message"}  # lazily, as `_handle_message`
PLACE = {module: place for place, module in enumerate(HOUSE)}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def home(name: str) -> str:
    """Return the module of the map that a dotted name, below `trainmem`, is of or in."""
    parts = name.split(".")
    found = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((module for module in found if module in HOUSE), "")


def imports(path: Path) -> set[str]:
    """Return the full names of all that a file imports when run, wherever in it."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: imports are absolute in this package"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_flow_one_way(path):
    own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    if own in ROOMS:  # as a room is entered, nothing is loaded
        assert {name for name in imports(path) if name.startswith("trainmem")} <= BY_NAME
        return
    mine = home(own)
    assert mine, f"give {own} its place in the reading order above"
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "trainmem":
            if rest == "__version__" or (own == "simulation" and not rest):
                continue  # the latter is the door upward, see below
            where = trainmem._HOME.get(rest, rest)  # a public name stands for its module
            other = home(where)
            assert other, f"{own} imports {name}, which has no place"
            if (mine, other) in ON_USE:
                continue
            assert other == mine or PLACE[other] < PLACE[mine], f"{own} imports {name}, below it"
        elif package not in sys.stdlib_module_names:
            assert package in HOUSE[mine].split(), f"{own} imports {name}"


def test_every_module_of_the_map_is_there():
    for module in HOUSE:
        path = PACKAGE.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file()


def test_one_door_leads_up_and_only_to_the_picture():
    """`Simulation.plot` and `.timeline` draw, by the package's lazy names."""
    assert trainmem._UPWARD == {"plot": "picture.figure", "plot_timeline": "picture.figure"}
    assert not trainmem._UPWARD.keys() & set(trainmem.__all__)
    tree = ast.parse((PACKAGE / "simulation.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "trainmem"
    }
    assert used == trainmem._UPWARD.keys()
    from trainmem.picture import figure

    assert all(getattr(trainmem, name) is getattr(figure, name) for name in used)


LIBRARIES = {"numpy", "matplotlib", "traitlets", "ipywidgets", "anywidget", "IPython"}
LIBRARIES |= {"httpx", "fastapi", "uvicorn", "asyncio", "torch", "nbformat", "nbgrader"}

# One after the other, and the libraries that may be loaded then.
STATEMENTS = {
    "import trainmem": "",
    "dir(trainmem)": "",
    "trainmem.preset('Llama-3-8B'); trainmem.FIELDS": "",
    "import trainmem.course.numbers, trainmem.http, trainmem.picture, trainmem.widget": "",
    "trainmem.simulate().fixes()": "numpy",
    "trainmem.simulate(num_gpus=1).to_dict(); trainmem.BadAnswer": "numpy",
    "trainmem.simulate(architecture='Llama-3-8B').fixes()": "numpy",
    "m = trainmem.TrainingMemory(); m.num_gpus = 64; assert m.fits": "numpy traitlets",
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """All modules in memory after each statement in an interpreter of their own."""
    lines = ["import sys"]
    for statement in STATEMENTS:
        lines += [statement, "print(*sys.modules)"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    after = map(set, map(str.split, done.stdout.splitlines()))
    return dict(zip(STATEMENTS, after, strict=True))


@pytest.mark.parametrize(("statement", "allowed"), STATEMENTS.items())
def test_nothing_is_loaded_before_it_is_used(loaded, statement, allowed):
    assert {name.split(".")[0] for name in loaded[statement]} & LIBRARIES <= set(allowed.split())


def test_the_reduced_model_loads_nothing_of_the_other(loaded):
    assert "trainmem.transformer" not in loaded["trainmem.simulate().fixes()"]


def test_every_public_name_is_there_and_listed():
    for name in trainmem.__all__:
        assert getattr(trainmem, name) is not None
    assert set(trainmem.__all__) == set(dir(trainmem))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'trainmem' has no attribute 'simulator'"):
        trainmem.simulator  # noqa: B018


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 420
