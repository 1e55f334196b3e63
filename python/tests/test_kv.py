"""KV-cache blocks on a real node."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
import stoker.kv

from .conftest import Node, start

MODEL = {"model": "m", "engine": "e", "layout": "NHD", "dtype": "bf16", "parallelism": "tp=1"}


@pytest.fixture
def cache(store: stoker.Store, place: str) -> stoker.kv.Cache:
    return stoker.kv.open(f"{place}/kv", MODEL, store=store, capacity=32 << 20, memory=8 << 20, linger=600)


def again(cache: stoker.kv.Cache, store: stoker.Store, **options: int) -> stoker.kv.Cache:
    """The same directory, as another process sees it."""
    return stoker.kv.open(cache.path, MODEL, store=store, **{"capacity": 32 << 20, "memory": 0, **options})  # type: ignore[arg-type]


def bundles(store: stoker.Store, cache: stoker.kv.Cache) -> list[stoker.FileInfo]:
    return [one for one in store.list(cache.path) if not one.is_directory]


def test_blocks_come_back(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    keys = [b"a", b"b", "text"]
    blocks = [os.urandom(1), os.urandom(1 << 20), os.urandom(70_001)]
    assert cache.put_many(keys, blocks, commit=True) == ["committed"] * 3
    other = again(cache, store)
    for one in (cache, other):
        assert [one.get(key) for key in keys] == blocks
        assert one.get_many([*keys, b"none"]) == [*blocks, None]
        assert one.get(b"none") is None
        assert one.lengths([*keys, b"none"]) == [1, 1 << 20, 70_001, None]
        into = [bytearray(len(block) + 5) for block in blocks]
        assert one.get_many(keys, into) == [len(block) for block in blocks]
        assert [bytes(own[:-5]) for own in into] == blocks and all(own[-5:] == bytes(5) for own in into)
    assert cache.stats().hits_ring == 0 and other.stats().hits_memory == 0
    assert other.stats().hits_ring == 9 and other.stats().misses == 2


def test_long_blocks_are_read_to_where_they_belong(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    sizes = [3 << 20, 1 << 20, (1 << 20) + 1, 5000, 2 << 20, 4096]
    keys, blocks = [str(size) for size in sizes], [os.urandom(size) for size in sizes]
    cache.put_many(keys, blocks, commit=True)
    other = again(cache, store)
    for skip in (0, 1, 4096):
        # Page-aligned, and not.
        memory = [mmap.mmap(-1, size + 8192) for size in sizes]
        into = [memoryview(one)[skip : skip + size] for one, size in zip(memory, sizes)]
        assert other.get_many(keys, into) == sizes
        assert [bytes(one) for one in into] == blocks
    # A key that is not there in between, and memory in two parts.
    half = memoryview(mmap.mmap(-1, 4 << 20))
    assert other.get_many([keys[0], "none", keys[4]], [(half[: 2 << 20], half[2 << 20 : 3 << 20]), bytearray(1), bytearray(2 << 20)]) == [
        sizes[0],
        None,
        sizes[4],
    ]
    assert bytes(half[: 3 << 20]) == blocks[0]
    assert other.stats().hits_ring == 20 and other.stats().corrupt == 0


def test_arrays_and_tensors(cache: stoker.kv.Cache) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100_000, dtype=numpy.float32).reshape(10, -1)
    cache.put(b"array", array, commit=True)
    own = numpy.zeros_like(array)
    assert cache.get_many([b"array"], [own]) == [array.nbytes]
    assert (own == array).all()
    torch = pytest.importorskip("torch")
    tensor = torch.randn(4, 33, 17).to(torch.bfloat16)
    cache.put(b"tensor", tensor)
    filled = torch.zeros_like(tensor)
    assert cache.get_many([b"tensor"], [filled]) == [tensor.numel() * 2]
    assert torch.equal(filled, tensor)
    with pytest.raises(ValueError, match="contiguous"):
        cache.put(b"view", tensor.transpose(0, 1))


def test_blocks_of_several_parts(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    head, body = os.urandom(28), os.urandom(1 << 20)
    cache.put(b"key", (head, body), commit=True)
    for one in (cache, again(cache, store)):
        assert one.get(b"key") == head + body
        into = (bytearray(28), bytearray((1 << 20) + 1))
        assert one.get_many([b"key"], [into]) == [len(head) + len(body)]
        assert into == (head, body + b"\0")


def test_the_longest_prefix(cache: stoker.kv.Cache) -> None:
    keys = [f"{number}".encode() for number in range(256)]
    assert cache.exists_many(keys) == 0 and cache.exists_many([]) == 0
    cache.put_many(keys[:200] + keys[201:], [b"block"] * 255)
    assert cache.exists_many(keys) == 200
    assert cache.contains_many(keys) == [number != 200 for number in range(256)]
    assert b"0" in cache and b"200" not in cache


def test_other_fingerprints_find_nothing(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    cache.put(b"key", b"block", commit=True)
    for field in MODEL:
        other = cache.namespace({**MODEL, field: "other"})
        assert b"key" not in other and other.get(b"key") is None
        opened = stoker.kv.open(cache.path, {**MODEL, field: "other"}, store=store)
        assert opened.get(b"key") is None and opened.stats().blocks == 1
    assert cache.namespace(dict(reversed(MODEL.items()))).get(b"key") == b"block"


def test_the_second_use_writes(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    assert cache.put_many([b"put", b"read", b"never"], [b"1", b"2", b"3"]) == ["memory"] * 3
    cache.flush()
    assert bundles(store, cache) == []
    assert cache.put(b"put", b"1") == "queued" and cache.get(b"read") == b"2"
    cache.flush()
    assert cache.put(b"put", b"1") == "committed"
    assert again(cache, store).contains_many([b"put", b"read", b"never"]) == [True, True, False]
    always = stoker.kv.open(cache.path, MODEL, store=store, admit="always", linger=600)
    assert always.put(b"never", b"3") == "queued"
    always.flush()
    assert again(cache, store).get(b"never") == b"3"


def test_what_has_no_room_in_memory_is_remembered(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    bare = again(cache, store, memory=0)
    assert bare.put(b"key", b"block") == "seen" and bare.get(b"key") is None
    assert bare.put(b"key", b"block") == "queued" and bare.get(b"key") == b"block"
    bare.flush()
    assert bare.get(b"key") == b"block"


def test_blocks_expire(store: stoker.Store, place: str) -> None:
    cache = stoker.kv.open(f"{place}/kv", MODEL, store=store, ttl=100)
    cache._native.set_time(1_000_000)
    cache.put(b"usual", b"block", commit=True)
    cache.put(b"short", b"block", ttl=0.5, commit=True)
    cache._native.set_time(1_000_499)
    assert cache.contains_many([b"usual", b"short"]) == [True, True]
    cache._native.set_time(1_000_500)
    assert cache.contains_many([b"usual", b"short"]) == [True, False]
    assert cache.get(b"short") is None
    cache._native.set_time(1_100_000)
    assert cache.get(b"usual") is None


def test_the_cap_holds(store: stoker.Store, place: str) -> None:
    cap = 4 << 20
    one, two = (stoker.kv.open(f"{place}/kv", MODEL, store=store, capacity=cap, memory=0) for _ in range(2))
    for number in range(12):
        for cache in (one, two):
            cache.put(f"{id(cache)}-{number}".encode(), os.urandom(400_000), commit=True)
            assert sum(bundle.size for bundle in bundles(store, cache)) <= cap
    assert one.stats().evictions + two.stats().evictions >= 12
    assert f"{id(two)}-11".encode() in two
    with pytest.raises(ValueError, match="bytes"):
        one.put(b"long", bytes(cap), commit=True)


def test_bundles_of_others_are_found(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    other = again(cache, store)
    cache.put(b"key", b"block", commit=True)
    other.refresh()
    assert other.get(b"key") == b"block"
    cache.clear()
    other.refresh()
    assert other.get(b"key") is None and other.stats().bytes == 0


def test_flipped_bytes_are_misses(cache: stoker.kv.Cache, store: stoker.Store) -> None:
    block = os.urandom(600_000)
    cache.put_many([b"a", b"b"], [block, block], commit=True)
    (bundle,) = bundles(store, cache)
    good = store.read(bundle.path)
    for at in (0, 333_333, 599_999):
        bad = bytearray(good)
        bad[at] ^= 0x10
        store.write(bundle.path, bad)
        other = again(cache, store)
        assert other.get_many([b"a", b"b"]) == [None, block]
        assert other.get(b"a") is None
        assert (other.stats().corrupt, other.stats().misses) == (1, 2)
    for bad in (good[:-1], good[: len(good) // 2], good[:10], b"", os.urandom(len(good)), good + b"\0"):
        store.write(bundle.path, bad)
        other = again(cache, store)
        assert other.get_many([b"a", b"b"]) == [None, None]
        assert other.stats().bundles_bad == 1


def test_wrong_arguments(cache: stoker.kv.Cache, store: stoker.Store, place: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="volume create nowhere"):
        stoker.kv.open("nowhere/kv", MODEL, store=store)
    for fingerprint in ({}, "m", None):
        with pytest.raises(ValueError, match="fingerprint"):
            stoker.kv.open(f"{place}/kv", fingerprint, store=store)  # type: ignore[arg-type]
    for options in ({"ttl": 0}, {"capacity": 10}, {"capacity": -1}, {"admit": "never"}, {"refresh": float("nan")}):
        with pytest.raises(ValueError):
            stoker.kv.open(f"{place}/kv", MODEL, store=store, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="VOLUME"):
        stoker.kv.open("data", MODEL, store=store)
    with pytest.raises(TypeError, match="bytes or str"):
        cache.exists_many([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 keys with 1"):
        cache.put_many([b"a", b"b"], [b"a"])
    with pytest.raises(ValueError, match="bytes"):
        cache.put(b"empty", b"")
    cache.put(b"long", bytes(100))
    with pytest.raises(ValueError, match="100 bytes, its buffer 99"):
        cache.get_many([b"long"], [bytearray(99)])
    with pytest.raises((BufferError, TypeError)):
        cache.get_many([b"long"], [bytes(100)])
    with pytest.raises(ConnectionError, match="stoker up"):
        stoker.kv.open(f"{place}/kv", MODEL, store=stoker.connect(dir=tmp_path))


def test_many_threads(cache: stoker.kv.Cache) -> None:
    blocks = {f"{number}".encode(): os.urandom(20_000 + number) for number in range(64)}
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for key, block in blocks.items():
                cache.put(key, block)
                found = cache.get(key)
                assert found is None or found == block
            cache.put_many(list(blocks), list(blocks.values()), commit=True)
            assert cache.get_many(list(blocks)) == list(blocks.values())
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not faults
    assert cache.stats().admitted == 64, "each was written once"


def test_forked_processes_find_blocks(cache: stoker.kv.Cache) -> None:
    cache.put(b"committed", b"1", commit=True)
    cache.put(b"memory", b"2")

    def child(answers: multiprocessing.SimpleQueue[object]) -> None:
        answers.put((cache.get(b"committed"), cache.get(b"memory"), cache.put(b"child", b"3", commit=True)))

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    assert answers.get() == (b"1", None, "committed")
    process.join()
    assert process.exitcode == 0
    cache.refresh()
    assert cache.get_many([b"committed", b"memory", b"child"]) == [b"1", b"2", b"3"]


WRITER = """
    import sys, stoker, stoker.kv
    cache = stoker.kv.open("data/killed", {"model": "m"}, store=stoker.connect(dir=sys.argv[1]), memory=1 << 20)
    number = 0
    while True:
        keys = [f"{number + each}" for each in range(4)]
        assert set(cache.put_many(keys, [key.encode() * 20_000 for key in keys], commit=True)) == {"committed"}
        number += 4
        print(number, flush=True)
