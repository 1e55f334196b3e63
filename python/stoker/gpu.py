"""Files into the memory of GPUs: large reads, many at once, through pinned buffers that the device copies from by itself.

>>> stoker.gpu.probe("cuda")
('pinned', 'NVIDIA H200: pinned buffers and copies on streams; GPUDirect Storage is not used yet')
>>> stoker.safetensors.load_file("stoker://run/model.safetensors", device="cuda", cache="64GiB")

``stoker.safetensors.load_file`` uses it. Every byte is checked in host memory before it is copied; what fails is read from another
copy, and is never on the device in a tensor that somebody gets.

The host cache (``cache=`` bytes, or ``STOKER_GPU_CACHE``; in ``STOKER_GPU_CACHE_DIR`` or a directory of this user in ``/dev/shm``)
keeps files that were loaded in main memory, for all processes of this user on this machine. It is off unless a size is given. Its
bytes are plain, also those of encrypted volumes.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _stoker
from .files import Reader

if TYPE_CHECKING:
    import torch

DeviceError = _stoker.DeviceError

#: Memory file system of the machine.
SHARED = "/dev/shm"

_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


@dataclass(frozen=True)
class Report:
    """What one load did."""

    #: ``pinned``, ``host``, or ``plain`` where tensors were read one by one.
    path: str
    why: str
    bytes: int = 0
    bytes_read: int = 0
    #: Of these, from the host cache.
    bytes_cached: int = 0
    reads: int = 0
    copies: int = 0
    threads: int = 0
    seconds: float = 0.0
    #: Summed over threads: in reads, and waiting for copies.
    reading_s: float = 0.0
    wait_s: float = 0.0
    #: Reads by how long they took: below 2, 4, 8 ... microseconds.
    read_us: Sequence[int] = field(default=(), repr=False)
    verified: bool = True
    #: What the host cache did for each file: ``off``, ``hit``, ``kept``, ``not kept: WHY`` or ``damaged``.
    cache: Sequence[str] = ()


@dataclass
class Totals:
    """Sums over all loads of this process, by path."""

    loads: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    bytes_cached: int = 0
    read_us: list[int] = field(default_factory=list)


_lock = threading.Lock()
_loaders: dict[tuple[int, int | None], _stoker.Loader] = {}
_totals = Totals()


def stats() -> Totals:
    """Counts of this process: how many loads went which way, and how long reads took."""
    with _lock:
        return Totals(dict(_totals.loads), dict(_totals.bytes), _totals.bytes_cached, list(_totals.read_us))


def probe(device: str | torch.device = "cuda") -> tuple[str, str]:
    """How bytes would travel to a device, and why: ``pinned``, ``host``, or ``plain`` if only the slow way works."""
    try:
        import torch
    except ImportError as fault:
        return "plain", f"torch is not installed ({fault})"
    return _choose(torch.device(device))[1:]


def parse_size(size: int | str | None) -> int:
    """``64GiB`` or bytes; 0 for nothing."""
    text = str(size or 0).strip().lower()
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        count = int(float(text.removesuffix(unit)) * _UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        count = -1
    if count < 0:
        raise ValueError(f"a size is bytes or a text as 64GiB, not {size!r}")
    return count


def cache_place(size: int | str | None = None) -> tuple[str, int] | None:
    """Directory and capacity of the host cache; ``None`` if it is off."""
    capacity = parse_size(os.environ.get("STOKER_GPU_CACHE") if size is None else size)
    if not capacity:
        return None
    return os.environ.get("STOKER_GPU_CACHE_DIR") or f"{SHARED}/stoker-gpu-{os.geteuid()}", capacity


def _choose(device: torch.device) -> tuple[_stoker.Loader | None, str, str]:
    """The loader of a device, its path, and why that one."""
    import torch

    if device.type == "cpu":
        return _loader(None), "host", "host memory: threads copy by themselves"
    if device.type != "cuda":
        return None, "plain", f"there is no fast way to a device of type {device.type}"
    if torch.version.cuda is None:
        return None, "plain", "this torch was built without CUDA"
    try:
        loader = _loader(torch.cuda.current_device() if device.index is None else device.index)
    except (DeviceError, RuntimeError, AssertionError) as fault:
        return None, "plain", str(fault)
    return loader, loader.path, f"{loader.name}: pinned buffers and copies on streams; GPUDirect Storage is not used yet"


def _loader(number: int | None) -> _stoker.Loader:
    """One for each device and process; its pinned buffers are used again."""
    key = (os.getpid(), number)
    with _lock:
        if key not in _loaders:
            threads = os.environ.get("STOKER_GPU_THREADS")
            _loaders[key] = _stoker.Loader(number, int(threads) if threads else None)
        return _loaders[key]


def fill(
    files: Sequence[Reader],
    places: Sequence[tuple[int, int, torch.Tensor]],
    device: torch.device,
    cache: int | str | None = None,
) -> Report:
    """Fills tensors of a device, each in one piece, from (number of file, offset there, tensor). When it returns all of them
    are there; after an error they hold anything."""
    loader, path, why = _choose(device)
    if loader is None:
        report = _fill_plain(files, places, path, why)
    else:
        rows = [(file, offset, tensor.nbytes, tensor.data_ptr()) for file, offset, tensor in places if tensor.nbytes]
        for _, _, tensor in places:
            if tensor.device.type != device.type or not tensor.is_contiguous():
                raise ValueError(f"a tensor to fill is in one piece on {device}")
        if device.type == "cuda":
            import torch

            # Memory that torch gives out may still be read by what its stream has before it.
            torch.cuda.current_stream(device).synchronize()
        told = json.loads(loader.load([file._open() for file in files], rows, cache_place(cache))) if rows else {}
        report = _report(told, path, why)
    _count(report)
    return report


def _report(told: dict[str, Any], path: str, why: str) -> Report:
    names = ("bytes", "bytes_read", "bytes_cached", "reads", "copies", "threads", "read_us", "verified", "cache")
    seconds = {name: told.get(f"{name}_us", 0) / 1e6 for name in ("elapsed", "reading", "wait")}
    known = {name: told[name] for name in names if name in told}
    return Report(
        path=path,
        why=why,
        seconds=seconds["elapsed"],
        reading_s=seconds["reading"],
        wait_s=seconds["wait"],
        **known,
    )


def _fill_plain(
    files: Sequence[Reader], places: Sequence[tuple[int, int, torch.Tensor]], path: str, why: str
) -> Report:
    """One tensor after the other, through pageable memory: works for everything that torch can copy to."""
    import torch

    for number, offset, tensor in places:
        if not tensor.nbytes:
            continue
        plain = torch.empty(tensor.shape, dtype=tensor.dtype)
        into = plain.reshape(-1).view(torch.uint8).numpy()
        if files[number].readinto_at(into, offset) != tensor.nbytes:
            raise ValueError(f"{files[number].name}: it ends at less than {offset + tensor.nbytes} bytes")
        tensor.copy_(plain)
    size = sum(tensor.nbytes for _, _, tensor in places)
    return Report(path, why, bytes=size, bytes_read=size, copies=len(places), cache=["off"] * len(files))


def _count(report: Report) -> None:
    with _lock:
        _totals.loads[report.path] = _totals.loads.get(report.path, 0) + 1
        _totals.bytes[report.path] = _totals.bytes.get(report.path, 0) + report.bytes
        _totals.bytes_cached += report.bytes_cached
        if report.read_us:
            before = _totals.read_us or [0] * len(report.read_us)
            _totals.read_us = [one + other for one, other in zip(before, report.read_us)]
