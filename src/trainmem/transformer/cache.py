"""A cache bounded in bytes, for answers of very different size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class ByteCache(Generic[V]):
    """Keeps what was made last, as many as fit into `most_bytes`; one at least.

    Parameters
    ----------
    most_bytes
        Bytes that all values may take.
    size
        Bytes that one takes.
    """

    def __init__(self, most_bytes: int, size: Callable[[V], int]) -> None:
        self.most_bytes, self._size = most_bytes, size
        self.held_bytes = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()  # two threads may make a value twice, but count it once

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key, made where it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        size = self._size(value)
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size
                self.held_bytes += size
            while self.held_bytes > self.most_bytes and len(self._values) > 1:
                _, (_, size) = self._values.popitem(last=False)
                self.held_bytes -= size
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self.held_bytes = 0
