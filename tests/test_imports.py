"""The house: a cheap `import trainmem`, and imports that flow one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trainmem

PACKAGE = Path(trainmem.__file__).parent

# In reading order: a module imports only from those above it. A folder is one module here.
# Beside each, the third-party packages that it may load.
HOUSE = {
    "config": "",
    "reduced": "numpy",
    "transformer": "numpy",
    "readers": "",
    "limits": "",
    "verdict": "",
    "request": "",
    "repair": "",
    "fixes": "",
    "remedies": "",
    "moment": "",
    "simulation": "numpy",
    "wire": "numpy",
    "answer": "numpy",
    "asking": "",
    "drawing": "numpy matplotlib",
    "figure": "numpy matplotlib",
    "frames": "numpy matplotlib PIL",  # Pillow comes with matplotlib
    "model": "numpy traitlets",
    "presentation": "",
    "widget": "numpy traitlets anywidget ipywidgets IPython",
    "remote": "httpx",
    "server": "fastapi uvicorn starlette",
    "check": "",
    "course": "",
    "__main__": "",
}
ORDER = list(HOUSE)
ON_USE = {
    ("simulation", "figure"),  # Simulation.plot() draws
    ("transformer", "readers"),  # their address of old
}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def home(path: Path) -> str:
    """Return the top-level module or folder that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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
    mine = home(path)
    assert mine in HOUSE, f"give {mine} its place in the reading order above"
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "trainmem":
            other = rest.split(".")[0]
            other = trainmem._HOME.get(other, other)  # a public name stands for its module
            if other in ("__version__", mine) or (mine, other) in ON_USE:
                continue
            assert other in HOUSE, f"{path.name} imports {name}, which has no place"
            assert ORDER.index(other) < ORDER.index(mine), f"{mine} imports {other}, below it"
        elif package not in sys.stdlib_module_names:
            assert package in HOUSE[mine].split(), f"{mine} imports {name}"


def loaded_after(statement: str) -> set[str]:
    """Return the top-level packages in memory after a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


LIBRARIES = {"numpy", "matplotlib", "traitlets", "ipywidgets", "anywidget", "IPython"}
LIBRARIES |= {"httpx", "fastapi", "uvicorn", "torch"}


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import trainmem", ""),
        ("import trainmem; dir(trainmem)", ""),
        ("import trainmem; trainmem.preset('Llama-3-8B'); trainmem.FIELDS", ""),
        ("import trainmem; trainmem.simulate().fixes()", "numpy"),
        ("import trainmem; trainmem.simulate(num_gpus=1).to_dict()", "numpy"),
        ("import trainmem; trainmem.simulate(architecture='Llama-3-8B').fixes()", "numpy"),
    ],
)
def test_nothing_is_loaded_before_it_is_used(statement, allowed):
    assert loaded_after(statement) & LIBRARIES <= set(allowed.split())


def test_every_public_name_is_there_and_listed():
    for name in trainmem.__all__:
        assert getattr(trainmem, name) is not None
    assert set(trainmem.__all__) == set(dir(trainmem))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'trainmem' has no attribute 'simulator'"):
        trainmem.simulator  # noqa: B018
