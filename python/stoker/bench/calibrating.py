"""One calibration run: a few short loaders, checkpoints and reads, from which the planner's constants follow."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from .measuring import CHECKPOINT_LARGE, CHECKPOINT_SMALL, LARGE, READ_LARGE, READ_SMALL, SMALL, Checkpoint, Ground, Loader, Read

#: Workers of the runs that show how far workers scale.
MANY = 4
#: Reads that a loader has under way at once, as the model has it.
AHEAD = 16


def document(values: dict[str, tuple[float, str]]) -> dict[str, Any]:
    """As `stoker plan --calibration` takes it."""
    told = {name: {"value": value, "from": origin} for name, (value, origin) in values.items()}
    return {"form": 1, "at_ms": int(time.time() * 1000), "machine": os.uname().nodename, "values": told}


class Bare:
    """What the drive does for loaders when it is sound: large reads, small ones, and one alone."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.large = Loader(ground, workers=2, sample_size=LARGE, pattern="blocks", state="drive")
        self.small = Loader(ground, workers=2, sample_size=4 << 10, pattern="samples", state="drive")
        self.read = Read(ground, size=READ_SMALL, state="drive")

    def run(self) -> dict[str, Any]:
        """The document."""
        return document(
            {
                "drive_read": (statistics.median(self.large.run()) * LARGE, "loader, blocks"),
                "drive_iops": (statistics.median(self.small.run()), "loader, single samples"),
                "drive_latency": (statistics.median(self.read.run()), "reads of 4 KiB, one by one"),
            }
        )


class Calibrating:
    """All constants of the loader's model, of checkpoints and of reads."""

    def __init__(self, ground: Ground) -> None:
        def loader(state: str, pattern: str, size: int, workers: int = 1) -> Loader:
            return Loader(ground, workers=workers, sample_size=size, pattern=pattern, state=state)

        runs = [("drive", pattern, size, workers) for pattern in ("blocks", "samples") for size in (SMALL, LARGE) for workers in (1, MANY)]
        runs += [("memory", "blocks", size, workers) for size in (SMALL, LARGE) for workers in (1, MANY)]
        runs += [("memory", "samples", SMALL, 1), ("drive", "files", SMALL, 1), ("drive", "files", SMALL, MANY)]
        runs += [("lake", "blocks", SMALL, 1), ("lake", "blocks", LARGE, 1), ("lake", "blocks", LARGE, MANY)]
        self.ground = ground
        self.loaders = {run: loader(*run) for run in runs}
        self.reads = {(state, size): Read(ground, size=size, state=state) for state in ("drive", "memory", "lake") for size in (READ_SMALL, READ_LARGE)}
        self.saves = {
            (size, shards): Checkpoint(ground, size=size, shards=shards)
            for size, shards in ((CHECKPOINT_SMALL, 1), (CHECKPOINT_SMALL, 8), (CHECKPOINT_LARGE, 1), (CHECKPOINT_LARGE, 8))
        }

    def measure(self) -> dict[str, float]:
        """Seconds of a sample, of a read, of a checkpoint: the middle of the rounds."""
        found = {}
        for (state, pattern, size, workers), loader in self.loaders.items():
            found[f"{state} {pattern} {size} {workers}"] = 1 / statistics.median(loader.run())
        for (state, size), read in self.reads.items():
            found[f"read {state} {size}"] = statistics.median(read.run())
        for (size, shards), save in self.saves.items():
            found[f"save {size} {shards}"] = statistics.median(save.run())
        return found

    def run(self) -> dict[str, Any]:
        """The document."""
        seen = self.measure()
        self.ground.lake_rate = LARGE / min(seen[f"lake blocks {LARGE} {workers}"] for workers in (1, MANY))
        return fitted(seen, len(os.sched_getaffinity(0)))


