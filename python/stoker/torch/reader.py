"""Loads checkpoints: whole or in part, with as many ranks as there are now."""

from __future__ import annotations

import io
import math
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import paths
from ..files import Reader
from ..store import Path, Store
from . import metadata as metadata_file
from .place import Placed, directory
from .shard import Raw
from .status import METADATA, NAMED_MAX, latest, status, volume_missing

#: Smaller reads are served from a piece of this length: models have many small tensors, one beside the other.
WINDOW = 1 << 20
SMALL = 64 << 10
#: Memory for what cannot be read to its place directly, twice.
SCRATCH = 32 << 20


class StokerReader(Placed, StorageReader):
    """Reads checkpoints: ``dcp.load(state, checkpoint_id="stoker://run/step-1000", storage_reader=StokerReader())``.

    It reads what :class:`stoker.torch.StokerWriter` wrote and what torch's own writers wrote, with any number of ranks. Of a
    tensor only the rows that this rank needs are read, and they go into the memory of the tensor if that is in main memory
    and in one piece.

    The metadata is a pickle; only what torch puts there is let in. ``trusted=True`` reads whatever there is.
    """

    def __init__(self, path: Path | None = None, *, store: Store | None = None, trusted: bool = False) -> None:
        super().__init__(path, store)
        self._trusted = trusted
        self._where: dict[Any, Any] = {}

    # What torch calls, in this order

    def reset(self, checkpoint_id: Path | None = None) -> None:
        self._where = {}
        if checkpoint_id:
            self._path = directory(checkpoint_id)

    # No `**kwargs`: torch would ask again for metadata of single ranks, which there are none of.
    def read_metadata(self) -> Metadata:
        if not self._path:
            raise ValueError("give the path: dcp.load(..., checkpoint_id='stoker://VOLUME/KEY') or StokerReader(path)")
        path = self._path + METADATA
        try:
            with self.store.open(path, buffering=0) as file:
                if file.size > metadata_file.SIZE_MAX:
                    raise ValueError(f"{path}: {file.size} bytes are too many for metadata")
                data = file.read()
        except FileNotFoundError:
            raise self._missing() from None
        found = metadata_file.load(data, path, trusted=self._trusted)
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = StorageMeta()
        return found

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not isinstance(metadata.storage_data, dict):
            raise ValueError(f"{self._path}{METADATA}: it does not say where the tensors are")
        self._where = metadata.storage_data
        if is_coordinator:
            self._check_shards()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._info(item).relative_path, []).append(item)
        for name, items in by_file.items():
            items.sort(key=lambda item: self._info(item).offset)
            with self.store.open(self._inside(name), buffering=0) as file:
                _Loading(file, planner, self._info).all(items)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    # What is there

    def _info(self, item: ReadItem) -> Any:
        found = self._where.get(item.storage_index)
        if found is None:
            raise ValueError(f"{self._path}: its metadata does not say where {item.storage_index} is")
        return found

    def _inside(self, name: str) -> str:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"{self._path}{METADATA}: {name!r} is not a shard of this checkpoint")
        return self._path + name

    def _check_shards(self) -> None:
        needed = {one.relative_path for one in self._where.values()}
        there = {one.name for one in self.store.list(self._path)}
        missing = sorted(needed - there)
        if missing:
            more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
            message = (
                f"the checkpoint lacks {len(missing)} of {len(needed)} shards: {', '.join(missing[:NAMED_MAX])}{more};"
                " somebody deleted them after it was published: load another one"
            )
            raise FileNotFoundError(2, message, self._path)

    def _missing(self) -> OSError:
        """Why there is no such checkpoint."""
        volume = paths.split(self._path)[0]
        if volume not in self.store.volumes():
            return volume_missing(self.store, volume)
        tried = status(self._path, store=self.store)
        said = "there is no checkpoint of this name" if tried is None else str(tried)
        parent = self._path.rstrip("/").rpartition("/")[0] + "/"
        other = latest(parent, store=self.store) if parent.startswith(f"{paths.SCHEME}{volume}/") else None
        hint = f"the latest one below {parent} is {other}" if other else f"there is none below {parent}"
        return FileNotFoundError(2, f"{said}; {hint}", self._path)


