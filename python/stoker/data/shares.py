"""Shares: which part of an epoch belongs to which rank and worker, and what of it is done.

The order of an epoch is cut into steps of ``world * piece`` samples. In each step every rank gets one piece; worker
``w`` of a rank makes the steps ``w, w + workers, ...``, which is the order in which a ``DataLoader`` asks its workers. So after
any step what the ranks were given together is a beginning of the order, whatever the number of ranks and workers is, and any
other number of them can go on there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from .order import Runs

#: What happens to the samples behind the last full step: ``keep`` shares them out (every sample exactly once; ranks may get
#: one step or a few samples more than others), ``drop`` leaves them out, ``repeat`` fills up with samples from the beginning.
Even = Literal["keep", "drop", "repeat"]

#: Positions that are planned at once, about.
STRETCH = 4096

#: Ranges that a state may list; more than this is no state of ours.
AHEAD_MAX = 1 << 20


@dataclass(frozen=True)
class Progress:
    """Positions of an epoch that are done: all below ``prefix``, and ``ahead`` of it some ranges."""

    prefix: int = 0
    ahead: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """How many samples are done."""
        return self.prefix + sum(stop - start for start, stop in self.ahead)

    def rest(self, start: int, stop: int) -> list[range]:
        """Positions of what is not done, counted without what is done: the ``start``-th up to the ``stop``-th."""
        left, shifts = self._ahead
        index = bisect_right(left, start)
        found = []
        while start < stop:
            until = min(stop, left[index]) if index < len(left) else stop
            if start < until:
                found.append(range(start + shifts[index], until + shifts[index]))
            start, index = until, index + 1
        return found

    @cached_property
    def _ahead(self) -> tuple[list[int], list[int]]:
        """For each range ahead, how many positions in front of it are not done; and how many are done before each gap."""
        left, shifts = [], [self.prefix]
        for begin, end in self.ahead:
            left.append(begin - shifts[-1])
            shifts.append(shifts[-1] + end - begin)
        return left, shifts

    def with_done(self, ranges: Sequence[tuple[int, int]]) -> Progress:
        """What is done when these, counted as in :meth:`rest`, are done too."""
        done = [(part.start, part.stop) for start, stop in ranges for part in self.rest(start, stop)]
        prefix, ahead = self.prefix, list[tuple[int, int]]()
        for start, stop in sorted([*done, *self.ahead]):
            if start <= prefix:
                prefix = max(prefix, stop)
            elif ahead and start <= ahead[-1][1]:
                ahead[-1] = (ahead[-1][0], max(ahead[-1][1], stop))
            else:
                ahead.append((start, stop))
        return Progress(prefix, tuple(ahead))


@dataclass(frozen=True)
class Share:
    """What one worker of one rank makes of an epoch."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    #: Samples of a rank in a step: its batch.
    piece: int = 1
    even: Even = "keep"

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world} ranks: ranks are counted from 0")
        if self.workers < 1 or not 0 <= self.worker < self.workers:
            raise ValueError(f"worker {self.worker} of {self.workers} workers: workers are counted from 0")
        if self.piece < 1:
            raise ValueError(f"a batch has at least one sample, not {self.piece}")
        if self.even not in ("keep", "drop", "repeat"):
            raise ValueError(f"even is keep, drop or repeat, not {self.even!r}")

    @property
    def step(self) -> int:
        """Samples of a full step of all ranks."""
        return self.world * self.piece

    def steps(self, left: int) -> int:
        """How many steps ``left`` samples make, for all workers of a rank together."""
        return left // self.step if self.even == "drop" else -(-left // self.step)

    def part(self, step: int, left: int, rank: int | None = None) -> tuple[int, int]:
        """What a rank gets in a step: a range of what is not done. It may reach behind ``left`` if samples are repeated."""
        rank = self.rank if rank is None else rank
        begin = step * self.step
        if begin + self.step <= left or self.even == "repeat":
            return begin + rank * self.piece, begin + (rank + 1) * self.piece
        rest = max(0, left - begin)
        # Rounded up, so that rank 0, which usually keeps the state, gets something if anyone does.
        return begin - (-rest * rank // self.world), begin - (-rest * (rank + 1) // self.world)

    def stretches(self, progress: Progress, count: int, given: int = 0) -> Iterator[tuple[Runs, list[int]]]:
        """The positions of the steps of this worker, without the first ``given`` samples, many steps at a time: runs of
        positions, and how many of them belong to each step. A step that gives this rank nothing is left out."""
        left = count - progress.count
        turn, skip = divmod(given, self.piece)
        step, steps, whole = self.worker + turn * self.workers, self.steps(left), left // self.step
        runs, sizes, total = list[tuple[int, int, int, int]](), list[int](), 0
        while step < steps:
            if step < whole and not skip and not progress.ahead:
                # All of them are alike.
                times = min(len(range(step, whole, self.workers)), -(-(STRETCH - total) // self.piece))
                start = progress.prefix + step * self.step + self.rank * self.piece
                runs.append((start, self.piece, self.workers * self.step, times))
                size = self.piece
            else:
                start, stop = self.part(step, left)
                parts = progress.rest(start + skip, min(stop, left)) + _repeated(max(left, start + skip), stop, left, count)
                runs += [(part.start, len(part), 0, 1) for part in parts]
                size, times, skip = sum(map(len, parts)), 1, 0
            sizes += [size] * times if size else []
            step, total = step + times * self.workers, total + times * size
            if total >= STRETCH:
                yield runs, sizes
                runs, sizes, total = [], [], 0
        if sizes:
            yield runs, sizes

    def length(self, left: int) -> int:
        """How many samples this worker makes of ``left``."""
        steps = len(range(self.worker, self.steps(left), self.workers))
        if steps == 0:
            return 0
        start, stop = self.part(self.worker + (steps - 1) * self.workers, left)
        return (steps - 1) * self.piece + stop - start

    def done(self, progress: Progress, count: int, given: Sequence[int]) -> Progress:
        """What is done when each worker of this rank has given so many samples, and the other ranks as many."""
        if len(given) != self.workers:
            raise ValueError(f"{len(given)} counts for {self.workers} workers")
        left = count - progress.count
        common = min(given) // self.piece
        ranges = [(0, min(left, common * self.workers * self.step))]
        for worker, samples in enumerate(given):
            full, rest = divmod(samples, self.piece)
            for turn in range(common, full):
                begin = (turn * self.workers + worker) * self.step
                ranges.append((min(left, begin), min(left, begin + self.step)))
            if rest:
                ranges += self._begun(full * self.workers + worker, left, rest)
            if len(ranges) > AHEAD_MAX:
                raise ValueError("the workers are too far apart for a state: give the dataset the batch size of the loader")
        return progress.with_done([one for one in ranges if one[0] < one[1]])

    def _begun(self, step: int, left: int, given: int) -> list[tuple[int, int]]:
        """What is done of a step of which every rank gave the first samples."""
        start, stop = self.part(step, left)
        if given >= stop - start:
            return [(step * self.step, min(left, (step + 1) * self.step))]
        parts = (self.part(step, left, rank) for rank in range(self.world))
        return [(begin, min(begin + given, end, left)) for begin, end in parts]


def _repeated(start: int, stop: int, left: int, count: int) -> list[range]:
    """Positions of what is given a second time: those behind what is left begin again at the first."""
    found = []
    while start < stop:
        begin = (start - left) % count
        end = min(count, begin + stop - start)
        found.append(range(begin, end))
        start += end - begin
    return found


def progress_of(state: dict[str, Any]) -> Progress:
    """The part of a state that says what is done; checked, for a state comes from a file."""
    prefix, ahead = state.get("consumed"), state.get("ahead", [])
    if not isinstance(prefix, int) or prefix < 0 or not isinstance(ahead, (list, tuple)) or len(ahead) > AHEAD_MAX:
        raise ValueError("the state does not say how many samples were consumed")
    ranges, before = [], prefix
    for one in ahead:
        start, stop = one if isinstance(one, (list, tuple)) and len(one) == 2 else (None, None)
        if not isinstance(start, int) or not isinstance(stop, int) or not before < start < stop:
            raise ValueError("the state lists ranges of samples that are not in order")
        ranges.append((start, stop))
        before = stop
    return Progress(prefix, tuple(ranges))
