"""What a run measured of its loading, for `stoker explain slow`: how long the loop waited, what the loader did, what the node did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..store import Store
from .stats import Stats

T = TypeVar("T")

#: The form of the document, as `stoker explain slow` reads it.
FORM = 1

#: What the node counts, and what it is for the run.
_LAKE = ("lake_read_bytes_total",)
_PEERS = ("cell_read_bytes_total",)
_CATALOG = ("catalog_reads_total", "catalog_commits_total")
_DRIVE = ("ring_reads_total", "ring_read_bytes_total")


class Counts(Protocol):
    """A ``Stream``, ``StreamDataset`` or ``MapDataset``."""

    def stats(self) -> Stats: ...


class Recorder:
    """Records one rank of a run.

    >>> recorder = stoker.data.Recorder(dataset, store=store, job="run-7", workers=8)
    >>> for batch in recorder(loader):  # any iterable of batches over the dataset
    ...     train(batch)
    >>> recorder.save("run-7.json")  # for `stoker explain slow run-7.json`

    It looks at the clock twice for a batch and asks the node for its counters twice in all. Numbers of the node are of all its clients;
    what nobody measured stays zero. ``drives`` and ``network_rate`` (bytes per second of the node's ports) are what the node has; what a drive
    does when it is sound comes with ``stoker explain slow --calibration``.
    """

    def __init__(
        self,
        dataset: Counts | None = None,
        *,
        store: Store | None = None,
        job: str = "",
        workers: int = 0,
        drives: int = 1,
        network_rate: float = 0.0,
        metadata_capacity: float = 0.0,
    ) -> None:
        if workers < 0 or drives < 1 or network_rate < 0 or metadata_capacity < 0:
            raise ValueError("workers, rates and capacities are not negative, and a node has at least one drive")
        self._dataset, self._store = dataset, store
        self._given = {"job": job, "workers": workers, "drives": drives}
        self._given |= {"network_rate": network_rate, "metadata_capacity": metadata_capacity}
        self._began: float | None = None
        self._ended = self._waited = 0.0
        self._batches = 0
        self._stats: list[Stats] = []
        self._first: dict[str, float] = {}
        self._now: dict[str, float] = {}
        self._before: Stats | None = None

    def __call__(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; what lies between them is compute, the rest is waiting."""
        if self._began is None:
            self._first = self._counters()
            self._before = self._dataset.stats() if self._dataset is not None else None
            self._began = time.monotonic()
        asked = time.monotonic()
        iterator = iter(batches)
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                finally:
                    self._ended = time.monotonic()
                    self._waited += self._ended - asked
                self._batches += 1
                yield batch
                asked = time.monotonic()
                self._ended = asked
        finally:
            self._now = self._counters()

    def add(self, stats: Stats) -> None:
        """What a loader in another process counted, if it shares no numbers with this one."""
        self._stats.append(stats)

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._store is not None:
            for row in json.loads(self._store._client.counters()):
                found[row["name"]] = found.get(row["name"], 0.0) + float(row["value"])
        return found

    def _grew(self, names: tuple[str, ...]) -> float:
        return sum(max(0.0, self._now.get(name, 0.0) - self._first.get(name, 0.0)) for name in names)

    def record(self) -> dict[str, Any]:
        """The document."""
        if self._began is None:
            raise ValueError("nothing was recorded: iterate over recorder(loader)")
        elapsed = self._ended - self._began
        record: dict[str, Any] = {"form": FORM, **self._given, "elapsed_s": elapsed, "waited_s": min(self._waited, elapsed)}
        record |= {"batches": self._batches, "cores": len(os.sched_getaffinity(0))}
        if self._dataset is not None and self._before is not None:
            record |= _sums([self._dataset.stats()], self._before)
        if self._stats:
            record |= _sums(self._stats, None)
        record["lake_bytes"] = self._grew(_LAKE)
        record["metadata_per_s"] = self._grew(_CATALOG) / elapsed if elapsed > 0 else 0.0
        is_local = self._store is not None and self._store.endpoint.startswith("unix:")
        # Who is not on the node's machine gets every byte through a port of it.
        record["network_bytes"] = self._grew(_PEERS) + (0.0 if is_local or self._store is None else record.get("read_bytes", 0.0))
        if not is_local:
            record["drive_reads"], record["drive_bytes"] = (self._grew((name,)) for name in _DRIVE)
            # Nobody counts them one by one; while one was under way is the least that they took.
            record["drive_read_s"] = self._grew(("ring_read_busy_seconds_total",))
        return record

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document."""
        Path(path).write_text(json.dumps(self.record(), indent=1) + "\n")


def _sums(after: list[Stats], before: Stats | None) -> dict[str, float]:
    def of(name: str) -> float:
        return float(sum(getattr(one, name) for one in after) - (getattr(before, name) if before is not None else 0))

    names = ("samples", "bytes", "reads", "read_bytes", "read_s", "decode_s", "opens", "open_s")
    return {name: of(name) for name in names} | {"bytes_waited_s": of("waited_s")}
