"""LMCache's local disk, as its engine uses it, without a GPU."""

from __future__ import annotations

import asyncio
import importlib
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .node import Unavailable

PATIENCE_S = 300.0


class LMCacheDisk:
    """A side of the KV benchmark; see ``kv_cache.Cache``.

    What it stores is not synchronised and it knows it no longer after a restart, so one object is used for all rounds. What it reads goes to
    memory of its own and stays there: it is spared the copy to memory of the caller.
    """

    def __init__(self, folder: Path, size: int, capacity: int, depth: int) -> None:
        try:
            torch = importlib.import_module("torch")
            config = importlib.import_module("lmcache.v1.config").LMCacheEngineConfig
            keys = importlib.import_module("lmcache.utils").CacheEngineKey
            allocator = importlib.import_module("lmcache.v1.memory_allocators.host_memory_allocator").HostMemoryAllocator
            memory = importlib.import_module("lmcache.v1.storage_backend.local_cpu_backend").LocalCPUBackend
            disk = importlib.import_module("lmcache.v1.storage_backend.local_disk_backend").LocalDiskBackend
        except ImportError as fault:
            raise Unavailable(f"lmcache is not installed ({fault}); `files` stands for it") from None
        self._torch, self._key, self._size = torch, keys, size
        settings = config.from_defaults(
            local_cpu=False,
            local_disk=str(folder),
            max_local_disk_size=math.ceil(capacity / (1 << 30)) + 1,
            extra_config={"disk_io_threads": depth},
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._memory = memory(settings, memory_allocator=allocator(4 * depth * size), dst_device="cpu")
        self._disk = disk(settings, self._loop, self._memory, dst_device="cpu")

    def _keys(self, keys: Sequence[bytes]) -> list[Any]:
        return [self._key("bench", 1, 0, int.from_bytes(key[:8], "little"), self._torch.uint8) for key in keys]

    def put_many(self, keys: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        done = threading.Semaphore(0)
        shape = self._torch.Size([self._size])
        for key, block in zip(self._keys(keys), blocks):
            object = self._memory.allocate(shape, self._torch.uint8)
            object.tensor.copy_(self._torch.frombuffer(block, dtype=self._torch.uint8))
            self._disk.submit_put_task(key, object, on_complete_callback=lambda _: done.release())
            object.ref_count_down()
        for _ in keys:
            if not done.acquire(timeout=PATIENCE_S):
                raise TimeoutError("LMCache has not stored a block")

    def get_many(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> int:
        found = [one for one in self._disk.batched_get_blocking(self._keys(keys)) if one is not None]
        for one in found:
            one.ref_count_down()
        return len(found)

    def exists_many(self, keys: Sequence[bytes]) -> int:
        for number, key in enumerate(self._keys(keys)):
            if not self._disk.contains(key):
                return number
        return len(keys)

    def close(self) -> None:
        """Nothing: what it knows would be gone. See :meth:`end`."""

    def end(self) -> None:
        self._disk.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
