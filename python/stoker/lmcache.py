"""Stoker behind LMCache: its remote storage plugin, for chunks of KV caches in a volume.

In LMCache's configuration::

    remote_storage_plugins: ["stoker"]
    extra_config:
      remote_storage_plugin.stoker.module_path: stoker.lmcache
      remote_storage_plugin.stoker.class_name: StokerAdapter
      remote_storage_plugin.stoker.path: kvcache/llama-8b     # VOLUME/DIRECTORY
      remote_storage_plugin.stoker.capacity: 214748364800     # bytes; the others have the defaults of stoker.kv.open
      remote_storage_plugin.stoker.revision: "2026-10-01"     # part of the fingerprint: whatever LMCache does not know

Further settings: ``memory``, ``ttl``, ``admit`` (``second-use`` or ``always``), ``bundle_bytes``, ``refresh``, ``linger`` as in
:func:`stoker.kv.open`; ``commit`` (true: a put returns when it is in the volume); ``dir``, ``endpoint`` and ``token`` as in
:func:`stoker.connect`. LMCache has memory of its own in front, so ``memory`` is 256 MiB here unless it is said.

Model, number of workers, shape, type of numbers, chunk size and serializer are the fingerprint; worker and hash are in the key.
What cannot be read is a miss for LMCache, which then computes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from . import kv
from .connecting import connect

logger = init_logger(__name__)

T = TypeVar("T")

PLUGIN = "stoker"
#: Calls into the cache at once; each of them reads many blocks at once by itself.
THREADS = 8
MEMORY = 256 << 20
#: Settings that `stoker.kv.open` knows, and what they are.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "capacity": int,
    "memory": int,
    "ttl": float,
    "admit": str,
    "bundle_bytes": int,
    "refresh": float,
    "linger": float,
}


def _let_go(chunks: list[MemoryObj]) -> None:
    for chunk in chunks:
        chunk.ref_count_down()


def _give_back(work: Future[list[MemoryObj | None]]) -> None:
    if not work.cancelled() and work.exception() is None:
        for chunk in work.result():
            if chunk is not None:
                chunk.ref_count_down()


class StokerAdapter(ConnectorAdapter):
    """What LMCache makes a :class:`StokerConnector` with. Several caches are several plugins: ``stoker.one``, ``stoker.two``."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{PLUGIN}")

    def can_parse(self, url: str) -> bool:
        name = url.removeprefix("plugin://")
        return name != url and extract_plugin_type(name) == PLUGIN

    def create_connector(self, context: ConnectorContext) -> StokerConnector:
        return StokerConnector(context)


