"""``python -m stoker.bench loader``: samples from a directory of files, from tar shards, from a mount and from a seal."""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from . import loading, raw
from .ground import Cold, parse_size, say, scratch
from .node import Mount, Node, Unavailable, catalog_ops, counters
from .report import Bar, Report, Workload, forth_and_back
from .samples import Data, Scale, make

VOLUME = "bench"
NODE_MEMORY = 1 << 30
#: Samples that stay together in the block shuffle make so many bytes.
BLOCK_BYTES = 4 << 20
#: Operations of the catalog for a sample that count as none.
CATALOG_OPS_MAX = 0.001
#: What the node asks its catalog for itself differs from epoch to epoch by so many, at most.
OWN_OPS_MAX = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", type=int, default=100_000, metavar="N", help="small samples (default 100000)")
    parser.add_argument("--small-size", type=parse_size, default=16 << 10, metavar="SIZE", help="their size (default 16KiB)")
    parser.add_argument("--large", type=int, default=4_000, metavar="N", help="large samples (default 4000)")
    parser.add_argument("--large-size", type=parse_size, default=1 << 20, metavar="SIZE", help="their size (default 1MiB)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="workers of a DataLoader (default 8)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="epochs of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, one round")


def _scale(name: str, count: int, size: int) -> Scale:
    batch = 64 if size <= 64 << 10 else 8
    return Scale(name, count, size, batch, buffer=1000 if batch == 64 else 64, block=max(1, BLOCK_BYTES // size))


def run(args: argparse.Namespace) -> Report:
    small, large, rounds = args.small, args.large, args.rounds
    if args.quick:
        small, large, rounds = max(1, small // 10), max(1, large // 10), 1
    scales = [_scale("small", small, args.small_size), _scale("large", large, args.large_size)]
    scales = [scale for scale in scales if scale.count]
    whole = sum(scale.bytes for scale in scales)
    ring = args.ring or 2 * whole + (2 << 30)
    report = Report("loader")
    # That there are more workers than cores is what was asked for.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    with scratch(args.dir, ring + 3 * whole) as folder, Node(folder / "node", ring=ring, memory=NODE_MEMORY) as node:
        node.volume(VOLUME)
        cold = Cold()
        for scale in scales:
            data = make(scale, folder, node.store(), VOLUME)
            _Field(data, node, folder / "mount", cold, args.workers, rounds).run(report)
        report.machine |= {"cold": f"{cold.words}; the node is started anew", "workers": args.workers}
        report.machine |= {"data": "; ".join(str(scale) for scale in scales)}
    return report


@dataclass
class _Field:
    """All sides over the same data."""

    data: Data
    node: Node
    point: Path
    cold: Cold
    workers: int
    rounds: int
    #: Catalog operations in a first epoch of the block shuffle, which opens seal and shards, and in the second one.
    asked: list[list[float | None]] = field(default_factory=list)

    def sides(self) -> dict[str, Callable[[], float]]:
        """Names of the sides, and what runs one of them and returns its seconds."""
        data, workers = self.data, self.workers
        sides: dict[str, Callable[[], float]] = {}
        sides["raw_read"] = lambda: raw.read_files(data.shards)
        for count in dict.fromkeys((workers, 0)):
            sides[f"per_file_{count}"] = partial(self._per_file, count)
        for count in dict.fromkeys((workers, 0)):
            sides[f"webdataset_{count}"] = partial(self._webdataset, count)
        for count in dict.fromkeys((workers, 0)):
            sides[f"fuse_webdataset_{count}"] = partial(self._fuse, count)
        sides["fuse_plain_reads"] = partial(self._fuse, None)
        sides["native_block"] = self._native_block
        sides["native_single"] = partial(self._native, 1)
        sides[f"native_block_workers_{workers}"] = self._native_workers
        return sides

    def run(self, report: Report) -> None:
        scale, rows = self.data.scale, {}
        for side, go in self.sides().items():
            rows[side] = Workload(f"{scale.name}_{side}", "mb_s", bars=self._bars(side)), go

        def one_round(row: Workload, go: Callable[[], float]) -> None:
            if row.skipped:
                return
            say(f"{row.name}, round {len(row.figures) + 1} of {self.rounds}")
            self.cold.drop(self.data.tree, self.data.tree.parent / f"{scale.name}-shards")
            try:
                seconds = go()
            except Unavailable as why:
                row.skipped = str(why)
                return
            row.figures.append(scale.bytes / seconds / 1e6)

        forth_and_back(self.rounds, [partial(one_round, row, go) for row, go in rows.values()])
        for row, _ in rows.values():
            if row.figures:
                row.more["samples_s"] = row.figure * 1e6 / scale.size
            report.add(row)
        report.add(self._asked())

    def _bars(self, side: str) -> list[Bar]:
        name, workers = self.data.scale.name, self.workers
        if not side.startswith("native"):
            return [] if side == "raw_read" else [Bar(f"{name}_raw_read")]
        judged = name == "small" and "workers" not in side
        wanted = {"raw_read": 0.8} | {f"per_file_{count}": 10.0 for count in (workers, 0)}
        wanted |= {f"webdataset_{count}": 1.5 for count in (workers, 0)}
        wanted |= {f"fuse_webdataset_{count}": 1.4 for count in (workers, 0)}
        return [Bar(f"{name}_{to}", limit=limit if judged else None) for to, limit in wanted.items()]

    # Sides

    def _timed(self, work: Callable[[], object]) -> float:
        start = time.monotonic()
        work()
        return time.monotonic() - start

    def _per_file(self, workers: int) -> float:
        return self._timed(lambda: loading.per_file(self.data, workers))

    def _webdataset(self, workers: int) -> float:
        return self._timed(lambda: loading.webdataset(self.data, self.data.shards, workers))

    def _fuse(self, workers: int | None) -> float:
        data = self.data
        self.node.restart()
        with Mount(self.node, VOLUME, self.point) as point:
            shards = [point / key for key in data.keys]
            if workers is None:
                return self._timed(lambda: loading.plain_reads(shards))
            return self._timed(lambda: loading.webdataset(data, shards, workers))

    def _native(self, block: int) -> float:
        self.node.restart()
        store = self.node.store()
        return self._timed(lambda: loading.native(self.data, store, block))

    def _native_block(self) -> float:
        self.node.restart()
        store = self.node.store()
        looks = [counters(store)]
        epochs = loading.native_epochs(self.data, store, self.data.scale.block)
        seconds = self._timed(lambda: next(epochs))
        looks.append(counters(store))
        begun = time.perf_counter()
        next(epochs)
        second = time.perf_counter() - begun
        looks.append(counters(store))
        # For as long with nothing to do: what the node asks for itself.
        time.sleep(second)
        looks.append(counters(store))
        self.asked.append([catalog_ops(before, after) for before, after in itertools.pairwise(looks)])
        return seconds

    def _native_workers(self) -> float:
        self.node.restart()
        store = self.node.store()
        return self._timed(lambda: loading.native_workers(self.data, store, self.data.scale.block, self.workers))

    def _asked(self) -> Workload:
        """What an epoch asks the catalog once seal and shards are open, without what the node asks for itself in the same time."""
        row = Workload(f"{self.data.scale.name}_native_catalog", "ops_per_sample")
        limit = max(CATALOG_OPS_MAX, OWN_OPS_MAX / self.data.scale.count)
        row.bars = [Bar(None, "at most", limit, "none for each sample")]
        counts = [max(0.0, second - own) for _, second, own in self.asked if second is not None and own is not None]
        row.figures = [ops / self.data.scale.count for ops in counts]
        if not counts:
            row.skipped = "the node has no counters of the catalog's operations"
        if self.asked:
            first, second, own = self.asked[0]
            row.more = {"first_epoch_ops": first, "second_epoch_ops": second, "idle_ops": own}
            row.more |= {"shards": len(self.data.shards), "samples": self.data.scale.count}
        return row