class _Loading:
    """Items of one shard on their way to their tensors."""

    def __init__(self, file: Reader, planner: LoadPlanner, info: Any) -> None:
        self.file, self.planner, self.info = file, planner, info
        self._scratch = _Scratch()
        self._window, self._window_at = b"", 0

    def all(self, items: list[ReadItem]) -> None:
        try:
            self._all(items)
        finally:
            self._scratch.settle()

    def _all(self, items: list[ReadItem]) -> None:
        for item in items:
            info = self.info(item)
            if info.offset < 0 or info.length < 0 or info.offset + info.length > self.file.size:
                message = f"{item.storage_index} is at {info.offset}, {info.length} bytes, and the shard has {self.file.size}"
                raise ValueError(f"{self.file.name}: {message}: it is not the shard that the metadata was made for")
            if getattr(info, "transform_descriptors", None):
                raise ValueError(f"{self.file.name}: {item.storage_index} was written with extensions of torch; use FsspecReader")
            if item.type == LoadItemType.BYTE_IO:
                self.planner.load_bytes(item, io.BytesIO(self._bytes(info.offset, info.length)))
                continue
            target = self.planner.resolve_tensor(item).detach()
            if target.size() != item.lengths:
                raise ValueError(f"{item.storage_index}: {tuple(target.size())} are wanted, {tuple(item.lengths)} planned")
            if (raw := raw_of(info)) is not None:
                self._raw(item, raw, target)
            else:
                self._torch(item, info, target)
            self.planner.commit_tensor(item, target)

    def _torch(self, item: ReadItem, info: Any, target: torch.Tensor) -> None:
        """A tensor of torch's own writer: inside of a container that only torch knows."""
        data = io.BytesIO(self._bytes(info.offset, info.length))
        whole = torch.load(data, map_location="cpu", weights_only=True)
        target.copy_(narrow_tensor_by_index(whole, item.storage_offsets, item.lengths))

    def _raw(self, item: ReadItem, raw: Raw, target: torch.Tensor) -> None:
        if target.numel() == 0:
            return
        offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
        for offset, length, size in zip(offsets, lengths, raw.shape, strict=True):
            if offset < 0 or length < 0 or offset + length > size:
                raise ValueError(f"{self.file.name}: {offsets} + {lengths} is not inside {item.storage_index}, {raw.shape}")
        row = math.prod(raw.shape[1:]) * raw.dtype.itemsize
        first, rows = (offsets[0], lengths[0]) if raw.shape else (0, 1)
        start = raw.offset + first * row
        straight = (
            lengths[1:] == raw.shape[1:]
            and target.is_cpu
            and target.is_contiguous()
            and target.dtype == raw.dtype
            and type(target) is torch.Tensor
        )
        if straight:
            self._fill(target.reshape(-1).view(torch.uint8), start)
            return
        # Whole rows are read and what is wanted of them is copied.
        count = max(1, min(rows, SCRATCH // max(row, 1)))
        for at in range(0, rows, count):
            part = self._scratch.part(min(count, rows - at) * row, target.is_cuda)
            self._fill(part, start + at * row)
            if not raw.shape:
                target.copy_(part.view(raw.dtype).view(()))
                return
            found = part.view(raw.dtype).view(-1, *raw.shape[1:])
            for dim in range(1, len(raw.shape)):
                found = found.narrow(dim, offsets[dim], lengths[dim])
            target.narrow(0, at, found.shape[0]).copy_(found, non_blocking=True)
            self._scratch.used(target)

    def _bytes(self, offset: int, length: int) -> bytes:
        if length >= SMALL:
            return self.file.read_at(offset, length)
        at = offset - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window, self._window_at, at = self.file.read_at(offset, WINDOW), offset, 0
        return self._window[at : at + length]

    def _fill(self, into: torch.Tensor, offset: int) -> None:
        if into.numel() < SMALL:
            data = self._bytes(offset, into.numel())
            memory: Any = into.numpy()
            memoryview(memory)[: len(data)] = data
            count = len(data)
        else:
            count = self.file.readinto_at(into.numpy(), offset)
        if count != into.numel():
            raise ValueError(f"{self.file.name}: it ends before the bytes that its metadata speaks of")


class _Scratch:
    """Memory that bytes pass through on their way to tensors elsewhere: two pieces in turn, so that one can be read while the
    other one is copied to the device."""

    def __init__(self) -> None:
        self._pieces: list[torch.Tensor] = []
        self._events: list[Any] = [None, None]
        self._turn = 0

    def part(self, size: int, for_cuda: bool) -> torch.Tensor:
        """So many bytes that nobody uses any more."""
        self._turn = 1 - self._turn
        wanted = max(size, min(SCRATCH, 1 << (size - 1).bit_length()))
        if not self._pieces or self._pieces[0].numel() < size or (for_cuda and not self._pieces[0].is_pinned()):
            self.settle()
            self._pieces = [torch.empty(wanted, dtype=torch.uint8, pin_memory=for_cuda) for _ in range(2)]
        event, self._events[self._turn] = self._events[self._turn], None
        if event is not None:
            event.synchronize()
        return self._pieces[self._turn][:size]

    def used(self, target: torch.Tensor) -> None:
        """The last part is on its way to a tensor."""
        if target.is_cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(target.device))
            self._events[self._turn] = event

    def settle(self) -> None:
        """Waits for what is on its way."""
        for event in self._events:
            if event is not None:
                event.synchronize()
        self._events = [None, None]


def raw_of(info: Any) -> Raw | None:
    """Where the bytes of a tensor are, if we wrote it; checked, for the metadata may come from anybody."""
    said = getattr(info, "stoker_raw", None)
    if said is None:
        return None
    offset, dtype, shape = said
    size = math.prod(shape) * dtype.itemsize
    if offset < info.offset or offset + size > info.offset + info.length or any(length < 0 for length in shape):
        raise ValueError(f"{info.relative_path}: the metadata speaks of bytes outside of their tensor")
    return Raw(offset, dtype, tuple(shape))
