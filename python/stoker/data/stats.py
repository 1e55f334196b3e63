"""What loading costs: samples and bytes per second, and how long the loop had to wait.

Numbers are kept in rows, one for each worker of a rank, so that nobody needs a lock; the rows may lie in memory that the
workers share with the process that started them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = (
    *("samples", "bytes", "batches", "skipped", "reads", "read_bytes", "opens"),
    *("waited_s", "decode_s", "open_s", "read_s", "started_s", "ended_s"),
)
#: Workers with a number above this share rows.
ROWS = 256

_AT = {name: number for number, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Stats:
    """Sums over the workers of a rank since the dataset was made."""

    #: Samples that were handed out, and their bytes before they were decoded.
    samples: int
    bytes: int
    batches: int
    #: Bad samples that were passed over.
    skipped: int
    #: Reads that were made, and their bytes: neighbours are read together, with what lies between them.
    reads: int
    read_bytes: int
    #: Time that was spent waiting for bytes, and in the decode hook; of all workers together.
    waited_s: float
    decode_s: float
    #: Files that were opened.
    opens: int
    #: Time of opens and of reads, one by one: as many are under way at once as there are threads.
    open_s: float
    read_s: float
    #: From the first sample that was asked for to the last one that was given.
    elapsed_s: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.samples} samples, {self.samples_per_s:.0f}/s, {self.bytes_per_s / 1e6:.1f} MB/s, "
            f"waited {self.waited_s:.2f} s, {self.skipped} skipped"
        )


class Tally:
    """The row of one worker. ``row`` is anything with numbers that can be set: a list, a tensor."""

    def __init__(self, row: Any = None) -> None:
        self.row = [0.0] * len(COLUMNS) if row is None else row

    def add(self, column: str, amount: float) -> None:
        self.row[_AT[column]] += amount

    def spent(self, before: tuple[int, float, int, float], after: tuple[int, float, int, float]) -> None:
        """Files were opened and read."""
        self.row[_AT["opens"]] += after[0] - before[0]
        self.row[_AT["open_s"]] += after[1] - before[1]
        self.row[_AT["read_s"]] += after[3] - before[3]

    def begin(self) -> None:
        """Time runs from the first call."""
        if not float(self.row[_AT["started_s"]]):
            self.row[_AT["started_s"]] = time.monotonic()

    def gave(self, samples: int, size: int, waited_s: float, decode_s: float) -> None:
        """Something was handed out."""
        row = self.row
        row[_AT["samples"]] += samples
        row[_AT["bytes"]] += size
        row[_AT["batches"]] += 1
        row[_AT["waited_s"]] += waited_s
        row[_AT["decode_s"]] += decode_s
        row[_AT["ended_s"]] = time.monotonic()


def stats_of(rows: Sequence[Any]) -> Stats:
    """The sum of some rows."""
    sums = [0.0] * len(COLUMNS)
    started, ended = [], []
    for row in rows:
        numbers = [float(one) for one in row]
        sums = [a + b for a, b in zip(sums, numbers)]
        if numbers[_AT["ended_s"]]:
            started.append(numbers[_AT["started_s"]])
            ended.append(numbers[_AT["ended_s"]])
    elapsed = max(ended) - min(started) if ended else 0.0
    samples, size, batches, skipped, reads, read_bytes, opens = (int(sums[_AT[name]]) for name in COLUMNS[:7])
    waited, decoding, opening, reading = (sums[_AT[name]] for name in COLUMNS[7:11])
    return Stats(samples, size, batches, skipped, reads, read_bytes, waited, decoding, opens, opening, reading, elapsed)
