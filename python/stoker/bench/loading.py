"""The sides of the loader's benchmark. Each takes all samples once, as a training loop would, and returns how many bytes came."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import stoker
import stoker.data

from .node import Unavailable
from .samples import Data, Scale


def need(module: str) -> Any:
    """A library that only this side wants."""
    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise Unavailable(f"{module} is not installed ({fault})") from None


class FileDataset:
    """One file, one sample: what people begin with."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> bytes:
        with open(self.files[index], "rb", buffering=0) as file:
            return file.read()


def as_it_is(batch: Any) -> Any:
    """No collating: what is measured is how samples come, not what is made of them."""
    return batch


def _total(batches: Iterable[Sequence[Any]], scale: Scale) -> int:
    """Takes all; checks that none is missing."""
    count = size = 0
    for batch in batches:
        count += len(batch)
        for sample in batch:
            size += len(sample if isinstance(sample, (bytes, memoryview)) else sample["bin"])
    if (count, size) != (scale.count, scale.bytes):
        raise AssertionError(f"{count} samples with {size} bytes came, not {scale.count} with {scale.bytes}")
    return size


def per_file(data: Data, workers: int) -> int:
    """A directory of files, read by the workers of a DataLoader in a shuffled order."""
    loader = need("torch.utils.data").DataLoader(
        FileDataset(data.files),
        batch_size=data.scale.batch,
        shuffle=True,
        num_workers=workers,
        collate_fn=as_it_is,
    )
    return _total(loader, data.scale)


def webdataset(data: Data, shards: Sequence[Path], workers: int) -> int:
    """Tar shards, read by webdataset, shuffled as its users do: whole shards, then within a buffer."""
    wds = need("webdataset")
    torch_data = need("torch.utils.data")
    # More workers than shards would stand idle and make it warn.
    split = min(workers, len(shards))
    dataset = wds.WebDataset([str(path) for path in shards], shardshuffle=len(shards), empty_check=False, seed=7)
    dataset = dataset.shuffle(data.scale.buffer).batched(data.scale.batch, collation_fn=None)
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=split)
    return _total(loader, data.scale)


def plain_reads(shards: Sequence[Path]) -> int:
    """Shards from front to back, one after the other, without looking inside."""
    size = 0
    buffer = bytearray(1 << 20)
    for path in shards:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                size += count
    return size


def native(data: Data, store: stoker.Store, block: int) -> int:
    """The package's own stream over a seal, in this process."""
    return next(native_epochs(data, store, block))


def native_epochs(data: Data, store: stoker.Store, block: int) -> Iterator[int]:
    """The same, an epoch at each step."""
    source = stoker.data.open_seal(data.seal, store=store)
    stream = stoker.data.Stream(source, batch_size=data.scale.batch, seed=7, block=block, rank=0, world=1)
    for epoch in itertools.count():
        stream.set_epoch(epoch)
        yield _total(stream, data.scale)


def native_workers(data: Data, store: stoker.Store, block: int, workers: int) -> int:
    """The same in the workers of a DataLoader, for those who decode there."""
    torch_data = need("torch.utils.data")
    source = stoker.data.open_seal(data.seal, store=store)
    dataset = need("stoker.data").StreamDataset(source, batch_size=data.scale.batch, seed=7, block=block, rank=0, world=1)
    return _total(torch_data.DataLoader(dataset, batch_size=None, num_workers=workers), data.scale)