class StokerConnector(RemoteConnector):
    """Chunks as blocks of a cache: LMCache's description of the chunk, then its bytes."""

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context.config, context.metadata)
        self._local = context.local_cpu_backend
        plugin = context.plugin_name or PLUGIN
        extra = (context.config.extra_config if context.config is not None else None) or {}
        settings = {
            name.removeprefix(f"remote_storage_plugin.{plugin}."): value
            for name, value in extra.items()
            if name.startswith(f"remote_storage_plugin.{plugin}.")
        }
        path = settings.get("path")
        if not path:
            raise ValueError(f"remote_storage_plugin.{plugin}.path is missing: VOLUME/DIRECTORY")
        options = {name: kind(settings[name]) for name, kind in _OPTIONS.items() if settings.get(name) is not None}
        options.setdefault("memory", MEMORY)
        self._commit = str(settings.get("commit", False)).lower() in ("1", "true", "yes")
        store = connect(settings.get("endpoint"), token=settings.get("token"), dir=settings.get("dir"))
        self._cache = kv.open(path, self._fingerprint(context, settings), store=store, **options)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="stoker-kv")
        logger.info("stoker: %r", self._cache)

    @staticmethod
    def _fingerprint(context: ConnectorContext, settings: dict[str, Any]) -> dict[str, object]:
        """What all roles of LMCache know alike, scheduler and workers."""
        metadata, config = context.metadata, context.config
        return {
            "engine": "lmcache",
            "model": metadata.model_name,
            "revision": settings.get("revision", ""),
            "layout": f"{tuple(metadata.kv_shape)} mla={metadata.use_mla} layerwise={config.use_layerwise}",
            "dtype": metadata.kv_dtype,
            "parallelism": metadata.world_size,
            "chunk": metadata.chunk_size,
            "serde": config.remote_serde,
        }

    @property
    def cache(self) -> kv.Cache:
        """The cache behind it."""
        return self._cache

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        # LMCache's loop has other things to do while a drive is waited for.
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # What is there: memory alone, so nothing is waited for.

    async def exists(self, key: CacheEngineKey) -> bool:
        return self.exists_sync(key)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return key.to_string() in self._cache

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[CacheEngineKey]) -> int:
        return self._cache.exists_many([key.to_string() for key in keys])

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        return self.batched_contains(keys)

    # Getting

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        work = self._threads.submit(self._get, keys)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            # Who asked has gone, but the memory is LMCache's: it goes back when the reads have ended.
            work.add_done_callback(_give_back)
            raise

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        found = await self.batched_get(keys)
        count = found.index(None) if None in found else len(found)
        for chunk in found[count:]:
            if chunk is not None:
                chunk.ref_count_down()
        return [chunk for chunk in found[:count] if chunk is not None]

    def _get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        names = [key.to_string() for key in keys]
        found: list[MemoryObj | None] = [None] * len(keys)
        head_len = self.remote_metadata_bytes
        # Whole chunks are as long as LMCache says, and are read straight into its memory.
        whole: list[tuple[int, bytearray, MemoryObj]] = []
        try:
            for at, length in enumerate(self._cache.lengths(names)):
                if length == head_len + self.full_chunk_size_bytes:
                    chunk = self._local.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
                    if chunk is not None:
                        whole.append((at, bytearray(head_len), chunk))
                elif length is not None:
                    found[at] = self._get_other(names[at])
            into = [(head, chunk.byte_array) for _, head, chunk in whole]
            filled = self._cache.get_many([names[at] for at, _, _ in whole], into)
        except Exception as fault:  # whatever it is, LMCache can do without the chunks
            logger.warning("stoker: %s", fault)
            filled = [None] * len(whole)
        for (at, head, chunk), length in zip(whole, filled, strict=True):
            expected = RemoteMetadata(self.full_chunk_size_bytes, self.meta_shapes, self.meta_dtypes, self.meta_fmt)
            if length == head_len + self.full_chunk_size_bytes and bytes(head) == expected.serialize():
                found[at] = chunk
                continue
            chunk.ref_count_down()
            if length is not None:
                found[at] = self._get_other(names[at])
        return found

    def _get_other(self, name: str) -> MemoryObj | None:
        """A chunk of another length or shape: its description is read first."""
        try:
            block = self._cache.get(name)
            if block is None or len(block) < self.remote_metadata_bytes:
                return None
            said = RemoteMetadata.deserialize(block[: self.remote_metadata_bytes])
        except Exception as fault:  # a description that is none, too
            logger.warning("stoker: %s", fault)
            return None
        body = memoryview(block)[self.remote_metadata_bytes :]
        chunk = self._local.allocate(said.shapes, said.dtypes, said.fmt)
        if chunk is None:
            return None
        memory = chunk.byte_array
        view = memoryview(memory).cast("B") if not isinstance(memory, memoryview) else memory.cast("B")
        if said.length != len(body) or len(view) < len(body):
            chunk.ref_count_down()
            return None
        view[: len(body)] = body
        return chunk

    # Putting

    def support_batched_put(self) -> bool:
        return True

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    async def batched_put(self, keys: list[CacheEngineKey], memory_objs: list[MemoryObj]) -> None:
        # LMCache gives its references up when this ends, also if it is cancelled; nobody else may use the memory until it is read.
        for chunk in memory_objs:
            chunk.ref_count_up()
        try:
            work = self._threads.submit(self._put, keys, memory_objs)
        except RuntimeError:
            _let_go(memory_objs)
            raise
        # Also if it is cancelled before a thread takes it.
        work.add_done_callback(lambda _: _let_go(memory_objs))
        await asyncio.wrap_future(work)

    def _put(self, keys: list[CacheEngineKey], chunks: list[MemoryObj]) -> None:
        blocks = []
        for chunk in chunks:
            body = chunk.byte_array
            said = RemoteMetadata(len(body), chunk.get_shapes(), chunk.get_dtypes(), chunk.get_memory_format())
            blocks.append((said.serialize(), body))
        self._cache.put_many([key.to_string() for key in keys], blocks, commit=self._commit)

    # The rest

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        try:
            await self._call(self._cache.refresh)
        except OSError as fault:
            logger.warning("stoker: %s", fault)
            return 1
        return 0

    async def list(self) -> list[str]:
        """Nothing: a cache knows digests of keys, not keys."""
        return []

    def remove_sync(self, key: CacheEngineKey) -> bool:
        """Never: blocks leave by their time and by the cap."""
        return False

    async def close(self) -> None:
        try:
            await self._call(self._cache.close)
        finally:
            self._threads.shutdown(wait=False)
