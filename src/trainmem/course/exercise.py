"""What students see of a check that fails: one line, never the cell that knows the answer."""

from __future__ import annotations

import builtins
import copy
import linecache
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

__all__ = ["NOT_ANSWERED", "CheckFailed", "exercise", "result_of", "with_hint"]

NOT_ANSWERED: Final = "not answered yet"


class CheckFailed(AssertionError):
    """An answer that isn't right; the message names it and may hint, never tells."""

    def _render_traceback_(self) -> list[str]:
        """Show IPython one line: a traceback would quote the cell that knows the answer."""
        return [f"✗ {self}"]


class exercise:
    """Turn whatever is raised in a check cell into one line that tells nothing of the cell.

    A name that the answer cell never defined, an object that fails when it is compared, a
    function interrupted after its time: each would end in a traceback, and a traceback quotes the
    lines around it, hidden tests too. The line names the exercise, the error and, where it arose
    in the student's own code, the line there.

    Parameters
    ----------
    name : str
        What students know the exercise by, such as ``"1a"``.

    Raises
    ------
    CheckFailed
        In place of any exception in the body, also of those that end a program.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        self._names = caller.f_globals
        _CHECK_CELLS.add(caller.f_code.co_filename)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if type(error) is CheckFailed:  # a foreign subclass may say anything, or fail to
            said = str(error)
        else:
            said = f"{_raised(error, trace)}."
            if replaced := self._replaced():
                said += f" Your code uses names of Python's own for something else: {replaced}."
        raise CheckFailed(f"Exercise {self.name}: {said}") from None

    def _replaced(self) -> str:
        """Name Python's own functions to which the notebook gives another meaning."""
        own = vars(builtins)
        return ", ".join(
            name
            for name, value in dict(self._names).items()
            if name in own and value is not own[name] and name not in _SHELL and name[0] != "_"
        )[:100]


_CHECK_CELLS: Final[set[str]] = set()
"""File names that IPython gave to check cells: what runs there isn't the student's."""

_SHELL: Final = frozenset({"display", "exit", "get_ipython", "open", "quit"})
"""Names that IPython itself replaces."""


def result_of(
    student: Callable[..., Any], case: Mapping[str, Any], name: str, written: str
) -> object:
    """Return what a student's function gives for one case; `written` is the call in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return student(**copy.deepcopy(dict(case)))
        except NotImplementedError:
            raise CheckFailed(f"{name}: {NOT_ANSWERED}.") from None
        except BaseException as error:  # also what ends a program, or interrupts an endless loop
            raise CheckFailed(f"{written} raised {_raised(error, error.__traceback__)}.") from None


def _raised(error: BaseException, trace: TracebackType | None) -> str:
    """Say in one line what was raised and, where it was the student's own code, at which line."""
    try:
        words = " ".join(str(error).split())
    except BaseException:  # a foreign exception may fail in any way; the message must not
        words = ""
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        said += ", because it was interrupted or ran out of time"
    where = ""
    own = _own_lines(trace)
    if isinstance(error, NameError) and not own:
        said += ": the answer cell must define it, and run to its end"
    if own:
        file, line = own[-1]
        code = linecache.getline(file, line).strip()[:100]
        where = f" (line {line} of its cell{': ' if code else ''}{code})"
    return said[:200] + where


def _own_lines(trace: TracebackType | None) -> list[tuple[str, int]]:
    """Return file and line of each frame that is the notebook's code, but not a check cell's."""
    return [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if frame.f_globals.get("__name__") == "__main__"
        and frame.f_code.co_filename not in _CHECK_CELLS
    ]


def with_hint(said: str, hint: str) -> str:
    """Return what is said of an answer, with the hint where there is one."""
    return f"{said} Hint: {hint.rstrip('.')}." if hint else said
