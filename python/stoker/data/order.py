"""The order of an epoch: which sample comes at which position.

An order is a function, not a list: a billion samples cost no memory, and any position can be asked for by itself. It depends on
the number of samples, the seed and the epoch, and on nothing else, so that every rank and worker knows the same one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

try:
    import numpy as np
except ImportError:  # plain numbers give the same order
    np = None  # type: ignore[assignment]

_ROUNDS = 8
_WORD = (1 << 64) - 1
#: More samples than this are not counted with exact 64-bit arithmetic.
SAMPLES_MAX = 1 << 62


def _mix(value: int) -> int:
    """A 64-bit finalizer: each bit of the result depends on each bit of the value."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def _mix_many(values: Any) -> Any:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Permutation:
    """A pseudo-random permutation of ``range(count)`` that keeps nothing but a few keys.

    A Feistel network over pairs of numbers below ``side``, where ``side`` squared is the next square at or above ``count``;
    what falls outside of the range is sent through again until it falls inside, which is hardly ever needed.

    >>> shuffle = Permutation(1_000_000_000, "seed 7, epoch 0")
    >>> shuffle.at(shuffle.position_of(5))
    5
    """

    def __init__(self, count: int, key: str) -> None:
        if not 0 <= count <= SAMPLES_MAX:
            raise ValueError(f"a permutation has 0 to {SAMPLES_MAX} elements, not {count}")
        self.count = count
        self._side = max(1, math.isqrt(max(0, count - 1)) + 1)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS, person=b"stoker.order").digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS)]

    def at(self, position: int) -> int:
        """The element at a position."""
        self._check(position)
        side = self._side
        while True:
            left, right = divmod(position, side)
            for key in self._keys:
                left, right = right, (left + _mix(right ^ key) % side) % side
            position = left * side + right
            if position < self.count:
                return position

    def position_of(self, element: int) -> int:
        """Where an element is: the inverse of :meth:`at`."""
        self._check(element)
        side = self._side
        while True:
            left, right = divmod(element, side)
            for key in reversed(self._keys):
                left, right = (right - _mix(left ^ key) % side) % side, left
            element = left * side + right
            if element < self.count:
                return element

    def at_many(self, positions: Any) -> Any:
        """The elements at many positions: an array of 64-bit numbers to an array of them. Needs NumPy."""
        side = np.uint64(self._side)
        left, right = np.divmod(positions.astype(np.uint64), side)
        for key in self._keys:
            left, right = right, (left + _mix_many(right ^ np.uint64(key)) % side) % side
        found = left * side + right
        outside = np.flatnonzero(found >= np.uint64(self.count))
        if len(outside):
            found[outside] = [self._walk(int(one)) for one in found[outside]]
        return found

    def _walk(self, position: int) -> int:
        side = self._side
        while position >= self.count:
            left, right = divmod(position, side)
            for key in self._keys:
                left, right = right, (left + _mix(right ^ key) % side) % side
            position = left * side + right
        return position

    def _check(self, number: int) -> None:
        if not 0 <= number < self.count:
            raise IndexError(f"{number} is not in a permutation of {self.count}")


class Order:
    """The order of one epoch.

    ``shuffle=False`` is the order of the dataset. Otherwise ``block=1`` is a global shuffle: where a sample comes has
    nothing to do with where its neighbours come, and every sample is a read of its own.

    ``block=B`` shuffles blocks of ``B`` neighbouring samples and keeps the order inside of a block: a block is one read.
    What is given up: the samples of a block come together, in the same batch if the batch is a multiple of the block. That does
    no harm if the shards were packed in random order; it does if neighbours are alike (one class, one document), because then
    a batch has ``batch / B`` independent draws instead of ``batch``. Where blocks begin differs from epoch to epoch, so that
    it is not the same samples that come together each time.

    >>> list(Order(5, seed=1, epoch=0, shuffle=False).samples(range(5)))
    [0, 1, 2, 3, 4]
    >>> sorted(Order(5, seed=1, epoch=0).samples(range(5)))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, count: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True, block: int = 1) -> None:
        if block < 1:
            raise ValueError(f"a block has at least one sample, not {block}")
        self.count, self.seed, self.epoch, self.shuffle = count, seed, epoch, shuffle
        self.block = max(1, min(block, count))
        key = f"seed {seed}, epoch {epoch}, block {self.block}"
        blocks = -(-count // self.block)
        self._blocks = Permutation(blocks if shuffle else 0, key)
        if shuffle and self.block > 1:
            self._shift = Permutation(count, key + ", shift").at(0) % self.block
            # The last block may be short: positions behind it are as if it were not.
            self._missing = blocks * self.block - count
            self._short_end = (self._blocks.position_of(blocks - 1) + 1) * self.block - self._missing

    def sample(self, position: int) -> int:
        """The sample at a position of the epoch."""
        if not 0 <= position < self.count:
            raise IndexError(f"position {position} of an epoch of {self.count} samples")
        if not self.shuffle:
            return position
        if self.block == 1:
            return self._blocks.at(position)
        if position >= self._short_end:
            position += self._missing
        block, inside = divmod(position, self.block)
        return (self._blocks.at(block) * self.block + inside + self._shift) % self.count

    def samples(self, positions: Iterable[int]) -> Sequence[int]:
        """The samples at many positions."""
        positions = positions if isinstance(positions, range) else list(positions)
        if np is None or len(positions) < 8 or not self.shuffle:
            return [self.sample(position) for position in positions]
        if isinstance(positions, range):
            asked = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
        else:
            asked = np.asarray(positions, dtype=np.int64)
        if int(asked.min()) < 0 or int(asked.max()) >= self.count:
            raise IndexError(f"a position outside of an epoch of {self.count} samples")
        asked = asked.astype(np.uint64)
        if self.block == 1:
            return list(self._blocks.at_many(asked).tolist())
        asked[asked >= np.uint64(self._short_end)] += np.uint64(self._missing)
        size = np.uint64(self.block)
        block, inside = np.divmod(asked, size)
        found = self._blocks.at_many(block) * size + inside + np.uint64(self._shift)
        return list((found % np.uint64(self.count)).tolist())