"""


@pytest.fixture
def own_node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="stoker-kv-") as folder:
        node = start(Path(folder))
        yield node
        if node.process.poll() is None:
            node.process.terminate()
            node.process.wait()


@pytest.mark.parametrize("killed", ["writer", "node"])
def test_committed_blocks_survive_kill_9(own_node: Node, killed: str) -> None:
    program = [sys.executable, "-c", textwrap.dedent(WRITER), str(own_node.folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(5)]
        if killed == "node":
            own_node.kill()
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
    node = start(own_node.folder) if killed == "node" else own_node
    try:
        cache = stoker.kv.open("data/killed", {"model": "m"}, store=stoker.connect(dir=node.folder))
        keys = [f"{number}" for number in range(said[-1])]
        assert cache.exists_many(keys) == len(keys)
        assert cache.get_many(keys) == [key.encode() * 20_000 for key in keys]
        assert cache.stats().corrupt == 0
    finally:
        if node is not own_node:
            node.process.terminate()
            node.process.wait()


def test_a_cache_outlives_its_node(own_node: Node) -> None:
    cache = stoker.kv.open("data/kv", {"model": "m"}, store=stoker.connect(dir=own_node.folder), memory=0)
    block = os.urandom(500_000)
    cache.put(b"before", block, commit=True)
    assert cache.get(b"before") == block
    own_node.kill()
    node = start(own_node.folder)
    try:
        assert cache.get(b"before") == block
        assert cache.put(b"after", block, commit=True) == "committed"
    finally:
        node.process.terminate()
        node.process.wait()
