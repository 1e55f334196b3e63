"""LMCache itself, with Stoker as its remote storage plugin, without a GPU."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker
import stoker.kv

torch = pytest.importorskip("torch")
pytest.importorskip("lmcache")

from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat, MemoryObj  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402
from lmcache.v1.storage_backend.remote_backend import RemoteBackend  # noqa: E402

from .conftest import Node  # noqa: E402

CHUNK = 16
Make = Callable[..., RemoteBackend]


def metadata(model: str = "test/model") -> LMCacheMetadata:
    return LMCacheMetadata(
        model_name=model,
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(4, 2, CHUNK, 8, 64),
        chunk_size=CHUNK,
    )


@pytest.fixture
def make(node: Node, place: str) -> Iterator[Make]:
    """Remote backends of LMCache as its engine makes them, each with memory of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made: list[RemoteBackend] = []

    def one(model: str = "test/model", **settings: Any) -> RemoteBackend:
        said = {
            "module_path": "stoker.lmcache",
            "class_name": "StokerAdapter",
            "path": f"{place}/kv",
            "dir": str(node.folder),
            "capacity": 64 << 20,
            **settings,
        }
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.05,
            remote_serde="naive",
            remote_storage_plugins=["stoker"],
            extra_config={f"remote_storage_plugin.stoker.{name}": value for name, value in said.items()},
        )
        of_model = metadata(model)
        local = LocalCPUBackend(config, of_model, dst_device="cpu")
        made.append(RemoteBackend(config, of_model, loop, local, "cpu", plugin_name="stoker"))
        return made[-1]

    yield one
    for backend in made:
        backend.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def cache_of(backend: RemoteBackend) -> stoker.kv.Cache:
    assert backend.connection is not None
    cache = backend.connection.getWrappedConnector().cache
    assert isinstance(cache, stoker.kv.Cache)
    return cache


def key(number: int, model: str = "test/model") -> CacheEngineKey:
    return CacheEngineKey(model, 1, 0, number, torch.bfloat16)


def chunk(backend: RemoteBackend, seed: int, tokens: int = CHUNK) -> MemoryObj:
    shape = torch.Size([2, 4, tokens, 8 * 64])
    made = backend.local_cpu_backend.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD)
    assert made is not None
    made.tensor.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    return made


def put(backend: RemoteBackend, numbers: list[int], tokens: int = CHUNK) -> list[Any]:
    chunks = [chunk(backend, number, tokens) for number in numbers]
    tensors = [one.tensor.clone() for one in chunks]
    done = threading.Semaphore(0)
    backend.batched_submit_put_task([key(one) for one in numbers], chunks, on_complete_callback=lambda _: done.release())
    for one in chunks:
        assert done.acquire(timeout=60)
        one.ref_count_down()
    return tensors


def test_chunks_survive_a_restart(make: Make) -> None:
    first = make(commit=True)
    tensors = put(first, [1, 2, 3])
    assert first.contains(key(1)) and not first.contains(key(9))
    second = make()
    keys = [key(number) for number in (1, 2, 3, 4)]
    assert second.batched_contains(keys) == 3
    found = second.batched_get_blocking(keys)
    assert found[3] is None
    for tensor, one in zip(tensors, found, strict=False):
        assert one is not None and one.metadata.fmt == MemoryFormat.KV_2LTD
        assert torch.equal(one.tensor, tensor)
        one.ref_count_down()
    one = second.get_blocking(key(2))
    assert one is not None and torch.equal(one.tensor, tensors[1])
    assert cache_of(second).stats().hits_ring >= 3


def test_a_put_that_is_cancelled_keeps_nothing(make: Make) -> None:
    backend = make()
    assert backend.connection is not None
    connector = backend.connection.getWrappedConnector()
    loop, hold = backend.loop, threading.Event()
    # Every thread is busy, so that nobody takes it.
    busy = [connector._threads.submit(hold.wait) for _ in range(connector._threads._max_workers)]
    one = chunk(backend, 1)
    before = one.get_ref_count()

    async def give_up() -> int:
        work = asyncio.ensure_future(connector.batched_put([key(1)], [one]))
        while one.get_ref_count() == before:
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return one.get_ref_count()

    try:
        assert asyncio.run_coroutine_threadsafe(give_up(), loop).result(60) == before
    finally:
        hold.set()
    assert all(work.result(60) for work in busy)
    one.ref_count_down()


def test_the_last_chunk_may_be_short(make: Make) -> None:
    first = make(commit=True)
    (tensor,) = put(first, [7], tokens=5)
    one = make().get_blocking(key(7))
    assert one is not None and one.tensor.shape == tensor.shape and torch.equal(one.tensor, tensor)


def test_lookups_of_the_asynchronous_engine(make: Make) -> None:
    backend = make(commit=True)
    tensors = put(backend, [1, 2, 4])
    keys = [key(number) for number in (1, 2, 3, 4)]

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, backend.loop).result(60)

    assert run(backend.batched_async_contains("lookup", keys)) == 2
    found = run(backend.batched_get_non_blocking("lookup", keys))
    assert len(found) == 2 and all(torch.equal(one.tensor, tensor) for one, tensor in zip(found, tensors, strict=False))


def test_other_models_and_revisions_find_nothing(make: Make) -> None:
    put(make(commit=True), [1])
    assert make().contains(key(1))
    assert not make(revision="other").contains(key(1))
    assert not make(model="other").contains(key(1))


def test_damaged_chunks_are_misses(make: Make, store: stoker.Store, place: str) -> None:
    tensors = put(make(commit=True), [1, 2])
    (bundle,) = store.list(f"{place}/kv")
    bad = bytearray(store.read(bundle.path))
    bad[1000] ^= 1
    store.write(bundle.path, bad)
    backend = make()
    first, second = backend.batched_get_blocking([key(1), key(2)])
    assert first is None and second is not None and torch.equal(second.tensor, tensors[1])
    assert cache_of(backend).stats().corrupt == 1


def test_memory_is_given_back(make: Make) -> None:
    backend = make(commit=True)
    put(backend, [1])
    for _ in range(800):
        # All of LMCache's memory, twice.
        one = backend.get_blocking(key(1))
        assert one is not None
        one.ref_count_down()
        assert backend.get_blocking(key(99)) is None
