"""The built wheel: what is in it, and that it works alone in a clean environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_string

import pytest

import trainmem
from trainmem.widget.calls import PUBLISHED_URL

RUNTIME = {"anywidget", "ipywidgets", "matplotlib", "numpy", "traitlets"}
EXTRAS = {"remote", "server", "lab", "test", "course", "benchmark", "trace", "dev"}


UNSET = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "TRAINMEM_REPOSITORY")


def call(*command, status=0, variables=None, **options):
    """Run a command; its output is shown where it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in UNSET}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        **options,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(root, tmp_path_factory):
    """Build the source archive, and the wheel from that: a file missing there is missed here."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", folder, root)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    """The wheel, as a path."""
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel):
    """The files in the wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_in(files):
    (text,) = (data for name, data in files.items() if name.endswith(".dist-info/METADATA"))
    return message_from_string(text.decode())


@pytest.fixture(scope="module")
def metadata(files):
    """The wheel's metadata."""
    return metadata_in(files)


def test_the_front_end_is_inside_as_written(files, root):
    for name in ("widget.js", "widget.css"):
        built = root / "src" / "trainmem" / "static" / name
        assert files[f"trainmem/static/{name}"] == built.read_bytes()


def test_every_module_is_inside_and_nothing_else(files, root):
    source = root / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    inside = {name for name in files if ".dist-info/" not in name}
    data = {"trainmem/py.typed", "trainmem/static/widget.js", "trainmem/static/widget.css"}
    assert modules | data <= inside
    for name in inside - modules - data:  # what modules read, such as tables of measurements
        assert name.startswith("trainmem/")
        assert name.endswith(".json")


def test_license_and_metadata(files, metadata):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)
    assert metadata["Name"] == "trainmem"
    assert metadata["Version"] == trainmem.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    classifiers = metadata.get_all("Classifier")
    assert "Framework :: Jupyter" in classifiers
    assert "Framework :: Jupyter :: JupyterLab" in classifiers
    assert "Typing :: Typed" in classifiers


def test_only_addresses_that_are_known(metadata):
    assert metadata.get_all("Project-URL") == [
        f"Published API, {PUBLISHED_URL.removesuffix('edge/training')}"
    ]


def targets(text):
    """Return all that the pictures and links of a Markdown text lead to."""
    return re.findall(r'\b(?:src|srcset|href)="([^"]+)"|\]\(([^)\s]+)\)', text)


def test_the_long_description_leads_to_no_file(metadata, root):
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = metadata.get_payload()
    assert "<picture" in readme
    assert "<picture" not in shown
    assert shown.startswith("# trainmem\n")
    assert not [a or b for a, b in targets(shown) if not (a or b).startswith("https://")]
    assert "Notebooks: `quickstart`, `exploration`, and" in shown
    # Nothing else is lost: the longest paragraphs are there as they are.
    plain = [part for part in readme.split("\n\n") if not targets(part)]
    assert len(plain) > 20
    for part in plain:
        assert part.strip() in shown


def test_a_release_leads_to_its_repository(root, tmp_path):
    where = "https://example.org/someone/trainmem"
    call(
        *(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, root),
        variables={"TRAINMEM_REPOSITORY": f"{where}/"},
    )
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if n.endswith("METADATA")}
    shown = metadata_in(files).get_payload()
    readme = (root / "README.md").read_text(encoding="utf-8")
    led = [a or b for a, b in targets(shown)]
    assert f"{where}/raw/HEAD/notebooks/images/widget-light.png" in led
    assert f"{where}/raw/HEAD/notebooks/images/widget-dark.png" in led
    assert f"{where}/blob/HEAD/notebooks/quickstart.ipynb" in led
    for address in led:
        assert address.startswith("https://")
        if address.startswith(where):
            assert (root / re.sub(rf"{where}/(raw|blob)/HEAD/", "", address)).exists()
    assert re.sub(rf"{where}/(raw|blob)/HEAD/", "", shown).strip() == readme.strip()


def test_five_runtime_dependencies_and_the_extras(metadata):
    required = metadata.get_all("Requires-Dist")
    plain = [line for line in required if "extra ==" not in line]
    assert {line.split(">")[0] for line in plain} == RUNTIME
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS


def test_it_is_small(wheel):
    assert wheel.stat().st_size < 400_000


SCRIPT = """
import json, sys
import trainmem
before = sorted({m.split(".")[0] for m in sys.modules} & {"numpy", "matplotlib", "anywidget"})
widget = trainmem.TrainingMemoryWidget(num_gpus=64)
print(json.dumps({
    "file": trainmem.__file__,
    "before": before,
    "esm": widget._esm,
    "css": widget._css,
    "total": widget.per_gpu_total_gb,
    "picture": widget._repr_mimebundle_()[0]["image/png"][:8],
    "extras": [m for m in ("httpx", "fastapi", "jupyterlab", "pytest") if m in sys.modules],
}))
"""


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with the wheel, its dependencies and nothing else."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip(python, "install", "-q", "--no-compile", wheel)  # what is imported is compiled then
    return python


def pip(python, *arguments):
    """Run our pip on another environment, which saves that one its own."""
    return call(sys.executable, "-m", "pip", "--python", python, *arguments)


def test_it_works_alone(python, root, tmp_path):
    pip(python, "check")
    found = json.loads(call(python, "-c", SCRIPT, cwd=tmp_path).splitlines()[-1])
    assert str(root) not in found["file"]
    assert found["before"] == []
    assert found["extras"] == []
    # What the checkout's own widget sends; `tests/widget/test_front_end.py` compares it with js/.
    assert found["esm"] == trainmem.TrainingMemoryWidget._esm
    assert found["css"] == trainmem.TrainingMemoryWidget._css
    assert len((found["esm"] + found["css"]).encode()) < 40_000
    assert found["total"] == 10.858
    assert found["picture"] == "iVBORw0K"


def test_the_command_line_works_alone(python, tmp_path):
    answer = json.loads(call(python, "-m", "trainmem", "simulate", "--json", cwd=tmp_path))
    assert answer["outputs"]["per_gpu_total_gb"] == 24.858
    call(python, "-m", "trainmem", "plot", "-o", "memory.png", cwd=tmp_path)
    assert (tmp_path / "memory.png").stat().st_size > 10_000


def test_it_is_a_command_too(python, tmp_path):
    command = python.parent / ("trainmem.exe" if os.name == "nt" else "trainmem")
    answer = json.loads(call(command, "simulate", "--json", cwd=tmp_path))
    assert answer["outputs"]["per_gpu_total_gb"] == 24.858
    for called, name in (
        ([command], "trainmem"),
        ([python, "-m", "trainmem"], "python -m trainmem"),
    ):
        assert call(*called, "--help").startswith(f"usage: {name} [-h]")
        assert call(*called, "plot", "--help").startswith(f"usage: {name} plot [-h]")
        said = call(*called, "simulate", "--nonsense", status=2)
        assert said.endswith(f"see {name} --help\n")
    assert call(command, "simulate", "--num-gpus", 1, status=1).startswith("✗ Out of memory")


@pytest.mark.parametrize(("module", "extra"), [("client", "remote"), ("server", "server")])
def test_a_missing_extra_names_the_pip_command(python, tmp_path, module, extra):
    code = f"try: import trainmem.http.{module}\nexcept ImportError as error: print(error)"
    assert f"pip install 'trainmem[{extra}]'" in call(python, "-c", code, cwd=tmp_path)
