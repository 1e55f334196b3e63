"""Files, names, receipts and errors."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import stoker

from .conftest import Node


def test_what_was_written_is_read(store: stoker.Store, place: str) -> None:
    data = os.urandom(9_000_001)
    receipt = store.write(f"{place}/a", data)
    assert (receipt.size, receipt.copies, receipt.durability) == (len(data), 1, "one")
    assert store.read(f"stoker://{place}/a") == data
    assert store.stat(f"{place}/a").size == len(data)
    with store.open(f"{place}/a") as file:
        assert isinstance(file, io.BufferedReader)
        file.seek(-11, io.SEEK_END)
        assert file.read() == data[-11:]


def test_memory_of_the_caller_is_filled(store: stoker.Store, place: str) -> None:
    data = os.urandom(3 << 20)
    store.write(f"{place}/a", data)
    own = bytearray(len(data) + 10)
    assert store.readinto(f"{place}/a", own) == len(data)
    assert own[: len(data)] == data and own[len(data) :] == bytes(10)
    with store.open(f"{place}/a", buffering=0) as file:
        part = memoryview(own)[5:1005]
        assert file.readinto_at(part, 77) == 1000
        assert bytes(part) == data[77:1077]
        many = bytearray(30)
        file.read_many([(0, 10), (1 << 20, 10), (5, 10)], many)
        assert many == data[:10] + data[1 << 20 : (1 << 20) + 10] + data[5:15]
        with pytest.raises(ValueError, match="not inside"):
            file.read_many([(len(data) - 1, 2)], many)
    with pytest.raises((BufferError, TypeError)):
        store.readinto(f"{place}/a", b"read only")


def test_an_array_is_written_and_filled(store: stoker.Store, place: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1_000_003, dtype=numpy.float64)
    store.write(f"{place}/a", array)
    again = numpy.empty_like(array)
    store.readinto(f"{place}/a", again)
    assert (array == again).all()


def test_an_error_leaves_nothing(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/a", b"before")
    with pytest.raises(RuntimeError), store.open(f"{place}/a", "wb") as file:
        file.write(bytes(10_000_000))
        raise RuntimeError
    assert store.read(f"{place}/a") == b"before"
    file = store.open(f"{place}/a", "wb")
    file.write(b"never closed")
    del file
    assert store.read(f"{place}/a") == b"before"


def test_modes(store: stoker.Store, place: str) -> None:
    with store.open(f"{place}/a", "xb") as file:
        file.write(b"one")
    assert file.receipt is not None and file.receipt.size == 3
    with pytest.raises(FileExistsError):
        store.write(f"{place}/a", b"", exclusive=True)
    with store.open(f"{place}/a", "ab") as file:
        file.write(b" two")
    assert store.read(f"{place}/a") == b"one two"
    with pytest.raises(ValueError, match="mode"):
        store.open(f"{place}/a", "r+b")  # type: ignore[call-overload]


def test_names(store: stoker.Store, place: str) -> None:
    for name in ("a", "d/b", "d/c"):
        store.write(f"{place}/{name}", name.encode())
    listed = [(one.name, one.is_directory) for one in store.list(place)]
    assert listed == [("a", False), ("d", True)]
    assert [one.path for one in store.list(place, recursive=True)] == [
        f"stoker://{place}/{name}" for name in ("a", "d/b", "d/c")
    ]
    store.rename(f"{place}/d/", f"{place}/e/")
    assert store.copy(f"{place}/e/b", f"{place}/f").size == 3
    assert store.remove(f"{place}/a", f"{place}/nothing") == 1
    assert [one.name for one in store.list(place, recursive=True)] == ["b", "c", "f"]
    assert store.exists(f"{place}/f") and not store.exists(f"{place}/a")


def test_many_names_come_in_pages(store: stoker.Store, place: str) -> None:
    for number in range(1_203):
        store.write(f"{place}/{number:05}", b"")
    assert sum(1 for _ in store.list(place)) == 1_203
    assert store.remove(*[one.path for one in store.list(place)]) == 1_203


def test_odd_names(store: stoker.Store, place: str) -> None:
    odd = ["ä ö?#%", "line\nbreak", "\udcff\udcfe bytes that are no text"]
    for name in odd:
        store.write(f"{place}/{name}", name.encode("utf-8", "surrogateescape"))
    assert sorted(one.name for one in store.list(place)) == sorted(odd)
    for name in odd:
        assert store.read(f"{place}/{name}") == name.encode("utf-8", "surrogateescape")


def test_receipts_are_awaited(store: stoker.Store, node: Node, place: str) -> None:
    receipt = store.write(f"{place}/a", b"drained")
    assert receipt.wait_committed().copies == 1
    store.drain(place)
    drained = receipt.wait_drained()
    assert drained.drain == "clean" and drained.lake_etag
    assert any(path.read_bytes() == b"drained" for path in node.lake.rglob("a") if path.is_file())
    again = pickle.loads(pickle.dumps(drained))
    assert again == drained
    with pytest.raises(ValueError, match="another process"):
        again.wait_drained()


def test_errors_are_pythons_own(store: stoker.Store, place: str) -> None:
    with pytest.raises(FileNotFoundError) as fault:
        store.read(f"{place}/nothing")
    assert fault.value.filename == f"stoker://{place}/nothing"
    with pytest.raises(FileNotFoundError):
        store.read("no-such-volume/x")
    with pytest.raises(ValueError, match="VOLUME/KEY"):
        store.read("data")
    with pytest.raises(ValueError, match="1024"):
        store.write("data/" + "x" * 2000, b"")
    with pytest.raises(TypeError):
        store.write(f"{place}/a", "text")  # type: ignore[arg-type]


def test_who_does_not_find_a_node_hears_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_ENDPOINT", "STOKER_DIR", "STOKER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConnectionError) as fault:
        stoker.connect(timeout=2)
    for part in ("stoker-data", "/var/lib/stoker", "client.json", "stoker up"):
        assert part in str(fault.value)
    with pytest.raises(ConnectionError, match="STOKER_DIR"):
        monkeypatch.setenv("STOKER_DIR", str(tmp_path))
        stoker.connect(timeout=2)


def test_the_users_config_is_asked(
    node: Node, store: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STOKER_ENDPOINT", "STOKER_DIR", "STOKER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "stoker").mkdir()
    config = tmp_path / "stoker" / "client.json"
    config.write_text(f'{{"dir": "{node.folder}"}}')
    assert stoker.connect().volumes() == store.volumes()
    config.write_text("{}")
    with pytest.raises(ValueError, match="client.json"):
        stoker.connect()


def _child(path: str, store: stoker.Store, file: stoker.Reader, expect: bytes) -> None:
    assert store.read(path) == expect
    assert file.read_at(0, len(expect)) == expect
    store.write(path + ".child", b"from the child")


def test_forked_processes_go_on(store: stoker.Store, place: str) -> None:
    data = os.urandom(100_000)
    store.write(f"{place}/a", data)
    file = store.open(f"{place}/a", buffering=0)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_child, args=(f"{place}/a", store, file, data)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert file.read_at(0, 100_000) == data
    assert store.read(f"{place}/a.child") == b"from the child"


def test_threads_share_a_file(store: stoker.Store, place: str) -> None:
    data = os.urandom(4 << 20)
    store.write(f"{place}/a", data)
    wrong: list[int] = []
    with store.open(f"{place}/a", buffering=0) as file:

        def read(seed: int) -> None:
            for step in range(200):
                at = (seed * 7_919 + step * 65_537) % (len(data) - 5_000)
                if file.read_at(at, 5_000) != data[at : at + 5_000]:
                    wrong.append(at)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("buffering", [64 << 10, 0])
def test_what_is_closed_keeps_nothing_in_the_lake(node: Node, store: stoker.Store, place: str, buffering: int) -> None:
    receipt = store.write(f"{place}/a", b"x" * 100_000)
    store.drain(f"{place}/a")
    receipt.wait_drained()
    there = node.lake / place / "a"
    assert there.is_file()
    file = store.open(f"{place}/a", buffering=buffering)
    assert file.read(1) == b"x"
    store.remove(f"{place}/a")
    file.close()
    # The object of the file is still here; only its version is not open any more.
    for _ in range(600):
        if not there.exists():
            break
        time.sleep(0.1)
    assert not there.exists()
    with pytest.raises(ValueError):
        file.read(1)


def test_ctrl_c_ends_a_wait(node: Node, place: str) -> None:
    # The file is never drained, so the wait would not end by itself.
    script = f"""
        import stoker
        store = stoker.connect(dir={str(node.folder)!r})
        receipt = store.write({place!r} + "/a", b"x")
        try:
            print("waiting", flush=True)
            while True:
                receipt = store.write({place!r} + "/a", b"x")
                receipt.wait_drained()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "interrupted\n"


def test_a_forked_child_leaves_the_parents_writer_alone(store: stoker.Store, place: str) -> None:
    path, whole = f"{place}/a", os.urandom(8 << 20)
    writer = store.open(path, "wb")
    writer.write(whole[: 6 << 20])
    child = os.fork()
    if child == 0:
        try:
            del writer
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(whole[6 << 20 :])
    writer.close()
    assert store.read(path) == whole
