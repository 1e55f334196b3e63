"""The order of an epoch: which sample comes at which position.

An order is a function, not a list: a billion samples cost no memory, and any position can be asked for by itself. It depends on
the number of samples, the seed and the epoch, and on nothing else, so that every rank and worker knows the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from .. import _stoker

_ROUNDS = 8
#: More samples than this are not counted with exact 64-bit arithmetic.
SAMPLES_MAX = 1 << 62

#: Positions at equal distances: start, length, distance from one start to the next, how many.
Runs = list[tuple[int, int, int, int]]


def _keys(key: str) -> list[int]:
    digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS, person=b"stoker.order").digest()
    return [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS)]


class Permutation:
    """A pseudo-random permutation of ``range(count)`` that keeps nothing but a few keys.

    >>> shuffle = Permutation(1_000_000_000, "seed 7, epoch 0")
    >>> shuffle.at(shuffle.position_of(5))
    5
    """

    def __init__(self, count: int, key: str) -> None:
        if not 0 <= count <= SAMPLES_MAX:
            raise ValueError(f"a permutation has 0 to {SAMPLES_MAX} elements, not {count}")
        self.count, self.key = count, key
        self._native = _stoker.Permutation(count, _keys(key))

    def __reduce__(self) -> tuple[type[Permutation], tuple[int, str]]:
        return Permutation, (self.count, self.key)

    def at(self, position: int) -> int:
        """The element at a position."""
        self._check(position)
        return self._native.at(position)

    def position_of(self, element: int) -> int:
        """Where an element is: the inverse of :meth:`at`."""
        self._check(element)
        return self._native.position_of(element)

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
        if not 0 <= count <= SAMPLES_MAX:
            raise ValueError(f"an epoch has 0 to {SAMPLES_MAX} samples, not {count}")
        self.count, self.seed, self.epoch, self.shuffle = count, seed, epoch, shuffle
        self.block = max(1, min(block, count))
        key = f"seed {seed}, epoch {epoch}, block {self.block}"
        keys = (_keys(key), _keys(key + ", shift")) if shuffle else None
        self._native = _stoker.Order(count, self.block, keys)

    def sample(self, position: int) -> int:
        """The sample at a position of the epoch."""
        return self.samples([position])[0]

    def samples(self, positions: Iterable[int]) -> Sequence[int]:
        """The samples at many positions."""
        return self._native.samples(list(positions)).tolist()

    def runs(self, runs: Runs) -> _stoker.Samples:
        """The samples at runs of positions, in the form in which they are read."""
        return self._native.runs(runs)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("count", "seed", "epoch", "shuffle", "block")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]
