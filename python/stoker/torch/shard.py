"""A shard on its way: the items of a plan go, piece by piece, to a file that another thread writes."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ..files import Writer
from ..receipts import Receipt
from .container import container, is_plain
from .staging import Slot, Staging

#: Tensors from here on begin at a block of the drive, so that readers need no copy.
BLOCK_FROM = 64 << 10
BLOCK = 4096
#: A container and what aligns it, at most.
AROUND = 8 << 10
#: Staging memory for what only passes through.
PASSING = 128 << 20
#: Pieces that wait to be written. What they hold is bounded by the staging memory.
WAITING_MAX = 4096


@dataclass(frozen=True)
class Raw:
    """Where, inside of a shard, the bytes of a tensor are, and what they are; beside the item in the metadata."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Pump:
    """Writes a shard in a thread of its own. ``copies``: what is put may change as soon as :meth:`put` returns. It is written
    once all is copied, or there is no more room: the caller waits for the copy alone, and gets the processors for it."""

    def __init__(self, file: Writer, staging: Staging, *, copies: bool) -> None:
        self._file = file
        self._staging = staging
        self._copies = copies
        self._queue: queue.Queue[tuple[Any, Slot | None] | None] = queue.Queue(WAITING_MAX)
        self._fault: BaseException | None = None
        self._ended = False
        self._may_write = threading.Event()
        staging.short = self._may_write.set
        if not copies:
            self._may_write.set()
        self.at = 0
        self.receipt: Receipt | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-shard")
        self._thread.start()

    # The side that fills

    def put_bytes(self, data: Any) -> None:
        """Adds bytes. They are copied in any case: that bounds what waits to be written."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, self._staging.piece):
            part = view[start : start + self._staging.piece]
            slot = self._staging.reserve(part.nbytes)
            into = self._staging.view(slot)
            memory: Any = into.numpy()
            memoryview(memory)[:] = part
            self._hand((into, slot))
            self.at += part.nbytes

    def put_tensor(self, tensor: torch.Tensor) -> None:
        """Adds the bytes of a plain tensor, in the order of its elements."""
        if tensor.nbytes == 0:
            return
        if not self._copies and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            self._hand((_bytes_of(tensor), None))
            self.at += tensor.nbytes
            return
        for part in pieces(tensor, self._staging.piece):
            slot = self._staging.reserve(part.nbytes)
            into = self._staging.view(slot)
            into.view(part.dtype).view(part.shape).copy_(part)
            self._hand((into, slot))
            self.at += part.nbytes

    def _hand(self, one: tuple[Any, Slot | None]) -> None:
        if self._fault is not None:
            raise self._fault
        try:
            self._queue.put_nowait(one)
        except queue.Full:
            self._may_write.set()
            self._queue.put(one)

    def end(self) -> None:
        """Nothing more comes."""
        if not self._ended:
            self._ended = True
            self._may_write.set()
            self._queue.put(None)

    def abort(self, fault: BaseException) -> None:
        """Gives the shard up."""
        if self._fault is None:
            self._fault = fault
        self.end()
        self._thread.join()

    def wait(self) -> Receipt:
        """Waits until it is durable. Raises what went wrong."""
        self.end()
        self._thread.join()
        if self._fault is not None:
            raise self._fault
        assert self.receipt is not None
        return self.receipt

    # The side that writes

    def _run(self) -> None:
        self._may_write.wait()
        while (one := self._queue.get()) is not None:
            data, slot = one
            try:
                # After a fault the rest is only taken away, so that nobody waits for room for ever.
                if self._fault is None:
                    self._file.write(data.numpy() if isinstance(data, torch.Tensor) else data)
            except BaseException as fault:
                self._fail(fault)
            finally:
                del one, data
                if slot is not None:
                    self._staging.release(slot)
        try:
            if self._fault is None:
                self._file.close()
                self.receipt = self._file.receipt
            else:
                self._file.abort()
        except BaseException as fault:
            self._fail(fault)

    def _fail(self, fault: BaseException) -> None:
        if self._fault is None:
            self._fault = fault
        self._staging.fail(fault)


def pieces(tensor: torch.Tensor, size_max: int) -> Iterator[torch.Tensor]:
    """Parts of a tensor, in the order of its elements, of at most so many bytes each."""
    if tensor.nbytes <= size_max or tensor.dim() == 0:
        yield tensor
        return
    row = tensor.nbytes // tensor.shape[0]
    if row > size_max:
        for one in tensor:
            yield from pieces(one, size_max)
        return
    count = size_max // row
    for start in range(0, tensor.shape[0], count):
        yield tensor.narrow(0, start, min(count, tensor.shape[0] - start))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def items_size(items: Iterable[WriteItem]) -> int:
    """What the tensors of a plan take in a shard, at most."""
    size = 0
    for item in items:
        if item.type != WriteItemType.BYTE_IO and item.tensor_data is not None:
            size += AROUND + item.tensor_data.size.numel() * item.tensor_data.properties.dtype.itemsize
    return size


def write_items(
    pump: Pump,
    name: str,
    items: Iterable[WriteItem],
    data_of: Callable[[WriteItem], Any],
) -> list[WriteResult]:
    """Puts the items of a plan into a shard; says where each of them is."""
    results = []
    for item in items:
        data = data_of(item)
        raw: Raw | None = None
        if isinstance(data, io.BytesIO):
            start = pump.at
            pump.put_bytes(data.getbuffer())
        elif isinstance(data, torch.Tensor) and is_plain(data):
            tensor = data.detach()
            around = container(tensor.dtype, tuple(tensor.shape))
            if tensor.nbytes >= BLOCK_FROM:
                pump.put_bytes(bytes(-(pump.at + len(around.head)) % BLOCK))
            start = pump.at
            raw = Raw(start + len(around.head), tensor.dtype, tuple(tensor.shape))
            pump.put_bytes(around.head)
            pump.put_tensor(tensor)
            pump.put_bytes(around.tail)
        elif isinstance(data, torch.Tensor):
            buffer = io.BytesIO()
            torch.save(data.detach().cpu(), buffer)
            start = pump.at
            pump.put_bytes(buffer.getbuffer())
        else:
            raise TypeError(f"{item.index.fqn}: the planner gave {type(data).__name__}, not a tensor or io.BytesIO")
        info = _StorageInfo(name, start, pump.at - start)
        if raw is not None:
            # torch's own reader does not look at it.
            info.stoker_raw = (raw.offset, raw.dtype, raw.shape)  # type: ignore[attr-defined]
        results.append(WriteResult(item.index, pump.at - start, info))
    return results


def write_plan(
    pump: Pump, name: str, items: list[WriteItem], planner: SavePlanner, staging: Staging, *, ahead: bool
) -> list[WriteResult]:
    """Writes all items of a plan. ``ahead``: the staging memory is to hold the whole shard, if its limit allows it."""
    objects = [item for item in items if item.type == WriteItemType.BYTE_IO]
    tensors = [item for item in items if item.type != WriteItemType.BYTE_IO]
    if not ahead:
        staging.prepare(min(items_size(tensors), PASSING))
        return write_items(pump, name, objects + tensors, planner.resolve_data)
    resolved = {id(item): planner.resolve_data(item) for item in objects}
    size = sum(data.getbuffer().nbytes + AROUND for data in resolved.values() if isinstance(data, io.BytesIO))
    staging.prepare(items_size(tensors) + size)

    def data_of(item: WriteItem) -> Any:
        found = resolved.pop(id(item), None)
        return planner.resolve_data(item) if found is None else found

    return write_items(pump, name, objects + tensors, data_of)
