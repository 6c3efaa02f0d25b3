"""Every prediction, written down: what a change of the house must not change.

    python -m tests.guard write            # all of it, into tests/data/predictions.jsonl
    python -m tests.guard compare          # make it again and compare, to the byte
    python -m tests.guard compare --every 20 --shared ../shared/accuracy

One line a prediction: 2,000 random valid plans over all presets and options, every row of
`tests/accuracy/data`, the published answer on every path, and the names that people import. Numbers
that no sentence shows (levels, phases, pools, sweeps) are one digest a line. `--shared` writes and
compares the rows of a folder that is not in the repository, in a file of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "accuracy"))

import evaluate

import trainmem
import trainmem.http.server
from trainmem.transformer import (
    ARCHITECTURES,
    OPTIONS,
    STACKS,
    Architecture,
    Plan,
    levels,
    peak,
    reserved_bytes,
)

HERE = Path(__file__).parent
FILE = HERE / "data" / "predictions.jsonl"
PLANS = 2000
SEED = 20261130
#: Values of the options that are numbers; those with choices take any of them.
NUMBERS: dict[str, tuple[int, ...]] = {
    "num_gpus": (1, 2, 8, 16, 64, 512, 4096),
    "micro_batch": (1, 1, 2, 4),
    "seq_length": (512, 1000, 1024, 4096, 8192),
    "accumulation": (1, 1, 2, 4, 8),
    "loss_chunk": (256, 1024),
    "tp": (1, 1, 2, 4, 8),
    "pp": (1, 1, 2, 4),
    "vpp": (1, 1, 2),
    "cp": (1, 1, 2),
    "ep": (1, 1, 2),
    "expert_load": (100, 150),
    "lora_rank": (0, 0, 8, 64),
}
ALWAYS = ("num_gpus", "micro_batch", "seq_length", "accumulation")


def digest(value: Any) -> str:
    """Return a short digest of plain data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def answer(architecture: Architecture, plan: Plan, whole: bool = True) -> dict[str, Any]:
    """Return what is predicted of one step; `whole` with limits, verdict and sweeps."""
    found = peak(architecture, plan)
    three = levels(found.peak_bytes, plan, reserved_bytes(architecture, plan))
    line: dict[str, Any] = {
        "peak": found.peak_bytes,
        "phase": found.phase,
        "kinds": {name: size for name, size in found.bytes_by_kind.items() if size},
    }
    rest: list[Any] = [asdict(found), [asdict(level) for level in three]]
    if whole:
        simulation = trainmem.simulate(architecture=architecture, plan=plan)
        fields = ("num_gpus", "seq_length", "micro_batch")
        line["grade"] = simulation.grade
        line["limits"] = [list(vars(simulation.limit(name)).values()) for name in fields]
        line["verdict"] = simulation.verdict
        told = simulation.to_dict()
        rest.append({k: v for k, v in told.items() if k not in ("compute_ms", "node")})
    return line | {"rest": digest(rest)}


def of_plan(name: str) -> Any:
    """Return what is predicted of a plan, by the name of its line; a refusal's message."""
    _, model, options = name.split(" ", 2)
    try:
        return answer(ARCHITECTURES[model], Plan(**json.loads(options)))
    except ValueError as error:
        return {"refused": str(error)}


def random_plans() -> Iterator[str]:
    """Yield names of random plans that are covered, and of one in fifty of those refused."""
    r = random.Random(SEED)
    presets, stacks, count = list(ARCHITECTURES), list(STACKS), 0
    values = {name: [v for v, _ in option.choices] for name, option in OPTIONS.items()}
    values |= {name: list(numbers) for name, numbers in NUMBERS.items()}
    names = [name for name in OPTIONS if name not in (*ALWAYS, "settings")]
    while count < PLANS:
        model, stack = r.choice(presets), r.choice(stacks)
        options = dict(STACKS[stack].options)
        options |= {name: r.choice(values[name]) for name in ALWAYS}
        for name in r.sample(names, r.choice((0, 1, 2, 3, 4))):
            options[name] = r.choice(values[name])
        told = r.random() < 0.02
        name = f"plan {model} {json.dumps(options, sort_keys=True)}"
        try:
            plan = Plan(**options)
            peak(ARCHITECTURES[model], plan)
        except ValueError:
            if told:
                yield name
            continue
        count += 1
        yield name


def rows(folder: Path, every: int) -> Iterator[tuple[str, Any]]:
    """Yield the rows of ground truth in `evaluate.py`'s two schemas."""
    for path in sorted(folder.rglob("*.json")):
        found = json.loads(path.read_text())
        if not isinstance(found, list):
            continue
        found = [r for r in found if isinstance(r, dict) and ("norm" in r or "case" in r)]
        for number, row in enumerate(found):
            if number % every:
                continue
            read = evaluate.measured_inputs if "norm" in row else evaluate.traced_inputs
            name = f"row {path.stem} {row.get('name') or row.get('id')}"
            try:
                yield name, answer(*read(row), whole=False)
            except (KeyError, TypeError) as error:  # another schema
                yield name, {"unread": type(error).__name__}
            except ValueError as error:
                yield name, {"refused": str(error)}


