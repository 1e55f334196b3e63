"""What the planner is measured against: real loaders, checkpoints and reads over one node, short enough to be repeated."""

from __future__ import annotations

import io
import itertools
import os
import random
import statistics
import subprocess
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import stoker
import stoker.data

from .node import Node
from .workers import Config, Workers

#: Where bytes are when a run begins: on a drive that the loader reads itself, in the node's memory, or in the lake alone.
STATES = ("drive", "memory", "lake")
#: How samples are kept and read, as the planner names it, in each state.
PATTERNS = {"drive": ("blocks", "samples", "shards", "files"), "memory": ("blocks", "samples"), "lake": ("blocks", "shards")}
#: Options of the volume of each state. Who may not read the drive itself asks the node, which has what was read twice in memory.
VOLUMES = {"drive": ("--drain", "on-demand", "--leases", "true"), "memory": ("--drain", "on-demand", "--leases", "false"), "lake": ("--leases", "false")}
BATCH = 64
BLOCK_BYTES = 4 << 20
#: Bytes and samples of one run at most.
RUN_BYTES = {"drive": 64 << 20, "memory": 48 << 20, "lake": 16 << 20}
RUN_SAMPLES = {"drive": 6_000, "memory": 6_000, "lake": 2_000}
FILES_MAX = 1_000
#: Where the two sizes of a calibration lie.
SMALL, LARGE = 8 << 10, 512 << 10
READ_SMALL, READ_LARGE = 4 << 10, 4 << 20
CHECKPOINT_SMALL, CHECKPOINT_LARGE = 8 << 20, 192 << 20


