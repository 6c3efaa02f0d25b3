"""The live widget, from values to the screen.

In reading order: `state` (what an answer depends on, and how changes lead on), `inputs` and
`traits` (`TrainingMemory`, headless), `labels`, `controls`, `calls` and `words` (what is shown, in
words), `edits` (changes as a person makes them), `views` and `channel` (the front ends, messages
in and answers out), `ahead`, `stills`, `front_end`, and `shell` (`TrainingMemoryWidget`).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return what serves a message, by the name that hosts and tests know; loaded on use."""
    if name == "_handle_message":
        from trainmem.widget.channel import handle_message

        return handle_message
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
