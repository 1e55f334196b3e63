"""Ranges of files into memory, by the loader that fills GPUs, here on the host's memory and without torch."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stoker
import stoker.gpu
from .conftest import Node
from stoker import _stoker

FRESH = 0xAA


class Target:
    """Memory with guards around it."""

    GUARD = 64

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = (ctypes.c_ubyte * (size + 2 * self.GUARD))(*[])
        ctypes.memset(self._memory, FRESH, len(self._memory))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._memory) + self.GUARD

    def bytes(self) -> bytes:
        whole = bytes(self._memory)
        guards = whole[: self.GUARD] + whole[self.GUARD + self.size :]
        assert guards == bytes([FRESH]) * (2 * self.GUARD), "beside the memory"
        return whole[self.GUARD : self.GUARD + self.size]


def load(
    store: stoker.Store, path: str, ranges: list[tuple[int, int]], cache: tuple[str, int] | None = None, **how: int
) -> tuple[list[bytes], dict[str, Any]]:
    """Loads ranges of a file; the bytes of each, and the report."""
    targets = [Target(size) for _, size in ranges]
    with store.open(path, buffering=0) as file:
        places = [(0, offset, size, one.address) for (offset, size), one in zip(ranges, targets)]
        told = json.loads(_stoker.Loader(**how).load([file._open()], places, cache))
    return [one.bytes() for one in targets], told


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [1, 4095, 300_001, (9 << 20) + 17])
def test_ranges_come_to_their_places(store: stoker.Store, place: str, size: int) -> None:
    data = content(size)
    store.write(f"{place}/a", data)
    cuts = sorted({0, size, *(random.Random(size).randrange(size + 1) for _ in range(40))})
    ranges = [(start, end - start) for start, end in zip(cuts, cuts[1:])]
    # Some are not wanted, and the order is another one than that of the file.
    ranges = [one for number, one in enumerate(ranges) if number % 5 != 3][::-1]
    for how in ({}, {"threads": 3, "piece": 10_000}):
        found, told = load(store, f"{place}/a", ranges, **how)
        assert found == [data[offset : offset + length] for offset, length in ranges]
        assert told["bytes"] == sum(length for _, length in ranges) and told["path"] == "host" and told["verified"]
        assert sum(told["read_us"]) == told["reads"] and told["cache"] == ["off"]


def test_places_outside_of_a_file_are_refused(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/a", content(1000))
    for ranges in ([(0, 1001)], [(1000, 1)], [(1 << 63, 1 << 63)], [(0, 10), (9, 5)]):
        with store.open(f"{place}/a", buffering=0) as file, pytest.raises(ValueError):
            # No memory is needed: nothing is read.
            _stoker.Loader().load([file._open()], [(0, offset, length, 4096) for offset, length in ranges])


def test_the_second_load_comes_from_the_host_cache(store: stoker.Store, place: str, tmp_path: Path) -> None:
    data = content((6 << 20) + 5)
    store.write(f"{place}/a", data)
    cache = (str(tmp_path / "cache"), 1 << 30)
    ranges = [(7, len(data) - 7)]
    for wanted in ("kept", "hit", "hit"):
        found, told = load(store, f"{place}/a", ranges, cache)
        assert found == [data[7:]] and told["cache"] == [wanted]
        assert told["bytes_cached"] == (len(data) - 7 if wanted == "hit" else 0)
    # Another content of the same name is another version.
    store.write(f"{place}/a", data[::-1])
    found, told = load(store, f"{place}/a", ranges, cache)
    assert found == [data[::-1][7:]] and told["cache"] == ["kept"]


def test_what_does_not_fit_is_loaded_all_the_same(store: stoker.Store, place: str, tmp_path: Path) -> None:
    data = content(3 << 20)
    store.write(f"{place}/a", data)
    found, told = load(store, f"{place}/a", [(0, len(data))], (str(tmp_path / "cache"), 1 << 20))
    assert found == [data] and told["cache"][0].startswith("not kept")
    (tmp_path / "open").mkdir(mode=0o755)
    found, told = load(store, f"{place}/a", [(0, len(data))], (str(tmp_path / "open"), 1 << 30))
    assert found == [data] and "0700" in told["cache"][0]


def test_damage_in_the_cache_is_never_given(store: stoker.Store, place: str, tmp_path: Path) -> None:
    data, chance = content(2_000_000), random.Random(3)
    store.write(f"{place}/a", data)
    cache, seen = (str(tmp_path / "cache"), 1 << 30), set()
    for turn in range(12):
        load(store, f"{place}/a", [(0, len(data))], cache)
        (kept,) = (tmp_path / "cache").glob("*.weights")
        start = kept.stat().st_size - len(data)
        with open(kept, "r+b") as file:
            if turn % 3 == 0:
                # Two blocks change places: each is good, where it is not.
                file.seek(start)
                first, second = file.read(65536), file.read(65536)
                file.seek(start)
                file.write(second + first)
            elif turn % 3 == 1:
                at = start + chance.randrange(len(data))
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ 1]))
            else:
                file.truncate(start + chance.randrange(len(data)))
        found, told = load(store, f"{place}/a", [(0, len(data))], cache)
        assert found == [data], f"turn {turn}"
        seen.add(told["cache"][0])
    assert "damaged" in seen


def test_damage_on_the_drive_is_never_given(node: Node, store: stoker.Store, place: str) -> None:
    data = content(5 << 20, seed=9)
    store.write(f"{place}/a", data)
    mark, flipped = data[3_000_000:3_000_064], 0
    for path in node.folder.rglob("*"):
        if not path.is_file() or path.is_relative_to(node.lake) or path.stat().st_size < len(mark):
            continue
        whole = path.read_bytes()
        at = whole.find(mark)
        while at >= 0:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ 0x10]))
            flipped += 1
            at = whole.find(mark, at + 1)
    if not flipped:
        pytest.skip("the bytes are not in files of the node as they are")
    # From another copy, from the node's memory, or not at all.
    try:
        found, _ = load(store, f"{place}/a", [(0, len(data))])
    except OSError:
        return
    assert found == [data]


def test_ctrl_c_ends_a_load(node: Node, store: stoker.Store, place: str, tmp_path: Path) -> None:
    store.write(f"{place}/a", content(32 << 20))
    code = f"""
