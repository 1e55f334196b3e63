"""Single files in torch's format."""

from __future__ import annotations

import io
from typing import Any

import torch

from ..connecting import connect
from ..receipts import Receipt
from ..store import Path, Store

#: What torch.load fetches at once when it reads the small parts.
BUFFER = 1 << 20


def save(obj: Any, path: Path, *, store: Store | None = None, **options: Any) -> Receipt:
    """``torch.save`` to Stoker. Tensors stream from their memory to the drives: nothing of the size of the file is held. The file
    is there, whole and durable, when this returns; what had its name before is there until then.

    >>> stoker.save(model.state_dict(), "stoker://run/model.pt").copies
    2
    """
    with (store or connect()).open(path, "wb") as file:
        torch.save(obj, file, **options)  # type: ignore[arg-type]
    assert file.receipt is not None
    return file.receipt


def load(
    path: Path,
    *,
    map_location: Any = None,
    weights_only: bool = True,
    store: Store | None = None,
    **options: Any,
) -> Any:
    """``torch.load`` from Stoker. Only tensors and plain values are made of the file unless ``weights_only=False``, which runs
    whatever the file says.

    >>> model.load_state_dict(stoker.load("stoker://run/model.pt", map_location="cpu"))
    """
    reader = (store or connect()).open(path, "rb", buffering=0)
    size = reader.size
    with io.BufferedReader(reader, BUFFER) as file:
        try:
            return torch.load(file, map_location=map_location, weights_only=weights_only, **options)
        except (RuntimeError, EOFError, ValueError) as fault:
            message = f"{reader.name}: torch cannot read this file of {size} bytes: {fault}"
            raise ValueError(f"{message}; it was not written by torch.save, or not whole") from fault