class Ground:
    """One node with data in every state. Everything that will be read is named first; ``settle`` makes it."""

    def __init__(self, node: Node, folder: Path, rounds: int) -> None:
        self.node, self.folder, self.rounds = node, folder, rounds
        self._wanted: dict[tuple[str, str, int], list[str]] = {}
        self._numbers = itertools.count()
        #: Bytes per second of the lake for all readers, once it was measured.
        self.lake_rate = 1e12
        for state, options in VOLUMES.items():
            node.run("volume", "create", state, "--class", "one", *options)
        node.run("volume", "create", "ckpt", "--class", "one", "--drain", "on-demand")

    def want(self, state: str, shape: str, size: int, copies: int = 1) -> list[str]:
        """Paths of data in a state: a packed dataset of samples, files, or one file of a size."""
        places = self._wanted.setdefault((state, shape, size), [])
        # What is in the lake alone is so once.
        missing = copies if state == "lake" else max(0, 1 - len(places))
        made = [f"{state}/{shape}-{next(self._numbers):05}" for _ in range(missing)]
        places += made
        return made if state == "lake" else places[:1]

    def settle(self) -> None:
        """Makes all data: first what is to be in the lake alone, and after it left the drives the rest."""
        for (state, shape, size), places in self._wanted.items():
            if state == "lake":
                for place in places:
                    self._make(state, shape, size, place)
        if any(state == "lake" for state, _, _ in self._wanted):
            self._clear_drives()
        for (state, shape, size), places in self._wanted.items():
            if state != "lake":
                for place in places:
                    self._make(state, shape, size, place)

    def _make(self, state: str, shape: str, size: int, place: str) -> None:
        store = self.node.store()
        if shape == "file":
            store.write(place, random.Random(size).randbytes(size if state == "lake" else max(size, 64 << 20)))
            return
        count = samples_of(state, shape, size)
        pool = random.Random(7).randbytes(2 * size + (1 << 20))
        chance = random.Random(place)

        def sample() -> bytes:
            start = chance.randrange(len(pool) - size)
            return pool[start : start + size]

        if shape == "files":
            with ThreadPoolExecutor(16) as threads:
                list(threads.map(lambda number: store.write(f"{place}/{number:06}.bin", sample()), range(count)))
            return
        whole = io.BytesIO()
        with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(count):
                member = tarfile.TarInfo(f"{number:06}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(sample()))
        store.write(f"{place}.tar", whole.getbuffer())
        self.node.run("seal", f"{place}.tar", "--to", f"{place}.seal")

    def _clear_drives(self) -> None:
        """What is in the lake stays there alone: the drive is lost, and a new one takes its place."""
        self.node.run("drain", "lake/", "--wait")
        self.node.stop()
        ring = self.node.dir / "ring"
        subprocess.run(["rm", "-rf", str(ring)], check=True)
        self.node.start("--new-drive", str(ring))
        self.node.wait_prepared()


def samples_of(state: str, shape: str, size: int) -> int:
    """Samples of one run."""
    most = FILES_MAX if shape == "files" else RUN_SAMPLES[state]
    return max(2 * BATCH, min(most, RUN_BYTES[state] // size))


class Loader:
    """A loader without a training loop: samples per second."""

    def __init__(self, ground: Ground, *, workers: int, sample_size: int, pattern: str, state: str) -> None:
        self.workers, self.size, self.pattern, self.state = workers, sample_size, pattern, state
        self.shape = "files" if pattern == "files" else "packed"
        self.ground = ground
        # One run more than are counted: the first one pays for memory and connections.
        self.places = ground.want(state, self.shape, sample_size, ground.rounds + 1)
        self._left: list[str] = []

    def inputs(self) -> dict[str, Any]:
        """For `stoker plan io`: steps that compute nothing, so that samples come as fast as they can."""
        return {
            "gpus": 1,
            "gpus_per_node": 1,
            "workers": self.workers,
            "sample_size": self.size,
            "batch": BATCH,
            "step_time": 1e-6,
            "pattern": self.pattern,
            "cached": 1.0 if self.state == "memory" else 0.0,
            "cold": 1.0 if self.state == "lake" else 0.0,
            "drives": 1,
            "rail_rate": 1e12,
            "lake_rate": self.ground.lake_rate,
            "cores": len(os.sched_getaffinity(0)),
        }

    def run(self) -> list[float]:
        """Samples per second of each round."""
        if self.state == "lake":
            return [self._epochs(place, 1)[0] for place in self.places[1:]]
        # Memory has what was read twice.
        warm = 3 if self.state == "memory" else 1
        return self._epochs(self.places[0], self.ground.rounds + warm)[warm:]

    def _epochs(self, place: str, count: int) -> list[float]:
        dir, shape = self.ground.node.dir, self.shape

        def source() -> stoker.data.Source:
            store = stoker.connect(dir=dir)
            return stoker.data.open_files(f"{place}/", store=store) if shape == "files" else stoker.data.open_seal(f"{place}.seal", store=store)

        block = {"samples": 1, "files": 1, "shards": 0}.get(self.pattern, max(1, BLOCK_BYTES // self.size))
        with Workers(source, Config(self.workers, BATCH, block)) as workers:
            return [workers.epoch(number).samples_per_s for number in range(count)]


class Checkpoint:
    """A checkpoint set of some shards, written side by side: seconds from its begin to its publish."""

    def __init__(self, ground: Ground, *, size: int, shards: int) -> None:
        self.ground, self.size, self.shards = ground, size, shards

    def inputs(self) -> dict[str, Any]:
        """For `stoker plan design`."""
        return {
            "nodes": 1,
            "drives": 1,
            "class": "one",
            "checkpoint_size": self.size,
            "checkpoint_shards": self.shards,
            "rail_rate": 1e12,
        }

    def run(self) -> list[float]:
        """Seconds of each round."""
        part = random.Random(self.size).randbytes(self.size // self.shards)
        return [self._once(part, number) for number in range(self.ground.rounds + 1)][1:]

    def _once(self, part: bytes, number: int) -> float:
        store, path = self.ground.node.store(), f"ckpt/{self.size}-{self.shards}-{number}"
        faults: list[BaseException] = []
        began = time.monotonic()
        made = store.begin_set(path, shards=self.shards)

        def write(shard: int) -> None:
            try:
                made.write(shard, part)
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=write, args=(shard,)) for shard in range(self.shards)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        made.publish()
        took = time.monotonic() - began
        store.remove(*(one.path for one in store.list(path, recursive=True)))
        return took


class Read:
    """One read of an open file while nothing else is asked for: seconds."""

    #: Reads of a round.
    COUNT = 20

    def __init__(self, ground: Ground, *, size: int, state: str) -> None:
        self.ground, self.size, self.state = ground, size, state
        self.places = ground.want(state, "file", size, 3 * ground.rounds)

    def inputs(self) -> dict[str, Any]:
        """For `stoker plan io`."""
        return {
            "sample_size": self.size,
            "cached": 1.0 if self.state == "memory" else 0.0,
            "cold": 1.0 if self.state == "lake" else 0.0,
        }

    def run(self) -> list[float]:
        """The median latency of each round."""
        store, buffer = self.ground.node.store(), bytearray(self.size)

        def timed(path: str, offset: int) -> float:
            volume, _, key = path.partition("/")
            file = store._client.open(volume, key.encode())
            began = time.monotonic()
            file.read_into(buffer, offset)
            return time.monotonic() - began

        if self.state == "lake":
            each = [timed(place, 0) for place in self.places]
            return [statistics.median(each[at : at + 3]) for at in range(0, len(each), 3)]
        volume, _, key = self.places[0].partition("/")
        file = store._client.open(volume, key.encode())
        chance = random.Random(7)
        steps = (file.size - self.size) // 4096
        # A few places, each twice before it counts where memory has what was read twice.
        offsets = [chance.randint(0, steps) * 4096 for _ in range(self.COUNT)]
        rounds = []
        for number in range(self.ground.rounds + 3):
            each = []
            for offset in offsets:
                began = time.monotonic()
                file.read_into(buffer, offset)
                each.append(time.monotonic() - began)
            if number >= 3:
                rounds.append(statistics.median(each))
        return rounds
