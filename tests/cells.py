"""Notebooks for tests, from the sources of their cells."""

from __future__ import annotations

import nbformat
from nbformat.v4 import new_code_cell, new_notebook


def notebook_of(*sources: str) -> str:
    """Return the text of a Python notebook of code cells."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source) for source in sources]
    return str(nbformat.writes(new_notebook(cells=cells, metadata={"kernelspec": kernel})))
