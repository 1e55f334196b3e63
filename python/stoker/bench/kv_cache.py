"""All that the benchmark knows of ``stoker.kv``, and the sides beside it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import stoker

from .node import Unavailable


class Cache(Protocol):
    """What every side can do. Keys are bytes, blocks all of one size."""

    def put_many(self, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        """Stores blocks; when it returns they survive what the side promises."""

    def get_many(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> int:
        """Fills memory; returns how many were there."""

    def exists_many(self, keys: Sequence[bytes]) -> int:
        """How many keys at the beginning are there."""

    def close(self) -> None:
        """Gives everything back."""


class Ours:
    """``stoker.kv``, with as little memory in front of the drive as it takes: it is the drive that is measured."""

    MEMORY = 1 << 20

    def __init__(self, store: stoker.Store, path: str, capacity: int) -> None:
        try:
            kv = importlib.import_module("stoker.kv")
        except ImportError as fault:
            raise Unavailable(f"this package has no stoker.kv ({fault})") from None
        fingerprint = {"model": "bench", "engine": "bench", "layout": "blocks", "dtype": "uint8", "parallelism": "1"}
        self._cache: Any = kv.open(path, fingerprint, capacity=capacity, memory=self.MEMORY, admit="always", store=store)

    def put_many(self, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        said = self._cache.put_many(keys, blocks, commit=True)
        if any(one != "committed" for one in said):
            raise AssertionError(f"blocks are {', '.join(sorted(set(said)))}, not committed")

    def get_many(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> int:
        return sum(1 for one in self._cache.get_many(keys, into) if one is not None)

    def exists_many(self, keys: Sequence[bytes]) -> int:
        return int(self._cache.exists_many(keys))

    def close(self) -> None:
        self._cache.close()


class Files:
    """One file for each block in a plain directory: what caches on a local disk do."""

    def __init__(self, folder: Path, depth: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._pool = ThreadPoolExecutor(depth)

    def _path(self, key: bytes) -> str:
        return str(self.folder / key.hex())

    def _put(self, key: bytes, block: memoryview) -> None:
        fd = os.open(self._path(key), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if os.write(fd, block) != block.nbytes:
                raise OSError(28, "the drive took a part of a block", self._path(key))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _get(self, key: bytes, into: memoryview) -> int:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return int(file.readinto(into) == into.nbytes)
        except FileNotFoundError:
            return 0

    def put_many(self, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        list(self._pool.map(self._put, keys, blocks))

    def get_many(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> int:
        return sum(self._pool.map(self._get, keys, into))

    def exists_many(self, keys: Sequence[bytes]) -> int:
        for number, key in enumerate(keys):
            if not os.path.exists(self._path(key)):
                return number
        return len(keys)

    def close(self) -> None:
        self._pool.shutdown()
