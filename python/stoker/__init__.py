"""Stoker keeps GPUs fed: files, datasets, checkpoints and KV cache at the speed of the drives in your GPU nodes.

>>> import stoker
>>> store = stoker.connect()
>>> receipt = store.write("data/hello.txt", b"hello")
>>> store.read("data/hello.txt")
b'hello'
>>> receipt.wait_drained()  # doctest: +SKIP

A path is ``VOLUME/KEY``; ``stoker://VOLUME/KEY`` means the same. What is acknowledged is on as many drives as the class of
its volume says, and the receipt tells on which.
"""

from typing import TYPE_CHECKING, Any

from ._stoker import ConflictError, CorruptError, __version__
from .connecting import connect
from .files import Reader, Writer
from .packing import Packed, Progress, pack
from .receipts import FileInfo, Holder, Receipt
from .sets import CheckpointSet, SetStatus
from .store import Store

if TYPE_CHECKING:
    from . import gpu as gpu
    from . import jobs as jobs
    from . import kv as kv
    from . import planner as planner
    from . import safetensors as safetensors
    from . import torch as torch
    from .torch.files import load as load
    from .torch.files import save as save

# Without those that need torch: `from stoker import *` works without it.
__all__ = [
    "CheckpointSet",
    "ConflictError",
    "CorruptError",
    "FileInfo",
    "Holder",
    "Packed",
    "Progress",
    "Reader",
    "Receipt",
    "SetStatus",
    "Store",
    "Writer",
    "__version__",
    "connect",
    "gpu",
    "jobs",
    "kv",
    "pack",
    "planner",
]


def __getattr__(name: str) -> Any:
    # Only who uses these needs torch, or the time to import them.
    if name in ("save", "load"):
        from .torch import files

        return getattr(files, name)
    if name in ("torch", "safetensors", "gpu", "jobs", "kv", "planner"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
