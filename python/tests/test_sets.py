"""Checkpoint sets."""

from __future__ import annotations

import multiprocessing
import time

import pytest

import stoker

from .conftest import Node


def _rank(store: stoker.Store, volume: str, id: int, number: int) -> None:
    store.open_set(volume, id).write(number, bytes([number]) * 100_000, writer=f"rank {number}")


def test_shards_of_several_processes_show_together(store: stoker.Store, place: str) -> None:
    made = store.begin_set(f"{place}/step-1", shards=4)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(store, made.volume, made.id, number)) for number in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    status = made.status()
    assert (status.state, status.present, status.laggards) == ("open", 3, (3,))
    with pytest.raises(stoker.ConflictError, match="3"):
        made.publish()
    assert list(store.list(f"{place}/step-1")) == [] and store.latest(place) is None
    made.write(3, b"last")
    made.publish()
    assert made.state == "published"
    assert store.latest(f"{place}/") == f"stoker://{place}/step-1/"
    assert store.read(f"{place}/step-1/shard-00002") == bytes([2]) * 100_000
    with pytest.raises(stoker.ConflictError):
        made.write(0, b"too late")


def test_the_same_owner_goes_on_and_another_is_refused(store: stoker.Store, place: str) -> None:
    first = store.begin_set(f"{place}/step-1", shards=2, owner="run-7")
    assert store.begin_set(f"{place}/step-1", shards=2, owner="run-7").id == first.id
    with pytest.raises(OSError):
        store.begin_set(f"{place}/step-1", shards=2, owner="run-8")
    found = store.find_set(f"{place}/step-1")
    assert found is not None and found.id == first.id
    first.abort()
    assert first.state == "aborted"
    assert store.find_set(f"{place}/step-1") is None


def _checkpoint(store: stoker.Store, path: str, what: bytes, shards: int = 3, overwrite: bool = False) -> stoker.CheckpointSet:
    made = store.begin_set(path, shards, overwrite=overwrite)
    for number in range(shards - 1):
        made.write(number, what * 50_000)
    made.write(shards - 1, what, ".metadata")
    return made


def _contents(store: stoker.Store, path: str) -> dict[str, bytes]:
    return {one.name: store.read(one.path) for one in store.list(path, recursive=True)}


def _drained(store: stoker.Store, path: str) -> None:
    """Waits until a set is in the lake; the time is a limit for a broken node."""
    store.drain(f"{path}/")
    made = store.find_set(f"{path}/")
    assert made is not None
    for _ in range(600):
        if made.status().drain == "clean":
            return
        time.sleep(0.1)
    raise AssertionError("never in the lake")


def test_a_set_replaces_another_in_one_step(node: Node, store: stoker.Store, place: str) -> None:
    path = f"{place}/step-1"
    _checkpoint(store, path, b"a", shards=5).publish()
    _drained(store, path)
    with pytest.raises(OSError):
        store.begin_set(path, 3)
    made = _checkpoint(store, path, b"b", overwrite=True)
    old = _contents(store, path)
    assert old.pop("_STOKER_SET.json", None) is not None and set(old.values()) == {b"a" * 50_000, b"a"}
    assert store.latest(f"{place}/") == f"stoker://{path}/"
    with store.open(f"{path}/shard-00000") as file:
        made.publish()
        # What is open is a version, whatever happens to its name.
        assert file.read() == b"a" * 50_000
    assert made.path == f"stoker://{path}/"
    new = _contents(store, path)
    new.pop("_STOKER_SET.json", None)
    assert new == {"shard-00000": b"b" * 50_000, "shard-00001": b"b" * 50_000, ".metadata": b"b"}
    assert store.latest(f"{place}/") == f"stoker://{path}/"
    assert [one.path for one in store.list(place)] == [f"stoker://{path}/"], "nothing is left beside it"
    made.publish()
    # The lake gets there, too: nothing of the old one, nothing under the other name.
    _drained(store, path)
    folder = node.lake / place
    wanted = {folder / "step-1" / name for name in (*new, "_STOKER_SET.json")}
    for _ in range(600):
        there = {one for one in folder.rglob("*") if one.is_file()}
        if there == wanted:
            break
        time.sleep(0.1)
    assert there == wanted
    assert (folder / "step-1" / "shard-00001").read_bytes() == b"b" * 50_000


def test_what_a_crash_leaves_of_an_overwrite_is_settled_by_the_next(store: stoker.Store, place: str) -> None:
    path, aside = f"{place}/step-1", f"{place}/.step-1.overwrite"
    _checkpoint(store, path, b"a").publish()

    def native_publish(made: stoker.CheckpointSet) -> None:
        store._client.sets.publish(made.volume, made.id)

    # Ended between the publish and the exchange: the old one counts, until the next save completes it.
    left = _checkpoint(store, path, b"b", overwrite=True)
    native_publish(left)
    assert _contents(store, path)[".metadata"] == b"a" and _contents(store, aside)[".metadata"] == b"b"
    assert store.latest(f"{place}/") == f"stoker://{path}/"
    made = _checkpoint(store, path, b"c", overwrite=True)
    assert _contents(store, path)[".metadata"] == b"b" and _contents(store, aside) == {}
    # Ended between the exchange and the removal.
    native_publish(made)
    store.exchange(f"{aside}/", f"{path}/")
    assert _contents(store, path)[".metadata"] == b"c" and _contents(store, aside)[".metadata"] == b"b"
    # Whoever comes back and publishes again does not swap them back.
    made.publish()
    assert made.path == f"stoker://{path}/" and _contents(store, path)[".metadata"] == b"c"
    last = _checkpoint(store, path, b"d", overwrite=True)
    assert _contents(store, aside) == {}
    # What was to be replaced is gone meanwhile.
    store.remove(*(one.path for one in store.list(path, recursive=True)))
    last.publish()
    assert _contents(store, path)[".metadata"] == b"d" and _contents(store, aside) == {}
    # One that is given up leaves all as it was.
    _checkpoint(store, path, b"e", overwrite=True).abort()
    assert _contents(store, path)[".metadata"] == b"d" and _contents(store, aside) == {}


def test_overwrite_without_something_to_replace_is_a_plain_save(store: stoker.Store, place: str) -> None:
    made = _checkpoint(store, f"{place}/step-1/", b"a", overwrite=True)
    assert made.path == f"stoker://{place}/step-1/"
    made.publish()
    assert _contents(store, f"{place}/step-1")[".metadata"] == b"a"
    # Plain files are replaced as well.
    store.write(f"{place}/step-2/part", b"plain")
    _checkpoint(store, f"{place}/step-2", b"b", overwrite=True).publish()
    assert sorted(_contents(store, f"{place}/step-2")) == [".metadata", "shard-00000", "shard-00001"]
