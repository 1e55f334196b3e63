"""Datasets for torch. Nothing else of this package imports it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from .course import Course, Leg
from .reading import READS, Fetcher, limits_of, steps_of
from .samples import Bad, BadSample, Decode, Maker
from .shares import Even
from .sources import Source
from .states import State
from .stats import COLUMNS, ROWS, Stats, Tally, stats_of
from .stream import MEMORY, Stream

# What the process that made the dataset shares with its workers.
_EPOCH, _BEGUN, _LOADED = range(3)


def _rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """As given, or as the process group says; without one the environment is asked."""
    if rank is None and world is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, world


class StreamDataset(Stream, IterableDataset[Any]):
    """An iterable dataset: ``Stream``, with the workers of a ``DataLoader`` as its workers.

    With ``batch_size`` it makes batches itself; the loader then gets ``batch_size=None``, and any number of workers gives the
    same batches in the same order.

    >>> dataset = stoker.data.StreamDataset(source, batch_size=64, collate=torch.utils.data.default_collate)
    >>> loader = DataLoader(dataset, batch_size=None, num_workers=8)
    >>> for epoch in range(dataset.epoch, epochs):
    ...     dataset.set_epoch(epoch)  # reaches workers that stay, too
    ...     for number, batch in enumerate(loader):
    ...         train(batch)
    ...         state = dataset.state_after(number + 1)  # what the loop has had, not what workers have made

    To go on: ``dataset.load_state_dict(state)`` before the loop, with any number of ranks and workers. Batches are then counted
    from there. ``StatefulDataLoader`` keeps the state by itself: ``loader.state_dict()`` and ``loader.load_state_dict(state)``
    with the same numbers, ``dataset.load_state_dict(stoker.data.global_state(state))`` with others.
    """

    def __init__(self, source: Source, *, rank: int | None = None, world: int | None = None, **options: Any) -> None:
        """The options are those of ``Stream``."""
        rank, world = _rank_and_world(rank, world)
        Stream.__init__(self, source, rank=rank, world=world, **options)
        self._shared = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._shared[_EPOCH] = self.epoch
        self._rows = torch.zeros((ROWS, len(COLUMNS)), dtype=torch.float64).share_memory_()
        self._tally = Tally(_row(self._rows, 0))
        self._loaded = 0

    def _worker(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._shared[_EPOCH] = epoch
        self._shared[_BEGUN] = 0

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if get_worker_info() is None:
            self._shared[_EPOCH] = self.epoch
            self._shared[_BEGUN] = 0
            self._shared[_LOADED] += 1
            self._loaded = int(self._shared[_LOADED])

    def state_dict(self) -> State:
        if get_worker_info() is None and int(self._shared[_BEGUN]):
            raise RuntimeError(
                "workers of a DataLoader hand out these samples, and they are ahead of the loop: ask "
                "dataset.state_after(batches that the loop has had), or StatefulDataLoader.state_dict()"
            )
        return super().state_dict()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is not None:
            if self._loaded != int(self._shared[_LOADED]):
                return _stale()
            if not self._fresh:  # a worker that stays goes to the epoch that the main process chose
                Stream.set_epoch(self, int(self._shared[_EPOCH]))
            self._tally = Tally(_row(self._rows, info.id))
            self._shared[_BEGUN] = 1
        return super().__iter__()

    def stats(self) -> Stats:
        """What loading has cost in this rank, with all its workers."""
        return stats_of(self._rows.tolist())


def _row(rows: Any, worker: int) -> Any:
    """The numbers of one worker: an array over the shared memory if there is NumPy, for tensors are slow to count with."""
    row = rows[worker % ROWS]
    try:
        return row.numpy()
    except RuntimeError:
        return row


def _stale() -> Iterator[Any]:
    """Fails when the first sample is wanted: what fails before that ends a worker without a word."""
    raise RuntimeError(
        "a state was loaded into the dataset after this worker began: load it before the DataLoader is iterated, "
        "or make a new DataLoader"
    )
    yield  # type: ignore[unreachable]


class MapDataset(Dataset[Any]):
    """A map-style dataset: sample by number, and a batch of numbers as few reads. Use it with :class:`Batches`.

    >>> dataset = stoker.data.MapDataset(source, decode=decode)
    >>> loader = DataLoader(dataset, batch_sampler=stoker.data.Batches(source, batch_size=64, seed=7), num_workers=8)
    """

    def __init__(
        self,
        source: Source,
        *,
        decode: Decode | None = None,
        bad: Bad = "raise",
        memory: int = MEMORY,
        threads: int = READS,
        views: bool = False,
    ) -> None:
        self.source = source
        self._limits = (memory, threads)
        self._hooks = (decode, bad, views)
        Maker(source, *self._hooks)  # refuses what cannot be
        self._rows = torch.zeros((ROWS, len(COLUMNS)), dtype=torch.float64).share_memory_()
        self._tools: tuple[int, Fetcher, Maker, Tally] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, sample: int) -> Any:
        found = self.__getitems__([sample])
        if not found:
            raise BadSample(f"{self.source.path}: sample {sample} is bad, and one sample cannot be skipped: ask for batches")
        return found[0]

    def __getitems__(self, samples: Sequence[int]) -> list[Any]:
        """Many samples; bad ones that are skipped are not among them."""
        count = len(self.source)
        numbers = [one + count if one < 0 else one for one in map(int, samples)]
        if any(not 0 <= one < count for one in numbers):
            raise IndexError(f"{self.source.path}: a sample outside of {count}")
        fetcher, maker, tally = self._tools_here()
        tally.begin()
        spent = fetcher.spent
        run = fetcher.read(numbers)
        made: list[Any] = []
        for step in steps_of(run):
            made, size = maker.make(run, step, tally)
            tally.gave(len(made), size, step[3], 0.0)
        tally.spent(spent, fetcher.spent)
        return made

    def _tools_here(self) -> tuple[Fetcher, Maker, Tally]:
        if self._tools is None or self._tools[0] != os.getpid():
            info = get_worker_info()
            number, workers = (0, 1) if info is None else (info.id, info.num_workers)
            fetcher = Fetcher(self.source, **limits_of(*self._limits, workers), views=self._hooks[2])
            tally = Tally(_row(self._rows, number))
            self._tools = os.getpid(), fetcher, Maker(self.source, *self._hooks), tally
        return self._tools[1:]

    def stats(self) -> Stats:
        """What loading has cost in this rank, with all its workers."""
        return stats_of(self._rows.tolist())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tools": None}


class Batches(Course, Sampler[list[int]]):
    """The batches of a rank as numbers of samples, for the ``batch_sampler`` of a loader over a :class:`MapDataset`.

    The order, the shares and the states are those of ``Stream``. A plain ``DataLoader`` takes batches ahead of the loop: ask
    ``state_after(batches)`` for the state. ``StatefulDataLoader`` keeps it by itself, also when the number of workers changes:
    then load ``stoker.data.global_state(loader state)`` here.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        shuffle: bool = True,
        block: int = 1,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world: int | None = None,
        even: Even = "keep",
    ) -> None:
        rank, world = _rank_and_world(rank, world)
        Course.__init__(
            self,
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

    def _worker(self) -> tuple[int, int]:
        return 0, 1  # a sampler lives in the main process, whatever the loader has

    def __iter__(self) -> Iterator[list[int]]:
        return self._run(self._leg())

    def _run(self, leg: Leg) -> Iterator[list[int]]:
        turn = self._begin(leg)
        for samples, sizes in leg.plan():
            numbers, at = samples.tolist(), 0
            for size in sizes:
                self._gave(turn, size)
                yield numbers[at : at + size]
                at += size
