"""The metadata of a checkpoint: a pickle, which could call anything. Only what torch itself puts there is let in."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

#: Longest metadata that is read.
SIZE_MAX = 4 << 30

_MODULES = frozenset(
    {
        "torch.distributed.checkpoint.metadata",
        "torch.distributed.checkpoint.filesystem",
        "torch.distributed._shard.metadata",
        "torch.distributed._shard.sharded_tensor.metadata",
        "torch.distributed._shard.sharding_spec.chunk_sharding_spec",
        "torch.distributed._shard.sharding_spec.api",
    }
)
_NAMES = frozenset(
    {
        ("torch", "Size"),
        ("torch", "device"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "list"),
        ("builtins", "dict"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "PosixPath"),
    }
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES:
            # A dotted name would reach what the module imports.
            found = getattr(__import__(module, fromlist=[name]), name) if "." not in name else None
            if isinstance(found, type) and found.__module__ == module:
                return found
        elif (module, name) in _NAMES:
            return super().find_class(module, name)
        elif module == "torch" and isinstance(found := getattr(torch, name, None), (torch.dtype, torch.layout)):
            return found
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which metadata has no use for")


def load(data: bytes, path: str, *, trusted: bool = False) -> Metadata:
    """Metadata of a checkpoint. ``trusted``: whatever the pickle asks for is done."""
    try:
        made = pickle.loads(data) if trusted else _Unpickler(io.BytesIO(data)).load()
    except Exception as fault:
        hint = "it is damaged, or not from torch" if trusted else "if you trust who wrote it: StokerReader(..., trusted=True)"
        raise ValueError(f"{path}: cannot read the metadata of this checkpoint: {fault}; {hint}") from fault
    if not isinstance(made, Metadata):
        raise ValueError(f"{path}: this is a {type(made).__name__}, not the metadata of a checkpoint")
    return made
