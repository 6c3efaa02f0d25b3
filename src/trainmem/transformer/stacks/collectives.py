"""Collectives: when parameters are gathered and given up, and gradients reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmem.transformer.engine.tape import Parameters, Storage

if TYPE_CHECKING:
    from trainmem.transformer.writer import StepWriter


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a micro batch stands in the step.

    Attributes
    ----------
    last
        The step's last micro batch.
    sync
        Its gradients are reduced.
    whole_exists
        Whole gradients of earlier micro batches wait.
    shards_exist
        Reduced gradients of earlier micro batches (or kept ones) exist.
    """

    last: bool
    sync: bool
    whole_exists: bool
    shards_exist: bool


class Collectives:
    """What a framework allocates around the passes of a group of parameters: here, nothing.

    So it is where every rank has all weights (DDP, ZeRO-1 and 2, Megatron): gradients are reduced
    in place.
    """

    def __init__(self, writer: StepWriter) -> None:
        self.s, self.emit, self.writer = writer.s, writer.emit, writer

    @property
    def accumulates_whole(self) -> bool:
        """Whether earlier micro batches leave whole gradients in the type of the reduction."""
        return False

    def begin(self, progress: Progress) -> None:
        """Before a micro batch."""

    def takes(self, name: str, gradient: Storage) -> bool:
        """Take a weight's whole gradient as it is made; False leaves it to `post_backward`."""
        return False

    def pre_forward(self, group: Parameters) -> None:
        """Before a group's forward pass."""

    def post_forward(self, group: Parameters) -> None:
        """After it."""

    def pre_backward(
        self, group: Parameters, following: Parameters | None, gathered: bool = True
    ) -> None:
        """Before a group's backward pass; `following` is the group whose pass comes next.

        `gathered` says whether this group's own gather was prefetched.
        """

    def post_backward(self, group: Parameters, progress: Progress) -> None:
        """Deal with a group's gradients once its backward pass is done."""

    def free_buffer(self) -> None:
        """Free what the forward pass kept of a gather."""

    def free_reduced(self) -> None:
        """Free what the last reduction kept."""
