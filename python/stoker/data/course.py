"""The course of a rank through epochs: which samples come next, and what was had. Streams and batch samplers follow one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from .._stoker import Samples
from . import states
from .order import Order
from .shares import Even, Progress, Share
from .states import State


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """As given, or as ``torchrun`` and its like say in the environment."""
    if (rank is None) != (world is None):
        raise ValueError("give both rank and world, or neither")
    if rank is not None and world is not None:
        return rank, world
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ValueError("RANK and WORLD_SIZE in the environment are not numbers") from None


class Course:
    """Positions, epochs and states of one rank; no bytes."""

    def __init__(
        self,
        identity: str,
        count: int,
        *,
        batch_size: int | None,
        shuffle: bool,
        block: int,
        seed: int,
        epoch: int,
        rank: int | None,
        world: int | None,
        even: Even,
    ) -> None:
        self.identity, self._count = identity, count
        self.batch_size, self.epoch = batch_size, epoch
        self._shuffle, self._block, self._seed = shuffle, block, seed
        self.rank, self.world = rank_and_world(rank, world)
        self._even: Even = even
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"a batch has at least one sample, not {batch_size}")
        self._share(0, 1)  # refuses what cannot be
        self.order()
        #: Where the epoch of this process began, and how many samples it has given since.
        self._base, self._given = Progress(), 0
        #: Whether the next iteration begins there; the one after it begins at the start of the epoch.
        self._fresh = True
        #: Counts iterations: only the last one is what the state is about.
        self._turn = 0

    def _share(self, worker: int, workers: int) -> Share:
        return Share(self.rank, self.world, worker, workers, self.batch_size or 1, self._even)

    def _worker(self) -> tuple[int, int]:
        """Which worker this process is, and of how many."""
        return 0, 1

    def order(self, epoch: int | None = None) -> Order:
        """The order of an epoch, the same in all ranks."""
        number = self.epoch if epoch is None else epoch
        return Order(self._count, seed=self._seed, epoch=number, shuffle=self._shuffle, block=self._block)

    def __len__(self) -> int:
        """Batches (without ``batch_size``: samples) of a whole epoch for this rank."""
        share, count = self._share(0, 1), self._count
        steps = share.steps(count)
        if steps and share.part(steps - 1, count)[0] == share.part(steps - 1, count)[1]:
            steps -= 1
        return steps

    # Epochs and states

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration. The epoch of a state that was loaded goes on where the state says."""
        if epoch != self.epoch:
            self.epoch, self._base, self._given = epoch, Progress(), 0
            self._fresh = True

    def state_dict(self) -> State:
        """What was handed out so far. In a worker it is that of the worker; else it is that of all ranks, which go in step."""
        worker, workers = self._worker()
        base = states.state_of(self.identity, self.order(), self._base)
        mine = states.with_share(base, self._share(worker, workers), self._given)
        return mine if workers > 1 else states.global_state([mine])

    def state_after(self, batches: int, *, batch_size: int | None = None, workers: int = 0) -> State:
        """The state when the loop has had so many batches of the epoch since it began or a state was loaded.

        For a plain ``DataLoader``, whose workers are ahead of the loop: only the loop knows what it had. Without a
        ``batch_size`` of its own the dataset has to be told those of the loader; then no sample may be skipped. The loader must
        hand out batches in order, as it does unless it was told ``in_order=False``.
        """
        if batches < 0:
            raise ValueError(f"{batches} batches")
        size = self.batch_size or batch_size
        if size is None:
            raise ValueError("how many samples has a batch? Give the batch_size and the workers of the DataLoader")
        count = 1 if self.batch_size else max(1, workers)
        left = self._count - self._base.count
        given = []
        for worker in range(count):
            turns = max(0, -(-(batches - worker) // count))
            given.append(min(turns * size, self._share(worker, count).length(left)))
        done = self._share(0, count).done(self._base, self._count, given)
        return states.state_of(self.identity, self.order(), done)

    def load_state_dict(self, state: State) -> None:
        """Goes on where a state says: that of all ranks, with any number of ranks and workers, or that of this very worker."""
        epoch, base = states.check(state, self.identity, self.order())
        given = 0
        if states.is_of_worker(state):
            mine, theirs = self._share(*self._worker()), states.share_of(state)
            if mine != theirs:
                raise ValueError(
                    f"this state is of {theirs}, and this is {mine}: to go on with another number of ranks, workers or "
                    "samples in a batch load stoker.data.global_state(state of the loader) into the dataset"
                )
            given = states.given_of(state)
        self.epoch, self._base, self._given, self._fresh = epoch, base, given, True

    def _leg(self) -> Leg:
        """What the next iteration is: from where the state says, or else the epoch from its start. Loaders ask for iterators
        that they do not use, so nothing is settled before the first sample is wanted."""
        if not self._fresh:
            self._base, self._given, self._fresh = Progress(), 0, True
        return Leg(self._share(*self._worker()), self.order(), self._base, self._given)

    def _begin(self, leg: Leg) -> int:
        """The first sample is wanted: from now on the state is about this iteration. Returns its number."""
        self.epoch, self._base, self._given, self._fresh = leg.order.epoch, leg.base, leg.given, False
        self._turn += 1
        return self._turn

    def _gave(self, turn: int, samples: int) -> None:
        if turn == self._turn:
            self._given += samples


@dataclass(frozen=True)
class Leg:
    """One iteration: the share, the order, and where in it to begin."""

    share: Share
    order: Order
    base: Progress
    given: int

    def plan(self) -> Iterator[tuple[Samples, list[int]]]:
        """The samples of this worker, many steps at a time, and how many samples each step has."""
        for runs, sizes in self.share.stretches(self.base, self.order.count, self.given):
            yield self.order.runs(runs), sizes
