"""Samples for training: sealed datasets, tar shards and plain files, shuffled, shared out and read ahead.

>>> from torch.utils.data import DataLoader
>>> source = stoker.data.open_seal("data/imagenet/train.seal")
>>> dataset = stoker.data.StreamDataset(source, batch_size=64, seed=7, decode=lambda sample: sample["jpg"])
>>> loader = DataLoader(dataset, batch_size=None, num_workers=8)

Only ``StreamDataset``, ``MapDataset`` and ``Batches`` need torch, and import it when they are first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .order import Order, Permutation
from .recorder import Recorder
from .samples import SKIP, BadSample
from .seal import Seal, Shard
from .shares import Progress, Share
from .sources import FileSource, SealSource, Source, TarSource, open_files, open_seal, open_tars
from .states import global_state
from .stats import Stats
from .stream import Stream

if TYPE_CHECKING:
    from .datasets import Batches, MapDataset, StreamDataset

_WITH_TORCH = ("Batches", "MapDataset", "StreamDataset")

# Without the three that need torch: `from stoker.data import *` works without it.
__all__ = [
    "SKIP",
    "BadSample",
    "FileSource",
    "Order",
    "Permutation",
    "Progress",
    "Recorder",
    "Seal",
    "SealSource",
    "Shard",
    "Share",
    "Source",
    "Stats",
    "Stream",
    "TarSource",
    "global_state",
    "open_files",
    "open_seal",
    "open_tars",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import datasets
    except ImportError as fault:
        if fault.name != "torch":
            raise
        raise ImportError(f"stoker.data.{name} needs torch: pip install torch, or use stoker.data.Stream") from None
    return getattr(datasets, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_WITH_TORCH])
