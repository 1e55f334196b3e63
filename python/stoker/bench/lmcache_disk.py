"""LMCache's local disk, as its engine uses it, without a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from .node import Unavailable


class LMCacheDisk:
    """A side of the KV benchmark; see ``kv_cache.Cache``."""

    def __init__(self, folder: Path, size: int, capacity: int) -> None:
        try:
            importlib.import_module("lmcache")
        except ImportError as fault:
            raise Unavailable(f"lmcache is not installed ({fault}); `files` stands for it") from None
        raise Unavailable("this benchmark does not know how to run LMCache's local disk yet")

    def put_many(self, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> int:
        raise NotImplementedError

    def exists_many(self, keys: Sequence[bytes]) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""
