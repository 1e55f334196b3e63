"""A stream of samples for one rank: the iterable dataset, without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from .course import Course, Leg
from .reading import READS, Fetcher, limits_of, steps_of
from .samples import Bad, BadSample, Decode, Maker
from .shares import Even
from .sources import Source
from .stats import Stats, Tally, stats_of

#: Twice what can be under way at once. Memory costs fresh pages when it is used first, in each process: with 256 MiB that was
#: half of what the first samples cost.
MEMORY = 64 << 20


class Stream(Course):
    """Samples of a source in a shuffled order, this rank's part of them, once per epoch.

    >>> stream = stoker.data.Stream(stoker.data.open_seal("data/train.seal"), batch_size=64, seed=7)
    >>> for epoch in range(stream.epoch, 3):
    ...     stream.set_epoch(epoch)
    ...     for batch in stream:  # a list of 64 samples: {"__key__": "0001", "jpg": b"...", "cls": b"7"}
    ...         train(batch)
    ...         state = stream.state_dict()  # exact, also for another number of ranks

    ``batch_size`` is the batch of a rank; without it samples come one by one. ``decode`` makes a sample of the dictionary,
    ``collate`` a batch of a list of samples. ``bad`` says what happens to a sample that cannot be read or decoded: ``"raise"``,
    ``"skip"`` (its batch is shorter by one), or a function that gets a ``BadSample`` and returns another sample or ``SKIP``.
    ``memory`` bounds the bytes that are read ahead in a rank, ``threads`` the reads that are under way at once; its workers share
    both. ``views`` gives views of memory that a group of samples shares instead of ``bytes``; a sample that keeps
    one keeps all of that memory, outside of the budget. For ``shuffle`` and ``block`` see ``Order``; for ``even`` see ``shares``.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int | None = None,
        decode: Decode | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        shuffle: bool = True,
        block: int = 1,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world: int | None = None,
        even: Even = "keep",
        bad: Bad = "raise",
        memory: int = MEMORY,
        threads: int = READS,
        views: bool = False,
    ) -> None:
        super().__init__(
            source.identity,
            len(source),
            batch_size=batch_size,
            shuffle=shuffle,
            block=block,
            seed=seed,
            epoch=epoch,
            rank=rank,
            world=world,
            even=even,
        )
        if collate is not None and batch_size is None:
            raise ValueError("collate makes batches: give a batch_size, or the DataLoader a collate_fn")
        self.source = source
        self._decode, self._collate, self._bad, self._views = decode, collate, bad, views
        self._memory, self._threads = memory, threads
        Maker(source, decode, bad, views)  # refuses what cannot be
        self._tally = Tally()
        self._tools: tuple[int, Fetcher, Maker] | None = None

    def stats(self) -> Stats:
        """What loading has cost."""
        return stats_of([self._tally.row])

    @property
    def skipped(self) -> list[str]:
        """Names of bad samples that this process passed over, the first of them."""
        return [] if self._tools is None else list(self._tools[2].skipped)

    # Samples

    def __iter__(self) -> Iterator[Any]:
        # Not a generator itself: loaders ask for the state before they ask for the first sample.
        return self._run(self._leg())

    def _tools_here(self, workers: int) -> tuple[Fetcher, Maker]:
        """Threads and files of this process; those of a parent are of no use after a fork."""
        if self._tools is None or self._tools[0] != os.getpid():
            limits = limits_of(self._memory, self._threads, workers)
            fetcher = Fetcher(self.source, **limits, views=self._views)
            maker = Maker(self.source, self._decode, self._bad, self._views)
            self._tools = os.getpid(), fetcher, maker
        return self._tools[1], self._tools[2]

    def _run(self, leg: Leg) -> Iterator[Any]:
        turn = self._begin(leg)
        fetcher, maker = self._tools_here(leg.share.workers)
        tally = self._tally
        tally.begin()
        spent = fetcher.spent
        run = fetcher.run(leg.plan())
        for step in steps_of(run):
            clock = time.monotonic()
            before, spent = spent, fetcher.spent
            tally.spent(before, spent)
            taken = len(step[0])
            batch, size = maker.make(run, step, tally)
            self._gave(turn, taken)
            if not batch and self.batch_size is None:
                continue
            if not batch:
                raise BadSample(f"{self.source.path}: all {taken} samples of a batch are bad: {', '.join(maker.skipped)}")
            tally.gave(len(batch), size, step[3], time.monotonic() - clock)
            if self.batch_size is None:
                yield batch[0]
            else:
                yield batch if self._collate is None else self._collate(batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tools": None}
