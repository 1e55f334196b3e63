"""``python -m stoker.bench kv``: blocks of a KV cache from `stoker.kv`, from plain files and from LMCache's local disk."""

from __future__ import annotations

import argparse
import hashlib
import mmap
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from . import raw
from .ground import Cold, human, parse_size, say, scratch
from .kv_cache import Cache, Files, Ours
from .lmcache_disk import LMCacheDisk
from .node import Node, Unavailable
from .report import Bar, Report, Workload, forth_and_back

VOLUME = "blocks"
NODE_MEMORY = 1 << 30
EXISTS_KEYS = 256
EXISTS_US_MAX = 100.0
EXISTS_CALLS = 200
GET_MIN = 0.9
#: The size whose reads are judged.
JUDGED = 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    sizes = [256 << 10, 1 << 20]
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=sizes, metavar="SIZE", help="of blocks (256KiB 1MiB)")
    parser.add_argument("--bytes", type=parse_size, default=2 << 30, metavar="SIZE", help="of all blocks of a size (default 2GiB)")
    parser.add_argument("--depth", type=int, default=16, metavar="N", help="blocks asked for at once (default 16)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each side (default 5)")
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, two rounds")


def run(args: argparse.Namespace) -> Report:
    whole, rounds = (args.bytes // 8, 2) if args.quick else (args.bytes, args.rounds)
    report, cold = Report("kv"), Cold()
    ring = args.ring or 3 * whole * len(args.sizes) + (2 << 30)
    with scratch(args.dir, ring + 4 * whole) as folder, Node(folder / "node", ring=ring, memory=NODE_MEMORY) as node:
        node.volume(VOLUME)
        for size in args.sizes:
            count = max(EXISTS_KEYS, whole // size)
            _Blocks(report, node, folder, cold, size, count, args.depth, rounds).run()
    report.machine |= {"cold": f"{cold.words}; the node is started anew", "depth": args.depth}
    return report


class _Blocks:
    """All sides, for one size of blocks."""

    def __init__(
        self, report: Report, node: Node, folder: Path, cold: Cold, size: int, count: int, depth: int, rounds: int
    ) -> None:
        self.report, self.node, self.cold = report, node, cold
        self.size, self.count, self.depth, self.rounds = size, count, depth, rounds
        self.name = human(size).replace(" ", "").lower()
        self.folder = folder / self.name
        self.folder.mkdir()
        self.keys = [hashlib.blake2b(f"{size} {number}".encode(), digest_size=16).digest() for number in range(count)]
        self._kept: LMCacheDisk | None = None
        # Page-aligned, as engines have it.
        self.memory = memoryview(mmap.mmap(-1, size * depth))
        self.slots = [self.memory[start * size : (start + 1) * size] for start in range(depth)]

    def sides(self) -> dict[str, Callable[[], Cache]]:
        def ours() -> Cache:
            self.node.restart()
            return Ours(self.node.store(), f"{VOLUME}/bench-{self.name}", 2 * self.size * self.count)

        return {
            "stoker": ours,
            "files": lambda: Files(self.folder / "files", self.depth),
            "lmcache_disk": self._lmcache,
        }

    def _lmcache(self) -> Cache:
        if self._kept is None:
            self._kept = LMCacheDisk(self.folder / "lmcache", self.size, 2 * self.size * self.count, self.depth)
        return self._kept

    def run(self) -> None:
        raw_file = self.folder / "raw"
        raw.write_file(raw_file, self.size * self.count)
        read = Workload(f"{self.name}_raw_read", "mb_s")
        rows = {side: self._rows(side) for side in self.sides()}

        def raw_round() -> None:
            say(f"{read.name}, round {len(read.figures) + 1} of {self.rounds}")
            places = [number * self.size for number in self._order(len(read.figures))]
            seconds = raw.read_places(raw_file, places, self.size, depth=self.depth)
            read.figures.append(self.size * self.count / seconds / 1e6)

        def side_round(side: str) -> None:
            put, get, exists = rows[side]
            if put.skipped:
                return
            say(f"{self.name}_{side}, round {len(get.figures) + 1} of {self.rounds}")
            try:
                self._round(self.sides()[side], put, get, exists)
            except Unavailable as why:
                put.skipped = get.skipped = exists.skipped = str(why)

        forth_and_back(self.rounds, [raw_round, *(partial(side_round, side) for side in rows)])
        if self._kept is not None:
            self._kept.end()
        for row in (read, *(row for found in rows.values() for row in found)):
            self.report.add(row)

    def _rows(self, side: str) -> tuple[Workload, Workload, Workload]:
        put = Workload(f"{self.name}_{side}_put", "mb_s")
        limit = GET_MIN if side == "stoker" and self.size == JUDGED else None
        others = [Bar(f"{self.name}_{one}_get") for one in ("files", "lmcache_disk") if side == "stoker"]
        get = Workload(f"{self.name}_{side}_get", "mb_s", bars=[Bar(f"{self.name}_raw_read", limit=limit), *others])
        exists = Workload(f"{self.name}_{side}_exists_{EXISTS_KEYS}", "us")
        if side == "stoker":
            exists.bars = [Bar(None, "at most", EXISTS_US_MAX, f"{EXISTS_KEYS} keys in one call")]
        return put, get, exists

    def _order(self, seed: int) -> list[int]:
        order = list(range(self.count))
        random.Random(seed).shuffle(order)
        return order

    def _round(self, make: Callable[[], Cache], put: Workload, get: Workload, exists: Workload) -> None:
        rate = self.size * self.count / 1e6
        if not put.figures:
            # Written once: a block of a cache does not change under its key.
            cache = make()
            try:
                put.figures.append(rate / self._put(cache))
            finally:
                cache.close()
        cache = make()
        try:
            self.cold.drop(self.folder)
            get.figures.append(rate / self._get(cache, self._order(len(get.figures))))
            exists.figures.append(self._exists(cache))
        finally:
            cache.close()

    def _batches(self, order: Sequence[int]) -> list[list[bytes]]:
        return [[self.keys[number] for number in order[at : at + self.depth]] for at in range(0, len(order), self.depth)]

    def _put(self, cache: Cache) -> float:
        self.memory[:] = random.Random(self.size).randbytes(self.memory.nbytes)
        start = time.monotonic()
        for keys in self._batches(range(self.count)):
            cache.put_many(keys, self.slots[: len(keys)])
        return time.monotonic() - start

    def _get(self, cache: Cache, order: Sequence[int]) -> float:
        found, batches = 0, self._batches(order)
        start = time.monotonic()
        for keys in batches:
            found += cache.get_many(keys, self.slots[: len(keys)])
        seconds = time.monotonic() - start
        if found != self.count:
            raise AssertionError(f"{found} of {self.count} blocks were found")
        return seconds

    def _exists(self, cache: Cache) -> float:
        keys, times = self.keys[:EXISTS_KEYS], []
        for _ in range(EXISTS_CALLS):
            start = time.perf_counter()
            found = cache.exists_many(keys)
            times.append((time.perf_counter() - start) * 1e6)
            if found != len(keys):
                raise AssertionError(f"{found} of {len(keys)} keys were found")
        return statistics.median(times)
