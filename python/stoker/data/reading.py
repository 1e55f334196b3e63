"""Reading: samples come before they are asked for, many with one call, and never more of them than memory is allowed for.

The work is done by the native part: it plans reads (neighbours with less than 8 KiB between them are one), makes them with
threads of its own, and makes the samples of a whole batch in one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._stoker import Feed, Run, Samples
from .sources import Source

#: Reads that are under way at once. A drive needs many of them for single samples: each waits for itself.
READS = 32
#: So many are left to a worker that shares them with many others.
READS_MIN = 4
#: Files that a process keeps open.
OPEN_MAX = 4096


def limits_of(memory: int, threads: int, workers: int) -> dict[str, int]:
    """What one of the workers of a rank may use."""
    return {"memory": memory // workers, "threads": min(threads, max(READS_MIN, threads // workers))}


class Fetcher:
    """Reads samples of a source for one process. ``memory`` bounds the bytes that were read and not yet given on; one sample
    that is larger is read by itself. Samples of tars come as dictionaries of ``bytes`` or, with ``views``, of views of
    memory that a group of samples shares; others come as bytes or views, which the source knows how to name."""

    def __init__(self, source: Source, *, memory: int, threads: int = READS, views: bool = False) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread reads, not {threads}")
        self.is_tar = source.is_tar
        self._feed = Feed(
            source.store._client,
            source.places,
            source.wanted,
            source.sample_faults,
            memory=max(memory, 0),
            threads=threads,
            files=OPEN_MAX,
            tar=self.is_tar,
            views=views,
        )

    @property
    def memory_peak(self) -> int:
        """The most bytes that were held at once."""
        return self._feed.memory_peak

    @property
    def files_open(self) -> int:
        """Files that this process has open."""
        return self._feed.files_open

    @property
    def spent(self) -> tuple[int, float, int, float]:
        """Opens and their seconds, reads and their seconds: of all threads of this process, one by one."""
        return self._feed.spent

    def run(self, plan: Iterable[tuple[Samples, list[int]]]) -> Run:
        """One iteration over the steps of a plan."""
        return self._feed.run(iter(plan))

    def read(self, samples: Iterable[int]) -> Run:
        """An iteration of one step: these samples."""
        numbers = Samples(list(samples))
        return self.run([(numbers, [len(numbers)])] if len(numbers) else [])


def steps_of(run: Run) -> Iterator[tuple[Any, ...]]:
    """The steps of an iteration, until it ends or nobody wants more."""
    try:
        while (step := run.next()) is not None:
            yield step
    finally:
        run.close()
