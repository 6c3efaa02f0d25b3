"""Give a course its own numbers: ``python -m trainmem.course --seed 7 source.ipynb``.

A source notebook lists the numbers that may vary in its metadata:

.. code-block:: json

    {"trainmem_course": {"model": [{"PARAMS_B": 7, "LAYERS": 32}, {"PARAMS_B": 13, "LAYERS": 40}]}}

For each group the seed picks one alternative, and every line ``NAME = …`` of a code cell that
assigns one of its names gets that value: what students read and what hidden tests compute with
stay in step. Standard library only; nbgrader isn't needed here.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["CourseError", "choose", "main", "seeded"]

TABLE: Final = "trainmem_course"
"""Key of the table of alternatives in the notebook's metadata."""

MAX_BYTES: Final = 50_000_000
"""Largest notebook that is read."""

MAX_SEED: Final = 200
"""Longest seed, in characters."""

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")


class CourseError(ValueError):
    """A source notebook that can't be given numbers, and why."""


def choose(table: Mapping[str, Sequence[Mapping[str, Any]]], seed: str | int) -> dict[str, Any]:
    """Return the value of each name under a seed.

    Parameters
    ----------
    table : mapping
        For each group, its alternatives: mappings from name to value.
    seed : str or int
        Anything that tells courses apart: a year, a section, a student's id.

    Returns
    -------
    dict
        One value per name. The same seed gives the same values on every machine and Python.

    Raises
    ------
    CourseError
        Where the table is malformed.
    """
    values: dict[str, Any] = {}
    for group, alternatives in _groups(table):
        digest = hashlib.sha256(f"{seed}/{group}".encode()).digest()
        picked = alternatives[int.from_bytes(digest[:8], "big") % len(alternatives)]
        for name in picked.keys() & values.keys():
            raise CourseError(f"group {group!r}: {name} is in another group too")
        values.update(picked)
    return values


def seeded(notebook: Mapping[str, Any], seed: str | int) -> dict[str, Any]:
    """Return a copy of a source notebook with the numbers of a seed.

    Parameters
    ----------
    notebook : mapping
        A notebook of format 4, as read from JSON.
    seed : str or int
        See `choose`.

    Returns
    -------
    dict
        The notebook, without the table: it can't be seeded twice.

    Raises
    ------
    CourseError
        Where it isn't a notebook, has no table, or never assigns one of the table's names.
    """
    if not _is_notebook(notebook):
        raise CourseError("not a notebook of format 4")
    table = notebook["metadata"].get(TABLE)
    if not isinstance(table, dict):
        raise CourseError(
            f"no {TABLE!r} table in the notebook's metadata; "
            "seed the original source, not a notebook that has its numbers already"
        )
    values = choose(table, seed)
    result = copy.deepcopy(dict(notebook))
    del result["metadata"][TABLE]
    unused = set(values)
    for cell in result["cells"]:
        if cell["cell_type"] == "code":
            text, used = _assign("".join(cell["source"]), values)
            unused -= used
            cell["source"] = text.splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None  # those of other numbers
    if unused:
        raise CourseError(f"no code cell assigns {', '.join(sorted(unused))}")
    return result


def _is_notebook(notebook: Mapping[str, Any]) -> bool:
    """Whether all that `seeded` touches has the types of notebook format 4."""
    cells, metadata = notebook.get("cells"), notebook.get("metadata")
    if notebook.get("nbformat") != 4 or not isinstance(cells, list):
        return False
    return isinstance(metadata, dict) and all(
        isinstance(cell, dict)
        and isinstance(cell.get("cell_type"), str)
        and isinstance(source := cell.get("source"), str | list)
        and all(isinstance(line, str) for line in source)
        for cell in cells
    )


def _assign(text: str, values: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Rewrite the lines ``NAME = …`` of the given names; return the names found too."""
    used: set[str] = set()

    def line(match: re.Match[str]) -> str:
        indent, name, value, comment = match.groups(default="")
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise CourseError(f"{name}: its value must be a literal on one line") from None
        used.add(name)
        return f"{indent}{name} = {values[name]!r}{comment}"

    pattern = rf"^([ \t]*)({'|'.join(values)}) = (.*?)([ \t]+#.*)?$"
    return re.sub(pattern, line, text, flags=re.MULTILINE) if values else text, used


def _groups(table: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for group, alternatives in table.items():
        if not isinstance(alternatives, list) or not alternatives:
            raise CourseError(f"group {group!r} must be a list of alternatives, at least one")
        for alternative in alternatives:
            if not isinstance(alternative, dict) or not all(map(NAME.fullmatch, alternative)):
                raise CourseError(
                    f"group {group!r}: an alternative maps UPPER_CASE names to values"
                )
            if alternative.keys() != alternatives[0].keys():
                raise CourseError(f"group {group!r}: all alternatives must have the same names")
        yield group, alternatives


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise CourseError(f"larger than {MAX_BYTES // 10**6} MB")
    try:
        notebook = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CourseError(f"not JSON: {error}") from error
    if not isinstance(notebook, dict):
        raise CourseError("not a notebook of format 4")
    return notebook


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status (2 for a bad notebook or path)."""
    parser = argparse.ArgumentParser(
        prog="python -m trainmem.course", description="Give a course its own numbers."
    )
    parser.add_argument("source", type=Path, help="source notebook, with its table of numbers")
    parser.add_argument("--seed", required=True, help="any text: a year, a section, a student's id")
    parser.add_argument(
        "-o", "--output", type=Path, help="where to write (default: SOURCE.seed-SEED.ipynb here)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    args = parser.parse_args(argv)
    if not 0 < len(args.seed) <= MAX_SEED:
        parser.error(f"--seed must be 1 to {MAX_SEED} characters, not {len(args.seed)}")
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", args.seed)
    output = args.output or Path(f"{args.source.stem}.seed-{plain}.ipynb")
    try:
        text = json.dumps(seeded(_read(args.source), args.seed), indent=1, ensure_ascii=False)
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError:
        print(f"{output} exists; --force replaces it", file=sys.stderr)
        return 2
    except (CourseError, OSError) as error:
        print(f"{args.source}: {error}", file=sys.stderr)
        return 2
    print(output)
    return 0