import ctypes, signal, stoker, stoker.gpu
from stoker import _stoker
store = stoker.connect(dir={str(node.folder)!r})
memory = (ctypes.c_ubyte * (32 << 20))()
loader = _stoker.Loader(threads=1, piece=4096)
with store.open({place + "/a"!r}, buffering=0) as file:
    try:
        print("begun", flush=True)
        while True:
            loader.load([file._open()], [(0, 0, 32 << 20, ctypes.addressof(memory))], ({str(tmp_path / "cache")!r}, 1 << 10))
    except KeyboardInterrupt:
        print("ended", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("ended\n", 0)


def test_a_process_that_is_killed_leaves_nothing_behind(node: Node, store: stoker.Store, place: str, tmp_path: Path) -> None:
    data = content(16 << 20)
    store.write(f"{place}/a", data)
    cache = (str(tmp_path / "cache"), 1 << 30)
    code = f"""
import ctypes, stoker
from stoker import _stoker
store = stoker.connect(dir={str(node.folder)!r})
memory = (ctypes.c_ubyte * (16 << 20))()
with store.open({place + "/a"!r}, buffering=0) as file:
    print("begun", flush=True)
    _stoker.Loader(threads=1, piece=4096).load([file._open()], [(0, 0, 16 << 20, ctypes.addressof(memory))], {cache!r})
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    end = time.monotonic() + 30
    while not list((tmp_path / "cache").glob("*")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    found, _ = load(store, f"{place}/a", [(0, len(data))], cache)
    assert found == [data] and not list((tmp_path / "cache").glob("*.part"))


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    path, why = stoker.gpu.probe("cuda")
    assert path == "pinned" or (path == "plain" and why)
    if not os.path.exists("/dev/nvidiactl"):
        with pytest.raises(stoker.gpu.DeviceError, match="CUDA"):
            _stoker.Loader(0)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert stoker.gpu.probe("cuda")[0] == "plain" and "torch" in stoker.gpu.probe("cuda")[1]


def test_sizes_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [stoker.gpu.parse_size(one) for one in (None, 0, 5, "64GiB", "1.5 MiB")] == [0, 0, 5, 64 << 30, 3 << 19]
    for wrong in ("much", "-1", -1, "nan", "1e999"):
        with pytest.raises(ValueError):
            stoker.gpu.parse_size(wrong)
    monkeypatch.delenv("STOKER_GPU_CACHE", raising=False)
    assert stoker.gpu.cache_place() is None
    monkeypatch.setenv("STOKER_GPU_CACHE", "1GiB")
    monkeypatch.setenv("STOKER_GPU_CACHE_DIR", "/x")
    assert stoker.gpu.cache_place() == ("/x", 1 << 30) and stoker.gpu.cache_place(0) is None


def test_it_costs_no_torch_to_import() -> None:
    code = "import sys, stoker.gpu; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    assert done.returncode == 0, done.stderr
