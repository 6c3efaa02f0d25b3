"""Stills: the picture that a notebook keeps which is executed without a browser."""

from __future__ import annotations

import weakref
from typing import Protocol

from IPython.core.getipython import get_ipython

__all__ = ["renew_after_each_cell"]


class Kept(Protocol):
    """What is needed of a widget to renew its still."""

    _renewed: bool

    def _keep_still(self) -> bool:
        """Keep the present picture; return whether there may be another to keep."""


def renew_after_each_cell(widget: Kept) -> None:
    """Renew the still of a widget at the end of each cell, until a front end draws for itself."""
    shell = get_ipython()
    if shell is None or widget._renewed:
        return
    widget._renewed = True
    known = weakref.ref(widget)

    def renew(_result: object) -> None:
        found = known()
        if found is None or not found._keep_still():
            shell.events.unregister("post_run_cell", renew)

    shell.events.register("post_run_cell", renew)
