"""Run the notebooks; ``python -m tests.notebook_outputs`` renews the outputs that are committed.

Those are what can be seen without a kernel: texts and pictures. A live view would be a frame
around nothing there, so it is left out; the picture of it stays.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WITH_OUTPUTS = ("quickstart",)
"""Notebooks that are committed with outputs; the others are without."""

VIEW = "application/vnd.jupyter.widget-view+json"


def run(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a new kernel."""
    notebook = nbformat.read(path, as_version=4)
    metadata = nbformat.from_dict(notebook.metadata)
    NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": path.parent}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    notebook.metadata = metadata  # the kernel adds its version
    return notebook


def kept(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the outputs of a cell that are committed."""
    outputs = []
    for output in cell.outputs:
        data = output.get("data", {})
        if VIEW in data and "image/png" not in data:
            continue  # a widget without a picture
        seen = {**output}
        if data:
            seen["data"] = {kind: value for kind, value in data.items() if kind != VIEW}
        outputs.append(nbformat.from_dict(seen))
    return outputs


def main() -> None:
    """Write the outputs into the notebooks that have them."""
    for name in WITH_OUTPUTS:
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = run(path)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = kept(cell)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
