"""Loader workers without torch: processes that share out an epoch as the workers of a ``DataLoader`` do."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import stoker.data
from stoker.data import Source, Stats

#: For a broken worker, not an order of events.
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Config:
    """How samples are loaded."""

    workers: int
    batch: int
    #: Neighbours that stay together; 0 reads from front to back.
    block: int
    decode: Callable[[dict[str, Any]], Any] | None = None


@dataclass(frozen=True)
class Epoch:
    """What an epoch cost: from the first worker that began to the last one that ended."""

    samples: int
    bytes: int
    elapsed_s: float
    stats: tuple[Stats, ...]

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s


class Workers:
    """Processes that stay; each has its own connection and its own files, as workers of a loader do.

    >>> with Workers(lambda: open_seal("data/train.seal", store=...), Config(4, 64, 256)) as workers:
    ...     workers.epoch(0).samples_per_s
    """

    def __init__(self, source: Callable[[], Source], config: Config) -> None:
        self._config = config
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(max(1, config.workers)):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, source, config, number), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *fault: object) -> None:
        # Said, not hung up: processes that were forked later have this end of the pipe, too.
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()

    def epoch(self, number: int, samples: int | None = None) -> Epoch:
        """One epoch, or this many samples of it."""
        for pipe in self._pipes:
            pipe.send((number, samples))
        said = [_answer(pipe) for pipe in self._pipes]
        elapsed = max(ended for _, _, _, ended, _ in said) - min(began for _, _, began, _, _ in said)
        return Epoch(
            sum(one[0] for one in said), sum(one[1] for one in said), elapsed, tuple(one[4] for one in said)
        )


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError(f"a worker said nothing for {PATIENCE_S:.0f} s")
    try:
        said = pipe.recv()
    except EOFError:
        raise ChildProcessError("a worker ended") from None
    if isinstance(said, str):
        raise ChildProcessError(f"a worker failed: {said}")
    return said


def _work(pipe: Connection, source: Callable[[], Source], config: Config, number: int) -> None:
    try:
        count = max(1, config.workers)
        whole = stoker.data.Stream(
            source(),
            batch_size=config.batch,
            block=max(1, config.block),
            shuffle=config.block > 0,
            decode=config.decode,
            seed=7,
            rank=number,
            world=count,
            memory=stoker.data.stream.MEMORY // count,
            threads=max(4, stoker.data.reading.READS // count),
        )
        while True:
            wanted = pipe.recv()
            if wanted is None:
                return
            epoch, limit = wanted
            pipe.send(_one(whole, epoch, None if limit is None else -(-limit // count)))
    except BaseException:  # whatever it is, somebody waits for an answer
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)


def _one(stream: stoker.data.Stream, epoch: int, limit: int | None) -> tuple[int, int, float, float, Stats]:
    before = stream.stats()
    stream.set_epoch(epoch)
    taken, began = 0, time.monotonic()
    for batch in stream:
        taken += len(batch)
        if limit is not None and taken >= limit:
            break
    ended = time.monotonic()
    return taken, stream.stats().bytes - before.bytes, began, ended, difference(stream.stats(), before)


def difference(after: Stats, before: Stats) -> Stats:
    """What was counted in between."""
    return Stats(**{name: getattr(after, name) - getattr(before, name) for name in Stats.__dataclass_fields__})


def total(all: Sequence[Stats]) -> Stats:
    """The sum over workers that ran side by side."""
    sums = {name: sum(getattr(one, name) for one in all) for name in Stats.__dataclass_fields__}
    return Stats(**{**sums, "elapsed_s": max(one.elapsed_s for one in all)})
