"""``python -m stoker.bench gpu``: weights from the drive and from host memory to a GPU, beside what drive and bus can do."""

from __future__ import annotations

import argparse
import gc
import itertools
import mmap
import os
import resource
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import stoker

from .ground import Cold, parse_size, say, scratch
from .loading import need
from .node import Node, Unavailable
from .report import Bar, Report, Workload, forth_and_back

VOLUME = "bench"
NODE_MEMORY = 1 << 30
PIECE = 4 << 20
DEPTHS = (4, 8, 16, 32)
#: As models have them: few large ones, and small ones between.
LARGE = 64 << 20
SMALL = 16 << 10
#: What is copied again and again to know the bus.
BUS = 256 << 20
#: A core for so many bytes each second.
CORE_BYTES_S = 5e9


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("weights",), default="weights", help="what is loaded (default weights)")
    parser.add_argument("--size", type=parse_size, default=12 << 30, metavar="SIZE", help="of the weights (default 12GiB)")
    parser.add_argument("--device", default=None, help="of torch (default: cuda if there is one, else cpu)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="loads of each side (default 3)")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="files of the checkpoint (default 1)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, one round")


def run(args: argparse.Namespace) -> Report:
    torch = need_torch()
    size, rounds = args.size, args.rounds
    if args.quick:
        size, rounds = max(size // 10, 64 << 20), 1
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    ring = args.ring or size + size // 4 + (2 << 30)
    report = Report("gpu")
    with scratch(args.dir, ring + size + (1 << 30)) as folder, Node(folder / "node", ring=ring, memory=NODE_MEMORY) as node:
        node.volume(VOLUME)
        weights = Weights(torch, device, node.store(), folder, size, args.shards)
        cold = Cold()
        try:
            _Field(weights, node, cold, rounds).run(report)
        finally:
            weights.close()
        path, why = stoker.gpu.probe(device)
        report.machine |= {"device": str(device), "path": path, "why": why, "torch": torch.__version__, "cold": cold.words}
        report.machine |= {"weights": f"{weights.size} bytes, {weights.count} tensors, {args.shards} files"}
    return report


def need_torch() -> Any:
    try:
        return need("torch")
    except Unavailable as fault:
        raise ValueError(str(fault)) from None


class Weights:
    """The same checkpoint in the store and as plain files, and sums of what its tensors hold."""

    def __init__(self, torch: Any, device: Any, store: stoker.Store, folder: Path, size: int, shards: int) -> None:
        self.torch, self.device, self.store, self.folder = torch, device, store, folder
        self.sums: dict[str, int] = {}
        self.plain: list[Path] = []
        self.paths: list[str] = []
        self.size = 0
        each = size // max(1, shards)
        for number in range(max(1, shards)):
            say(f"making file {number + 1} of {max(1, shards)}")
            tensors = self._tensors(number, each)
            self.sums |= {name: self._sum(tensor) for name, tensor in tensors.items()}
            self.size += sum(tensor.nbytes for tensor in tensors.values())
            name = f"model-{number + 1:05}-of-{max(1, shards):05}.safetensors"
            self.paths.append(f"{VOLUME}/{name}")
            stoker.safetensors.save_file(tensors, self.paths[-1], store=store)
            del tensors
            self.plain.append(folder / name)
            self._copy(self.paths[-1], self.plain[-1])
        # The host cache of this run alone; it goes with it.
        shared = stoker.gpu.SHARED
        self.cache = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir=shared if os.path.isdir(shared) else folder))
        os.environ["STOKER_GPU_CACHE_DIR"] = str(self.cache)

    @property
    def count(self) -> int:
        return len(self.sums)

    def close(self) -> None:
        self.forget()
        self.cache.rmdir()
        os.environ.pop("STOKER_GPU_CACHE_DIR", None)

    def forget(self) -> None:
        """Empties the host cache."""
        for one in self.cache.iterdir():
            one.unlink()

    def _tensors(self, number: int, size: int) -> dict[str, Any]:
        torch, left = self.torch, size
        made: dict[str, Any] = {}
        random = torch.Generator().manual_seed(number)
        # One that all others are cut from and changed a little: drawing all of it would take minutes.
        ground = torch.randint(-(1 << 62), 1 << 62, (LARGE // 8,), dtype=torch.int64, generator=random)
        for index in itertools.count():
            length = min(left, SMALL if index % 4 == 3 else LARGE)
            if length < 8:
                return made
            one = ground[: length // 8] + index
            made[f"layer.{number}.{index}.weight"] = one.view(torch.bfloat16)
            left -= length // 8 * 8
        raise AssertionError("the loop ends by itself")

    def _sum(self, tensor: Any) -> int:
        # As integers: floats that are not numbers have no sum.
        return int(tensor.reshape(-1).view(self.torch.int64).sum())

    def check(self, found: dict[str, Any]) -> None:
        """What was loaded is what was stored."""
        if found.keys() != self.sums.keys():
            raise AssertionError(f"{len(found)} tensors came, not {len(self.sums)}")
        wrong = [name for name, tensor in found.items() if self._sum(tensor) != self.sums[name]]
        if wrong:
            raise AssertionError(f"{len(wrong)} tensors are wrong, the first is {wrong[0]}")

    def _copy(self, path: str, to: Path) -> None:
        with self.store.open(path, buffering=0) as file, open(to, "wb", buffering=0) as out:
            buffer = mmap.mmap(-1, 64 << 20)
            while count := file.readinto(buffer):
                out.write(memoryview(buffer)[:count])
            os.fsync(out.fileno())

    def sync(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def empty(self, size: int) -> Any:
        return self.torch.empty(size, dtype=self.torch.uint8, device=self.device)


@dataclass
class Row:
    """One side: what it took in each round."""

    figures: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    skipped: str | None = None


class _Field:
    """All sides over the same weights."""

    def __init__(self, weights: Weights, node: Node, cold: Cold, rounds: int) -> None:
        self.weights, self.node, self.cold, self.rounds = weights, node, cold, rounds
        self.rows: dict[str, Row] = {}

    def run(self, report: Report) -> None:
        sides: list[Callable[[], None]] = [
            lambda: self.side("bus", self.bus),
            self.raw,
            lambda: self.side("loader_plain", self.loader_plain, cold=True),
            lambda: self.side("safetensors_cold", self.library, cold=True),
            lambda: self.side("safetensors_warm", self.library),
            lambda: self.side("stoker_cold", self.stoker_cold, cold=True),
            lambda: self.side("stoker_keep", self.stoker_keep, cold=True),
            lambda: self.side("stoker_warm", self.stoker_warm),
        ]
        # Warm follows cold in every round, so the order stays.
        for number in range(self.rounds):
            say(f"round {number + 1} of {self.rounds}")
            forth_and_back(1, sides)
        bars = {
            "stoker_cold": (Bar("raw", "at least", 0.95), Bar("safetensors_cold")),
            "stoker_keep": (Bar("raw"),),
            "stoker_warm": (Bar("bus", "at least", 0.45), Bar("safetensors_warm")),
            "loader_plain": (Bar("raw"),),
        }
        for name, row in self.rows.items():
            more: dict[str, Any] = {}
            if row.cpu:
                more["cpu_s_per_gb"] = min(row.cpu)
                more["cores_per_5_gb_s"] = min(row.cpu) * CORE_BYTES_S / 1e9
            if row.notes:
                more["notes"] = row.notes[-1]
            report.add(Workload(name, "mb_s", row.figures, bars.get(name, ()), more, skipped=row.skipped))

    def side(self, name: str, load: Callable[[], tuple[int, Any]], *, cold: bool = False) -> None:
        """Runs one side once and writes down what it took."""
        row = self.rows.setdefault(name, Row())
        if row.skipped:
            return
        gc.collect()
        if cold:
            self.cold.drop(self.weights.folder)
        self.weights.sync()
        watch = Watch()
        try:
            size, note = load()
        except Unavailable as fault:
            row.skipped = str(fault)
            return
        watch.stop()
        if isinstance(note, Watch):
            watch = note
        row.figures.append(size / watch.seconds / 1e6)
        row.cpu.append(watch.cpu / (size / 1e9))
        say(f"{name}: {row.figures[-1]:.0f} MB/s, {row.cpu[-1]:.3f} CPU s/GB")

    def bus(self) -> tuple[int, Any]:
        """Pinned memory to the device, nothing else."""
        weights, times = self.weights, 32
        if weights.device.type != "cuda":
            raise Unavailable("there is no bus to a device of type cpu")
        source = weights.torch.empty(BUS, dtype=weights.torch.uint8, pin_memory=True)
        to = weights.empty(BUS)
        to.copy_(source)
        weights.sync()
        watch = Watch()
        for _ in range(times):
            to.copy_(source, non_blocking=True)
        weights.sync()
        return times * BUS, watch.stop()

    def raw(self) -> None:
        """O_DIRECT, pinned, copies on a stream of each thread: the best of several depths."""
        found = {}
        for depth in DEPTHS:
            self.side(f"raw_depth_{depth}", partial(self.raw_at, depth), cold=True)
            found[depth] = self.rows[f"raw_depth_{depth}"].figures[-1]
        best = self.rows.setdefault("raw", Row())
        depth = max(found, key=lambda depth: found[depth])
        best.figures.append(found[depth])
        best.cpu.append(self.rows[f"raw_depth_{depth}"].cpu[-1])
        best.notes.append({"depth": depth})

    def raw_at(self, depth: int) -> tuple[int, Any]:
        weights = self.weights
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in weights.plain]
        sizes = [os.fstat(fd).st_size for fd in fds]
        into = [weights.empty(size) for size in sizes]
        cuda = weights.device.type == "cuda"
        # What is pinned once for a process is not a part of a load.
        buffers = [[weights.torch.empty(PIECE, dtype=weights.torch.uint8, pin_memory=cuda) for _ in range(2)] for _ in range(depth)]
        if not cuda:
            buffers = [[weights.torch.frombuffer(mmap.mmap(-1, PIECE), dtype=weights.torch.uint8)] for _ in range(depth)]
        todo = iter([(n, at, min(PIECE, size - at)) for n, size in enumerate(sizes) for at in range(0, size, PIECE)])
        lock, faults = threading.Lock(), []

        def work(own: list[Any]) -> None:
            try:
                self._raw_thread(own, fds, into, todo, lock)
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=work, args=(own,)) for own in buffers]
        watch = Watch()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        weights.sync()
        watch.stop()
        for fd in fds:
            os.close(fd)
        if faults:
            raise faults[0]
        return sum(sizes), watch

    def _raw_thread(self, own: list[Any], fds: list[int], into: list[Any], todo: Any, lock: threading.Lock) -> None:
        torch, cuda = self.weights.torch, self.weights.device.type == "cuda"
        stream = torch.cuda.Stream(self.weights.device) if cuda else None
        events: list[Any] = [torch.cuda.Event(blocking=True) if cuda else None for _ in own]
        views = [memoryview(one.numpy()) for one in own]
        for turn in itertools.count():
            with lock:
                piece = next(todo, None)
            if piece is None:
                break
            number, at, length = piece
            slot = turn % len(own)
            if cuda and turn >= len(own):
                events[slot].synchronize()
            # A direct read is whole blocks, also at the end of a file, where it returns less.
            whole = -(-length // 4096) * 4096
            if os.preadv(fds[number], [views[slot][:whole]], at) != length:
                raise OSError(5, "a file became shorter while it was read")
            part = into[number][at : at + length]
            if stream is None:
                part.copy_(own[slot][:length])
            else:
                with torch.cuda.stream(stream):
                    part.copy_(own[slot][:length], non_blocking=True)
                events[slot].record(stream)
        if stream is not None:
            stream.synchronize()

    def loader_plain(self) -> tuple[int, Any]:
        """The native loader on plain files, which nobody verifies."""
        weights = self.weights
        loader, path, why = stoker.gpu._choose(weights.device)
        if loader is None:
            raise Unavailable(why)
        sizes = [path.stat().st_size for path in weights.plain]
        into = [weights.empty(size) for size in sizes]
        places = [(number, 0, size, one.data_ptr()) for number, (size, one) in enumerate(zip(sizes, into))]
        weights.sync()
        loader.load_plain(list(weights.plain), places)
        self._check_flat(into)
        return sum(sizes), None

    def _check_flat(self, into: list[Any]) -> None:
        """That the header came is enough here: the tensors are judged elsewhere."""
        for one, path in zip(into, self.weights.plain):
            (length,) = struct.unpack("<Q", bytes(one[:8].cpu().numpy()))
            if not 0 < length < path.stat().st_size:
                raise AssertionError("the header is wrong")

    def library(self) -> tuple[int, Any]:
        """The library safetensors on plain files, from the drive or from the page cache."""
        library = need("safetensors.torch")
        device = str(self.weights.device)
        if device == "cuda":
            device = "cuda:0"
        found: dict[str, Any] = {}
        watch = Watch()
        for path in self.weights.plain:
            found |= library.load_file(path, device=device)
        self.weights.sync()
        return self._checked(found, watch.stop())

    def _checked(self, found: dict[str, Any], watch: Watch) -> tuple[int, Any]:
        self.weights.check(found)
        return self.weights.size, watch

    def stoker_cold(self) -> tuple[int, Any]:
        return self._stoker("stoker_cold", 0)

    def stoker_keep(self) -> tuple[int, Any]:
        """From the drive, and into the host cache on the way."""
        self.weights.forget()
        return self._stoker("stoker_keep", self.weights.size * 2 + (64 << 20))

    def stoker_warm(self) -> tuple[int, Any]:
        return self._stoker("stoker_warm", self.weights.size * 2 + (64 << 20))

    def _stoker(self, name: str, cache: int) -> tuple[int, Any]:
        weights = self.weights
        reports: list[stoker.gpu.Report] = []
        found: dict[str, Any] = {}
        watch = Watch()
        for path in weights.paths:
            found |= stoker.safetensors.load_file(
                path, device=weights.device, store=weights.store, cache=cache, report=reports.append
            )
        weights.sync()
        watch.stop()
        last = reports[-1]
        self.rows[name].notes.append(
            {
                "path": last.path,
                "cache": list(last.cache),
                "seconds_in_loader": sum(one.seconds for one in reports),
                "reads": sum(one.reads for one in reports),
                "reading_s": sum(one.reading_s for one in reports),
                "wait_s": sum(one.wait_s for one in reports),
                "threads": last.threads,
            }
        )
        return self._checked(found, watch)


class Watch:
    """A side that says itself what was a part of it: from here to :meth:`stop`."""

    def __init__(self) -> None:
        self._cpu, self._begun = _cpu(), time.monotonic()
        self.cpu = self.seconds = 0.0

    def stop(self) -> Watch:
        self.seconds, self.cpu = time.monotonic() - self._begun, _cpu() - self._cpu
        return self


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