def published() -> Iterator[tuple[str, Any]]:
    """Yield the published answer as every path gives it."""

    def plain(answer: Any) -> str:
        return digest({k: v for k, v in answer.items() if k not in ("compute_ms", "node")})

    yield "published simulate", plain(trainmem.simulate().to_dict())
    yield "published widget", plain(trainmem.TrainingMemory().simulation.to_dict())
    with serving() as url:
        for name in ("training", "train", "finetune", "fsdp", "zero"):
            with trainmem.Client(url, path=f"/edge/{name}") as client:
                yield f"published {name}", plain(client.simulate().to_dict())
        with trainmem.Client(url) as client:
            widget = trainmem.TrainingMemoryWidget(remote=client)
            widget._on_remote({})
            while widget._remote["state"] == "running":
                time.sleep(0.01)
            yield "published remote check", widget._remote["state"]


@contextmanager
def serving() -> Iterator[str]:
    """Serve the API from this process on a free port of the loopback address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = trainmem.http.server.create_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def names() -> Iterator[tuple[str, Any]]:
    """Yield the names that README, notebooks and the cases import, each imported."""
    wanted = {f"trainmem.{name}" for name in trainmem.__all__} | CASES
    root = HERE.parent
    texts = [
        root / "README.md",
        *root.glob("notebooks/**/*.ipynb"),
        *root.glob("notebooks/**/*.md"),
    ]
    for path in texts:
        text = path.read_text()
        wanted |= set(re.findall(r"\btrainmem\.[A-Za-z]\w*", text))
        for module, found in re.findall(r"from (trainmem[\w.]*) import ([\w, ]+)", text):
            wanted |= {f"{module}.{name.strip().split(' as ')[0]}" for name in found.split(",")}
    wanted -= {"trainmem.git", "trainmem.svg"}
    for name in sorted(wanted):
        module, _, attribute = name.rpartition(".")
        yield f"name {name}", importable(module, attribute)


def importable(module: str, attribute: str) -> bool:
    """Whether `from module import attribute` works, a module in a package too."""
    try:
        if hasattr(importlib.import_module(module), attribute):
            return True
        importlib.import_module(f"{module}.{attribute}")
    except ImportError:
        return False
    return True


#: What inputs that once failed import.
CASES = {
    "trainmem.Client",
    "trainmem.Plan",
    "trainmem.simulate",
    "trainmem.transformer.readers.read_configuration",
    "trainmem.transformer.stacks.stack",
    "trainmem.widget._handle_message",
}


def everything(plans: Iterable[str], every: int = 1) -> dict[str, Any]:
    """Return all that belongs into the repository's file; of plans and rows every n-th."""
    chosen = list(plans)[::every]
    rest = ((name, of_plan(name)) for name in chosen)
    found = dict(chain(names(), published(), rows(HERE / "accuracy" / "data", every), rest))
    return dict(json.loads(json.dumps(found)))


def known(file: Path = FILE) -> dict[str, Any]:
    """Return the lines of a file by name."""
    return dict(json.loads(line) for line in file.read_text().splitlines())


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what is not as it was, a text each."""
    return [
        f"{name}: now {now[name]}\n  was {was.get(name, 'not there')}"
        for name in now
        if now[name] != was.get(name)
    ]


def main(arguments: list[str]) -> int:
    """Write the file, or compare with it: 0 where nothing differs, else 1."""
    parser = argparse.ArgumentParser(description="every prediction, written down")
    parser.add_argument("do", choices=("write", "compare"))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--every", type=int, default=1, help="only every n-th plan and row")
    parser.add_argument("--shared", type=Path, help="rows of another folder, in a file of its own")
    given = parser.parse_args(arguments)
    if given.shared:
        now = dict(rows(given.shared, given.every))
    elif given.do == "write":  # the plans that are there stay: a diff is of their answers
        names = known(given.file) if given.file.exists() else ()
        now = everything([n for n in names if n.startswith("plan ")] or random_plans())
    else:
        now = everything((n for n in known(given.file) if n.startswith("plan ")), given.every)
    if given.do == "write":
        lines = (json.dumps(pair, ensure_ascii=False) for pair in now.items())
        given.file.write_text("\n".join(lines) + "\n")
        print(f"{len(now)} lines in {given.file}")
        return 0
    told = differences(known(given.file), now)
    print(*told[:20], f"{len(now)} compared, {len(told)} differ", sep="\n")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
