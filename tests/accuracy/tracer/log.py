"""The event log: every tensor storage's birth, resize and death, and what can be read from it."""

import itertools
import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import fake_cuda

KIND_OF_PHASE = {
    "fwd": "act_fwd",
    "recompute": "act_recompute",
    "bwd": "bwd_temp",
    "opt": "opt_temp",
}


class Event(NamedTuple):
    """Storage `id` changes its size by `change` bytes in `phase`."""

    id: int
    change: int
    phase: str


class Origin(NamedTuple):
    """Where a storage was first seen; `phase` tells recomputation from backward."""

    phase: str
    op: str
    shape: tuple[int, ...]


@dataclass
class Live:
    """A storage that is alive."""

    id: int
    size: int = 0
    death: weakref.ref | None = None


class StorageLog(TorchDispatchMode):
    """Logs the storages of one device while it is active.

    Sizes are rounded up to `round_to` bytes: 512 is what the CUDA caching allocator counts.
    """

    def __init__(self, device: str = "cuda", round_to: int = 512):
        super().__init__()
        self.device, self.round_to = device, round_to
        self.phase = "init"
        self.events: list[Event] = []
        self.origins: list[Origin] = []
        self.tags: dict[int, str] = {}  # kinds known for certain, often only later
        self._paused = False
        self._live: dict[int, Live] = {}  # by the address of the storage

    def __enter__(self) -> "StorageLog":
        self._resize = resize = torch.UntypedStorage.resize_
        self._propagate = propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def logged_resize(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)  # how FSDP frees and refills gathered parameters
            if record := self._live.get(storage._cdata):
                self._set_size(record, storage.nbytes())

        def unlogged_propagate(*args: Any) -> Any:
            self._paused = True  # DTensor works out a shape, on tensors of its own
            try:
                return propagate(*args)
            finally:
                self._paused = False

        torch.UntypedStorage.resize_ = logged_resize
        ShardingPropagator._propagate_tensor_meta_non_cached = unlogged_propagate
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        torch.UntypedStorage.resize_ = self._resize
        ShardingPropagator._propagate_tensor_meta_non_cached = self._propagate
        super().__exit__(*exc)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # comes back as operations on the local tensors
        out = func(*args, **(kwargs or {}))
        if func is torch.ops._c10d_functional.wait_tensor.default:
            out = args[0]  # the fake kernel copies, the real one does not
        if not self._paused:
            op = str(func).removeprefix("aten.")
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    self._track(tensor, op)
            self._tag_by_op(op, out, args, kwargs)
        return out

    def _tag_by_op(self, op: str, out: Any, args: tuple, kwargs: dict | None) -> None:
        if op.startswith("fsdp.chunk_cat"):
            self.tag([kwargs["out"]], "reduce_buffer")
            self.tag(args[0], "grad_unsharded")
        elif op.startswith("fsdp.all_gather_copy_in"):
            self.tag(out[1:], "gathered")
        elif op.startswith("_to_copy") and self.tags.get(self._track(args[0], op)) == "param":
            self.tags.setdefault(self._track(out, op), "param_cast")
        elif op.startswith("_scaled_dot_product_flash_attention_backward"):
            size = fake_cuda.flash_backward_scratch(args[1], args[2])
            scratch = self._born(op, (size,))
            self.tags[scratch] = "workspace"
            self.events += Event(scratch, size, self.phase), Event(scratch, -size, self.phase)

    def tag(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Say of what kind these tensors are, from birth to death."""
        for tensor in tensors:
            if (number := self._track(tensor, "external")) is not None:
                self.tags[number] = kind

    def _track(self, tensor: torch.Tensor, op: str) -> int | None:
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if tensor.device.type != self.device:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        record = self._live.get(key)
        if record is None:
            record = self._live[key] = Live(self._born(op, tuple(tensor.shape)))

            def die(_: weakref.ref, record: Live = record) -> None:
                self._set_size(record, 0)
                if self._live.get(key) is record:  # the address may be in use again
                    del self._live[key]

            record.death = weakref.ref(storage, die)
        self._set_size(record, storage.nbytes())
        return record.id

    def _born(self, op: str, shape: tuple[int, ...]) -> int:
        recomputes = self.phase == "bwd" and torch.is_grad_enabled()
        self.origins.append(Origin("recompute" if recomputes else self.phase, op, shape))
        return len(self.origins) - 1

    def _set_size(self, record: Live, size: int) -> None:
        size = math.ceil(size / self.round_to) * self.round_to
        if size != record.size:
            self.events.append(Event(record.id, size - record.size, self.phase))
            record.size = size

    def kind(self, number: int, vocab: int) -> str:
        """Return the kind of storage `number`; `vocab` tells logits from other activations."""
        phase, _, shape = self.origins[number]
        if number in self.tags:
            return self.tags[number]
        if phase in ("fwd", "bwd", "recompute") and len(shape) > 1 and shape[-1] == vocab:
            return "logits"
        return KIND_OF_PHASE.get(phase, "other")

    def by_kind(self, last: int, vocab: int) -> dict[str, int]:
        """Return the bytes of each kind that are alive after event `last`."""
        kinds: dict[str, int] = {}
        for event in self.events[: last + 1]:
            kind = self.kind(event.id, vocab)
            kinds[kind] = kinds.get(kind, 0) + event.change
        return {kind: size for kind, size in kinds.items() if size}

    def totals(self) -> list[int]:
        """Return the bytes alive after each event."""
        return list(itertools.accumulate(event.change for event in self.events))


def moments(log: StorageLog, start: int, vocab: int) -> dict[str, int]:
    """Return the event of each named moment of the step that begins at event `start`.

    `after_fwd` is the end of the last forward pass, the others are the highest points of a phase:
    `fwd` until then; `loss` until the last tensor as wide as the vocabulary dies; `layers` the rest
    of the backward pass; `opt` from the first event after it; `other`, where that is higher than
    all of these, an earlier micro batch.
    """
    totals, events = log.totals(), log.events
    step = range(start, len(events))
    forward = [n for n in step if events[n].phase == "fwd"]
    backward = [n for n in step if events[n].phase == "bwd" and n > forward[-1]]
    logits = [
        n for n in backward if events[n].change < 0 and log.kind(events[n].id, vocab) == "logits"
    ]
    end = logits[-1] if logits else backward[0]
    spans = {
        "fwd": forward,
        "loss": [n for n in backward if n <= end],
        "layers": [n for n in backward if n > end],
        # A fused optimizer that keeps its gradients allocates nothing: then what is alive anyway.
        "opt": [n for n in step if events[n].phase == "opt"] or [len(events) - 1],
    }
    high = {name: max(span, key=totals.__getitem__) for name, span in spans.items()}
    highest = max(step, key=totals.__getitem__)
    if totals[highest] > max(totals[n] for n in high.values()):
        high["other"] = highest
    return {"after_fwd": backward[0] - 1, **high}