def fitted(seen: dict[str, float], cores: int) -> dict[str, Any]:
    """Constants of what was measured: the models turned around."""
    values: dict[str, tuple[float, str]] = {}

    def put(name: str, value: float, origin: str, least: float = 1e-7) -> None:
        values[name] = (max(value, least), origin)

    def line(small: float, large: float, sizes: tuple[int, int]) -> tuple[float, float]:
        """What nothing costs, and bytes per second."""
        slope = max((large - small) / (sizes[1] - sizes[0]), 1e-13)
        return max(small - sizes[0] * slope, 1e-8), 1 / slope

    def loader(state: str, pattern: str, size: int, workers: int = 1) -> float:
        return seen[f"{state} {pattern} {size} {workers}"]

    for state, rate, latency in (("drive", "read_rate", "drive_latency"), ("memory", "cache_read_rate", "cache_latency"), ("lake", "lake_read_rate", "lake_latency")):
        nothing, bytes_per_s = line(seen[f"read {state} {READ_SMALL}"], seen[f"read {state} {READ_LARGE}"], (READ_SMALL, READ_LARGE))
        put(latency, nothing, "reads of 4 KiB and 4 MiB, one by one")
        put(rate, bytes_per_s, "reads of 4 KiB and 4 MiB, one by one")
    sizes = (SMALL, LARGE)
    each, rate = line(loader("drive", "blocks", SMALL), loader("drive", "blocks", LARGE), sizes)
    put("sample_overhead", each, "loader, blocks of small samples", 1e-8)
    put("stream_rate", rate, "loader, blocks of large samples")
    _, rate = line(loader("memory", "blocks", SMALL), loader("memory", "blocks", LARGE), sizes)
    put("cache_rate", rate, "loader, out of the node's memory")
    ahead = values["drive_latency"][0] / AHEAD
    put("read_overhead", loader("drive", "samples", SMALL) - loader("drive", "blocks", SMALL) - ahead, "loader, single samples")
    put("cache_overhead", loader("memory", "samples", SMALL) - loader("memory", "blocks", SMALL), "loader, single samples out of memory")
    # What scales is what one run with many workers leaves of the time of one worker, by the cores that there are.
    for name, runs in (("worker_cores", [("drive", pattern, size) for pattern in ("blocks", "samples") for size in sizes]), ("cache_cores", [("memory", "blocks", size) for size in sizes])):
        ratios = [cores * loader(*run, MANY) / loader(*run) for run in runs]
        put(name, statistics.geometric_mean(ratios), f"loader, {MANY} workers by 1")
    fastest = min(loader("drive", pattern, LARGE, workers) for pattern in ("blocks", "samples") for workers in (1, MANY))
    put("drive_read", LARGE / fastest, "loader, the most that came")
    put("read_efficiency", 1.0, "the same")
    put("drive_iops", 1 / min(loader("drive", "samples", SMALL, workers) for workers in (1, MANY)), "loader, the most that came")
    _, rate = line(loader("lake", "blocks", SMALL), loader("lake", "blocks", LARGE), sizes)
    put("lake_stream_rate", rate, "loader, out of the lake")
    files = loader("drive", "files", SMALL) - loader("drive", "samples", SMALL)
    put("open_time", files, "loader, a file for each sample")
    # Opening a file is three operations for the model.
    put("metadata_rate", 3 / loader("drive", "files", SMALL, MANY), f"loader, a file for each sample, {MANY} workers")
    checkpoints(seen, put)
    return document(values)


def checkpoints(seen: dict[str, float], put: Any) -> None:
    """The same for checkpoints: bytes of one writer and of many, what a shard adds, what the set costs."""

    def save(size: int, shards: int) -> float:
        return seen[f"save {size} {shards}"]

    def rate(shards: int) -> float:
        more = max(save(CHECKPOINT_LARGE, shards) - save(CHECKPOINT_SMALL, shards), 1e-6)
        return (CHECKPOINT_LARGE - CHECKPOINT_SMALL) / more

    def rest(shards: int) -> float:
        return save(CHECKPOINT_SMALL, shards) - CHECKPOINT_SMALL / rate(shards)

    put("shard_rate", rate(1), "checkpoints of one shard")
    put("drive_write", rate(8), "checkpoints of eight shards")
    put("write_efficiency", 1.0, "the same")
    shard = max(0.0, (rest(8) - rest(1)) / 7)
    put("shard_overhead", shard, "checkpoints of one shard and of eight", 0.0)
    put("checkpoint_overhead", rest(1) - shard, "checkpoints of one shard", 0.0)
