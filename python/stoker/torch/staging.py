"""Memory that tensors are copied to before they are written: page-aligned, pinned if there is CUDA, used again by each save."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Slots begin at multiples of this, so that every kind of number lies right.
ALIGN = 64
#: Copied at once, if there is as much room.
PIECE_MAX = 64 << 20
#: The least that makes sense.
CAPACITY_MIN = 1 << 20


@dataclass(frozen=True)
class Slot:
    """A piece of the memory that somebody fills."""

    start: int
    size: int
    #: What it takes of the ring, with what was left over at its end.
    taken: int


class Staging:
    """A ring of memory: one thread reserves and fills, another one writes and releases, in the same order.

    ``limit`` bounds it; without one it is as large as the largest save needed.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < CAPACITY_MIN:
            raise ValueError(f"staging_bytes is at least {CAPACITY_MIN} (1 MiB), not {limit}")
        self.limit = limit
        self._memory: torch.Tensor | None = None
        self._map: mmap.mmap | None = None
        self._lock = threading.Condition()
        self._next = 0
        self._used = 0
        self._fault: BaseException | None = None
        #: Called when somebody has to wait for room.
        self.short: Callable[[], None] | None = None
        #: Most bytes that were ever in use at once.
        self.peak_bytes = 0

    @property
    def capacity(self) -> int:
        """Bytes that are held."""
        return 0 if self._memory is None else self._memory.numel()

    @property
    def piece(self) -> int:
        """Most bytes to reserve at once: so few that filling and writing go on side by side."""
        return max(ALIGN, min(PIECE_MAX, self.capacity // 4) // ALIGN * ALIGN)

    def prepare(self, size: int) -> None:
        """Makes room for a save of so many bytes, within the limit. Nothing may be in use."""
        with self._lock:
            if self._used:
                raise RuntimeError("the staging memory is in use by another save")
            self._next, self._fault = 0, None
            want = max(size, CAPACITY_MIN)
            if self.limit is not None:
                want = min(want, self.limit)
            if want <= self.capacity:
                return
            want = -(-want // mmap.PAGESIZE) * mmap.PAGESIZE
            if self.limit is not None:
                want = min(want, self.limit // ALIGN * ALIGN)
            self._free()
            self._memory = self._make(want)

    def touch(self) -> None:
        """Has the kernel give the pages now instead of during the first copy."""
        with self._lock:
            if self._memory is not None and not self._used:
                self._memory.zero_()

    def _make(self, size: int) -> torch.Tensor:
        if torch.cuda.is_available():
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._map = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages; it only goes slower
        return torch.frombuffer(self._map, dtype=torch.uint8)

    def reserve(self, size: int) -> Slot:
        """Room for some bytes, as soon as there is any. Raises what :meth:`fail` was told."""
        whole = -(-size // ALIGN) * ALIGN
        with self._lock:
            if whole > self.capacity:
                raise ValueError(f"{size} bytes at once do not fit {self.capacity} bytes of staging memory")
            while True:
                if self._fault is not None:
                    raise self._fault
                if self._used == 0:
                    self._next = 0
                left = self.capacity - self._next
                skipped = left if left < whole else 0
                if self._used + skipped + whole <= self.capacity:
                    break
                if self.short is not None:
                    self.short()
                self._lock.wait()
            start = 0 if left < whole else self._next
            self._next = start + whole
            self._used += skipped + whole
            self.peak_bytes = max(self.peak_bytes, self._used)
            return Slot(start, size, skipped + whole)

    def view(self, slot: Slot) -> torch.Tensor:
        """The bytes of a slot."""
        assert self._memory is not None
        return self._memory[slot.start : slot.start + slot.size]

    def release(self, slot: Slot) -> None:
        """Gives the oldest slot back."""
        with self._lock:
            self._used -= slot.taken
            self._lock.notify_all()

    def fail(self, fault: BaseException) -> None:
        """Whoever waits for room, or asks for it before the next save, gets this error."""
        with self._lock:
            self._fault = fault
            self._lock.notify_all()

    def close(self) -> None:
        """Gives the memory back."""
        with self._lock:
            if not self._used:
                self._free()

    def _free(self) -> None:
        self._memory = None
        # Unmapped when the last view of it is gone.
        self._map = None
