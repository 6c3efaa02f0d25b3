"""The pages for people: each link leads somewhere, each example runs and prints what is shown."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import trainmem
from guard import serving
from trainmem.readers.read import FORMATS, SIGNS
from trainmem.transformer import FAMILIES, FRAMEWORKS, KERNELS, OPTIMIZERS, STACKS

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "notebooks" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
LINKING = [
    *ROOT.glob("*.md"),
    *ROOT.glob("notebooks/**/*.md"),
    *ROOT.glob("tests/*/README.md"),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r'\]\(([^)\s]+)\)|\b(?:src|srcset|href)="([^"]+)"')
#: What pages on the server call it, where the example's port may be taken.
ADDRESS = "http://127.0.0.1:8000"


def examples(text: str) -> list[tuple[str, str | None]]:
    """Return a page's Python blocks, each with what the page shows that it prints, if it does."""
    blocks = FENCE.findall(text)
    following = [*blocks, ("", "")][1:]
    return [
        (code, shown if kind == "text" else None)
        for (language, code), (kind, shown) in zip(blocks, following, strict=True)
        if language == "python"
    ]


def run(text: str) -> Iterator[tuple[str, str | None]]:
    """Run a page top to bottom, as a reader would; yield what each block prints, and shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for code, shown in examples(text):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, "page", "exec"), names)
        yield printed.getvalue(), shown


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in headings}


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    """Take back what a page adds."""
    tables = (FAMILIES, FRAMEWORKS, KERNELS, OPTIMIZERS, STACKS, FORMATS, SIGNS)
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if ADDRESS in text:
        with serving() as url:
            results = list(run(text.replace(ADDRESS, url)))
    else:
        results = list(run(text))
    for printed, shown in results:
        assert printed == (shown or "")


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_what_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in (a or b for a, b in LINK.findall(FENCE.sub("", text))):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def test_the_index_has_every_page() -> None:
    index = (GUIDE / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES} - {"README.md"} == set(re.findall(r"\((\w+\.md)\)", index))


def test_an_input_is_followed_through_files_that_name_it() -> None:
    """In at most six stays each; `sizes` has a name of its own for the GPUs that share states."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.split("## One input from the request to the answer")[1].split("\n## ")[0]
    for table in part.split("| | `")[1:]:
        name = table.split("`")[0]
        stays = re.findall(r"^\| (\d) \|.*\| `([\w/.]+)` \|$", table, re.M)
        assert [int(number) for number, _ in stays] == list(range(1, 7))
        for _, file in stays:
            path = ROOT / file if "/" in file else ROOT / "src/trainmem/transformer" / file
            assert name in path.read_text() or (name, file) == ("num_gpus", "sizes.py")


def test_the_readme_is_read_in_a_minute() -> None:
    assert (ROOT / "README.md").stat().st_size <= 6_000


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {trainmem.__version__}\n" in citation
